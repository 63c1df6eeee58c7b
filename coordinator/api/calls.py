"""The common part of all calls: limits, checks of requests and of their texts, and errors as statuses."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio
from cachetools import LRUCache
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from distop.coordinator.access.authentication import Proof, bearer
from distop.coordinator.access.callers import Caller, answer_to, caller
from distop.coordinator.access.gate import Gate, seen_by
from distop.coordinator.access.rights import OPEN
from distop.errors import RETRY_AFTER, Busy, DistopError, InvalidArgument, Unavailable, as_distop, defect_of
from distop.errors.wire import abort
from distop.metastore.etcd.config import within
from distop.metastore.etcd.txn import Put
from distop.metastore.records.keyspace import Keyspace, TableKeys
from distop.metastore.records.names import unreadable
from distop.metastore.records.watermarks import MAX_ENTRY_BYTES
from distop.metastore.tables.audit import audit_put
from distop.process.tracing import callers_span, traceparent_in
from distop.proto.addresses import caller_of, plain_address

CONNECTIONS = 1000
"""Connections to the gRPC port; more are closed at once."""

IDLE_S = 300
"""Seconds after which a connection without a call is closed."""

OPTIONS: list[tuple[str, int]] = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", 8 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.max_allowed_incoming_connections", CONNECTIONS),
    ("grpc.max_connection_idle_ms", IDLE_S * 1000),
    ("grpc.server_handshake_timeout_ms", 10_000),
    # Detects a peer that vanished.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]

_CALLERS = 4096
"""Most callers whose starts are remembered, the latest ones."""

_SOON_S = 0.5
"""Retry delay for callers with too many concurrent calls."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits for callers of one coordinator. One connection carries 1,000 concurrent calls in any case."""

    calls_each: int = 1000
    """Concurrent calls of one caller."""
    calls: int = 4000
    """Concurrent calls of all callers."""
    streams_each: int = 2000
    """Streams of one caller: followed operations and audit trails, and diagnoses."""
    streams: int = 8000
    """Streams of all callers."""
    starts_per_s: float = 500.0
    """Operations, previews, batches and tables that one caller may begin per second on average; twice as many
    at once."""
    stream_s: float = 3600.0
    """Seconds after which a stream is ended; clients then resume it."""
    again_s: float = 30.0
    """Seconds between checks whether the caller of a stream is still allowed to see it."""


