"""Schedules of tables in etcd: their records, and adding, pausing, resuming, removing one.

Each change is one transaction that compares the schedule and ``_schedules.<table>`` as read, writes the audit
entry, makes the leader look, and stores the request's id there. So a repeated request, after a lost reply or
through another coordinator, is recognised as done; the change and its audit entry happen once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec

from distop import errors
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import update
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import OperationOptions, PauseRecord
from distop.metastore.records.record import Record, decode, encode
from distop.metastore.records.table import TableRecord

MAX_SCHEDULES = 20
"""Most schedules of one table: a leader reads them together, and a rename moves them in one transaction."""

MAX_SCHEDULE_BYTES = 32 * 1024
"""Largest record of a schedule: all of them must fit into one transaction."""

MAX_DECIDED = 16
"""Requests whose repetitions are recognised."""

A = TypeVar("A")


class Skip(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """A tick at which nothing was started, and why."""

    code: str
    """Code of the error that the start would have raised, such as ``INCOMPATIBLE_OPERATION``."""
    message: str = ""
    at: float = 0.0
    """When it was skipped."""
    head: int = 0
    """Of a condition: what it was evaluated for, as in the schedule."""


class After(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The condition that a watermark, mostly of another table, has reached a value."""

    table: str
    source: str
    partition: str
    value: str


class ScheduleRecord(Record, kw_only=True):
    """``<table>.schedule.<name>``: an operation that is started at times, or on a condition.

    The transaction that starts it compares this record as it was read, and writes it with the tick decided.
    Layout 2 is for those that release 0.2.0 would start at other times, or otherwise: with a time zone,
    templates, or a condition on a watermark.
    """

    LAYOUT: ClassVar[int] = 2
    type: str
    object: str = ""
    argument: dict[str, Any] = msgspec.field(default_factory=dict)
    """The argument as the caller sent it: it is rendered and planned at each tick."""
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    cron: str = ""
    """Five fields; empty: it has a condition. Or both, if that is on a watermark."""
    timezone: str = ""
    """Of the cron expression, and of the times in templates; empty: UTC."""
    measure: str = ""
    """The measure, evaluated when the table's head has moved; the operation starts if it is more than:"""
    above: int = 0
    after: After | None = None
    """The condition on a watermark, if that is what it waits for."""
    added_by: str = ""
    added_at: float = 0.0
    request: str = ""
    """Id of the call that added it, to recognise a repetition."""
    pause: PauseRecord | None = None
    tick: float = 0.0
    """Ticks up to this time (seconds since the Unix epoch) are decided: the operation was started or skipped,
    or the time passed while the schedule was paused."""
    last: float = 0.0
    """The last one that was started or skipped; of a condition: when that was."""
    head: int = 0
    """Of a condition: what it is decided for, the revision of the head or a digest of the watermark."""
    started: int = 0
    """How many operations it has started."""
    operation: str = ""
    """The last of them."""
    skipped: int = 0
    """How many of its ticks were skipped."""
    skip: Skip | None = None
    """The last of them."""


class AgendaRecord(Record, kw_only=True):
    """``_schedules.<table>``: when a leader must look at the schedules of a table.

    Every change of a schedule also writes this record; so if it is unchanged, they are.
    """

    due: float | None = None
    """Seconds since the Unix epoch; 0: at once; ``None``: no time is due."""
    watches: bool = False
    """Whether to look also when the head moves."""
    head: int = 0
    """Its revision (0: none) at the last evaluation of the conditions,"""
    marks: dict[str, int] = msgspec.field(default_factory=dict)
    """The tables whose watermarks conditions wait for, with the revisions of these then (0: none),"""
    looked_at: float = 0.0
    """and when that was."""
    decided: list[str] = msgspec.field(default_factory=list)
    """The requests that changed schedules last, the newest at the end, to recognise repetitions."""


