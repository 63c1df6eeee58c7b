"""In place of gRPC's servers: the calls that coordinators serve, made by people of the simulation."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio

from distop.errors import DistopError
from distop.errors.wire import from_rpc_error
from distop.proto import distop_pb2
from simulate.loop import Loop, Process, present

CALL_S = 30.0
"""How long a caller waits."""

_SERVICES = distop_pb2.DESCRIPTOR.services_by_name


class _Aborted(grpc.aio.AbortError):
    pass


class _Call:
    """A call, as its handler sees it."""

    def __init__(self, loop: Loop) -> None:
        self._loop, self._end = loop, loop.time() + CALL_S
        self.error: grpc.aio.AioRpcError | None = None

    def time_remaining(self) -> float:
        return max(0.0, self._end - self._loop.time())

    def invocation_metadata(self) -> tuple[Any, ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1000"

    def auth_context(self) -> dict[str, Any]:
        return {}

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        trailing = grpc.aio.Metadata(*trailing_metadata)
        self.error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details, None)
        raise _Aborted


class Server:
    """In place of ``grpc.aio.Server``."""

    def __init__(self, doors: Doors, interceptors: Any) -> None:
        self._doors, self._interceptor = doors, interceptors[0]
        self._handlers: list[Any] = []
        self.process = present()

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        pass

    def add_insecure_port(self, address: str) -> int:
        return next(self._doors.ports)

    async def start(self) -> None:
        self._doors.open[self.process] = self

    async def stop(self, grace: float | None = None) -> None:
        self._doors.open.pop(self.process, None)

    async def serve(self, method: str, request: Any) -> Any:
        """In the coordinator's process: the response, or the caller's error."""

        async def handler_of(details: Any) -> Any:
            served = (handler.service(details) for handler in self._handlers)
            return next((handler for handler in served if handler is not None), None)

        details = SimpleNamespace(method=method, invocation_metadata=())
        handler = await self._interceptor.intercept_service(handler_of, details)
        call = _Call(self._doors.loop)
        try:
            return await handler.unary_unary(request.SerializeToString(), call)
        except _Aborted:
            assert call.error is not None
            return from_rpc_error(call.error)


class Doors:
    """The coordinators that serve."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.open: dict[Process, Server] = {}
        self.ports = itertools.count(20_000)

    def server(self, interceptors: Any = (), options: Any = ()) -> Server:
        """In place of ``grpc.aio.server``."""
        return Server(self, interceptors)

    async def call(self, process: Process, name: str, request: Any) -> Any:
        """Call ``Service/Method`` of a coordinator.

        Returns its response, the error that it answers, or ``None``: the caller waits in vain.
        """
        assert name.partition("/")[0] in _SERVICES
        server = self.open.get(process)
        if server is None or process.dead:
            return None
        answered = self.loop.create_future()

        async def serve() -> None:
            try:
                answer: Any = await server.serve(f"/distop.v1.{name}", request)
            except DistopError as error:
                answer = error
            if not answered.done():
                answered.set_result(answer)

        serving = self.loop.spawn(process, serve)
        await asyncio.wait({answered}, timeout=CALL_S)
        if not answered.done():
            serving.cancel()
            return None
        return answered.result()
