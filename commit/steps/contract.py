"""The contracts of commit steps, and how steps are found.

A *transactional* step writes nothing that anybody sees. It contributes compares and puts to the transaction
that finishes an operation, and so happens exactly once, together with everything else in it. What it prepares
beside (metadata files nobody refers to yet) it can take back once that transaction has certainly failed.

An *external* step acts on something that etcd's transaction cannot reach. It is logged before it is executed,
and executed again after a crash unless it can see that it is done.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgspec

from distop.errors import InvalidArgument, PermanentStepError, UnknownCommitStep
from distop.metastore.etcd.txn import KeyValue, Put, Txn, unchanged
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.metastore.records.record import encode
from distop.metastore.records.structs import convert
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.records.watermark_chunks import Chunks, Fetch
from distop.metastore.records.watermarks import Marks, decode_recent
from distop.operations.api import OperationView

GROUP = "distop.commit_steps"
VARIABLE = "DISTOP_COMMIT_STEPS"
"""Environment variable: more steps as ``name=module:Class``, separated by commas."""


def _nothing() -> None:
    return None


# -- transactional steps -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FinishContext:
    """What a step builds on, all read at one revision."""

    table: TableRecord
    keys: TableKeys
    head: KeyValue
    """The raw head; missing before anything was published."""
    watermarks: KeyValue
    """Those that were written lately, raw; missing before any was set. Its revision is that of all."""
    view: OperationView
    index: KeyValue = KeyValue.missing(b"")  # noqa: RUF009 - a frozen value
    """The raw pointer of the operation's object; missing before anything of it was published."""
    now: Callable[[], float] = time.time
    """Seconds since the Unix epoch."""
    chunks: Fetch | None = None
    """Reads the other watermarks."""

    @cached_property
    def marks(self) -> Marks:
        """All watermarks, read as they are asked for."""
        return Marks(decode_recent(self.watermarks.value), Chunks(self.chunks))

    def head_moved(self, head: Head) -> Txn:
        """The share of a step that moves the head: only if it is still the one that the step builds on."""
        return Txn((unchanged(self.head),), (Put(self.keys.head, encode(head)),))


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A step's share of the finishing transaction."""

    txn: Txn = Txn()
    """Compares that must hold, and what happens then."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For the history: JSON. Numbers beyond 2**53 are better strings, for readers in JavaScript."""
    discard: Callable[[], None] = _nothing
    """Takes back what was prepared, once the transaction has *certainly* failed; never called in doubt.
    Never raises."""


class TransactionalStep(ABC):
    """One step, made from the argument of its record."""

    def __init__(self, argument: dict[str, Any] | None = None) -> None:
        self.argument = dict(argument or {})

    @abstractmethod
    def prepare(self, context: FinishContext) -> Contribution:
        """Work out this step's share on the given base.

        Runs in a thread, reads nothing of etcd but the watermarks that it asks for, and is called again on a
        fresh base when the transaction lost to another writer. Raising :class:`~distop.errors.Conflict`,
        ``InvalidArgument`` or ``PreconditionFailed`` ends the operation; anything else is tried again.
        """


# -- external steps ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """What an external step knows besides its argument. The same on every host that may execute it (C13)."""

    table: TableRecord
    arg: OperationArg
    token: str
    """Of the operation, the same in every attempt: what a step leaves behind to recognise itself by."""
    check: Callable[[], None] = _nothing
    """Raises when this process may not act any more. To be called right before what cannot be taken back."""


class StepState(Enum):
    """What a look at the world says of a step."""

    DONE = "done"
    """It has been executed, completely: it need not be again (C3)."""
    NOT_DONE = "not done"
    """It has not, or not completely."""
    UNKNOWN = "unknown"
    """Nobody can tell. It is executed (again), and so must bear that."""


class ExternalStep(ABC):
    """One step, made from the argument of its record. All methods block and run in threads.

    A step may be executed several times, by several hosts, after any part of an earlier execution; in the end
    the world must look as if it had been executed once.
    """

    skippable: ClassVar[bool] = False
    """Whether a person may leave it out, when it cannot be done, without losing rows."""
    looks_itself: ClassVar[bool] = False
    """Whether :meth:`execute` ends with a look as good as :meth:`verify`, which then need not follow it."""

    def __init__(self, argument: dict[str, Any] | None = None) -> None:
        self.argument = dict(argument or {})

    @abstractmethod
    def verify(self, context: StepContext) -> StepState:
        """Whether it is done: decided by content, never by mere existence (C5).

        Raises
        ------
        PermanentStepError
            It is not done and never can be. Everything else that is raised is tried again.
        """

    @abstractmethod
    def execute(self, context: StepContext) -> None:
        """Do it. Raises as :meth:`verify`."""

    def undo(self, context: StepContext) -> bool:
        """Take back what was executed, as far as it was; whether nothing of it is left.

        For operations that are aborted after some of their steps were executed. May be called of a step that
        never was, and again.
        """
        return False


