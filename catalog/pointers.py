"""The tables of the catalog in etcd: reading their records and heads, and the transactions that move them.

Every change is one transaction that compares what it was based on. A lost reply is answered by sending the
same transaction again, which can happen only once, and by reading whose write is there (P8).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import chain, islice
from typing import Any

from distop import errors
from distop.lake.cleanup.purge import leave_files
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient, RangePage
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import (
    MAX_OPS,
    MAX_REQUEST_BYTES,
    Compare,
    Get,
    KeyValue,
    Put,
    Txn,
    TxnResult,
    absent,
    named,
    unchanged,
)
from distop.metastore.etcd.update import Settled, settle
from distop.metastore.records.keyspace import Keyspace, TableKeys
from distop.metastore.records.names import check_new_name, escape, prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, Head, TableRecord, ViewRecord, running_operations
from distop.metastore.tables.answers import Note
from distop.metastore.tables.audit import audit_put, prune_softly
from distop.metastore.tables.locations import LocationClaim
from distop.metastore.tables.registry import Leave, finish_drop, table_puts

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
    is_own_write: Callable[[Pointer], bool | None]
    """Whether the present state results from it; ``None`` if that is unknown."""
    claim: LocationClaim | None = None
    """The claim to the table's new location, if that changes."""
    new: bool = False

    def pointer(self, read: TxnResult, at: int) -> Pointer:
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
        record_kv=result.single(0, keys.table),
        head_kv=result.single(1, keys.head),
        run_ops_kv=result.single(2, keys.run_ops),
        leftovers=bool(result.got(3)),
        view_kv=result.single(4, keys.view),
    )


def brief_pointer_of(keys: TableKeys, result: TxnResult, at: int = 0) -> Pointer:
    """Record and head alone, from the first two of :func:`reads`, which are at this place of the results."""
    return Pointer(
        record_kv=result.single(at, keys.table),
        head_kv=result.single(at + 1, keys.head),
        run_ops_kv=KeyValue.missing(keys.run_ops),
        view_kv=KeyValue.missing(keys.view),
    )


def same(base: Pointer) -> tuple[Compare, ...]:
    """The compares that it has not changed since it was read."""
    return unchanged(base.record_kv), unchanged(base.head_kv), unchanged(base.run_ops_kv)


def check_idle(keys: TableKeys, base: Pointer) -> None:
    """Raise :class:`~distop.errors.IncompatibleOperation` while an operation runs or is being collected."""
    running = [str(operation) for operation in running_operations(keys.name, base.run_ops_kv.value)]
    if running:
        raise errors.IncompatibleOperation(
            f"table {keys.name!r} has running operations: {', '.join(running)}",
            details={"table": keys.name, "operation": running[0]},
        )
    if base.leftovers:
        raise errors.IncompatibleOperation(
            f"the files of an operation of table {keys.name!r} that has ended are being collected",
            hint="try again in a moment; a coordinator must be running",
            details={"table": keys.name},
        )


PAGE = 1000
"""Keys read in one request."""
READ_BITE = 1000
"""Tables read in one request."""