async def add_schedule(
    client: EtcdClient,
    keys: TableKeys,
    name: str,
    record: ScheduleRecord,
    *,
    check: Callable[[TableRecord], None],
    also: tuple[etcd.Op, ...] = (),
) -> ScheduleRecord:
    """Add a schedule to a table; ``record.request`` is the id of the call. Idempotent.

    Parameters
    ----------
    check:
        Raises if the table does not support the schedule.
    also:
        Written in the same transaction: the audit entry.

    Raises
    ------
    ScheduleExists
        There is one with this name.
    PreconditionFailed
        The table already has the most schedules allowed.
    TableNotFound, ArgumentTooLarge
        Nothing was written.
    """
    value = encode(record)
    if len(value) > MAX_SCHEDULE_BYTES:
        raise errors.ArgumentTooLarge(
            f"the schedule takes {len(value):,} bytes, at most {MAX_SCHEDULE_BYTES:,} are allowed",
            details={"field": "argument"},
        )
    prefix = keys.schedule_prefix
    others = etcd.Get(prefix, prefix_end(prefix), keys_only=True, limit=MAX_SCHEDULES)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, ScheduleRecord]:
        table, agenda_kv, kv = _kvs_of(keys, name, read)
        if kv.exists:
            existing = decode(kv.value, ScheduleRecord, kv.key)
            if existing.request == record.request:
                return None, existing
            raise errors.ScheduleExists(
                f"table {keys.name!r} already has a schedule {name!r}",
                details={"table": keys.name, "schedule": name},
            )
        if record.request in agenda_of(agenda_kv).decided:
            return None, record  # added, and removed since
        check(decode(table.value, TableRecord, table.key))
        if len(read.got(3)) >= MAX_SCHEDULES:
            raise errors.PreconditionFailed(
                f"table {keys.name!r} has {MAX_SCHEDULES} schedules, the limit",
                hint=f"remove one first: distop schedule remove {keys.name} NAME",
                details={"table": keys.name},
            )
        ops = (etcd.Put(kv.key, value), looked_at_once(agenda_kv, record.request), *also)
        reached("schedule.set.before")
        return etcd.Txn((etcd.unchanged(table), etcd.unchanged(agenda_kv), etcd.unchanged(kv)), ops), record

    return await _update(client, keys, name, decide, others)


async def change_schedule(
    client: EtcdClient,
    keys: TableKeys,
    name: str,
    change: Callable[[ScheduleRecord], ScheduleRecord | None],
    *,
    request: str,
    also: tuple[etcd.Op, ...] = (),
) -> ScheduleRecord:
    """Replace a schedule by what ``change`` makes of it; ``None``: nothing changes.
    Idempotent.

    Raises :class:`~distop.errors.ScheduleNotFound`, :class:`~distop.errors.TableNotFound`.
    """

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, ScheduleRecord]:
        table, agenda_kv, kv = _kvs_of(keys, name, read)
        existing = decode(_existing(keys, name, kv).value, ScheduleRecord, kv.key)
        wanted = None if request in agenda_of(agenda_kv).decided else change(existing)
        if wanted is None:
            return None, existing
        ops = (etcd.Put(kv.key, encode(wanted)), looked_at_once(agenda_kv, request), *also)
        reached("schedule.set.before")
        return etcd.Txn((etcd.unchanged(table), etcd.unchanged(agenda_kv), etcd.unchanged(kv)), ops), wanted

    return await _update(client, keys, name, decide)


async def remove_schedule(
    client: EtcdClient, keys: TableKeys, name: str, *, request: str, also: tuple[etcd.Op, ...] = ()
) -> ScheduleRecord | None:
    """Remove a schedule; operations that it started go on. Returns the removed record; ``None``: it could not
    be read, or this very call had removed it before.

    Raises :class:`~distop.errors.ScheduleNotFound`, :class:`~distop.errors.TableNotFound`.
    """

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, ScheduleRecord | None]:
        table, agenda_kv, kv = _kvs_of(keys, name, read)
        if request in agenda_of(agenda_kv).decided:
            return None, None
        existing = _readable(_existing(keys, name, kv))
        ops = (etcd.DeleteRange(kv.key), looked_at_once(agenda_kv, request), *also)
        reached("schedule.set.before")
        removed = None if isinstance(existing, errors.CorruptRecord) else existing
        return etcd.Txn((etcd.unchanged(table), etcd.unchanged(agenda_kv), etcd.unchanged(kv)), ops), removed

    return await _update(client, keys, name, decide)


