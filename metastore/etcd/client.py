"""The asyncio client of etcd: aetcd's stubs, with the functions that an application needs.

Several endpoints with fail-over, TLS and users, a deadline on every call, reads at a revision, paged scans,
and a definite answer about writes: a transaction either has a result, or certainly did not happen
(:class:`~distop.errors.EtcdUnavailable`), or its outcome is unknown (:class:`~distop.errors.OutcomeUnknown`).
This module never sends a write twice: its caller can read back what it meant to write.

A long range is read page by page, at a cost that does not grow with the range. etcd counts all keys of a
range, whatever the limit: a hundred keys of a range of 100,000 cost as much as reading all of them. So a
range is read through :class:`Windows`, each ending where the keys of one prefix end. The length of that
prefix follows from the number of keys in the last window.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2
from cachetools import LRUCache
from msgspec import structs

from distop.errors import Busy, Compacted, EtcdOutOfSpace, LeaseLost, OutcomeUnknown
from distop.metastore.etcd import channels
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.together import Together
from distop.metastore.records.names import prefix_end

WIDE = 4
"""A window with more pages of keys than this is followed by a narrower one."""

FEW = 3
"""After more empty windows than this, the next ones grow faster."""

MOST_CACHED = 10_000
"""Ranges whose first window is cached."""

END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]
"""The value of a stream read at its end; missing from the published stubs."""

MAX_READS = etcd.MAX_OPS - 1
"""Keys or ranges that are read by one request; a nested transaction counts as one."""

READS_AT_ONCE = 4
"""Concurrent requests of a read of many keys."""

BEGINNING, LONG = 500, 1000
"""Keys of a first window that is cached, and the minimum number of keys in a range that gets one."""


class Windows:
    """The position of the next page: from :attr:`start` to (without) :attr:`stop`.

    The first window is the whole range if ``start`` is its prefix; if ``start`` lies within (a listing
    continues there), the first window is narrow.

    Parameters
    ----------
    limit:
        Keys of a page.
    first:
        The end of the first window; empty: computed.
    """

    def __init__(self, start: bytes, end: bytes, limit: int, first: bytes = b"") -> None:
        self.start, self._end, self._limit = start, end, limit
        self._depth, self._empty = len(start), 0
        self._first = first if start < first < end else b""

    @property
    def stop(self) -> bytes:
        """The end of the window: after all keys with this many first bytes of ``start``."""
        if self._first:
            return self._first
        prefix = self.start[: self._depth].rstrip(b"\xff")
        return min(prefix_end(prefix), self._end) if prefix else self._end

    def read(self, keys: list[bytes], *, more: bool, count: int) -> bool:
        """Record a page of the window, which has ``count`` keys; return whether it was the range's last."""
        if more:
            self.start = keys[-1] + b"\0"
            if count > WIDE * self._limit:
                # The common prefix of all keys of a page does not distinguish any.
                self._depth = _in_common(keys[0], keys[-1]) + 1
            self._empty = 0
            return False
        if (stop := self.stop) == self._end:
            return True
        if self._first:
            self.start, self._depth, self._first = stop, len(stop), b""
            return False
        # The next window may be wider, and by more if several are empty.
        self._empty = 0 if count else self._empty + 1
        self._depth = max(0, min(self._depth, len(stop)) - max(1, self._empty - FEW))
        self.start = stop
        return False


def _in_common(key: bytes, other: bytes) -> int:
    """The length of the common prefix of two keys."""
    pairs = zip(key, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(key), len(other)))