class Callers:
    """The calls in progress of one coordinator's callers. Belongs to one event loop."""

    def __init__(self, limits: Limits | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits or Limits()
        self._clock = clock
        self._under_way: dict[str, Counter[str]] = {"calls": Counter(), "streams": Counter()}
        self._all = Counter[str]()
        # Of each caller: how many starts it has left, and as of when.
        self._starts: LRUCache[str, tuple[float, float]] = LRUCache(_CALLERS)

    @contextmanager
    def call(self, caller: str) -> Iterator[None]:
        """Count a call of this caller while it runs. Raises :class:`~distop.errors.Busy`."""
        with self._held("calls", caller, self.limits.calls_each, self.limits.calls):
            yield

    @contextmanager
    def stream(self, caller: str) -> Iterator[None]:
        """Count a stream of this caller while it is open. Raises :class:`~distop.errors.Busy`."""
        with self._held("streams", caller, self.limits.streams_each, self.limits.streams):
            yield

    def start(self, caller: str) -> None:
        """Count a start. Raises :class:`~distop.errors.Busy` when the caller has recently started too
        many."""
        rate, now = self.limits.starts_per_s, self._clock()
        most = 2 * rate
        left, at = self._starts.get(caller, (most, now))
        left = min(most, left + (now - at) * rate)
        allowed = left >= 1.0
        self._starts[caller] = left - allowed, now
        if not allowed:
            raise _busy(f"{caller} sends more than {rate:g} starts a second", (1.0 - left) / rate)

    @contextmanager
    def _held(self, limit: str, caller: str, each: int, most: int) -> Iterator[None]:
        held = self._under_way[limit]
        if held[caller] >= each:
            raise _busy(f"{each:,} {limit} of {caller} are in progress, the limit for one caller", _SOON_S)
        if self._all[limit] >= most:
            raise _busy(f"{most:,} {limit} are in progress here, the limit", _SOON_S)
        held[caller] += 1
        self._all[limit] += 1
        try:
            yield
        finally:
            self._all[limit] -= 1
            held[caller] -= 1
            if not held[caller]:
                del held[caller]


def _busy(why: str, after_s: float) -> Busy:
    return Busy(why, details={RETRY_AFTER: f"{max(after_s, 0.01):.2f}"})


def address_of(context: grpc.aio.ServicerContext[Any, Any]) -> str:
    """The address of a call, without its port."""
    kind, _, rest = context.peer().partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    return plain_address(unquote(rest).rpartition(":")[0].strip("[]").partition("%")[0])


log = logging.getLogger(__name__)


MAX_BY_BYTES = 256
MAX_REASON_BYTES = 2_000

MAX_TEXT_BYTES = 4_096
"""Limit for every field that is not named below."""

MAX_ITEMS = 1_000
"""Limit for every list that is not named below."""

_WHO = frozenset({"created_by", "started_by", "requested_by"})

_LONGEST = dict.fromkeys(_WHO, MAX_BY_BYTES) | {
    "reason": MAX_REASON_BYTES,
    "location": 2_048,
    # Tables and operations: the rules for names limit them, with an error of their own.
    "name": 2 * MAX_TEXT_BYTES,
    # Their containers limit them, with an error of their own.
    "argument_json": 8 << 20,
    "options_json": 8 << 20,
    "changes_json": 8 << 20,
    # Watermarks.
    "source": MAX_ENTRY_BYTES,
    "partition": MAX_ENTRY_BYTES,
    "value": MAX_ENTRY_BYTES,
    # An encoded name, or a source and a partition, with escapes and in base64.
    "page_token": 5 * MAX_ENTRY_BYTES,
}

_MOST = {"partitions": 500_000}


def check_texts(request: Message) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` for a field of a request that is too long, and for a
    caller's name with invisible characters; the error names the field."""
    for path, why in _problems(request, ""):
        raise InvalidArgument(f"{path} {why}", details={"field": path})


@dataclass(frozen=True, slots=True)
class _Rule:
    """The limits of a field."""

    path: str
    """JSON objects have the names that clients use in arguments and options."""
    is_text: bool
    is_message: bool
    is_repeated: bool
    longest: int
    most: int
    is_who: bool


@functools.cache
def _rule(field: FieldDescriptor) -> _Rule:
    return _Rule(
        path=field.name.removesuffix("_json"),
        is_text=field.type == FieldDescriptor.TYPE_STRING,
        is_message=field.type == FieldDescriptor.TYPE_MESSAGE,
        is_repeated=field.is_repeated,
        longest=_LONGEST.get(field.name, MAX_TEXT_BYTES),
        most=_MOST.get(field.name, MAX_ITEMS),
        is_who=field.name in _WHO,
    )


def _problems(message: Message, above: str) -> Iterator[tuple[str, str]]:
    for field, value in message.ListFields():
        rule = _rule(field)
        values = value if rule.is_repeated else (value,)
        if len(values) > rule.most:
            yield f"{above}{rule.path}", f"has {len(values):,} items, at most {rule.most:,} are allowed"
        elif rule.is_message:
            for text in values:
                yield from _problems(text, f"{above}{rule.path}.")
        elif rule.is_text:
            # A character takes at most four bytes: few texts need to be encoded.
            if (
                4 * max(map(len, values)) > rule.longest
                and (size := max(len(text.encode()) for text in values)) > rule.longest
            ):
                yield f"{above}{rule.path}", f"is {size:,} bytes long, at most {rule.longest:,} are allowed"
            if rule.is_who and (unseen := unreadable(value)):
                yield f"{above}{rule.path}", unseen


ANSWER_S = 0.2
"""Longest time reserved for sending an answer before the caller's deadline."""

_STARTS = frozenset(
    {"StartOperation", "PreviewOperation", "EnqueueBatch", "CreateTable", "AddSchedule", "RunSchedule"}
)
"""Calls that create something persistent, or plan it."""

Context = grpc.aio.ServicerContext[Any, Any]


def call_id(request: Any) -> str:
    """The id of a call, the same in its repetitions; made for this one if its caller gives none."""
    return request.call_id or uuid.uuid4().hex


def run_of(request: Any) -> str:
    """The run that a request belongs to; made for this call if its caller names none."""
    return request.run or uuid.uuid4().hex


def audited(
    trail: TableKeys | Keyspace,
    action: str,
    request: Any,
    target: str,
    *,
    at: float,
    call: str = "",
    **more: str,
) -> Put:
    """The entry of the audit trail for what a request asks for, with its caller and its reason.

    ``more``: as of :func:`audit_put`.
    """
    entry = {"by": request.requested_by, "reason": getattr(request, "reason", ""), **more}
    return audit_put(trail, action, target=target, at=at, run=call, **entry)


def in_time(context: Context) -> AbstractContextManager[None]:
    """Calls to etcd inside end before the caller's deadline, which would hide the reason for the wait."""
    left: Any = context.time_remaining()  # None without a deadline, which the stubs do not say
    return nullcontext() if left is None else within(left - min(left * 0.1, ANSWER_S))


class ApiCalls:
    """Answers calls of the API: the same limits, checks, rights and records for every protocol by
    which they come.

    Parameters
    ----------
    servicers:
        By the name of the service, such as ``"OperationService"``.
    """

    def __init__(self, gate: Gate, callers: Callers, servicers: Mapping[str, Any]) -> None:
        self.gate, self.callers, self.servicers = gate, callers, servicers

    async def call(self, method: str, request: Message, proof: Proof, context: Any) -> Any:
        """Answer a call that gRPC has not brought.

        Parameters
        ----------
        method:
            Such as ``"OperationService/CancelOperation"``.
        context:
            Says how long the caller waits, as that of gRPC.

        Raises
        ------
        DistopError
            As the caller may see it.
        """

        def received() -> tuple[Message, Proof]:
            check_texts(request)
            return request, proof

        service, _, name = method.partition("/")
        handler = getattr(self.servicers[service], name)
        return await self.answer(f"/distop.v1.{method}", handler, proof.address, received, context)

    async def answer(
        self,
        method: str,
        handler: Callable[[Any, Any], Awaitable[Any]],
        address: str,
        received: Callable[[], tuple[Message, Proof]],
        context: Any,
    ) -> Any:
        """Answer a call; raises as :meth:`call`.

        ``received`` returns its request, checked, and its caller's credentials. It is called once there is
        room for the call.
        """
        caller_address = caller_of(address)
        try:
            with self.callers.call(caller_address), in_time(context):
                request, proof = received()
                who = await self.enter(method, request, proof)
                if method.rpartition("/")[2] in _STARTS:
                    self.callers.start(who.subject or caller_address)
                return await handler(request, context)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            raise seen_by(caller(), _as_distop(error, method)) from None

    async def enter(self, method: str, request: Any, proof: Proof) -> Caller:
        """Authenticate and authorise the caller; raises :class:`DistopError` if it may not make the call.
        From here on this task acts for, and records, this caller."""
        who = await self.gate.enter(method, request, proof)
        answer_to(who)
        return who


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Applies limits, checks the request, and reports errors in details, for every call.

    A :class:`DistopError` of a handler becomes its status; another error is INTERNAL, and is logged.
    """

    def __init__(self, calls: ApiCalls) -> None:
        self._calls = calls
        self._guarded: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if (guarded := self._guarded.get(method)) is not None:
            return guarded
        handler = await continuation(handler_call_details)
        if handler is not None:
            handler = self._guarded[method] = self._guard(handler, method)
        return handler

    def _guard(self, handler: Any, method: str) -> Any:
        if method.startswith(OPEN):
            return self._open(handler, method)
        # Requests are decoded in the calls below, where an error is the caller's, not a crash of gRPC.
        decode = handler.request_deserializer
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(handler.unary_unary, decode, method),
                response_serializer=handler.response_serializer,
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(handler.unary_stream, decode, method),
                response_serializer=_unless_encoded(handler.response_serializer),
            )
        raise NotImplementedError(f"{method} has an unsupported kind of method")

    def _unary(self, behavior: Any, decode: Callable[[bytes], Message], method: str) -> Any:
        async def call(data: bytes, context: Context) -> Any:
            def received() -> tuple[Message, Proof]:
                callers_span.set(traceparent_in(context.invocation_metadata() or ()))
                return _request(decode, data), _proof(context)

            try:
                return await self._calls.answer(method, behavior, address_of(context), received, context)
            except DistopError as error:
                await abort(context, error)

        return call

    def _stream(self, behavior: Any, decode: Callable[[bytes], Message], method: str) -> Any:
        async def call(data: bytes, context: Context) -> AsyncGenerator[Any, None]:
            try:
                with self._calls.callers.stream(caller_of(address_of(context))):
                    request = _request(decode, data)

                    async def enter() -> None:
                        await self._calls.enter(method, request, _proof(context))

                    await enter()
                    # Closed when the caller goes, not at garbage collection: it holds a watch open.
                    async with aclosing(behavior(request, context)) as responses:
                        async for response in self._while_welcome(responses, enter):
                            yield response
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:
                await abort(context, _as_distop(error, method))

        return call

    async def _while_welcome(
        self, responses: Any, enter: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[Any, None]:
        """Responses until the stream reaches its longest duration, or its caller loses access."""
        loop, limits = asyncio.get_running_loop(), self._calls.callers.limits
        policies = self._calls.gate.policies
        refused: list[DistopError] = []

        async def look_again() -> None:
            while not refused:
                await asyncio.sleep(limits.again_s)
                try:
                    await enter()
                except DistopError as refusal:
                    refused.append(refusal)
                    with suppress(RuntimeError):  # no response is being waited for
                        waiting.reschedule(loop.time())

        looking = asyncio.create_task(look_again(), name="looking again")
        policy, end = policies.latest, loop.time() + limits.stream_s
        try:
            while not refused:
                try:
                    async with asyncio.timeout_at(end) as waiting:
                        response = await anext(responses)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    break
                # The caller may no longer see what it saw then.
                if policies.latest is not policy:
                    policy = policies.latest
                    await enter()
                yield response
            raise (
                refused[0]
                if refused
                else Unavailable(
                    f"the stream has lasted {limits.stream_s:g} s, the limit",
                    hint="open a new one; it resumes where this one ended",
                )
            )
        finally:
            looking.cancel()

    def _open(self, handler: Any, method: str) -> Any:
        """Calls without authentication: streams count, too, and requests are checked."""
        behavior = handler.unary_unary or handler.unary_stream or handler.stream_stream
        decode, encode = handler.request_deserializer, handler.response_serializer

        async def call(data: bytes, context: Context) -> Any:
            caller = caller_of(address_of(context))
            try:
                with self._calls.callers.stream(caller) if handler.unary_stream else nullcontext():
                    return await behavior(_request(decode, data), context)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except NotImplementedError:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED)
            except Exception as error:
                await abort(context, _as_distop(error, method))

        async def talk(received: AsyncIterator[bytes], context: Context) -> AsyncGenerator[Any, None]:
            try:
                with self._calls.callers.stream(caller_of(address_of(context))):
                    async for response in behavior(
                        (_request(decode, data) async for data in received), context
                    ):
                        yield response
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:
                await abort(context, _as_distop(error, method))

        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(call, response_serializer=encode)
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(call, response_serializer=encode)
        return grpc.stream_stream_rpc_method_handler(talk, response_serializer=encode)


def _proof(context: Context) -> Proof:
    metadata = context.invocation_metadata() or ()
    token = bearer([str(value) for name, value in metadata if name == "authorization"])
    return Proof(token, address_of(context), context.auth_context())


def _request(decode: Callable[[bytes], Message], data: bytes) -> Message:
    try:
        request = decode(data)
    except DecodeError:
        raise InvalidArgument(
            "the request is not a message of this call's type", hint="is the client of this version?"
        ) from None
    check_texts(request)
    return request


def _unless_encoded(serializer: Any) -> Callable[[Any], bytes]:
    """A message for many receivers is encoded once."""
    return lambda response: response if isinstance(response, bytes) else serializer(response)


def _as_distop(error: Exception, method: str) -> DistopError:
    if isinstance(error, DistopError) and defect_of(error) is None:
        return error
    log.error("call_crashed", extra={"method": method}, exc_info=error)
    return DistopError(
        f"{method} failed: {as_distop(error).message}",
        hint="see the coordinator's log; this is a defect",
    )
