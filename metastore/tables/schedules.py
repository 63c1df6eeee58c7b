"""Changes of a table's schedules: adding, pausing, resuming, removing.

Each is one transaction that compares the schedule and ``_schedules.<table>`` as read, writes the audit entry,
makes the leader look, and stores the request's id there. So a repeated request, after a lost reply or through
another coordinator, is recognised as done; the change and its audit entry happen once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from distop.errors import (
    ArgumentTooLarge,
    CorruptRecord,
    PreconditionFailed,
    ScheduleExists,
    ScheduleNotFound,
    TableNotFound,
)
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Op, Put, Txn, TxnResult, named, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.schedule import (
    MAX_DECIDED,
    MAX_SCHEDULE_BYTES,
    MAX_SCHEDULES,
    AgendaRecord,
    ScheduleRecord,
)
from distop.metastore.records.table import TableRecord

A = TypeVar("A")


async def add_schedule(
    client: EtcdClient,
    keys: TableKeys,
    name: str,
    record: ScheduleRecord,
    *,
    check: Callable[[TableRecord], None],
    also: tuple[Op, ...] = (),
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
        raise ArgumentTooLarge(
            f"the schedule takes {len(value):,} bytes, at most {MAX_SCHEDULE_BYTES:,} are allowed",
            details={"field": "argument"},
        )
    prefix = keys.schedule_prefix
    others = Get(prefix, prefix_end(prefix), keys_only=True, limit=MAX_SCHEDULES)

    async def decide(read: TxnResult) -> tuple[Txn | None, ScheduleRecord]:
        table, agenda_kv, kv = _found(keys, name, read)
        if kv.exists:
            standing = decode(kv.value, ScheduleRecord, kv.key)
            if standing.request == record.request:
                return None, standing
            raise ScheduleExists(
                f"table {keys.name!r} already has a schedule {name!r}",
                details={"table": keys.name, "schedule": name},
            )
        if record.request in agenda_of(agenda_kv).decided:
            return None, record  # added, and removed since
        check(decode(table.value, TableRecord, table.key))
        if len(read.got(3)) >= MAX_SCHEDULES:
            raise PreconditionFailed(
                f"table {keys.name!r} has {MAX_SCHEDULES} schedules, the limit",
                hint=f"remove one first: distop schedules rm {keys.name} NAME",
                details={"table": keys.name},
            )
        ops = (Put(kv.key, value), looked_at_once(agenda_kv, record.request), *also)
        reached("schedule.set.before")
        return Txn((unchanged(table), unchanged(agenda_kv), unchanged(kv)), ops), record

    return await _update(client, keys, name, decide, others)


async def change_schedule(
    client: EtcdClient,
    keys: TableKeys,
    name: str,
    change: Callable[[ScheduleRecord], ScheduleRecord | None],
    *,
    request: str,
    also: tuple[Op, ...] = (),
) -> ScheduleRecord:
    """Replace a schedule by what ``change`` makes of it; ``None``: nothing changes.
    Idempotent.

    Raises :class:`~distop.errors.ScheduleNotFound`, :class:`~distop.errors.TableNotFound`.
    """

    async def decide(read: TxnResult) -> tuple[Txn | None, ScheduleRecord]:
        table, agenda_kv, kv = _found(keys, name, read)
        standing = decode(_there(keys, name, kv).value, ScheduleRecord, kv.key)
        wanted = None if request in agenda_of(agenda_kv).decided else change(standing)
        if wanted is None:
            return None, standing
        ops = (Put(kv.key, encode(wanted)), looked_at_once(agenda_kv, request), *also)
        reached("schedule.set.before")
        return Txn((unchanged(table), unchanged(agenda_kv), unchanged(kv)), ops), wanted

    return await _update(client, keys, name, decide)


async def remove_schedule(
    client: EtcdClient, keys: TableKeys, name: str, *, request: str, also: tuple[Op, ...] = ()
) -> ScheduleRecord | None:
    """Remove a schedule; operations that it started go on. Returns the removed record; ``None``: it could not
    be read, or this very call had removed it before.

    Raises :class:`~distop.errors.ScheduleNotFound`, :class:`~distop.errors.TableNotFound`.
    """

    async def decide(read: TxnResult) -> tuple[Txn | None, ScheduleRecord | None]:
        table, agenda_kv, kv = _found(keys, name, read)
        if request in agenda_of(agenda_kv).decided:
            return None, None
        standing = _readable(_there(keys, name, kv))
        ops = (Delete(kv.key), looked_at_once(agenda_kv, request), *also)
        reached("schedule.set.before")
        removed = None if isinstance(standing, CorruptRecord) else standing
        return Txn((unchanged(table), unchanged(agenda_kv), unchanged(kv)), ops), removed

    return await _update(client, keys, name, decide)


async def read_schedule(client: EtcdClient, keys: TableKeys, name: str) -> ScheduleRecord:
    """One schedule.

    Raises :class:`~distop.errors.ScheduleNotFound`, :class:`~distop.errors.TableNotFound`,
    :class:`~distop.errors.CorruptRecord`.
    """
    kv = _found(keys, name, await client.read_at_once(_reads(keys, name)))[2]
    return decode(_there(keys, name, kv).value, ScheduleRecord, kv.key)


async def read_schedules(
    client: EtcdClient, keys: TableKeys
) -> tuple[dict[str, ScheduleRecord | CorruptRecord], int]:
    """The schedules of a table by name, in order, and the revision of the read. An unreadable one, damaged or
    of a newer version, does not hide the others.

    Raises :class:`~distop.errors.TableNotFound`.
    """
    read = await client.read_at_once((Get(keys.table), all_of(keys)))
    if not read.got(0):
        raise _no_table(keys)
    return {name: _readable(kv) for name, kv in named(read.got(1), partial(name_in, keys))}, read.revision


def _readable(kv: KeyValue) -> ScheduleRecord | CorruptRecord:
    try:
        return decode(kv.value, ScheduleRecord, kv.key)
    except CorruptRecord as error:
        return error


def all_of(keys: TableKeys) -> Get:
    """The schedules of a table: few, and each of them small."""
    return Get(keys.schedule_prefix, prefix_end(keys.schedule_prefix), limit=MAX_SCHEDULES)


def name_in(keys: TableKeys, key: bytes) -> str:
    """The name of the schedule with this key. Raises :class:`~distop.errors.CorruptRecord` if none has it."""
    return keys.keyspace.name_in(keys.schedule_prefix, key)


def agenda_of(kv: KeyValue) -> AgendaRecord:
    """The record at ``_schedules.<table>``; of a missing key: nothing to look at."""
    return decode(kv.value, AgendaRecord, kv.key) if kv.exists else AgendaRecord()


def looked_at_once(agenda_kv: KeyValue, request: str = "", key: bytes = b"") -> Put:
    """Makes the leader look at the schedules; ``key``: under another name of the table."""
    agenda = agenda_of(agenda_kv)
    decided = [*agenda.decided, request][-MAX_DECIDED:] if request else agenda.decided
    # The stored head state may be another table's by now, or of schedules that are gone.
    record = msgspec.structs.replace(agenda, due=0.0, watches=False, marks={}, decided=decided)
    return Put(key or agenda_kv.key, encode(record))


async def _update(
    client: EtcdClient,
    keys: TableKeys,
    name: str,
    decide: Callable[[TxnResult], Awaitable[tuple[Txn | None, A]]],
    *more: Get,
) -> A:
    reads = (*_reads(keys, name), *more)
    what, replied = f"schedule {name!r} of table {keys.name!r}", lambda: reached("schedule.set.after")
    return (await update(client, reads, decide, what=what, replied=replied))[0]


def _reads(keys: TableKeys, name: str) -> tuple[Get, Get, Get]:
    return Get(keys.table), Get(keys.agenda), Get(keys.schedule(name))


def _found(keys: TableKeys, name: str, read: TxnResult) -> tuple[KeyValue, KeyValue, KeyValue]:
    table = read.one(0, keys.table)
    if not table.exists:
        raise _no_table(keys)
    return table, read.one(1, keys.agenda), read.one(2, keys.schedule(name))


def _there(keys: TableKeys, name: str, kv: KeyValue) -> KeyValue:
    if not kv.exists:
        raise ScheduleNotFound(
            f"table {keys.name!r} has no schedule {name!r}",
            hint=f"list its schedules: distop schedules ls {keys.name}",
            details={"table": keys.name, "schedule": name},
        )
    return kv


def _no_table(keys: TableKeys) -> TableNotFound:
    return TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
