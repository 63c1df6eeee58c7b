"""Which terms of a filter an index can answer: equalities and lists of values, and their combinations with
AND and OR.

An unsupported term excludes nothing. So the index serves the terms on indexed columns, and the rows are
checked against the whole filter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, Or
from pyiceberg.expressions.literals import Literal

from distop.commit.index.parts import Groups

Left: TypeAlias = dict[str, Groups]
"""The remaining files, and their row groups."""

Ask: TypeAlias = Callable[[str, Sequence[Literal[Any]]], Left | None]
"""The planned files that may contain one of some values in a column; ``None``: no index applies."""


def narrowed_by(expression: BooleanExpression, ask: Ask) -> Left | None:
    """The files that may match a filter; ``None``: all of them."""
    match expression:
        case And():
            return _both(narrowed_by(expression.left, ask), narrowed_by(expression.right, ask))
        case Or():
            return _either(narrowed_by(expression.left, ask), narrowed_by(expression.right, ask))
        case EqualTo():
            return ask(_column(expression), [expression.literal])
        case In():
            return ask(_column(expression), list(expression.literals))
    return None


def _column(term: EqualTo | In) -> str:
    return str(getattr(term.term, "name", term.term))


def _both(left: Left | None, right: Left | None) -> Left | None:
    if left is None or right is None:
        return right if left is None else left
    found: Left = {}
    for file in left.keys() & right.keys():
        one, other = left[file], right[file]
        groups = one & other if one is not None and other is not None else (other if one is None else one)
        if groups is None or groups:
            found[file] = groups
    return found


def _either(left: Left | None, right: Left | None) -> Left | None:
    if left is None or right is None:
        return None
    found: Left = {}
    for file in left.keys() | right.keys():
        one, other = left.get(file, frozenset()), right.get(file, frozenset())
        found[file] = None if one is None or other is None else one | other
    return found
