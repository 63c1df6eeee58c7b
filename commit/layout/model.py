"""The shape of an Iceberg table, fixed for one operation: schema, partitioning, properties.

It is decided once, when the operation starts, and recorded in its argument: every job and the commit work
from the recorded one, so that all of them agree on field ids whatever becomes of the table meanwhile.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from uuid import UUID, uuid4

import msgspec
from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.serializers import FromInputFile
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from distop.commit.files.storage import StorageOptions, io_properties
from distop.commit.layout.sizes import MAX_COLUMN_NAME, MAX_COLUMNS
from distop.commit.layout.terms import parse_partitioning
from distop.commit.pyiceberg_private import schema_without_ids
from distop.errors import CorruptRecord, InvalidArgument, PreconditionFailed
from distop.metastore.records.locations import canonical, place_of

FORMAT_VERSION: Literal[2] = 2
"""The Iceberg format that is written: the first in which a manifest may be adopted by a later snapshot."""

DEFAULT_PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true"}
"""Of the tables that operations make, unless they say otherwise: earlier metadata files that the table's log
no longer names (it has ``write.metadata.previous-versions-max`` entries, 100 by default) are removed."""

MAX_PROPERTIES, MAX_PROPERTY_NAME, MAX_PROPERTY, MAX_MAPPING = 256, 256, 16 << 10, 1 << 20
"""Of one table; characters of a name, of a value, and of the one that maps columns to names."""

_ACTS = re.compile(
    r"(.*[.-])?impl|py-.*|(s3|gcs|adls|hdfs|oss|abfs|wasb|client|rest|hive|glue|dynamodb|sql|fs|http|ssl|auth"
    r"|oauth2|header|token|credential|uri|warehouse)([.-].*)?|.*(secret|password|passwd|access-key|credential).*"
)
"""Names of properties that libraries act on."""

_NAMES_FOLDERS = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Where programs of Iceberg write, in place of the table's location."""


