"""What somebody who watches an operation is sent: its changes, drawn together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

from distop.coordinator.views.operations import LiveView
from distop.errors import Unavailable
from distop.metastore.etcd.watch import WatchBatch
from distop.proto import distop_pb2 as pb

UPDATE_EVERY_S = 0.05
"""Shortest time between two updates, changes of state aside."""

MAX_JOBS_PER_UPDATE = 1000
"""Jobs named in one update; the counts are never cut."""


async def live_updates(
    changes: AsyncGenerator[WatchBatch, None],
    view: LiveView,
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
    pending, news = _Pending(revision), asyncio.Event()

    async def pump() -> None:
        try:
            async for batch in changes:
                pending.apply(view, batch.after(revision))
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
            if not view.tracked.state:
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
                update = pending.take(view)
                sent_at = loop.time()
                due = sent_at + heartbeat_s
                yield update
    finally:
        for task in (pumping, stop):
            task.cancel()
        await asyncio.gather(pumping, stop, return_exceptions=True)


class _Pending:
    """What has changed since the last update of a watcher."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        self._begin()

    def _begin(self) -> None:
        self.changed = False
        self.urgent = False
        self._jobs: list[pb.JobUpdate] = []

    def apply(self, view: LiveView, batch: WatchBatch) -> None:
        self.revision = max(self.revision, batch.revision)
        tracked = view.tracked
        for event in batch.events:
            self.changed = True
            if event.kv.key == tracked.keys.pause:
                self.urgent = True
            if event.kind == "delete":
                view.apply_delete(event.kv)
                continue
            view.apply_put(event.kv)
            if event.kv.key in (tracked.keys.state, tracked.keys.cancel):
                self.urgent = True
            elif event.kv.key.endswith(b".state") and len(self._jobs) < MAX_JOBS_PER_UPDATE:
                named = tracked.keys.partition_of(event.kv.key)
                failed = tracked.failed.get(event.kv.key)
                if named is not None:
                    self._jobs.append(
                        pb.JobUpdate(
                            partition=named[0],
                            state="failed" if failed else "success",
                            error=failed.error if failed else "",
                        )
                    )

    def take(self, view: LiveView) -> pb.OperationUpdate:
        """The update; from here on the next one is collected."""
        update = pb.OperationUpdate(
            operation=view.message(self.revision), jobs=self._jobs, revision=self.revision
        )
        self._begin()
        return update
