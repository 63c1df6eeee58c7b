"""The batches of a table and how it is fed, and the calls on both."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Any, Literal

from distop.client.calls import PAGE_SIZE, NamedCalls, models
from distop.client.model import Model
from distop.client.operations import OperationError
from distop.errors import NotFound
from distop.proto.json_text import to_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch(Model):
    """A batch that waits, is being applied, has failed, or has come to its end."""

    name: str
    type: str = ""
    """The operation type that applies it. Unknown of skipped batches, and of applied ones that were too large
    to be kept, as their argument."""
    argument: dict[str, Any] = field(default_factory=dict)
    queued_by: str = ""
    queued_at: datetime | None = None
    attempts: int = 0
    """Failed attempts: since the last decision to try it again; of an applied or skipped one, all."""
    error: OperationError | None = None
    """Error of the last of them."""
    operation: str = ""
    """The operation that applies it, or has applied it."""
    state: str = ""
    """``waiting``, ``running``; ``failed``: it needs a decision; ``applied`` or ``skipped``."""
    finished_at: datetime | None = None
    """When it was applied or skipped."""
    rows: int | None = None
    """Of an applied one: what its operation has added, as the following two. ``None``: unknown, such as that
    of a batch that an older version has applied."""
    bytes: int | None = None
    files: int | None = None
    together: int = 0
    """How many batches that operation has applied: its figures are of all of them."""
    decided_by: str = ""
    """Who has approved it at the validation gate, or has skipped it."""
    markers: dict[str, str] = field(default_factory=dict)
    """Of an applied one: the files that marked its source as complete, and their versions when it was read,
    as far as they are known."""
    in_doubt: bool = False
    """Its rows may be in the table: it is to be applied again only if they are not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Block(Model):
    """Why a table waits for a decision."""

    batch: str
    error: OperationError
    operation: str = ""
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Staged(Model):
    """A batch whose rows are on a branch, to be looked at before they are published."""

    batch: str
    branch: str
    operation: str = ""
    """What has written it; empty while it is being written."""
    snapshot: str = ""
    """The snapshot of the branch that is published by the approval."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ordering(Model):
    """How a table is fed from its backlog."""

    table: str
    gate: str = "open"
    """``open``; ``closed``: batches are collected until it is opened."""
    held_by: str = ""
    """The rollback that has closed the gate: until it is opened no batch is applied."""
    validation: bool = False
    """Whether each batch needs an approval."""
    before: bool = False
    """Of ``validation``: the approval comes before the batch is published. Until then it is on a branch."""
    late: str = "block"
    """What happens to a batch that sorts before an applied one: ``block``, ``apply`` or ``reject``."""
    together: int = 1
    """Most batches that one operation applies."""
    max_attempts: int = 3
    remember: int = 0
    """How many finished batches are remembered by name, the highest ones."""
    forgotten: str = ""
    """The highest batch that is no longer remembered."""
    last: str = ""
    """The highest batch that was applied or skipped."""
    running: str = ""
    """The operation that applies batches at present."""
    awaiting: str = ""
    """The batch that waits for approval."""
    staged: Staged | None = None
    """The batch that is on a branch."""
    blocked: Block | None = None
    failed: tuple[Block, ...] = ()
    """Failed unordered batches: each needs a decision."""
    rewritten: tuple[str, ...] = ()
    """Applied batches whose sources were written again since, 50 at most."""
    signals: tuple[str, ...] = ()
    """What opened the gate last, once each: see :meth:`BacklogCalls.open_gate`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Enqueued(Model):
    """The result of publishing a batch."""

    table: str
    batch: str
    became: str
    """``queued``, ``already queued``, ``already applied``, ``skipped before``; without an order, ``failed
    before``; of one whose source was written again, ``rewritten``."""
    operation: str = ""
    """The operation that applies it, or has applied it."""
    late: bool = False
    """It sorts before an applied one, and the table will stop at it."""
    markers: dict[str, str] = field(default_factory=dict)
    """Of an applied one: see :class:`Batch`."""