@dataclass(frozen=True)
class Layout:
    """Schema (with field ids), partition spec and properties of a table."""

    schema: Schema
    spec: PartitionSpec
    properties: dict[str, str] = field(default_factory=dict)
    last_column_id: int = field(default=0, compare=False)
    """The highest id that a column has or had, where it is known. Not recorded."""

    @classmethod
    def create(
        cls,
        schema: Any,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
    ) -> Layout:
        """The layout of a table that is yet to be made.

        Parameters
        ----------
        schema:
            A ``pyarrow.Schema``, or a ``pyiceberg`` one; field ids are assigned afresh.
        partition_by:
            Terms such as ``month(time)``, ``day(time)``, ``bucket[16](id)`` (or ``bucket(16, id)``),
            ``truncate[4](name)``, or a plain column.

        Raises
        ------
        InvalidArgument
            A column has a type that Iceberg lacks (``field`` is ``schema``), a term names no column or no
            transform (``field`` is ``partition_by``), or a property names code (``field`` is ``properties``).
        """
        if not isinstance(schema, Schema):
            schema = _from_arrow(schema)
        _check_names(column.name for column in schema.columns)
        fresh = assign_fresh_schema_ids(schema)
        texts = {name: _property_text(value) for name, value in (properties or {}).items()}
        check_properties(texts)
        return cls(fresh, parse_partitioning(partition_by, fresh), texts)

    @classmethod
    def of(cls, metadata: TableMetadata) -> Layout:
        """The present layout of an existing table.

        Raises :class:`~distop.errors.PreconditionFailed` if it has an Iceberg format that is not written.
        """
        check_format(metadata)
        properties = dict(metadata.properties)
        return cls(metadata.schema(), metadata.spec(), properties, metadata.last_column_id)

    def to_json(self) -> dict[str, Any]:
        """A JSON object, to be recorded in an operation's argument."""
        return {
            "schema": msgspec.json.decode(self.schema.model_dump_json()),
            "spec": msgspec.json.decode(self.spec.model_dump_json()),
            "properties": self.properties,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """The inverse of :meth:`to_json`. Raises :class:`~distop.errors.CorruptRecord`."""
        try:
            return cls(
                Schema.model_validate(value["schema"]),
                PartitionSpec.model_validate(value["spec"]),
                dict(value.get("properties", {})),
            )
        except (KeyError, TypeError, AttributeError, PydanticError, ValidationError) as error:
            raise CorruptRecord(f"this is not the layout of a table: {error}") from error

    @cached_property
    def arrow_schema(self) -> Any:
        """The ``pyarrow.Schema`` that rows have when they are written; carries the field ids."""
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        return schema_to_pyarrow(self.schema)

    def new_metadata(self, location: str, *, uuid: str = "", now: float | None = None) -> TableMetadata:
        """Metadata of an empty table with exactly this layout.

        Parameters
        ----------
        uuid:
            The table's uuid; if it is none, a random one is taken.
        now:
            Seconds since the Unix epoch.
        """
        last_partition_id = max((f.field_id for f in self.spec.fields), default=PARTITION_FIELD_ID_START - 1)
        fields: dict[str, Any] = {
            "location": location.rstrip("/"),
            "table-uuid": _uuid(uuid),
            "last-updated-ms": int((time.time() if now is None else now) * 1000),
            "schemas": [self.schema],
            "current-schema-id": self.schema.schema_id,
            "last-column-id": self.schema.highest_field_id,
            "partition-specs": [self.spec],
            "default-spec-id": self.spec.spec_id,
            "last-partition-id": last_partition_id,
            "sort-orders": [UNSORTED_SORT_ORDER],
            "default-sort-order-id": UNSORTED_SORT_ORDER.order_id,
            "properties": self.properties,
        }
        return TableMetadataV2(**fields)


def check_properties(properties: Mapping[str, Any], location: str = "") -> None:
    """Refuse properties that somebody's library would act on, and more of others than a table has use for.

    Names that nobody knows are notes. But pyiceberg would call what ``py-io-impl`` names wherever a process
    opens the table. A folder to write to must be in that of the table, where its ``location`` is known: any
    other is another table's, or claimed by nobody.

    Raises :class:`~distop.errors.InvalidArgument`; ``details["field"]`` is ``properties``.
    """
    if len(properties) > MAX_PROPERTIES:
        raise _bad_property(f"there are {len(properties):,} properties, at most {MAX_PROPERTIES} are kept")
    for name, value in properties.items():
        if _ACTS.fullmatch(name.lower()):
            raise _bad_property(
                f"property {name[:100]!r} names code, a credential or an endpoint",
                "leave it out; how files are reached is up to each process, not to the table",
            )
        most = MAX_MAPPING if name == "schema.name-mapping.default" else MAX_PROPERTY
        if len(name) > MAX_PROPERTY_NAME or len(str(value)) > most:
            raise _bad_property(
                f"property {name[:100]!r} is too long: names have at most {MAX_PROPERTY_NAME} characters, "
                f"and this one's value {most:,}"
            )
    for name in _NAMES_FOLDERS if location else ():
        if name not in properties:
            continue
        own, place = (place_of(canonical(str(text), "properties")) for text in (location, properties[name]))
        if place != own and not place.startswith(f"{own}/"):
            raise InvalidArgument(
                f"property {name!r} names {properties[name]}, which is not in the table's own folder {own}",
                hint="leave it out, or name a folder below the table's location",
                details={"field": "properties"},
            )


def inert(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties that another program wrote, without those that :func:`check_properties` may refuse."""
    return {
        name: value
        for name, value in properties.items()
        if name not in _NAMES_FOLDERS and not _ACTS.fullmatch(name.lower())
    }


def _bad_property(message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, hint=hint, details={"field": "properties"})


def check_format(metadata: TableMetadata) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` unless the table has the format that is written."""
    if metadata.format_version != FORMAT_VERSION:
        raise PreconditionFailed(
            f"the table at {metadata.location} has Iceberg format {metadata.format_version}, "
            f"distop writes format {FORMAT_VERSION}",
            hint="upgrade the table, or make it anew",
        )


def _property_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return uuid4()


# -- files -------------------------------------------------------------------------------------------


def file_io(
    location: str, storage: StorageOptions | None = None, own: Mapping[str, str] | None = None
) -> FileIO:
    """Access to the files at and below a location.

    Properties of the table have no say: anybody who may write to a table sets them, and ``py-io-impl`` names
    any function of Python.

    Parameters
    ----------
    storage:
        The table's storage options.
    own:
        Properties of the catalog that this process was given; they come first. What neither says comes from
        the environment.

    Raises
    ------
    NotAllowed
        Tables may have no files there; also when one is opened that lies elsewhere.
    """
    from distop.commit.files.checked_io import checked

    return checked(load_file_io({**io_properties(location, storage), **(own or {})}, location))


def load_metadata(metadata_location: str, storage: StorageOptions | None = None) -> TableMetadata:
    """Read a table's metadata file.

    Raises :class:`~distop.errors.CorruptRecord` if it is missing or is no table metadata.
    """
    io = file_io(metadata_location, storage)
    try:
        return FromInputFile.table_metadata(io.new_input(metadata_location))
    except FileNotFoundError as error:
        raise CorruptRecord(f"the table's metadata file {metadata_location} is missing") from error
    except (ValidationError, PydanticError) as error:
        raise CorruptRecord(f"{metadata_location} is no table metadata: {error}") from error


# -- schemas -----------------------------------------------------------------------------------------

_TYPES: dict[str, Callable[[], PrimitiveType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "date": DateType,
    "time": TimeType,
    "timestamp": TimestampType,
    "timestamptz": TimestamptzType,
    "string": StringType,
    "uuid": UUIDType,
    "binary": BinaryType,
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")
_NOT_NULL = re.compile(r"\s+not\s+null$", re.IGNORECASE)


def parse_schema(fields: Iterable[str] | Mapping[str, str]) -> Schema:
    """A schema that a user wrote down: ``["id: long not null", "price: decimal(9,2)"]``, or names to types.

    Types are Iceberg's primitive ones. Raises :class:`~distop.errors.InvalidArgument` naming the column.
    """
    pairs = list(fields.items()) if isinstance(fields, Mapping) else [_split_field(text) for text in fields]
    _check_names(name for name, _ in pairs)
    columns = []
    for position, (name, text) in enumerate(pairs, start=1):
        type_text, required = _NOT_NULL.subn("", str(text).strip())
        columns.append(NestedField(position, name, _parse_type(name, type_text), required=bool(required)))
    return Schema(*columns)


def _split_field(text: object) -> tuple[str, str]:
    name, colon, type_text = str(text).rpartition(":")
    if not colon:
        raise _bad_schema(f"{text!r} is no column: write 'name: type'", str(text))
    return name.strip(), type_text


def _parse_type(name: str, text: str) -> PrimitiveType:
    lowered = text.strip().lower()
    if lowered in _TYPES:
        return _TYPES[lowered]()
    if match := _DECIMAL.fullmatch(lowered):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return DecimalType(precision, scale)
        raise _bad_schema(f"column {name!r}: {text} needs 1 <= precision <= 38 and scale <= precision", name)
    if (match := _FIXED.fullmatch(lowered)) and int(match[1]) > 0:
        return FixedType(int(match[1]))
    known = ", ".join([*_TYPES, "decimal(p,s)", "fixed[n]"])
    raise _bad_schema(f"column {name!r} has the unknown type {text!r}; known are: {known}", name)


def _check_names(names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise _bad_schema("a column has no name", name)
        if len(name) > MAX_COLUMN_NAME:
            raise _bad_schema(
                f"column {name[:50]!r}... has a name of {len(name):,} characters, at most "
                f"{MAX_COLUMN_NAME:,} are taken",
                name[:50],
            )
        if len(seen) >= MAX_COLUMNS:
            raise _bad_schema(f"there are more than {MAX_COLUMNS:,} columns", "")
        if name in seen:
            raise _bad_schema(f"column {name!r} is named twice", name)
        seen.add(name)
    if not seen:
        raise _bad_schema("the schema has no columns", "")


def _bad_schema(message: str, column: str) -> InvalidArgument:
    return InvalidArgument(message, details={"field": "schema", "column": column})


def _from_arrow(schema: Any) -> Schema:
    import pyarrow as pa
    from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException

    widened = pa.schema([column.with_type(_widened(column.type)) for column in schema])
    try:
        return schema_without_ids(widened)
    except UnsupportedPyArrowTypeException as error:
        column = error.field
        raise _bad_schema(
            f"column {column.name!r}: Iceberg has no type {column.type}", column.name
        ) from error
    except (TypeError, ValueError) as error:
        raise _bad_schema(f"the schema cannot be one of Iceberg: {error}", "") from error


def _widened(kind: Any) -> Any:
    """The Arrow type that Iceberg has and that holds all values of ``kind``."""
    import pyarrow as pa

    if pa.types.is_uint32(kind):
        return pa.int64()
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if pa.types.is_null(kind):
        return pa.string()
    if pa.types.is_date64(kind):
        return pa.date32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_dictionary(kind):
        return _widened(kind.value_type)
    return kind
