"""The asyncio client of etcd: aetcd's stubs, with what an application needs around them.

Several endpoints with fail-over, TLS and users, a deadline on every call, reads at a revision, paged scans,
and an honest answer about writes: a transaction either has a result, or certainly did not happen
(:class:`~distop.errors.EtcdUnavailable`), or nobody knows (:class:`~distop.errors.OutcomeUnknown`). A write
is never sent twice by this module: its caller knows how to read back what it meant.
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

from distop.errors import Busy, Compacted, EtcdOutOfSpace, LeaseLost, OutcomeUnknown
from distop.metastore.etcd.channels import MemberStubs
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.convert import key_value, txn_message, txn_result
from distop.metastore.etcd.failover import Members
from distop.metastore.etcd.failures import translated
from distop.metastore.etcd.sharing import SharedWatches
from distop.metastore.etcd.together import Together
from distop.metastore.etcd.txn import MAX_OPS, Delete, Get, KeyValue, Put, Txn, TxnResult
from distop.metastore.etcd.windows import Beginnings, Windows
from distop.metastore.records.components import prefix_end

END_OF_STREAM: Any = grpc.aio.EOF  # type: ignore[attr-defined]
"""What reading a stream gives at its end; missing from the published stubs."""

READS_AT_ONCE = 4
"""Requests under way together of a read of many keys."""


@dataclass(frozen=True, slots=True)
class RangePage:
    """Keys read together. ``more``: the limit cut it short. ``revision``: what was read."""

    kvs: list[KeyValue]
    revision: int
    more: bool
    count: int = 0
    """Keys in the whole range, which is what a page of it costs etcd."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys of a prefix as they stood at ``revision``, in key order."""

    kvs: list[KeyValue]
    revision: int


