"""The shape of an Iceberg table, fixed for one operation: schema, partitioning, properties.

It is decided once, when the operation starts, and recorded in its argument: every job and the commit use the
recorded one, so all of them agree on field ids whatever happens to the table meanwhile.

The metadata of a table names files, and any writer of the table can put names there.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pyarrow as pa
from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile, OutputFile, load_file_io
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import (
    PyArrowFile,
    PyArrowFileIO,
    UnsupportedPyArrowTypeException,
    schema_to_pyarrow,
)
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.metadata import TableMetadata, TableMetadataV2
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from distop.errors import CorruptRecord, PreconditionFailed
from distop.lake.layout.metadata import check_columns, read_metadata
from distop.lake.layout.properties import FORMAT_VERSION, check_properties, of_new_table
from distop.lake.layout.schemas import bad_schema, check_names, parse_partitioning, refuse_twins
from distop.lake.pyiceberg_arrow import schema_without_ids
from distop.lake.storage.allowed import check_location
from distop.lake.storage.storage import StorageOptions, io_properties


def from_arrow(schema: pa.Schema) -> Schema:
    """The Iceberg schema for rows of an Arrow schema, without field ids.

    Raises :class:`~distop.errors.InvalidArgument` if Iceberg has no such type.
    """
    widened = pa.schema([column.with_type(_widened(column.type)) for column in schema])
    try:
        return schema_without_ids(widened)
    except UnsupportedPyArrowTypeException as error:
        column = error.field
        raise bad_schema(f"column {column.name!r}: Iceberg has no type {column.type}", column.name) from error
    except (TypeError, ValueError) as error:
        raise bad_schema(f"this cannot be an Iceberg schema: {error}", "") from error


def _widened(kind: pa.DataType) -> pa.DataType:
    """The Iceberg-compatible Arrow type that holds all values of ``kind``."""
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


class ArrowIO(PyArrowFileIO):
    """pyarrow's file access with checks."""

    def new_input(self, location: str) -> PyArrowFile:
        self._check(location)
        return super().new_input(location)

    def new_output(self, location: str) -> PyArrowFile:
        self._check(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._check(location if isinstance(location, str) else location.location)
        super().delete(location)

    def _check(self, location: str) -> None:
        """The path that pyarrow will open: it drops queries, fragments and line breaks of URLs."""
        scheme, host, path = self.parse_location(location, self.properties)
        whole = path if scheme == "file" or path.startswith(host) else f"{host}{path}"
        check_location(whole if scheme == "file" else f"{scheme}://{whole}")


class FsspecIO(FsspecFileIO):
    """fsspec's file access with checks."""

    def new_input(self, location: str):  # type: ignore[no-untyped-def]
        check_location(location)
        return super().new_input(location)

    def new_output(self, location: str):  # type: ignore[no-untyped-def]
        check_location(location)
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        check_location(location if isinstance(location, str) else location.location)
        super().delete(location)


def checked(io: FileIO) -> FileIO:
    """The same file access, with a check of each location; a user-defined one stays as it is."""
    kind = {PyArrowFileIO: ArrowIO, FsspecFileIO: FsspecIO}.get(type(io))
    return io if kind is None else kind(io.properties)


DEFAULT_PROPERTIES = {"write.metadata.delete-after-commit.enabled": "true"}
"""Default for tables that operations create: metadata files that the table's log no longer names are removed
(it has ``write.metadata.previous-versions-max`` entries, 100 by default)."""


@dataclass(frozen=True)
class Layout:
    """Schema (with field ids), partition spec, properties and sort order of a table."""

    schema: Schema
    spec: PartitionSpec
    properties: dict[str, str] = field(default_factory=dict)
    last_column_id: int = field(default=0, compare=False)
    """The highest id that any column has had, if known. Not recorded."""
    sort_order: SortOrder = UNSORTED_SORT_ORDER
    """The order of rows within files, as another engine, or a catalog's client, has set it."""

    @classmethod
    def create(
        cls,
        schema: Any,
        partition_by: Sequence[str] = (),
        properties: Mapping[str, Any] | None = None,
    ) -> Layout:
        """The layout of a new table.

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
            Iceberg has no such column type (``field`` is ``schema``), a term names an unknown column or
            transform (``field`` is ``partition_by``), or a property names code (``field`` is ``properties``).
        """
        if not isinstance(schema, Schema):
            schema = from_arrow(schema)
        check_names(column.name for column in schema.columns)
        fresh = assign_fresh_schema_ids(schema)
        refuse_twins(fresh, Schema())
        texts = {name: _property_text(value) for name, value in (properties or {}).items()}
        check_properties(texts)
        return cls(fresh, parse_partitioning(partition_by, fresh), texts)

    @classmethod
    def of(cls, metadata: TableMetadata) -> Layout:
        """The present layout of an existing table.

        Raises :class:`~distop.errors.PreconditionFailed` if distop does not write its Iceberg format version.
        """
        check_format(metadata)
        properties = dict(metadata.properties)
        order = metadata.sort_order()
        return cls(metadata.schema(), metadata.spec(), properties, metadata.last_column_id, order)

    def to_json(self) -> dict[str, Any]:
        """A JSON object for the operation's argument."""
        recorded = {
            "schema": msgspec.json.decode(self.schema.model_dump_json()),
            "spec": msgspec.json.decode(self.spec.model_dump_json()),
            "properties": self.properties,
        }
        if not self.sort_order.is_unsorted:
            recorded["sortOrder"] = msgspec.json.decode(self.sort_order.model_dump_json())
        return recorded

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """The inverse of :meth:`to_json`. Raises :class:`~distop.errors.CorruptRecord`."""
        try:
            return cls(
                Schema.model_validate(value["schema"]),
                PartitionSpec.model_validate(value["spec"]),
                dict(value.get("properties", {})),
                sort_order=SortOrder.model_validate(value["sortOrder"])
                if "sortOrder" in value
                else UNSORTED_SORT_ORDER,
            )
        except (KeyError, TypeError, AttributeError, PydanticError, ValidationError) as error:
            raise CorruptRecord(f"this is not a table layout: {error}") from error

    @cached_property
    def arrow_schema(self) -> Any:
        """The ``pyarrow.Schema`` of rows to write; it carries the field ids."""
        return schema_to_pyarrow(self.schema)

    def new_metadata(self, location: str, *, uuid: str = "", now: float | None = None) -> TableMetadata:
        """Metadata of an empty table with exactly this layout.

        Parameters
        ----------
        uuid:
            The table's uuid; if it is not a uuid, a random one is used.
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
            "sort-orders": [self.sort_order],
            "default-sort-order-id": self.sort_order.order_id,
            "properties": of_new_table(self.properties),
        }
        return TableMetadataV2(**fields)


def check_format(metadata: TableMetadata) -> None:
    """Raise :class:`~distop.errors.PreconditionFailed` unless distop writes the table's format version."""
    if metadata.format_version != FORMAT_VERSION:
        raise PreconditionFailed(
            f"the table at {metadata.location} has Iceberg format {metadata.format_version}, "
            f"distop writes format {FORMAT_VERSION}",
            hint="upgrade the table, or create it again",
        )


def schema_with(metadata: TableMetadata, spec: PartitionSpec) -> Schema | None:
    """The present schema or, if columns of a partition spec were dropped, the newest one that has them all.

    Partition values have the types of their columns. ``None``: another program has removed that schema.
    """
    schemas = (metadata.schema(), *reversed(metadata.schemas))
    return next(
        (schema for schema in schemas if all(f.source_id in schema.field_ids for f in spec.fields)), None
    )


def schema_of(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """The same; raises :class:`~distop.errors.PreconditionFailed` if there is none."""
    schema = schema_with(metadata, spec)
    if schema is None:
        raise PreconditionFailed(
            f"the table at {metadata.location} has files of partition spec {spec.spec_id}, which uses a "
            "column that none of the table's schemas has",
            hint="rewrite the files of that partitioning with the program that removed the schema",
        )
    return schema


def _property_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        return uuid4()


def file_io(
    location: str, storage: StorageOptions | None = None, own: Mapping[str, str] | None = None
) -> FileIO:
    """Access to the files at and below a location.

    The table's properties are ignored: any writer of the table sets them, and ``py-io-impl`` names arbitrary
    Python code.

    Parameters
    ----------
    storage:
        The table's storage options.
    own:
        Catalog properties that this process was given; they take precedence. The environment supplies the
        rest.

    Raises
    ------
    NotAllowed
        Tables may not have files there; also raised when a file elsewhere is opened.
    """

    return checked(load_file_io({**io_properties(location, storage), **(own or {})}, location))


def load_metadata(metadata_location: str, storage: StorageOptions | None = None) -> TableMetadata:
    """Read a table's metadata file.

    Raises :class:`~distop.errors.CorruptRecord` if it is missing or is not table metadata, and
    :class:`~distop.errors.UnsupportedType` if distop does not read one of the columns.
    """
    try:
        metadata = read_metadata(file_io(metadata_location, storage), metadata_location)
    except FileNotFoundError as error:
        raise CorruptRecord(f"the table's metadata file {metadata_location} is missing") from error
    check_columns(metadata, metadata_location)
    return metadata
