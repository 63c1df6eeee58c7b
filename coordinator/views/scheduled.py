"""The part of schedules in why a table moves or does not: failing, skipped or paused ones."""

from __future__ import annotations

from functools import partial

from distop.commit.facts import PASSED_OVER
from distop.coordinator.views.operations import pause_of
from distop.coordinator.views.why import Mood, Reason, cut, held_by, many, span
from distop.errors import CorruptRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.named import named
from distop.metastore.etcd.txn import Get, KeyValue
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode
from distop.metastore.records.schedule import ScheduleRecord
from distop.metastore.tables.schedules import all_of, name_in
from distop.proto import distop_pb2 as pb

_PASSES = frozenset({"INCOMPATIBLE_OPERATION", "TABLE_PAUSED", "REQUEST_ID_REUSED"})
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
        kvs = [read.one(index, get.key) for index, get in enumerate(gets)]
        notes += filter(None, (_ended(kv, *ended[kv.key]) for kv in kvs))
    if not notes:
        return reason
    worst = max(notes, key=lambda note: note.mood)
    others = f"; {many(len(notes) - 1, 'other schedule')}: distop schedules ls {table.name}"
    # The mood of a moving table does not depend on its schedules.
    mood = worst.mood if reason.mood is Mood.IDLE else reason.mood
    return Reason(mood, f"{reason.sentence}; {worst.sentence}{others if notes[1:] else ''}")


def _note(table: str, name: str, record: ScheduleRecord, now: float) -> Reason | None:
    """What a schedule's record says if it started nothing at its time, or is paused."""
    if record.pause is not None:
        held = held_by(pause_of(record.pause, "schedule"), now)
        return Reason(Mood.IDLE, f"schedule {name} is paused{held}; distop schedules resume {table} {name}")
    skip = record.skip
    if skip is None or skip.at < record.last:
        return None
    mood = Mood.IDLE if skip.code in _PASSES else Mood.FAILED
    sentence = f"schedule {name} was skipped {span(now - skip.at)} ago: {skip.code}: {cut(skip.message)}"
    return Reason(mood, sentence)


def _ended(kv: KeyValue, name: str, operation: OperationId) -> Reason | None:
    """What the history of a schedule's last operation says, if it did not do what it is for."""
    if not kv.exists:
        return None
    record = decode(kv.value, HistoryRecord, kv.key)
    if record.outcome == "failed":
        return Reason(Mood.FAILED, f"schedule {name}: its last operation failed; distop show {operation}")
    if record.facts.get(PASSED_OVER) and "snapshotId" not in record.facts:
        why = "its last operation changed nothing, since it passed over files"
        return Reason(Mood.IDLE, f"schedule {name}: {why}; distop show {operation}")
    return None
