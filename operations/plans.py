"""The plan of an operation, parsed from its argument: once per process, not once for each of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from distop.errors import CorruptRecord
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import convert

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    A = TypeVarWithDefault("A", default=Any)
else:
    A = TypeVar("A")
"""The class of a type's argument."""
T = TypeVar("T")
P = TypeVar("P", bound=msgspec.Struct)

ARGUMENT, INPUTS = "argument", "inputs"
"""Where the argument of a plan has an argument of the type's class, and the inputs of its jobs."""

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


def recorded_argument(operation: OperationArg, kind: type[A] | None) -> A:
    """The argument of a plan as its type declares it: of class ``kind``; ``None``: the JSON object.

    Raises :class:`~distop.errors.CorruptRecord` if it is invalid, as an argument of another version may be.
    """
    recorded: Any = operation.argument
    if kind is None:
        return recorded  # type: ignore[no-any-return]
    if ARGUMENT not in recorded:
        raise TypeError(f"the plan of {operation.type} has an argument of its own: read operation.argument")
    try:
        return convert(recorded[ARGUMENT], kind)
    except msgspec.ValidationError as error:
        raise CorruptRecord(
            f"the argument of {operation.id} is not one of {kind.__name__}: {error}"
        ) from error


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
