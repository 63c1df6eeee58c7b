"""Calls on the batches of a table and their order."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from hashlib import sha256
from typing import Any, Literal

from distop.client.calls.base import PAGE_SIZE, Calls, models
from distop.client.models.backlog import Batch, Enqueued, Ordering
from distop.errors import NotFound
from distop.proto.json_text import from_json, to_json


class BacklogCalls(Calls):
    """The part of :class:`~distop.client.aio.AsyncClient` for batches and their order."""

    async def enqueue(
        self,
        table: str,
        batch: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        *,
        republish: bool = False,
        ordered: bool = True,
    ) -> Enqueued:
        """Queue a batch; it is applied once all batches that sort before it are.

        Idempotent: an equal batch that is already queued or applied stays as it is, in order or without.

        Parameters
        ----------
        batch:
            Its name. Names are ordered byte by byte: "10" comes before "2".
        type, argument:
            The operation that applies it.
        republish:
            Apply it again if it was applied before; replace it if it is queued with different content.
        ordered:
            ``False``: it waits for no other batch, and no gate: it is applied as soon as possible,
            concurrently.

        Raises
        ------
        AlreadyExists
            It is queued with different content (``BATCH_DIFFERS``).
        PreconditionFailed
            It sorts before an applied one, and the table rejects such batches (``BATCH_LATE``).
        """
        answer = await self._once(
            "EnqueueBatch",
            table=table,
            batch=batch,
            type=type,
            argument_json=to_json(argument or {}, "argument"),
            republish=republish,
            unordered=not ordered,
        )
        return _enqueued(table, batch, answer)

    async def replace_batch(
        self, table: str, batch: str, argument: Mapping[str, Any] | None = None, *, type: str = "ingest"
    ) -> Enqueued:
        """Apply a batch again that was applied before, in place of the rows that it has added then: they
        leave the table in the same transaction. What came later stays.

        Parameters
        ----------
        argument, type:
            Of the operation that applies it. Default: as it was published, an ingest.

        Raises
        ------
        NotFound
            It was not applied, as far as the table remembers.
        """
        answer = await self._once(
            "EnqueueBatch",
            table=table,
            batch=batch,
            type=type,
            argument_json=to_json(argument or {}, "argument"),
            replace=True,
        )
        return _enqueued(table, batch, answer)

    async def batch_rewritten(
        self, table: str, batch: str, since: str, version: str, *, replace: bool = False
    ) -> Enqueued:
        """Say that the source of an applied batch was written again: the table names it in ``why`` and
        ``doctor`` until it is replaced. Nothing happens if the batch waits, or was applied again meanwhile.

        Parameters
        ----------
        since:
            The operation that has applied it.
        version:
            Of the source, as it is now. With ``replace`` each version is queued once, whoever asks.
        replace:
            Replace its rows, as :meth:`replace_batch`, unless the operation has applied other batches,
            too.
        """
        call = sha256("\n".join((table, batch, since, version)).encode()).hexdigest()[:32]
        answer = await self._control(
            "EnqueueBatch",
            table=table,
            batch=batch,
            type="ingest",
            argument_json="{}",
            replace=replace,
            rewritten_since=since,
            request_id=call,
        )
        return _enqueued(table, batch, answer)

    def backlog(
        self,
        table: str,
        *,
        applied: bool = False,
        ordered: bool = True,
        first: str = "",
        last: str = "",
        page_size: int = PAGE_SIZE,
    ) -> AsyncGenerator[Batch, None]:
        """The waiting batches of a table, in the order in which they will be applied.

        Parameters
        ----------
        applied:
            Applied and skipped batches, as far as the table remembers them, instead.
        ordered:
            ``False``: unordered batches; also the ones that are being applied, or have failed.
        first, last:
            Of ordered batches only those from one name to the other, both included. Empty: all.
        """
        asked = {"table": table, "applied": applied, "unordered": not ordered, "page_size": page_size}
        return models(self._listed("ListBacklog", "batches", first=first, last=last, **asked), Batch)

    async def batch(self, table: str, batch: str) -> Batch:
        """One batch: as it is queued, or is being applied; else as it was applied or skipped last.

        Raises
        ------
        NotFound
            No such batch is queued, and the table does not remember one.
        """
        reply = await self._call("ListBacklog", table=table, batch=batch)
        found = next((one for one in reply.batches if one.name == batch), None)
        if found is None:
            raise NotFound(
                f"table {table!r} knows no batch {batch!r}",
                hint=f"distop backlog ls {table}, with --applied or --unordered, lists those that it knows",
                details={"table": table, "batch": batch},
            )
        return Batch.from_proto(found)

    async def ordering(self, table: str) -> Ordering:
        """How a table is fed, and what it waits for."""
        return Ordering.from_proto((await self._call("ListBacklog", table=table, page_size=1)).ordering)

    async def set_ordering(
        self,
        table: str,
        *,
        gate: Literal["open", "closed"] | None = None,
        validation: bool | None = None,
        before: bool | None = None,
        late: Literal["block", "apply", "reject"] | None = None,
        together: int | None = None,
        max_attempts: int | None = None,
        remember: int | None = None,
    ) -> Ordering:
        """Change how a table is fed; ``None`` keeps a setting. See :class:`Ordering`."""
        reply = await self._once(
            "SetOrdering",
            table=table,
            gate=gate,
            validation=validation,
            before=before,
            late=late,
            together=together,
            max_attempts=max_attempts,
            remember=remember,
        )
        return Ordering.from_proto(reply)

    async def open_gate(self, table: str, reason: str = "", *, signal: str = "") -> Ordering:
        """Let the collected batches be applied.

        ``signal``: what opens it. An equal signal opens it once, even if the gate was closed since.
        """
        return await self._control_backlog(table, "open", "", reason, signal)

    async def approve(self, table: str, batch: str = "", reason: str = "", *, branch: str = "") -> Ordering:
        """Approve a batch: the next one is applied; or, if it is staged, it is published.

        Parameters
        ----------
        batch, branch:
            The checked batch, and the branch it was on: no other is approved then.
        """
        return await self._control_backlog(table, "approve", batch, reason, branch=branch)

    async def retry_batch(self, table: str, batch: str = "", reason: str = "") -> Ordering:
        """Retry the batch that blocks the table, or stage the staged one anew. ``batch``: only this one; it
        may also be a failed unordered batch."""
        return await self._control_backlog(table, "retry", batch, reason)

    async def skip_batch(self, table: str, batch: str = "", reason: str = "") -> Ordering:
        """Skip the batch that blocks the table or is staged, for good. ``batch``: see :meth:`retry_batch`."""
        return await self._control_backlog(table, "skip", batch, reason)

    async def take_back(self, table: str, batch: str, reason: str = "") -> Ordering:
        """Remove a batch that is not applied yet, as if it had never been published."""
        return await self._control_backlog(table, "remove", batch, reason)

    async def _control_backlog(
        self, table: str, action: str, batch: str, reason: str, signal: str = "", branch: str = ""
    ) -> Ordering:
        reply = await self._once(
            "ControlBacklog",
            table=table,
            action=action,
            batch=batch,
            reason=reason,
            signal=signal,
            branch=branch,
        )
        return Ordering.from_proto(reply)


def _enqueued(table: str, batch: str, answer: Any) -> Enqueued:
    return Enqueued(
        table=table,
        batch=batch,
        became=answer.became,
        operation=answer.operation,
        late=answer.late,
        markers=from_json(answer.markers_json, "markers"),
    )
