"""Operations in the form of the API, from their keys."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from distop.coordinator.state.caches import LocalLeaders
from distop.coordinator.state.grid import GridCounts
from distop.coordinator.state.tracker import Tracked, event
from distop.coordinator.views.messages import error_of, pause_of
from distop.errors import CorruptRecord, OperationNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, Txn
from distop.metastore.operations.retention import entry_of
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    RUNNING,
    HistoryRecord,
    OperationArg,
    PauseRecord,
    RequestRecord,
    SeriesEntry,
    SeriesNote,
)
from distop.metastore.records.record import decode
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json
from distop.proto.messages import message_of

_LIVE = {RUNNING: pb.RUNNING, COMMITTING: pb.COMMITTING, ABORTING: pb.ABORTING}
_ENDED = {"success": pb.SUCCEEDED, "failed": pb.FAILED, "cancelled": pb.CANCELLED}
ENDED_STATES = frozenset(_ENDED.values())


def _named(operation: OperationId, record: object = None, **fields: Any) -> pb.Operation:
    return message_of(
        pb.Operation,
        record,
        name=str(operation),
        table=operation.table,
        type=operation.type,
        object=operation.object,
        instance=operation.instance,
        **fields,
    )


def add_live_events(message: pb.Operation, tracked: Tracked) -> None:
    """What has happened to an operation so far."""
    arg, happened = tracked.arg, tracked.all_events()
    start = event(arg.started_at, "started", arg.started_by)
    message.events.extend(message_of(pb.Event, entry) for entry in (start, *happened.events))
    message.events_left_out = happened.left_out
    message.job_outcomes = tracked.jobs.outcomes()


def add_ended_events(message: pb.Operation, record: HistoryRecord) -> None:
    """What has happened to an operation, from its start to its end."""
    why = f": {record.error_code}: {record.error}" if record.error_code else ""
    start = event(record.started_at, "started", record.started_by)
    end = event(record.finished_at, "finished", about=record.outcome + why)
    message.events.extend(message_of(pb.Event, entry) for entry in (start, *record.events, end))
    message.events_left_out = record.events_left_out
    message.job_outcomes = record.job_outcomes


def from_history(operation: OperationId, record: HistoryRecord, revision: int) -> pb.Operation:
    """A finished operation."""
    error = pb.OperationError(code=record.error_code, message=record.error) if record.error_code else None
    return _named(
        operation,
        record,
        state=_ENDED.get(record.outcome, pb.OPERATION_STATE_UNSPECIFIED),
        jobs=pb.JobCounts(total=record.partition_count, succeeded=record.succeeded, failed=record.failed),
        facts_json=to_json(record.facts | _series(record.series), "facts"),
        argument_json=record.argument,
        cancel_requested=record.outcome == "cancelled",
        error=error,
        events_left_out=0,  # only a reply with events has it, and the next one
        job_outcomes="",
        revision=revision,
    )


def _series(note: SeriesNote | None) -> dict[str, Any]:
    if note is None:
        return {}
    last = [
        {"operation": sample.operation, "finishedAt": utc(sample.finished_at), "rows": sample.rows}
        for sample in reversed(note.last)
    ]
    series = {"name": note.name, "operations": note.count, "rows": note.rows, "since": utc(note.since)}
    return {"series": series | {"last": last}}


def utc(seconds: float) -> str:
    """Seconds since the epoch as text."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def from_series(operation: OperationId, entry: SeriesEntry, revision: int) -> pb.Operation:
    """An operation that succeeded earlier, from the line of its series."""
    return _named(
        operation,
        entry,
        state=pb.SUCCEEDED,
        facts_json=to_json({"rows": entry.rows}, "facts"),
        revision=revision,
    )


def from_request(request: RequestRecord, run: str, revision: int) -> pb.Operation:
    """The operation of a request, when the history no longer has it."""
    operation = OperationId.parse(request.operation)
    return _named(
        operation,
        state=_ENDED.get(request.outcome, pb.OPERATION_STATE_UNSPECIFIED),
        run=run,
        started_at=request.at,
        revision=revision,
    )


