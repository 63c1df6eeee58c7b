"""Commit steps that act on a world of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from distop.commit.contract import (
    Contribution,
    ExternalStep,
    FinishContext,
    StepContext,
    StepPlan,
    StepRegistry,
    StepState,
    TransactionalStep,
)
from distop.metastore.records.operation import StepRecord


class World:
    """What the steps of a test act on."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the steps and events recorded so far, and fail none."""
        self.done: set[int] = set()
        self.events: list[tuple[str, int]] = []
        self.fails: dict[int, Exception] = {}
        self.before: Callable[[int], None] = lambda n: None

    def named(self, event: str) -> list[int]:
        return [n for name, n in self.events if name == event]


world = World()


class Note(ExternalStep):
    """Does its number."""

    skippable: ClassVar[bool] = True

    def verify(self, context: StepContext) -> StepState:
        return StepState.DONE if self.argument["n"] in world.done else StepState.NOT_DONE

    def execute(self, context: StepContext) -> None:
        n = self.argument["n"]
        world.before(n)
        if n in world.fails:
            raise world.fails[n]
        world.events.append(("execute", n))
        world.done.add(n)

    def undo(self, context: StepContext) -> bool:
        n = self.argument["n"]
        world.events.append(("undo", n))
        world.done.discard(n)
        if n in world.fails:
            raise world.fails[n]
        return True


class Blind(Note):
    """Cannot see whether it is done."""

    skippable: ClassVar[bool] = False

    def verify(self, context: StepContext) -> StepState:
        return StepState.UNKNOWN

    def undo(self, context: StepContext) -> bool:
        return ExternalStep.undo(self, context)


class Lazy(Note):
    """A step whose execution does nothing."""

    def execute(self, context: StepContext) -> None:
        return None


class Many(StepPlan):
    """A type that represents many."""

    def expand(self, context: FinishContext) -> list[StepRecord]:
        return [StepRecord(step=self.argument["of"], argument={"n": n}, stage=n % 2) for n in range(4)]


class Pointer(TransactionalStep):
    def prepare(self, context: FinishContext) -> Contribution:
        return Contribution()


REGISTRY = StepRegistry(
    f"{kind.__name__.lower()}={__name__}:{kind.__name__}" for kind in (Note, Blind, Lazy, Many, Pointer)
)
