"""What a predicate on rows means: SQL's three values, of which only a certain *yes* counts.

pyiceberg's expressions know two values, and answer for NULL what is handy: a NULL is in no list, and less
than a number that its column cannot hold. Rows would go that nobody has asked for. So a predicate is first
brought into a form in which two values are enough: without NOT, and with each comparison false of NULL.

Numbers become what the column can hold of them: a float is compared with the float that is next to 0.1, which
is more than 0.1. pyiceberg does so where it looks at rows, and not where it looks at statistics.
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
    """The same predicate on rows of a schema, false wherever SQL's answer is NULL."""
    return _guarded(rewrite_not(expression), schema, lambda leaf: NotNull(term=leaf.term))


def provable(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """A narrower predicate: of a file whose statistics prove it, the given one is true for all rows.

    Statistics that a writer left out count as none of NULL and of NaN with pyiceberg. Here they must say so.
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
    """The same comparison, with values that its column can hold."""
    try:
        kind = schema.find_type(str(getattr(leaf.term, "name", leaf.term)))
    except ValueError:
        return leaf  # whoever binds it says so
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
        return literal  # a text, or out of range: whoever binds it sees to that
