"""The client for programs without an event loop: runs the asynchronous one in a thread.

Each method is made of the asynchronous one of the same name; a test compares them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from distop.client.aio import AsyncClient, AsyncTableHandle
from distop.client.calls import NamedCalls
from distop.client.credentials import Credentials
from distop.client.handles import AsyncOperationHandle
from distop.client.operations import Operation
from distop.errors import PreconditionFailed
from distop.process.threads import LoopThread, cancel_others, result_of

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")

_CANCEL_S = 5.0
"""Longest wait for an interrupted call to end."""


class _Runner:
    """Runs coroutines on the loop of a thread of its own, for any other thread."""

    def __init__(self) -> None:
        self.thread = LoopThread("distop-client")

    def run(self, make: Callable[[], Awaitable[T]]) -> T:
        """The result of what this makes."""
        interrupted, unwound = threading.Event(), threading.Event()
        running: list[asyncio.Task[Any] | None] = []

        async def run() -> T:
            running.append(asyncio.current_task())
            try:
                if interrupted.is_set():
                    raise asyncio.CancelledError
                return await make()
            finally:
                unwound.set()

        def cancel() -> None:
            for task in filter(None, running):
                task.cancel()

        try:
            return result_of(self.thread.submit(run))
        except concurrent.futures.CancelledError:
            raise PreconditionFailed("the client was closed during the call") from None
        except KeyboardInterrupt:
            # A program that catches it may use the client again: the call must be over by then. It may run
            # without a future for it here: the interrupt may come during the hand-over.
            interrupted.set()
            with suppress(RuntimeError):  # the loop is closed: another thread has ended the call
                self.thread.loop.call_soon_threadsafe(cancel)
                unwound.wait(_CANCEL_S)
            raise

    def discard(self, items: Any) -> None:
        """End an iteration, without waiting: the garbage collector may do so, even on the thread of the loop
        itself."""
        with suppress(PreconditionFailed):  # it has ended with the loop
            self.thread.submit(items.aclose)


class _Blocking:
    """The calls of an asynchronous counterpart, each of which waits for its result."""

    _calls: Any
    _runner: _Runner


def _blocking(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Any, P], T]:
    """The same call, waiting for its result."""

    def call(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.run(lambda: method(self._calls, *args, **kwargs))

    functools.update_wrapper(call, method)
    return call


def _iterating(
    method: Callable[Concatenate[A, P], AsyncIterator[T]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """The same iteration, waiting for each item."""

    def iterate(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        items: Any = method(self._calls, *args, **kwargs)
        end: Any = object()
        try:
            while (item := self._runner.run(lambda: anext(items, end))) is not end:
                yield item
        finally:
            self._runner.discard(items)

    functools.update_wrapper(iterate, method)
    return iterate


def _starting(
    method: Callable[Concatenate[A, P], Awaitable[AsyncOperationHandle]],
) -> Callable[Concatenate[Any, P], OperationHandle]:
    """The same call, waiting for the handle of the operation."""

    def start(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> OperationHandle:
        handle = self._runner.run(lambda: method(self._calls, *args, **kwargs))
        return OperationHandle(handle, self._runner)

    functools.update_wrapper(start, method)
    return start


class _Handle(_Blocking):
    """Calls on what has a name."""

    def __init__(self, calls: NamedCalls, runner: _Runner) -> None:
        self._calls, self._runner = calls, runner

    @property
    def name(self) -> str:
        """The name, which a handle is made from."""
        return str(self._calls.name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class OperationHandle(_Handle):
    """:class:`~distop.client.handles.AsyncOperationHandle` for blocking code."""

    _calls: AsyncOperationHandle

    @property
    def started(self) -> Operation:
        """The operation as the call that started it got it: see :attr:`AsyncOperationHandle.started`."""
        return self._calls.started

    get = _blocking(AsyncOperationHandle.get)
    events = _blocking(AsyncOperationHandle.events)
    logs = _blocking(AsyncOperationHandle.logs)
    watch = _iterating(AsyncOperationHandle.watch)
    wait = _blocking(AsyncOperationHandle.wait)
    result = _blocking(AsyncOperationHandle.result)
    cancel = _blocking(AsyncOperationHandle.cancel)
    retry = _blocking(AsyncOperationHandle.retry)
    skip = _blocking(AsyncOperationHandle.skip)
    abort = _blocking(AsyncOperationHandle.abort)
    pause = _blocking(AsyncOperationHandle.pause)
    resume = _blocking(AsyncOperationHandle.resume)
    quarantined_rows = _iterating(AsyncOperationHandle.quarantined_rows)
    replay = _starting(AsyncOperationHandle.replay)


class TableHandle(_Handle):
    """:class:`~distop.client.aio.AsyncTableHandle` for blocking code."""

    _calls: AsyncTableHandle

    get = _blocking(AsyncTableHandle.get)
    why = _blocking(AsyncTableHandle.why)
    describe = _blocking(AsyncTableHandle.describe)
    indexes = _blocking(AsyncTableHandle.indexes)
    snapshots = _iterating(AsyncTableHandle.snapshots)
    branches = _blocking(AsyncTableHandle.branches)
    alter = _blocking(AsyncTableHandle.alter)
    pause = _blocking(AsyncTableHandle.pause)
    resume = _blocking(AsyncTableHandle.resume)
    drop = _blocking(AsyncTableHandle.drop)
    watermarks = _blocking(AsyncTableHandle.watermarks)
    set_watermark = _blocking(AsyncTableHandle.set_watermark)
    forget_watermarks = _blocking(AsyncTableHandle.forget_watermarks)
    compact_watermarks = _blocking(AsyncTableHandle.compact_watermarks)
    rewind_watermarks = _blocking(AsyncTableHandle.rewind_watermarks)
    rollback = _starting(AsyncTableHandle.rollback)
    publish_branch = _starting(AsyncTableHandle.publish_branch)
    drop_branch = _starting(AsyncTableHandle.drop_branch)
    delete = _starting(AsyncTableHandle.delete)
    compact = _starting(AsyncTableHandle.compact)
    expire_snapshots = _starting(AsyncTableHandle.expire_snapshots)
    remove_orphans = _starting(AsyncTableHandle.remove_orphans)
    build_index = _starting(AsyncTableHandle.build_index)
    validate = _starting(AsyncTableHandle.validate)
    enqueue = _blocking(AsyncTableHandle.enqueue)
    replace_batch = _blocking(AsyncTableHandle.replace_batch)
    batch_rewritten = _blocking(AsyncTableHandle.batch_rewritten)
    backlog = _iterating(AsyncTableHandle.backlog)
    batch = _blocking(AsyncTableHandle.batch)
    ordering = _blocking(AsyncTableHandle.ordering)
    set_ordering = _blocking(AsyncTableHandle.set_ordering)
    open_gate = _blocking(AsyncTableHandle.open_gate)
    approve_batch = _blocking(AsyncTableHandle.approve_batch)
    retry_batch = _blocking(AsyncTableHandle.retry_batch)
    skip_batch = _blocking(AsyncTableHandle.skip_batch)
    remove_batch = _blocking(AsyncTableHandle.remove_batch)
    backfill = _blocking(AsyncTableHandle.backfill)
    backfill_progress = _blocking(AsyncTableHandle.backfill_progress)
    watch_backfill = _iterating(AsyncTableHandle.watch_backfill)
    cancel_backfill = _blocking(AsyncTableHandle.cancel_backfill)
    add_schedule = _blocking(AsyncTableHandle.add_schedule)
    schedules = _blocking(AsyncTableHandle.schedules)
    pause_schedule = _blocking(AsyncTableHandle.pause_schedule)
    resume_schedule = _blocking(AsyncTableHandle.resume_schedule)
    remove_schedule = _blocking(AsyncTableHandle.remove_schedule)
    run_schedule = _starting(AsyncTableHandle.run_schedule)
    quarantines = _iterating(AsyncTableHandle.quarantines)


class Client(_Blocking):
    """:class:`AsyncClient` for blocking code: the same methods and parameters, each waiting for its result.

    Usable from several threads. Close it, or use it in a ``with`` statement::

        with Client("127.0.0.1:7070") as client:
            client.ingest("flights", ["/data/2013-01"], run="flights-2013-01").result()
    """

    _calls: AsyncClient

    ingest = _starting(AsyncClient.ingest)
    start = _starting(AsyncClient.start)
    preview = _blocking(AsyncClient.preview)
    operations = _iterating(AsyncClient.operations)
    create_table = _blocking(AsyncClient.create_table)
    tables = _iterating(AsyncClient.tables)
    members = _blocking(AsyncClient.members)
    leaders = _blocking(AsyncClient.leaders)
    diagnose = _blocking(AsyncClient.diagnose)
    remove_key = _blocking(AsyncClient.remove_key)
    drain = _blocking(AsyncClient.drain)
    audit = _iterating(AsyncClient.audit)
    grants = _blocking(AsyncClient.grants)
    change_grants = _blocking(AsyncClient.change_grants)

    @property
    def identity(self) -> str:
        """The name that it states as its caller's."""
        return self._calls.identity

    def operation(self, name: str) -> OperationHandle:
        """The handle of an operation: ``"flights/ingest/17"``."""
        return OperationHandle(self._calls.operation(name), self._runner)

    def table(self, name: str) -> TableHandle:
        """The handle of a table."""
        return TableHandle(self._calls.table(name), self._runner)

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 2.0,
        identity: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        self._calls = AsyncClient(
            address,
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            identity=identity,
            credentials=credentials,
        )
        self._runner = _Runner()
        self._runner.thread.belongs_to(self, functools.partial(_shut_down, self._calls))

    def close(self) -> None:
        """Close the channels and end the thread. Calls in progress in other threads end with an error."""
        self._runner.thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _shut_down(client: AsyncClient) -> None:
    await cancel_others()
    await asyncio.get_running_loop().shutdown_asyncgens()
    await client.close()
