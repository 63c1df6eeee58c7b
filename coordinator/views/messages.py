"""Records in the form of the API: members, entries of the audit trail, batches and how a table is fed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distop.coordinator.access.callers import caller
from distop.errors import CorruptRecord
from distop.lake.storage.storage import without_secrets
from distop.metastore.backlog.batches import (
    DONE,
    FAILED,
    RUNNING,
    WAITING,
    AppliedRecord,
    BatchBlock,
    BatchRecord,
    OrderingRecord,
)
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import PauseRecord
from distop.metastore.records.record import decode
from distop.metastore.tables.audit import Cursor, TrailEntry
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json
from distop.proto.messages import message_of


def error_of(code: str, message: str) -> pb.OperationError | None:
    """An error; ``None``: there is none."""
    return pb.OperationError(code=code, message=message) if code or message else None


def pause_of(record: PauseRecord, scope: str) -> pb.Pause:
    """Who paused it; ``scope`` is what must be resumed, ``operation``, ``table`` or ``schedule``."""
    return message_of(pb.Pause, record, scope=scope)


def member_message(member: MemberRecord, role: str) -> pb.Member:
    """A live process, without tables that the caller may not see. ``role`` is used where its record, of an
    older version, has none."""
    sees = caller().sees
    held_up = [
        entry
        for entry in member.held_up
        if not entry.operation or sees(OperationId.parse(entry.operation).table)
    ]
    return message_of(
        pb.Member,
        member,
        role=member.role or role,
        version=member.distop,
        calls=[
            message_of(pb.LongCall, entry) for entry in member.calls if not entry.table or sees(entry.table)
        ],
        held_up=[message_of(pb.HeldUp, entry) for entry in held_up],
    )


def entry_message(entry: TrailEntry) -> pb.AuditEntry:
    """An entry of the audit trail."""
    argument = entry.record.argument
    # Release 0.2.0 has written the bare name of a backup's file.
    if argument and not argument.startswith("{"):
        argument = to_json({"file": argument}, "argument")
    return message_of(
        pb.AuditEntry,
        entry.record,
        id=entry.id,
        argument_json=argument,
        claimed_by=entry.record.claimed,
        table=entry.table,
        cursor=str(Cursor(entry.revision, entry.id)),
    )


def ordering_message(table: str, record: OrderingRecord, revision: int = 0) -> pb.Ordering:
    """How a table is fed."""
    return message_of(
        pb.Ordering,
        record,
        table=table,
        staged=message_of(pb.Staged, record.staged) if record.staged is not None else None,
        blocked=_block(record.blocked) if record.blocked is not None else None,
        failed=[_block(block) for block in record.failed],
        revision=revision,
    )


def _block(block: BatchBlock) -> pb.Block:
    return message_of(pb.Block, block, error=pb.OperationError(code=block.code, message=block.error))


def batch_message(name: str, state: str, kv: KeyValue) -> pb.Batch:
    """A batch from its key; ``state``: where that is, empty for the queue of ordered ones."""
    try:
        return _ended(name, kv) if state == DONE else _open(name, state, kv)
    except CorruptRecord as error:
        return pb.Batch(name=name, error=pb.OperationError(code=error.code, message=error.message))


def state_of(operation: pb.Operation) -> str:
    """Its state, or what matters more about it: that it is parked, or is being cancelled."""
    if operation.completion.parked:
        return "parked"
    if operation.cancel_requested and operation.state == pb.RUNNING:
        return "cancelling"
    return pb.OperationState.Name(operation.state).lower() if operation.state else "unknown"


def state_of_batch(batch: pb.Batch, ordering: pb.Ordering) -> str:
    """Its state, or what matters more about it: ``failed`` if it blocks its table, ``approval`` if it waits
    for that, ``rewritten`` if its source was written again since it was applied."""
    if ordering.HasField("blocked") and batch.name == ordering.blocked.batch:
        return FAILED
    if batch.name == ordering.awaiting:
        return "approval"
    if batch.name in ordering.rewritten and batch.state == "applied":
        return "rewritten"
    return batch.state or FAILED


def _ended(name: str, kv: KeyValue) -> pb.Batch:
    """A batch that was applied or skipped."""
    done = decode(kv.value, AppliedRecord, kv.key)
    return message_of(
        pb.Batch,
        done,
        name=name,
        state=done.outcome,
        finished_at=done.at,
        markers_json=to_json(done.markers, "markers"),
        **(_published(done.batch) if done.batch is not None else {}),
    )


def _open(name: str, state: str, kv: KeyValue) -> pb.Batch:
    """A batch that waits, is being applied or has failed."""
    record = decode(kv.value, BatchRecord, kv.key)
    return message_of(
        pb.Batch,
        record,
        name=name,
        state=state or (RUNNING if record.operation else WAITING),
        error=pb.OperationError(code=record.code, message=record.error) if record.code else None,
        **_published(record),
    )


def _published(record: BatchRecord) -> Mapping[str, Any]:
    """What was published as a batch, as fields of its message."""
    return {
        "type": record.type,
        "argument_json": to_json(without_secrets(record.argument), "argument"),
        "queued_by": record.queued_by,
        "queued_at": record.queued_at,
    }
