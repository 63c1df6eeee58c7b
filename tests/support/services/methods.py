"""Calling each method of the API by its name, as the owner of a token."""

from typing import Any

import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from distop.coordinator.access.rights import RIGHTS
from distop.errors import DistopError
from distop.errors.wire import from_rpc_error
from distop.proto import distop_pb2 as pb

METHODS = {
    f"/{service.full_name}/{method.name}": method
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def request_of(method: str, name: str = "", /, **fields: Any) -> Any:
    """A request of a method, about this table or operation."""
    if name:
        fields[RIGHTS[method].field] = name
    return GetMessageClass(METHODS[method].input_type)(**fields)


async def refusal(
    channel: grpc.aio.Channel, method: str, request: Any, token: str = "", timeout_s: float | None = 10
) -> DistopError | None:
    """The error that a call is refused with, or ``None``. Of a stream, only the first message is read."""
    kind = METHODS[method]
    reply = GetMessageClass(kind.output_type)
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    serializers = (type(request).SerializeToString, reply.FromString)
    try:
        if kind.server_streaming:
            call = channel.unary_stream(method, *serializers)(request, metadata=metadata, timeout=timeout_s)
            await call.read()
            call.cancel()
        else:
            await channel.unary_unary(method, *serializers)(request, metadata=metadata, timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        return from_rpc_error(error)
    return None
