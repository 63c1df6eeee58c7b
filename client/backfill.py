"""Backfills: the batches of a range, the argument of each, how far they are, and the calls on all of them.

The plan is the range: nothing else is stored."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Self

from distop.client.backlog import BacklogCalls, Batch, Block, Ordering
from distop.client.calls import new_call_id
from distop.client.model import Model
from distop.client.operations import OperationFailed
from distop.errors import BatchDiffers, BatchLate, Cancelled, InvalidArgument, NotFound, PreconditionFailed
from distop.proto.commands import to_unblock

MAX_BATCHES = 10_000
"""Most batches of one backfill: as many as a table remembers by name."""

_FORMS = {"month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}
"""How batches are named at each step, from coarse to fine. The byte order of the names is that of time."""

_NUMBER = re.compile("[0-9]{1,18}")


def batch_range(first: str, last: str, every: str = "") -> list[str]:
    """The names of the batches from the first to the last, both included, in their order.

    Parameters
    ----------
    first, last:
        Months (``2024-01``), days (``2024-01-31``) or hours (``2024-01-31T05``), in UTC. One may be coarser
        than the step: hours up to ``2024-01-31`` are those of that whole day. With a number as step: numbers
        with equally many digits, such as ``001`` and ``120``.
    every:
        The step: ``month``, ``day``, ``hour``, or a number. Default: as ``first`` is written.

    Raises
    ------
    InvalidArgument
        It is no range, or has more than :data:`MAX_BATCHES` batches.
    """
    try:
        names = (_numbers if _NUMBER.fullmatch(every) else _times)(first, last, every)
        batches = list(islice(names, MAX_BATCHES + 1))
    except OverflowError:
        raise InvalidArgument(f"{last} is too late", details={"field": "last"}) from None
    if not 1 <= len(batches) <= MAX_BATCHES:
        why = f"are more than {MAX_BATCHES:,} batches: split it" if batches else "are none"
        raise InvalidArgument(f"{first} to {last} {why}", details={"field": "last"})
    return batches


def checked_batches(names: Sequence[str]) -> list[str]:
    """The names of batches in their order, each once; raises :class:`~distop.errors.InvalidArgument`."""
    if not 1 <= len(names) <= MAX_BATCHES:
        raise InvalidArgument(
            f"a backfill has 1 to {MAX_BATCHES:,} batches", hint="split it", details={"field": "batches"}
        )
    return sorted(set(names), key=str.encode)


def batch_arguments(argument: Mapping[str, Any], batches: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The argument of each batch: ``{{ batch }}`` is its name, and ``{{ tick }}`` the time that this shows.

    Raises :class:`~distop.errors.InvalidArgument` for an invalid template, or if there is none.
    """
    from distop.proto.templates import has_templates, rendered  # few programs need Jinja

    if len(batches) > 1 and not has_templates(dict(argument)):
        raise InvalidArgument(
            "the argument is the same for all batches",
            hint="name the batch in it, as in /data/{{ batch }}",
            details={"field": "argument"},
        )
    arguments = {}
    for batch in batches:
        time = _time_of(batch)
        names = {"batch": batch} | ({"tick": time[1]} if time is not None else {})
        arguments[batch] = rendered(dict(argument), names)
    return arguments


def _time_of(text: str) -> tuple[str, datetime] | None:
    """The step that a time is written for, and the time; ``None``: it is none."""
    for unit, form in _FORMS.items():
        try:
            at = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if at.strftime(form) == text:
            return unit, at
    return None


def _times(first: str, last: str, every: str) -> Iterator[str]:
    known = []
    for field, text in (("first", first), ("last", last)):
        if (time := _time_of(text)) is None:
            raise InvalidArgument(
                f"{text[:50]!r} is neither a month, a day nor an hour",
                hint="write it as 2024-01, 2024-01-31 or 2024-01-31T05; numbers need a number as the step",
                details={"field": field},
            )
        known.append(time)
    (unit, at), (last_unit, end) = known
    every, units = every or unit, list(_FORMS)
    if every not in units:
        raise InvalidArgument(
            f"{every[:50]!r} is not a step",
            hint=f"choose {', '.join(units)} or a number",
            details={"field": "every"},
        )
    if max(units.index(unit), units.index(last_unit)) > units.index(every):
        raise InvalidArgument(
            f"{first} to {last} are not written as {every}s",
            hint=f"write them as {datetime.now(UTC).strftime(_FORMS[every])}",
            details={"field": "every"},
        )
    end = _next(end, last_unit)
    while at < end:
        yield at.strftime(_FORMS[every])
        at = _next(at, every)


