"""Which terms of a filter an index can answer: equalities and lists of values, and what AND and OR make of
them.

What it cannot answer leaves everything in. So a filter is served by the terms that name an indexed column,
and the rest of it is for the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from pyiceberg.expressions import And, BooleanExpression, EqualTo, In, Or
from pyiceberg.expressions.literals import Literal

from distop.commit.index.parts import Groups

Left: TypeAlias = dict[str, Groups]
"""Files that are left, and their row groups."""

Ask: TypeAlias = Callable[[str, Sequence[Literal[Any]]], Left | None]
"""What is left of the planned files if a column is to have one of some values; ``None``: no index says."""


def narrowed_by(expression: BooleanExpression, ask: Ask) -> Left | None:
    """What is left for a filter; ``None``: all of it."""
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
