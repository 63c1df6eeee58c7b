"""What a predicate on rows means: SQL's three-valued logic; only *true* selects a row.

pyiceberg's expressions have two values and treat NULL inconsistently: a NULL is in no list, and less than a
number that its column cannot hold. Rows would be deleted by mistake. So a predicate is first brought into a
form where two values suffice: without NOT, and with each comparison false for NULL.

Numbers are converted to the column's type: a float is compared with the float nearest to 0.1, which is more
than 0.1. pyiceberg does so for rows, but not for statistics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    IsNaN,
    IsNull,
    LiteralPredicate,
    NotNaN,
    NotNull,
    Or,
    SetPredicate,
    UnboundPredicate,
)
from pyiceberg.expressions.literals import DoubleLiteral, Literal
from pyiceberg.expressions.visitors import rewrite_not
from pyiceberg.schema import Schema
from pyiceberg.types import FloatType


def certain(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """The same predicate for rows of a schema, false wherever SQL's answer is NULL."""
    return _guarded(rewrite_not(expression), schema, lambda leaf: NotNull(term=leaf.term))


def provable(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """A narrower predicate: if a file's statistics prove it, the given one is true for all its rows.

    pyiceberg reads missing statistics as "no NULL, no NaN". Here statistics must exist.
    """

    def proven(leaf: UnboundPredicate) -> BooleanExpression:
        known = NotNull(term=leaf.term)
        return known if isinstance(leaf, IsNaN | NotNaN) else And(known, NotNaN(term=leaf.term))

    return _guarded(rewrite_not(expression), schema, proven)


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


def _of_column(leaf: UnboundPredicate, schema: Schema) -> UnboundPredicate:
    """The same comparison, with values of its column's type."""
    try:
        kind = schema.find_type(str(getattr(leaf.term, "name", leaf.term)))
    except ValueError:
        return leaf  # binding it raises the error
    match leaf:
        case LiteralPredicate() if isinstance(kind, FloatType):
            return type(leaf)(leaf.term, _float(leaf.literal))
        case SetPredicate() if isinstance(kind, FloatType):
            return type(leaf)(leaf.term, {_float(one) for one in leaf.literals})
    return leaf


def _float(literal: Literal[Any]) -> Literal[Any]:
    try:
        return DoubleLiteral(struct.unpack("<f", struct.pack("<f", literal.value))[0])
    except (struct.error, OverflowError):
        return literal  # a text, or out of range: binding it handles that