def _next(at: datetime, unit: str) -> datetime:
    if unit == "month":
        return (at.replace(day=1) + timedelta(days=31)).replace(day=1)
    return at + (timedelta(days=1) if unit == "day" else timedelta(hours=1))


def _numbers(first: str, last: str, every: str) -> Iterator[str]:
    digits = len(first)
    if not all(map(_NUMBER.fullmatch, (first, last))) or digits != len(last) or not int(every):
        raise InvalidArgument(
            f"{first[:50]!r} and {last[:50]!r} are not numbers of equally many digits, or the step is 0",
            hint="write 001 and 120, say: batches are ordered byte by byte",
            details={"field": "last"},
        )
    for number in range(int(first), int(last) + 1, int(every)):
        yield f"{number:0{digits}d}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Backfill(Model):
    """How far the batches of a backfill are, from the records of the table's backlog."""

    table: str
    first: str
    last: str
    batches: int
    """How many there are."""
    queued: int = 0
    """How many of them this call has queued."""
    waiting: int = 0
    running: int = 0
    applied: int = 0
    skipped: int = 0
    rows: int | None = None
    """What the operations of the applied ones have added; ``None``: unknown of some of them."""
    forgotten: int = 0
    """Those that the table does not remember by name any more."""
    absent: int = 0
    """Those that are not queued, or were taken out."""
    operation: str = ""
    """What applies some of them at present."""
    gate: str = "open"
    awaiting: str = ""
    """The one that waits for approval."""
    blocked: Block | None = None
    """Why the table waits for a decision before these batches go on."""

    @property
    def done(self) -> bool:
        """Whether none of them waits, or is being applied."""
        return not self.waiting and not self.running

    def raise_for_outcome(self) -> Self:
        """Return this.

        Raises
        ------
        OperationFailed
            The table waits for a decision. ``details["cause"]`` is the code of the error.
        Cancelled
            Some batches were taken out before they were applied.
        """
        if (block := self.blocked) is not None:
            raise OperationFailed(
                f"table {self.table!r} is blocked by batch {block.batch!r}: "
                f"{block.error.code}: {block.error.message}",
                hint=f"decide about it: {to_unblock(self.table, block.batch)}",
                details={"table": self.table, "batch": block.batch, "cause": block.error.code},
            )
        if self.done and self.absent:
            raise Cancelled(
                f"{self.absent:,} batches of table {self.table!r} were taken out before they were applied",
                details={"table": self.table},
            )
        return self


LOOK_EVERY_S = 1.0
"""Shortest interval between two looks at the progress of a backfill."""

SHARE = 10
"""A look that takes long is followed by a pause of this many times as long."""


