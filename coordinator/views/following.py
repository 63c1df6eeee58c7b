"""Which operations are followed here, for which callers, and how often watchers get updates."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from distop.coordinator.state.grid import JobGrid
from distop.coordinator.state.leads import Leads
from distop.coordinator.views.followed import Followed
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.records.operation_id import OperationId
from distop.proto import distop_pb2 as pb

IDLE_S = 10.0
"""Seconds without a look after which an operation is no longer followed."""

MAX_FOLLOWED = 128
"""Operations followed for occasional looks; the least recently used one is dropped."""

UPDATE_EVERY_S = 0.05
"""Shortest time between two updates, changes of state aside."""

UPDATES_PER_S = 1000
"""Updates sent to all watchers of a coordinator together: with more than fifty watchers each gets fewer."""


class Following:
    """The operations that are followed at present; belongs to one event loop."""

    def __init__(self, client: EtcdClient, leads: Leads | None = None, *, idle_s: float = IDLE_S) -> None:
        self._client = client
        self._leads = leads or Leads()
        self._idle_s = idle_s
        self._followed: dict[tuple[OperationId, bool], tuple[Followed, asyncio.Task[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._watchers = 0

    def __len__(self) -> int:
        return len(self._followed)

    def spacing(self, urgent: bool) -> float:
        """Shortest time between two updates of one operation, in seconds."""
        fair = self._watchers / UPDATES_PER_S
        return fair if urgent else max(UPDATE_EVERY_S, fair)

    async def look(self, operation: OperationId) -> tuple[pb.Operation, JobGrid] | None:
        """A live operation and its jobs; ``None`` if it is not live (any more).

        Raises
        ------
        EtcdUnavailable, CorruptRecord
            It cannot be read.
        DeadlineExceeded
            etcd takes too long.
        """
        loop = asyncio.get_running_loop()
        if (operation, True) not in self._followed and len(self._followed) >= MAX_FOLLOWED:
            idle = [key for key, (followed, _) in self._followed.items() if not followed.watchers]
            if idle:
                self._drop(min(idle, key=lambda key: self._followed[key][0].looked_at))
        followed = self._follow(operation, True)
        followed.looked_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._idle_s, self._expire)
        seen = await followed.look()
        if seen is None and not followed.watchers:
            self._drop((operation, True))
        return seen

    @contextmanager
    def watching(self, operation: OperationId, *, whole: bool) -> Generator[Followed, None, None]:
        """Follow an operation while it has watchers."""
        followed = self._follow(operation, whole)
        followed.watchers += 1
        self._watchers += 1
        try:
            yield followed
        finally:
            followed.watchers -= 1
            self._watchers -= 1
            now = asyncio.get_running_loop().time()
            if not followed.watchers and now - followed.looked_at >= self._idle_s:
                self._drop((operation, whole), followed)

    def tell_all(self) -> None:
        """Wake all watchers."""
        for followed, _ in self._followed.values():
            followed.tell()

    async def close(self) -> None:
        """Stop following."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for _, task in self._followed.values()]
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _follow(self, operation: OperationId, whole: bool) -> Followed:
        entry = self._followed.get((operation, whole))
        if entry is None or entry[1].done():
            followed = Followed(self._client, self._leads, operation, whole, self.spacing)
            task = asyncio.create_task(followed.run(), name=f"follow-{operation}")
            entry = self._followed[operation, whole] = followed, task
        return entry[0]

    def _drop(self, key: tuple[OperationId, bool], only: Followed | None = None) -> None:
        entry = self._followed.get(key)
        if entry is not None and only in (None, entry[0]):
            del self._followed[key]
            entry[1].cancel()

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for key, (followed, task) in list(self._followed.items()):
            if task.done() or (not followed.watchers and loop.time() - followed.looked_at >= self._idle_s):
                self._drop(key)
        if self._followed:
            self._timer = loop.call_later(self._idle_s, self._expire)
