"""Operations as callers see them, put together from their keys."""

from __future__ import annotations

import asyncio

from google.protobuf import timestamp_pb2

from distop.coordinator.state.tracker import Tracked
from distop.errors import CorruptRecord, OperationNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import OperationId, TableKeys
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    RUNNING,
    HistoryRecord,
    PauseRecord,
    RequestRecord,
)
from distop.metastore.records.record import decode
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json

_LIVE = {RUNNING: pb.RUNNING, COMMITTING: pb.COMMITTING, ABORTING: pb.ABORTING}
_ENDED = {"success": pb.SUCCEEDED, "failed": pb.FAILED, "cancelled": pb.CANCELLED}
ENDED_STATES = frozenset(_ENDED.values())


def timestamp(seconds: float) -> timestamp_pb2.Timestamp | None:
    """Seconds since the epoch as a protobuf timestamp; ``None`` for 0, which means "never"."""
    if not seconds:
        return None
    whole = int(seconds)
    return timestamp_pb2.Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))


def pause_of(record: PauseRecord, scope: str) -> pb.Pause:
    """Who holds it; ``scope`` is what is to be resumed, ``operation`` or ``table``."""
    return pb.Pause(by=record.by, reason=record.reason, at=timestamp(record.at), scope=scope)


def from_history(operation: OperationId, record: HistoryRecord, revision: int) -> pb.Operation:
    """A finished operation."""
    message = pb.Operation(
        name=str(operation),
        table=operation.table,
        type=operation.type,
        object=operation.object,
        instance=operation.instance,
        state=_ENDED.get(record.outcome, pb.OPERATION_STATE_UNSPECIFIED),
        jobs=pb.JobCounts(total=record.partition_count, succeeded=record.succeeded, failed=record.failed),
        request_id=record.request_id,
        started_by=record.started_by,
        started_at=timestamp(record.started_at),
        finished_at=timestamp(record.finished_at),
        facts_json=to_json(record.facts, "facts"),
        argument_json=record.argument,
        follows=record.follows,
        retry_of=record.retry_of,
        cancel_requested=record.outcome == "cancelled",
        revision=revision,
    )
    if record.error_code:
        message.error.CopyFrom(pb.OperationError(code=record.error_code, message=record.error))
    return message


def from_request(request: RequestRecord, request_id: str, revision: int) -> pb.Operation:
    """What a request has made, once the history knows nothing of it any more."""
    operation = OperationId.parse(request.operation)
    return pb.Operation(
        name=str(operation),
        table=operation.table,
        type=operation.type,
        object=operation.object,
        instance=operation.instance,
        state=_ENDED.get(request.outcome, pb.OPERATION_STATE_UNSPECIFIED),
        request_id=request_id,
        started_at=timestamp(request.at),
        revision=revision,
    )


def from_tracked(tracked: Tracked, revision: int) -> pb.Operation:
    """A live operation."""
    arg = tracked.arg
    message = pb.Operation(
        name=str(arg.id),
        table=arg.table,
        type=arg.type,
        object=arg.object,
        instance=arg.instance,
        state=_LIVE.get(tracked.state, pb.OPERATION_STATE_UNSPECIFIED),
        jobs=pb.JobCounts(
            total=tracked.total,
            succeeded=tracked.done,
            failed=tracked.jobs.failed,
            counting=tracked.counting,
        ),
        request_id=arg.request_id,
        started_by=arg.started_by,
        started_at=timestamp(arg.started_at),
        runner=tracked.runner,
        follows=arg.follows,
        argument_json=arg.asked,
        retry_of=arg.retry_of,
        max_failed_partitions=arg.options.max_failed_partitions,
        cancel_requested=tracked.cancel_requested,
        revision=revision,
    )
    completion = tracked.completion
    if completion.attempts or completion.skipped or tracked.parked:
        message.completion.CopyFrom(
            pb.Completion(
                attempts=completion.attempts,
                step=completion.step,
                error=pb.OperationError(code=completion.error_code, message=completion.error)
                if completion.error_code or completion.error
                else None,
                at=timestamp(completion.at),
                parked=tracked.parked,
                skipped=len(completion.skipped),
                skippable=completion.skippable,
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


async def read_operation(client: EtcdClient, operation: OperationId) -> tuple[pb.Operation, Tracked | None]:
    """An operation as it stands: live (with what it was read from) or finished.

    Raises :class:`~distop.errors.OperationNotFound`.
    """
    keys = client.keyspace.table(operation.table)
    listing, pause = await asyncio.gather(
        client.scan(keys.operation(operation).prefix), read_pause(client, keys)
    )
    tracked = Tracked.of(keys.operation(operation), listing.kvs)
    if tracked is not None:
        tracked.table_pause = pause
        return from_tracked(tracked, listing.revision), tracked
    finished = await read_finished(client, operation)
    if finished is None:
        raise not_found(operation)
    return finished, None


def not_found(operation: OperationId) -> OperationNotFound:
    """Neither its keys nor its history are there."""
    return OperationNotFound(
        f"operation {operation} does not exist",
        hint="it may be older than the history that is kept: see distop ls",
        details={"operation": str(operation)},
    )


async def read_pause(client: EtcdClient, keys: TableKeys, *, revision: int = 0) -> PauseRecord | None:
    """Who holds the table, if somebody does."""
    kv = await client.get(keys.pause, revision=revision)
    return decode(kv.value, PauseRecord, kv.key) if kv.exists else None


async def refresh_pause(client: EtcdClient, keys: TableKeys, tracked: Tracked) -> int:
    """Bring up to date who holds the table. Returns the revision this was read at if it is news, else 0.

    Raises :class:`~distop.errors.Unavailable` when etcd does not answer: a heartbeat that said that nothing
    has changed would be a guess (U4).
    """
    page = await client.get_range(keys.pause, b"")
    pause = decode(page.kvs[0].value, PauseRecord, keys.pause) if page.kvs else None
    before, tracked.table_pause = tracked.table_pause, pause
    return page.revision if pause != before else 0


async def read_finished(client: EtcdClient, operation: OperationId) -> pb.Operation | None:
    """How an operation ended; ``None`` if the history does not know it."""
    history = await client.get(client.keyspace.table(operation.table).history(operation))
    return from_record(operation, history) if history.exists else None


def from_record(operation: OperationId, history: KeyValue) -> pb.Operation:
    """How an operation ended, from the record of it."""
    return from_history(operation, decode(history.value, HistoryRecord, history.key), history.mod_revision)


def member_message(member: MemberRecord, role: str) -> pb.Member:
    """A live process. ``role`` counts where its record, of an older version, names none."""
    return pb.Member(
        id=member.id,
        role=member.role or role,
        address=member.address,
        host=member.host,
        pid=member.pid,
        started_at=timestamp(member.started_at),
        types=member.types,
        draining=member.draining,
    )
