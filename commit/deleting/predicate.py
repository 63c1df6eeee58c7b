"""What a predicate on rows means: SQL's three-valued logic; only *true* selects a row.

pyiceberg's expressions have two values and treat NULL inconsistently: a NULL is in no list, and less than a
number that its column cannot hold. Rows would be deleted by mistake. So a predicate is first brought into a
form where two values suffice: without NOT, and with each comparison false for NULL.

Numbers are converted to the column's type: a float is compared with the float nearest to 0.1, which is more
than 0.1. pyiceberg does so for rows, but not for statistics. A decimal gets its column's scale if it does not
lose digits: pyiceberg takes 1.50 for two places, and refuses 1.5.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, DecimalException, Inexact, InvalidOperation
from typing import Any

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    LiteralPredicate,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    DecimalLiteral,
    DoubleLiteral,
    Literal,
    StringLiteral,
)
from pyiceberg.expressions.visitors import rewrite_not
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
)

_TEXTS = StringType, BinaryType, FixedType
_MOST_DIGITS = 38
"""Of a decimal in Iceberg."""


def certain(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The same predicate for rows of a schema, false wherever SQL's answer is NULL."""
    return _guarded(rewrite_not(expression), schema, lambda leaf: NotNull(term=leaf.term))


def provable(expression: BooleanExpression, schema: Schema, alike: Collection[int] = ()) -> BooleanExpression:
    """A narrower predicate: if a file's statistics prove it, the given one is true for all its rows.

    pyiceberg reads missing statistics as "no NULL, no NaN". Here statistics must exist. Those of texts prove
    nothing: pyiceberg writes wrong ones for files with texts of more than 4 KiB, of which Parquet keeps no
    minimum and maximum.

    Parameters
    ----------
    alike:
        Ids of columns that have one value in all rows of a file.
    """

    def proven(leaf: UnboundPredicate) -> BooleanExpression:
        column = _column(leaf, schema)
        if column is not None and isinstance(column.field_type, _TEXTS) and column.field_id not in alike:
            return AlwaysFalse()
        known = NotNull(term=leaf.term)
        return known if isinstance(leaf, IsNaN | NotNaN) else And(known, NotNaN(term=leaf.term))

    return _guarded(rewrite_not(expression), schema, proven)


def prunable(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """A wider predicate, of one that :func:`certain` returns, for readers that skip row groups.

    The statistics of a row group in Parquet leave NaN out: a group of 1.0 and NaN seems to hold only 1.0, and
    Arrow then skips it for ``is nan`` and for ``!= 1``.
    """
    match expression:
        case And():
            return And(prunable(expression.left, schema), prunable(expression.right, schema))
        case Or():
            return Or(prunable(expression.left, schema), prunable(expression.right, schema))
        case IsNaN() | NotEqualTo() | NotIn():
            column = _column(expression, schema)
            if column is not None and isinstance(column.field_type, FloatType | DoubleType):
                return AlwaysTrue()
    return expression


def _guarded(
    expression: BooleanExpression, schema: Schema, guard: Callable[[UnboundPredicate], BooleanExpression]
) -> BooleanExpression:
    match expression:
        case And():
            return And(_guarded(expression.left, schema, guard), _guarded(expression.right, schema, guard))
        case Or():
            return Or(_guarded(expression.left, schema, guard), _guarded(expression.right, schema, guard))
        case IsNull() | NotNull():
            return expression
        case UnboundPredicate():
            return And(_of_column(expression, schema), guard(expression))
    return expression


def _of_column(leaf: UnboundPredicate, schema: Schema) -> BooleanExpression:
    """The same comparison, with values of its column's type."""
    column = _column(leaf, schema)
    kind = None if column is None else column.field_type
    match leaf:
        case LiteralPredicate() if isinstance(kind, IntegerType | LongType):
            return _whole(leaf)
        case LiteralPredicate():
            return type(leaf)(leaf.term, _of_kind(leaf.literal, kind))
        case SetPredicate() if kind is not None:
            values = {_of_kind(one, kind) for one in leaf.literals}
            held = {one for one in values if _can_be(one, kind)}
            if isinstance(kind, FloatType | DoubleType) and any(one.value == 0 for one in held):
                return _with_zero(leaf, held)
            return type(leaf)(leaf.term, held)
    return leaf


def _with_zero(leaf: SetPredicate, held: set[Literal[Any]]) -> BooleanExpression:
    """A list with 0.0, which equals -0.0, but not for Arrow in a list: statistics of zeros begin at -0.0."""
    others = type(leaf)(leaf.term, {one for one in held if one.value != 0})
    if isinstance(leaf, NotIn):
        return And(others, NotEqualTo(term=leaf.term, value=0.0))
    return Or(others, EqualTo(term=leaf.term, value=0.0))


def _column(leaf: UnboundPredicate, schema: Schema) -> NestedField | None:
    """The column of a comparison; ``None`` if there is none: binding it raises the error."""
    try:
        return schema.find_field(str(getattr(leaf.term, "name", leaf.term)))
    except ValueError:
        return None


def _of_kind(literal: Literal[Any], kind: IcebergType | None) -> Literal[Any]:
    match kind:
        case FloatType():
            return _float(literal)
        case DecimalType():
            return _decimal(literal, kind.scale)
    return literal


def _can_be(literal: Literal[Any], kind: IcebergType) -> bool:
    """Whether a column can hold the value."""
    if isinstance(kind, IntegerType | LongType) and _fraction(literal) is not None:
        return False
    try:
        return not isinstance(literal.to(kind), AboveMax | BelowMin)
    except (TypeError, ValueError, ArithmeticError):
        return True  # binding it raises the error


def _whole(leaf: LiteralPredicate) -> BooleanExpression:
    number = _fraction(leaf.literal)
    match leaf:
        case _ if number is None:
            return leaf
        case EqualTo():
            return AlwaysFalse()
        case NotEqualTo():
            return AlwaysTrue()
        case LessThan() | LessThanOrEqual():
            return LessThanOrEqual(term=leaf.term, value=int(number.to_integral_value(ROUND_FLOOR)))
        case GreaterThan() | GreaterThanOrEqual():
            return GreaterThanOrEqual(term=leaf.term, value=int(number.to_integral_value(ROUND_CEILING)))
    return leaf


def _fraction(literal: Literal[Any]) -> Decimal | None:
    """A number that is not whole, of those that pyiceberg would round."""
    if not isinstance(literal, DecimalLiteral | StringLiteral):
        return None
    try:
        number = Decimal(literal.value)
    except DecimalException:
        return None
    return number if number.is_finite() and number != number.to_integral_value() else None


def _float(literal: Literal[Any]) -> Literal[Any]:
    try:
        return DoubleLiteral(struct.unpack("<f", struct.pack("<f", literal.value))[0])
    except (struct.error, OverflowError):
        return literal  # a text, or out of range: binding it handles that


def _decimal(literal: Literal[Any], scale: int) -> Literal[Any]:
    if not isinstance(literal, DecimalLiteral):
        return literal
    exactly = Context(prec=_MOST_DIGITS, traps=[Inexact, InvalidOperation])
    try:
        return DecimalLiteral(literal.value.quantize(Decimal((0, (1,), -scale)), context=exactly))
    except DecimalException:
        return literal  # digits would be lost: binding it raises the error
