"""JSON, times and operations survive the way through protobuf."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct
from hypothesis import given
from hypothesis import strategies as st

from distop.client import JobCounts, Operation, OperationError, OperationState, Pause
from distop.client.transport.convert import MAX_DEPTH, from_struct, to_struct
from distop.errors import InvalidArgument
from distop.proto import distop_pb2 as pb

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
OPERATIONS = st.builds(
    Operation,
    name=TEXT,
    table=TEXT,
    type=TEXT,
    object=TEXT,
    instance=st.integers(0, 2**62),
    state=st.sampled_from(OperationState),
    jobs=st.builds(JobCounts, *[st.integers(0, 2**40)] * 3),
    request_id=TEXT,
    started_by=TEXT,
    started_at=st.none() | st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    finished_at=st.none() | st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    error=st.none() | st.builds(OperationError, TEXT, TEXT),
    facts=st.dictionaries(TEXT, JSON, max_size=3),
    runner=TEXT,
    cancel_requested=st.booleans(),
    follows=TEXT,
    max_failed_partitions=st.integers(-1, 2**31 - 1),
    pause=st.none() | st.builds(Pause, by=TEXT, reason=TEXT, scope=TEXT),
    revision=st.integers(0, 2**62),
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_json_comes_back_equal(value: dict[str, Any]) -> None:
    sent = Struct.FromString(to_struct(value, "argument").SerializeToString())
    assert from_struct(sent) == value


@given(OPERATIONS)
def test_operations_come_back_equal(operation: Operation) -> None:
    sent = pb.Operation.FromString(operation.to_proto().SerializeToString())
    assert Operation.from_proto(sent) == operation


def test_whole_numbers_come_back_as_int() -> None:
    assert (
        repr(from_struct(to_struct({"a": 3, "b": 2.5, "c": [True]}, ""))) == "{'a': 3, 'b': 2.5, 'c': [True]}"
    )


def nested(depth: int, of: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if of is dict else [value]
    return value


@pytest.mark.parametrize("of", [dict, list])
def test_the_deepest_argument_can_be_read_by_the_other_side(of: type) -> None:
    argument = {"x": nested(MAX_DEPTH - 1, of)}
    data = pb.StartOperationRequest(argument=to_struct(argument, "argument")).SerializeToString()
    assert from_struct(pb.StartOperationRequest.FromString(data).argument) == argument
    with pytest.raises(InvalidArgument, match="nested"):
        to_struct({"x": nested(MAX_DEPTH, of)}, "argument")


def test_an_endless_argument_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(InvalidArgument, match="nested"):
        to_struct(endless, "argument")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("inf"), "JSON"),
        (2**53 + 1, "string"),
        (b"x", "bytes"),
        ({1: 2}, "no string"),
        ("\udcff", "unicode"),
        ({"\udcff": 1}, "unicode"),
    ],
)
def test_what_is_no_json_is_refused_with_its_path(value: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as caught:
        to_struct({"a": [value]}, "argument")
    assert caught.value.details["field"] == "argument.a[0]"


def test_a_state_of_a_newer_server_is_unknown() -> None:
    message = pb.Operation.FromString(pb.Operation(name="x").SerializeToString() + b"\x30\x63")
    assert Operation.from_proto(message).state is OperationState.UNKNOWN
    assert not OperationState.UNKNOWN.final
