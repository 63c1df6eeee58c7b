"""A table as the catalog sees it in etcd: its record and its head, and the transactions that move them.

Every change is one transaction that compares what it was based on. A lost reply is answered by sending the
same transaction again, which can happen only once, and by looking whose work stands there (P8).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

from distop.commit.cleanup.purge import leave_files
from distop.errors import (
    BacklogInUse,
    CorruptRecord,
    DistopError,
    EtcdOutOfSpace,
    IncompatibleOperation,
    OutcomeUnknown,
    TablePaused,
)
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Op,
    Put,
    Txn,
    TxnResult,
    absent,
    unchanged,
)
from distop.metastore.etcd.update import Settled, settle
from distop.metastore.records.keyspace import Keyspace, OperationId, TableKeys, escape, prefix_end, unescape
from distop.metastore.records.names import check_new_name
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, Head, TableRecord, decode_run_ops
from distop.metastore.tables.audit import audit_put, prune_softly
from distop.metastore.tables.dropping import finish_drop
from distop.metastore.tables.locations import Claim

log = logging.getLogger(__name__)

FOREIGN = "foreign"
"""What ``Head.operation`` says when a program other than distop has moved the head."""

PAGE = 1000
"""Keys read at a time."""
READ_BITE = 50
"""Tables read at a time."""
MOVE_BITE = 50
"""Keys moved by one transaction: each takes a put and a delete, and etcd allows 128 operations."""


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """What stands in etcd of a table, read at one revision."""

    record_kv: KeyValue
    head_kv: KeyValue
    run_ops_kv: KeyValue
    leftovers: bool = False
    """Whether an operation that has ended still has keys or staged files to be collected."""

    @property
    def record(self) -> TableRecord | None:
        kv = self.record_kv
        return decode(kv.value, TableRecord, kv.key) if kv.exists else None

    @property
    def head(self) -> Head | None:
        kv = self.head_kv
        return decode(kv.value, Head, kv.key) if kv.exists else None


class Swap(Enum):
    """What became of an attempt to move the head."""

    DONE = "done"
    LOST = "lost"
    """It did not happen and never will: something it was based on has moved."""
    UNKNOWN = "unknown"
    """etcd gives no answer: nothing may be concluded, and no file may be deleted."""


class Pointers:
    """Records and heads of the tables of one installation."""

    def __init__(self, etcd: SyncEtcd, by: str = FOREIGN) -> None:
        self.etcd = etcd
        self.keyspace: Keyspace = etcd.keyspace
        self._by = by
        """Who does what is done, for the audit trail."""

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, table: str) -> Pointer:
        """What stands of a table now."""
        keys = self.keyspace.table(table)
        result = self.etcd.txn(Txn(then=_reads(keys)))
        return _pointer(keys, result)

    def tables(self, namespace: str = "") -> Iterator[str]:
        """Names of all tables, in key order; with a namespace, those that begin with it and a dot.

        Tables differ much in how many keys they have (each remembers its operations), so stretches that can
        hold no table's record are skipped.
        """
        start = self.keyspace.prefix + (escape(f"{namespace}.").encode() if namespace else b"")
        end = prefix_end(start)
        while True:
            page = self.etcd.get_range(start, end, keys_only=True, limit=PAGE)
            for kv in page.kvs:
                name = self._table_of_record(kv.key)
                if name is not None:
                    yield name
            if not page.more:
                return
            last = page.kvs[-1].key
            keys = self.keyspace.table(self.keyspace.table_of(last))
            start = keys.table if last < keys.table else prefix_end(keys.prefix)

    def _table_of_record(self, key: bytes) -> str | None:
        component, _, rest = key[len(self.keyspace.prefix) :].decode().partition(".")
        return unescape(component) if rest == "table" and not component.startswith("_") else None

    def published(self, names: Iterable[str]) -> Iterator[str]:
        """Those tables among ``names`` that a program of Iceberg can load, or is told why it cannot."""
        rest = iter(names)
        while some := tuple(islice(rest, READ_BITE)):
            tables = [self.keyspace.table(name) for name in some]
            gets = tuple(Get(key) for keys in tables for key in (keys.table, keys.head))
            read = self.etcd.txn(Txn(then=gets))
            for position, keys in enumerate(tables):
                record, head = (
                    read.one(2 * position + at, key) for at, key in enumerate((keys.table, keys.head))
                )
                if record.exists and head.exists and _is_iceberg(record):
                    yield keys.name

    # -- moving ----------------------------------------------------------------------------------------

    def create(self, record: TableRecord, head: Head, action: str = "create-table") -> Swap:
        """Make a table with its record and head, unless it exists. ``action``: what the audit trail says.

        Raises :class:`~distop.errors.LocationInUse` if another table lives where it would.
        """
        keys = self.keyspace.table(check_new_name(record.name, "name"))
        claim, tombstone = Claim.of(self.keyspace, record), self.keyspace.dropped(record.name)
        # What an interrupted drop may have left is not to become this table's past.
        self._remove_rest(keys)
        txn = Txn(
            (absent(keys.table), absent(keys.head), absent(tombstone), *claim.free()),
            (
                Put(keys.table, encode(record)),
                Put(keys.head, encode(head)),
                claim.put,
                *self.audit(action, record.name, keys),
            ),
            _reads(keys),
        )

        def ours(found: Pointer) -> bool:
            return found.record == record

        outcome = self._settle(keys, txn, ours)
        if outcome is Swap.LOST and self.read(record.name).record is None:
            self.check_free(claim)
        return outcome

    def check_new(self, record: TableRecord) -> bool:
        """Whether a name is free for a table. A drop of an earlier one that was interrupted is finished.

        Raises :class:`~distop.errors.LocationInUse` if another table lives where it would.
        """
        keys, tombstone = self.keyspace.table(record.name), self.keyspace.dropped(record.name)
        if (dropped := self.etcd.get(tombstone)).exists:
            before = decode(dropped.value, DropRecord, tombstone)
            self.etcd.run(lambda client: finish_drop(client, keys, before, leave_files))
        if self.read(record.name).record is not None:
            return False
        self.check_free(Claim.of(self.keyspace, record))
        return True

    def check_free(self, claim: Claim) -> None:
        """Raises :class:`~distop.errors.LocationInUse` if another table lives at a place, above or below."""
        result = self.etcd.run(lambda client: client.read_at_once(claim.reads()))
        claim.check([result.got(index) for index in range(len(claim.reads()))])

    def _standing(self, claim: Claim) -> KeyValue:
        return self.etcd.get(claim.key)

    def move_head(
        self,
        base: Pointer,
        head: Head,
        landed: Callable[[Head | None], bool | None],
        record: TableRecord | None = None,
    ) -> Swap:
        """Put a new head (and record), if head and record are still as read.

        Parameters
        ----------
        landed:
            Whether the given, later head has ours behind it; ``None`` if that cannot be told.
        """
        keys = self.keyspace.table(self.keyspace.table_of(base.record_kv.key))
        txn = Txn((unchanged(base.head_kv), unchanged(base.record_kv)), (Put(keys.head, encode(head)),))
        if record is not None:
            _check_idle(keys, base)  # operations write where the table was when they began
            txn += Txn((unchanged(base.run_ops_kv),), (Put(keys.table, encode(record)),))
            txn += self._passed_on(base, record)
        txn += Txn(otherwise=_reads(keys))
        outcome = self._settle(keys, txn, lambda found: landed(found.head))
        if outcome is Swap.LOST and record is not None:
            self.check_free(Claim.of(self.keyspace, record))
        return outcome

    def _passed_on(self, base: Pointer, record: TableRecord) -> Txn:
        """The claim of a table becomes that of what it is to be."""
        assert base.record is not None
        claim = Claim.of(self.keyspace, base.record)
        standing = self._standing(claim)
        if not claim.is_mine(standing):
            self.check_free(claim)
        return claim.passed_on(standing, Claim.of(self.keyspace, record))

    def drop(self, base: Pointer) -> Swap:
        """Remove a table and everything etcd knows of it, unless it has moved since ``base`` was read.

        Raises :class:`~distop.errors.IncompatibleOperation` while an operation runs.
        """
        keys = self.keyspace.table(self.keyspace.table_of(base.record_kv.key))
        _check_idle(keys, base)
        indexes = (keys.keyspace.paused_table(keys.name), keys.backlog_index)
        own = (keys.table, keys.head, keys.watermarks, keys.run_ops)
        gone = (Delete(key) for key in (*own, *indexes))
        txn = Txn(_same(base), (*gone, *self.audit("drop-table", keys.name)), _reads(keys))
        if base.record is not None:
            claim = Claim.of(self.keyspace, base.record)
            txn += claim.given_up(self._standing(claim))
        outcome = self._settle(keys, txn, lambda found: found.record is None)
        if outcome is Swap.DONE:
            _tidy(keys, self._remove_rest, keys)
        return outcome

    def rename(self, base: Pointer, record: TableRecord) -> Swap:
        """Move a table to the name in ``record``, unless it has moved since, or that name is taken.

        Record, head, watermarks, settings, indexes and instance counters move in one transaction; history and
        audit trail after it. Request ids stay behind: they were given for the old name.

        Raises
        ------
        IncompatibleOperation
            An operation runs.
        BacklogInUse
            Batches wait, or were applied. Their publishers know the old name, and under a new one, which
            remembers none of them, they would be applied twice.
        TablePaused
            Somebody holds it under this name.
        """
        old = self.keyspace.table(self.keyspace.table_of(base.record_kv.key))
        new = self.keyspace.table(check_new_name(record.name, "name"))
        _check_idle(old, base)
        self._remove_rest(new)
        # Written with every batch: one that comes after this look makes the transaction lose.
        looked_at = self.etcd.get(old.backlog_index)
        details = {"table": old.name}
        for prefix in (old.backlog_prefix, old.applied_prefix, old.unordered_prefix):
            if self.etcd.get_range(prefix, prefix_end(prefix), keys_only=True, limit=1).kvs:
                raise BacklogInUse(f"table {old.name!r} has batches in its backlog", details=details)
        if self.etcd.get(old.pause).exists:
            raise TablePaused(
                f"table {old.name!r} is paused", hint=f"resume it: distop resume {old.name}", details=details
            )
        moving = [kv for kv in self._settings(old) if kv.key not in (old.table, old.coordinator, old.run_ops)]
        free = (absent(new.table), absent(old.pause), unchanged(looked_at))
        compares = (*_same(base), *free, *(unchanged(kv) for kv in moving))
        ops: list[Op] = [Put(new.table, encode(record))]
        ops += [Delete(key) for key in (old.table, old.run_ops, old.backlog_index)]
        ops += self.audit("rename-table", new.name, new, reason=f"it was {old.name}")
        for kv in moving:
            ops += [Put(new.prefix + kv.key[len(old.prefix) :], kv.value), Delete(kv.key)]
        txn = Txn(compares, tuple(ops), _reads(new)) + self._passed_on(base, record)

        def ours(found: Pointer) -> bool:
            return found.record == record

        outcome = self._settle(new, txn, ours)
        if outcome is Swap.DONE:
            _tidy(old, self._move_history, old, new)
            _tidy(old, self._remove_rest, old)
        return outcome

    def _settle(self, keys: TableKeys, txn: Txn, ours: Callable[[Pointer], bool | None]) -> Swap:
        """Send a transaction until its outcome is known. Its ``otherwise`` branch must be :func:`_reads`.

        Raises an error of etcd only if it has certainly not happened.
        """
        reached("catalog.swap.before")
        try:
            result = self._send(txn, lambda: reached("catalog.swap.after"))
        except EtcdOutOfSpace:
            raise
        except OutcomeUnknown:
            return Swap.UNKNOWN
        if result.succeeded:
            if any(isinstance(op, Put) and op.key.startswith(self.keyspace.audit_prefix) for op in txn.then):
                self.etcd.run(lambda client: prune_softly(client, self.keyspace.audit_prefix))
            return Swap.DONE
        verdict = ours(_pointer(keys, result)) if result.doubt else False
        return Swap.UNKNOWN if verdict is None else Swap.DONE if verdict else Swap.LOST

    def audit(self, action: str, target: str, *tables: TableKeys, reason: str = "") -> list[Put]:
        """The entries of an action, for the transaction that does it: in the trail of the installation, and
        of the tables."""
        trails: tuple[Keyspace | TableKeys, ...] = (self.keyspace, *tables)
        who: dict[str, Any] = {"by": self._by, "reason": reason, "at": time.time()}
        return [audit_put(trail, action, target=target, **who) for trail in trails]

    def _send(self, txn: Txn, replied: Callable[[], None] | None = None) -> Settled:
        return self.etcd.run(lambda client: settle(client, txn, replied=replied))

    # -- what else a table has -------------------------------------------------------------------------

    def _settings(self, keys: TableKeys) -> list[KeyValue]:
        """All keys of an idle table but those that may be many: batches that are done with, audit trail,
        history and requests."""
        requests, expiry = keys.prefix + b"request.", keys.request_expiry_prefix
        found: list[KeyValue] = []
        start = keys.prefix
        for skipped in (keys.applied_prefix, keys.audit_prefix, keys.history_prefix, requests, expiry, None):
            end = skipped if skipped is not None else prefix_end(keys.prefix)
            found += self.etcd.get_range(start, end, limit=PAGE).kvs
            start = prefix_end(end)
        return found

    def _remove_rest(self, keys: TableKeys) -> None:
        """Remove what is left below a table that does not exist (any more), in bounded bites.

        A leader's key stays: it goes with its lease.
        """
        after_leader = keys.coordinator + b"\0"
        for start, end in ((keys.prefix, keys.coordinator), (after_leader, prefix_end(keys.prefix))):
            while page := self.etcd.get_range(start, end, keys_only=True, limit=PAGE).kvs:
                bite = Delete(page[0].key, page[-1].key + b"\0")
                if not self._send(Txn((absent(keys.table),), (bite,))).succeeded:
                    return

    def _move_history(self, old: TableKeys, new: TableKeys) -> None:
        for prefix in (old.audit_prefix, old.history_prefix):
            self._move_all(prefix, old, new)

    def _move_all(self, start: bytes, old: TableKeys, new: TableKeys) -> None:
        end = prefix_end(start)
        while page := self.etcd.get_range(start, end, limit=MOVE_BITE).kvs:
            ops: list[Op] = []
            for kv in page:
                ops += [Put(new.prefix + kv.key[len(old.prefix) :], kv.value), Delete(kv.key)]
            if not self._send(Txn((absent(old.table),), tuple(ops))).succeeded:
                return


def _tidy(keys: TableKeys, action: Callable[..., None], *args: Any) -> None:
    """Do what follows a change that has happened. It may fail: a new table of that name tidies up first."""
    try:
        action(*args)
    except DistopError as error:
        log.warning("table_leftovers", extra={"table": keys.name, "error": str(error)})


def _is_iceberg(kv: KeyValue) -> bool:
    try:
        return kv.exists and decode(kv.value, TableRecord, kv.key).format == "iceberg"
    except CorruptRecord:
        return True  # whoever loads it is told


def _reads(keys: TableKeys) -> tuple[Get, ...]:
    collecting = keys.keyspace.active + escape(keys.name).encode() + b"."
    return (
        Get(keys.table),
        Get(keys.head),
        Get(keys.run_ops),
        Get(collecting, prefix_end(collecting), keys_only=True, limit=1),
    )


def _pointer(keys: TableKeys, result: TxnResult) -> Pointer:
    return Pointer(
        record_kv=result.one(0, keys.table),
        head_kv=result.one(1, keys.head),
        run_ops_kv=result.one(2, keys.run_ops),
        leftovers=bool(result.got(3)),
    )


def _same(base: Pointer) -> tuple[Compare, ...]:
    return unchanged(base.record_kv), unchanged(base.head_kv), unchanged(base.run_ops_kv)


def _check_idle(keys: TableKeys, base: Pointer) -> None:
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
