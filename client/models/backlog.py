"""Batches of a table and how it is fed, as the client shows them; and the calls for them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Self

from distop.client.models.operation import OperationError
from distop.client.transport.connection import Connection
from distop.client.transport.convert import from_struct, from_timestamp, to_struct
from distop.client.transport.requests import PAGE_SIZE, make_request
from distop.proto import distop_pb2 as pb


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A batch that waits to be applied."""

    name: str
    type: str
    """The operation type that applies it."""
    argument: dict[str, Any] = field(default_factory=dict)
    queued_by: str = ""
    queued_at: datetime | None = None
    attempts: int = 0
    """Failed ones, of those that may pass."""
    error: OperationError | None = None
    """Of the last of them."""
    operation: str = ""
    """The operation that applies it at present."""

    @classmethod
    def from_proto(cls, message: pb.Batch) -> Self:
        return cls(
            name=message.name,
            type=message.type,
            argument=from_struct(message.argument),
            queued_by=message.queued_by,
            queued_at=from_timestamp(message.queued_at),
            attempts=message.attempts,
            error=OperationError(message.error.code, message.error.message) if message.error.code else None,
            operation=message.operation,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Why a table does not go on before somebody decides."""

    batch: str
    error: OperationError
    operation: str = ""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering:
    """How a table is fed from its backlog."""

    table: str
    gate: str = "open"
    """``open``; ``closed``: batches are collected until somebody opens it."""
    validation: bool = False
    """Whether somebody must approve after each batch."""
    late: str = "block"
    """About a batch that sorts before an applied one: ``block``, ``apply`` or ``reject``."""
    together: int = 1
    """Most batches that one operation applies."""
    max_attempts: int = 3
    remember: int = 0
    """So many batches that are done with are known by name, the highest ones."""
    forgotten: str = ""
    """The highest batch that is no longer known."""
    last: str = ""
    """The highest batch that was applied or skipped."""
    running: str = ""
    """The operation that applies batches at present."""
    awaiting: str = ""
    """The batch that waits for approval."""
    blocked: Block | None = None

    @classmethod
    def from_proto(cls, message: pb.Ordering) -> Self:
        block = message.blocked if message.HasField("blocked") else None
        return cls(
            table=message.table,
            gate=message.gate,
            validation=message.validation,
            late=message.late,
            together=message.together,
            max_attempts=message.max_attempts,
            remember=message.remember,
            forgotten=message.forgotten,
            last=message.last,
            running=message.running,
            awaiting=message.awaiting,
            blocked=None
            if block is None
            else Block(
                batch=block.batch,
                error=OperationError(block.error.code, block.error.message),
                operation=block.operation,
                at=from_timestamp(block.at),
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Enqueued:
    """What became of a batch that was published."""

    table: str
    batch: str
    became: str
    """``queued``, ``already queued``, ``already applied`` or ``skipped before``."""
    operation: str = ""
    """That applies it at present, or has applied it."""
    late: bool = False
    """It sorts before an applied one, and the table stops at it."""


class BacklogCalls:
    """The part of :class:`~distop.client.aio.AsyncClient` about batches and their order."""

    identity: str
    _connection: Connection
    _pages: Callable[..., AsyncGenerator[Any, None]]

    async def enqueue(
        self,
        table: str,
        batch: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        *,
        republish: bool = False,
    ) -> Enqueued:
        """Queue a batch; it is applied once all batches that sort before it are.

        Safe to repeat: an equal batch that is queued or applied already stays what it is.

        Parameters
        ----------
        batch:
            Its name. Names are ordered byte by byte: "10" comes before "2".
        type, argument:
            The operation that applies it.
        republish:
            Apply it again if it was applied before; replace it if it is queued with another content.

        Raises
        ------
        AlreadyExists
            It is queued with another content (``BATCH_DIFFERS``).
        PreconditionFailed
            It sorts before an applied one, and the table rejects such batches (``BATCH_LATE``).
        """
        request = make_request(
            pb.EnqueueBatchRequest,
            table=table,
            batch=batch,
            type=type,
            argument=to_struct(argument or {}, "argument"),
            republish=republish,
            requested_by=self.identity,
            request_id=uuid.uuid4().hex,
        )
        answer = await self._connection.call(lambda service: service.backlog.EnqueueBatch, request)
        return Enqueued(
            table=table,
            batch=batch,
            became=answer.became,
            operation=answer.operation,
            late=answer.late,
        )

    async def backlog(self, table: str, *, page_size: int = PAGE_SIZE) -> AsyncGenerator[Batch, None]:
        """The batches of a table that wait, in the order in which they will be applied."""
        request = make_request(pb.ListBacklogRequest, table=table, page_size=page_size)
        async with aclosing(self._pages(lambda service: service.backlog.ListBacklog, request)) as pages:
            async for page in pages:
                for message in page.batches:
                    yield Batch.from_proto(message)

    async def ordering(self, table: str) -> Ordering:
        """How a table is fed, and what it waits for."""
        request = make_request(pb.ListBacklogRequest, table=table, page_size=1)
        page = await self._connection.call(lambda service: service.backlog.ListBacklog, request)
        return Ordering.from_proto(page.ordering)

    async def set_ordering(
        self,
        table: str,
        *,
        gate: Literal["open", "closed"] | None = None,
        validation: bool | None = None,
        late: Literal["block", "apply", "reject"] | None = None,
        together: int | None = None,
        max_attempts: int | None = None,
        remember: int | None = None,
    ) -> Ordering:
        """Change how a table is fed; what is ``None`` stays as it is. See :class:`Ordering`."""
        request = make_request(
            pb.SetOrderingRequest,
            table=table,
            gate=gate,
            validation=validation,
            late=late,
            together=together,
            max_attempts=max_attempts,
            remember=remember,
            requested_by=self.identity,
            request_id=uuid.uuid4().hex,
        )
        return Ordering.from_proto(
            await self._connection.call(lambda service: service.backlog.SetOrdering, request)
        )

    async def open_gate(self, table: str, reason: str = "") -> Ordering:
        """Let the batches that were collected be applied."""
        return await self._control_backlog(table, "open", "", reason)

    async def approve(self, table: str, batch: str = "", reason: str = "") -> Ordering:
        """Let the next batch come. ``batch``: the one that was looked at; no other is approved then."""
        return await self._control_backlog(table, "approve", batch, reason)

    async def retry_batch(self, table: str, batch: str = "", reason: str = "") -> Ordering:
        """Try the batch again that blocks the table. ``batch``: no other is meant then."""
        return await self._control_backlog(table, "retry", batch, reason)

    async def skip_batch(self, table: str, batch: str = "", reason: str = "") -> Ordering:
        """Leave the batch out that blocks the table, for good. ``batch``: no other is meant then."""
        return await self._control_backlog(table, "skip", batch, reason)

    async def _control_backlog(self, table: str, action: str, batch: str, reason: str) -> Ordering:
        request = make_request(
            pb.ControlBacklogRequest,
            table=table,
            action=action,
            batch=batch,
            reason=reason,
            requested_by=self.identity,
            request_id=uuid.uuid4().hex,
        )
        return Ordering.from_proto(
            await self._connection.call(lambda service: service.backlog.ControlBacklog, request)
        )
