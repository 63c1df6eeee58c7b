"""Operations that somebody looks at: each is listed once and then kept up to date by a watch.

What a look costs does not grow with the number of lookers, nor with how often they look: an operation of
100,000 jobs is read once, and its marks come as they are made. Nobody looks for a while: the watch ends.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from distop.coordinator.state.grid import JobGrid
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.views.operations import from_tracked
from distop.errors import Compacted, DeadlineExceeded, DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Txn
from distop.metastore.etcd.watch import WatchBatch, watch
from distop.metastore.records.keyspace import OperationId, prefix_end
from distop.proto import distop_pb2 as pb

log = logging.getLogger(__name__)

IDLE_S = 10.0
"""Seconds without a look after which an operation is no longer followed."""

MAX_FOLLOWED = 128
"""Operations followed at one time; the one not looked at for longest makes room."""

FIRST_LOOK_S = 0.5
"""Longest wait for the first listing of an operation; a larger one shows what has been read by then."""

RETRY_S = 0.5
PAGE = 1000
"""Keys read at once: few enough that the event loop is not held up for more than some milliseconds."""


class Followed:
    """One live operation, as its keys say."""

    def __init__(self, client: EtcdClient, operation: OperationId) -> None:
        self.operation = operation
        self.looked_at = 0.0
        self._client = client
        self._keys = client.keyspace.operation(operation)
        self._tracked: Tracked | None = None
        self._revision = 0
        self._listed = asyncio.Event()
        self._error: DistopError | None = None

    async def look(self) -> tuple[pb.Operation, JobGrid] | None:
        """The operation and its jobs as they stand; ``None`` when it is over.

        Raises whatever keeps it from being read.
        """
        try:
            async with asyncio.timeout(FIRST_LOOK_S):
                await self._listed.wait()
        except TimeoutError:
            if self._tracked is None and self._error is None:
                raise DeadlineExceeded(
                    f"{self.operation} could not be read within {FIRST_LOOK_S:g} s"
                ) from None
        if self._error is not None:
            raise self._error
        if self._tracked is None or not self._tracked.state:
            return None
        return from_tracked(self._tracked, self._revision), self._tracked.jobs

    async def run(self) -> None:
        """Keep it up to date until it is over."""
        while True:
            try:
                await self._follow()
                return
            except Compacted:
                continue
            except DistopError as error:
                self._error = error
                self._listed.set()
                log.info("follow_failed", extra={"operation": str(self.operation), "error": str(error)})
                await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        prefix = self._keys.prefix
        async with aclosing(watch(self._client, prefix, prefix_end(prefix))) as changes:
            await anext(changes)
            revision = await self._list()
            self._error = None
            self._listed.set()
            if self._tracked is None:
                return
            async for batch in changes:
                if not self._apply(batch.after(revision)):
                    return

    async def _list(self) -> int:
        """Read everything at one revision, page by page."""
        keys = self._keys
        wishes = (keys.cancel, keys.error, keys.pause, keys.completion, keys.resolve)
        header = (keys.arg, keys.state, keys.runner, keys.run, *wishes)
        result = await self._client.txn(Txn(then=tuple(Get(key) for key in header)))
        found = [kv for index, key in enumerate(header) if (kv := result.one(index, key)).exists]
        revision = self._revision = result.revision
        tracked = self._tracked = Tracked.of(keys, found)
        if tracked is None:
            return revision
        tracked.jobs.complete = False
        start, end = keys.prefix, prefix_end(keys.prefix)
        while True:
            page = await self._client.get_range(start, end, revision=revision, limit=PAGE)
            for kv in page.kvs:
                tracked.apply_put(kv)
            if not page.more:
                tracked.jobs.complete = True
                return revision
            start = page.kvs[-1].key + b"\0"

    def _apply(self, batch: WatchBatch) -> bool:
        """Changes of the operation; ``False`` once it is over."""
        tracked = self._tracked
        if tracked is None:
            return False
        if any(event.kind == "delete" and event.kv.key == self._keys.state for event in batch.events):
            # Its other keys may go in the same revision: that takes no result back.
            tracked.set_state(b"", batch.revision)
            return False
        for event in batch.events:
            if event.kind == "put":
                tracked.apply_put(event.kv)
            else:
                tracked.apply_delete(event.kv.key, event.kv.mod_revision)
        self._revision = max(self._revision, batch.revision)
        return True


class Following:
    """The operations that are followed at present; belongs to one event loop."""

    def __init__(self, client: EtcdClient, *, idle_s: float = IDLE_S) -> None:
        self._client = client
        self._idle_s = idle_s
        self._followed: dict[OperationId, tuple[Followed, asyncio.Task[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._followed)

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
        entry = self._followed.get(operation)
        if entry is None or entry[1].done():
            if len(self._followed) >= MAX_FOLLOWED:
                self._drop(min(self._followed, key=lambda one: self._followed[one][0].looked_at))
            followed = Followed(self._client, operation)
            task = asyncio.create_task(followed.run(), name=f"follow-{operation}")
            self._followed[operation] = followed, task
        followed, _ = self._followed[operation]
        followed.looked_at = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._idle_s, self._expire)
        seen = await followed.look()
        if seen is None:
            self._drop(operation)
        return seen

    async def close(self) -> None:
        """Stop following."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [task for _, task in self._followed.values()]
        self._followed.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _drop(self, operation: OperationId) -> None:
        if (entry := self._followed.pop(operation, None)) is not None:
            entry[1].cancel()

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        for operation, (followed, task) in list(self._followed.items()):
            if task.done() or loop.time() - followed.looked_at >= self._idle_s:
                self._drop(operation)
        if self._followed:
            self._timer = loop.call_later(self._idle_s, self._expire)
