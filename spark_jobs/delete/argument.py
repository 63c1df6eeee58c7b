"""The argument of ``delete``, and the predicate checked against a table's columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pyiceberg.expressions import And, BooleanExpression, Not, Or
from pyiceberg.schema import Schema

from distop.operations.arguments import invalid, parse
from distop.spark_jobs.tables.filters import arrow_filter, filter_columns, parse_filter

MAX_WHERE_CHARACTERS = 100_000
MAX_DEPTH = 200
"""Most nested conditions; for more values use ``in (...)``."""

_FIELD = "where"
_HINT = "write for example: day < '2013-02-01' and kind in ('a', 'b')"


class DeleteArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which rows to delete, and from where."""

    where: str
    """Rows for which this is true are deleted; those for which it is false stay, and those for which a NULL
    makes it unknown."""
    branch: str | None = None
    """Delete from this branch of the table, instead of the table itself."""


def parse_argument(raw: Mapping[str, Any]) -> DeleteArgument:
    """Raises :class:`~distop.errors.InvalidArgument`; ``details["field"]`` names the field."""
    argument = parse(raw, DeleteArgument, "delete")
    if not argument.where.strip():
        raise invalid(_FIELD, "where is empty: it selects the rows to delete", _HINT + "; for all rows: true")
    if len(argument.where) > MAX_WHERE_CHARACTERS:
        raise invalid(
            _FIELD,
            f"where has {len(argument.where):,} characters of at most {MAX_WHERE_CHARACTERS:,}",
            "delete in several operations",
        )
    return argument


def predicate(where: str, schema: Schema) -> BooleanExpression:
    """A predicate on the rows of a table.

    Raises
    ------
    InvalidArgument
        It cannot be parsed, names a column that the table does not have or whose values cannot be compared,
        or compares one with a value of another kind.
    """
    found = parse_filter(where, _FIELD)
    if _depth(found) > MAX_DEPTH:
        raise invalid(_FIELD, f"where has more than {MAX_DEPTH} nested conditions", "use in (...)")
    known = {column.name: column.field_type for column in schema.columns}
    for name in sorted(filter_columns(found)):
        if name not in known:
            raise invalid(_FIELD, f"there is no column {name!r}; the columns are {', '.join(known)}")
        if not known[name].is_primitive:
            raise invalid(_FIELD, f"column {name!r} is nested: its values cannot be compared")
    arrow_filter(found, schema, _FIELD)  # raises if it does not fit the columns
    return found


def _depth(expression: BooleanExpression) -> int:
    deepest, waiting = 0, [(expression, 1)]
    while waiting:
        one, depth = waiting.pop()
        deepest = max(deepest, depth)
        match one:
            case And() | Or():
                waiting += [(one.left, depth + 1), (one.right, depth + 1)]
            case Not():
                waiting.append((one.child, depth + 1))
    return deepest
