"""How a table is fed, as callers see it."""

from __future__ import annotations

from distop.coordinator.views.operations import timestamp
from distop.metastore.backlog.batches import OrderingRecord
from distop.proto import distop_pb2 as pb


def ordering_message(table: str, record: OrderingRecord, revision: int = 0) -> pb.Ordering:
    """How a table is fed, as callers see it."""
    message = pb.Ordering(
        table=table,
        gate=record.gate,
        validation=record.validation,
        late=record.late,
        together=record.together,
        max_attempts=record.max_attempts,
        remember=record.remember,
        forgotten=record.forgotten,
        last=record.last,
        running=record.running,
        awaiting=record.awaiting,
        revision=revision,
    )
    if (block := record.blocked) is not None:
        error = pb.OperationError(code=block.code, message=block.error)
        message.blocked.CopyFrom(
            pb.Block(batch=block.batch, error=error, operation=block.operation, at=timestamp(block.at))
        )
    return message
