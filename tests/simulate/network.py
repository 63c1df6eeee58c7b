"""The way between a process and etcd: in place of gRPC's channels, with everything that can go wrong there.

A request travels, is answered at one moment, and the answer travels. Both belong to the world: neither ends
because the process that sent the request is killed, or has stopped waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from simulate.etcd import Etcd, Refused, Watcher
from simulate.loop import Loop, Process, present

WRITES = ("Txn", "Put", "DeleteRange")
_UNREACHABLE = "failed to connect to all addresses; last error: connection refused"


@dataclass(frozen=True)
class Fate:
    """What becomes of one request."""

    there_s: float = 0.0005
    back_s: float = 0.0005
    arrives: bool = True
    answered: bool = True
    broken: bool = False
    """The connection breaks before the answer is there."""
    copy_s: float = 0.0
    """After how long another copy of it arrives; 0: none."""
    crash: str = ""
    """``sent`` or ``applied``: when its process is killed."""


def failure(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """What gRPC raises."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details, None)


class Network:
    """All channels. ``fate_of`` decides about each request, ``crash`` kills a process."""

    def __init__(
        self,
        loop: Loop,
        etcd: Etcd,
        fate_of: Callable[[Process, str, Any], Fate],
        crash: Callable[[Process], None],
    ) -> None:
        self.loop, self.etcd = loop, etcd
        self._fate_of, self._crash = fate_of, crash
        self.cut: set[str] = set()
        """Names of processes that do not reach etcd."""
        self.streams: dict[Process, list[WatchStream]] = {}

    def reaches(self, process: Process) -> bool:
        return not self.etcd.down and process.name not in self.cut

    def channel(self, *_: Any) -> Channel:
        """In place of ``open_channel``."""
        return Channel(self)

    def gone(self, process: Process) -> None:
        """Its connections are closed."""
        for stream in self.streams.pop(process, []):
            stream.close()

    def break_streams(self, process: Process) -> None:
        for stream in list(self.streams.get(process, ())):
            stream.break_off("Stream removed")

    async def call(self, method: str, request: Any, timeout: float | None) -> Any:
        """Send a request, and wait for its answer."""
        process, answer = present(), self.loop.create_future()
        fate = self._fate_of(process, method, request)
        later = self.loop.call_later
        if fate.crash == "sent":
            later(0.0, self._crash, process, context=self.loop.world)
        if not self.reaches(process):
            await asyncio.sleep(min(fate.there_s, timeout or 1.0))
            raise failure(grpc.StatusCode.UNAVAILABLE, _UNREACHABLE)
        if fate.arrives:
            later(fate.there_s, self._arrive, process, method, request, fate, answer, context=self.loop.world)
        if fate.copy_s:
            later(fate.copy_s, self._copy, process, method, request, context=self.loop.world)
        try:
            async with asyncio.timeout(timeout):
                return await answer
        except TimeoutError:
            raise failure(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None

    def _arrive(
        self, process: Process, method: str, request: Any, fate: Fate, answer: asyncio.Future[Any]
    ) -> None:
        if not self.reaches(process):
            self._reply(process, failure(grpc.StatusCode.UNAVAILABLE, "Socket closed"), answer)
            return
        try:
            response = self.etcd.handle(process.name, method, request)
        except Refused as error:
            response = failure(error.code, error.details)
        else:
            if method == "LeaseGrant":
                process.leases.add(response.ID)
        if fate.crash == "applied":
            self._crash(process)
        elif fate.answered:
            if fate.broken:
                response = failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            self.loop.call_later(fate.back_s, self._reply, process, response, answer, context=self.loop.world)

    def _copy(self, process: Process, method: str, request: Any) -> None:
        try:
            self.etcd.handle(process.name, method, request)
        except Refused:
            return

    def _reply(self, process: Process, response: Any, answer: asyncio.Future[Any]) -> None:
        if answer.done() or process.dead:
            return
        if not self.reaches(process):
            response = failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        if isinstance(response, Exception):
            answer.set_exception(response)
        else:
            answer.set_result(response)


class Channel:
    """As much of ``grpc.aio.Channel`` as the stubs use."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def unary_unary(self, path: str, *_: Any, **__: Any) -> Any:
        method = path.rpartition("/")[2]

        async def call(request: Any, metadata: Any = None, timeout: float | None = None) -> Any:
            return await self._network.call(method, request, timeout)

        return call

    def stream_stream(self, path: str, *_: Any, **__: Any) -> Any:
        return lambda metadata=None, wait_for_ready=None: WatchStream(self._network, present())

    def unary_stream(self, path: str, *_: Any, **__: Any) -> Any:
        return None

    async def close(self, grace: float | None = None) -> None:
        pass


class WatchStream:
    """A stream with a watch, seen from its client."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process, self._loop = network, process, network.loop
        self._responses: deque[Any] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._over = False
        self._last = 0.0
        """When the last response arrives."""
        self._watcher: Watcher | None = None
        self.lag_s = 0.0
        network.streams.setdefault(process, []).append(self)

    # -- as gRPC's -------------------------------------------------------------------------------------

    async def write(self, request: Any) -> None:
        fate = self._network._fate_of(self._process, "Watch", request)
        if not self._network.reaches(self._process):
            self.break_off(_UNREACHABLE)
        if self._error is not None:
            raise self._error
        self._loop.call_later(fate.there_s, self._arrive, request, context=self._loop.world)

    async def read(self) -> Any:
        while not self._responses:
            if self._error is not None:
                raise self._error
            if self._over:
                return grpc.aio.EOF  # type: ignore[attr-defined]
            self._arrival = self._loop.create_future()
            await self._arrival
        return self._responses.popleft()

    def cancel(self) -> bool:
        self.close()
        return True

    def add_done_callback(self, callback: Any) -> None:
        pass

    # -- the world's side ------------------------------------------------------------------------------

    def close(self) -> None:
        """Nothing comes any more."""
        self._over = True
        if self._watcher is not None:
            self._network.etcd.unwatch(self._watcher)
        streams = self._network.streams.get(self._process, [])
        if self in streams:
            streams.remove(self)
        self._wake()

    def break_off(self, why: str) -> None:
        """What is on its way is lost."""
        if not self._over:
            self._error = failure(grpc.StatusCode.UNAVAILABLE, why)
            self.close()

    def _wake(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def _arrive(self, request: Any) -> None:
        if self._over:
            return
        if not self._network.reaches(self._process):
            self.break_off("Socket closed")
            return
        create = request.create_request
        kinds = 0 not in create.filters, 1 not in create.filters
        self._watcher = Watcher(create.key, create.range_end, kinds, self._send)
        self._network.etcd.watch(self._watcher, create.start_revision)

    def _send(self, response: Any, past: bool) -> None:
        fate = self._network._fate_of(self._process, "", response)
        at = self._loop.time() + fate.back_s + self.lag_s + (0.1 if past else 0.0)
        self._last = max(self._last, at)
        self._loop.call_at(self._last, self._deliver, response, context=self._loop.world)

    def _deliver(self, response: Any) -> None:
        if self._over:
            return
        if not self._network.reaches(self._process):
            self.break_off("Socket closed")
            return
        self._responses.append(response)
        self._wake()
