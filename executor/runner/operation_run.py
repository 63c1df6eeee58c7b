"""One run of an operation, from taking it to the end of its last job."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from distop.errors import DistopError
from distop.executor.host.scratch import Scratch
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.launch.launch import (
    Launch,
    Launched,
    LaunchedFrame,
    Launcher,
    LauncherBroken,
    LaunchFailed,
)
from distop.executor.ledger.ledger import Ledger
from distop.executor.task.task import Work
from distop.metastore.crashpoints import reached
from distop.metastore.operations.jobs import Mark, Verdict, failure_record
from distop.metastore.operations.runs import Run, Taken, why_over, without_result
from distop.metastore.operations.tries import Tried, read_tries
from distop.operations import DistributedOperation

log = logging.getLogger(__name__)

MAX_LAUNCHES = 4
"""Consecutive launches without a finished job, after which the remaining jobs are marked failed."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
"""Pauses in seconds before unfinished jobs are launched again: doubled each time, then shortened at
random."""

MARKS_AT_ONCE = 1000
"""How many jobs are marked failed in one request."""


class End(Enum):
    """How a run ended for this runner."""

    SETTLED = "settled"
    """All jobs have a result."""
    OVER = "over"
    """The run was taken away, or the runner was asked to stop."""
    LEFT = "left"
    """It could not be finished here; other executors may try."""


