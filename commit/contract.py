"""The contracts of commit steps, and how steps are found.

A *transactional* step writes nothing visible. It contributes compares and puts to the transaction that
finishes an operation, so it happens exactly once, together with everything else in it. Other things that it
prepares (metadata files without references) it can remove once that transaction has certainly failed.

An *external* step acts on something outside of etcd. It is logged before it is executed, and executed again
after a crash unless it can verify that it is done.
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
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import msgspec

from distop.commit.partial import Selection, selection
from distop.errors import InvalidArgument, PermanentStepError, UnknownCommitStep
from distop.metastore.backlog.undoing import RollbackDifference
from distop.metastore.etcd.txn import KeyValue, Put, Txn, unchanged
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.metastore.records.record import convert, encode
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.records.watermarks import Chunks, Fetch, Marks, decode_recent
from distop.operations.api import OperationView

DROPPED_METADATA = "droppedMetadata"
"""Metadata files that the table's log no longer names. The pointer has moved on for good, so they can be
removed once that is certain."""
NOT_UNDONE = "stepsNotUndone"
"""How many external steps of an aborted operation remain in effect. Files that they published (a Delta table
may name them) are unknown here."""
DROPPED_JOBS = "droppedJobs"
"""Jobs whose output the commit did not publish, as half-open ranges (from, to) of their positions among the
operation's jobs."""
IGNORED = "ignored"
"""The commit did not change the table, and the output of the jobs is not needed."""
ADOPTED_FROM = "adoptedFrom"
"""Task manifests of at least this many bytes became manifests of the table; smaller ones were merged."""

BRANCH = "branch"
"""The branch that the operation concerns, if not the table itself."""
SNAPSHOT = "snapshotId"
"""The snapshot that it has made or published, as text: JavaScript would lose the last digits of a number."""
PUBLISHED = "publishedSnapshots"
"""How many snapshots of the branch became part of the table."""
REBASED = "rebased"
"""Whether these became one new snapshot, which names this operation."""
PASSED_OVER = "passedOver"
"""Why files were left as they are that the operation is for, and how many: ``{"otherFormats": 3}``."""

GROUP = "distop.commit_steps"
VARIABLE = "DISTOP_COMMIT_STEPS"
"""Environment variable: more steps as ``name=module:Class``, separated by commas."""


def _nothing() -> None:
    return None


class StepTime(NamedTuple):
    """When one step was prepared or executed, in seconds since the Unix epoch."""

    name: str
    began: float
    ended: float


# -- transactional steps -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FinishContext:
    """The state that a step builds on, all read at one revision."""

    table: TableRecord
    keys: TableKeys
    head: KeyValue
    """The raw head; missing before the first publication."""
    watermarks: KeyValue
    """Recently written watermarks, raw; missing before the first. Its revision is that of all."""
    view: OperationView
    index: KeyValue = KeyValue.missing(b"")  # noqa: RUF009 - a frozen value
    """The raw pointer of the operation's object; missing before its first publication."""
    now: Callable[[], float] = time.time
    """Seconds since the Unix epoch."""
    chunks: Fetch | None = None
    """Reads the other watermarks."""

    @cached_property
    def marks(self) -> Marks:
        """All watermarks, read on demand."""
        return Marks(decode_recent(self.watermarks.value), Chunks(self.chunks))

    @cached_property
    def selection(self) -> Selection:
        """What is published of the operation; raises as :func:`~distop.commit.partial.selection`."""
        return selection(self.view.arg, self.view.jobs)

    def head_moved(self, head: Head) -> Txn:
        """The contribution of a step that moves the head: only if the head is still the step's base."""
        return Txn((unchanged(self.head),), (Put(self.keys.head, encode(head)),))


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """A step's part of the finishing transaction."""

    txn: Txn = Txn()
    """Compares that must hold, and the writes."""
    facts: dict[str, Any] = field(default_factory=dict)
    """For the history: JSON. Write numbers beyond 2**53 as strings, for readers in JavaScript."""
    undoes: RollbackDifference | None = None
    """What it takes out of the table, and what it restores: batches and requests that count as applied no
    more, or again."""
    discard: Callable[[], None] = _nothing
    """Removes what was prepared, once the transaction has *certainly* failed; never called in doubt. Never
    raises."""


class TransactionalStep(ABC):
    """One step, built from the argument of its record."""

    def __init__(self, argument: dict[str, Any] | None = None) -> None:
        self.argument = dict(argument or {})

    @abstractmethod
    def prepare(self, context: FinishContext) -> Contribution:
        """Compute this step's contribution on the given base.

        Runs in a thread, reads only watermarks from etcd, and is called again with a fresh base when the
        transaction lost to another writer. Raising :class:`~distop.errors.Conflict`,
        ``InvalidArgument`` or ``PreconditionFailed`` ends the operation; other errors are retried.
        """


# -- external steps ----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StepContext:
    """The context of an external step. The same on every host that may execute it (C13)."""

    table: TableRecord
    arg: OperationArg
    token: str
    """Token of the operation, the same in every attempt: a step uses it to recognise its own traces."""
    check: Callable[[], None] = _nothing
    """Raises when this process may not act any more. Call it right before irreversible actions."""


