"""Watching keys: a stream that resumes by revision, and a list-and-watch that never misses a state.

Level-triggered code needs two things from a watch: a notification that *something changed*, and that it can
always restart from the present state. :func:`watch` gives the first and resumes after failures; when the
history it needs is gone it raises :class:`~distop.errors.Compacted`. :func:`follow` gives the second.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Literal

import grpc
import grpc.aio
import msgspec
from aetcd.rpc import kv_pb2, rpc_pb2

from distop.errors import Compacted, EtcdDenied
from distop.metastore.etcd.channels import key_value, translated
from distop.metastore.etcd.client import END_OF_STREAM, EtcdClient, Listing
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.names import prefix_end

log = logging.getLogger(__name__)

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 1.0


class KeyEvent(msgspec.Struct, frozen=True):
    """One change of one key. A deleted key's ``kv`` has the key and the revision of its deletion."""

    kind: Literal["put", "delete"]
    kv: KeyValue

    @property
    def is_delete(self) -> bool:
        return self.kind == "delete"


class WatchBatch(msgspec.Struct, frozen=True):
    """Changes up to ``revision``. Without events: nothing has changed up to there."""

    revision: int
    events: list[KeyEvent]

    def after(self, revision: int) -> WatchBatch:
        """Without the changes that a listing at ``revision`` has already shown."""
        if not self.events or self.events[0].kv.mod_revision > revision:
            return self
        return WatchBatch(self.revision, [event for event in self.events if event.kv.mod_revision > revision])


async def watch(
    client: EtcdClient,
    start: bytes,
    end: bytes = b"",
    *,
    from_revision: int = 0,
    puts: bool = True,
    deletes: bool = True,
) -> AsyncGenerator[WatchBatch, None]:
    """All changes from ``from_revision`` on (0: from now), of one key or of the range ``start`` to ``end``.

    A batch without events comes first, once the stream is open. Never ends normally: broken streams are
    reopened where they broke, on the next endpoint. Changes of one revision always come in one batch. Close
    it (``aclosing``) or cancel the task that reads it. Without ``puts`` or ``deletes`` etcd omits them.

    To list and watch, start the watch, then list, then skip what the listing already shows: etcd delivers at
    once to a watch that starts *now*, but only every 100 ms to one that starts in the past.

    Raises
    ------
    Compacted
        Changes after ``from_revision`` are no longer in etcd: list again.
    EtcdDenied
        etcd refuses the user, even after a new authentication.
    """
    filters = [] if puts else [rpc_pb2.WatchCreateRequest.NOPUT]
    filters += [] if deletes else [rpc_pb2.WatchCreateRequest.NODELETE]
    next_revision, pause, refused = from_revision, _FIRST_PAUSE_S, False
    while True:
        endpoint = client.endpoint
        request = rpc_pb2.WatchRequest(
            create_request=rpc_pb2.WatchCreateRequest(
                key=start,
                range_end=end,
                start_revision=next_revision,
                progress_notify=True,
                fragment=True,
                filters=filters,
            )
        )
        call: grpc.aio.StreamStreamCall[Any, Any] | None = None
        try:
            call = await client.open_watch(request)
            response: Any
            fragments: list[KeyEvent] = []
            while (response := await call.read()) is not END_OF_STREAM:
                if response.compact_revision:
                    raise Compacted(
                        f"revision {next_revision} is compacted up to {response.compact_revision}"
                    )
                if response.canceled:
                    log.warning("watch_cancelled", extra={"reason": response.cancel_reason})
                    # An expired token looks like a missing permission here; only a new token tells them
                    # apart.
                    if refused and "permission denied" in response.cancel_reason:
                        raise EtcdDenied(f"etcd at {endpoint} refuses this user: {response.cancel_reason}")
                    refused = True
                    client.members.forget_token()
                    break
                refused = False
                client.members.outage.answered()
                fragments.extend(_event(event) for event in response.events)
                if response.fragment:
                    continue
                pause = _FIRST_PAUSE_S
                events, fragments = fragments, []
                # Resuming after the last event of this watch loses nothing. The header's revision may be
                # ahead of it; it counts only when there is nothing to deliver: at the start of a watch that
                # begins now, and in progress notifications. A resumed watch still has its past to come.
                if events:
                    next_revision = events[-1].kv.mod_revision + 1
                elif not (response.created and next_revision):
                    next_revision = max(next_revision, response.header.revision + 1)
                yield WatchBatch(next_revision - 1, events)
        except (grpc.aio.AioRpcError, TimeoutError) as error:
            client.members.outage.failed(translated(error, in_doubt=False, endpoint=endpoint).message)
            client.members.leave(endpoint)
            if isinstance(error, grpc.aio.AioRpcError) and error.code() is grpc.StatusCode.UNAUTHENTICATED:
                client.members.forget_token()
        finally:
            if call is not None:
                call.cancel()
        await asyncio.sleep(pause * (0.5 + random.random()))
        pause = min(pause * 2, _LONGEST_PAUSE_S)


async def follow(
    client: EtcdClient, prefix: bytes, end: bytes = b"", *, keys_only: bool = False, deletes: bool = True
) -> AsyncGenerator[Listing | WatchBatch, None]:
    """The present state of a prefix, then its changes; the whole state again whenever history was lost.

    With ``end``: all keys from ``prefix`` to (without) ``end``. Without ``deletes`` etcd omits deletions from
    the changes. ``keys_only`` omits the values of the listing (events always have theirs).
    """
    while True:
        try:
            async with aclosing(watch(client, prefix, end or prefix_end(prefix), deletes=deletes)) as changes:
                await anext(changes)
                listing = await client.scan(prefix, end, keys_only=keys_only)
                yield listing
                async for batch in changes:
                    if (newer := batch.after(listing.revision)).events:
                        yield newer
        except Compacted:
            log.info("watch_compacted", extra={"prefix": prefix.decode(errors="replace")})


async def follow_key(client: EtcdClient, key: bytes) -> AsyncGenerator[KeyValue, None]:
    """One key as it is, then each time it has changed; :meth:`KeyValue.missing` while it does not exist."""
    async with aclosing(follow(client, key, key + b"\0")) as changes:
        async for change in changes:
            if isinstance(change, Listing):
                yield change.kvs[0] if change.kvs else KeyValue.missing(key)
            else:
                last = change.events[-1]
                yield last.kv if last.kind == "put" else KeyValue.missing(key)


async def until_absent(client: EtcdClient, key: bytes, *, own_lease: int = 0) -> None:
    """Wait until ``key`` does not exist; returns at once if it does not.

    Parameters
    ----------
    own_lease:
        A lease of the caller. A key bound to it counts as missing: a delayed request of the caller created
        it, and no other process would remove it.
    """
    async with aclosing(follow_key(client, key)) as states:
        async for kv in states:
            if not kv.exists or (own_lease and kv.lease == own_lease):
                return


def _event(message: kv_pb2.Event) -> KeyEvent:
    kind: Literal["put", "delete"] = "put" if message.type == kv_pb2.Event.PUT else "delete"
    return KeyEvent(kind, key_value(message.kv))