@dataclass(frozen=True, slots=True)
class RangePage:
    """Keys read together. ``more``: the limit truncated it. ``revision``: the revision that was read."""

    kvs: list[etcd.KeyValue]
    revision: int
    more: bool
    count: int = 0
    """Keys in the whole range, which determines the cost of a page in etcd."""


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys of a prefix at ``revision``, in key order."""

    kvs: list[etcd.KeyValue]
    revision: int


class EtcdClient:
    """A connection to etcd; belongs to one event loop."""

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self.keyspace = config.keyspace
        self.members = channels.MemberConnections(config)
        self._together = Together(self._send_txn, config.keyspace.is_in_lane)
        self.first_windows: LRUCache[bytes, bytes] = LRUCache(MOST_CACHED)
        """The end of the first window of a long range, by the start of the range. Finding it makes etcd count
        the whole range; so it is cached until it has hardly any keys left."""

    async def close(self) -> None:
        """Close all connections; calls in progress fail, and so do later ones."""
        await self.members.close()

    # -- reads ---------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, revision: int = 0) -> etcd.KeyValue:
        """One key (linearizable); :meth:`KeyValue.missing` if it does not exist.

        Parameters
        ----------
        revision:
            Read as of this revision; 0 = now. Raises :class:`~distop.errors.Compacted` if it is gone.
        """
        page = await self.get_range(key, b"", revision=revision)
        return page.kvs[0] if page.kvs else etcd.KeyValue.missing(key)

    async def get_range(
        self,
        start: bytes,
        end: bytes,
        *,
        revision: int = 0,
        keys_only: bool = False,
        limit: int = 0,
        newest_first: bool = False,
        backwards: bool = False,
        written_from: int = 0,
    ) -> RangePage:
        """Keys from ``start`` to (without) ``end``, at most ``limit`` of them (0: all), that were written at
        the revision ``written_from`` or later.

        In key order, or ``backwards``, or ``newest_first``: the latest written first. For all of these etcd
        reads the whole range, so it should be small.
        """
        request = rpc_pb2.RangeRequest(
            key=start,
            range_end=end,
            revision=revision,
            keys_only=keys_only,
            limit=limit,
            min_mod_revision=written_from,
        )
        if newest_first:
            request.sort_order, request.sort_target = rpc_pb2.RangeRequest.DESCEND, rpc_pb2.RangeRequest.MOD
        elif backwards:
            request.sort_order, request.sort_target = rpc_pb2.RangeRequest.DESCEND, rpc_pb2.RangeRequest.KEY
        return await self._range(request)

    async def _range(self, request: Any, timeout_s: float | None = None) -> RangePage:
        reply = await self._call(lambda c: c.kv.Range, request, writes=False, timeout_s=timeout_s)
        return RangePage(
            [channels.key_value(kv) for kv in reply.kvs], reply.header.revision, reply.more, reply.count
        )

    async def pages(
        self, start: bytes, end: bytes, *, limit: int, revision: int = 0, keys_only: bool = False
    ) -> AsyncGenerator[RangePage, None]:
        """The keys from ``start`` to (without) ``end`` in pages of at most ``limit``, all at one revision.

        The cost of a page does not depend on the number of keys in the range: see :class:`Windows`. There is
        at least one page.
        """
        windows, more = Windows(start, end, limit), True
        while more:
            page = await self._window(windows, limit, revision, keys_only)
            revision, more = page.revision, page.more
            if page.kvs or not more:
                yield page

    async def _window(self, windows: Windows, limit: int, revision: int, keys_only: bool) -> RangePage:
        page = await self.get_range(
            windows.start, windows.stop, revision=revision, keys_only=keys_only, limit=limit
        )
        over = windows.read([kv.key for kv in page.kvs], more=page.more, count=page.count)
        # header.revision is the store's present one; a pinned read shows the requested revision.
        return RangePage(page.kvs, revision or page.revision, not over, page.count)

    async def scan(
        self, prefix: bytes, end: bytes = b"", *, revision: int = 0, keys_only: bool = False, page: int = 5000
    ) -> Listing:
        """All keys under ``prefix`` (or from there to ``end``), in pages that all show the same revision.

        Raises :class:`~distop.errors.Compacted` if a requested revision is gone. The present state is read
        again if a compaction happens between two pages.
        """
        try:
            return await self._scan(prefix, end or prefix_end(prefix), revision, keys_only, page)
        except Compacted:
            if revision:
                raise
            return await self._scan(prefix, end or prefix_end(prefix), revision, keys_only, page)

    async def _scan(self, start: bytes, end: bytes, revision: int, keys_only: bool, page: int) -> Listing:
        kvs: list[etcd.KeyValue] = []
        windows, more = Windows(start, end, page), True
        while more:
            part = await self._window(windows, page, revision, keys_only)
            revision, more = part.revision, part.more
            kvs.extend(part.kvs)
        return Listing(kvs, revision)

    async def revision(self) -> int:
        """The store's present revision (linearizable)."""
        return (await self.get_range(self.keyspace.prefix, b"", keys_only=True)).revision

    # -- writes --------------------------------------------------------------------------------------

    async def txn(self, txn: etcd.Txn, *, timeout_s: float | None = None) -> etcd.TxnResult:
        """Run one transaction, alone, or batched with others if it has a lane.

        Raises
        ------
        EtcdUnavailable
            It certainly did not happen.
        OutcomeUnknown
            It may have happened: the reply was lost, or the error is :class:`~distop.errors.EtcdOutOfSpace`.
            Read back what the transaction meant to write.
        LeaseLost
            A lease in one of its puts has expired; nothing happened.
        """
        if txn.then and not txn.compares:
            gets = [op for op in txn.then if isinstance(op, etcd.Get)]
            if len(gets) == len(txn.then):
                return await self._read_together(gets, 0, timeout_s)
        if txn.lane:
            return await self._together.txn(txn, timeout_s or self.config.timeout_s)
        return await self._send_txn(txn, timeout_s)

    async def _send_txn(self, txn: etcd.Txn, timeout_s: float | None) -> etcd.TxnResult:
        message = channels.txn_message(txn)
        reply = await self._call(lambda c: c.kv.Txn, message, writes=txn.writes(), timeout_s=timeout_s)
        return channels.txn_result(reply, reply.header.revision)

    async def read_at_once(self, gets: Sequence[etcd.Get], *, revision: int = 0) -> etcd.TxnResult:
        """Several keys or ranges, at most :data:`MAX_READS`, at one revision (0: now), in one request.

        Where etcd survives a transaction that only reads, it writes nothing; elsewhere it costs an entry in
        etcd's log: see :meth:`MemberStubs.read_txn`.
        """
        return await self._read_together(gets, revision, None)

    async def _read_together(
        self, gets: Sequence[etcd.Get], revision: int, timeout_s: float | None
    ) -> etcd.TxnResult:
        if not gets:  # an empty transaction is refused where it has to be nested
            return etcd.TxnResult(True, revision or await self.revision(), (), ())
        if len(gets) == 1:
            return await self._read_each(gets, revision, timeout_s)
        wanted = [structs.replace(get, revision=revision) for get in gets] if revision else gets
        reading = etcd.Txn(then=tuple(wanted))
        try:
            read = await self._call(lambda c: c.read_txn, reading, writes=False, timeout_s=timeout_s)
        except (Busy, EtcdOutOfSpace):  # a full etcd refuses an entry in its log, and can still be read
            return await self._read_each(gets, revision, timeout_s)
        return etcd.TxnResult(True, revision or read.revision, read.results, read.counts)

    async def _read_each(
        self, gets: Sequence[etcd.Get], revision: int, timeout_s: float | None
    ) -> etcd.TxnResult:
        """Read keys or ranges by a request for each, at one revision. At the present revision (0), the first
        reply tells which one that is, so all other requests wait for it."""

        async def read(get: etcd.Get, revision: int) -> RangePage:
            request = rpc_pb2.RangeRequest(
                key=get.key,
                range_end=get.end,
                keys_only=get.keys_only,
                limit=get.limit,
                revision=get.revision or revision,
            )
            return await self._range(request, timeout_s)

        for last_try in (False, True):
            first = await read(gets[0], revision)
            at = revision or first.revision
            try:
                others = await asyncio.gather(*(read(get, at) for get in gets[1:]))
            except Compacted:
                if last_try or revision:
                    raise
            else:
                pages = (first, *others)
                counts = tuple(page.count for page in pages)
                return etcd.TxnResult(True, at, tuple(page.kvs for page in pages), counts)
        raise AssertionError("unreachable: the last try returns or raises")

    async def read_in_lane(self, gets: Sequence[etcd.Get], lane: bytes) -> etcd.TxnResult:
        """Read keys of one lane at one revision, in one request with concurrent reads and writes of others.

        All keys must be of the lane (see :class:`Txn`): then every write in the lane after the result's
        revision, and no other, comes after the read.

        Raises :class:`~distop.errors.Compacted` if the revision of one of them is gone.
        """
        reading = etcd.Txn(
            then=(etcd.Txn(then=tuple(gets)),), lane=lane
        )  # nested: not every etcd survives others
        try:
            return (await self._together.txn(reading, self.config.timeout_s)).nested(0)
        except (Busy, OutcomeUnknown):
            return await self.read_at_once(gets)  # reading again is harmless

    async def read_many(self, gets: Sequence[etcd.Get], *, revision: int = 0) -> etcd.TxnResult:
        """Any number of keys or ranges at one revision, :data:`MAX_READS` in a request.

        Raises :class:`~distop.errors.Compacted` if that revision is compacted between two requests.
        """
        bites = [gets[first : first + MAX_READS] for first in range(0, len(gets), MAX_READS)] or [()]
        first = await self.read_at_once(bites[0], revision=revision)
        results, counts = list(first.results), list(first.counts)
        for group in range(1, len(bites), READS_AT_ONCE):
            reads = (
                self.read_at_once(bite, revision=first.revision)
                for bite in bites[group : group + READS_AT_ONCE]
            )
            for read in await asyncio.gather(*reads):
                results += read.results
                counts += read.counts
        return etcd.TxnResult(True, first.revision, tuple(results), tuple(counts))

    async def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        """Write one key; return the revision of the write. Errors as of :meth:`txn`."""
        return (await self.txn(etcd.Txn(then=(etcd.Put(key, value, lease),)))).revision

    async def delete(self, key: bytes, end: bytes = b"") -> int:
        """Delete a key or a range; return how many keys there were. Errors as of :meth:`txn`."""
        result = (await self.txn(etcd.Txn(then=(etcd.DeleteRange(key, end),)))).results[0]
        return result if isinstance(result, int) else 0

    # -- leases --------------------------------------------------------------------------------------

    async def lease_grant(self, ttl_s: int) -> int:
        """A new lease of ``ttl_s`` seconds (etcd's minimum is 2)."""
        request = rpc_pb2.LeaseGrantRequest(TTL=ttl_s)
        # A lost reply leaves a lease without keys that is not renewed: it expires.
        reply = await self._call(lambda c: c.lease.LeaseGrant, request, writes=False)
        return int(reply.ID)

    async def lease_revoke(self, lease: int) -> None:
        """End a lease; its keys are deleted at once. Does nothing for an expired lease."""
        request = rpc_pb2.LeaseRevokeRequest(ID=lease)
        try:
            await self._call(lambda c: c.lease.LeaseRevoke, request, writes=False)
        except LeaseLost:
            return

    async def lease_keys(self, lease: int) -> list[bytes]:
        """The keys that are bound to a lease at present; none if it has expired.

        The answer may lag behind: read what you act upon.
        """
        request = rpc_pb2.LeaseTimeToLiveRequest(ID=lease, keys=True)
        reply = await self._call(lambda c: c.lease.LeaseTimeToLive, request, writes=False)
        return list(reply.keys)

    # -- the rest ------------------------------------------------------------------------------------

    async def compact(self, revision: int) -> None:
        """Compact the history before ``revision``."""
        request = rpc_pb2.CompactionRequest(revision=revision)
        await self._call(lambda c: c.kv.Compact, request, writes=False)

    async def maintenance(self, method: Callable[[Any], Any], request: Any) -> Any:
        """A read-only call of etcd's maintenance service; see ``health.py``."""
        return await self._call(lambda c: method(c.maintenance), request, writes=False)

    async def snapshot(self, limit_s: float) -> AsyncGenerator[bytes, None]:
        """The database of one member, in pieces; within ``limit_s`` seconds.

        It contains all earlier writes of this client. With users, only root may read it. Raises
        :class:`~distop.errors.EtcdUnavailable` when the stream breaks.
        """

        async def caught_up(
            stubs: channels.MemberStubs, metadata: Any, share: float
        ) -> tuple[channels.MemberStubs, Any, str]:
            # The member that answers a linearizable read has all earlier writes; another one may lag behind.
            endpoint, request = self.members.endpoint, rpc_pb2.RangeRequest(key=self.keyspace.prefix)
            await stubs.kv.Range(request, metadata=metadata, timeout=share)
            return stubs, metadata, endpoint

        stubs, metadata, endpoint = await self.members.call(caught_up, writes=False, timeout_s=None)
        call = stubs.maintenance.Snapshot(rpc_pb2.SnapshotRequest(), metadata=metadata, timeout=limit_s)
        try:
            async for piece in call:
                yield piece.blob
        except grpc.aio.AioRpcError as error:
            raise channels.translated(error, in_doubt=False, endpoint=endpoint) from error
        finally:
            call.cancel()

    async def open_watch(self, request: Any) -> grpc.aio.StreamStreamCall[Any, Any]:
        """A watch stream on the current endpoint; ends with an error when it breaks. See ``watch.py``."""
        # "hasleader": a member cut off from the cluster ends the stream instead of staying silent.
        metadata = [*(await self.members.metadata(self.config.timeout_s) or ()), ("hasleader", "true")]
        watching = self.members.stubs().watch
        call: grpc.aio.StreamStreamCall[Any, Any] = watching.Watch(metadata=metadata, wait_for_ready=False)
        # The reader of the stream gets the same error, with its details.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(request)
        return call

    @property
    def endpoint(self) -> str:
        """The endpoint of the present member."""
        return self.members.endpoint

    async def _call(
        self,
        method: Callable[[channels.MemberStubs], Any],
        request: Any,
        *,
        writes: bool,
        timeout_s: float | None = None,
    ) -> Any:
        async def once(stubs: channels.MemberStubs, metadata: Any, timeout: float) -> Any:
            return await method(stubs)(request, metadata=metadata, timeout=timeout)

        return await self.members.call(once, writes=writes, timeout_s=timeout_s)


