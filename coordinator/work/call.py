"""What is called, and what it finds where it runs: a thread of the coordinator, or a process of its own."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from distop.operations.registry import Registry

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Surroundings:
    """Of a call."""

    registry: Registry
    check: Callable[[], None]
    """Raises when this process, or the coordinator that it works for, may not act any more. To call it is a
    sign of life: what gives one is not ended for taking long."""


class Call(Protocol[T_co]):
    """A function of a module, or a ``partial`` of one: what can be pickled."""

    def __call__(self, surroundings: Surroundings, /) -> T_co: ...


def portable(error: BaseException) -> BaseException:
    """An error that may travel to another process, with its stack trace as a note."""
    note = "".join(traceback.format_exception(error)).rstrip()
    for each in (error, getattr(error, "cause", None)):
        if isinstance(each, BaseException):
            each.__notes__ = [*getattr(each, "__notes__", ()), f"in a process of its own:\n{note}"]
    return error