async def read_schedule(client: EtcdClient, keys: TableKeys, name: str) -> ScheduleRecord:
    """One schedule.

    Raises :class:`~distop.errors.ScheduleNotFound`, :class:`~distop.errors.TableNotFound`,
    :class:`~distop.errors.CorruptRecord`.
    """
    kv = _kvs_of(keys, name, await client.read_at_once(_reads(keys, name)))[2]
    return decode(_existing(keys, name, kv).value, ScheduleRecord, kv.key)


async def read_schedules(
    client: EtcdClient, keys: TableKeys
) -> tuple[dict[str, ScheduleRecord | errors.CorruptRecord], int]:
    """The schedules of a table by name, in order, and the revision of the read. An unreadable one, damaged or
    of a newer version, does not hide the others.

    Raises :class:`~distop.errors.TableNotFound`.
    """
    read = await client.read_at_once((etcd.Get(keys.table), all_of(keys)))
    if not read.got(0):
        raise errors.TableNotFound.named(keys.name)
    return {
        name: _readable(kv) for name, kv in etcd.named(read.got(1), partial(name_in, keys))
    }, read.revision


def _readable(kv: etcd.KeyValue) -> ScheduleRecord | errors.CorruptRecord:
    try:
        return decode(kv.value, ScheduleRecord, kv.key)
    except errors.CorruptRecord as error:
        return error


def all_of(keys: TableKeys) -> etcd.Get:
    """The schedules of a table: few, and each of them small."""
    return etcd.Get(keys.schedule_prefix, prefix_end(keys.schedule_prefix), limit=MAX_SCHEDULES)


def name_in(keys: TableKeys, key: bytes) -> str:
    """The name of the schedule with this key. Raises :class:`~distop.errors.CorruptRecord` if none has it."""
    return keys.keyspace.name_in(keys.schedule_prefix, key)


def agenda_of(kv: etcd.KeyValue) -> AgendaRecord:
    """The record at ``_schedules.<table>``; of a missing key: nothing to look at."""
    return decode(kv.value, AgendaRecord, kv.key) if kv.exists else AgendaRecord()


def looked_at_once(agenda_kv: etcd.KeyValue, request: str = "", key: bytes = b"") -> etcd.Put:
    """Makes the leader look at the schedules; ``key``: under another name of the table."""
    agenda = agenda_of(agenda_kv)
    decided = [*agenda.decided, request][-MAX_DECIDED:] if request else agenda.decided
    # The stored head state may be another table's by now, or of schedules that are gone.
    record = msgspec.structs.replace(agenda, due=0.0, watches=False, marks={}, decided=decided)
    return etcd.Put(key or agenda_kv.key, encode(record))


async def _update(
    client: EtcdClient,
    keys: TableKeys,
    name: str,
    decide: Callable[[etcd.TxnResult], Awaitable[tuple[etcd.Txn | None, A]]],
    *more: etcd.Get,
) -> A:
    reads = (*_reads(keys, name), *more)
    subject, replied = f"schedule {name!r} of table {keys.name!r}", lambda: reached("schedule.set.after")
    return (await update(client, reads, decide, subject=subject, replied=replied))[0]


def _reads(keys: TableKeys, name: str) -> tuple[etcd.Get, etcd.Get, etcd.Get]:
    return etcd.Get(keys.table), etcd.Get(keys.agenda), etcd.Get(keys.schedule(name))


def _kvs_of(
    keys: TableKeys, name: str, read: etcd.TxnResult
) -> tuple[etcd.KeyValue, etcd.KeyValue, etcd.KeyValue]:
    table = read.single(0, keys.table)
    if not table.exists:
        raise errors.TableNotFound.named(keys.name)
    return table, read.single(1, keys.agenda), read.single(2, keys.schedule(name))


def _existing(keys: TableKeys, name: str, kv: etcd.KeyValue) -> etcd.KeyValue:
    if not kv.exists:
        raise errors.ScheduleNotFound(
            f"table {keys.name!r} has no schedule {name!r}",
            hint=f"list its schedules: distop schedule list {keys.name}",
            details={"table": keys.name, "schedule": name},
        )
    return kv
