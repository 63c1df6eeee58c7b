"""Dropping and renaming tables in etcd."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError

from distop import errors
from distop.catalog.namespaces import no_such_table, table_identifier
from distop.catalog.pointers import PAGE, Pointer, Pointers, Swap, check_idle, pointer_of, reads, same
from distop.lake.cleanup.purge import leave_files
from distop.lake.storage.storage import storage_of
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import check_new_name, prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, TableRecord
from distop.metastore.tables.registry import Leave, table_deletes, table_puts
from distop.metastore.tables.schedules import looked_at_once
from distop.metastore.tables.watermarks import watermark_chunks

log = logging.getLogger(__name__)

MAX_TRIES = 10
"""How often dropping or renaming a table is tried again when the table moves meanwhile."""


def retry_until_known(attempt: Callable[[], Swap], subject: str, done: str) -> None:
    """Try until the outcome is known. Raises :class:`~distop.errors.OutcomeUnknown`, and
    ``CommitFailedException`` if it is always lost."""
    for _ in range(MAX_TRIES):
        outcome = attempt()
        if outcome is Swap.DONE:
            return
        if outcome is Swap.UNKNOWN:
            raise errors.OutcomeUnknown(f"whether {subject} was {done} is not known")
    raise CommitFailedException(f"{subject} is written to all the time, it was not {done}")


def check_target(pointers: Pointers, old: str, new: str) -> None:
    """Raise ``TableAlreadyExistsError`` if the new name of a table belongs to a table or a view."""
    if kind := pointers.read(new).kind:
        before, after = (".".join(table_identifier(name)) for name in (old, new))
        raise TableAlreadyExistsError(f"Cannot rename {before} to {after}. {kind} already exists")


class Naming:
    """Drops and renames tables of one installation."""

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._etcd, self._keyspace = pointers.etcd, pointers.keyspace

    def drop(self, table: str, leave: Callable[[TableRecord], Leave]) -> None:
        """Remove a table and all its keys.

        Raises ``NoSuchTableError``, and :class:`~distop.errors.IncompatibleOperation` while an operation
        runs.

        Parameters
        ----------
        leave:
            Returns the function that handles the files of a table.
        """
        self._settle(table, lambda base, record: self._drop(base, record, leave(record)), "dropped")

    def _settle(self, table: str, attempt: Callable[[Pointer, TableRecord], Swap], done: str) -> None:
        """Try until the outcome is known, each time on the present state of the table."""

        def once() -> Swap:
            base = self._pointers.read(table)
            if (record := base.record) is None:
                self._pointers.finish(table)
                raise no_such_table(table)
            return attempt(base, record)

        retry_until_known(once, f"table {table!r}", done)

    def _drop(self, base: Pointer, record: TableRecord, leave: Leave) -> Swap:
        """Drop a table, unless it has moved since ``base`` was read."""
        keys = self._keyspace.table(record.name)
        check_idle(keys, base)
        indexes = (keys.keyspace.paused_table(keys.name), keys.backlog_index, keys.agenda)
        own = (keys.head, keys.watermarks, keys.run_ops)
        chunks = watermark_chunks(self._keyspace, record)
        gone = (
            *(etcd.DeleteRange(key) for key in (*own, *indexes)),
            etcd.DeleteRange(chunks, prefix_end(chunks)),
        )
        txn = etcd.Txn(same(base), (*gone, *self._pointers.audit("drop-table", keys.name)), reads(keys))
        txn += self._tombstoned(keys, record)

        def is_own_write(read: etcd.TxnResult) -> bool:
            current = pointer_of(keys, read).record
            return current is None or current.uuid != record.uuid  # another one may have been created since

        reached("catalog.drop.before")
        outcome = self._pointers.settled(txn, is_own_write, lambda: reached("catalog.drop.after"))
        if outcome is Swap.DONE:
            self._tidy(keys, leave)
        return outcome

    def _tombstoned(self, keys: TableKeys, record: TableRecord, renamed_to: str = "") -> etcd.Txn:
        """Remove the table's name, and leave a tombstone until its other keys are removed."""
        tombstone = DropRecord(
            name=keys.name,
            location=record.location,
            uuid=record.uuid,
            storage=dict(storage_of(record)),
            renamed_to=renamed_to,
            by=self._pointers.by,
            at=time.time(),
        )
        key = self._keyspace.dropped(keys.name)
        return etcd.Txn((etcd.absent(key),), (*table_deletes(keys), etcd.Put(key, encode(tombstone))))

    def _tidy(self, keys: TableKeys, leave: Leave = leave_files) -> None:
        """Clean up after a change. If this fails, another process does it."""
        try:
            self._pointers.finish(keys.name, leave)
        except errors.DistopError as error:
            log.warning("table_leftovers", extra={"table": keys.name, "error": str(error)})

    def rename(self, table: str, new: str) -> None:
        """Move a table to another name.

        Record, head, watermarks, settings, indexes, schedules and instance counters move in one transaction;
        history and audit trail after it. Request ids are not moved: they belong to the old name.

        Raises
        ------
        NoSuchTableError, TableAlreadyExistsError
            There is no such table, or the name is taken.
        IncompatibleOperation
            An operation runs.
        BacklogInUse
            Batches wait, or were applied. Their publishers know the old name, and under a new one, which
            remembers none of them, they would be applied twice.
        TablePaused
            It is paused.
        PreconditionFailed
            It has more than one transaction can move.
        """

        def attempt(base: Pointer, record: TableRecord) -> Swap:
            check_target(self._pointers, table, new)
            record.name = new
            return self._rename(base, record)

        self._settle(table, attempt, "renamed")

    def _rename(self, base: Pointer, record: TableRecord) -> Swap:
        """Rename a table as ``record`` says, unless it has moved since ``base``, or the name is taken."""
        old = self._keyspace.table(self._keyspace.table_of(base.record_kv.key))
        new = self._keyspace.table(check_new_name(record.name, "name"))
        check_idle(old, base)
        self._pointers.finish(new.name)
        self._finish_renames_to(old.name)
        # Written with every batch: a later one fails this transaction.
        looked_at = self._etcd.get(old.backlog_index)
        # The same for every schedule that is added or changed.
        agenda = self._etcd.get(old.agenda)
        details = {"table": old.name}
        for prefix in (old.backlog_prefix, old.applied_prefix, old.unordered_prefix):
            if self._etcd.get_range(prefix, prefix_end(prefix), keys_only=True, limit=1).kvs:
                raise errors.BacklogInUse(f"table {old.name!r} has batches in its backlog", details=details)
        if self._etcd.get(old.pause).exists:
            raise errors.TablePaused(
                f"table {old.name!r} is paused",
                hint=f"resume it: distop table resume {old.name}",
                details=details,
            )
        settings, gone = self._settings(old)
        moving = [kv for kv in settings if kv.key not in (old.table, old.run_ops)]
        free = (
            etcd.absent(new.table),
            etcd.absent(new.view),
            etcd.absent(self._keyspace.dropped(new.name)),
            etcd.absent(old.pause),
            etcd.unchanged(looked_at),
            etcd.unchanged(agenda),
        )
        # Those may be set by hand.
        unset = () if any(kv.key == old.watermarks for kv in moving) else (etcd.absent(old.watermarks),)
        compares = (*same(base), *free, *unset, *(etcd.unchanged(kv) for kv in moving))
        ops: list[etcd.Op] = [*table_puts(new, record), *gone, etcd.DeleteRange(old.backlog_index)]
        if agenda.exists:
            ops += [etcd.DeleteRange(old.agenda), looked_at_once(agenda, key=new.agenda)]
        ops += self._pointers.audit("rename-table", new.name, new, reason=f"it was {old.name}")
        ops += [etcd.Put(new.prefix + kv.key[len(old.prefix) :], kv.value) for kv in moving]
        looks = (etcd.Get(new.table), etcd.Get(old.table))
        txn = etcd.Txn(compares, tuple(ops), looks) + self._pointers.passed_on(base, record)
        txn += self._tombstoned(old, record, new.name)
        if not self._pointers.fits(txn):
            raise errors.PreconditionFailed(
                f"table {old.name!r} has {len(moving)} keys of its own, more than one transaction can rename",
                hint="its schedules and indexes are such, and its watermarks: remove some",
                details=details,
            )

        def is_own_write(read: etcd.TxnResult) -> bool | None:
            renamed, as_before = (
                kv.exists and decode(kv.value, TableRecord, kv.key).uuid == record.uuid
                for kv in (read.single(0, new.table), read.single(1, old.table))
            )
            # Under neither name: it may have been renamed or dropped since.
            return True if renamed else False if as_before else None

        reached("catalog.rename.before")
        outcome = self._pointers.settled(txn, is_own_write, lambda: reached("catalog.rename.after"))
        if outcome is Swap.DONE:
            self._tidy(old)
        return outcome

    def _finish_renames_to(self, table: str) -> None:
        """Move leftovers of an earlier rename first: they could not follow a second one."""
        for kv in self._etcd.scan(self._keyspace.tombstones).kvs:
            try:
                before = decode(kv.value, DropRecord, kv.key)
            except (
                errors.CorruptRecord
            ) as error:  # nobody could finish that one; it must not prevent all others
                log.warning("tombstone_unreadable", extra={"table": table, "error": str(error)})
                continue
            if before.renamed_to == table:
                self._pointers.finish(before.name)

    def _settings(self, keys: TableKeys) -> tuple[list[etcd.KeyValue], list[etcd.DeleteRange]]:
        """All keys of an idle table, and their removal; except its leader's, and those that may be many and
        are not moved: finished batches, audit trail, history, requests and series."""
        requests = keys.prefix + b"request.", keys.request_expiry_prefix
        skipped = keys.applied_prefix, keys.audit_prefix, keys.coordinator, keys.history_prefix
        kvs: list[etcd.KeyValue] = []
        gone: list[etcd.DeleteRange] = []
        start = keys.prefix
        # In the order of their keys. A removal for each range takes less of a transaction than for each key.
        for end in (*skipped, *requests, keys.series_prefix, prefix_end(keys.prefix)):
            kvs += self._etcd.get_range(start, end, limit=PAGE).kvs
            gone.append(etcd.DeleteRange(start, end))
            start = prefix_end(end)
        return kvs, gone