class StepPlan(ABC):
    """A step that stands for many external ones, which are only known once the jobs are done."""

    def __init__(self, argument: dict[str, Any] | None = None) -> None:
        self.argument = dict(argument or {})

    @abstractmethod
    def expand(self, context: FinishContext) -> Sequence[StepRecord]:
        """The external steps, worked out from the results of the jobs.

        Runs in a thread and changes nothing. What it returns is logged and never worked out again, unless
        this process dies before it is logged. Raises as :meth:`TransactionalStep.prepare`.
        """

    def facts(self, context: FinishContext) -> dict[str, Any]:
        """For the history, once all its steps are done: JSON. Numbers beyond 2**53 are better strings."""
        return {}


AnyStep: TypeAlias = TransactionalStep | ExternalStep | StepPlan


class StepArgument(
    msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """The argument of a step, typed. Unknown fields are refused: those of a newer version may matter."""

    STEP: ClassVar[str]
    """The name its steps are registered under."""

    def record(self, stage: int = 0) -> StepRecord:
        """The step, to be logged."""
        return StepRecord(step=self.STEP, argument=msgspec.to_builtins(self), stage=stage)


A = TypeVar("A", bound=StepArgument)


def argument_of(step: ExternalStep | StepPlan, kind: type[A]) -> A:
    """The argument of a step; raises :class:`~distop.errors.PermanentStepError` if it makes no sense."""
    try:
        return convert(step.argument, kind)
    except msgspec.ValidationError as error:
        raise PermanentStepError(
            f"the argument of commit step {kind.STEP!r} makes no sense: {error}",
            hint="was it written by a newer version?",
        ) from error


# -- finding them ------------------------------------------------------------------------------------


class StepRegistry:
    """The steps this process knows: entry points, and steps named by hand. Loaded when first asked for."""

    def __init__(self, extra: Iterable[str] | None = None) -> None:
        named = os.environ.get(VARIABLE, "").split(",") if extra is None else extra
        self._extra = dict(_named(item.strip()) for item in named if item.strip())

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=GROUP)}

    def names(self) -> list[str]:
        """All steps, sorted, without loading them."""
        return sorted({*self._entries, *self._extra})

    def kind(self, name: str) -> type[AnyStep]:
        """The class of the steps of this name.

        Raises
        ------
        UnknownCommitStep
            No step of this name is registered here; says which are. Nothing is wrong with the operation
            (C11).
        """
        kind: Any = None
        if name in self._extra:
            module, _, attribute = self._extra[name].partition(":")
            kind = getattr(import_module(module), attribute, None)
        elif name in self._entries:
            kind = self._entries[name].load()
        if not (isinstance(kind, type) and issubclass(kind, TransactionalStep | ExternalStep | StepPlan)):
            raise UnknownCommitStep(
                f"no commit step {name!r} is registered here, known are: {', '.join(self.names())}",
                details={"step": name},
            )
        return kind

    def load(self, record: StepRecord) -> TransactionalStep:
        """The transactional step of a record; raises as :meth:`kind`, also of a step of another kind."""
        step = self.kind(record.step)(record.argument)
        if not isinstance(step, TransactionalStep):
            raise _not_a(record, "transactional")
        return step

    def load_external(self, record: StepRecord) -> ExternalStep:
        """The external step of a record; raises as :meth:`kind`, also of a step of another kind."""
        step = self.kind(record.step)(record.argument)
        if not isinstance(step, ExternalStep):
            raise _not_a(record, "external")
        return step


def _not_a(record: StepRecord, kind: str) -> UnknownCommitStep:
    return UnknownCommitStep(
        f"commit step {record.step!r} is not {kind}",
        hint="another version of it made this record: use that version here too",
        details={"step": record.step},
    )


def _named(item: str) -> tuple[str, str]:
    name, equals, target = item.partition("=")
    if not equals or ":" not in target:
        raise InvalidArgument(f"{item!r} names no commit step", hint="write name=module:Class")
    return name, target


@cache
def default_registry() -> StepRegistry:
    """The steps of this process's environment."""
    return StepRegistry()
