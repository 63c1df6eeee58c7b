"""What all calls have in common: limits, requests that are checked, and errors that become statuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, nullcontext
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from distop.coordinator.access.authentication import Proof, bearer
from distop.coordinator.access.callers import Caller, answer_to
from distop.coordinator.access.gate import Gate
from distop.coordinator.api.limits import Callers, address_of, caller_of
from distop.coordinator.api.texts import check_texts
from distop.errors import DistopError, InvalidArgument, Unavailable
from distop.errors.wire import abort
from distop.metastore.etcd.deadline import within
from distop.metastore.tables.audit import Acting, acting
from distop.proto.rights import OPEN

log = logging.getLogger(__name__)

ANSWER_S = 0.2
"""Longest time set aside for an answer to travel before the caller's deadline."""

_STARTS = frozenset({"StartOperation", "PreviewOperation"})

Context = grpc.aio.ServicerContext[Any, Any]


class CallInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Every call of ours: within the limits, with a request that makes sense, its errors told in details.

    A :class:`DistopError` of a handler becomes its status; another error is INTERNAL, and is logged.
    """

    def __init__(self, gate: Gate, callers: Callers | None = None) -> None:
        self._gate = gate
        self._callers = callers or Callers()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(OPEN):
            return handler
        # Requests are decoded in the calls below, where an error is one of the caller's, not a crash of gRPC.
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
        raise NotImplementedError(f"{method} is a kind of method that nobody guards")

    def _unary(self, behavior: Any, decode: Callable[[bytes], Message], method: str) -> Any:
        starts = method.rpartition("/")[2] in _STARTS

        async def call(data: bytes, context: Context) -> Any:
            left: Any = context.time_remaining()  # None without a deadline, which the stubs do not say
            # What keeps us waiting is to reach the caller before his own deadline tells him nothing.
            limit = within(left - min(left * 0.1, ANSWER_S)) if left is not None else nullcontext()
            caller = self._caller(context)
            try:
                with self._callers.call(caller), limit:
                    request = _request(decode, data)
                    who = await self._enter(method, request, context)
                    if starts:
                        self._callers.start(who.subject or caller)
                    return await behavior(request, context)
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:
                await abort(context, _as_distop(error, method))

        return call

    def _stream(self, behavior: Any, decode: Callable[[bytes], Message], method: str) -> Any:
        async def call(data: bytes, context: Context) -> AsyncGenerator[Any, None]:
            try:
                with self._callers.stream(self._caller(context)):
                    request = _request(decode, data)
                    await self._enter(method, request, context)
                    policy = self._gate.policies.standing
                    # Closed at once when the caller goes, not when it is garbage: it holds a watch open.
                    async with aclosing(behavior(request, context)) as responses:
                        async for response in self._for_so_long(responses):
                            # What could be seen then may be hidden now.
                            if self._gate.policies.standing is not policy:
                                policy = self._gate.policies.standing
                                await self._enter(method, request, context)
                            yield response
            except (asyncio.CancelledError, grpc.aio.AbortError):
                raise
            except Exception as error:
                await abort(context, _as_distop(error, method))

        return call

    async def _for_so_long(self, responses: Any) -> AsyncGenerator[Any, None]:
        """Responses until the stream has lasted long enough."""
        loop, limit_s = asyncio.get_running_loop(), self._callers.limits.stream_s
        until = loop.time() + limit_s
        while True:
            try:
                async with asyncio.timeout_at(until):
                    response = await anext(responses)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise Unavailable(
                    f"the stream has lasted {limit_s:g} s, which is the longest",
                    hint="open another one, which goes on where this one was",
                ) from None
            yield response

    def _caller(self, context: Context) -> str:
        """Who calls, as the limits count before it is known."""
        address = address_of(context)
        acting.set(Acting(address=address))
        return caller_of(address)

    async def _enter(self, method: str, request: Any, context: Context) -> Caller:
        """Let the caller in; raises :class:`DistopError` if he may not make the call. What this task does
        from here on is done, and recorded, for him."""
        metadata = context.invocation_metadata() or ()
        token = bearer([str(value) for name, value in metadata if name == "authorization"])
        who = await self._gate.enter(method, request, Proof(token, context.peer(), context.auth_context()))
        answer_to(who)
        acting.set(Acting(who.subject, who.claimed, acting.get().address))
        return who


def _request(decode: Callable[[bytes], Message], data: bytes) -> Message:
    try:
        request = decode(data)
    except DecodeError:
        raise InvalidArgument(
            "the request is no message of this call's kind", hint="is the client of this version?"
        ) from None
    check_texts(request)
    return request


def _unless_encoded(serializer: Any) -> Callable[[Any], bytes]:
    """What is sent to many is encoded once."""
    return lambda response: response if isinstance(response, bytes) else serializer(response)


def _as_distop(error: Exception, method: str) -> DistopError:
    if isinstance(error, DistopError):
        return error
    log.error("call_crashed", extra={"method": method}, exc_info=error)
    return DistopError(
        f"{method} failed: {type(error).__name__}: {error}",
        hint="see the coordinator's log; this is a defect",
    )
