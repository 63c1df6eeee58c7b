"""Bytes and requests of strangers at the gRPC port: each is answered, and none is called a defect."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from support.services.methods import METHODS
from support.services.reached import ADMIN, PATIENCE_S, Reached
from support.services.tokens import token_of
from support.untrusted import damaged, messages

OTHERS = {
    f"/{service.full_name}/{method.name}": method
    for service in (
        health_pb2.DESCRIPTOR.services_by_name["Health"],
        reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"],
    )
    for method in service.methods
}
ALL = METHODS | OTHERS

DEFECTS = (
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.DATA_LOSS,
)
BRIEFLY_S = 0.1
"""Some streams say nothing until something happens."""


@pytest.fixture(scope="module")
def channel(door: Reached) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(door.grpc) as channel:
        yield channel


def status(channel: grpc.Channel, method: str, data: bytes, token: str) -> grpc.StatusCode:
    """How a call with these bytes ends. Of a stream, the first answer counts."""
    metadata = (("authorization", f"Bearer {token}"),) if token else ()
    kind = ALL[method]
    try:
        if not kind.server_streaming:
            channel.unary_unary(method, None, None)(data, timeout=PATIENCE_S, metadata=metadata)
            return grpc.StatusCode.OK
        if kind.client_streaming:
            call: Any = channel.stream_stream(method, None, None)(
                iter([data]), timeout=PATIENCE_S, metadata=metadata
            )
        else:
            call = channel.unary_stream(method, None, None)(data, timeout=BRIEFLY_S, metadata=metadata)
        next(call, None)
        call.cancel()
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        quiet = kind.server_streaming and code is grpc.StatusCode.DEADLINE_EXCEEDED
        return grpc.StatusCode.OK if quiet else code
    return grpc.StatusCode.OK


requests = st.sampled_from(sorted(ALL)).flatmap(
    lambda method: st.tuples(
        st.just(method),
        st.one_of(
            st.binary(max_size=60),
            damaged(messages(ALL[method].input_type).map(lambda made: made.SerializeToString())),
        ),
    )
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(requests, st.sampled_from(["", token_of(ADMIN), "x"]))
@example(("/grpc.health.v1.Health/List", b""), "")
@example(("/grpc.health.v1.Health/Check", b"\xff\xff\xff"), "")
@example(("/grpc.health.v1.Health/Watch", b"\xff\xff\xff"), "")
@example(("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", b"\xff\xff\xff"), "")
def test_no_bytes_are_a_defect(
    channel: grpc.Channel, door: Reached, sent: tuple[str, bytes], token: str
) -> None:
    """U3, S1"""
    method, data = sent
    assert status(channel, method, data, token) not in DEFECTS
    assert not door.crashes()


def test_every_method_tells_what_is_no_message(channel: grpc.Channel) -> None:
    """U3: for every method and every caller."""
    said = {method: status(channel, method, b"\xff\xff\xff", token_of(ADMIN)) for method in ALL}
    assert set(said.values()) == {grpc.StatusCode.INVALID_ARGUMENT}, said