class Pointers:
    """Records and heads of the tables of one installation."""

    def __init__(self, etcd: SyncEtcd, by: str = FOREIGN, note: Note | None = None) -> None:
        self.etcd = etcd
        self.keyspace: Keyspace = etcd.keyspace
        self.by = by
        """The caller, for the audit trail."""
        self._note = note

    def acting(self, by: str, note: Note | None = None) -> Pointers:
        """The same for one request; all changes include the note."""
        return Pointers(self.etcd, by or self.by, note)

    # -- reading ---------------------------------------------------------------------------------------

    def read(self, table: str) -> Pointer:
        """The present pointer of a table."""
        keys = self.keyspace.table(table)
        result = self.etcd.txn(Txn(then=reads(keys)))
        return pointer_of(keys, result)

    def read_briefly(self, table: str) -> Pointer:
        """Record and head alone: enough to load a table, and to move its head. Each key is a request."""
        keys = self.keyspace.table(table)
        return brief_pointer_of(keys, self.etcd.txn(Txn(then=reads(keys)[:2])))

    def tables(self, namespace: str = "", after: str = "") -> Iterator[str]:
        """Names of all tables from behind ``after`` on, in key order; with a namespace, those that begin with
        it and a dot. They are read on demand."""
        return self._names(self.keyspace.tables, namespace, after)

    def views(self, namespace: str = "", after: str = "") -> Iterator[str]:
        """As :meth:`tables`, for views."""
        return self._names(self.keyspace.views, namespace, after)

    def names(self, namespace: str = "") -> Iterator[str]:
        """The names of tables, and then those of views."""
        return chain(self.tables(namespace), self.views(namespace))

    def _names(self, index: bytes, namespace: str, after: str) -> Iterator[str]:
        below = index + (escape(f"{namespace}.").encode() if namespace else b"")
        start, more = below, True
        if after:
            start = max(below, index + escape(after).encode() + b"\0")
        while more:
            page = self.etcd.run(partial(_next_page, start=start, end=prefix_end(below)))
            for name, _ in named(page.kvs, partial(self.keyspace.name_in, index)):
                yield name
            if more := page.more:
                start = page.kvs[-1].key + b"\0"

    def published(self, names: Iterable[str]) -> Iterator[str]:
        """The tables among ``names`` that a program of Iceberg can load, or that have an error saying why
        not."""
        rest = iter(names)
        while some := tuple(islice(rest, READ_BITE)):
            tables = [self.keyspace.table(name) for name in some]
            gets = tuple(Get(key) for keys in tables for key in (keys.table, keys.head))
            read = self._read_many(gets)
            for position, keys in enumerate(tables):
                record, head = (
                    read.single(2 * position + at, key) for at, key in enumerate((keys.table, keys.head))
                )
                if record.exists and head.exists and _is_iceberg(record):
                    yield keys.name

    def _read_many(self, gets: Sequence[Get]) -> TxnResult:
        return self.etcd.run(lambda client: client.read_many(gets))

    # -- moving ----------------------------------------------------------------------------------------

    def created(self, record: TableRecord, head: Head, action: str = "create-table") -> Move:
        """Create a table with its record and head, unless it exists. ``action``: for the audit trail."""
        keys = self.keyspace.table(check_new_name(record.name, "name"))
        claim, tombstone = LocationClaim.of(self.keyspace, record), self.keyspace.dropped(record.name)
        audit = self.audit(action, record.name, keys)
        free_names = (absent(keys.table), absent(keys.head), absent(keys.view), absent(tombstone))
        # A late copy finds the entry of the first: a table that was dropped since stays so.
        txn = Txn(
            (*free_names, absent(audit[0].key), *claim.free()),
            (*table_puts(keys, record), Put(keys.head, encode(head)), claim.put, *audit),
        )

        def is_own_write(pointer: Pointer) -> bool | None:
            if pointer.record is not None and pointer.record.uuid == record.uuid:
                return True
            try:  # it may have been renamed since
                return None if self.existing(claim).exists else False
            except errors.DistopError:
                return None

        return Move(keys, txn, head, is_own_write, claim, new=True)

    def check_new(self, record: TableRecord) -> str:
        """The kind of the present owner of a table's name, see :attr:`Pointer.kind`; empty: it is free. A
        drop of an earlier one that was interrupted is finished.

        Raises :class:`~distop.errors.LocationInUse` if another table has its location.
        """
        self.finish(record.name)
        if kind := self.read(record.name).kind:
            return kind
        self.check_free(LocationClaim.of(self.keyspace, record))
        return ""

    def finish(self, table: str, leave: Leave = leave_files) -> None:
        """Finish an interrupted drop or rename, so that the next table with the name has no history of it."""
        tombstone = self.keyspace.dropped(table)
        if (dropped := self.etcd.get(tombstone)).exists:
            before = decode(dropped.value, DropRecord, tombstone)
            keys = self.keyspace.table(table)
            self.etcd.run(lambda client: finish_drop(client, keys, before, leave))

    def check_free(self, claim: LocationClaim) -> None:
        """Raises :class:`~distop.errors.LocationInUse` if another table has this location, or one above or
        below it."""
        result = self.etcd.run(lambda client: client.read_at_once(claim.reads()))
        claim.check([result.got(index) for index in range(len(claim.reads()))])

    def existing(self, claim: LocationClaim) -> KeyValue:
        """The present key of a claim."""
        return self.etcd.get(claim.key)

    def moved(
        self,
        base: Pointer,
        head: Head,
        landed: Callable[[Head | None], bool | None],
        record: TableRecord | None = None,
        besides: Txn = Txn(),
    ) -> Move:
        """Put a new head (and record), if head and record are unchanged; with ``besides`` in the same
        transaction.

        Parameters
        ----------
        landed:
            Whether the own commit is an ancestor of the given, later head; ``None`` if that is unknown.
        """
        keys = self.keyspace.table(self.keyspace.table_of(base.record_kv.key))
        txn = Txn((unchanged(base.head_kv), unchanged(base.record_kv)), (Put(keys.head, encode(head)),))
        txn, claim = txn + besides, None
        if record is not None:
            now = self.read(keys.name)  # the base may have been read briefly
            check_idle(keys, now)  # operations write to the location of the table at their start
            txn += Txn((unchanged(now.run_ops_kv),), (Put(keys.table, encode(record)),))
            txn += self.passed_on(base, record)
            claim = LocationClaim.of(self.keyspace, record)
        return Move(keys, txn, head, lambda pointer: landed(pointer.head), claim)

    def check_fits(self, moves: Sequence[Move]) -> None:
        """Raises :class:`~distop.errors.ArgumentTooLarge` if they do not fit into one transaction."""
        txn = _together(moves)
        if not self.fits(txn):
            each = -(-(txn.weight() + 1) // len(moves))  # with the note
            raise errors.ArgumentTooLarge(
                f"{len(moves)} tables are more than one transaction holds, which is about {MAX_OPS // each}",
                hint="commit to fewer tables at once",
                details={"field": "table-changes"},
            )

    def fits(self, txn: Txn) -> bool:
        """Whether etcd takes a transaction, with the note of the request."""
        whole = txn if self._note is None else txn + self._note.part("")
        return whole.weight() <= MAX_OPS and whole.size() <= MAX_REQUEST_BYTES

    def send(self, moves: Sequence[Move]) -> Swap:
        """Make several moves, one for each table, in one transaction: all of them or none.

        Raises :class:`~distop.errors.LocationInUse` if another table has the location of one of these.
        """
        txn = _together(moves)

        def is_own_write(read: TxnResult) -> bool | None:
            # All of it has happened or nothing: a match in one table proves all. No match
            # proves nothing: a table that was created may have been dropped since.
            verdicts = {move.is_own_write(move.pointer(read, 2 * at)) for at, move in enumerate(moves)}
            return True if True in verdicts else None if None in verdicts else False

        reached("catalog.swap.before")
        location = moves[0].head.metadata_location if len(moves) == 1 else ""
        outcome = self.settled(txn, is_own_write, lambda: reached("catalog.swap.after"), location)
        if outcome is Swap.LOST:
            for move in moves:
                if move.claim is not None and not (move.new and self.read(move.keys.name).record):
                    self.check_free(move.claim)
        return outcome

    def passed_on(self, base: Pointer, record: TableRecord) -> Txn:
        """Replace the claim of a table by that of its new record."""
        assert base.record is not None
        claim = LocationClaim.of(self.keyspace, base.record)
        existing = self.existing(claim)
        if not claim.is_mine(existing):
            self.check_free(claim)
        return claim.passed_on(existing, LocationClaim.of(self.keyspace, record))

    def settled(
        self,
        txn: Txn,
        is_own_write: Callable[[TxnResult], bool | None],
        replied: Callable[[], None],
        result: str = "",
    ) -> Swap:
        """Send a transaction until its outcome is known.

        Raises an error of etcd only if it has certainly not happened.

        Parameters
        ----------
        is_own_write:
            Whether the values that its ``otherwise`` branch has read were written by it.
        result:
            The result in the note of the request, if there is one.
        """
        note = None if self._note is None else self._note.part(result)
        try:
            read = self._send(txn if note is None else txn + note, replied)
        except errors.EtcdOutOfSpace:
            raise
        except errors.OutcomeUnknown:
            return Swap.UNKNOWN
        if read.succeeded:
            if any(isinstance(op, Put) and op.key.startswith(self.keyspace.audit_prefix) for op in txn.then):
                with suppress(errors.DistopError):  # a change that has happened must not look like a failure
                    self.etcd.run(lambda client: prune_softly(client, self.keyspace.audit_prefix))
            return Swap.DONE
        if note is not None:
            # It was written by this transaction, by a repetition of the request, or not at all.
            existing, put = read.got(len(read.results) - 1), note.then[0]
            assert isinstance(put, Put)
            return Swap.DONE if existing and existing[0].value == put.value else Swap.LOST
        verdict = is_own_write(read) if read.doubt else False
        return Swap.UNKNOWN if verdict is None else Swap.DONE if verdict else Swap.LOST

    def audit(self, action: str, target: str, *tables: TableKeys, reason: str = "") -> list[Put]:
        """The audit entries of an action, for the transaction that executes it: in the trail of the
        installation, and of the tables."""
        trails: tuple[Keyspace | TableKeys, ...] = (self.keyspace, *tables)
        who: dict[str, Any] = {"by": self.by, "reason": reason, "at": time.time()}
        return [audit_put(trail, action, target=target, **who) for trail in trails]

    def _send(self, txn: Txn, replied: Callable[[], None] | None = None) -> Settled:
        return self.etcd.run(lambda client: settle(client, txn, replied=replied))


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
    except errors.CorruptRecord:
        return True  # loading it raises the error
