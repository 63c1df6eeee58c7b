"""The operations that wait for an executor and that a runner may take: what it watches and lists.

Executors divide the index of waiting operations among themselves (see ``shares.py``), and each watches its
own piece; one with free slots also lists the pieces of others. Events, lost or not, only trigger another
look.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import aclosing, suppress

from distop.errors import CorruptRecord, DistopError
from distop.executor.runner.options import RunnerOptions
from distop.executor.runner.shares import NOTHING, Shares
from distop.executor.runner.types import ServedTypes
from distop.metastore.etcd.client import EtcdClient, Snapshot
from distop.metastore.etcd.watch import WatchBatch, follow
from distop.metastore.operations.active import wait_again
from distop.metastore.operations.pausing import PauseIndex
from distop.metastore.records.components import prefix_end
from distop.metastore.records.operation_id import OperationId

log = logging.getLogger(__name__)

_WINDOW = 60
"""Among this many operations that have waited longest, one of the table that is least busy here is taken."""
_RETRY_S = 0.5
_HELP_S, _HELP_AGAIN_S = 0.1, 0.02
"""How often executors with free slots list the pieces of others: all of them together, so that more executors
send no more requests; and one that has just found something."""
_HELP_PAGE = 100


class Waiting:
    """The operations that one runner may take.

    Parameters
    ----------
    working:
        The operations that it is taking or runs at present.
    """

    def __init__(
        self,
        client: EtcdClient,
        member: str,
        types: ServedTypes,
        options: RunnerOptions,
        working: Collection[OperationId],
        rng: random.Random,
    ) -> None:
        self._client, self._keyspace, self._member = client, client.keyspace, member
        self._types, self._options, self._working, self._rng = types, options, working, rng
        self.operations: dict[OperationId, float] = {}
        """Operations that may need a runner, in the order in which they were seen, with the revision at which
        they waited last."""
        self.wake, self.doubt = asyncio.Event(), asyncio.Event()
        """Set when there may be something to take, and when the index must be listed again."""
        self.shares = Shares(self._keyspace, member, [] if options.only else types.names)
        self._moved = asyncio.Event()
        """Set when its shares have changed."""
        self._pauses = PauseIndex(self._keyspace)
        self._resting: dict[OperationId, float] = {}
        """Operations that could not be finished here, and until when they are left to other executors."""

    @property
    def has_room(self) -> bool:
        """Whether one more operation may be taken."""
        return len(self._working) < self._options.max_operations

    @property
    def resting(self) -> list[OperationId]:
        """Operations that could not be finished here, and are left to other executors for a while."""
        return list(self._resting)

    def rest(self, operation: OperationId) -> None:
        """Leave an operation to other executors for a while: it could not be finished here."""
        self._resting[operation] = time.monotonic() + self._options.rest_s

    def again(self, operation: OperationId) -> None:
        """Take it again, whether or not it is in the index: the runner may hold it."""
        self.operations[operation] = math.inf
        self.doubt.set()

    def pop(self) -> OperationId:
        """Remove and return the longest waiting operation of the table with the fewest running here."""
        busy = Counter(operation.table for operation in self._working)
        waiting = itertools.islice(self.operations, _WINDOW)
        operation = min(waiting, key=lambda operation: busy[operation.table])
        del self.operations[operation]
        return operation

    def follow(self) -> list[asyncio.Task[None]]:
        """Start the tasks that watch and list. Cancel them to end."""
        return [
            # The operations of an executor that ended have no runner now.
            asyncio.create_task(self._follow(self._keyspace.executors, self._heed_members)),
            asyncio.create_task(self._follow(self._keyspace.paused, self._heed_pauses)),
            asyncio.create_task(self._follow_shares()),
            asyncio.create_task(self._look()),
            asyncio.create_task(self._help()),
        ]

    async def _follow(
        self,
        start: bytes,
        heed: Callable[[Snapshot | WatchBatch], None],
        end: bytes = b"",
        *,
        keys_only: bool = False,
        deletes: bool = True,
    ) -> None:
        while True:
            try:
                changes = follow(self._client, start, end, keys_only=keys_only, deletes=deletes)
                async with aclosing(changes) as news:
                    async for one in news:
                        heed(one)
            except DistopError as error:
                log.warning("runner_cannot_follow", extra={"prefix": start.decode(), "error": str(error)})
                await asyncio.sleep(_RETRY_S)

    async def _follow_shares(self) -> None:
        """Watch the shares of this executor for operations that begin to wait."""
        while True:
            self._moved.clear()
            hull, following = self.shares.hull, None
            if hull != NOTHING:
                start, end = (self._keyspace.waiting_from(share) for share in hull)
                # Deletions are not watched: the transaction that takes an operation finds out.
                following = asyncio.create_task(
                    self._follow(start, self._heed_waiting, end, keys_only=True, deletes=False)
                )
            try:
                await self._moved.wait()
            finally:
                if following is not None:
                    following.cancel()
                    await asyncio.gather(following, return_exceptions=True)

    def _heed_waiting(self, news: Snapshot | WatchBatch) -> None:
        if isinstance(news, Snapshot):
            kvs = sorted(news.kvs, key=lambda kv: kv.create_revision)
        else:
            kvs = [event.kv for event in news.events]
        for kv in kvs:
            operation = self._served(kv.key)
            if operation is not None and self.shares.hold(operation):
                self.operations[operation] = news.revision
        self.wake.set()

    def _heed_members(self, news: Snapshot | WatchBatch) -> None:
        before = self.shares.hull
        self.shares.apply(news)
        if self.shares.hull != before:
            self._moved.set()
        if isinstance(news, Snapshot) or any(event.kind == "delete" for event in news.events):
            self.doubt.set()

    def _heed_pauses(self, news: Snapshot | WatchBatch) -> None:
        """Paused operations are not taken; those that run are stopped by the ledger's watch."""
        self._pauses.apply(news)
        if isinstance(news, Snapshot) or any(event.kind == "delete" for event in news.events):
            self.doubt.set()

    def _served(self, waiting: bytes) -> OperationId | None:
        """The operation of an entry, if it may be taken here."""
        try:
            operation = self._keyspace.parse_waiting(waiting)
        except CorruptRecord as error:
            log.warning("waiting_key_unknown", extra={"error": str(error)})
            return None
        return operation if self.may_take(operation) else None

    def may_take(self, operation: OperationId) -> bool:
        return (
            self._options.only in (None, operation)
            and self._types.get(operation.type) is not None
            and operation not in self._working
            and operation not in self._resting
            and not self._pauses.holds(operation)
        )

    async def _look(self) -> None:
        """List everything, in doubt and from time to time."""
        while True:
            try:
                await self._look_at_all()
            except DistopError as error:
                log.warning("runner_cannot_look", extra={"member": self._member, "error": str(error)})
                await asyncio.sleep(_RETRY_S)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.resync_s * self._rng.uniform(0.5, 1.0)):
                    await self.doubt.wait()

    async def _look_at_all(self) -> None:
        """In the shares of this executor: return operations without a runner to the index; list the waiting
        ones."""
        self.doubt.clear()
        now = time.monotonic()
        self._resting = {operation: until for operation, until in self._resting.items() if until > now}
        if self._options.only is not None:
            if self.may_take(self._options.only):
                self.operations[self._options.only] = math.inf
            self.wake.set()
            return
        hull = self.shares.hull
        if hull == NOTHING:
            return
        start, end = (self._keyspace.waiting_from(share) for share in hull)
        standing = await self._client.scan(start, end, keys_only=True)
        known = {kv.key for kv in standing.kvs}
        self._forget_taken(known, standing.revision)
        active = await self._client.scan(self._keyspace.active, keys_only=True)
        left = []
        for kv in active.kvs:
            try:
                keys = self._keyspace.operation(self._keyspace.parse_active(kv.key))
            except CorruptRecord as error:
                log.warning("active_key_unknown", extra={"error": str(error)})
                continue
            if self.shares.hold(keys.operation) and keys.operation not in self._working:
                left += [keys] if keys.waiting not in known else []
        await wait_again(self._client, left)  # the watch delivers these
        self._heed_waiting(standing)

    def _forget_taken(self, known: Collection[bytes], revision: int) -> None:
        """Others take them while all slots here are in use, and their deletions are not watched."""
        for operation, seen in list(self.operations.items()):
            if seen <= revision and self._keyspace.waiting_operation(operation) not in known:
                del self.operations[operation]

    async def _help(self) -> None:
        """While slots are free and nothing waits here, list the operations that wait in the pieces of
        others."""
        cursor, pause = self._keyspace.waiting, _HELP_S
        while True:
            await asyncio.sleep(pause * self._rng.uniform(0.5, 1.5))
            pause = _HELP_S * max(self.shares.executors, 2)
            if not self.has_room or self.operations or not self.shares.divided:
                continue
            try:
                end = prefix_end(self._keyspace.waiting)
                page = await self._client.get_range(cursor, end, keys_only=True, limit=_HELP_PAGE)
            except DistopError:
                continue  # their own executors report it
            cursor = page.kvs[-1].key + b"\0" if page.more else self._keyspace.waiting
            found = [one for kv in page.kvs if (one := self._served(kv.key)) is not None]
            if found:
                room = self._options.max_operations - len(self._working)
                picked = self._rng.sample(found, min(room, len(found)))
                self.operations.update(dict.fromkeys(picked, page.revision))
                self.wake.set()
                pause = _HELP_AGAIN_S