class StepState(Enum):
    """The result of verifying a step."""

    DONE = "done"
    """It has been executed completely and is not executed again (C3)."""
    NOT_DONE = "not done"
    """It has not been executed, or not completely."""
    UNKNOWN = "unknown"
    """It cannot be verified. It is executed (again), so it must be idempotent."""


class ExternalStep(ABC):
    """One step, built from the argument of its record. All methods block and run in threads.

    A step may be executed several times, by several hosts, after any part of an earlier execution; the final
    state must be the same as after one execution.
    """

    skippable: ClassVar[bool] = False
    """Whether an operator may skip it, when it cannot be done, without losing rows."""
    looks_itself: ClassVar[bool] = False
    """Whether :meth:`execute` verifies its result, so that no :meth:`verify` needs to follow."""

    def __init__(self, argument: dict[str, Any] | None = None) -> None:
        self.argument = dict(argument or {})

    @abstractmethod
    def verify(self, context: StepContext) -> StepState:
        """Whether it is done: decided by content, never by existence (C5).

        Raises
        ------
        PermanentStepError
            It is not done and never can be. Other errors are retried.
        """

    @abstractmethod
    def execute(self, context: StepContext) -> None:
        """Execute it. Raises as :meth:`verify`."""

    def undo(self, context: StepContext) -> bool:
        """Undo what was executed; return whether nothing of it is left.

        For operations that are aborted after some of their steps were executed. May be called for a step that
        was never executed, and repeatedly.
        """
        return False


class StepPlan(ABC):
    """A step that expands to external steps, which are known only once the jobs are done."""

    def __init__(self, argument: dict[str, Any] | None = None) -> None:
        self.argument = dict(argument or {})

    @abstractmethod
    def expand(self, context: FinishContext) -> Sequence[StepRecord]:
        """Compute the external steps from the results of the jobs.

        Runs in a thread and changes nothing. The result is logged and not computed again, unless this process
        dies before it is logged. Raises as :meth:`TransactionalStep.prepare`.
        """

    def facts(self, context: FinishContext) -> dict[str, Any]:
        """For the history, once all its steps are done: JSON. Write numbers beyond 2**53 as strings."""
        return {}


AnyStep: TypeAlias = TransactionalStep | ExternalStep | StepPlan


class StepArgument(
    msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """The typed argument of a step. Unknown fields are refused: those of a newer version may matter."""

    STEP: ClassVar[str]
    """The name under which the steps are registered."""

    def record(self, stage: int = 0) -> StepRecord:
        """The step as a record for the log."""
        return StepRecord(step=self.STEP, argument=msgspec.to_builtins(self), stage=stage)


A = TypeVar("A", bound=StepArgument)


def argument_of(step: ExternalStep | StepPlan, kind: type[A]) -> A:
    """The argument of a step; raises :class:`~distop.errors.PermanentStepError` if it is invalid."""
    try:
        return convert(step.argument, kind)
    except msgspec.ValidationError as error:
        raise PermanentStepError(
            f"the argument of commit step {kind.STEP!r} is invalid: {error}",
            hint="was it written by a newer version?",
        ) from error


# -- finding them ------------------------------------------------------------------------------------


@cache
def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


class StepRegistry:
    """The steps that this process knows: entry points, and steps given by name. Loaded on first use."""

    def __init__(self, extra: Iterable[str] | None = None) -> None:
        named = os.environ.get(VARIABLE, "").split(",") if extra is None else extra
        self._extra = dict(_named(item.strip()) for item in named if item.strip())

    def names(self) -> list[str]:
        """All names, sorted, without loading the steps."""
        return sorted({*_installed(), *self._extra})

    def of_users(self) -> set[str]:
        """The modules of the steps that are not distop's own, without loading them."""
        installed = [entry.value for entry in _installed().values()]
        named = (value.partition(":")[0] for value in (*installed, *self._extra.values()))
        return {module for module in named if not module.startswith("distop.")}

    def kind(self, name: str) -> type[AnyStep]:
        """The class of the steps with this name.

        Raises
        ------
        UnknownCommitStep
            No step with this name is registered here; the error lists the known ones. The operation itself is
            fine (C11).
        """
        kind: Any = None
        if name in self._extra:
            module, _, attribute = self._extra[name].partition(":")
            kind = getattr(import_module(module), attribute, None)
        elif name in _installed():
            kind = _installed()[name].load()
        if not (isinstance(kind, type) and issubclass(kind, TransactionalStep | ExternalStep | StepPlan)):
            raise UnknownCommitStep(
                f"no commit step {name!r} is registered here, known: {', '.join(self.names())}",
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
        hint="another version of the step made this record: use that version here, too",
        details={"step": record.step},
    )


def _named(item: str) -> tuple[str, str]:
    name, equals, target = item.partition("=")
    if not equals or ":" not in target:
        raise InvalidArgument(f"{item!r} does not name a commit step", hint="write name=module:Class")
    return name, target


@cache
def default_registry() -> StepRegistry:
    """The steps configured in this process's environment."""
    return StepRegistry()
