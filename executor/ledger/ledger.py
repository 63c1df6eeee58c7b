"""All access of one host's jobs to etcd, on one event loop.

A sidecar has one for the tasks of its host, a runner has one for the tasks that run in its own threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Coroutine
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from distop.errors import Unavailable
from distop.executor.ledger.batcher import MarkBatcher
from distop.executor.ledger.claims import ClaimDesk
from distop.executor.ledger.oversight import Oversight
from distop.executor.task.session import ANSWER_TIMEOUT_S, Ownership, Session
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.operations.claims import Claimed, Occupied
from distop.metastore.operations.jobs import Mark, Outcome, Verdict
from distop.metastore.operations.runs import Run
from distop.metastore.operations.tries import count_try

T = TypeVar("T")


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
        self._sessions: set[Session[Any]] = set()
        self._lock = threading.Lock()
        self._over = ""
        # Appended to by tasks' threads, emptied by the loop's.
        self._outbox: deque[tuple[Session[Any], tuple[int, Mark]]] = deque()
        self._scheduled = False

    def end(self, reason: str) -> None:
        """Notify all sessions, also future ones, that the run is over."""
        with self._lock:
            self._over = reason
            sessions = list(self._sessions)
        for session in sessions:
            session.end(reason)

    # -- Port ----------------------------------------------------------------------------------------

    def attach(self, session: Session[Any]) -> None:
        with self._lock:
            self._sessions.add(session)
            over = self._over
        if over:
            session.end(over)

    def detach(self, session: Session[Any]) -> None:
        with self._lock:
            self._sessions.discard(session)
        if session.claims:
            self._loop.call_soon_threadsafe(self._ledger.desk.claimant_gone, session)

    def submit(self, session: Session[Any], number: int, mark: Mark) -> None:
        self._outbox.append((session, (number, mark)))
        # Appended first: a hand-over that clears the flag after this check finds the mark.
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._hand_over)

    def flush(self) -> None:
        """Nothing is delayed."""

    def claim(self, session: Session[Any], partition: str, attempt: str) -> Ownership | Verdict:
        while not session.over:
            answer = self._call(self._ledger.desk.claim(self._run, session, partition, attempt))
            if isinstance(answer, Claimed):
                found = answer.checkpoint
                return Ownership(answer.claim, found.value if found.exists else None)
            if not isinstance(answer, Occupied):
                return answer
        return Verdict(Outcome.GONE, session.over)

    def release(self, session: Session[Any], partition: str, claim: int) -> None:
        self._call(self._ledger.desk.release(self._run, partition, claim))

    def save(self, session: Session[Any], partition: str, claim: int, value: bytes) -> Verdict | None:
        return self._call(self._ledger.desk.save(self._run, partition, claim, value))

    def count_try(self, session: Session[Any], partition: str, attempt: str, error: str) -> None:
        self._call(count_try(self._ledger.client, self._run, partition, attempt, error))

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
