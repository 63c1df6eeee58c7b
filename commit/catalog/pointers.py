"""A table as the catalog sees it in etcd: its record and its head, and the transactions that move them.

Every change is one transaction that compares what it was based on. A lost reply is answered by sending the
same transaction again, which can happen only once, and by looking whose work stands there (P8).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from typing import Any

from distop.commit.cleanup.purge import leave_files
from distop.commit.files.storage import storage_of
from distop.errors import (
    ArgumentTooLarge,
    BacklogInUse,
    CorruptRecord,
    DistopError,
    EtcdOutOfSpace,
    IncompatibleOperation,
    OutcomeUnknown,
    TablePaused,
)
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient, RangePage
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import (
    MAX_OPS,
    MAX_REQUEST_BYTES,
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
from distop.metastore.records.keyspace import Keyspace, OperationId, TableKeys, escape, prefix_end
from distop.metastore.records.names import check_new_name
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, Head, TableRecord, decode_run_ops
from distop.metastore.tables.answers import Note
from distop.metastore.tables.audit import audit_put, prune_softly
from distop.metastore.tables.dropping import Leave, finish_drop
from distop.metastore.tables.listing import table_deletes, table_of_entry, table_puts
from distop.metastore.tables.locations import Claim
from distop.metastore.tables.watermarks import watermark_chunks

log = logging.getLogger(__name__)

FOREIGN = "foreign"
"""What ``Head.operation`` says when a program other than distop has moved the head."""

PAGE = 1000
"""Keys read at a time."""
READ_BITE = 1000
"""Tables read at a time."""


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
        )


class Swap(Enum):
    """What became of an attempt to move the head."""

    DONE = "done"
    LOST = "lost"
    """It did not happen and never will: something it was based on has moved."""
    UNKNOWN = "unknown"
    """etcd gives no answer: nothing may be concluded, and no file may be deleted."""


class Pointers:
    """Records and heads of the tables of one installation."""

    def __init__(self, etcd: SyncEtcd, by: str = FOREIGN, note: Note | None = None) -> None:
        self.etcd = etcd
        self.keyspace: Keyspace = etcd.keyspace
        self._by = by
        """Who does what is done, for the audit trail."""
        self._note = note

    def acting(self, by: str, note: Note | None = None) -> Pointers:
        """The same, for one request of somebody; whatever is changed takes the note along."""
        return Pointers(self.etcd, by or self._by, note)

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, table: str) -> Pointer:
        """What stands of a table now."""
        keys = self.keyspace.table(table)
        result = self.etcd.txn(Txn(then=_reads(keys)))
        return _pointer(keys, result)

    def tables(self, namespace: str = "", after: str = "") -> Iterator[str]:
        """Names of all tables from behind ``after`` on, in key order; with a namespace, those that begin with
        it and a dot. They are read as they are asked for."""
        below = self.keyspace.tables + (escape(f"{namespace}.").encode() if namespace else b"")
        start, more = below, True
        if after:
            start = max(below, self.keyspace.table(after).entry + b"\0")
        while more:
            page = self.etcd.run(partial(_next_page, start=start, end=prefix_end(below)))
            for kv in page.kvs:
                yield table_of_entry(self.keyspace, kv.key)
            if more := page.more:
                start = page.kvs[-1].key + b"\0"

    def published(self, names: Iterable[str]) -> Iterator[str]:
        """Those tables among ``names`` that a program of Iceberg can load, or is told why it cannot."""
        rest = iter(names)
        while some := tuple(islice(rest, READ_BITE)):
            tables = [self.keyspace.table(name) for name in some]
            gets = tuple(Get(key) for keys in tables for key in (keys.table, keys.head))
            read = self._read_many(gets)
            for position, keys in enumerate(tables):
                record, head = (
                    read.one(2 * position + at, key) for at, key in enumerate((keys.table, keys.head))
                )
                if record.exists and head.exists and _is_iceberg(record):
                    yield keys.name

    def _read_many(self, gets: Sequence[Get]) -> TxnResult:
        return self.etcd.run(lambda client: client.read_many(gets))

    # -- moving ----------------------------------------------------------------------------------------

    def created(self, record: TableRecord, head: Head, action: str = "create-table") -> Move:
        """Make a table with its record and head, unless it exists. ``action``: what the audit trail says."""
        keys = self.keyspace.table(check_new_name(record.name, "name"))
        claim, tombstone = Claim.of(self.keyspace, record), self.keyspace.dropped(record.name)
        txn = Txn(
            (absent(keys.table), absent(keys.head), absent(tombstone), *claim.free()),
            (
                *table_puts(keys, record),
                Put(keys.head, encode(head)),
                claim.put,
                *self.audit(action, record.name, keys),
            ),
        )

        def ours(found: Pointer) -> bool | None:
            if found.record is not None and found.record.uuid == record.uuid:
                return True
            try:  # somebody may have renamed it since
                return None if self._standing(claim).exists else False
            except DistopError:
                return None

        return Move(keys, txn, head, ours, claim, new=True)

    def check_new(self, record: TableRecord) -> bool:
        """Whether a name is free for a table. A drop of an earlier one that was interrupted is finished.

        Raises :class:`~distop.errors.LocationInUse` if another table lives where it would.
        """
        self.finish(record.name)
        if self.read(record.name).record is not None:
            return False
        self.check_free(Claim.of(self.keyspace, record))
        return True

    def finish(self, table: str, leave: Leave = leave_files) -> None:
        """Finish what a drop or a rename has left under a name, so that it is not the next table's past."""
        tombstone = self.keyspace.dropped(table)
        if (dropped := self.etcd.get(tombstone)).exists:
            before = decode(dropped.value, DropRecord, tombstone)
            keys = self.keyspace.table(table)
            self.etcd.run(lambda client: finish_drop(client, keys, before, leave))

    def check_free(self, claim: Claim) -> None:
        """Raises :class:`~distop.errors.LocationInUse` if another table lives at a place, above or below."""
        result = self.etcd.run(lambda client: client.read_at_once(claim.reads()))
        claim.check([result.got(index) for index in range(len(claim.reads()))])

    def _standing(self, claim: Claim) -> KeyValue:
        return self.etcd.get(claim.key)

    def moved(
        self,
        base: Pointer,
        head: Head,
        landed: Callable[[Head | None], bool | None],
        record: TableRecord | None = None,
        besides: Txn = Txn(),
    ) -> Move:
        """Put a new head (and record), if head and record are still as read; and do what is ``besides``.

        Parameters
        ----------
        landed:
            Whether the given, later head has ours behind it; ``None`` if that cannot be told.
        """
        keys = self.keyspace.table(self.keyspace.table_of(base.record_kv.key))
        txn = Txn((unchanged(base.head_kv), unchanged(base.record_kv)), (Put(keys.head, encode(head)),))
        txn, claim = txn + besides, None
        if record is not None:
            _check_idle(keys, base)  # operations write where the table was when they began
            txn += Txn((unchanged(base.run_ops_kv),), (Put(keys.table, encode(record)),))
            txn += self._passed_on(base, record)
            claim = Claim.of(self.keyspace, record)
        return Move(keys, txn, head, lambda found: landed(found.head), claim)

    def move_head(self, base: Pointer, head: Head, landed: Callable[[Head | None], bool | None]) -> Swap:
        """The one move of :meth:`moved`."""
        return self.send([self.moved(base, head, landed)])

    def check_fits(self, moves: Sequence[Move]) -> None:
        """Raises :class:`~distop.errors.ArgumentTooLarge` if they are more than one transaction holds."""
        txn = _together(moves)
        whole = txn if self._note is None else txn + self._note.beside("")
        if whole.weight() > MAX_OPS or whole.size() > MAX_REQUEST_BYTES:
            each = -(-whole.weight() // len(moves))
            raise ArgumentTooLarge(
                f"{len(moves)} tables are more than one transaction holds, which is about {MAX_OPS // each}",
                hint="commit to fewer tables at once",
                details={"field": "table-changes"},
            )

    def send(self, moves: Sequence[Move]) -> Swap:
        """Make several moves, of one table each, in one transaction: all of them or none.

        Raises :class:`~distop.errors.LocationInUse` if another table lives where one of these would.
        """
        txn = _together(moves)

        def ours(read: TxnResult) -> bool | None:
            # All of it has happened or nothing: who finds his own in one table knows of all. Not to find it
            # says less: a table that was made may have been dropped since.
            verdicts = {move.ours(move.found(read, 2 * at)) for at, move in enumerate(moves)}
            return True if True in verdicts else None if None in verdicts else False

        reached("catalog.swap.before")
        location = moves[0].head.metadata_location if len(moves) == 1 else ""
        outcome = self._settle(txn, ours, lambda: reached("catalog.swap.after"), location)
        if outcome is Swap.LOST:
            for move in moves:
                if move.claim is not None and not (move.new and self._read_record(move)):
                    self.check_free(move.claim)
        return outcome

    def _read_record(self, move: Move) -> bool:
        return self.read(move.keys.name).record is not None

    def _passed_on(self, base: Pointer, record: TableRecord) -> Txn:
        """The claim of a table becomes that of what it is to be."""
        assert base.record is not None
        claim = Claim.of(self.keyspace, base.record)
        standing = self._standing(claim)
        if not claim.is_mine(standing):
            self.check_free(claim)
        return claim.passed_on(standing, Claim.of(self.keyspace, record))

    def drop(self, base: Pointer, record: TableRecord, leave: Leave) -> Swap:
        """Remove a table and everything etcd knows of it, unless it has moved since ``base`` was read.

        Parameters
        ----------
        record:
            As in ``base``.
        leave:
            Does what is to be done about its files.

        Raises :class:`~distop.errors.IncompatibleOperation` while an operation runs.
        """
        keys = self.keyspace.table(record.name)
        _check_idle(keys, base)
        indexes = (keys.keyspace.paused_table(keys.name), keys.backlog_index)
        own = (keys.head, keys.watermarks, keys.run_ops)
        chunks = watermark_chunks(self.keyspace, record)
        gone = (*(Delete(key) for key in (*own, *indexes)), Delete(chunks, prefix_end(chunks)))
        txn = Txn(_same(base), (*gone, *self.audit("drop-table", keys.name)), _reads(keys))
        txn += self._buried(keys, record)
        reached("catalog.drop.before")
        outcome = self._settle(
            txn, lambda read: _pointer(keys, read).record is None, lambda: reached("catalog.drop.after")
        )
        if outcome is Swap.DONE:
            self._tidy(keys, leave)
        return outcome

    def _buried(self, keys: TableKeys, record: TableRecord, renamed_to: str = "") -> Txn:
        """A name has no table any more, and a tombstone until nothing else is left there."""
        tombstone = DropRecord(
            name=keys.name,
            location=record.location,
            uuid=record.uuid,
            storage=dict(storage_of(record)),
            renamed_to=renamed_to,
            by=self._by,
            at=time.time(),
        )
        key = self.keyspace.dropped(keys.name)
        return Txn((absent(key),), (*table_deletes(keys), Put(key, encode(tombstone))))

    def _tidy(self, keys: TableKeys, leave: Leave = leave_files) -> None:
        """Do what follows a change that has happened. It may fail: others do it then."""
        try:
            self.finish(keys.name, leave)
        except DistopError as error:
            log.warning("table_leftovers", extra={"table": keys.name, "error": str(error)})

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
        self.finish(new.name)
        self._finish_renames_to(old.name)
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
        free = (
            absent(new.table),
            absent(self.keyspace.dropped(new.name)),
            absent(old.pause),
            unchanged(looked_at),
        )
        compares = (*_same(base), *free, *(unchanged(kv) for kv in moving))
        ops: list[Op] = [*table_puts(new, record), Delete(old.run_ops), Delete(old.backlog_index)]
        ops += self.audit("rename-table", new.name, new, reason=f"it was {old.name}")
        for kv in moving:
            ops += [Put(new.prefix + kv.key[len(old.prefix) :], kv.value), Delete(kv.key)]
        txn = Txn(compares, tuple(ops), _reads(new)) + self._passed_on(base, record)
        txn += self._buried(old, record, new.name)

        def ours(read: TxnResult) -> bool:
            return _pointer(new, read).record == record

        reached("catalog.rename.before")
        outcome = self._settle(txn, ours, lambda: reached("catalog.rename.after"))
        if outcome is Swap.DONE:
            self._tidy(old)
        return outcome

    def _finish_renames_to(self, table: str) -> None:
        """What a table has left under earlier names comes before it is renamed again: it could not follow."""
        for kv in self.etcd.scan(self.keyspace.tombstones).kvs:
            if (before := decode(kv.value, DropRecord, kv.key)).renamed_to == table:
                self.finish(before.name)

    def _settle(
        self,
        txn: Txn,
        ours: Callable[[TxnResult], bool | None],
        replied: Callable[[], None],
        result: str = "",
    ) -> Swap:
        """Send a transaction until its outcome is known.

        Raises an error of etcd only if it has certainly not happened.

        Parameters
        ----------
        ours:
            Whether what its ``otherwise`` branch has read was written by it.
        result:
            For the note of the request, if there is one.
        """
        note = None if self._note is None else self._note.beside(result)
        try:
            read = self._send(txn if note is None else txn + note, replied)
        except EtcdOutOfSpace:
            raise
        except OutcomeUnknown:
            return Swap.UNKNOWN
        if read.succeeded:
            if any(isinstance(op, Put) and op.key.startswith(self.keyspace.audit_prefix) for op in txn.then):
                with suppress(DistopError):  # what has happened is not to look as if it had failed
                    self.etcd.run(lambda client: prune_softly(client, self.keyspace.audit_prefix))
            return Swap.DONE
        if note is not None:
            # It was written by this very transaction, by a repeat of the request, or by nobody.
            standing, put = read.got(len(read.results) - 1), note.then[0]
            assert isinstance(put, Put)
            return Swap.DONE if standing and standing[0].value == put.value else Swap.LOST
        verdict = ours(read) if read.doubt else False
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
        history, requests and series, which begin anew."""
        requests = keys.prefix + b"request.", keys.request_expiry_prefix
        many = (keys.applied_prefix, keys.audit_prefix, keys.history_prefix, *requests, keys.series_prefix)
        found: list[KeyValue] = []
        start = keys.prefix
        for skipped in (*many, None):
            end = skipped if skipped is not None else prefix_end(keys.prefix)
            found += self.etcd.get_range(start, end, limit=PAGE).kvs
            start = prefix_end(end)
        return found


def _together(moves: Sequence[Move]) -> Txn:
    txn = Txn()
    for move in moves:
        txn += move.txn + Txn(otherwise=(Get(move.keys.table), Get(move.keys.head)))
    return txn


async def _next_page(client: EtcdClient, *, start: bytes, end: bytes) -> RangePage:
    async with aclosing(client.pages(start, end, limit=PAGE, keys_only=True)) as pages:
        return await anext(pages)


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
