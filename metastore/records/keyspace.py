"""The layout of etcd: names to keys and back.

Components of a key (:mod:`~distop.metastore.records.names`) are separated by dots. Scans end with the
separator: a scan of table ``orders`` never includes ``orders2``, one of instance 1 never instance 10.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache
from zlib import crc32

from distop.errors import CorruptRecord
from distop.metastore.records.names import OperationId, check_name, escape, prefix_end, unescape

SHARES = 1 << 16
"""Parts of the index of waiting operations, which the live executors of a type divide."""


class OperationKeys:
    """The keys of one operation, all below ``root``."""

    def __init__(self, root: bytes, operation: OperationId, keyspace: Keyspace) -> None:
        self.operation = operation
        self.keyspace = keyspace
        self.root = root
        self.prefix = root + b"."
        self.arg = root + b".arg"
        self.state = root + b".state"
        self.runner = root + b".runner"
        self.run = root + b".run"
        """Of a dynamic plan: which run's results count, and how many there are."""
        self.cancel = root + b".cancel"
        self.error = root + b".error"
        self.commit = root + b".commit"
        """The header of the commit sequence; if it exists, the sequence is complete."""
        self.commit_chunks = root + b".commit."
        """The prefix of its chunks' keys."""
        self.completion = root + b".completion"
        self.resolve = root + b".resolve"
        self.pause = root + b".pause"
        self.events, self.queued = root + b".events", root + b".queued"
        self.job_counts = root + b".jobCounts"
        """How many jobs are done, as their leader last reported; only for operations with many."""
        below_table = b".%s.%s" % (operation.type.encode(), operation.slot.encode())
        self.table_prefix = root.removesuffix(below_table) + b"."
        """The prefix of all keys of its table."""
        self.table_pause = self.table_prefix + b"pause"
        """The same for its table, which holds all its operations."""

    @cached_property
    def waiting(self) -> bytes:
        """Its entry among the operations that no executor runs."""
        return self.keyspace.waiting_operation(self.operation)

    @property
    def numbered_jobs(self) -> tuple[bytes, bytes]:
        """The range of the keys of numbered jobs; it contains nothing else."""
        return b"%s0" % self.prefix, b"%s:" % self.prefix

    def job_state(self, partition: str) -> bytes:
        return b"%s.%s.state" % (self.root, escape(partition).encode())

    def claim(self, partition: str) -> bytes:
        return b"%s.%s.claim" % (self.root, escape(partition).encode())

    def progress(self, partition: str) -> bytes:
        return b"%s.%s.progress" % (self.root, escape(partition).encode())

    def commit_chunk(self, index: int) -> bytes:
        """One chunk of the commit sequence; key order is their order."""
        return b"%s%06d" % (self.commit_chunks, index)

    def tries(self, partition: str) -> bytes:
        return b"%s.%s.tries" % (self.root, escape(partition).encode())

    def partition_of(self, key: bytes) -> tuple[str, str] | None:
        """``(partition, word)`` of a key of a job (state, claim, progress or tries), else ``None``."""
        try:
            component, dot, word = key[len(self.prefix) :].decode().partition(".")
            if not dot or component == "commit":
                return None
            return unescape(component), word
        except UnicodeDecodeError:
            return None


