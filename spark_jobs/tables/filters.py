"""Row filters: text such as ``distance > 100 and origin == 'JFK'`` to an Arrow expression.

The grammar is pyiceberg's: comparisons, ``in``, ``between``, ``like 'prefix%'``, ``is null``, ``is nan``,
joined by ``and``, ``or``, ``not``; names with other characters than letters, digits and ``_`` in double
quotes. As in SQL, a row with an unknown result because of a NULL is excluded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import And, Not, Or, UnboundPredicate
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyparsing import ParseException

from distop.commit.deleting.predicate import certain
from distop.operations.arguments import invalid

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema


def parse_filter(text: str, field: str = "filter") -> BooleanExpression:
    """Raises :class:`~distop.errors.InvalidArgument` with the position of the syntax error, and the ``field``
    of the argument."""
    try:
        return parse(text)
    except ParseException as error:
        raise invalid(field, f"the filter {text!r} cannot be parsed from {text[error.loc :]!r} on") from None
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise invalid(field, f"the filter {text!r} cannot be parsed: {error}") from None


def filter_columns(expression: BooleanExpression) -> set[str]:
    """The names of the columns in a filter."""
    match expression:
        case And() | Or():
            return filter_columns(expression.left) | filter_columns(expression.right)
        case Not():
            return filter_columns(expression.child)
        case UnboundPredicate():
            return {str(getattr(expression.term, "name", expression.term))}
    return set()


def arrow_filter(expression: BooleanExpression, schema: Schema, field: str = "filter") -> Any:
    """The ``pyarrow.compute.Expression`` of a filter over rows of a schema.

    Raises
    ------
    InvalidArgument
        A column does not exist, or is compared with a value of another kind. Names the ``field``.
    """
    try:
        return expression_to_pyarrow(bind(schema, certain(expression, schema), case_sensitive=True))
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise invalid(field, f"the filter does not fit the columns: {error}") from None