async def first_of(
    client: EtcdClient, start: bytes, end: bytes, *, limit: int, revision: int = 0
) -> RangePage:
    """The first ``limit`` keys from ``start`` to (without) ``end``, at one revision (0: now)."""
    windows = Windows(start, end, limit, client.first_windows.get(start, b""))
    stop = windows.stop
    page = await client.get_range(start, stop, revision=revision, limit=limit)
    kvs, revision = page.kvs, revision or page.revision
    if page.count > LONG:
        window = await client.get_range(start, stop, revision=revision, keys_only=True, limit=BEGINNING)
        client.first_windows[start] = window.kvs[-1].key + b"\0"
    elif page.count < limit:
        client.first_windows.pop(start, None)
    while (over := windows.read([kv.key for kv in page.kvs], more=page.more, count=page.count)) is False:
        if len(kvs) >= limit:
            break
        page = await client.get_range(windows.start, windows.stop, revision=revision, limit=limit)
        kvs = kvs + page.kvs
    return RangePage(kvs[:limit], revision, not over or len(kvs) > limit)


def beginning(client: EtcdClient, start: bytes, end: bytes, limit: int) -> etcd.Get:
    """A read of the first keys of a range, to combine with others: sufficient if :func:`was_enough` says
    so."""
    return etcd.Get(start, client.first_windows.get(start, b"") or end, limit=limit)


def was_enough(get: etcd.Get, end: bytes, read: int, count: int) -> bool:
    """Whether this many keys are all that was requested, or all there are, and were read cheaply; otherwise
    use :func:`first_of`. ``count`` is the number of keys in the range of ``get``."""
    return count <= LONG and (read == get.limit or get.end == end)