class BacklogCalls(NamedCalls):
    """The calls on the batches of a table and their order."""

    async def enqueue(
        self,
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
            table=self.name,
            batch=batch,
            type=type,
            argument_json=to_json(argument or {}, "argument"),
            republish=republish,
            unordered=not ordered,
        )
        return Enqueued.from_proto(answer, table=self.name, batch=batch)

    async def replace_batch(
        self, batch: str, argument: Mapping[str, Any] | None = None, *, type: str = "ingest"
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
            table=self.name,
            batch=batch,
            type=type,
            argument_json=to_json(argument or {}, "argument"),
            replace=True,
        )
        return Enqueued.from_proto(answer, table=self.name, batch=batch)

    async def batch_rewritten(
        self, batch: str, since: str, version: str, *, replace: bool = False
    ) -> Enqueued:
        """Say that the source of an applied batch was written again: the table names it in ``why`` and
        ``doctor`` until it is replaced. Nothing happens if the batch waits, or was applied again meanwhile.

        Parameters
        ----------
        since:
            The operation that has applied it.
        version:
            Of the source, as it is now. With ``replace`` each version is queued once, by any caller.
        replace:
            Replace its rows, as :meth:`replace_batch`, unless the operation has applied other batches,
            too.
        """
        call = sha256("\n".join((self.name, batch, since, version)).encode()).hexdigest()[:32]
        answer = await self._control(
            "EnqueueBatch",
            table=self.name,
            batch=batch,
            type="ingest",
            argument_json="{}",
            replace=replace,
            rewritten_since=since,
            call_id=call,
        )
        return Enqueued.from_proto(answer, table=self.name, batch=batch)

    def backlog(
        self,
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
        fields = {"table": self.name, "applied": applied, "unordered": not ordered, "page_size": page_size}
        return models(self._listed("ListBacklog", "batches", first=first, last=last, **fields), Batch)

    async def batch(self, batch: str) -> Batch:
        """One batch: as it is queued, or is being applied; else as it was applied or skipped last.

        Raises
        ------
        NotFound
            No such batch is queued, and the table does not remember one.
        """
        reply = await self._call("ListBacklog", table=self.name, batch=batch)
        record = next((record for record in reply.batches if record.name == batch), None)
        if record is None:
            raise NotFound(
                f"table {self.name!r} knows no batch {batch!r}",
                hint=f"distop batch list {self.name} --applied, or --unordered, lists those that it knows",
                details={"table": self.name, "batch": batch},
            )
        return Batch.from_proto(record)

    async def ordering(self) -> Ordering:
        """How a table is fed, and what it waits for."""
        return Ordering.from_proto((await self._call("ListBacklog", table=self.name, page_size=1)).ordering)

    async def set_ordering(
        self,
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
            table=self.name,
            gate=gate,
            validation=validation,
            before=before,
            late=late,
            together=together,
            max_attempts=max_attempts,
            remember=remember,
        )
        return Ordering.from_proto(reply)

    async def open_gate(self, reason: str = "", *, signal: str = "") -> Ordering:
        """Let the collected batches be applied.

        ``signal``: what opens it. An equal signal opens it once, even if the gate was closed since.
        """
        return await self._control_backlog("open", "", reason, signal=signal)

    async def approve_batch(self, batch: str = "", reason: str = "", *, branch: str = "") -> Ordering:
        """Approve a batch: the next one is applied; or, if it is staged, it is published.

        Parameters
        ----------
        batch, branch:
            The checked batch, and the branch it was on: no other is approved then.
        """
        return await self._control_backlog("approve", batch, reason, branch=branch)

    async def retry_batch(self, batch: str = "", reason: str = "") -> Ordering:
        """Retry the batch that blocks the table, or stage the staged one anew. ``batch``: only this one; it
        may also be a failed unordered batch."""
        return await self._control_backlog("retry", batch, reason)

    async def skip_batch(self, batch: str = "", reason: str = "") -> Ordering:
        """Skip the batch that blocks the table or is staged, for good. ``batch``: see :meth:`retry_batch`."""
        return await self._control_backlog("skip", batch, reason)

    async def remove_batch(self, batch: str, reason: str = "") -> Ordering:
        """Remove a batch that is not applied yet, as if it had never been published."""
        return await self._control_backlog("remove", batch, reason)

    async def _control_backlog(self, action: str, batch: str, reason: str, **fields: str) -> Ordering:
        reply = await self._once(
            "ControlBacklog",
            table=self.name,
            action=action,
            batch=batch,
            reason=reason,
            **fields,
        )
        return Ordering.from_proto(reply)
