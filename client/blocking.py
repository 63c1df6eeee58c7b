"""The client for programs without an event loop: runs the asynchronous one in a thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from distop.client.aio import AsyncClient
from distop.client.credentials import Credentials
from distop.errors import PreconditionFailed
from distop.process.threads import LoopThread, cancel_others, result_of

P = ParamSpec("P")
T = TypeVar("T")

_CANCEL_S = 5.0
"""Longest wait for an interrupted call to end."""


def _blocking(
    method: Callable[Concatenate[AsyncClient, P], Awaitable[T]],
) -> Callable[Concatenate[Client, P], T]:
    """The same call, waiting for its result."""

    def call(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(lambda client: method(client, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _iterating(
    method: Callable[Concatenate[AsyncClient, P], AsyncIterator[T]],
) -> Callable[Concatenate[Client, P], Iterator[T]]:
    """The same iteration, waiting for each item."""

    def iterate(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items: Any = method(self._client, *args, **kwargs)
        end: Any = object()
        try:
            while (item := self._run(lambda _: anext(items, end))) is not end:
                yield item
        finally:
            self._discard(items)

    functools.update_wrapper(iterate, method)
    return iterate


class Client:
    """:class:`AsyncClient` for blocking code: the same methods and parameters, each waiting for its result.

    Usable from several threads. Close it, or use it in a ``with`` statement::

        with Client("127.0.0.1:7070") as client:
            operation = client.start("flights", "ingest", {"paths": ["/data/2013-01"]})
            client.wait(operation.name).raise_for_outcome()
    """

    start = _blocking(AsyncClient.start)
    preview = _blocking(AsyncClient.preview)
    get = _blocking(AsyncClient.get)
    traces = _blocking(AsyncClient.traces)
    list = _iterating(AsyncClient.list)
    watch = _iterating(AsyncClient.watch)
    quarantines = _iterating(AsyncClient.quarantines)
    quarantined_rows = _iterating(AsyncClient.quarantined_rows)
    replay = _blocking(AsyncClient.replay)
    wait = _blocking(AsyncClient.wait)
    cancel = _blocking(AsyncClient.cancel)
    resolve = _blocking(AsyncClient.resolve)
    pause = _blocking(AsyncClient.pause)
    resume = _blocking(AsyncClient.resume)
    enqueue = _blocking(AsyncClient.enqueue)
    backlog = _iterating(AsyncClient.backlog)
    batch = _blocking(AsyncClient.batch)
    ordering = _blocking(AsyncClient.ordering)
    replace_batch = _blocking(AsyncClient.replace_batch)
    batch_rewritten = _blocking(AsyncClient.batch_rewritten)
    set_ordering = _blocking(AsyncClient.set_ordering)
    open_gate = _blocking(AsyncClient.open_gate)
    take_back = _blocking(AsyncClient.take_back)
    approve = _blocking(AsyncClient.approve)
    retry_batch = _blocking(AsyncClient.retry_batch)
    skip_batch = _blocking(AsyncClient.skip_batch)
    backfill = _blocking(AsyncClient.backfill)
    backfill_progress = _blocking(AsyncClient.backfill_progress)
    watch_backfill = _iterating(AsyncClient.watch_backfill)
    cancel_backfill = _blocking(AsyncClient.cancel_backfill)
    add_schedule = _blocking(AsyncClient.add_schedule)
    schedules = _blocking(AsyncClient.schedules)
    pause_schedule = _blocking(AsyncClient.pause_schedule)
    resume_schedule = _blocking(AsyncClient.resume_schedule)
    remove_schedule = _blocking(AsyncClient.remove_schedule)
    run_schedule = _blocking(AsyncClient.run_schedule)
    create_table = _blocking(AsyncClient.create_table)
    get_table = _blocking(AsyncClient.get_table)
    explain = _blocking(AsyncClient.explain)
    list_tables = _iterating(AsyncClient.list_tables)
    pause_table = _blocking(AsyncClient.pause_table)
    alter_table = _blocking(AsyncClient.alter_table)
    drop_table = _blocking(AsyncClient.drop_table)
    resume_table = _blocking(AsyncClient.resume_table)
    indexes = _blocking(AsyncClient.indexes)
    watermarks = _blocking(AsyncClient.watermarks)
    set_watermark = _blocking(AsyncClient.set_watermark)
    forget_watermarks = _blocking(AsyncClient.forget_watermarks)
    compact_watermarks = _blocking(AsyncClient.compact_watermarks)
    rewind_watermarks = _blocking(AsyncClient.rewind_watermarks)
    describe_table = _blocking(AsyncClient.describe_table)
    snapshots = _iterating(AsyncClient.snapshots)
    members = _blocking(AsyncClient.members)
    leaders = _blocking(AsyncClient.leaders)
    diagnose = _blocking(AsyncClient.diagnose)
    remove_key = _blocking(AsyncClient.remove_key)
    drain = _blocking(AsyncClient.drain)
    audit = _iterating(AsyncClient.audit)
    grants = _blocking(AsyncClient.grants)
    change_grants = _blocking(AsyncClient.change_grants)

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 2.0,
        identity: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        self._client = AsyncClient(
            address,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            identity=identity,
            credentials=credentials,
        )
        self._thread = LoopThread("distop-client")
        self._loop = self._thread.loop
        self._thread.belongs_to(self, functools.partial(_shut_down, self._client))

    def close(self) -> None:
        """Close the channels and end the thread. Calls in progress in other threads end with an error."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, make: Callable[[AsyncClient], Awaitable[T]]) -> T:
        interrupted, unwound = threading.Event(), threading.Event()
        running: list[asyncio.Task[Any] | None] = []

        async def run() -> T:
            running.append(asyncio.current_task())
            try:
                if interrupted.is_set():
                    raise asyncio.CancelledError
                return await make(self._client)
            finally:
                unwound.set()

        def cancel() -> None:
            for task in filter(None, running):
                task.cancel()

        try:
            return result_of(self._thread.submit(run))
        except concurrent.futures.CancelledError:
            raise PreconditionFailed("the client was closed during the call") from None
        except KeyboardInterrupt:
            # A program that catches it may use the client again: the call must be over by then. It may run
            # without a future for it here: the interrupt may come during the hand-over.
            interrupted.set()
            with suppress(RuntimeError):  # the loop is closed: another thread has ended the call
                self._loop.call_soon_threadsafe(cancel)
                unwound.wait(_CANCEL_S)
            raise

    def _discard(self, items: Any) -> None:
        # Without waiting: the garbage collector may end an iteration, even on the thread of the loop itself.
        with suppress(PreconditionFailed):  # it has ended with the loop
            self._thread.submit(items.aclose)


async def _shut_down(client: AsyncClient) -> None:
    await cancel_others()
    await asyncio.get_running_loop().shutdown_asyncgens()
    await client.close()
