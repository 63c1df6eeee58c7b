"""The state of one name of the catalog in etcd, moves of it, and the outcome of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from distop.errors import IncompatibleOperation
from distop.metastore.etcd.txn import Compare, Get, KeyValue, Txn, TxnResult, unchanged
from distop.metastore.records.components import escape, prefix_end
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord, ViewRecord, decode_run_ops
from distop.metastore.tables.locations import Claim

FOREIGN = "foreign"
"""``Head.operation`` after a program other than distop has moved the head."""


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """The state of a table or a view in etcd, read at one revision."""

    record_kv: KeyValue
    head_kv: KeyValue
    run_ops_kv: KeyValue
    leftovers: bool = False
    """Whether an ended operation still has keys or staged files to collect."""
    view_kv: KeyValue
    """The view that has this name; there is no table then."""

    @property
    def record(self) -> TableRecord | None:
        kv = self.record_kv
        return decode(kv.value, TableRecord, kv.key) if kv.exists else None

    @property
    def head(self) -> Head | None:
        kv = self.head_kv
        return decode(kv.value, Head, kv.key) if kv.exists else None

    @property
    def kind(self) -> str:
        """``Table`` or ``View``, whichever has the name; empty: it is free."""
        return "Table" if self.record_kv.exists else "View" if self.view_kv.exists else ""

    @property
    def view(self) -> ViewRecord | None:
        kv = self.view_kv
        return decode(kv.value, ViewRecord, kv.key) if kv.exists else None


@dataclass(frozen=True)
class Move:
    """The part of a transaction that creates a table, or moves its head."""

    keys: TableKeys
    txn: Txn
    head: Head
    ours: Callable[[Pointer], bool | None]
    """Whether the present state results from it; ``None`` if that is unknown."""
    claim: Claim | None = None
    """The claim to the table's new location, if that changes."""
    new: bool = False

    def found(self, read: TxnResult, at: int) -> Pointer:
        """Record and head, from the reads of a transaction."""
        return brief_pointer_of(self.keys, read, at)


class Swap(Enum):
    """The outcome of an attempt to move the head."""

    DONE = "done"
    LOST = "lost"
    """It did not happen and never will: the state that it was based on has changed."""
    UNKNOWN = "unknown"
    """etcd gives no answer: the outcome is unknown, and no file may be deleted."""


def reads(keys: TableKeys) -> tuple[Get, ...]:
    """The reads for :func:`pointer_of`."""
    collecting = keys.keyspace.active + escape(keys.name).encode() + b"."
    return (
        Get(keys.table),
        Get(keys.head),
        Get(keys.run_ops),
        Get(collecting, prefix_end(collecting), keys_only=True, limit=1),
        Get(keys.view),
    )


def pointer_of(keys: TableKeys, result: TxnResult) -> Pointer:
    """The pointer from the results of :func:`reads`."""
    return Pointer(
        record_kv=result.one(0, keys.table),
        head_kv=result.one(1, keys.head),
        run_ops_kv=result.one(2, keys.run_ops),
        leftovers=bool(result.got(3)),
        view_kv=result.one(4, keys.view),
    )


def brief_pointer_of(keys: TableKeys, result: TxnResult, at: int = 0) -> Pointer:
    """Record and head alone, from the first two of :func:`reads`, which are at this place of the results."""
    return Pointer(
        record_kv=result.one(at, keys.table),
        head_kv=result.one(at + 1, keys.head),
        run_ops_kv=KeyValue.missing(keys.run_ops),
        view_kv=KeyValue.missing(keys.view),
    )


def same(base: Pointer) -> tuple[Compare, ...]:
    """The compares that it has not changed since it was read."""
    return unchanged(base.record_kv), unchanged(base.head_kv), unchanged(base.run_ops_kv)


def check_idle(keys: TableKeys, base: Pointer) -> None:
    """Raise :class:`~distop.errors.IncompatibleOperation` while an operation runs or is being collected."""
    running = [
        str(OperationId.from_slot(keys.name, kind, slot))
        for kind, slots in decode_run_ops(base.run_ops_kv.value).items()
        for slot in slots
    ]
    if running:
        raise IncompatibleOperation(
            f"table {keys.name!r} has running operations: {', '.join(running)}",
            details={"table": keys.name, "operation": running[0]},
        )
    if base.leftovers:
        raise IncompatibleOperation(
            f"the files of an operation of table {keys.name!r} that has ended are being collected",
            hint="try again in a moment; a coordinator must be running",
            details={"table": keys.name},
        )
