"""The plan of an operation, parsed from its argument: once per process, not once for each of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from distop.errors import CorruptRecord
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import convert

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)

MAX_RECENT = 4
"""Plans of one kind that a process caches: plans can be large."""


def plan_of(operation: OperationArg, kind: type[P], label: str) -> P:
    """The argument of an operation as a plan of some kind; ``label`` names the kind.

    Raises :class:`~distop.errors.CorruptRecord` if it is invalid.
    """
    try:
        return convert(operation.argument, kind)
    except msgspec.ValidationError as error:
        raise CorruptRecord(f"the argument of {operation.id} is not a {label}: {error}") from error


class Shared(Generic[T]):
    """The result of ``make`` for an operation: made once for all its jobs that this process does in a row."""

    def __init__(self, make: Callable[[OperationArg], T]) -> None:
        self._make = make
        self._made: dict[str, T] = {}

    def __call__(self, operation: OperationArg) -> T:
        """Raises the errors of ``make``."""
        made = self._made.get(operation.uuid)
        if made is None:
            made = self._make(operation)
            if len(self._made) >= MAX_RECENT:
                self._made.clear()
            self._made[operation.uuid] = made
        return made
