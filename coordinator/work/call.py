"""A call, and its environment: a thread of the coordinator, or a separate process."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from distop.operations.registry import Registry

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True)
class Surroundings:
    """The context of a call."""

    registry: Registry
    check: Callable[[], None]
    """Raises when this process, or its coordinator, may not act any more. Calling it is also a heartbeat: a
    call with heartbeats is not ended for taking long."""


class Call(Protocol[T_co]):
    """A function of a module, or a ``partial`` of one: it must be picklable."""

    def __call__(self, surroundings: Surroundings, /) -> T_co: ...


def portable(error: BaseException) -> BaseException:
    """An error that can be sent to another process, with its stack trace as a note."""
    note = "".join(traceback.format_exception(error)).rstrip()
    for each in (error, getattr(error, "cause", None)):
        if isinstance(each, BaseException):
            each.__notes__ = [*getattr(each, "__notes__", ()), f"in a separate process:\n{note}"]
    return error