def from_tracked(tracked: Tracked, revision: int) -> pb.Operation:
    """A live operation."""
    arg = tracked.arg
    message = _named(
        arg.id,
        state=_LIVE.get(tracked.state, pb.OPERATION_STATE_UNSPECIFIED),
        jobs=pb.JobCounts(
            total=tracked.total,
            succeeded=tracked.done,
            failed=tracked.jobs.failed,
            counting=tracked.counting,
        ),
        run=arg.run,
        started_by=arg.started_by,
        started_at=arg.started_at,
        last_job_at=tracked.jobs.last_job_at,
        runner=tracked.runner,
        follows=arg.follows,
        argument_json=arg.asked,
        batches=arg.applies,
        retry_of=arg.retry_of,
        max_failed_partitions=arg.options.max_failed_partitions,
        cancel_requested=tracked.cancel_requested,
        revision=revision,
    )
    completion = tracked.completion
    if completion.attempts or completion.skipped or completion.running or tracked.parked:
        message.completion.CopyFrom(
            message_of(
                pb.Completion,
                completion,
                error=error_of(completion.error_code, completion.error),
                parked=tracked.parked,
                skipped=len(completion.skipped),
                running_since=completion.running_since if completion.running else None,
            )
        )
    if tracked.error is not None:
        message.error.CopyFrom(pb.OperationError(code=tracked.error.code, message=tracked.error.message))
    elif tracked.unreadable:
        reason = next(iter(tracked.unreadable.values()))
        message.error.CopyFrom(pb.OperationError(code=CorruptRecord.code, message=reason))
    if tracked.pause is not None:
        message.pause.CopyFrom(pause_of(tracked.pause, "operation"))
    elif tracked.table_pause is not None:
        message.pause.CopyFrom(pause_of(tracked.table_pause, "table"))
    return message


async def read_operation(
    client: EtcdClient, operation: OperationId, leads: LocalLeaders | None = None, *, events: bool = False
) -> pb.Operation:
    """An operation, live or finished. ``leads``: what is led here, see :func:`read_live`. ``events``: with
    what has happened to it.

    Raises :class:`~distop.errors.OperationNotFound`.
    """
    live = await read_live(client, operation, leads, events=events)
    message = live if live is not None else await read_finished(client, operation, events=events)
    if message is None:
        raise not_found(operation)
    return message


async def read_live(
    client: EtcdClient,
    operation: OperationId,
    leads: LocalLeaders | None = None,
    *,
    revision: int = 0,
    events: bool = False,
) -> pb.Operation | None:
    """A live operation at ``revision`` (0: now); ``None`` if it is over, or never existed.

    If it has very many jobs only its leader counts them: the counts are the leader's, if it is here, or as
    last published, up to about a second ago. The message's revision is then that of the counts.
    """
    table = client.keyspace.table(operation.table)
    keys = table.operation(operation)
    led = leads.get(keys.root) if leads is not None and not revision else None
    many = led.has_many if led is not None else await has_many(client, keys, revision)
    if many is None:
        return None
    if many:
        counts = GridCounts()
        pause, (own, _) = await asyncio.gather(
            read_pause(client, table, revision=revision), read_own_keys(client, keys, revision)
        )
        tracked = Tracked.of(keys, own, counts)
        if led is not None and tracked is not None and led.run.token == tracked.run.token:
            counts.update(led.counts())
        revision = revision or counts.revision or max((kv.create_revision for kv in own[:1]), default=0)
    else:
        pause, listing = await asyncio.gather(
            read_pause(client, table, revision=revision), client.scan(keys.prefix, revision=revision)
        )
        tracked, revision = Tracked.of(keys, listing.kvs), listing.revision
    if tracked is None:
        return None
    tracked.table_pause = pause
    message = from_tracked(tracked, revision)
    if events:
        add_live_events(message, tracked)
    return message