class TableKeys:
    """The keys of one table, all below ``prefix``."""

    def __init__(self, keyspace: Keyspace, table: str) -> None:
        self.name = table
        self.keyspace = keyspace
        base = keyspace.prefix + escape(table).encode()
        self.prefix = base + b"."
        self.table = base + b".table"
        self.coordinator = base + b".coordinator"
        self.run_ops = base + b".runOps"
        self.head = base + b".head"
        self.watermarks = base + b".watermarks"
        self.pause = base + b".pause"
        self.history_prefix = base + b".history."
        self.series_prefix = base + b".series."
        self.request_expiry_prefix = base + b".requestExpiry."
        self.ordering = base + b".ordering"
        self.undone = base + b".undone"
        self.backlog_prefix = base + b".backlog."
        self.applied_prefix = base + b".applied."
        self.unordered_prefix = base + b".unordered."
        self.backlog_index = keyspace.backlog_tables + escape(table).encode()
        self.entry = keyspace.tables + escape(table).encode()
        """Its entry in the index of tables, see :attr:`Keyspace.tables`."""
        self.schedule_prefix = base + b".schedule."
        self.agenda = keyspace.agendas + escape(table).encode()
        """When a leader must look at the schedules, see :attr:`Keyspace.agendas`."""
        self.view = keyspace.views + escape(table).encode()
        """Exists if a view has this name: no table may have it then."""
        self.audit_prefix = base + b".auditTrail."
        self.index_prefix = base + b".index."
        self._base = base

    def next_instance(self, type_name: str) -> bytes:
        return b"%s.%s.nextInstanceId" % (self._base, type_name.encode())

    def request(self, run: str) -> bytes:
        return b"%s.request.%s" % (self._base, escape(run).encode())

    def request_expiry(self, at_ms: int, run: str) -> bytes:
        """Until when a request is remembered: thirteen digits of milliseconds sort as numbers."""
        return b"%s%013d.%s" % (self.request_expiry_prefix, at_ms, escape(run).encode())

    def request_of_expiry(self, key: bytes) -> bytes:
        """The key of the request that is remembered until then; empty if none is."""
        _, dot, name = key[len(self.request_expiry_prefix) :].partition(b".")
        return b"%s.request.%s" % (self._base, name) if dot else b""

    def history(self, operation: OperationId) -> bytes:
        return b"%s.history.%s.%s" % (self._base, operation.type.encode(), operation.slot.encode())

    def series(self, name: str) -> bytes:
        return self.series_prefix + escape(name).encode()

    def schedule(self, name: str) -> bytes:
        return self.schedule_prefix + escape(name).encode()

    def backlog(self, batch: str) -> bytes:
        """A waiting batch. Its name is literal: key order is name order."""
        return self.backlog_prefix + batch.encode()

    def index(self, object: str) -> bytes:
        """The published state of an index; its object is its column, see ``build_index``."""
        return self.index_prefix + escape(object).encode()

    def applied(self, batch: str) -> bytes:
        return self.applied_prefix + batch.encode()

    def unordered(self, state: str, batch: str = "") -> bytes:
        """An unordered batch in this state; without a name: the prefix of all."""
        return b"%s%s.%s" % (self.unordered_prefix, state.encode(), batch.encode())

    def operation(self, operation: OperationId) -> OperationKeys:
        root = b"%s.%s.%s" % (self._base, operation.type.encode(), operation.slot.encode())
        return OperationKeys(root, operation, self.keyspace)


