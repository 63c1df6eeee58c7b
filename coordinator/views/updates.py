"""What somebody who watches an operation is sent: its changes, drawn together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from distop.coordinator.state.tracker import Tracked
from distop.coordinator.views.operations import from_tracked
from distop.errors import Unavailable
from distop.metastore.etcd.watch import WatchBatch
from distop.proto import distop_pb2 as pb

UPDATE_EVERY_S = 0.05
"""Shortest time between two updates, changes of state aside."""

MAX_JOBS_PER_UPDATE = 1000
"""Jobs named in one update; the counts are never cut."""


async def live_updates(
    changes: AsyncGenerator[WatchBatch, None],
    tracked: Tracked,
    revision: int,
    heartbeat_s: float,
    stopping: asyncio.Event,
    ended: Callable[[], Awaitable[pb.OperationUpdate | None]],
    refresh: Callable[[], Awaitable[int]],
) -> AsyncGenerator[pb.OperationUpdate, None]:
    """Updates of a live operation, drawn together so that a fast one does not flood its watcher.

    Ends when the operation's state is gone, after what ``ended`` has to say of that: the watcher hears of the
    end before anything is tidied up here.

    Parameters
    ----------
    refresh:
        Brings what no change tells up to date, and returns the revision it saw something new at, or 0. Called
        before a heartbeat.

    Raises
    ------
    Unavailable
        This coordinator is about to end; another one goes on from the revision seen last.
    """
    pending, news = _Pending(tracked, revision), asyncio.Event()

    async def pump() -> None:
        try:
            async for batch in changes:
                pending.apply(batch.after(revision))
                news.set()
        finally:
            news.set()

    loop = asyncio.get_running_loop()
    pumping = asyncio.create_task(pump())
    stop = asyncio.create_task(stopping.wait())
    stop.add_done_callback(lambda _: news.set())
    sent_at, due = loop.time(), loop.time() + heartbeat_s
    try:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await news.wait()
            news.clear()
            if pumping.done():
                pumping.result()
            if not tracked.state:
                if (last := await ended()) is not None:
                    yield last
                return
            if stop.done():
                raise Unavailable("this coordinator is shutting down", hint="ask another one")
            if pending.changed:
                due = min(due, sent_at + UPDATE_EVERY_S)
            if not pending.changed and loop.time() >= due:
                pending.revision = max(pending.revision, await refresh())
            if pending.urgent or loop.time() >= due:
                update = pending.take()
                sent_at = loop.time()
                due = sent_at + heartbeat_s
                yield update
    finally:
        for task in (pumping, stop):
            task.cancel()
        await asyncio.gather(pumping, stop, return_exceptions=True)


class _Pending:
    """What has changed since the last update of a watcher."""

    def __init__(self, tracked: Tracked, revision: int) -> None:
        self.tracked, self.revision = tracked, revision
        self._begin()

    def _begin(self) -> None:
        self.changed = False
        self.urgent = False
        self._jobs: list[pb.JobUpdate] = []

    def apply(self, batch: WatchBatch) -> None:
        self.revision = max(self.revision, batch.revision)
        keys = self.tracked.keys
        for event in batch.events:
            self.changed = True
            key, deleted = event.kv.key, event.kind == "delete"
            told = (keys.state, keys.cancel, keys.completion, keys.resolve)
            if key == keys.pause or (not deleted and key in told):
                self.urgent = True
            if deleted:
                self.tracked.apply_delete(key, event.kv.mod_revision)
            elif (ended := self.tracked.apply_put(event.kv)) and len(self._jobs) < MAX_JOBS_PER_UPDATE:
                partition, record = ended
                state = "success" if record.state == "success" else "failed"
                self._jobs.append(pb.JobUpdate(partition=partition, state=state, error=record.error))

    def take(self) -> pb.OperationUpdate:
        """The update; from here on the next one is collected."""
        message = from_tracked(self.tracked, self.revision)
        update = pb.OperationUpdate(operation=message, jobs=self._jobs, revision=self.revision)
        self._begin()
        return update
