"""The commit step that calls code of yours.

Nobody can see from outside what it has done, so it is called again whenever that is in doubt: after a crash,
a lost reply, a change of leaders. It gets a token, the same each time, to recognise a repeat by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeAlias

import msgspec

from distop.commit.steps.contract import ExternalStep, StepArgument, StepContext, StepState, argument_of
from distop.errors import UnknownCommitStep
from distop.metastore.crashpoints import reached

GROUP = "distop.commit_hooks"
"""The group of entry points that hooks are named in."""


class HookArgument(StepArgument):
    """What a :class:`Hook` calls."""

    STEP: ClassVar[str] = "hook"

    call: str
    """Name of an entry point, or ``module:function``."""
    argument: dict[str, Any] = msgspec.field(default_factory=dict)
    """Passed on."""


@dataclass(frozen=True, kw_only=True)
class HookCall:
    """What a hook gets."""

    token: str
    """The same in every call for this operation."""
    table: str
    operation: str
    argument: Mapping[str, Any]
    check: Callable[[], None]
    """Raises when this process may not act any more; to be called before what cannot be taken back."""


HookFunction: TypeAlias = Callable[[HookCall], object]
"""May raise :class:`~distop.errors.PermanentStepError`; anything else that it raises is tried again."""


class Hook(ExternalStep):
    """Calls a function, at least once."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`: nobody can tell."""
        argument_of(self, HookArgument)
        return StepState.UNKNOWN

    def execute(self, context: StepContext) -> None:
        """See :class:`ExternalStep`.

        Raises :class:`~distop.errors.UnknownCommitStep` if the function is not found here.
        """
        argument = argument_of(self, HookArgument)
        function = hook_named(argument.call)
        call = HookCall(
            token=context.token,
            table=context.table.name,
            operation=str(context.arg.id),
            argument=argument.argument,
            check=context.check,
        )
        context.check()
        reached("step.hook.before")
        function(call)
        reached("step.hook.after")


def hook_named(name: str) -> HookFunction:
    """The function of a hook.

    Raises :class:`~distop.errors.UnknownCommitStep` if it is not installed here; it may be elsewhere.
    """
    found: Any = None
    for entry in entry_points(group=GROUP, name=name):
        found = entry.load()
    if found is None and ":" in name:
        module, _, attribute = name.partition(":")
        try:
            found = getattr(import_module(module), attribute, None)
        except ModuleNotFoundError:
            found = None
    if not callable(found):
        raise UnknownCommitStep(
            f"no hook {name!r} is installed here",
            hint=f"install the package that provides it (group {GROUP}, or module:function)",
            details={"step": HookArgument.STEP, "hook": name},
        )
    function: HookFunction = found
    return function
