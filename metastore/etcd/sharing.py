"""Many watches on few streams.

A separate stream costs a watch more than all its events; the leader of a thousand tables has two thousand
watches. etcd serves any number of them on one stream, each with its own range, beginning and end. There are
several streams, since an event loop reads only one message of a stream per iteration.

A stream is read whether or not its watchers keep up: for each watch up to :data:`MAX_WAITING_BYTES` are
buffered. A watch that falls further behind is ended, and its watcher resumes from its last revision.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any

import grpc
import grpc.aio
from aetcd.rpc import rpc_pb2

from distop.errors import DistopError

STREAMS = 16
"""Streams of a client that accept watches at a time."""

MAX_WAITING_BYTES = 4 << 20
"""Buffer limit of one watch, in addition to its reader's next response."""

Open = Callable[[Any], Awaitable["grpc.aio.StreamStreamCall[Any, Any]"]]
"""Opens a stream with its first request."""


class SharedWatches:
    """The shared streams of one client: :data:`STREAMS`, and those it leaves for another member or token."""

    def __init__(self, open_stream: Open, endpoint: Callable[[], str]) -> None:
        self._open, self._endpoint = open_stream, endpoint
        self._streams: set[_Stream] = set()

    def watch(self, request: Any) -> SharedWatch:
        """A watch for ``request``, on the stream that has the fewest."""
        endpoint = self._endpoint()
        usable = [one for one in self._streams if not one.retired and one.endpoint == endpoint]
        if len(usable) >= STREAMS:
            return min(usable, key=lambda one: one.readers).add(request)
        stream = _Stream(self._open, endpoint)
        self._streams.add(stream)
        stream.task.add_done_callback(partial(self._forget, stream))
        return stream.add(request)

    def _forget(self, stream: _Stream, _: asyncio.Task[None]) -> None:
        self._streams.discard(stream)
        stream.end()

    async def close(self) -> None:
        """End all streams, and the watches on them."""
        tasks = [stream.task for stream in self._streams]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class SharedWatch:
    """One watch; read and cancelled as if it had a stream of its own."""

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream
        self._responses: deque[tuple[Any, int]] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self._over = False
        self._error: BaseException | None = None
        self.number: int | None = None
        """etcd's id of it on its stream."""
        self.left = False
        """It has no reader any more."""

    async def read(self) -> Any:
        """The next response; ``grpc.aio.EOF`` once it has ended. Raises the error that broke its stream."""
        while not self._responses:
            if self._error is not None:
                raise self._error.with_traceback(None)
            if self._over:
                return grpc.aio.EOF  # type: ignore[attr-defined]
            self._news.clear()
            await self._news.wait()
        response, size = self._responses.popleft()
        self._waiting_bytes -= size
        return response

    def cancel(self) -> None:
        """End the watch."""
        self._stream.leave(self)

    def give(self, response: Any) -> None:
        """Add a response; without room for it, :attr:`left` is set."""
        # A reader that keeps up need not be counted.
        size = response.ByteSize() if self._responses else 0
        if self._waiting_bytes + size > MAX_WAITING_BYTES:
            self.end(None)
            self._stream.leave(self)
            return
        self._waiting_bytes += size
        self._responses.append((response, size))
        self._news.set()

    def end(self, error: BaseException | None) -> None:
        """Nothing follows the responses so far."""
        self._over, self._error = True, error
        self._news.set()


class _Stream:
    """One stream. It ends with the last watch on it."""

    def __init__(self, open_stream: Open, endpoint: str) -> None:
        self.endpoint = endpoint
        self.retired = False
        """Accepts no more watches: it has ended, or its token is no longer accepted."""
        self._unsent: deque[Any] = deque()
        """One request to begin and one to end for each watch at most."""
        self._unanswered: deque[SharedWatch] = deque()
        """etcd answers watch requests in order."""
        self._watches: dict[int, SharedWatch] = {}
        self.readers = 0
        """Watches with a reader."""
        self._due = asyncio.Event()
        self._failure: BaseException | None = None
        # It outlives its creator, and so the creator's deadline.
        self.task = asyncio.get_running_loop().create_task(
            self._run(open_stream), name="shared-watches", context=Context()
        )

    def add(self, request: Any) -> SharedWatch:
        watch = SharedWatch(self)
        self._unanswered.append(watch)
        self.readers += 1
        self._send(request)
        return watch

    def leave(self, watch: SharedWatch) -> None:
        if watch.left:
            return
        watch.left = True
        self.readers -= 1
        if not self.readers:
            self.retired = True
            self.task.cancel()
        elif watch.number is not None and self._watches.pop(watch.number, None) is not None:
            self._send_end(watch.number)

    def end(self) -> None:
        """Once its task has ended: notify the remaining watchers."""
        for watch in (*self._unanswered, *self._watches.values()):
            watch.end(self._failure)

    def _send(self, request: Any) -> None:
        self._unsent.append(request)
        self._due.set()

    def _send_end(self, number: int) -> None:
        self._send(rpc_pb2.WatchRequest(cancel_request=rpc_pb2.WatchCancelRequest(watch_id=number)))

    async def _run(self, open_stream: Open) -> None:
        call: grpc.aio.StreamStreamCall[Any, Any] | None = None
        writing: asyncio.Task[None] | None = None
        try:
            call = await open_stream(self._unsent.popleft())
            writing = asyncio.create_task(self._write(call))
            while (response := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]
                self._take(response)
        except (grpc.aio.AioRpcError, TimeoutError, DistopError) as error:
            self._failure = error
        finally:  # not run for a task that is cancelled before it begins
            self.retired = True
            if writing is not None:
                writing.cancel()
            if call is not None:
                call.cancel()

    async def _write(self, call: grpc.aio.StreamStreamCall[Any, Any]) -> None:
        # The readers of the stream get the same error.
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                while self._unsent:
                    await call.write(self._unsent.popleft())
                self._due.clear()
                await self._due.wait()

    def _take(self, response: Any) -> None:
        if response.created:
            watch = self._unanswered.popleft()
            if response.canceled:
                # Perhaps only because the stream was opened with an old token.
                self.retired = True
            elif watch.left:
                self._send_end(response.watch_id)
                return
            else:
                watch.number = response.watch_id
                self._watches[response.watch_id] = watch
            watch.give(response)
            return
        known = self._watches.get(response.watch_id)
        if known is None:
            return  # it was left
        if response.canceled:
            del self._watches[response.watch_id]
        known.give(response)
        if response.canceled:
            known.end(None)
