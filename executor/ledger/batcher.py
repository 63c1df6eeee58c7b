"""Group commit: marks that arrive while the previous transaction is in progress are sent in the next one.

An etcd transaction with one mark costs the same as one with a hundred, since the disk write takes the time.
So no mark is delayed to wait for others: a mark with nothing in progress is sent at once, and groups form
under load.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from itertools import groupby, islice
from operator import itemgetter
from typing import Protocol

import msgspec

from distop.errors import DistopError, OutcomeUnknown
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Txn
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.operations.jobs import (
    MAX_GROUP,
    WON,
    Mark,
    Outcome,
    Verdict,
    flat_txn,
    is_plain,
    mark_txn,
    take_group,
    verdicts,
)
from distop.metastore.operations.runs import Run

log = logging.getLogger(__name__)

IN_FLIGHT = 16
"""Concurrent transactions, over all runs. The client sends small ones together."""
PER_RUN = 2
"""The same for one run, so that a large operation leaves room for the others."""


class Submitter(Protocol):
    """The sender of marks, which gets the verdicts (on the event loop; must not block)."""

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        """Verdicts, each with the number and the mark it was submitted with."""

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        """These may or may not have been marked: etcd did not answer in time."""


_Entry = tuple[Submitter, int, Mark]


class _Queue:
    """The waiting marks of one run, and its transactions in progress."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.waiting: deque[_Entry] = deque()
        self.flying = 0

    def take(self) -> list[_Entry]:
        head = list(islice(self.waiting, MAX_GROUP))
        count = take_group(self.run, [mark for _, _, mark in head])
        for _ in range(count):
            self.waiting.popleft()
        return head[:count]


class MarkBatcher:
    """Sends the marks of all runs of a host; belongs to one event loop.

    Parameters
    ----------
    patience_s:
        How long a group is retried while etcd does not answer.
    """

    def __init__(self, client: EtcdClient, *, patience_s: float = PATIENCE_S) -> None:
        self._client, self._patience_s = client, patience_s
        self._queues: dict[tuple[bytes, int], _Queue] = {}
        self._turns: deque[_Queue] = deque()
        self._sending: set[asyncio.Task[None]] = set()
        self.answered: Counter[Outcome] = Counter()
        self.unanswered = self.groups = 0
        """So far: marks by their verdict, and without one; and the groups in which they were sent."""
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Marks that wait for a transaction."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def submit(self, run: Run, submitter: Submitter, marks: list[tuple[int, Mark]]) -> None:
        """Accept marks. The submitter has to bound how many wait here."""
        queue = self._queues.get(run.key)
        if queue is None:
            queue = self._queues[run.key] = _Queue(run)
            self._turns.append(queue)
        queue.waiting.extend((submitter, number, mark) for number, mark in marks)
        self._idle.clear()
        self._send_what_fits()

    async def flush(self, timeout_s: float) -> bool:
        """Wait until nothing waits or is in progress; return whether that happened in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Drop unanswered marks without notifying their senders."""
        self._closed = True
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    def _send_what_fits(self) -> None:
        """Start transactions while there is room, the runs taking turns."""
        for _ in range(len(self._turns)):
            if self._closed or len(self._sending) >= IN_FLIGHT:
                return
            queue = self._turns[0]
            self._turns.rotate(-1)
            if queue.waiting and queue.flying < PER_RUN:
                queue.flying += 1
                task = asyncio.create_task(self._send(queue, queue.take()))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def _send(self, queue: _Queue, entries: list[_Entry]) -> None:
        try:
            await self._settle(queue.run, entries)
        finally:
            if (task := asyncio.current_task()) is not None:
                self._sending.discard(task)
            queue.flying -= 1
            if not queue.waiting and not queue.flying:
                del self._queues[queue.run.key]
                self._turns.remove(queue)
            if not self._queues:
                self._idle.set()
            self._send_what_fits()

    async def _answers(self, run: Run, marks: list[Mark]) -> list[Verdict]:
        """Send a group until the verdict of each mark is known: all at once, or else each for itself."""
        doubt = False
        if all(is_plain(mark) for mark in marks):
            try:
                reached("mark.before")
                result = await self._client.txn(flat_txn(run, marks))
                reached("mark.after")
                if result.succeeded:
                    return [WON] * len(marks)
            except OutcomeUnknown:
                doubt = True
            except DistopError as error:
                if not error.retryable:
                    raise
                # Nothing was written; the following is retried as long as necessary.

        def build(repeated: bool) -> Txn:
            nonlocal marks
            if repeated or doubt:
                marks = [msgspec.structs.replace(mark, repeated=True) for mark in marks]
            return mark_txn(run, marks)

        reached("mark_each.before")
        result = await settle(
            self._client,
            build,
            patience_s=self._patience_s,
            replied=lambda: reached("mark_each.after"),
        )
        return verdicts(run, marks, result)

    async def _settle(self, run: Run, entries: list[_Entry]) -> None:
        marks = [mark for _, _, mark in entries]
        self.groups += 1
        try:
            answers = await self._answers(run, marks)
        except Exception as error:
            # Any other error: no caller may wait for ever, or take this for an answer.
            failure = (
                error if isinstance(error, DistopError) else OutcomeUnknown(f"marking failed: {error!r}")
            )
            operation = str(run.keys.operation)
            self.unanswered += len(marks)
            log.warning(
                "marks_unanswered", extra={"operation": operation, "marks": len(marks)}, exc_info=True
            )
            for submitter, group in groupby(entries, key=itemgetter(0)):
                submitter.unanswered([number for _, number, _ in group], failure)
            return
        self.answered.update(verdict.outcome for verdict in answers)
        pairs = zip(entries, answers, strict=True)
        for submitter, answered in groupby(pairs, key=lambda pair: pair[0][0]):
            submitter.answered([(number, mark, verdict) for (_, number, mark), verdict in answered])