class EtcdClient:
    """A connection to etcd; belongs to one event loop."""

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self.keyspace = config.keyspace
        self.members = Members(config)
        self._together = Together(self._send_txn)
        self.beginnings = Beginnings()
        self.shared_watches = SharedWatches(self.open_watch, lambda: self.endpoint)

    async def close(self) -> None:
        """Close all connections; calls under way fail, and so do later ones."""
        await self.shared_watches.close()
        await self.members.close()

    # -- reads ---------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, revision: int = 0) -> KeyValue:
        """One key (linearizable); :meth:`KeyValue.missing` if nothing stands there.

        Parameters
        ----------
        revision:
            Read as of this revision; 0 = now. Raises :class:`~distop.errors.Compacted` if it is gone.
        """
        page = await self.get_range(key, b"", revision=revision)
        return page.kvs[0] if page.kvs else KeyValue.missing(key)

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
    ) -> RangePage:
        """Keys from ``start`` to (without) ``end``, at most ``limit`` of them (0: all).

        In key order, or ``backwards``, or ``newest_first``: the latest written ones, the latest first. For
        both etcd sorts the whole range, so it had better be small.
        """
        request = rpc_pb2.RangeRequest(
            key=start, range_end=end, revision=revision, keys_only=keys_only, limit=limit
        )
        if newest_first:
            request.sort_order, request.sort_target = rpc_pb2.RangeRequest.DESCEND, rpc_pb2.RangeRequest.MOD
        elif backwards:
            request.sort_order, request.sort_target = rpc_pb2.RangeRequest.DESCEND, rpc_pb2.RangeRequest.KEY
        return await self._range(request)

    async def _range(self, request: Any, timeout_s: float | None = None) -> RangePage:
        reply = await self._call(lambda c: c.kv.Range, request, writes=False, timeout_s=timeout_s)
        return RangePage([key_value(kv) for kv in reply.kvs], reply.header.revision, reply.more, reply.count)

    async def pages(
        self, start: bytes, end: bytes, *, limit: int, revision: int = 0, keys_only: bool = False
    ) -> AsyncGenerator[RangePage, None]:
        """The keys from ``start`` to (without) ``end`` in pages of at most ``limit``, all at one revision.

        Each costs about as much as it shows, however many keys the range has: see :class:`Windows`. There is
        one page at least.
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
        # header.revision is the store's present one; what a pinned read shows is what was asked for.
        return RangePage(page.kvs, revision or page.revision, not over, page.count)

    async def scan(
        self, prefix: bytes, end: bytes = b"", *, revision: int = 0, keys_only: bool = False, page: int = 5000
    ) -> Snapshot:
        """All keys under ``prefix`` (or from there to ``end``), in pages that all show the same revision.

        Raises :class:`~distop.errors.Compacted` if that revision was asked for and is gone. Of the present
        state it is read anew, should a compaction come between two pages.
        """
        try:
            return await self._scan(prefix, end or prefix_end(prefix), revision, keys_only, page)
        except Compacted:
            if revision:
                raise
            return await self._scan(prefix, end or prefix_end(prefix), revision, keys_only, page)

    async def _scan(self, start: bytes, end: bytes, revision: int, keys_only: bool, page: int) -> Snapshot:
        kvs: list[KeyValue] = []
        windows, more = Windows(start, end, page), True
        while more:
            part = await self._window(windows, page, revision, keys_only)
            revision, more = part.revision, part.more
            kvs.extend(part.kvs)
        return Snapshot(kvs, revision)

    async def revision(self) -> int:
        """The store's present revision (linearizable)."""
        return (await self.get_range(self.keyspace.prefix, b"", keys_only=True)).revision

    # -- writes --------------------------------------------------------------------------------------

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        """Run one transaction, alone, or together with others if it has a lane.

        Raises
        ------
        EtcdUnavailable
            It certainly did not happen.
        OutcomeUnknown
            It may have happened: the reply was lost, or it is an :class:`~distop.errors.EtcdOutOfSpace`. Read
            back what it meant to write.
        LeaseLost
            A lease it puts under has expired; nothing happened.
        """
        gets = [op for op in txn.then if isinstance(op, Get)]
        if gets and not txn.compares and len(gets) == len(txn.then):
            return await self._read_together(gets, timeout_s)
        if txn.lane:
            return await self._together.txn(txn, timeout_s or self.config.timeout_s)
        return await self._send_txn(txn, timeout_s)

    async def _send_txn(self, txn: Txn, timeout_s: float | None) -> TxnResult:
        message = txn_message(txn)
        reply = await self._call(lambda c: c.kv.Txn, message, writes=txn.writes(), timeout_s=timeout_s)
        return txn_result(reply, reply.header.revision)

    async def _read_together(
        self, gets: Sequence[Get], timeout_s: float | None, revision: int = 0
    ) -> TxnResult:
        """Several keys or ranges as they stood together when the first of them was read.

        Not by a transaction of etcd: up to 3.5.4 one that only reads ends the *server* if its caller goes
        meanwhile (etcd issue 14110), and up to 3.5.6 it is refused for lack of space (etcd pull 14884).
        """

        async def read(get: Get, revision: int) -> RangePage:
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
                return TxnResult(True, at, tuple(page.kvs for page in pages), counts)
        raise AssertionError("unreachable: the last try returns or raises")

    async def read_at_once(self, gets: Sequence[Get], *, revision: int = 0) -> TxnResult:
        """Several keys at one revision (0: now), in one round trip instead of two.

        Costs a write to etcd's log: for reads on whose latency a write waits anyway, and for many keys. The
        branch that is never taken makes it a transaction that may write, which are spared what
        :meth:`_read_together` tells of.
        """
        message = txn_message(self._reading(gets), at=revision)
        try:
            reply = await self._call(lambda c: c.kv.Txn, message, writes=False)
        except (Busy, EtcdOutOfSpace):
            return await self._read_together(gets, None, revision)  # a full etcd can still be read
        return txn_result(reply, revision or reply.header.revision)

    def _reading(self, gets: Sequence[Get], lane: bytes = b"") -> Txn:
        # One request may not put a key twice, not even in branches that are never taken.
        never = Put(self.keyspace.prefix + b"_never" + lane, b"")
        return Txn(then=tuple(gets), otherwise=(never,), lane=lane)

    async def read_in_lane(self, gets: Sequence[Get], lane: bytes) -> TxnResult:
        """As :meth:`read_at_once`, but in one request with what others read and write at the same time.

        Everything has to be of the lane (see :class:`Txn`): then what comes after the result's revision, and
        nothing else of it, comes after what was read.

        Raises :class:`~distop.errors.Compacted` if the revision of one of them is gone.
        """
        try:
            return await self._together.txn(self._reading(gets, lane), self.config.timeout_s)
        except (Busy, OutcomeUnknown):
            return await self.read_at_once(gets)  # reading again does no harm

    async def read_many(self, gets: Sequence[Get], *, revision: int = 0) -> TxnResult:
        """Any number of keys or ranges at one revision, as many in a request as a transaction holds.

        Raises :class:`~distop.errors.Compacted` should that revision go between two requests.
        """
        bites = [gets[first : first + MAX_OPS] for first in range(0, len(gets), MAX_OPS)] or [()]
        first = await self.read_at_once(bites[0], revision=revision)
        results, counts = list(first.results), list(first.counts)
        for group in range(1, len(bites), READS_AT_ONCE):
            reads = (
                self.read_at_once(one, revision=first.revision)
                for one in bites[group : group + READS_AT_ONCE]
            )
            for read in await asyncio.gather(*reads):
                results += read.results
                counts += read.counts
        return TxnResult(True, first.revision, tuple(results), tuple(counts))

    async def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        """Write one key; the revision of the write. Errors as of :meth:`txn`."""
        return (await self.txn(Txn(then=(Put(key, value, lease),)))).revision

    async def delete(self, key: bytes, end: bytes = b"") -> int:
        """Delete a key or a range; how many keys there were. Errors as of :meth:`txn`."""
        result = (await self.txn(Txn(then=(Delete(key, end),)))).results[0]
        return result if isinstance(result, int) else 0

    # -- leases --------------------------------------------------------------------------------------

    async def lease_grant(self, ttl_s: int) -> int:
        """A new lease of ``ttl_s`` seconds (etcd's floor is 2)."""
        request = rpc_pb2.LeaseGrantRequest(TTL=ttl_s)
        # A lost reply leaves a lease that nobody renews and that holds nothing: it expires by itself.
        reply = await self._call(lambda c: c.lease.LeaseGrant, request, writes=False)
        return int(reply.ID)

    async def lease_revoke(self, lease: int) -> None:
        """End a lease; its keys vanish at once. Of an expired lease: nothing to do."""
        request = rpc_pb2.LeaseRevokeRequest(ID=lease)
        try:
            await self._call(lambda c: c.lease.LeaseRevoke, request, writes=False)
        except LeaseLost:
            return

    # -- the rest ------------------------------------------------------------------------------------

    async def compact(self, revision: int) -> None:
        """Forget history before ``revision``."""
        request = rpc_pb2.CompactionRequest(revision=revision)
        await self._call(lambda c: c.kv.Compact, request, writes=False)

    async def maintenance(self, method: Callable[[Any], Any], request: Any) -> Any:
        """A reading call of etcd's maintenance service; see ``health.py``."""
        return await self._call(lambda c: method(c.maintenance), request, writes=False)

    async def snapshot(self, limit_s: float) -> AsyncGenerator[bytes, None]:
        """The database of the member that is used at present, in pieces; within ``limit_s`` seconds.

        It holds all that was written through this client before. With users, only root may. Raises
        :class:`~distop.errors.EtcdUnavailable` when it breaks off.
        """
        await self.revision()  # the member has caught up with the others once it has answered
        metadata, endpoint = await self.members.metadata(self.config.timeout_s), self.members.endpoint
        call = self.members.stubs().maintenance.Snapshot(
            rpc_pb2.SnapshotRequest(), metadata=metadata, timeout=limit_s
        )
        try:
            async for piece in call:
                yield piece.blob
        except grpc.aio.AioRpcError as error:
            raise translated(error, in_doubt=False, endpoint=endpoint) from error
        finally:
            call.cancel()

    async def open_watch(self, request: Any) -> grpc.aio.StreamStreamCall[Any, Any]:
        """A watch stream on the current endpoint; ends with an error when it breaks. See ``watch.py``."""
        # "hasleader": a member cut off from the cluster ends the stream instead of staying silent.
        metadata = [*(await self.members.metadata(self.config.timeout_s) or ()), ("hasleader", "true")]
        watching = self.members.stubs().watch
        call: grpc.aio.StreamStreamCall[Any, Any] = watching.Watch(metadata=metadata, wait_for_ready=False)
        # The reader of the stream meets the same error, with its details.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(request)
        return call

    @property
    def endpoint(self) -> str:
        """The member that is used at present."""
        return self.members.endpoint

    async def _call(
        self,
        method: Callable[[MemberStubs], Any],
        request: Any,
        *,
        writes: bool,
        timeout_s: float | None = None,
    ) -> Any:
        async def once(stubs: MemberStubs, metadata: Any, timeout: float) -> Any:
            return await method(stubs)(request, metadata=metadata, timeout=timeout)

        return await self.members.call(once, writes=writes, timeout_s=timeout_s)