class OperationRun:
    """Runs the jobs of one operation. Belongs to the runner's event loop."""

    def __init__(
        self,
        ledger: Ledger,
        launcher: Launcher,
        operation: DistributedOperation,
        taken: Taken,
        *,
        clock: Callable[[], float] = time.time,
        rng: random.Random,
    ) -> None:
        self.taken = taken
        self.run = taken.run
        self.over = ""
        """Why the run is over; empty while it is held."""
        self.left = ""
        """Why it could not be finished here, if it was :data:`End.LEFT`."""
        self._ledger, self._launcher = ledger, launcher
        config = ledger.client.config
        scratch = Scratch(SidecarFolder.of(config.endpoints, config.prefix))
        self._work = Work(operation=operation, arg=taken.arg, run_token=taken.run.token, scratch=scratch)
        self._clock, self._rng = clock, rng
        self._ended = asyncio.Event()
        self._launched: Launched | LaunchedFrame | None = None
        self._failed = ""
        """Why the last launch failed."""
        self._given_up: asyncio.Future[None] | None = None
        self._given_up_left = 0

    def cancel(self, reason: str) -> None:
        """Cancel its tasks; :meth:`finish` returns once they have ended."""
        self.over = self.over or reason
        self._ended.set()
        if self._launched is not None:
            self._launched.cancel(reason)

    async def held_up(self) -> str:
        """What keeps its jobs from going on; empty: nothing that is known, or the run is over."""
        if self.over:
            return ""
        now = await asyncio.to_thread(self._launched.held_up) if self._launched is not None else ""
        return now or (f"its jobs are launched again after: {self._failed}" if self._failed else "")

    def run_over(self, run: Run, reason: str) -> None:
        """See :class:`~distop.executor.ledger.oversight.RunListener`."""
        log.info("run_over", extra={"operation": str(run.keys.operation), "reason": reason})
        self.cancel(reason)

    async def finish(self) -> End:
        """Launch the unfinished jobs, repeatedly if necessary, until all have a result.

        Raises
        ------
        LauncherBroken
            Nothing can be launched here any more.
        """
        claims = self._ledger.desk if self._work.claims else None
        self._ledger.oversight.attach(self.run, self, claims=claims, known_at=self.run.token)
        try:
            return await self._finish(list(self.taken.unfinished))
        except LauncherBroken:
            raise
        except DistopError as error:
            log.warning(
                "operation_left", extra={"operation": str(self.run.keys.operation), "error": str(error)}
            )
            self.left = error.message
            return End.LEFT
        finally:
            self._ledger.oversight.detach(self.run, self)

    async def _finish(self, unfinished: list[str]) -> End:
        fruitless = 0
        tried = await read_tries(self._ledger.client, self.run.keys, self.taken.standing)
        while unfinished and not self._ended.is_set():
            reason = await self._launch(unfinished, tried)
            if not reason:
                # Also if the leader has finished the operation before the last task has ended here.
                return End.SETTLED
            if self._ended.is_set():
                break
            client, keys = self._ledger.client, self.run.keys
            standing = (await client.scan(keys.prefix, keys_only=True)).kvs
            left = without_result(keys, self.taken.arg, standing)
            tried = await read_tries(client, keys, standing)
            fruitless = 0 if len(left) < len(unfinished) else fruitless + 1
            unfinished = left
            if unfinished and fruitless and (over := (await why_over(client, self.run))[0]):
                # Its tasks may see its end, or a pause, before this process does. The jobs did not fail.
                self.cancel(over)
                break
            self._failed = reason if fruitless else ""
            if unfinished and fruitless >= MAX_LAUNCHES and self._work.operation.can_fail:
                await self._give_up(unfinished, reason)
                break
            if unfinished:
                await self._pause(fruitless)
        return End.OVER if self._ended.is_set() else End.SETTLED

    async def _launch(self, partitions: list[str], tried: dict[str, Tried]) -> str:
        """Launch these jobs and wait for their end. Returns why some have no result; empty: all have one."""
        operation = str(self.run.keys.operation)
        log.debug("launching", extra={"operation": operation, "jobs": len(partitions)})
        launch = Launch(
            run=self.run,
            work=replace(self._work, tried={name: tried[name] for name in partitions if name in tried}),
            arg_value=self.taken.arg_value,
            partitions=partitions,
        )
        reached("launch.before")
        launched = self._launched = self._launcher.launch(launch)
        reached("launch.middle")
        if self.over:
            launched.cancel(self.over)
        try:
            summary = await launched.wait()
            reached("launch.after")
        except LauncherBroken:
            raise
        except DistopError as error:
            if not self._ended.is_set():
                log.warning("launch_failed", extra={"operation": operation, "error": str(error)})
            return error.message
        finally:
            self._launched = None
        left = len(partitions) - summary.finished
        return f"{left} of {len(partitions)} jobs were left without a result" if left > 0 else ""

    async def _pause(self, fruitless: int) -> None:
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(fruitless, 16))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest * self._rng.uniform(0.5, 1.0)):
                await self._ended.wait()

    # -- giving jobs up ------------------------------------------------------------------------------

    async def _give_up(self, partitions: list[str], reason: str) -> None:
        """Mark jobs failed that cannot be run. Leftovers of attempts are removed after the operation."""
        log.error(
            "jobs_given_up",
            extra={
                "operation": str(self.run.keys.operation),
                "jobs": len(partitions),
                "reason": reason,
            },
        )
        numbers, rest = itertools.count(1), iter(partitions)
        while marks := [
            (number, self._failure(number, partition, reason))
            for number, partition in zip(itertools.islice(numbers, MARKS_AT_ONCE), rest, strict=False)
        ]:
            self._given_up = asyncio.get_running_loop().create_future()
            self._given_up_left = len(marks)
            self._ledger.batcher.submit(self.run, self, marks)
            await self._given_up

    def _failure(self, number: int, partition: str, reason: str) -> Mark:
        attempt = f"{self.run.token}-runner-{self._rng.getrandbits(48):012x}-{number}"
        return Mark(partition, attempt, failure_record(attempt, LaunchFailed.code, reason, self._clock()))

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        """See ``Submitter``. The job has a result: this one, or that of another attempt."""
        self._given_up_left -= len(answers)
        if self._given_up is not None and self._given_up_left <= 0 and not self._given_up.done():
            self._given_up.set_result(None)

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        """See :class:`~distop.executor.ledger.batcher.Submitter`."""
        if self._given_up is not None and not self._given_up.done():
            self._given_up.set_exception(error)
