"""The operations that wait for an executor and that a runner may take: what it watches and lists.

The live executors of a type divide the index of waiting operations among themselves without messages. Each
operation belongs to a share, by a hash of its name (:meth:`Keyspace.share_of`), and each executor of its type
has a piece of the shares, which it watches. So only one executor is notified when an operation begins to
wait. A piece is a hint and no right: the transaction that takes an operation decides which executor runs it.

Events, lost or not, only spare time: one task looks again and again at all that an executor must not forget,
whatever has happened to it (:meth:`WaitingOperations._let_all_wait`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import aclosing, suppress
from typing import NamedTuple

from distop.executor.runner.options import RunnerOptions, ServedTypes
from distop.metastore.etcd.client import EtcdClient, Listing
from distop.metastore.etcd.txn import KeyValue, named
from distop.metastore.etcd.watch import WatchBatch, follow
from distop.metastore.operations.pausing import PauseIndex
from distop.metastore.operations.runs import wait_again
from distop.metastore.records.keyspace import SHARES, Keyspace
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.record import readable
from distop.process.loop import cancel_all, log_failure

log = logging.getLogger(__name__)

_WINDOW = 60
"""Among this many operations that have waited longest, one of the table that is least busy here is taken."""
_RETRY_S = 0.5
_HELP_S, _HELP_AGAIN_S = 0.1, 0.02
"""How often executors with free slots list the pieces of others: all of them together, so that more executors
send no more requests; and one that has just found something."""
_HELP_PAGE = 100


class ShareRange(NamedTuple):
    """Shares from ``first`` to (without) ``end``."""

    first: int
    end: int

    def __contains__(self, share: object) -> bool:
        return isinstance(share, int) and self.first <= share < self.end


NOTHING = ShareRange(0, 0)


def piece_of(member: str, members: Iterable[str]) -> ShareRange:
    """The piece of one member, given all live ones of its type."""
    ordered = sorted(members)
    if member not in ordered:
        return NOTHING
    position = ordered.index(member)
    return ShareRange(position * SHARES // len(ordered), (position + 1) * SHARES // len(ordered))


class Shares:
    """The pieces of one executor, updated from ``follow(keyspace.executors)``, with values."""

    def __init__(self, keyspace: Keyspace, member: str, types: Iterable[str]) -> None:
        self._keyspace, self._member = keyspace, member
        self._pieces = dict.fromkeys(types, NOTHING)
        self._executors: dict[bytes, MemberRecord] = {}

    @property
    def executors(self) -> int:
        """How many live executors serve more than one operation."""
        return len(self._executors)

    @property
    def divided(self) -> bool:
        """Whether other executors watch shares that this one may take from."""
        return self._keyspace.executor(self._member) in self._executors and len(self._executors) > 1

    @property
    def hull(self) -> ShareRange:
        """The smallest piece that contains those of all types. Usually all executors serve the same types."""
        pieces = [piece for piece in self._pieces.values() if piece != NOTHING]
        return (
            ShareRange(min(piece.first for piece in pieces), max(piece.end for piece in pieces))
            if pieces
            else NOTHING
        )

    def hold(self, operation: OperationId) -> bool:
        """Whether this executor watches the operation while it waits."""
        return self._keyspace.share_of(operation) in self._pieces.get(operation.type, NOTHING)

    def apply(self, change: Listing | WatchBatch) -> None:
        """Apply a listing of executors, or changes to it."""
        if isinstance(change, Listing):
            self._executors.clear()
            for kv in change.kvs:
                self._put(kv)
        else:
            for event in change.events:
                if event.kind == "put":
                    self._put(event.kv)
                else:
                    self._executors.pop(event.kv.key, None)
        for kind in self._pieces:
            serving = (executor.id for executor in self._executors.values() if kind in executor.types)
            self._pieces[kind] = piece_of(self._member, serving)

    def _put(self, kv: KeyValue) -> None:
        self._executors.pop(kv.key, None)
        if not kv.lease:
            return  # a live one renews a lease: nobody would look after the piece of another
        record = readable(kv.value, MemberRecord)
        # Of a newer version: executors with free slots find the operations of its piece. Without types: a
        # sidecar. For one operation: a program that serves only its own.
        if record is not None and record.types and not record.only:
            self._executors[kv.key] = record


class WaitingOperations:
    """The operations that one runner may take.

    Parameters
    ----------
    working:
        The operations that it is taking or runs at present.
    give_back:
        Releases those that it holds and does not run.
    """

    def __init__(
        self,
        client: EtcdClient,
        member: str,
        types: ServedTypes,
        options: RunnerOptions,
        working: Collection[OperationId],
        give_back: Callable[[], Awaitable[None]],
        rng: random.Random,
    ) -> None:
        self._give_back = give_back
        self._client, self._keyspace, self._member = client, client.keyspace, member
        self._types, self._options, self._working, self._rng = types, options, working, rng
        self.operations: dict[OperationId, int] = {}
        """Operations that may need a runner, in the order in which they were seen, with the revision at which
        they waited last."""
        self.wake, self.due = asyncio.Event(), asyncio.Event()
        """Set when there may be something to take, and when everything is to be looked at without delay."""
        self.shares = Shares(self._keyspace, member, [] if options.only else types.names)
        self._moved = asyncio.Event()
        """Set when its shares have changed."""
        self.refused = False
        """Whether an operation that was picked could not be taken: another executor has it, or it is paused,
        and the watch of pauses lags. Then there is no hurry to pick more."""
        self._cursor = b""
        """Where the next page of what waits in all pieces begins; empty: at the first one."""
        self._pauses = PauseIndex(self._keyspace)
        self.resting: dict[OperationId, str] = {}
        """Operations that could not be finished here, so that others may take them first, and why."""

    @property
    def has_room(self) -> bool:
        """Whether one more operation may be taken."""
        return len(self._working) < self._options.max_operations

    def rest(self, operation: OperationId, why: str) -> None:
        """Leave an operation to other executors for a while: it could not be finished here."""
        self.resting[operation] = why
        asyncio.get_running_loop().call_later(self._options.rest_s, self._rested, operation)

    def _rested(self, operation: OperationId) -> None:
        """Try to take it: it may have begun to wait while it rested, and no event follows."""
        self.resting.pop(operation, None)
        if self._is_here(operation):
            self.operations[operation] = 0
            self.wake.set()

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
            asyncio.create_task(self._follow(self._keyspace.executors, self._members_changed)),
            asyncio.create_task(self._follow(self._keyspace.paused, self._pauses_changed)),
            asyncio.create_task(self._follow_shares()),
            asyncio.create_task(self._look()),
        ]

    @property
    def _watched(self) -> tuple[bytes, bytes] | None:
        """The range of waiting operations that this executor looks after, if there is one."""
        if self._options.only is not None:
            key = self._keyspace.waiting_operation(self._options.only)
            return key, key + b"\0"
        first, end = (self._keyspace.waiting_from(share) for share in self.shares.hull)
        return (first, end) if self.shares.hull != NOTHING else None

    def _is_here(self, operation: OperationId) -> bool:
        """Whether this executor looks after an operation in its range."""
        return self._options.only == operation or self.shares.hold(operation)

    async def _follow(
        self,
        start: bytes,
        on_change: Callable[[Listing | WatchBatch], None],
        end: bytes = b"",
        *,
        keys_only: bool = False,
        deletes: bool = True,
    ) -> None:
        while True:
            try:
                changes = follow(self._client, start, end, keys_only=keys_only, deletes=deletes)
                async with aclosing(changes):
                    async for change in changes:
                        on_change(change)
            except Exception as error:
                self._failed("runner_cannot_follow", error)
                await asyncio.sleep(_RETRY_S)

    def _failed(self, event: str, error: Exception) -> None:
        log_failure(log, event, error, member=self._member)

    async def _follow_shares(self) -> None:
        """Watch the shares of this executor for operations that begin to wait."""
        while True:
            self._moved.clear()
            following = None
            if (watched := self._watched) is not None:
                start, end = watched
                # Deletions are not watched: the transaction that takes an operation finds out.
                following = asyncio.create_task(
                    self._follow(start, self._waiting_changed, end, keys_only=True, deletes=False)
                )
            try:
                await self._moved.wait()
            finally:
                await cancel_all(following)

    def _waiting_changed(self, change: Listing | WatchBatch) -> None:
        if isinstance(change, Listing):
            kvs = sorted(change.kvs, key=lambda kv: kv.create_revision)
        else:
            kvs = [event.kv for event in change.events]
        operations = [operation for operation in self._served(kvs) if self._is_here(operation)]
        self.operations.update(dict.fromkeys(operations, change.revision))
        self.wake.set()

    def _members_changed(self, change: Listing | WatchBatch) -> None:
        before = self.shares.hull
        self.shares.apply(change)
        if self.shares.hull != before:
            self._moved.set()
        if isinstance(change, Listing) or any(event.is_delete for event in change.events):
            self.due.set()  # what an executor held that is gone has to wait again

    def _pauses_changed(self, change: Listing | WatchBatch) -> None:
        """Paused operations are not taken; those that run are stopped by the ledger's watch."""
        self._pauses.apply(change)
        if isinstance(change, Listing) or any(event.is_delete for event in change.events):
            self.due.set()

    def _served(self, waiting: Iterable[KeyValue]) -> list[OperationId]:
        """Those of these entries that may be taken here."""
        operations = named(waiting, self._keyspace.parse_waiting)
        return [operation for operation, _ in operations if self.is_candidate(operation)]

    def is_candidate(self, operation: OperationId) -> bool:
        return (
            self._types.get(operation.type) is not None
            and operation not in self._working
            and operation not in self.resting
            and not self._pauses.holds(operation)
        )

    async def _look(self) -> None:
        """Look at everything from time to time, and when there is a reason; and in between, while slots are
        free and nothing waits here, at what waits in the pieces of others."""
        now, at = asyncio.get_running_loop().time, 0.0
        while True:
            pause = _HELP_S * max(self.shares.executors, 2) * self._rng.uniform(0.5, 1.5)
            try:
                if self.due.is_set() or now() >= at:
                    self.due.clear()
                    await self._let_all_wait()
                    at = now() + self._options.resync_s * self._rng.uniform(0.5, 1.0)
                elif self.has_room and not self.operations and self.shares.divided:
                    refused, self.refused = self.refused, False
                    pause = _HELP_AGAIN_S if await self._look_at_others() and not refused else pause
            except Exception as error:
                self._failed("runner_cannot_look", error)
                at, pause = 0.0, _RETRY_S
                await asyncio.sleep(_RETRY_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(min(pause, max(at - now(), 0.0))):
                    await self.due.wait()

    async def _let_all_wait(self) -> None:
        """Every operation that this executor must look after is run here, or waits: give back those that it
        holds and does not run; let those in its shares wait that nobody holds; list those that wait."""
        await self._give_back()
        if (watched := self._watched) is None:
            return
        waiting = await self._client.scan(*watched, keys_only=True)
        newer = {
            operation: revision
            for operation, revision in self.operations.items()
            if revision > waiting.revision
        }
        self.operations.clear()  # others take them, and deletions are not watched
        self._waiting_changed(waiting)
        self.operations.update(newer)
        known = {kv.key for kv in waiting.kvs}
        only, space = self._options.only, self._keyspace
        first = space.active_operation(only) if only else space.active
        active = await self._client.scan(first, keys_only=True)
        active_ids = [operation for operation, _ in named(active.kvs, space.parse_active)]
        left = [
            space.operation(operation)
            for operation in active_ids
            if self._is_here(operation) and operation not in self._working
        ]
        await wait_again(self._client, [keys for keys in left if keys.waiting not in known])

    async def _look_at_others(self) -> bool:
        """Pick some of the operations that wait in the pieces of others, from one page of them; returns
        whether there were any."""
        start, end = self._cursor or self._keyspace.waiting, prefix_end(self._keyspace.waiting)
        page = await self._client.get_range(start, end, keys_only=True, limit=_HELP_PAGE)
        self._cursor = page.kvs[-1].key + b"\0" if page.more else b""
        operations = self._served(page.kvs)
        room = self._options.max_operations - len(self._working)
        picked = self._rng.sample(operations, min(room, len(operations)))
        self.operations.update(dict.fromkeys(picked, page.revision))
        self.wake.set()
        return bool(operations)
