"""Calls that reach the service through any of its coordinators, and streams that outlive one of them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import grpc
from google.protobuf.message import Message
from grpc.aio import EOF  # type: ignore[attr-defined]  # the stubs lack it

from distop.client.credentials import Credentials, Shown
from distop.client.pace import Pace
from distop.errors import ArgumentTooLarge, Busy, DistopError, InvalidArgument, Kind, Unavailable
from distop.errors.wire import from_rpc_error
from distop.process.threads import check_not_forked
from distop.process.tracing import own_traceparent
from distop.proto import distop_pb2_grpc

DEFAULT_PORT = 7070
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
ADDRESS_VARIABLE = "DISTOP_ADDRESS"
"""Environment variable with the address of a client that is given none."""

MAX_REQUEST_BYTES = 8 * 1024 * 1024
"""Limit of the gRPC server; checked here, since its own error does not say what is too large."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Back-off once every address has failed."""

LEAVE_S = 60.0
"""Seconds that calls on an old channel have to end after certificates have changed."""

_OPTIONS = [
    # Restarted coordinators must be found within a second, not within gRPC's two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Also the time limit of a new connection: TCP, TLS and HTTP/2 take three round trips.
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),
    ("grpc.enable_http_proxy", 0),
    # Before a coordinator closes an idle connection: gRPC would print a line about that for the user.
    ("grpc.client_idle_timeout_ms", 100_000),
    # Separate connections: a dead connection's back-off in one client must not delay another one.
    ("grpc.use_local_subchannel_pool", 1),
]

Rpc = Callable[[SimpleNamespace], Callable[..., Any]]
"""Selects a method: ``lambda service: service.GetOperation``."""

M = TypeVar("M", bound=Message)

_STUBS = (
    distop_pb2_grpc.OperationServiceStub,
    distop_pb2_grpc.TableServiceStub,
    distop_pb2_grpc.BacklogServiceStub,
    distop_pb2_grpc.ScheduleServiceStub,
    distop_pb2_grpc.IndexServiceStub,
    distop_pb2_grpc.ClusterServiceStub,
    distop_pb2_grpc.AccessServiceStub,
)


def default_address() -> str:
    """The address of a client that is given none."""
    return os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS


def parse_addresses(text: str) -> tuple[str, ...]:
    """``"a:7070, b"`` to ``("a:7070", "b:7070")``.

    Raises
    ------
    InvalidArgument
        There is none, or one is not ``host`` or ``host:port``.
    """
    addresses = tuple(dict.fromkeys(_address(part.strip()) for part in text.split(",") if part.strip()))
    if not addresses:
        raise InvalidArgument("no address of a coordinator is given", details={"field": "address"})
    return addresses


def _address(text: str) -> str:
    parts = urlsplit(f"//{text}")
    try:
        port = DEFAULT_PORT if parts.port is None else parts.port
    except ValueError:
        port = 0
    if not parts.hostname or parts.netloc != text or "@" in text or not port:
        raise InvalidArgument(f"{text!r} is not host:port of a coordinator", details={"field": "address"})
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port}"


def transient(error: BaseException) -> bool:
    """Whether another coordinator, or the same one a moment later, may answer."""
    if isinstance(error, Busy):
        return True
    return isinstance(error, DistopError) and error.kind in (Kind.UNAVAILABLE, Kind.DEADLINE)


