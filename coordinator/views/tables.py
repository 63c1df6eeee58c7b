"""A table in the form of the API, and why it moves or does not, from its keys and its schedules."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from distop.commit.contract import PASSED_OVER
from distop.coordinator.views.messages import member_message, ordering_message, pause_of
from distop.coordinator.views.operations import from_ended, read_operation, unreadable
from distop.coordinator.views.why import Mood, Reason, cut, held_by, many, span, why
from distop.errors import (
    CorruptRecord,
    IncompatibleOperation,
    OperationNotFound,
    RunReused,
    TableNotFound,
    TablePaused,
    error_class,
)
from distop.lake.storage.storage import without_secrets
from distop.metastore.backlog.batches import BatchRecord, ordering_of
from distop.metastore.etcd.client import EtcdClient, beginning, first_of, was_enough
from distop.metastore.etcd.txn import Get, KeyValue, Txn, TxnResult, named
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import HistoryRecord, PauseRecord
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord, running_operations
from distop.metastore.tables.schedules import ScheduleRecord, all_of, name_in
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json
from distop.proto.messages import message_of

EXPLAINED = 3
"""Running operations that are read to explain a table; the others are counted."""


async def read_table_message(client: EtcdClient, name: str) -> pb.Table:
    """The present table. Raises :class:`~distop.errors.TableNotFound`."""
    keys = client.keyspace.table(name)
    gets = _gets(client, keys)
    read = await client.txn(Txn(then=gets))
    message = _message(keys, await _read(client, gets, [keys], read), read.revision)
    if message is None:
        raise TableNotFound.named(name)
    return message


async def read_table_messages(client: EtcdClient, names: Sequence[str], revision: int) -> list[pb.Table]:
    """Those of the tables that exist, at ``revision``. One that cannot be read says why."""
    tables = [client.keyspace.table(name) for name in names]
    gets = [get for keys in tables for get in _gets(client, keys)]
    kvs = await _read(client, gets, tables, await client.read_many(gets, revision=revision))
    each = len(gets) // max(1, len(tables))
    parts = (kvs[first : first + each] for first in range(0, len(kvs), each or 1))
    messages = (_listed(keys, part, revision) for keys, part in zip(tables, parts, strict=True))
    return [message for message in messages if message is not None]


def _listed(keys: TableKeys, kvs: Sequence[KeyValue], revision: int) -> pb.Table | None:
    try:
        return _message(keys, kvs, revision)
    except CorruptRecord as error:
        why = pb.OperationError(code=error.code, message=error.message)
        return pb.Table(name=keys.name, error=why, revision=revision)


def _gets(client: EtcdClient, keys: TableKeys) -> tuple[Get, ...]:
    """The parts of a message: some keys, and the next batch."""
    wanted = (keys.table, keys.head, keys.run_ops, keys.coordinator, keys.pause, keys.ordering)
    waiting = beginning(client, keys.backlog_prefix, prefix_end(keys.backlog_prefix), 1)
    return *(Get(key) for key in wanted), waiting


async def _read(
    client: EtcdClient, gets: Sequence[Get], tables: Sequence[TableKeys], read: TxnResult
) -> list[KeyValue]:
    """The parts for some tables; the next batch is read separately where the first read lacks it."""
    kvs = [read.single(index, get.key) for index, get in enumerate(gets)]
    for number, keys in enumerate(tables, 1):
        at = number * len(gets) // len(tables) - 1
        end = prefix_end(keys.backlog_prefix)
        if not was_enough(gets[at], end, len(read.got(at)), read.counts[at]):
            page = await first_of(client, keys.backlog_prefix, end, limit=1, revision=read.revision)
            kvs[at] = page.kvs[0] if page.kvs else KeyValue.missing(keys.backlog_prefix)
    return kvs


def _message(keys: TableKeys, kvs: Sequence[KeyValue], revision: int) -> pb.Table | None:
    name = keys.name
    table, head, run_ops, leader, pause, ordering, first = kvs
    if not table.exists:
        return None
    record = decode(table.value, TableRecord, table.key)
    message = message_of(
        pb.Table,
        record,
        name=name,
        options_json=to_json(without_secrets(record.options), "options"),
        revision=revision,
    )
    if head.exists:
        published = decode(head.value, Head, head.key)
        message.metadata_location = published.metadata_location
        message.snapshot_id = published.snapshot_id or 0
    running = sorted(running_operations(name, run_ops.value), key=lambda operation: operation.type)
    message.running.extend(map(str, running))
    if leader.exists:
        message.leader = decode(leader.value, LeaderRecord, leader.key).member
    if pause.exists:
        message.pause.CopyFrom(pause_of(decode(pause.value, PauseRecord, pause.key), "table"))
    if ordering.exists or first.exists:
        message.ordering.CopyFrom(ordering_message(name, ordering_of(ordering), revision))
    if first.exists:
        message.next_batch = first.key[len(keys.backlog_prefix) :].decode(errors="backslashreplace")
        error = pb.OperationError()
        try:
            batch = decode(first.value, BatchRecord, first.key)
        except CorruptRecord as corrupt:
            error = pb.OperationError(code=corrupt.code, message=corrupt.message)
        else:
            message.next_batch_attempts = batch.attempts
            error = pb.OperationError(code=batch.code, message=batch.error)
        if error.code:
            message.next_batch_error.CopyFrom(error)
    return message


async def explain(client: EtcdClient, table: pb.Table, *, now: float) -> Reason:
    """The explanation for a table that has just been read."""
    running = []
    for name in table.running[:EXPLAINED]:
        operation = OperationId.parse(name)
        try:
            message = await read_operation(client, operation)
        except OperationNotFound:
            continue  # it has ended since
        except CorruptRecord as error:
            message = unreadable(operation, error, table.revision)
        if not message.HasField("finished_at"):
            running.append(message)
    reason = why(
        running=running,
        leader=table.leader,
        members=await read_member_messages(client),
        last=await _last(client, table.name),
        now=now,
        also_running=max(0, len(table.running) - EXPLAINED),
        table=table,
    )
    return await with_schedules(client, table, reason, now=now)


async def read_member_messages(client: EtcdClient) -> list[pb.Member]:
    """All live members. Of one that cannot be read the id is known; the doctor says why."""
    keyspace, members = client.keyspace, []
    for prefix, role in ((keyspace.coordinators, "coordinator"), (keyspace.executors, "executor")):
        for name, kv in named((await client.scan(prefix)).kvs, partial(keyspace.name_in, prefix)):
            try:
                record = decode(kv.value, MemberRecord, kv.key)
            except CorruptRecord:
                record = MemberRecord(id=name)
            members.append(member_message(record, role))
    return members


async def _last(client: EtcdClient, table: str) -> pb.Operation | None:
    """The operation that finished last."""
    prefix = client.keyspace.table(table).history_prefix
    page = await client.get_range(prefix, prefix_end(prefix), limit=1, newest_first=True)
    for operation, kv in named(page.kvs, client.keyspace.parse_history):
        return from_ended(operation, kv)
    return None


_PASSES = frozenset({IncompatibleOperation, TablePaused, RunReused})
"""Reasons for skipping a tick that need no action."""


async def with_schedules(client: EtcdClient, table: pb.Table, reason: Reason, *, now: float) -> Reason:
    """The answer for a table, extended by what its schedules say.

    ``now``: seconds since the Unix epoch. Raises the errors of reads from etcd.
    """
    if table.HasField("pause"):
        return reason  # they wait for the same thing
    keys = client.keyspace.table(table.name)
    notes, ended = [], {}
    for name, kv in named((await client.read_at_once([all_of(keys)])).got(0), partial(name_in, keys)):
        try:
            record = decode(kv.value, ScheduleRecord, kv.key)
        except CorruptRecord as error:
            notes.append(Reason(Mood.FAILED, f"schedule {name} cannot be read: {cut(error.message)}"))
            continue
        operation = OperationId.parse(record.operation) if record.operation else None
        if (note := _note(table.name, name, record, now)) is not None:
            notes.append(note)
        elif operation is not None and operation.table == table.name:  # the table was not renamed since
            ended[keys.history(operation)] = name, operation
    if ended:
        gets = [Get(key) for key in ended]
        read = await client.read_at_once(gets)
        kvs = [read.single(index, get.key) for index, get in enumerate(gets)]
        notes += filter(None, (_ended(kv, *ended[kv.key]) for kv in kvs))
    if not notes:
        return reason
    worst = max(notes, key=lambda note: note.mood)
    others = f"; {many(len(notes) - 1, 'other schedule')}: distop schedule list {table.name}"
    # The mood of a moving table does not depend on its schedules.
    mood = worst.mood if reason.mood is Mood.IDLE else reason.mood
    return Reason(mood, f"{reason.sentence}; {worst.sentence}{others if notes[1:] else ''}")


def _note(table: str, name: str, record: ScheduleRecord, now: float) -> Reason | None:
    """What a schedule's record says if it started nothing at its time, or is paused."""
    if record.pause is not None:
        held = held_by(pause_of(record.pause, "schedule"), now)
        return Reason(Mood.IDLE, f"schedule {name} is paused{held}; distop schedule resume {table} {name}")
    skip = record.skip
    if skip is None or skip.at < record.last:
        return None
    mood = Mood.IDLE if error_class(skip.code) in _PASSES else Mood.FAILED
    sentence = f"schedule {name} was skipped {span(now - skip.at)} ago: {skip.code}: {cut(skip.message)}"
    return Reason(mood, sentence)


def _ended(kv: KeyValue, name: str, operation: OperationId) -> Reason | None:
    """What the history of a schedule's last operation says, if it did not do what it is for."""
    if not kv.exists:
        return None
    record = decode(kv.value, HistoryRecord, kv.key)
    if record.outcome == "failed":
        failed = f"schedule {name}: its last operation failed; distop operation show {operation}"
        return Reason(Mood.FAILED, failed)
    if record.facts.get(PASSED_OVER) and "snapshotId" not in record.facts:
        why = "its last operation changed nothing, since it passed over files"
        return Reason(Mood.IDLE, f"schedule {name}: {why}; distop operation show {operation}")
    return None