class BackfillCalls(BacklogCalls):
    """The calls on backfills of a table."""

    async def backfill(
        self,
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
            A failed batch is not to be retried without a look at the table; or, with ``hold``, a rollback
            holds the gate, or another call has closed it meanwhile: all batches are queued then.
        """
        names = checked_batches(batches)
        arguments = batch_arguments(argument, names)
        known, ordering = await self._known(names), await self.ordering()
        await self._check_late([name for name in names if name not in known], ordering)
        again = _failed(ordering, known) if retry_failed else ""
        if hold and ordering.held_by:
            raise PreconditionFailed(
                f"the gate of table {self.name!r} is closed by {ordering.held_by}",
                hint=f"decide about the batches that it has taken out: distop backlog open {self.name}",
                details={"table": self.name},
            )
        close = new_call_id()
        if hold:
            await self._control("SetOrdering", table=self.name, gate="closed", call_id=close)
        queued = 0
        for name, wanted in arguments.items():
            state = known[name].state if name in known else ""
            if state == "skipped" or (state == "applied" and not replace):
                continue
            publish = self.replace_batch if state == "applied" else self.enqueue
            try:
                answer = await publish(name, argument=wanted, type=type)
            except BatchDiffers as error:
                error.hint = "take out those that wait (--cancel), and run the backfill again"
                raise
            queued += answer.became == "queued"
        if again:
            with suppress(PreconditionFailed):  # somebody has decided meanwhile
                await self.retry_batch(again)
        if hold:
            # Not if another has closed it while this program slept.
            await self._control_backlog("open", "", "backfill", closed_by=close)
        return changed(await self.backfill_progress(names), queued=queued)

    async def backfill_progress(self, batches: Sequence[str]) -> Backfill:
        """How far these batches are."""
        names = checked_batches(batches)
        # A batch that is blocked, or waits for approval, by then comes after those that are applied by now.
        ordering, known = await self.ordering(), await self._known(names)
        states = Counter(batch.state or "waiting" for batch in known.values())
        missing = [name for name in names if name not in known]
        forgotten = sum(name.encode() <= ordering.forgotten.encode() for name in missing)
        rows = [
            batch.rows for batch in {b.operation: b for b in known.values() if b.state == "applied"}.values()
        ]
        unfinished = bool(states["waiting"] or states["running"])
        return Backfill(
            table=self.name,
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
            awaiting=ordering.awaiting if ordering.awaiting in names else "",
            blocked=ordering.blocked if unfinished else None,
        )

    async def watch_backfill(self, batches: Sequence[str]) -> AsyncGenerator[Backfill, None]:
        """The progress, at most once a second, until none of the batches waits, or the table is blocked."""
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            yield (progress := await self.backfill_progress(batches))
            if progress.done or progress.blocked:
                return
            await asyncio.sleep(max(LOOK_EVERY_S, SHARE * (loop.time() - before)))

    async def cancel_backfill(self, batches: Sequence[str], reason: str = "") -> Backfill:
        """Take out those of the batches that wait, as if they had never been published. Those that are being
        applied go on: cancel their operation."""
        names = checked_batches(batches)
        known = await self._known(names)
        # From the end: what is applied meanwhile leaves no gap.
        for name in reversed(names):
            if name in known and known[name].state == "waiting":
                with suppress(NotFound, PreconditionFailed):  # it is being applied by now, or was
                    await self.remove_batch(name, reason)
        return await self.backfill_progress(names)

    async def _known(self, names: Sequence[str]) -> dict[str, Batch]:
        """Those of the batches that wait, or are remembered. One that is applied anew waits."""
        wanted, known = set(names), dict[str, Batch]()
        # First those that wait: one that is applied meanwhile is found in both lists, and not in none.
        for applied in (False, True):
            async for batch in self.backlog(applied=applied, first=names[0], last=names[-1]):
                if batch.name in wanted:
                    known.setdefault(batch.name, batch)
        return known

    async def _check_late(self, names: Sequence[str], ordering: Ordering) -> None:
        """Raise :class:`~distop.errors.BatchLate` if the table would stop at one of the batches."""
        if names and names[0].encode() <= ordering.forgotten.encode():
            raise BatchLate(
                f"batch {names[0]!r} of table {self.name!r} may have been applied before: batches up to "
                f"{ordering.forgotten!r} are not remembered by name",
                hint="begin after that one",
                details={"table": self.name, "batch": names[0]},
            )
        # What is being applied will be the last one.
        running = list[str]()
        async with aclosing(self.backlog(page_size=1)) as waiting:
            async for batch in waiting:
                if batch.state != "running":
                    break
                running.append(batch.name)
        last = max([ordering.last, *running], key=str.encode)
        late = [name for name in names if name.encode() < last.encode()]
        if late and ordering.late != "apply":
            raise BatchLate(
                f"{len(late):,} batches from {late[0]!r} on sort before {last!r}, which table "
                f"{self.name!r} has applied or skipped: it would stop at each",
                hint="to have them applied next, in their order: distop backlog set "
                f"{self.name} --late apply",
                details={"table": self.name, "batch": late[0], "last": last},
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
        hint=f"decide about it: {to_unblock(ordering.table, block.batch)}",
        details={"table": ordering.table, "batch": block.batch},
    )
