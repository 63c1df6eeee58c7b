"""What stands in etcd of one name of the catalog, what moves it, and what came of an attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from distop.errors import IncompatibleOperation
from distop.metastore.etcd.txn import Compare, Get, KeyValue, Txn, TxnResult, unchanged
from distop.metastore.records.components import escape, prefix_end
from distop.metastore.records.keyspace import OperationId, TableKeys
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord, ViewRecord, decode_run_ops
from distop.metastore.tables.locations import Claim

FOREIGN = "foreign"
"""What ``Head.operation`` says when a program other than distop has moved the head."""


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """What stands in etcd of a table or a view, read at one revision."""

    record_kv: KeyValue
    head_kv: KeyValue
    run_ops_kv: KeyValue
    leftovers: bool = False
    """Whether an operation that has ended still has keys or staged files to be collected."""
    view_kv: KeyValue
    """Of the view that has this name, and no table then."""

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
        """``Table`` or ``View``, whichever has the name; empty: nobody has."""
        return "Table" if self.record_kv.exists else "View" if self.view_kv.exists else ""

    @property
    def view(self) -> ViewRecord | None:
        kv = self.view_kv
        return decode(kv.value, ViewRecord, kv.key) if kv.exists else None


@dataclass(frozen=True)
class Move:
    """What makes a table, or moves its head, as part of a transaction."""

    keys: TableKeys
    txn: Txn
    head: Head
    ours: Callable[[Pointer], bool | None]
    """Whether what stands there now came of it; ``None`` if that cannot be told."""
    claim: Claim | None = None
    """To the place where the table will be, if that is a new one."""
    new: bool = False

    def found(self, read: TxnResult, at: int) -> Pointer:
        """Record and head, of what a transaction has read."""
        keys = self.keys
        return Pointer(
            record_kv=read.one(at, keys.table),
            head_kv=read.one(at + 1, keys.head),
            run_ops_kv=KeyValue.missing(keys.run_ops),
            view_kv=KeyValue.missing(keys.view),
        )


class Swap(Enum):
    """What became of an attempt to move the head."""

    DONE = "done"
    LOST = "lost"
    """It did not happen and never will: something it was based on has moved."""
    UNKNOWN = "unknown"
    """etcd gives no answer: nothing may be concluded, and no file may be deleted."""


def reads(keys: TableKeys) -> tuple[Get, ...]:
    """Reads what :func:`pointer_of` takes."""
    collecting = keys.keyspace.active + escape(keys.name).encode() + b"."
    return (
        Get(keys.table),
        Get(keys.head),
        Get(keys.run_ops),
        Get(collecting, prefix_end(collecting), keys_only=True, limit=1),
        Get(keys.view),
    )


def pointer_of(keys: TableKeys, result: TxnResult) -> Pointer:
    """What :func:`reads` has found."""
    return Pointer(
        record_kv=result.one(0, keys.table),
        head_kv=result.one(1, keys.head),
        run_ops_kv=result.one(2, keys.run_ops),
        leftovers=bool(result.got(3)),
        view_kv=result.one(4, keys.view),
    )


def same(base: Pointer) -> tuple[Compare, ...]:
    """Nothing of it has moved since it was read."""
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
