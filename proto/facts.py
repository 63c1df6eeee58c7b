"""Facts of operations that people are shown in a form of their own.

Facts are whatever JSON an operation type reports: one that has such a name and another shape is shown like
any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SERIES = {"name": str, "operations": int, "rows": int, "since": str, "last": list}
_VIOLATION = {"rule": str, "rows": int, "partitions": int, "most": Mapping}


def series_of(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The summary of a series; empty if there is none."""
    found: Any = facts.get("series")
    return found if _fits(found, _SERIES) else {}


def violations_of(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What is known of each broken rule; empty if none is."""
    found: Any = facts.get("violations")
    known = isinstance(found, list) and all(
        _fits(one, _VIOLATION) and all(isinstance(rows, int) for rows in one["most"].values())
        for one in found
    )
    return found if known else []


def _fits(value: Any, shape: Mapping[str, type]) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(value.get(name), kind) for name, kind in shape.items()
    )