async def has_many(client: EtcdClient, keys: OperationKeys, revision: int = 0) -> bool | None:
    """Whether an operation has very many jobs; ``None`` if it does not exist."""
    arg_kv = await client.get(keys.arg, revision=revision)
    if not arg_kv.exists:
        return None
    tracked = Tracked(keys, decode(arg_kv.value, OperationArg, arg_kv.key), counted=GridCounts())
    if tracked.arg.dynamic and (run := await client.get(keys.run, revision=revision)).exists:
        tracked.apply_put(run)
    return tracked.has_many


async def read_own_keys(
    client: EtcdClient, keys: OperationKeys, revision: int = 0
) -> tuple[list[KeyValue], int]:
    """The keys of an operation itself, without its jobs, at one revision (0: now); and the revision.

    ``.arg`` comes first, and ``.run`` before the counts that belong to it.
    """
    wishes = (keys.cancel, keys.error, keys.pause, keys.completion, keys.resolve)
    happened = (keys.events, keys.queued, keys.commit)
    names = (keys.arg, keys.state, keys.runner, keys.run, keys.job_counts, *wishes, *happened)
    if revision:
        kvs = await asyncio.gather(*(client.get(name, revision=revision) for name in names))
    else:
        result = await client.txn(Txn(then=tuple(Get(name) for name in names)))
        kvs, revision = [result.single(index, name) for index, name in enumerate(names)], result.revision
    return [kv for kv in kvs if kv.exists], revision


def not_found(operation: OperationId) -> OperationNotFound:
    """Neither its keys nor its history exist."""
    return OperationNotFound(f"operation {operation} does not exist", details={"operation": str(operation)})


async def read_pause(client: EtcdClient, keys: TableKeys, *, revision: int = 0) -> PauseRecord | None:
    """Who paused the table, if it is paused."""
    kv = await client.get(keys.pause, revision=revision)
    return decode(kv.value, PauseRecord, kv.key) if kv.exists else None


async def present_pause(client: EtcdClient, keys: TableKeys) -> tuple[PauseRecord | None, int]:
    """Who paused the table, if it is paused, and the revision of the read.

    Raises :class:`~distop.errors.Unavailable` when etcd does not answer: a heartbeat that reported no
    change would be a guess (U4).
    """
    page = await client.get_range(keys.pause, b"")
    return decode(page.kvs[0].value, PauseRecord, keys.pause) if page.kvs else None, page.revision


async def read_finished(
    client: EtcdClient, operation: OperationId, *, events: bool = False
) -> pb.Operation | None:
    """The end of an operation; ``None`` if the history does not have it."""
    history = await client.get(client.keyspace.table(operation.table).history(operation))
    if history.exists:
        message = from_record(operation, history)
        if events:
            add_ended_events(message, decode(history.value, HistoryRecord, history.key))
        return message
    entry = await entry_of(client, client.keyspace.table(operation.table), operation)
    return from_series(operation, *entry) if entry is not None else None


def from_record(operation: OperationId, history: KeyValue, revision: int = 0) -> pb.Operation:
    """The end of an operation, from its record."""
    record = decode(history.value, HistoryRecord, history.key)
    return from_history(operation, record, revision or history.mod_revision)


def from_ended(operation: OperationId, history: KeyValue, revision: int = 0) -> pb.Operation:
    """As :func:`from_record`, for lists: a record that cannot be read hides none of the others."""
    try:
        return from_record(operation, history, revision)
    except CorruptRecord as error:
        return unreadable(operation, error, revision or history.mod_revision)


def ended_among(
    states: Collection[int], operation: OperationId, history: KeyValue, revision: int
) -> pb.Operation | None:
    """As :func:`from_ended`; ``None``: its state is known, and is none of ``states``. Without any all are
    wanted."""
    try:
        record = decode(history.value, HistoryRecord, history.key)
        state = _ENDED.get(record.outcome)
        return None if states and state and state not in states else from_history(operation, record, revision)
    except CorruptRecord as error:
        return unreadable(operation, error, revision)


def unreadable(operation: OperationId, error: CorruptRecord, revision: int) -> pb.Operation:
    """An operation of which this version knows the name only, and why."""
    return _named(
        operation,
        error=pb.OperationError(code=error.code, message=error.message),
        revision=revision,
    )
