"""What stands in etcd about the batches of a table, as types."""

from __future__ import annotations

from typing import Any

import msgspec

from distop.errors import InvalidArgument, InvalidName
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.names import MAX_NAME_BYTES
from distop.metastore.records.options import OperationOptions
from distop.metastore.records.record import Record, decode

MAX_TOGETHER = 20
"""Most batches that one operation applies: each takes three operations of the finishing transaction."""

MAX_REMEMBERED = 100_000
MAX_DECIDED = 16
"""Requests by which a repeat recognises itself."""

MAX_ERROR_LENGTH = 1000

MAX_FAILED = 50
"""Batches without an order that have failed for good: with so many the table starts no more of them before
somebody decides."""

WAITING, RUNNING, FAILED, DONE = "waiting", "running", "failed", "done"
"""States of a batch without an order."""

LATE_POLICIES = ("block", "apply", "reject")

LATE = "BATCH_LATE"
"""The code of a table that is blocked by a batch that came too late. Others are those of errors."""


class Block(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """Why a table does not go on before somebody decides."""

    batch: str
    code: str
    error: str = ""
    operation: str = ""
    at: float = 0.0


class OrderingRecord(Record, kw_only=True):
    """``<table>.ordering``: how a table is fed from its backlog."""

    gate: str = "open"
    """``open``; or ``closed``: batches are collected until somebody opens it (B6)."""
    validation: bool = False
    """Whether somebody must approve after each batch (B7)."""
    late: str = "block"
    """What to do about a batch that sorts before an applied one: ``block``, ``apply``, ``reject`` (B4)."""
    together: int = 1
    """Most batches that one operation applies (B14)."""
    max_attempts: int = 3
    """Attempts at a batch whose failures may pass, before the table is blocked (B9)."""
    remember: int = 10_000
    """Batches that are done with and still known by name: the highest so many, and up to an eighth more. Of
    others it is not known whether they were applied, only that they are late."""
    forgotten: str = ""
    """The highest batch that is no longer known."""
    applied: int = 0
    """How often a batch has been done with."""
    forget_at: int = 0
    """With so many there may be more that are known by name than are to be."""
    last: str = ""
    """The highest batch that was applied or skipped."""
    running: str = ""
    """The operation that applies batches at present: one at a time (B2)."""
    awaiting: str = ""
    """The batch that somebody has to approve before the next one."""
    blocked: Block | None = None
    failed: list[Block] = msgspec.field(default_factory=list)
    """Batches without an order that wait for somebody's decision, since they have failed. They keep no others
    from being applied."""
    signals: list[str] = msgspec.field(default_factory=list)
    """The files that have opened the gate last, each once, the newest at the end."""
    decided: list[str] = msgspec.field(default_factory=list)
    """The requests that have changed it last, the newest at the end: a repeat recognises itself."""

    def __post_init__(self) -> None:
        if self.gate not in ("open", "closed"):
            raise InvalidArgument(f"a gate is open or closed, not {self.gate!r}", details={"field": "gate"})
        if self.late not in LATE_POLICIES:
            raise InvalidArgument(
                f"{self.late!r} is no policy for late batches",
                hint=f"choose {', '.join(LATE_POLICIES)}",
                details={"field": "late"},
            )
        if not 1 <= self.together <= MAX_TOGETHER:
            raise InvalidArgument(
                f"one operation applies 1 to {MAX_TOGETHER} batches", details={"field": "together"}
            )
        if not 1 <= self.max_attempts <= 100:
            raise InvalidArgument(
                "max_attempts must lie between 1 and 100", details={"field": "max_attempts"}
            )
        if not 1 <= self.remember <= MAX_REMEMBERED:
            raise InvalidArgument(
                f"remember must lie between 1 and {MAX_REMEMBERED:,}", details={"field": "remember"}
            )

    def done_with(self, *batches: str) -> OrderingRecord:
        """As it is once these are applied, or left out for good."""
        last = max([self.last, *batches], key=str.encode)
        return msgspec.structs.replace(self, last=last, applied=self.applied + len(batches))

    def is_late(self, batch: str) -> bool:
        """Whether it sorts before one that is done with, or may be done with itself."""
        return batch.encode() < self.last.encode() or self.is_forgotten(batch)

    def is_forgotten(self, batch: str) -> bool:
        """Whether it is not known any more if it was applied."""
        return batch.encode() <= self.forgotten.encode()

    def stops_at(self, batch: str) -> bool:
        """Whether a batch of this name waits for somebody's decision, because it is late (B4).

        Also where late ones are applied, if it may have been applied before: exactly once comes first.
        """
        return self.is_late(batch) and (self.late != "apply" or self.is_forgotten(batch))


class BatchRecord(Record, kw_only=True):
    """``<table>.backlog.<batch>``: one batch that is not applied yet."""

    type: str
    """The operation type that applies it."""
    argument: dict[str, Any] = msgspec.field(default_factory=dict)
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    digest: str = ""
    """Of type, argument and options."""
    uid: str = ""
    """Of the call that queued it: a repeat after a lost reply recognises itself."""
    queued_by: str = ""
    queued_at: float = 0.0
    attempts: int = 0
    """Failed ones that may pass; counted across leaders."""
    code: str = ""
    error: str = ""
    """Of the last of them."""
    operation: str = ""
    """The operation that applies it at present."""
    alone: bool = False
    """It failed together with others, and goes by itself now: so it shows which one is to blame."""
    anyway: bool = False
    """Somebody has decided that it is applied, be it late or known as applied before."""


class AppliedRecord(Record, kw_only=True):
    """``<table>.applied.<batch>``: a batch that is done with."""

    outcome: str
    """``applied`` or ``skipped``."""
    operation: str = ""
    digest: str = ""
    uid: str = ""
    at: float = 0.0


def check_batch(name: str) -> str:
    """A batch's name stands in its key as it is, so that key order is the order of names."""
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
    """The record; the default one where nothing stands."""
    return decode(kv.value, OrderingRecord, kv.key) if kv.exists else OrderingRecord()
