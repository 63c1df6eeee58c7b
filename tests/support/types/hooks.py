"""Hooks that commit steps call."""

from distop.commit.hook import HookCall
from distop.errors import PermanentStepError

calls: list[HookCall] = []


def note(call: HookCall) -> None:
    """Remember the call."""
    calls.append(call)


def flaky(call: HookCall) -> None:
    """Fail in a way that may pass."""
    raise ConnectionError("try later")


def never(call: HookCall) -> None:
    """Fail for good."""
    raise PermanentStepError("no such address")