class Connection:
    """Several coordinators. One is called until it fails; then the next one is.

    Every call here is idempotent, so a call whose reply was lost is repeated. Belongs to one
    event loop.

    Parameters
    ----------
    addresses:
        ``host:port`` of coordinators.
    timeout_s:
        Deadline of a call in seconds, over all attempts.
    connect_timeout_s:
        Seconds until a connection that has asked each coordinator, and never reached any, gives up a call.
    identity:
        The name that calls state as their caller's.
    credentials:
        Credentials for coordinators; none by default.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        *,
        timeout_s: float,
        connect_timeout_s: float,
        identity: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        if not timeout_s > 0:
            raise InvalidArgument("the timeout must be positive seconds", details={"field": "timeout_s"})
        self.timeout_s = timeout_s
        self.identity = identity
        self._addresses = addresses
        self._connect_timeout_s = connect_timeout_s
        self._current = 0
        self._reached = False
        self.starts = Pace()
        self._shown = Shown(credentials or Credentials())
        self._channel_credentials = self._shown.channel()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = asyncio.Event()
        self._services: dict[str, SimpleNamespace] = {}

    @property
    def address(self) -> str:
        """The address of the current coordinator."""
        return self._addresses[self._current]

    async def call(
        self,
        rpc: Rpc,
        request: Any,
        *,
        timeout_s: float | None = None,
        failures: list[DistopError] | None = None,
        pace: Pace | None = None,
    ) -> Any:
        """The reply of a call, within its deadline.

        A coordinator that does not answer gets a share of the time, so that the others get theirs.

        Parameters
        ----------
        failures:
            Receives the errors after which the call was repeated. If there are any, it may have happened
            before the attempt that was answered.
        pace:
            Pace of calls of its kind, if the service limits them.
        """
        if request.ByteSize() > MAX_REQUEST_BYTES:
            raise ArgumentTooLarge(
                f"the request is {request.ByteSize():,} bytes, the limit is {MAX_REQUEST_BYTES:,}",
                details={"field": "argument"},
            )
        limit = self.timeout_s if timeout_s is None else timeout_s
        loop = asyncio.get_running_loop()
        began, attempts = loop.time(), 0
        while True:
            untried = len(self._addresses) - attempts
            attempts += 1
            try:
                return await self._once(rpc, request, began + limit, max(untried, 1), pace)
            except DistopError as error:
                if not transient(error):
                    raise
                if failures is not None and not isinstance(error, Busy):
                    failures.append(error)
                # No pause, and no giving up, while there are addresses left to try: each has its share.
                pause = 0.0
                if untried <= 1:
                    elapsed = loop.time() - began
                    pause = self._pause_s(error, attempts, limit - elapsed)
                    if self.gives_up(elapsed + pause, limit):
                        raise
            await asyncio.sleep(pause)

    async def stream(self, rpc: Rpc, request: Any, *, silence_s: float) -> AsyncGenerator[Any, None]:
        """The messages of one stream of the current coordinator.

        Raises :class:`Unavailable` when nothing came for ``silence_s`` seconds, and otherwise the stream's
        error. The next stream goes to the next coordinator then.
        """
        address = self.address
        call = rpc(self._service(address))(request, metadata=self._shown.metadata(address))
        try:
            while True:
                # Not wait_for: that of Python 3.11 loses a cancellation that arrives with a message.
                async with asyncio.timeout(silence_s):
                    message = await call.read()
                if message is EOF:
                    return
                self._reached = True
                yield message
        except TimeoutError:
            self._turn_from(address)
            raise Unavailable(f"{address} has been silent for {silence_s:g} s") from None
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, address) from None
        except asyncio.CancelledError:
            self._check_kept(address)
            raise
        finally:
            call.cancel()

    def _pause_s(self, error: DistopError, attempts: int, left_s: float) -> float:
        """Back-off before the next attempt: the retry delay of an overloaded service, if there is time. It is
        randomised, so that refused calls do not return together."""
        asked_s = error.retry_after_s * random.uniform(1.0, 1.2)
        return max(pause_s(attempts - len(self._addresses)), min(asked_s, left_s / 2))

    def gives_up(self, seconds: float, limit: float) -> bool:
        """Whether to stop after this long without an answer; earlier if there never was one."""
        return seconds >= (limit if self._reached else min(limit, self._connect_timeout_s))

    def turn(self) -> None:
        """Use the next coordinator."""
        self._turn_from(self.address)

    async def close(self) -> None:
        self._closed.set()
        self._leave_channels()
        await asyncio.gather(*self._closing)

    async def _once(self, rpc: Rpc, request: Any, deadline: float, shares: int, pace: Pace | None) -> Any:
        """The reply of one attempt, which has a share of the time until the deadline."""
        loop = asyncio.get_running_loop()
        if pace is not None:
            await pace.enter(deadline - loop.time())
        refused, address = False, self.address
        try:
            timeout_s = max(deadline - loop.time(), 0.001) / shares
            metadata = self._shown.metadata(address) + own_traceparent()
            reply = await rpc(self._service(address))(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            failure = self._failure(error, address)
            refused = isinstance(failure, Busy)
            raise failure from None
        except asyncio.CancelledError:
            self._check_kept(address)
            raise
        finally:
            if pace is not None:
                pace.leave(refused=refused)
        self._reached = True
        return reply

    def _failure(self, error: grpc.aio.AioRpcError, address: str) -> DistopError:
        failure = from_rpc_error(error, address=address)
        if transient(failure):
            self._turn_from(address)
        if failure.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            self._reached = True
        return failure

    def _turn_from(self, address: str) -> None:
        # Calls that failed together on one coordinator must move on by one, not by their number.
        if self.address == address:
            self._current = (self._current + 1) % len(self._addresses)

    def _check_kept(self, address: str) -> None:
        """Raise :class:`Unavailable` if a call was cancelled with its channel, which certificates have
        replaced, and neither by who waits for it nor by :meth:`close`."""
        task = asyncio.current_task()
        if task is not None and not task.cancelling() and not self._closed.is_set():
            raise Unavailable(
                f"the connection to {address} was replaced, as certificates have changed"
            ) from None

    def _leave_channels(self) -> None:
        """Close all channels, once their calls have had their time."""
        channels, self._channels, self._services = self._channels, {}, {}
        for channel in channels.values():
            closing = asyncio.ensure_future(self._close_later(channel))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _close_later(self, channel: grpc.aio.Channel) -> None:
        # Not gRPC's own grace, which nothing cuts short.
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self._closed.wait()
        finally:
            await channel.close(None)

    def _service(self, address: str) -> SimpleNamespace:
        if (credentials := self._shown.channel()) is not self._channel_credentials:
            self._channel_credentials = credentials
            self._leave_channels()
        if address not in self._services:
            check_not_forked()
            if credentials is None:
                channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
            self._channels[address] = channel
            # The methods of all services; no two have the same name.
            methods = {name: call for stub in _STUBS for name, call in vars(stub(channel)).items()}
            self._services[address] = SimpleNamespace(**methods)
        return self._services[address]


def pause_s(failures: int) -> float:
    """Back-off in seconds: doubled after each failure, and randomised."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures, 10), LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)


