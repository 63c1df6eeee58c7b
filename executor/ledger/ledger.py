"""All access of one host's jobs to etcd, on one event loop: marks in groups, claims, and the watch over runs.

A sidecar has one for the tasks of its host, a runner has one for the tasks that run in its own threads.

Marks that arrive while the previous transaction is in progress are sent in the next one: group commit. An
etcd transaction with one mark costs the same as one with a hundred, since the disk write takes the time. So
no mark is delayed to wait for others: a mark with nothing in progress is sent at once, and groups form under
load.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections import Counter, deque
from collections.abc import Coroutine
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Protocol, TypeVar

import msgspec

from distop.errors import DistopError, OutcomeUnknown, Unavailable
from distop.executor.ledger.claims import ClaimDesk
from distop.executor.ledger.oversight import Oversight
from distop.executor.task.session import ANSWER_TIMEOUT_S, Ownership, TaskSession
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Txn
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.operations import jobs
from distop.metastore.operations.runs import Run
from distop.process.loop import cancel_all, log_failure

log = logging.getLogger(__name__)

IN_FLIGHT = 16
"""Concurrent transactions, over all runs. The client sends small ones together."""
PER_RUN = 2
"""The same for one run, so that a large operation leaves room for the others."""

T = TypeVar("T")


class Submitter(Protocol):
    """The sender of marks, which gets the verdicts (on the event loop; must not block)."""

    def answered(self, answers: list[tuple[int, jobs.Mark, jobs.Verdict]]) -> None:
        """Verdicts, each with the number and the mark it was submitted with."""

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        """These may or may not have been marked: etcd did not answer in time."""


_Entry = tuple[Submitter, int, jobs.Mark]


class _Queue:
    """The waiting marks of one run, and its transactions in progress."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.waiting: deque[_Entry] = deque()
        self.flying = 0

    def take(self) -> list[_Entry]:
        head = list(islice(self.waiting, jobs.MAX_GROUP))
        count = jobs.take_group(self.run, [mark for _, _, mark in head])
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
        self.answered: Counter[jobs.Outcome] = Counter()
        self.unanswered = self.groups = 0
        """So far: marks by their verdict, and without one; and the groups in which they were sent."""
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Marks that wait for a transaction."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def submit(self, run: Run, submitter: Submitter, marks: list[tuple[int, jobs.Mark]]) -> None:
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
        await cancel_all(*self._sending)

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

    async def _answers(self, run: Run, marks: list[jobs.Mark]) -> list[jobs.Verdict]:
        """Send a group until the verdict of each mark is known: all at once, or else each for itself."""
        doubt = False
        if all(jobs.is_plain(mark) for mark in marks):
            try:
                reached("mark.before")
                result = await self._client.txn(jobs.flat_txn(run, marks))
                reached("mark.after")
                if result.succeeded:
                    return [jobs.WON] * len(marks)
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
            return jobs.mark_txn(run, marks)

        reached("mark_each.before")
        result = await settle(
            self._client,
            build,
            patience_s=self._patience_s,
            replied=lambda: reached("mark_each.after"),
        )
        return jobs.verdicts(run, marks, result)

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
            self.unanswered += len(marks)
            log_failure(log, "marks_unanswered", error, operation=str(run.keys.operation), marks=len(marks))
            for submitter, group in groupby(entries, key=itemgetter(0)):
                submitter.unanswered([number for _, number, _ in group], failure)
            return
        self.answered.update(verdict.outcome for verdict in answers)
        pairs = zip(entries, answers, strict=True)
        for submitter, answered in groupby(pairs, key=lambda pair: pair[0][0]):
            submitter.answered([(number, mark, verdict) for (_, number, mark), verdict in answered])


class Ledger:
    """Marks, claims and the watch over runs; belongs to one event loop."""

    def __init__(self, client: EtcdClient) -> None:
        self.client = client
        self.batcher = MarkBatcher(client)
        self.oversight = Oversight(client)
        self.desk = ClaimDesk(client)

    async def close(self) -> None:
        """Stop everything in progress; callers get no answer."""
        await self.oversight.close()
        await self.batcher.close()
        await self.desk.close()


class LocalPort:
    """A session's connection to a ledger in the same process, from other threads to its event loop.

    For one run; the owner of the port watches it and calls :meth:`end`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ledger: Ledger, run: Run) -> None:
        self._loop, self._ledger, self._run = loop, ledger, run
        self._sessions: set[TaskSession[Any]] = set()
        self._lock = threading.Lock()
        self._over = ""
        # Appended to by tasks' threads, emptied by the loop's.
        self._outbox: deque[tuple[TaskSession[Any], tuple[int, jobs.Mark]]] = deque()
        self._scheduled = False

    def end(self, reason: str) -> None:
        """Notify all sessions, also future ones, that the run is over."""
        with self._lock:
            self._over = reason
            sessions = list(self._sessions)
        for session in sessions:
            session.end(reason)

    # -- Port ----------------------------------------------------------------------------------------

    def attach(self, session: TaskSession[Any]) -> None:
        with self._lock:
            self._sessions.add(session)
            over = self._over
        if over:
            session.end(over)

    def detach(self, session: TaskSession[Any]) -> None:
        with self._lock:
            self._sessions.discard(session)
        if session.claims:
            self._loop.call_soon_threadsafe(self._ledger.desk.claimant_gone, session)

    def submit(self, session: TaskSession[Any], number: int, mark: jobs.Mark) -> None:
        self._outbox.append((session, (number, mark)))
        # Appended first: a hand-over that clears the flag after this check finds the mark.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def flush(self) -> None:
        """Do nothing: marks are handed over as they come."""

    def claim(self, session: TaskSession[Any], partition: str, attempt: str) -> Ownership | jobs.Verdict:
        while not session.over:
            answer = self._call(self._ledger.desk.claim(self._run, session, partition, attempt))
            if isinstance(answer, jobs.Claimed):
                checkpoint = answer.checkpoint
                return Ownership(answer.claim, checkpoint.value if checkpoint.exists else None)
            if not isinstance(answer, jobs.Occupied):
                return answer
        return jobs.Verdict(jobs.Outcome.GONE, session.over)

    def release(self, session: TaskSession[Any], partition: str, claim: int) -> None:
        self._call(self._ledger.desk.release(self._run, partition, claim))

    def save(
        self, session: TaskSession[Any], partition: str, claim: int, value: bytes
    ) -> jobs.Verdict | None:
        return self._call(self._ledger.desk.save(self._run, partition, claim, value))

    def count_try(self, session: TaskSession[Any], partition: str, attempt: str, error: str) -> None:
        self._call(jobs.count_try(self._ledger.client, self._run, partition, attempt, error))

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(ANSWER_TIMEOUT_S)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise Unavailable(f"etcd gave no answer for {ANSWER_TIMEOUT_S:g} s") from None
        except concurrent.futures.CancelledError:
            raise Unavailable("the runner is shutting down") from None

    def _hand_over(self) -> None:
        self._scheduled = False
        gathered = []
        while self._outbox:
            gathered.append(self._outbox.popleft())
        for session, entries in groupby(gathered, key=itemgetter(0)):
            self._ledger.batcher.submit(self._run, session, [entry for _, entry in entries])
