"""The next action on the backlog of a table, computed only from the records in etcd. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from distop.errors import SourceIncomplete, Unavailable, as_distop, error_class
from distop.metastore.backlog.batches import LATE, MAX_FAILED, BatchRecord, OrderingRecord, StagedBatch
from distop.metastore.etcd.txn import KeyValue, Put
from distop.metastore.operations.ending import COMPLETION_FAILED
from distop.metastore.records.operation import ErrorRecord
from distop.metastore.records.record import encode


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """One batch of the backlog."""

    name: str
    record: BatchRecord
    kv: KeyValue

    def freed(self) -> Put:
        """No operation applies it."""
        return Put(self.kv.key, encode(msgspec.structs.replace(self.record, operation="")))


@dataclass(frozen=True, kw_only=True)
class Backlog:
    """The state that a leader sees at one revision."""

    ordering: OrderingRecord
    ordering_kv: KeyValue
    index_kv: KeyValue
    heads: Sequence[Waiting] = ()
    """The first batches, in order: as many as one operation may apply, up to one that cannot be read."""
    unordered: Sequence[Waiting] = ()
    """Some of the unordered batches; the next look sees the next ones."""
    more: bool = False
    """Whether unordered batches follow these; else the next look begins with the first ones."""
    unreadable: bool = False
    """Batches wait that this version cannot read; the next leader may be able to."""
    paused: bool = False

    @property
    def holds_unordered(self) -> bool:
        """Whether no unordered batch is started before something changes."""
        ordering = self.ordering
        is_full = len(ordering.failed) >= MAX_FAILED
        return self.paused or is_full or bool(ordering.held_by or ordering.returning_unordered)


@dataclass(frozen=True)
class Apply:
    """Start an operation for the first batch; for all ``batches``, if their type can combine them."""

    batches: Sequence[Waiting]


@dataclass(frozen=True)
class InFlight:
    """An operation applies batches; its end brings the next look."""

    operation: str


@dataclass(frozen=True)
class Stop:
    """The first batch needs a decision: it sorts before an applied one, or may have been applied in part."""

    first: Waiting
    code: str
    error: str


@dataclass(frozen=True)
class Publish:
    """The staged batch was approved."""

    staged: StagedBatch


@dataclass(frozen=True)
class Drop:
    """The branch of a batch is not wanted any more."""

    staged: StagedBatch


@dataclass(frozen=True)
class Rest:
    """Nothing can be done before something changes."""


@dataclass(frozen=True)
class PutBack:
    """Batches that a rollback has taken out must wait again first."""


Next: TypeAlias = Apply | InFlight | Stop | PutBack | Publish | Drop | Rest


def decide(backlog: Backlog) -> Next:
    """The next action."""
    ordering = backlog.ordering
    if ordering.returning or ordering.returning_unordered:
        return PutBack()
    if ordering.running:
        return InFlight(ordering.running)
    if ordering.dropping is not None and not backlog.paused:
        return Drop(ordering.dropping)
    held = backlog.paused or ordering.blocked is not None or ordering.awaiting or ordering.gate != "open"
    if held:
        return Rest()
    if ordering.staged is not None:
        return Publish(ordering.staged)
    if not backlog.heads:
        return Rest()
    first = backlog.heads[0].record
    if first.in_doubt:
        return Stop(backlog.heads[0], first.code, first.error)
    if not first.anyway and ordering.stops_at(backlog.heads[0].name):
        return Stop(backlog.heads[0], LATE, ordering.why_late(backlog.heads[0].name))
    together = [
        waiting
        for waiting in backlog.heads[: ordering.together]
        if (waiting.record.type, waiting.record.options) == (first.type, first.options)
        and not waiting.record.alone
        # A decision about one late batch does not apply to the next.
        and (waiting.record.anyway or not ordering.stops_at(waiting.name))
    ]
    # Only batches that follow each other without a gap: order is kept.
    alike = [waiting for waiting, other in zip(backlog.heads, together, strict=False) if waiting is other]
    # With a validation gate each batch is approved by itself.
    return Apply(backlog.heads[:1] if ordering.validation or first.alone else alike)


@dataclass(frozen=True)
class BatchFailure:
    """Why a batch could not be applied."""

    code: str
    message: str
    passes: bool = False
    """Whether another attempt may succeed (B9)."""
    waits: bool = False
    """Whether its source is incomplete: the batch waits for that, and the attempt does not count."""
    in_doubt: bool = False
    """Whether rows of its batches may be in the table."""

    def attempts(self, record: BatchRecord) -> int:
        """The failed attempts at a batch, with this one."""
        return record.attempts + (not self.waits)

    def is_final(self, attempts: int, most: int) -> bool:
        """Whether a batch with so many failed attempts is not tried again."""
        return not self.passes or (attempts >= most and not self.waits)

    @classmethod
    def of(cls, error: Exception) -> BatchFailure:
        """The failure of a start: errors from outside distop may be transient."""
        known = as_distop(error)
        passes = known is not error or known.retryable or isinstance(error, Unavailable)
        return cls(known.code, str(known), passes=passes, waits=isinstance(known, SourceIncomplete))


_MISHAPS = frozenset({"LAUNCH_FAILED", "ATTEMPT_TIMEOUT", "DEADLINE_EXCEEDED"})


def failure_of(error: ErrorRecord | None, failed: Mapping[str, str]) -> BatchFailure:
    """What the end of an operation, and the errors of its failed jobs, mean for its batches.

    Errors of distop say whether they are transient. Errors from outside (a disk, a network, user code) are
    retried.
    """
    if error is None:
        return BatchFailure("ABORTED", "aborted")
    code = error.code
    if code == "JOB_FAILED" and failed:
        code = next(iter(failed.values())).partition(":")[0].strip() or code
    kind = error_class(code)
    # An operator has aborted it, and decides on its batches, too.
    passes = code != COMPLETION_FAILED and (code in _MISHAPS or kind is None or kind.retryable)
    if kind is SourceIncomplete:
        why = error.message if code == error.code else next(iter(failed.values())).partition(":")[2].strip()
        return BatchFailure(code, why, passes=passes, waits=True)
    return BatchFailure(error.code, error.message, passes=passes)
