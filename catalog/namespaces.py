"""Iceberg namespaces in etcd (``_namespaces.<name>`` and its properties), and the names of tables in them,
which are dropped and renamed.

A namespace exists if it was created, or if a table, a view or another namespace is in it. Its name is its
parts joined by dots; the namespace ``default`` holds the tables whose name has no dot, and always exists.
Creating one that exists only in this way sets its properties.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
    ViewAlreadyExistsError,
)
from pyiceberg.typedef import Identifier

from distop import errors
from distop.catalog.errors import both
from distop.catalog.pointers import PAGE, Pointer, Pointers, Swap, check_idle, pointer_of, reads, same
from distop.errors import InvalidArgument, InvalidName
from distop.lake.cleanup.purge import leave_files
from distop.lake.storage.storage import storage_of
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.update import update
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import (
    DEFAULT_NAMESPACE,
    check_name,
    check_new_name,
    check_table_name,
    escape,
    prefix_end,
)
from distop.metastore.records.record import convert, decode, encode
from distop.metastore.records.table import DropRecord, NamespaceRecord, TableRecord
from distop.metastore.tables.registry import Leave, table_deletes, table_puts
from distop.metastore.tables.schedules import looked_at_once
from distop.metastore.tables.watermarks import watermark_chunks

DEFAULT = DEFAULT_NAMESPACE

# Parts are separated by dots: a dot in a part is written %2E. A literal %2E has its percent sign
# written %25; every other percent sign is unchanged, so that all names without %2E are literal.
_TO_ESCAPE = re.compile(r"\.|%(?=(?:25)*2E)")
_ESCAPE = re.compile(r"%(2E|25(?=(?:25)*2E))")


def table_name(identifier: str | Identifier) -> str:
    """The name of a table in distop: its namespaces and name, joined by dots, ``default`` left out.

    Raises :class:`~distop.errors.InvalidName`, which is a ``NoSuchTableError``, if that is invalid.
    """
    try:
        return check_table_name(_joined(identifier, "table"))
    except InvalidName as error:
        raise both(error, NoSuchTableError) from None


def table_identifier(name: str) -> Identifier:
    """The identifier of a table; the inverse of :func:`table_name`."""
    parts = namespace_identifier(name)
    return (DEFAULT, *parts) if len(parts) == 1 else parts


def no_such_table(name: str) -> NoSuchTableError:
    """The error of pyiceberg for a missing table."""
    return NoSuchTableError(f"Table does not exist: {'.'.join(table_identifier(name))}")


def already_exists(name: str, kind: str = "Table") -> TableAlreadyExistsError:
    """The error of pyiceberg for an existing table of this name; or for a view (``kind``), which has the name
    of the table."""
    full = ".".join(table_identifier(name))
    return TableAlreadyExistsError(
        f"Table {full} already exists" if kind == "Table" else f"{kind} with same name already exists: {full}"
    )


def view_name(identifier: str | Identifier) -> str:
    """The name of a view, which no table may have; as :func:`table_name`.

    Raises :class:`~distop.errors.InvalidName`, which is a ``NoSuchViewError``, if that is invalid.
    """
    try:
        return check_table_name(_joined(identifier, "view"))
    except InvalidName as error:
        raise both(error, NoSuchViewError) from None


def no_such_view(name: str) -> NoSuchViewError:
    """The error of pyiceberg for a missing view."""
    return NoSuchViewError(f"View does not exist: {'.'.join(table_identifier(name))}")


def view_exists(name: str, kind: str = "View") -> ViewAlreadyExistsError:
    """The error of pyiceberg for an existing view of this name; or for a table (``kind``)."""
    full = ".".join(table_identifier(name))
    return ViewAlreadyExistsError(
        f"View already exists: {full}" if kind == "View" else f"{kind} with same name already exists: {full}"
    )


def namespace_identifier(name: str) -> Identifier:
    """The parts of a namespace's name; the inverse of :func:`namespace_name`."""
    return tuple(
        _ESCAPE.sub(lambda match: "." if match[1] == "2E" else "%", part) for part in name.split(".")
    )


def namespace_name(namespace: str | Identifier) -> str:
    """The name of a namespace: its parts joined by dots.

    Raises :class:`~distop.errors.InvalidName`, which is a ``NoSuchNamespaceError``, if that is invalid.
    """
    try:
        return check_name(_joined(namespace, "namespace"), "namespace")
    except InvalidName as error:
        raise both(error, NoSuchNamespaceError) from None


