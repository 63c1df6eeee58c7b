"""One task's work for one run, as the task's thread sees it.

A session blocks where its caller must know the answer (a claim, a checkpoint) and pipelines the rest (marks).
Its :class:`Port` connects it to etcd: over a Unix socket to the host's sidecar, or directly to the event loop
of the same process.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from distop.errors import Cancelled, DistopError, Unavailable
from distop.metastore.operations.jobs import Mark, Verdict
from distop.process.loop import boot_clock

WINDOW = 1024
"""Most unanswered marks of one task; then it waits. Bounds memory, here and in the sidecar."""

ANSWER_TIMEOUT_S = 120.0
"""Timeout of a task without any answer. Longer than the sidecar tries to reach etcd."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ownership:
    """A claim that was granted, and the checkpoint found with it."""

    claim: int
    checkpoint: bytes | None


class Port(Protocol):
    """Connects a session to etcd. Its methods are called from the session's thread."""

    def attach(self, session: TaskSession[Any]) -> None:
        """Begin: from now on notify the session when its run is over."""

    def detach(self, session: TaskSession[Any]) -> None:
        """End: send the session no more notifications."""

    def submit(self, session: TaskSession[Any], number: int, mark: Mark) -> None:
        """Send a mark, soon; the session gets its verdict under ``number``."""

    def flush(self) -> None:
        """The session waits for its verdicts now: do not delay marks."""

    def claim(self, session: TaskSession[Any], partition: str, attempt: str) -> Ownership | Verdict:
        """Claim a job; waits for as long as another attempt owns it."""

    def release(self, session: TaskSession[Any], partition: str, claim: int) -> None:
        """Release the claim of a job, given the create revision of its key."""

    def save(self, session: TaskSession[Any], partition: str, claim: int, value: bytes) -> Verdict | None:
        """Save a checkpoint; returns a verdict if the job is no longer owned."""

    def count_try(self, session: TaskSession[Any], partition: str, attempt: str, error: str) -> None:
        """Record that an attempt has failed and is not the last."""


class TaskSession(Generic[T]):
    """A task's part of one run.

    Parameters
    ----------
    operation, token:
        The run: an operation's id as text, and the run token.
    claims:
        Whether the operation's jobs are claimed.

    ``T`` is what the task wants to get back with a verdict.
    """

    def __init__(self, port: Port, operation: str, token: int, *, claims: bool) -> None:
        self.operation, self.token, self.claims = operation, token, claims
        self.over = ""
        """Why the run is over; empty while it is held. Set by push."""
        self.lost_claim = 0
        """The youngest claim that was lost. Set by push."""
        self.owned_until = math.inf
        """When, by ``boot_clock``, the lease of all claims may be over. The process
        that renews it may be suspended, and cannot notify then."""
        self.closed = False
        self._port = port
        self._numbers = itertools.count(1)
        self._waiting: dict[int, T] = {}
        self._answers: deque[tuple[T, Verdict]] = deque()
        self._failure: DistopError | None = None
        self._changed = threading.Condition()
        port.attach(self)

    def close(self) -> None:
        """Detach from the run. Unanswered marks are abandoned."""
        self.closed = True
        self._port.detach(self)

    # -- for the task's thread -----------------------------------------------------------------------

    def mark(self, mark: Mark, tag: T) -> None:
        """Send a mark without waiting for its verdict; waits only while :data:`WINDOW` are unanswered.

        Raises
        ------
        DistopError
            An earlier mark could not be answered, or nothing was answered for :data:`ANSWER_TIMEOUT_S`.
        """
        if len(self._waiting) >= WINDOW:
            self._port.flush()
            self._until(lambda: len(self._waiting) < WINDOW)
        number = next(self._numbers)
        # Before it is sent: the answer may be here before submit() returns.
        self._waiting[number] = tag
        self._port.submit(self, number, mark)

    def settled(self) -> list[tuple[T, Verdict]]:
        """The verdicts that came since the last call."""
        answers = []
        while self._answers:
            answers.append(self._answers.popleft())
        return answers

    def drain(self) -> list[tuple[T, Verdict]]:
        """Wait for all verdicts; those that came since the last call. Errors as of :meth:`mark`."""
        self._port.flush()
        self._until(lambda: not self._waiting)
        return self.settled()

    def claim(self, partition: str, attempt: str) -> Ownership | Verdict:
        """Own a job, or find that it can no longer be owned."""
        return self._port.claim(self, partition, attempt)

    def release(self, partition: str, claim: int) -> None:
        """Give a job up, so that the next attempt need not wait."""
        self._port.release(self, partition, claim)

    def count_try(self, partition: str, attempt: str, error: str) -> None:
        """Record in etcd that an attempt has failed, for the process that continues if this one dies."""
        self._port.count_try(self, partition, attempt, error)

    def owns(self, claim: int) -> bool:
        """Whether a claim is certainly still held. Once lost, it stays lost."""
        if boot_clock() >= self.owned_until:
            self.lost_claim = max(self.lost_claim, claim)
        return claim > self.lost_claim

    def save(self, partition: str, claim: int, value: bytes) -> None:
        """Save a job's checkpoint.

        Raises
        ------
        Cancelled
            The job is no longer owned; nothing was saved.
        """
        verdict = self._port.save(self, partition, claim, value)
        if verdict is not None:
            self.lost_claim = claim
            raise Cancelled(f"job {partition} of {self.operation} is no longer owned: {verdict.reason}")

    def pause(self, seconds: float) -> None:
        """Wait, but no longer than the run lasts."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self.over), seconds)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for ``condition``, which answers make true, as long as answers arrive."""
        with self._changed:
            while not condition() and self._failure is None:
                if not self._changed.wait(ANSWER_TIMEOUT_S):
                    raise Unavailable(f"no mark of {self.operation} was answered for {ANSWER_TIMEOUT_S:g} s")
            if self._failure is not None:
                raise self._failure

    # -- for the port, from any thread ---------------------------------------------------------------

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        """The port has verdicts on marks."""
        with self._changed:
            for number, _, verdict in answers:
                tag = self._waiting.pop(number, None)
                if tag is not None:
                    self._answers.append((tag, verdict))
            self._changed.notify_all()

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        """Marks that could not be answered. Waiting callers get the error."""
        with self._changed:
            for number in numbers:
                self._waiting.pop(number, None)
            self._failure = error
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """The port knows that the run is over, and why."""
        with self._changed:
            self.over = self.over or reason
            self._changed.notify_all()

    def fail(self, error: DistopError) -> None:
        """The connection to etcd is lost: later work of the task could not be marked."""
        self.unanswered([], error)
        self.end(f"etcd cannot be reached: {error.message}")

    def claim_lost(self, run: object, partition: str, claim: int, reason: str) -> None:
        """A claim is lost. Also reported for claims that a mark released, perhaps late; the youngest one
        counts."""
        self.lost_claim = max(self.lost_claim, claim)
