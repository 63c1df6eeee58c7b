"""The records of a table's batches in etcd, as types, and the keys of unordered ones.

An unordered batch is applied as soon as possible, concurrently with others (checklist B13).
``<table>.unordered.<state>.<batch>`` is one such batch: ``waiting`` to be applied, ``running``, ``failed``,
which needs a decision, or ``done``. One transaction moves it to the next state: the one that starts its
operation, or finishes it. So it is applied once, and failures are counted and not lost. Batches that have
failed for good are also named in ``<table>.ordering``, where users of the table see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from distop.errors import InvalidArgument, InvalidName
from distop.metastore.etcd.txn import DeleteRange, KeyValue, Put, Txn, unchanged
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import MAX_NAME_BYTES, OperationId
from distop.metastore.records.operation import HistoryRecord, OperationOptions
from distop.metastore.records.record import Record, decode, encode

MAX_TOGETHER = 20
"""Most batches that one operation applies: each takes three operations of the finishing transaction."""

MAX_REMEMBERED = 100_000
MAX_DECIDED = 16
"""Requests whose repetitions are recognised."""

MAX_ERROR_LENGTH = 1000

MAX_KEPT_BYTES = 8 << 10
"""Largest batch that is kept once it is applied, so that a rollback can put it back."""

MAX_FAILED = 50
"""Unordered batches that have failed for good: with this many the table starts no more of them before a
decision."""

MAX_REWRITTEN = 50
"""Batches that are named as written again since they were applied."""

REPLACES = "replaces"
"""In the argument of a batch: the operation in place of whose rows it adds its own."""

WAITING, RUNNING, FAILED, DONE = "waiting", "running", "failed", "done"
"""States of an unordered batch."""

LATE_POLICIES = ("block", "apply", "reject")

LATE = "BATCH_LATE"
"""The code of a table that is blocked by a late batch. Others are codes of errors."""


class BatchBlock(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """Why a table waits for a decision."""

    batch: str
    code: str
    error: str = ""
    operation: str = ""
    at: float = 0.0


class Returning(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A batch whose rows a rollback has taken out of the table."""

    operation: str
    """The operation that had applied it last."""
    remaining: str = msgspec.field(default="", name="still")
    """An earlier one whose rows are in the table: the batch is applied all the same."""


