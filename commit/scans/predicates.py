"""Filters of Iceberg's REST protocol, which are JSON, as expressions on the columns of a table.

What a literal means depends on its column: a date is a text or the number of its day, bytes are hexadecimal
digits. So the columns are looked up here, and names are theirs afterwards, whatever case they were given in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import bind
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DecimalType, FixedType, FloatType, IcebergType, TimestamptzType

from distop.commit.deleting.predicate import of_column
from distop.errors import InvalidArgument

_Made: TypeAlias = Callable[..., Any]

_CONSTANTS = {"true": True, "false": False}
_UNARY: dict[str, _Made] = {
    "is-null": IsNull,
    "not-null": NotNull,
    "is-nan": IsNaN,
    "not-nan": NotNaN,
}
_COMPARING: dict[str, _Made] = {
    "lt": LessThan,
    "lt-eq": LessThanOrEqual,
    "gt": GreaterThan,
    "gt-eq": GreaterThanOrEqual,
    "eq": EqualTo,
    "not-eq": NotEqualTo,
    "starts-with": StartsWith,
    "not-starts-with": NotStartsWith,
}
_SETS: dict[str, _Made] = {"in": In, "not-in": NotIn}
KNOWN = (*_CONSTANTS, "and", "or", "not", *_UNARY, *_COMPARING, *_SETS)


@dataclass(frozen=True)
class Filter:
    """What rows are asked for."""

    expression: BooleanExpression
    """Without NOT; its names are those of the columns."""
    whole: bool
    """Whether it says all that was asked. Where not, some of its rows are not asked for."""


def read_filter(given: Any, schema: Schema, *, case_sensitive: bool = True) -> Filter:
    """A filter on rows of a schema.

    Parameters
    ----------
    given:
        JSON, as Python has it; ``None``: all rows. What is said of a transform of a column, or of whether a
        column of several values is NULL, leaves all rows in.

    Raises :class:`~distop.errors.InvalidArgument` if it is none, or does not fit the columns.
    """
    reader = _Reader(schema, case_sensitive)
    try:
        expression = AlwaysTrue() if given is None else reader.read(given, False)
        bind(schema, expression, case_sensitive=True)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _invalid(f"it does not fit the columns: {str(error).partition(chr(10))[0]}") from error
    return Filter(expression, reader.whole)


class _Reader:
    def __init__(self, schema: Schema, case_sensitive: bool) -> None:
        self._schema, self._case_sensitive = schema, case_sensitive
        self.whole = True

    def read(self, node: Any, negated: bool) -> BooleanExpression:
        """An expression, or what is true where it is false."""
        kind = _kind(node)
        if kind in _CONSTANTS:
            return AlwaysTrue() if _CONSTANTS[kind] is not negated else AlwaysFalse()
        match kind:
            case "not":
                return self.read(_part(node, "child"), not negated)
            case "and" | "or":
                left, right = (self.read(_part(node, side), negated) for side in ("left", "right"))
                return And(left, right) if (kind == "and") is not negated else Or(left, right)
        column = self._column(_part(node, "term", "left" if kind in _COMPARING else "child"))
        if column is None or (kind in _UNARY and not column[1].is_primitive):
            self.whole = False
            return AlwaysTrue()
        if not column[1].is_primitive:
            raise _invalid(f"column {column[0]!r} holds no single values")
        predicate = self._predicate(kind, node, *column)
        return ~predicate if negated else predicate

    def _column(self, term: Any) -> tuple[str, IcebergType] | None:
        """Name and type of a column; ``None`` for what is made of one."""
        if isinstance(term, Mapping):
            if term.get("type") == "transform":
                return None
            if term.get("type") != "reference":
                raise _invalid(f"{_short(term)} is no column")
            term = term.get("term", term.get("name"))
        if not isinstance(term, str):
            raise _invalid(f"{_short(term)} is no column")
        try:
            field = self._schema.find_field(term, case_sensitive=self._case_sensitive)
        except ValueError:
            raise _invalid(f"the table has no column {_short(term)}") from None
        name = self._schema.find_column_name(field.field_id)
        return (name or term), field.field_type

    def _predicate(self, kind: str, node: Any, column: str, of: IcebergType) -> BooleanExpression:
        made: BooleanExpression
        if kind in _UNARY:
            made = _UNARY[kind](column)
        elif kind in _COMPARING:
            made = _COMPARING[kind](column, _value(_part(node, "value", "right"), of))
        else:
            values = _part(node, "values")
            if isinstance(values, Mapping):
                values = values.get("values")
            if not isinstance(values, list):
                raise _invalid(f"{_short(values)} is no list of values")
            made = _SETS[kind](column, [_value(one, of) for one in values])
        return of_column(made, self._schema) if isinstance(made, UnboundPredicate) else made


def _kind(node: Any) -> str:
    if isinstance(node, bool):
        return "true" if node else "false"
    if not isinstance(node, Mapping) or not isinstance(kind := node.get("type"), str):
        raise _invalid(f"{_short(node)} is no expression")
    if kind == "literal" and isinstance(node.get("value"), bool):
        return "true" if node["value"] else "false"
    if kind not in KNOWN:
        raise _invalid(f"the expression {_short(kind)} is not known; known are {', '.join(KNOWN)}")
    return kind


def _part(node: Any, *names: str) -> Any:
    for name in names:
        if name in node:
            return node[name]
    raise _invalid(f"the expression {node['type']!r} has no {names[0]!r}")


def _value(given: Any, of: IcebergType) -> Any:
    """A literal as pyiceberg takes it for a column of a type."""
    if isinstance(given, Mapping) and given.get("type") == "literal":
        given = given.get("value")
    if isinstance(given, bool):
        return given
    if not isinstance(given, str | int | float) or given in (math.inf, -math.inf):
        raise _invalid(f"{_short(given)} is no value")
    match of:
        case BinaryType() | FixedType() if isinstance(given, str):
            return bytes.fromhex(given)
        case DecimalType():
            exact = Decimal(str(given))
            scaled = round(exact, of.scale)
            return scaled if scaled == exact else exact  # pyiceberg refuses what the column cannot hold
        case TimestamptzType() if isinstance(given, str) and not _has_zone(given):
            return f"{given}+00:00"  # pyiceberg's own client leaves the zone out
        case FloatType() if not isinstance(given, str):
            # pyiceberg measures statistics by the number as it was given, which no row of the column has.
            with np.errstate(over="ignore"):
                return float(np.float32(given))
    return given


def _has_zone(time: str) -> bool:
    return time.endswith("Z") or "+" in time or "-" in time.partition("T")[2]


def _short(value: Any) -> str:
    return repr(value)[:100]


def _invalid(message: str) -> InvalidArgument:
    return InvalidArgument(f"the filter cannot be used: {message}", details={"field": "filter"})
