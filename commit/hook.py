"""The commit step that calls user code.

Its effect cannot be verified, so it is called again whenever that is in doubt: after a crash, a lost reply, a
change of leaders. It gets a token, the same each time, to detect repetitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeAlias

import msgspec

from distop.commit.contract import ExternalStep, StepArgument, StepContext, StepState, argument_of
from distop.errors import UnknownCommitStep
from distop.metastore.crashpoints import reached

GROUP = "distop.commit_hooks"
"""The entry point group of hooks."""


class HookArgument(StepArgument):
    """The argument of a :class:`Hook`."""

    STEP: ClassVar[str] = "hook"

    call: str
    """Name of an entry point, or ``module:function``."""
    argument: dict[str, Any] = msgspec.field(default_factory=dict)
    """Passed to the function."""


@dataclass(frozen=True, kw_only=True)
class HookCall:
    """The context of a hook."""

    token: str
    """The same in every call for this operation."""
    table: str
    operation: str
    argument: Mapping[str, Any]
    check: Callable[[], None]
    """Raises when this process may not act any more; call it before irreversible actions."""


HookFunction: TypeAlias = Callable[[HookCall], object]
"""May raise :class:`~distop.errors.PermanentStepError`; other errors are retried."""


class Hook(ExternalStep):
    """Calls a function, at least once."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        """See :class:`ExternalStep`: it cannot be verified."""
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

    Raises :class:`~distop.errors.UnknownCommitStep` if it is not installed here; another host may have it.
    """
    hook: Any = None
    for entry in entry_points(group=GROUP, name=name):
        hook = entry.load()
    if hook is None and ":" in name:
        module, _, attribute = name.partition(":")
        try:
            hook = getattr(import_module(module), attribute, None)
        except ModuleNotFoundError:
            hook = None
    if not callable(hook):
        raise UnknownCommitStep(
            f"no hook {name!r} is installed here",
            hint=f"install the package that provides it (group {GROUP}, or module:function)",
            details={"step": HookArgument.STEP, "hook": name},
        )
    function: HookFunction = hook
    return function
