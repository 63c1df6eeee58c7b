"""What an operation is to do, as its argument says: read once in a process, not once for each of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from distop.errors import CorruptRecord
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.structs import convert

T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)

MAX_RECENT = 4
"""Operations that a process remembers at once, of one kind of plan: plans can be large."""


def plan_of(operation: OperationArg, kind: type[P], what: str) -> P:
    """The argument of an operation as a plan of some kind, which is a ``what``.

    Raises :class:`~distop.errors.CorruptRecord` if it is none.
    """
    try:
        return convert(operation.argument, kind)
    except msgspec.ValidationError as error:
        raise CorruptRecord(f"the argument of {operation.id} is no {what}: {error}") from error


class Shared(Generic[T]):
    """What ``make`` makes of an operation: made once for all jobs of it that this process does in a row."""

    def __init__(self, make: Callable[[OperationArg], T]) -> None:
        self._make = make
        self._made: dict[str, T] = {}

    def __call__(self, operation: OperationArg) -> T:
        """Raises what ``make`` raises."""
        made = self._made.get(operation.uuid)
        if made is None:
            made = self._make(operation)
            if len(self._made) >= MAX_RECENT:
                self._made.clear()
            self._made[operation.uuid] = made
        return made