async def resumed(
    connection: Connection, method: str, request: Callable[[], Any], *, silence_s: float
) -> AsyncGenerator[Any, None]:
    """The messages of a stream, and of its successors; the consumer closes it after the last message.

    Parameters
    ----------
    request:
        Makes the request of each stream: how to continue after a broken or silent one.

    Raises
    ------
    Unavailable
        No coordinator sent anything within the connection's timeout, counted from the first failure: before
        it, a stream may be quiet, and its consumer busy, for longer than that.
    """
    loop, failures, failing_since = asyncio.get_running_loop(), 0, 0.0
    while True:
        broken: DistopError = Unavailable(f"{connection.address} ended the stream")
        try:
            stream = connection.stream(attrgetter(method), request(), silence_s=silence_s)
            async with aclosing(stream) as messages:
                async for message in messages:
                    failures = 0
                    yield message
            connection.turn()
        except DistopError as error:
            if not transient(error):
                raise
            broken = error
        if not failures:
            failing_since = loop.time()
        failures += 1
        pause = max(pause_s(failures), broken.retry_after_s)
        if connection.gives_up(loop.time() + pause - failing_since, connection.timeout_s):
            raise broken
        await asyncio.sleep(pause)


def make_request(kind: type[M], **fields: Any) -> M:
    """A request, or :class:`InvalidArgument` if a field cannot be sent (text that is not valid Unicode)."""
    try:
        return kind(**fields)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"this cannot be sent: {error}") from None