class Keyspace:
    """All keys of one installation; equal for equal names.

    Parameters
    ----------
    name:
        The first component of every key; several installations share one etcd under different names.
    """

    def __init__(self, name: str = "distOp") -> None:
        self.name = check_name(name, "keyspace prefix")
        prefix = self.prefix = escape(name).encode() + b"."
        self.coordinators = prefix + b"_coordinators."
        self.executors = prefix + b"_executors."
        self.places = prefix + b"_places."
        """One key per role and host: the service that began there last, unless it has ended as it should."""
        self.active = prefix + b"_active."
        """One key per operation that still has keys, so that finding work needs no scan of all tables."""
        self.installation = prefix + b"_installation"
        """The layout of all these keys."""
        self.backup = prefix + b"_backup"
        """Exists during a backup: so it is in the backup, and in an etcd restored from it."""
        self.tables = prefix + b"_tables."
        """One key per table, so that listing names need not skip from table to table."""
        self.tombstones = prefix + b"_dropped."
        """One key per table that is being dropped, or renamed."""
        self.views = prefix + b"_views."
        """Iceberg views: one key each. Their names are in the namespace of tables, see
        :attr:`TableKeys.view`."""
        self.waiting = prefix + b"_waiting."
        """One key per running operation without an executor, spread over shares: see :meth:`share_of`."""
        self.paused = prefix + b"_paused."
        """One key per paused table and operation, so that not all of them must be read."""
        self.audit_prefix = prefix + b"_audit."
        """The audit trail for actions on no table, or on one that is gone."""
        self.denials_prefix = prefix + b"_denied."
        """The audit trail of refused calls. They have their own, so that they push no action out."""
        self.alerts = prefix + b"_alerts."
        """One key per alert that was delivered and has not ended."""
        self.alert_cursor = prefix + b"_alertCursor"
        self.policy = prefix + b"_policy"
        """The access policy."""
        self.backlog_tables = prefix + b"_backlog."
        """One key per table whose backlog a leader should look at."""
        self.agendas = prefix + b"_schedules."
        """One key per table with schedules: when a leader must look at them. Coordinators follow these keys,
        and neither the tables nor the schedules."""
        self.namespaces = prefix + b"_namespaces."
        """Iceberg namespaces and their properties."""
        self.locations = prefix + b"_locations."
        """One key per table: the location that it claims."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Keyspace) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def table(self, name: str) -> TableKeys:
        return _table_keys(self, name)

    def operation(self, operation: OperationId) -> OperationKeys:
        return self.table(operation.table).operation(operation)

    # -- members, and the index of active operations -----------------------------------------------

    def watermark_chunks(self, table_uuid: str) -> bytes:
        """The prefix of a table's chunks of watermarks. They keep their keys when the table is renamed, and
        differ from those of a later table with its name."""
        return b"%s_watermarks.%s." % (self.prefix, escape(table_uuid).encode())

    def answer(self, key: str) -> bytes:
        """The answer to a request of the catalog with this idempotency key; or ``form.<hash>.<id>`` and
        ``session.<hash>`` of the page."""
        return self.prefix + b"_answers." + escape(key).encode()

    def location(self, folder: str) -> bytes:
        """The claim to a place. Slashes are literal: the keys of all places in it begin with its own and a
        slash."""
        return self.locations + escape(folder).encode()

    def coordinator(self, member: str) -> bytes:
        return self.coordinators + escape(member).encode()

    def executor(self, member: str) -> bytes:
        return self.executors + escape(member).encode()

    def alert(self, name: str) -> bytes:
        return self.alerts + escape(name).encode()

    def latest_service(self, role: str, host: str) -> bytes:
        return self.places + f"{role}.{escape(host)}".encode()

    def namespace(self, name: str) -> bytes:
        return self.namespaces + escape(name).encode()

    def active_operation(self, operation: OperationId) -> bytes:
        table = escape(operation.table).encode()
        return b"%s%s.%s.%s" % (self.active, table, operation.type.encode(), operation.slot.encode())

    def share_of(self, operation: OperationId) -> int:
        """A number below :data:`SHARES`, always the same for an operation: live executors divide them."""
        return crc32(self.active_operation(operation)) % SHARES

    def waiting_from(self, share: int) -> bytes:
        """The start of the keys of waiting operations of this and all higher shares."""
        return b"%s%04x." % (self.waiting, share) if share < SHARES else prefix_end(self.waiting)

    def waiting_operation(self, operation: OperationId) -> bytes:
        active = self.active_operation(operation)
        return self.waiting_from(crc32(active) % SHARES) + active.removeprefix(self.active)

    def parse_waiting(self, key: bytes) -> OperationId:
        """The operation that waits there. Raises :class:`~distop.errors.CorruptRecord` if none would."""
        operation = _operation(key[len(self.waiting_from(0)) :].split(b"."), key)
        if self.waiting_operation(operation) != key:
            raise _unnamed(key)
        return operation

    def dropped(self, table: str) -> bytes:
        """The tombstone of a table that is being dropped, or renamed."""
        return self.tombstones + escape(table).encode()

    def paused_table(self, table: str) -> bytes:
        return self.paused + escape(table).encode()

    def paused_operation(self, operation: OperationId) -> bytes:
        return self.paused + self.active_operation(operation).removeprefix(self.active)

    # -- names in keys: all raise CorruptRecord for a key that no name makes ----------------------------

    def name_in(self, index: bytes, key: bytes) -> str:
        """The name in a key of an index whose keys are a prefix and one name: a table, a member."""
        return _name(key[len(index) :], key)

    def table_in(self, index: bytes, key: bytes) -> str:
        """The table in a key of an index whose keys begin with one."""
        return _name(key[len(index) :].split(b".", 1)[0], key)

    def paused_by(self, key: bytes) -> tuple[str, OperationId | None]:
        """What a key of the index of paused things names: a table, and the operation unless it is all of
        it."""
        if b"." not in (name := key[len(self.paused) :]):
            return _name(name, key), None
        operation = _operation(name.split(b"."), key)
        return operation.table, operation

    def parse_active(self, key: bytes) -> OperationId:
        """The operation of an index key."""
        return _operation(key[len(self.active) :].split(b"."), key)

    def parse_root(self, root: bytes) -> OperationId:
        """The operation whose keys lie below this root."""
        return _operation(root[len(self.prefix) :].split(b"."), root)

    def parse_history(self, key: bytes) -> OperationId:
        """The operation of a history key."""
        table, *parts = key[len(self.prefix) :].split(b".")
        if parts[:1] != [b"history"]:
            raise _unnamed(key)
        return _operation([table, *parts[1:]], key)

    def is_in_lane(self, lane: bytes, start: bytes, end: bytes) -> bool:
        """Whether a key, or a range of keys with ``end``, belongs to the table whose keys have this prefix:
        it is below the prefix, or the entry of the table or of its operation in an index."""
        if not start.startswith(lane):
            index = self.waiting_from(0) if start.startswith(self.waiting) else _up_to_dot(start, self.prefix)
            lane = start[: len(index)] + lane[len(self.prefix) :]
            if not index.startswith(self.prefix + b"_") or not (start + b".").startswith(lane):
                return False
        return end <= prefix_end(lane) and end != b"\0"

    def table_of(self, key: bytes) -> str:
        """The table of a key (for keys below a table)."""
        return _name(key[len(self.prefix) :].split(b".", 1)[0], key)


def _name(component: bytes, key: bytes) -> str:
    """A name from a component of a key. One that is not written as :func:`escape` writes it is refused: its
    name has another key, which would be taken for this one."""
    try:
        name = unescape(component.decode())
    except UnicodeDecodeError:
        raise _unnamed(key) from None
    if not name or escape(name).encode() != component:
        raise _unnamed(key)
    return name


def _operation(components: list[bytes], key: bytes) -> OperationId:
    """An operation from its table, its type, its object if it has one, and its number."""
    if len(components) not in (3, 4) or not _NUMBER.fullmatch(components[-1]):
        raise _unnamed(key)
    table, kind, *obj = [_name(component, key) for component in components[:-1]]
    return OperationId(table, kind, int(components[-1]), *obj)


def _unnamed(key: bytes) -> CorruptRecord:
    return CorruptRecord(f"{key.decode(errors='backslashreplace')} names nothing that can exist")


_NUMBER = re.compile(rb"[1-9][0-9]{0,17}")


def _up_to_dot(key: bytes, prefix: bytes) -> bytes:
    """The part of a key up to the first dot after a prefix."""
    return key[: key.find(b".", len(prefix)) + 1]


@lru_cache(maxsize=1024)
def _table_keys(keyspace: Keyspace, name: str) -> TableKeys:
    """The keys of a table, which a call needs several times."""
    return TableKeys(keyspace, name)
