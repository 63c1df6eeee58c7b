"""Which keys and values this version can read, and the removal of one that it cannot.

Whoever meets one of them skips it. So it harms nobody else, and stays until somebody removes it by name.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, TypeAlias

from distop.coordinator.doctor.findings import Finding, Reported, text, unreadable_record
from distop.coordinator.schedules.due import check_times
from distop.errors import Compacted, CorruptRecord, InvalidArgument, InvalidName, PreconditionFailed
from distop.metastore.backlog.batches import DONE, AppliedRecord, BatchRecord, OrderingRecord
from distop.metastore.backlog.undoing import UndoneRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.operations.jobs import TriesRecord
from distop.metastore.records import operation as records
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.names import TABLE_WORDS, escape, prefix_end, unescape
from distop.metastore.records.record import Record, decode
from distop.metastore.records.table import (
    AlertRecord,
    AuditRecord,
    DropRecord,
    Head,
    IndexRecord,
    LocationRecord,
    NamespaceRecord,
    TableRecord,
    ViewRecord,
    decode_run_ops,
)
from distop.metastore.records.watermarks import decode_recent
from distop.metastore.tables.schedules import AgendaRecord, ScheduleRecord

PAGE, VALUES = 1000, 40
"""Keys in one read, without and with their values: each may be as large as a request."""

Reads: TypeAlias = Callable[[KeyValue], Any]
"""Reads a key or its value; raises :class:`~distop.errors.CorruptRecord` if it cannot."""

_ERRORS = CorruptRecord, InvalidName, ValueError
"""Of a key or a value that cannot be read; bytes that are no text are a ``ValueError``."""

_KEPT = frozenset({b"table", b"head", b"watermarks", b"ordering", b"applied"})
"""Words of keys that say what is published or was applied."""

_ESCAPED = re.compile(rb"\\x([0-9a-f]{2})")


def _record(kind: type[Record]) -> Reads:
    return lambda kv: decode(kv.value, kind, kv.key)


def _schedule(kv: KeyValue) -> None:
    check_times(decode(kv.value, ScheduleRecord, kv.key))


def _state(kv: KeyValue) -> None:
    if kv.value not in (records.RUNNING, records.COMMITTING, records.ABORTING):
        raise CorruptRecord(f"{text(kv.value)!r} is no state of an operation")


def _nothing(_: KeyValue) -> None:
    pass


_OF_TABLES: dict[str, Reads] = {
    "table": _record(TableRecord),
    "coordinator": _record(LeaderRecord),
    "runOps": lambda kv: decode_run_ops(kv.value),
    "head": _record(Head),
    "watermarks": lambda kv: decode_recent(kv.value),
    "pause": _record(records.PauseRecord),
    "ordering": _record(OrderingRecord),
    "undone": _record(UndoneRecord),
    "backlog": _record(BatchRecord),
    "applied": _record(AppliedRecord),
    "request": _record(records.RequestRecord),
    "history": _record(records.HistoryRecord),
    "series": _record(records.SeriesRecord),
    "index": _record(IndexRecord),
    "schedule": _schedule,
    "auditTrail": _record(AuditRecord),
}
_OF_OPERATIONS: dict[str, Reads] = {
    "arg": _record(records.OperationArg),
    "state": _state,
    "runner": _record(records.RunnerRecord),
    "run": _record(records.RunRecord),
    "cancel": _record(records.CancelRecord),
    "error": _record(records.ErrorRecord),
    "completion": _record(records.CompletionRecord),
    "resolve": _record(records.ResolveRecord),
    "pause": _record(records.PauseRecord),
    "jobCounts": _record(records.JobCountsRecord),
    "events": _record(records.EventsRecord),
    "queued": _record(records.QueuedRecord),
}
_OF_JOBS: dict[str, Reads] = {
    "state": _record(records.JobRecord),
    "claim": _record(records.ClaimRecord),
    "tries": _record(TriesRecord),
}


def indexes_of(space: Keyspace) -> dict[bytes, tuple[Callable[[bytes], Any], Reads]]:
    """The prefixes of keys that belong to no single table, with what reads their keys and their values."""

    def named(index: bytes, reads: Reads = _nothing) -> tuple[Callable[[bytes], Any], Reads]:
        return partial(space.name_in, index), reads

    return {
        space.active: (space.parse_active, _record(records.ActiveRecord)),
        space.waiting: (space.parse_waiting, _record(records.ActiveRecord)),
        space.paused: (space.paused_by, _nothing),
        space.tables: named(space.tables),
        space.backlog_tables: named(space.backlog_tables),
        space.agendas: named(space.agendas, _record(AgendaRecord)),
        space.views: named(space.views, _record(ViewRecord)),
        space.namespaces: named(space.namespaces, _record(NamespaceRecord)),
        space.tombstones: named(space.tombstones, _record(DropRecord)),
        space.coordinators: named(space.coordinators, _record(MemberRecord)),
        space.executors: named(space.executors, _record(MemberRecord)),
        space.alerts: named(space.alerts, _record(AlertRecord)),
        space.locations: (lambda key: unescape(key.decode()), _record(LocationRecord)),
    }


def why_unreadable(space: Keyspace, kv: KeyValue, *, key_only: bool = False) -> str:
    """Why this version cannot read a key or its value; empty if it can, or does not know what the key is."""
    try:
        for index, (parse, reads) in indexes_of(space).items():
            if kv.key.startswith(index):
                parse(kv.key)
                return "" if key_only else reads(kv) and ""
        if not kv.key.startswith(space.prefix + b"_"):
            reads = _below_table(space, kv.key)
            return "" if key_only else reads(kv) and ""
    except _ERRORS as error:
        return str(error)
    return ""


def _below_table(space: Keyspace, key: bytes) -> Reads:
    """What reads the value of a key below a table. Raises for a key that nothing can have."""
    table = space.table(space.table_of(key))
    word, *parts = [part.decode() for part in key[len(table.prefix) :].split(b".")]
    if word == "history":
        space.parse_history(key)
    elif word in ("request", "series", "index", "schedule"):
        space.name_in(table.prefix + word.encode() + b".", key)
    elif word == "requestExpiry" and not table.request_of_expiry(key):
        raise CorruptRecord(f"{text(key)} names no request")
    elif word == "unordered":
        return _record(AppliedRecord if parts[:1] == [DONE] else BatchRecord)
    if word in TABLE_WORDS:
        return _OF_TABLES.get(word, _nothing)
    if parts == ["nextInstanceId"]:
        return lambda kv: int(kv.value)
    at = next((at for at in (0, 1) if parts[at:] and parts[at].isdecimal()), None)
    if at is None or not parts[at + 1 :]:
        return _nothing  # a key that a newer version knows
    space.parse_root(b".".join(key.split(b".")[: -len(parts) + at + 1]))
    own, *rest = parts[at + 1 :]
    if not rest:
        return _OF_OPERATIONS.get(own, _nothing)
    unescape(own)
    return _OF_JOBS.get(rest[-1], _nothing) if own != "commit" else _nothing


async def unreadable_keys(
    client: EtcdClient, prefix: bytes, *, values: bool
) -> AsyncGenerator[tuple[bytes, str], None]:
    """The keys with this prefix that cannot be read, or have values that cannot, and why; in pages."""
    start, more = prefix, True
    while more:
        limit = VALUES if values else PAGE
        pages = client.pages(start, prefix_end(prefix), limit=limit, keys_only=not values)
        with suppress(Compacted):  # it goes on with what is there now
            async with aclosing(pages):
                async for page in pages:
                    for kv in page.kvs:
                        start = kv.key + b"\0"
                        if why := why_unreadable(client.keyspace, kv, key_only=not values):
                            yield kv.key, why
            more = False


async def check_indexes(client: EtcdClient, *, values: bool) -> list[Finding]:
    """What cannot be read of the keys that belong to no single table, and what no look at a table shows."""
    space, findings = client.keyspace, []
    for index in indexes_of(space):
        async with aclosing(unreadable_keys(client, index, values=values)) as keys:
            async for key, why in keys:
                if not _is_of_table(space, index, key):
                    findings.append(unreadable_record(key, why))
    return findings


def _is_of_table(space: Keyspace, index: bytes, key: bytes) -> bool:
    """Whether a look at a table reads this key of an index."""
    if index not in (space.active, space.paused, space.agendas):
        return False
    try:
        own = index + escape(space.table_in(index, key)).encode()
    except CorruptRecord:
        return False
    return key == own if index == space.agendas else key.startswith(own + b".")


async def remove_unreadable(client: EtcdClient, name: str, audit: Put | None) -> Reported | None:
    """IF a key is as read, and cannot be read THEN it is gone, with the audit entry.

    Idempotent. Returns what was wrong with it; ``None``: it does not exist (any more).

    Parameters
    ----------
    name:
        The key, as the doctor names it: bytes that are no text are written ``\\xff``.
    audit:
        ``None``: only look.

    Raises
    ------
    PreconditionFailed
        It can be read, this version does not know it, or it says what its table has.
    InvalidArgument
        It is no key of this installation.
    """
    space, literal = client.keyspace, name.encode()
    if not literal.startswith(space.prefix):
        raise InvalidArgument(
            f"{name} is no key of this installation",
            hint=f"its keys begin with {text(space.prefix)}; distop cluster doctor names those to remove",
            details={"field": "key"},
        )
    escaped = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), literal)

    async def decide(read: TxnResult) -> tuple[Txn | None, Finding | None]:
        kv = next((kv for kv in (read.single(0, literal), read.single(1, escaped)) if kv.exists), None)
        if kv is None:
            return None, None
        why = why_unreadable(space, kv)
        if not why:
            raise PreconditionFailed(
                f"{name} can be read, or is none that this version of distop knows: it stays",
                details={"field": "key"},
            )
        table, _, rest = kv.key[len(space.prefix) :].partition(b".")
        is_kept = rest.split(b".")[0] in _KEPT or rest.startswith(b"unordered.%s." % DONE.encode())
        if is_kept and not table.startswith(b"_"):
            raise PreconditionFailed(
                f"{name} says what its table has: without it rows would be lost, or doubled",
                hint="restore its value, such as from a backup of etcd",
                details={"field": "key"},
            )
        finding = unreadable_record(kv.key, why)
        return Txn((unchanged(kv),), (DeleteRange(kv.key), audit)) if audit is not None else None, finding

    finding, _ = await update(client, (Get(literal), Get(escaped)), decide, subject=name)
    if finding is None:
        return None
    return Reported(finding, fixed=audit is not None, outcome="removed" if audit is not None else "")