class StagedBatch(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A batch whose rows are on a branch, to be looked at before they are published."""

    batch: str
    branch: str
    """No other batch, and no other attempt at this one, has a branch of this name."""
    type: str = ""
    """The operation type that writes it, and that names those that publish and drop it."""
    operation: str = ""
    """What has written it; empty while ``running`` writes it."""
    snapshot: str = ""
    """The branch as it was written: nothing else is published."""
    rows: int | None = None
    """What has been written, as far as that is known, as the following two."""
    bytes: int | None = None
    files: int | None = None
    markers: dict[str, str] = msgspec.field(default_factory=dict)
    """The files that marked its source as complete, and their versions when it was read; kept in its
    :class:`AppliedRecord`."""
    approved_by: str = ""


class OrderingRecord(Record, kw_only=True):
    """``<table>.ordering``: how a table is fed from its backlog.

    Layout 2 is for tables with batches that a rollback has taken out: an older version would forget them.
    Layout 3 is for tables whose batches are published by their approval: it would publish them without.
    """

    LAYOUT: ClassVar[int] = 3

    gate: str = "open"
    """``open``; or ``closed``: batches are collected until it is opened (B6)."""
    validation: bool = False
    """Whether each batch needs an approval (B7)."""
    before: bool = False
    """Of ``validation``: the approval comes before the batch is published. Until then it is on a branch."""
    late: str = "block"
    """What to do with a batch that sorts before an applied one: ``block``, ``apply``, ``reject`` (B4)."""
    together: int = 1
    """Most batches that one operation applies (B14)."""
    max_attempts: int = 3
    """Attempts at a batch with transient failures, before it blocks the table (B9)."""
    remember: int = 10_000
    """Finished batches that are remembered by name: this many of the highest, and up to an eighth more. Of
    others it is unknown whether they were applied, only that they are late."""
    forgotten: str = ""
    """The highest batch that is no longer remembered."""
    applied: int = 0
    """How often a batch was finished."""
    forget_at: int = 0
    """At this count there may be more remembered names than allowed."""
    last: str = ""
    """The highest batch that was applied or skipped."""
    running: str = ""
    """The operation that applies batches at present: one at a time (B2)."""
    awaiting: str = ""
    """The batch that needs approval before the next one; or, if it is staged, before it is published."""
    staged: StagedBatch | None = None
    """The one batch that is on a branch. Once it is written it is ``awaiting``, or approved."""
    dropping: StagedBatch | None = None
    """A batch that was staged and is not wanted on its branch any more. The branch is dropped before the next
    batch is staged."""
    blocked: BatchBlock | None = None
    failed: list[BatchBlock] = msgspec.field(default_factory=list)
    """Failed unordered batches that wait for a decision. They do not block
    others."""
    closed_by: str = ""
    """The request, or the rollback, that has closed the gate last."""
    held_by: str = ""
    """The rollback that has closed the gate, since it has taken batches out of the table. Until the gate is
    opened no batch is applied, whether it has an order or not."""
    returning: dict[str, Returning] = msgspec.field(default_factory=dict)
    """Batches that a rollback has taken out and that do not wait again yet."""
    returning_unordered: dict[str, Returning] = msgspec.field(default_factory=dict)
    """Unordered batches that a rollback has taken out and that do not wait again yet."""
    rewritten: list[str] = msgspec.field(default_factory=list)
    """Applied batches whose sources were written again since."""
    signals: list[str] = msgspec.field(default_factory=list)
    """The files that opened the gate last, each once, the newest at the end."""
    decided: list[str] = msgspec.field(default_factory=list)
    """The requests that changed it last, or published a batch again, the newest at the end, to recognise
    repetitions."""

    def __post_init__(self) -> None:
        if self.version <= self.LAYOUT:
            returns = self.returning or self.returning_unordered
            self.version = 3 if self.before or self.staged or self.dropping else 2 if returns else 1
        if self.gate not in ("open", "closed"):
            raise InvalidArgument(f"a gate is open or closed, not {self.gate!r}", details={"field": "gate"})
        if self.late not in LATE_POLICIES:
            raise InvalidArgument(
                f"{self.late!r} is not a policy for late batches",
                hint=f"choose {', '.join(LATE_POLICIES)}",
                details={"field": "late"},
            )
        if not 1 <= self.together <= MAX_TOGETHER:
            raise InvalidArgument(
                f"--together must lie between 1 and {MAX_TOGETHER}", details={"field": "together"}
            )
        if not 1 <= self.max_attempts <= 100:
            raise InvalidArgument(
                "--max-attempts must lie between 1 and 100", details={"field": "max_attempts"}
            )
        if not 1 <= self.remember <= MAX_REMEMBERED:
            raise InvalidArgument(
                f"--remember must lie between 1 and {MAX_REMEMBERED:,}", details={"field": "remember"}
            )

    def opened(self) -> OrderingRecord:
        """The ordering once its gate is open."""
        return msgspec.structs.replace(self, gate="open", closed_by="", held_by="")

    def unstaged(self) -> OrderingRecord:
        """The ordering once the staged batch waits again, as if it had not been staged."""
        if self.staged is None:
            return self
        awaiting = "" if self.awaiting == self.staged.batch else self.awaiting
        return msgspec.structs.replace(self, staged=None, awaiting=awaiting, dropping=self.staged)

    def freed(self) -> OrderingRecord:
        """The ordering once nobody knows the operation that it names as running."""
        free = msgspec.structs.replace(self, running="")
        return free if self.staged is None or self.staged.operation else free.unstaged()

    def has_staged(self, batch: str) -> bool:
        """Whether this batch is on a branch."""
        return self.staged is not None and self.staged.batch == batch

    def done_with(self, *batches: str) -> OrderingRecord:
        """The ordering once these are applied, or skipped for good."""
        last = max([self.last, *batches], key=str.encode)
        return msgspec.structs.replace(self, last=last, applied=self.applied + len(batches))

    def with_rewritten(self, batch: str) -> OrderingRecord:
        """The ordering once this applied batch was written again; no more are named than the limit."""
        named = dict.fromkeys([*self.rewritten, batch])
        return msgspec.structs.replace(self, rewritten=list(named)[:MAX_REWRITTEN])

    def without_rewritten(self, *batches: str) -> OrderingRecord:
        """The ordering once these wait again, to be read as they are then."""
        left = [name for name in self.rewritten if name not in batches]
        return msgspec.structs.replace(self, rewritten=left)

    def is_late(self, batch: str) -> bool:
        """Whether it sorts before a finished one, or may be finished itself."""
        return batch.encode() < self.last.encode() or self.is_forgotten(batch)

    def is_forgotten(self, batch: str) -> bool:
        """Whether it is no longer known if it was applied."""
        return batch.encode() <= self.forgotten.encode()

    def why_late(self, batch: str) -> str:
        """What makes a late batch late, as a clause about it."""
        if self.is_forgotten(batch):
            return f"it is not after {self.forgotten!r}: batches up to there are not remembered by name"
        return f"it sorts before {self.last!r}, which was already applied or skipped"

    def stops_at(self, batch: str) -> bool:
        """Whether a batch of this name waits for a decision, because it is late (B4).

        Also where late ones are applied, if it may have been applied before: exactly once takes precedence.
        """
        return self.is_late(batch) and (self.late != "apply" or self.is_forgotten(batch))


class BatchRecord(Record, kw_only=True):
    """``<table>.backlog.<batch>``: one batch that is not applied yet."""

    type: str
    """The operation type that applies it."""
    argument: dict[str, Any] = msgspec.field(default_factory=dict)
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    digest: str = ""
    """Digest of type, argument and options."""
    uid: str = ""
    """Id of the call that queued it, to recognise a repetition after a lost reply."""
    queued_by: str = ""
    queued_at: float = 0.0
    attempts: int = 0
    """Failures since the last decision to try it again; counted across leaders."""
    earlier: int = 0
    """Failures before that decision."""
    code: str = ""
    error: str = ""
    """Error of the last failure."""
    operation: str = ""
    """The operation that applies it at present."""
    alone: bool = False
    """It failed together with others, and is now applied alone, to find the faulty one."""
    in_doubt: bool = False
    """Its rows may be in the table: an operation has failed, and commit steps of it remain in effect. It is
    applied again only if a user decides so."""
    anyway: bool = False
    """A user decided that it is applied, even if it is late or was applied before."""


class AppliedRecord(Record, kw_only=True):
    """``<table>.applied.<batch>``: a finished batch."""

    outcome: str
    """``applied`` or ``skipped``."""
    operation: str = ""
    digest: str = ""
    uid: str = ""
    at: float = 0.0
    rows: int | None = None
    """What its operation has added, as far as that is known, as the following two."""
    bytes: int | None = None
    files: int | None = None
    together: int = 1
    """How many batches that operation has applied: these figures are of all of them."""
    attempts: int = 0
    """How many had failed before."""
    decided_by: str = ""
    """Who has approved it at the validation gate; or has skipped it."""
    batch: BatchRecord | None = None
    """The batch as it was published; ``None`` if it is larger than ``MAX_KEPT_BYTES``, was skipped, or was
    applied by an older version."""
    markers: dict[str, str] = msgspec.field(default_factory=dict)
    """The files that marked its source as complete, and their versions when it was read; empty: unknown."""

    @classmethod
    def of(
        cls,
        operation: OperationId,
        record: BatchRecord,
        at: float,
        result: HistoryRecord | None = None,
        together: int = 1,
        plan: Mapping[str, Any] | None = None,
    ) -> AppliedRecord:
        """The end of a batch that this operation has applied, and its result and its plan, if known."""
        kept = BatchRecord(
            type=record.type,
            argument=record.argument,
            options=record.options,
            digest=record.digest,
            uid=record.uid,
            queued_by=record.queued_by,
            queued_at=record.queued_at,
        )
        is_kept = record.type != "" and len(encode(kept)) <= MAX_KEPT_BYTES
        return cls(
            outcome="applied",
            operation=str(operation),
            digest=record.digest,
            uid=record.uid,
            at=at,
            rows=result.count("rows") if result else None,
            bytes=result.count("bytes") if result else None,
            files=result.count("files") if result else None,
            together=together,
            attempts=record.earlier + record.attempts,
            batch=kept if is_kept else None,
            markers=_versions(record.argument, plan or {}) if is_kept else {},
        )

    def by_earlier(self, operation: str) -> AppliedRecord:
        """The end once an earlier operation is the last that has applied it: of that no more is known."""
        return AppliedRecord(
            outcome=self.outcome,
            operation=operation,
            digest=self.digest,
            uid=self.uid,
            at=self.at,
            batch=self.batch,
        )


def _versions(argument: Mapping[str, Any], plan: Mapping[str, Any]) -> dict[str, str]:
    """The versions with which a plan reads the ``markers`` of a batch's argument. Only some types have
    them."""
    urls, versions = argument.get("markers"), plan.get("markers")
    if not (isinstance(urls, list) and isinstance(versions, dict)):
        return {}
    return {url: str(versions[url]) for url in urls if isinstance(url, str) and url in versions}


def check_batch(name: str) -> str:
    """A batch's name is used literally in its key, so that key order is name order."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidName("the batch is not valid unicode", details={"field": "batch"}) from None
    if not 1 <= size <= MAX_NAME_BYTES or any(ord(char) < 0x20 or ord(char) == 0x7F for char in name):
        raise InvalidName(
            f"a batch has 1 to {MAX_NAME_BYTES} bytes and no control characters", details={"field": "batch"}
        )
    return name


def ordering_of(kv: KeyValue) -> OrderingRecord:
    """The record; the default one if it does not exist."""
    return decode(kv.value, OrderingRecord, kv.key) if kv.exists else OrderingRecord()


def without_failed(ordering: OrderingRecord, batch: str) -> OrderingRecord:
    """This batch no longer needs a decision."""
    left = [block for block in ordering.failed if block.batch != batch]
    return msgspec.structs.replace(ordering, failed=left)


def without_block(ordering: OrderingRecord, *batches: str) -> OrderingRecord:
    """None of these blocks the table."""
    blocks = ordering.blocked is not None and ordering.blocked.batch in batches
    return msgspec.structs.replace(ordering, blocked=None) if blocks else ordering


def gave_up(
    keys: TableKeys, ordering_kv: KeyValue, at: KeyValue, batch: str, record: BatchRecord, block: BatchBlock
) -> Txn:
    """The batch with this key has failed for good: it needs a decision."""
    ordering = without_failed(ordering_of(ordering_kv), batch)
    changed = msgspec.structs.replace(ordering, failed=[*ordering.failed, block])
    ops = (
        DeleteRange(at.key),
        Put(keys.unordered(FAILED, batch), encode(record)),
        Put(keys.ordering, encode(changed)),
    )
    return Txn((unchanged(ordering_kv), unchanged(at)), ops)
