"""One operation of a table's driver: its running action, the time of its next attempt, and how many of its
jobs are done, which is recorded for other members."""

from __future__ import annotations

import asyncio

from distop.coordinator.state.actions import Action, Wait
from distop.coordinator.state.tracker import Tracked
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Put, Txn, equals
from distop.metastore.members.election import Epoch
from distop.metastore.records.operation import RUNNING, JobCountsRecord
from distop.metastore.records.record import encode

COUNT_EVERY_S = 1.0
"""Shortest time between two records of how many jobs of an operation are done."""


class Slot:
    """One tracked operation, with its running action and the time of its next attempt."""

    def __init__(self, tracked: Tracked, deadline: float | None) -> None:
        self.tracked = tracked
        self.deadline = deadline
        self.task: asyncio.Task[None] | None = None
        self.action: Action = Wait()
        """The running action, or the last one."""
        self.not_before = 0.0
        self.failures = tracked.completion.attempts
        """Failed attempts at the present action in a row, with those of the leaders before."""
        self._said = JobCountsRecord()
        self._say_at = 0.0
        self._saying: asyncio.Task[None] | None = None

    def tasks(self) -> list[asyncio.Task[None]]:
        """The running tasks."""
        return [task for task in (self.task, self._saying) if task is not None]

    def due(self, now: float) -> list[float]:
        """The times of its timers."""
        times = [self._say_at] if self._has_news() else []
        if self.task is None:
            times.append(self.not_before)
            if self.deadline is not None:
                times.append(self.deadline)
        return [time for time in times if time > now]

    def _has_news(self) -> bool:
        """Whether ``.jobCounts``, if the operation has it, is out of date; or ``.events`` must be written."""
        if self.tracked.state != RUNNING:
            return False
        if self.tracked.timeline.unsaid or not self.tracked.has_many:
            return self.tracked.timeline.unsaid
        jobs, said = self.tracked.jobs, self._said
        return (jobs.succeeded, jobs.failed) != (said.succeeded, said.failed)

    def say_progress(self, client: EtcdClient, epoch: Epoch, now: float) -> None:
        """Record how many jobs are done, and what no other key says for long, if it is time.

        Nothing depends on it, and it is soon repeated. So nothing waits for it.
        """
        if self._say_at > now or not self._has_news():
            return
        self._said, self._say_at = self.tracked.counts(), now + COUNT_EVERY_S
        keys, timeline = self.tracked.keys, self.tracked.timeline
        puts: tuple[Put, ...] = ()
        if self.tracked.has_many:
            puts = (Put(keys.job_counts, encode(self._said, checked=False)),)
        if timeline.unsaid:
            puts += (Put(keys.events, encode(self.tracked.events())),)
        told, timeline.unsaid = timeline.unsaid, False
        txn = Txn((equals(keys.state, RUNNING), epoch.held()), puts, lane=keys.table_prefix)

        async def say() -> None:
            try:
                await client.txn(txn, timeout_s=COUNT_EVERY_S)
            except DistopError:
                timeline.unsaid |= told

        self._saying = asyncio.create_task(say())
