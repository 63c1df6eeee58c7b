"""Iceberg schemas of new tables, from a user's text or an Arrow schema, and their partitioning as users write
it: ``month(time)``, ``bucket[16](id)``, or a column.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyiceberg import transforms
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from distop.errors import InvalidArgument, UnsupportedType
from distop.lake.layout.properties import (
    MAX_COLUMN_DOC,
    MAX_COLUMN_NAME,
    MAX_COLUMNS,
    MAX_FIELDS,
    MAX_ID,
    MAX_NESTING,
)

_TYPES: dict[str, Callable[[], iceberg.PrimitiveType]] = {
    "boolean": iceberg.BooleanType,
    "int": iceberg.IntegerType,
    "long": iceberg.LongType,
    "float": iceberg.FloatType,
    "double": iceberg.DoubleType,
    "date": iceberg.DateType,
    "time": iceberg.TimeType,
    "timestamp": iceberg.TimestampType,
    "timestamptz": iceberg.TimestamptzType,
    "string": iceberg.StringType,
    "uuid": iceberg.UUIDType,
    "binary": iceberg.BinaryType,
}

_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")

_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")

_NOT_NULL = re.compile(r"\s+not\s+null$", re.IGNORECASE)


def parse_schema(fields: Iterable[str] | Mapping[str, str]) -> Schema:
    """A schema from text: ``["id: long not null", "price: decimal(9,2)"]``, or names to types.

    Types are Iceberg's primitive ones. Raises :class:`~distop.errors.InvalidArgument` naming the column.
    """
    pairs = list(fields.items()) if isinstance(fields, Mapping) else [_split_field(text) for text in fields]
    check_names(name for name, _ in pairs)
    columns = []
    for position, (name, text) in enumerate(pairs, start=1):
        type_text, required = _NOT_NULL.subn("", str(text).strip())
        columns.append(
            iceberg.NestedField(position, name, _parse_type(name, type_text), required=bool(required))
        )
    return Schema(*columns)


def _split_field(text: object) -> tuple[str, str]:
    name, colon, type_text = str(text).rpartition(":")
    if not colon:
        raise bad_schema(f"{text!r} is not a column: write 'name: type'", str(text))
    return name.strip(), type_text


def _parse_type(name: str, text: str) -> iceberg.PrimitiveType:
    lowered = text.strip().lower()
    if lowered in _TYPES:
        return _TYPES[lowered]()
    if match := _DECIMAL.fullmatch(lowered):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= 38 and scale <= precision:
            return iceberg.DecimalType(precision, scale)
        raise bad_schema(f"column {name!r}: {text} needs 1 <= precision <= 38 and scale <= precision", name)
    if (match := _FIXED.fullmatch(lowered)) and 0 < int(match[1]) <= MAX_ID:
        return iceberg.FixedType(int(match[1]))
    known = ", ".join([*_TYPES, "decimal(p,s)", "fixed[n]"])
    raise bad_schema(f"column {name!r} has the unknown type {text!r}; known: {known}", name)


def check_schema(schema: Schema) -> None:
    """Refuse another program's schema with more columns (nested ones included), greater ids, longer names or
    deeper nesting than a table may have, and what Iceberg's Java library would not read.

    Raises :class:`~distop.errors.InvalidArgument`; ``details["field"]`` is ``schema``.
    """
    waiting = [(field, 1) for field in schema.fields]
    fields, ids = 0, set[int]()
    while waiting:
        field, depth = waiting.pop()
        fields += 1
        if fields > MAX_COLUMNS:
            raise bad_schema(f"there are more than {MAX_COLUMNS:,} columns", "")
        if field.field_id > MAX_ID:
            raise bad_schema(
                f"column {field.name[:50]!r} has the id {field.field_id}, at most {MAX_ID} is allowed",
                field.name[:50],
            )
        if field.field_id in ids:
            raise bad_schema(f"two columns have the id {field.field_id}", field.name[:50])
        ids.add(field.field_id)
        if not field.name:
            raise bad_schema("a column has no name", "")
        for text, most in ((field.name, MAX_COLUMN_NAME), (field.doc or "", MAX_COLUMN_DOC)):
            if len(text) > most:
                raise bad_schema(
                    f"column {field.name[:50]!r} has a text of {len(text):,} characters, at most {most:,} "
                    "are allowed",
                    field.name[:50],
                )
        if field.initial_default is not None or field.write_default is not None:
            raise bad_schema(
                f"column {field.name[:50]!r} has a default value, as only tables of format 3 may",
                field.name[:50],
            )
        if isinstance(field.field_type, iceberg.DecimalType | iceberg.FixedType):
            _parse_type(field.name[:50], str(field.field_type))
        inner = fields_within(field.field_type)
        if inner and depth > MAX_NESTING:
            raise bad_schema(
                f"column {field.name[:50]!r}: values are nested deeper than {MAX_NESTING} levels",
                field.name[:50],
            )
        waiting.extend((child, depth + 1) for child in inner)


def check_types(schema: Schema, location: str) -> None:
    """Raise :class:`~distop.errors.UnsupportedType` if the table at ``location`` has a column of a type that
    distop does not read: newer formats have more of them."""
    waiting = [(field.name, field.field_type) for field in schema.fields]
    while waiting:
        path, kind = waiting.pop()
        if isinstance(kind, iceberg.PrimitiveType) and not is_type(str(kind)):
            raise unsupported_type(location, path, str(kind))
        waiting += [(f"{path}.{field.name}", field.field_type) for field in fields_within(kind)]


def is_type(text: str) -> bool:
    """Whether distop reads columns of this primitive type of Iceberg."""
    return text in _TYPES or bool(_DECIMAL.fullmatch(text) or _FIXED.fullmatch(text))


def unsupported_type(location: str, column: str, kind: str) -> UnsupportedType:
    return UnsupportedType(
        f"the table at {location} has column {column[:MAX_COLUMN_NAME]!r} of the type {kind[:50]}, "
        "which distop does not read",
        details={"column": column[:MAX_COLUMN_NAME], "type": kind[:50]},
    )


def refuse_twins(schema: Schema, present: Schema) -> None:
    """Refuse names that differ only in case within one table, struct, list or map: SQL ignores case, so that
    Spark and others could read neither column. Pairs that are in ``present`` already are let be.

    Raises :class:`~distop.errors.InvalidArgument`; ``details["field"]`` is ``schema``.
    """
    known = {(number, present.find_field(number).name) for number in present.field_ids}
    waiting: list[tuple[str, tuple[iceberg.NestedField, ...]]] = [("", schema.fields)]
    while waiting:
        path, fields = waiting.pop()
        folded: dict[str, iceberg.NestedField] = {}
        for field in fields:
            twin = folded.setdefault(field.name.casefold(), field)
            if twin is not field and not known.issuperset({(f.field_id, f.name) for f in (field, twin)}):
                raise InvalidArgument(
                    f"columns {path + twin.name!r} and {path + field.name!r} differ only in case, and SQL "
                    "ignores case",
                    hint="give one of them another name",
                    details={"field": "schema", "column": path + field.name},
                )
            waiting.append((f"{path}{field.name}.", fields_within(field.field_type)))


def fields_within(kind: iceberg.IcebergType) -> tuple[iceberg.NestedField, ...]:
    """The fields that a type consists of."""
    match kind:
        case iceberg.StructType():
            return kind.fields
        case iceberg.ListType():
            return (kind.element_field,)
        case iceberg.MapType():
            return (kind.key_field, kind.value_field)
    return ()


def check_fields(fields: Sequence[object]) -> None:
    """Refuse more partition or sort fields, or greater ids, than a table may have. Raises as
    :func:`check_schema`."""
    if len(fields) > MAX_FIELDS:
        raise bad_schema(
            f"there are {len(fields):,} fields to partition or sort by, at most {MAX_FIELDS:,} are allowed",
            "",
        )
    for field in fields:
        if isinstance(field, PartitionField) and field.field_id > MAX_ID:
            name = field.name[:50]
            raise bad_schema(
                f"partition field {name!r} has the id {field.field_id}, at most {MAX_ID} is allowed",
                name,
            )


def check_names(names: Iterable[str]) -> None:
    taken: set[str] = set()
    for name in names:
        if not name:
            raise bad_schema("a column has no name", name)
        if len(name) > MAX_COLUMN_NAME:
            raise bad_schema(
                f"column {name[:50]!r}... has a name of {len(name):,} characters, at most "
                f"{MAX_COLUMN_NAME:,} are allowed",
                name[:50],
            )
        if len(taken) >= MAX_COLUMNS:
            raise bad_schema(f"there are more than {MAX_COLUMNS:,} columns", "")
        if name in taken:
            raise bad_schema(f"column {name!r} is named twice", name)
        taken.add(name)
    if not taken:
        raise bad_schema("the schema has no columns", "")


def bad_schema(message: str, column: str) -> InvalidArgument:
    """The error for columns that no table can have; ``column`` is the first of them, or empty."""
    return InvalidArgument(message, details={"field": "schema", "column": column})


_TERM = re.compile(r"(?P<name>[A-Za-z]+)\s*(?:\[\s*(?P<width>\d+)\s*\])?\s*\(\s*(?P<inside>.*?)\s*\)")
_WIDTH_FIRST = re.compile(r"(\d+)\s*,\s*(.*)")
_PLAIN: dict[str, tuple[Callable[[], transforms.Transform[Any, Any]], str]] = {
    "identity": (transforms.IdentityTransform, ""),
    "year": (transforms.YearTransform, "_year"),
    "month": (transforms.MonthTransform, "_month"),
    "day": (transforms.DayTransform, "_day"),
    "hour": (transforms.HourTransform, "_hour"),
}
_WITH_WIDTH = ("bucket", "truncate")


def parse_partitioning(terms: Sequence[str], schema: Schema) -> PartitionSpec:
    """The partition spec of some terms; see :meth:`distop.lake.layout.model.Layout.create`.

    Raises :class:`~distop.errors.InvalidArgument` (``field`` is ``partition_by``).
    """
    fields: list[PartitionField] = []
    for position, term in enumerate(terms):
        transform, source, name = _parse_term(str(term).strip(), schema)
        if any(other.source_id == source.field_id for other in fields):
            raise _bad_term(f"{term!r} uses column {source.name!r} twice", schema)
        if not isinstance(transform, transforms.IdentityTransform) and name in schema.column_names:
            raise _bad_term(f"{term!r} would be called {name!r}, which is the name of a column", schema)
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + position, transform, name))
    return PartitionSpec(*fields)


def check_terms(terms: Sequence[str]) -> None:
    """Refuse terms that are invalid for any columns. Raises as :func:`parse_partitioning`."""
    for term in terms:
        match = _TERM.fullmatch(str(term).strip())
        if match is None:
            if not str(term).strip():
                raise _bad_term("a term is empty")
        elif match["name"].lower().removesuffix("s") not in (*_PLAIN, *_WITH_WIDTH):
            raise _bad_term(f"{term!r}: there is no transform {match['name']!r}")


def _parse_term(term: str, schema: Schema) -> tuple[transforms.Transform[Any, Any], NestedField, str]:
    if term in schema.column_names:
        return _checked(transforms.IdentityTransform(), term, term, term, schema)
    match = _TERM.fullmatch(term)
    if match is None:
        raise _bad_term(f"{term!r} is neither a column nor a transform of a column", schema)
    # Spark writes years(x), months(x) and so on.
    word, width, column = match["name"].lower(), match["width"], match["inside"]
    word = word.removesuffix("s")
    if word in _WITH_WIDTH:
        if width is None and (inside := _WIDTH_FIRST.fullmatch(column)):
            width, column = inside.groups()
        if not width or int(width) == 0:
            raise _bad_term(f"{term!r} lacks its width: write {word}[16]({column})", schema)
        if word == "bucket":
            return _checked(
                transforms.BucketTransform(int(width)), column, f"{column}_bucket_{width}", term, schema
            )
        return _checked(
            transforms.TruncateTransform(int(width)), column, f"{column}_trunc_{width}", term, schema
        )
    if word not in _PLAIN or width is not None:
        raise _bad_term(f"{term!r}: there is no transform {match['name']!r}", schema)
    kind, suffix = _PLAIN[word]
    return _checked(kind(), column, column + suffix, term, schema)


def _checked(
    transform: transforms.Transform[Any, Any], column: str, name: str, term: str, schema: Schema
) -> tuple[transforms.Transform[Any, Any], NestedField, str]:
    try:
        source = schema.find_field(column)
    except ValueError:
        raise _bad_term(f"{term!r}: there is no column {column!r}", schema) from None
    kind: IcebergType = source.field_type
    if not isinstance(kind, PrimitiveType) or not transform.can_transform(kind):
        raise _bad_term(f"{term!r} cannot be taken of {column!r}, which is a {kind}", schema)
    return transform, source, name


def _bad_term(message: str, schema: Schema | None = None) -> InvalidArgument:
    columns = [f"{column.name} ({column.field_type})" for column in schema.columns] if schema else []
    known = f"transforms: {', '.join(_PLAIN)}, bucket[n], truncate[n]"
    return InvalidArgument(
        f"--partition-by: {message}",
        hint=f"columns: {', '.join(columns)}; {known}" if columns else known,
        details={"field": "partition_by"},
    )
