"""Which terms of a filter an index can answer: equalities and lists of values, and their combinations with
AND and OR.

An unsupported term excludes nothing. So the index serves the terms on indexed columns, and the rows are
checked against the whole filter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from functools import reduce
from typing import TypeAlias

from distop.lake.index.parts import Groups
from distop.lake.predicates.binding import And, Column, Compare, Node, OneOf, Or, Plain

Left: TypeAlias = dict[str, Groups]
"""The remaining files, and their row groups."""

Ask: TypeAlias = Callable[[Column, Collection[Plain]], Left | None]
"""The planned files that may contain one of some values in a column; ``None``: no index applies."""


def narrowed_by(node: Node, ask: Ask) -> Left | None:
    """The files that may match a filter; ``None``: all of them."""
    match node:
        case And(parts):
            return reduce(_both, (narrowed_by(part, ask) for part in parts))
        case Or(parts):
            return reduce(_either, (narrowed_by(part, ask) for part in parts))
        case Compare(column, "=", value):
            return ask(column, [value])
        case OneOf(column, values, nan, False):
            return ask(column, [*values, math.nan] if nan else values)
    return None


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