def _joined(identifier: str | Identifier, kind: str) -> str:
    parts: tuple[Any, ...] = Catalog.identifier_to_tuple(identifier)
    if not parts or not all(isinstance(part, str) and part.strip() for part in parts):
        raise InvalidName(f"{kind} {identifier!r} has an empty part", details={"field": kind})
    return ".".join(_TO_ESCAPE.sub(lambda match: "%2E" if match[0] == "." else "%25", part) for part in parts)


class Namespaces:
    """The namespaces of one installation."""

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._etcd = pointers.etcd
        self._keyspace = pointers.keyspace

    def _read(self, name: str) -> etcd.KeyValue:
        return self._etcd.get(self._keyspace.namespace(name))

    def exists(self, name: str) -> bool:
        """Whether it was created, or is not empty."""
        return name == DEFAULT or self._read(name).exists or not self.is_empty(name)

    def is_empty(self, name: str) -> bool:
        """Whether neither a table, a view nor a namespace is in it."""
        if name == DEFAULT and any("." not in other for other in self._pointers.names()):
            return False
        return not any(self._pointers.names(name)) and not self.below(name)

    def below(self, name: str = "") -> list[str]:
        """All created namespaces inside one, at any depth; by default all of them."""
        prefix = self._keyspace.namespaces
        start = prefix + (escape(f"{name}.").encode() if name else b"")
        keys = self._etcd.scan(start, keys_only=True).kvs
        return [name for name, _ in etcd.named(keys, partial(self._keyspace.name_in, prefix))]

    def properties(self, name: str) -> dict[str, str]:
        """Its properties; none if it was not created."""
        return _properties(self._read(name))

    def create(self, name: str, properties: dict[str, str]) -> bool:
        """Create it; ``False`` if it was created before. Its content makes no difference.

        Raises :class:`~distop.errors.InvalidName` if no table could be created in it.
        """
        check_new_name(name, "namespace")
        value = _encoded(properties)
        return self._change("create", name, lambda kv: None if kv.exists else etcd.Put(kv.key, value))

    def drop(self, name: str) -> bool:
        """Remove it and its properties; ``False`` if it was not created."""
        return self._change("drop", name, lambda kv: etcd.DeleteRange(kv.key) if kv.exists else None)

    def update(self, name: str, change: Callable[[dict[str, str]], dict[str, str]]) -> None:
        """Change its properties. ``change`` may be called again when another change comes between."""

        def changed(kv: etcd.KeyValue) -> etcd.Put:
            return etcd.Put(kv.key, _encoded(change(_properties(kv))))

        self._change("alter", name, changed)

    def _change(
        self, action: str, name: str, wanted: Callable[[etcd.KeyValue], etcd.Put | etcd.DeleteRange | None]
    ) -> bool:
        """Bring a namespace into the requested state; returns whether anything was changed."""
        key = self._keyspace.namespace(name)
        existing = b""

        async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, bool]:
            nonlocal existing
            kv = read.single(0, key)
            if (op := wanted(kv)) is None:
                return None, False
            existing = op.value if isinstance(op, etcd.Put) else b""
            reached("namespace.before")
            return etcd.Txn(
                (etcd.unchanged(kv),), (op, *self._pointers.audit(f"{action}-namespace", name))
            ), True

        def is_own_write(read: etcd.TxnResult) -> bool | None:
            # It does not matter which caller wrote the same value.
            return True if read.single(0, key).value == existing else None

        subject, replied = f"namespace {name!r}", lambda: reached("namespace.after")
        return self._etcd.run(
            lambda client: update(
                client, (etcd.Get(key),), decide, is_own_write, subject=subject, replied=replied
            )
        )[0]


def _properties(kv: etcd.KeyValue) -> dict[str, str]:
    return dict(decode(kv.value, NamespaceRecord, kv.key).properties) if kv.exists else {}


def _encoded(properties: dict[str, str]) -> bytes:
    try:
        return encode(convert({"properties": properties}, NamespaceRecord))
    except msgspec.ValidationError as error:
        raise InvalidArgument(
            f"a property of a namespace is no string: {error}", details={"field": "properties"}
        ) from None


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
        history and audit trail after it. Runs are not moved: they belong to the old name.

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
