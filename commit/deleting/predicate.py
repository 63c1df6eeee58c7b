"""What a predicate on rows means: SQL's three values, of which only a certain *yes* counts.

pyiceberg's expressions know two values, and answer for NULL what is handy: a NULL is in no list, and less
than a number that its column cannot hold. Rows would go that nobody has asked for. So a predicate is first
brought into a form in which two values are enough: without NOT, and with each comparison false of NULL.
"""

from __future__ import annotations

from collections.abc import Callable

from pyiceberg.expressions import (
    And,
    BooleanExpression,
    IsNaN,
    IsNull,
    NotNaN,
    NotNull,
    Or,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import rewrite_not


def certain(expression: BooleanExpression) -> BooleanExpression:
    """The same predicate, false wherever SQL's answer is NULL."""
    return _guarded(rewrite_not(expression), lambda leaf: NotNull(term=leaf.term))


def provable(expression: BooleanExpression) -> BooleanExpression:
    """A narrower predicate: of a file whose statistics prove it, the given one is true for all rows.

    Statistics that a writer left out count as none of NULL and of NaN with pyiceberg. Here they must say so.
    """

    def proven(leaf: UnboundPredicate) -> BooleanExpression:
        known = NotNull(term=leaf.term)
        return known if isinstance(leaf, IsNaN | NotNaN) else And(known, NotNaN(term=leaf.term))

    return _guarded(rewrite_not(expression), proven)


def _guarded(
    expression: BooleanExpression, guard: Callable[[UnboundPredicate], BooleanExpression]
) -> BooleanExpression:
    match expression:
        case And():
            return And(_guarded(expression.left, guard), _guarded(expression.right, guard))
        case Or():
            return Or(_guarded(expression.left, guard), _guarded(expression.right, guard))
        case IsNull() | NotNull():
            return expression
        case UnboundPredicate():
            return And(expression, guard(expression))
    return expression
