"""A table's partitioning as users write it: ``month(time)``, ``bucket[16](id)``, or a column."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg import transforms
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField, PrimitiveType

from distop.errors import InvalidArgument

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
        f"partition_by: {message}",
        hint=f"columns: {', '.join(columns)}; {known}" if columns else known,
        details={"field": "partition_by"},
    )
