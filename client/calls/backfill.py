"""Backfills: calls on all batches of a range. The plan is the range: nothing else is stored."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace as changed
from typing import Any

from distop.client.calls.backlog import BacklogCalls
from distop.client.models.backfill import Backfill, batch_arguments, checked_batches
from distop.client.models.backlog import Batch, Ordering
from distop.errors import BatchDiffers, BatchLate, NotFound, PreconditionFailed

LOOK_EVERY_S = 1.0
"""Shortest interval between two looks at the progress of a backfill."""

SHARE = 10
"""A look that takes long is followed by a pause of this many times as long."""


class BackfillCalls(BacklogCalls):
    """The part of :class:`~distop.client.aio.AsyncClient` for backfills."""

    async def backfill(
        self,
        table: str,
        batches: Sequence[str],
        type: str,
        argument: Mapping[str, Any],
        *,
        replace: bool = False,
        retry_failed: bool = False,
        hold: bool = False,
    ) -> Backfill:
        """Publish batches in their order. Idempotent: what is queued or applied stays, so a call that was
        interrupted goes on when it is made again.

        Parameters
        ----------
        batches:
            Their names, at most 10,000: see :func:`~distop.client.batch_range`.
        type, argument:
            The operation that applies each. In texts of the argument ``{{ batch }}`` is the batch's name, and
            ``{{ tick | date('%Y/%m') }}`` the time that it shows.
        replace:
            Apply those anew that were applied, in place of their rows. Each call does that once.
        retry_failed:
            Retry the one that blocks the table.
        hold:
            Close the gate before, and open it once all are queued: what waits behind them cannot pass, also
            if the call is interrupted. Then the gate stays closed until the call is made again.

        Raises
        ------
        InvalidArgument
            A template is invalid, or there is none, so that all batches would be the same.
        BatchLate
            Some would stop the table, since later ones were applied. Nothing was queued.
        BatchDiffers
            One is queued with different content. Those before it were queued.
        PreconditionFailed
            A failed batch is not to be retried without a look at the table, or a rollback holds the gate.
        """
        names = checked_batches(batches)
        arguments = batch_arguments(argument, names)
        known, ordering = await self._known(table, names), await self.ordering(table)
        await self._check_late([name for name in names if name not in known], ordering)
        again = _failed(ordering, known) if retry_failed else ""
        if hold and ordering.held_by:
            raise PreconditionFailed(
                f"the gate of table {table!r} is closed by {ordering.held_by}",
                hint=f"decide about the batches that it has taken out: distop backlog open {table}",
                details={"table": table},
            )
        if hold:
            await self.set_ordering(table, gate="closed")
        queued = 0
        for name, wanted in arguments.items():
            state = known[name].state if name in known else ""
            if state == "skipped" or (state == "applied" and not replace):
                continue
            publish = self.replace_batch if state == "applied" else self.enqueue
            try:
                answer = await publish(table, name, argument=wanted, type=type)
            except BatchDiffers as error:
                error.hint = "take out those that wait (--cancel), and run the backfill again"
                raise
            queued += answer.became == "queued"
        if again:
            with suppress(PreconditionFailed):  # somebody has decided meanwhile
                await self.retry_batch(table, again)
        if hold:
            await self.open_gate(table, "backfill")
        return changed(await self.backfill_progress(table, names), queued=queued)

    async def backfill_progress(self, table: str, batches: Sequence[str]) -> Backfill:
        """How far these batches are."""
        names = checked_batches(batches)
        known, ordering = await self._known(table, names), await self.ordering(table)
        states = Counter(batch.state or "waiting" for batch in known.values())
        missing = [name for name in names if name not in known]
        forgotten = sum(name.encode() <= ordering.forgotten.encode() for name in missing)
        rows = [one.rows for one in {b.operation: b for b in known.values() if b.state == "applied"}.values()]
        unfinished = bool(states["waiting"] or states["running"])
        return Backfill(
            table=table,
            first=names[0],
            last=names[-1],
            batches=len(names),
            waiting=states["waiting"],
            running=states["running"],
            applied=states["applied"],
            skipped=states["skipped"],
            rows=None if None in rows else sum(filter(None, rows)),
            forgotten=forgotten,
            absent=len(missing) - forgotten,
            operation=next((batch.operation for batch in known.values() if batch.state == "running"), ""),
            gate=ordering.gate,
            blocked=ordering.blocked if unfinished else None,
        )

    async def watch_backfill(self, table: str, batches: Sequence[str]) -> AsyncGenerator[Backfill, None]:
        """The progress, at most once a second, until none of the batches waits, or the table is blocked."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            yield (progress := await self.backfill_progress(table, batches))
            if progress.done or progress.blocked:
                return
            await asyncio.sleep(max(LOOK_EVERY_S, SHARE * (loop.time() - before)))

    async def cancel_backfill(self, table: str, batches: Sequence[str], reason: str = "") -> Backfill:
        """Take out those of the batches that wait, as if they had never been published. Those that are being
        applied go on: cancel their operation."""
        names = checked_batches(batches)
        known = await self._known(table, names)
        # From the end: what is applied meanwhile leaves no gap.
        for name in reversed(names):
            if name in known and known[name].state == "waiting":
                with suppress(NotFound, PreconditionFailed):  # it is being applied by now, or was
                    await self.take_back(table, name, reason)
        return await self.backfill_progress(table, names)

    async def _known(self, table: str, names: Sequence[str]) -> dict[str, Batch]:
        """Those of the batches that wait, or are remembered. One that is applied anew waits."""
        wanted, known = set(names), dict[str, Batch]()
        # First those that wait: one that is applied meanwhile is found in both lists, and not in none.
        for applied in (False, True):
            async for batch in self.backlog(table, applied=applied, first=names[0], last=names[-1]):
                if batch.name in wanted:
                    known.setdefault(batch.name, batch)
        return known

    async def _check_late(self, names: Sequence[str], ordering: Ordering) -> None:
        """Raise :class:`~distop.errors.BatchLate` if the table would stop at one of the batches."""
        table = ordering.table
        if names and names[0].encode() <= ordering.forgotten.encode():
            raise BatchLate(
                f"batch {names[0]!r} of table {table!r} may have been applied before: batches up to "
                f"{ordering.forgotten!r} are not remembered by name",
                hint="begin after that one",
                details={"table": table, "batch": names[0]},
            )
        # What is being applied will be the last one.
        running = list[str]()
        async with aclosing(self.backlog(table, page_size=1)) as waiting:
            async for batch in waiting:
                if batch.state != "running":
                    break
                running.append(batch.name)
        last = max([ordering.last, *running], key=str.encode)
        late = [name for name in names if name.encode() < last.encode()]
        if late and ordering.late != "apply":
            raise BatchLate(
                f"{len(late):,} batches from {late[0]!r} on sort before {last!r}, which table {table!r} has "
                "applied or skipped: it would stop at each",
                hint=f"to have them applied next, in their order: distop backlog set {table} --late apply",
                details={"table": table, "batch": late[0], "last": last},
            )


def _failed(ordering: Ordering, known: Mapping[str, Batch]) -> str:
    """The batch that has failed and may be retried, if it is one of these; raises
    :class:`~distop.errors.PreconditionFailed` if somebody must look at the table first."""
    block = ordering.blocked
    if block is None or (batch := known.get(block.batch)) is None:
        return ""
    if block.error.code != BatchLate.code and not batch.in_doubt:
        return block.batch
    why = "its rows may be in the table" if batch.in_doubt else "it may have been applied before"
    raise PreconditionFailed(
        f"batch {block.batch!r} of table {ordering.table!r} is not retried: {why}",
        hint=f"decide about it: distop backlog retry|skip {ordering.table} {block.batch}",
        details={"table": ordering.table, "batch": block.batch},
    )
