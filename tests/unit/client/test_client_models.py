"""What the client shows is what the message says."""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from distop.client import Index, JobCounts, Operation, OperationError, OperationState, Pause, Table
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json
from support.json_values import JSON, TEXT

OPERATIONS = st.builds(
    Operation,
    name=TEXT,
    table=TEXT,
    type=TEXT,
    object=TEXT,
    instance=st.integers(0, 2**62),
    state=st.sampled_from(OperationState),
    jobs=st.builds(JobCounts, *[st.integers(0, 2**40)] * 3),
    run=TEXT,
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


def stamp(moment: datetime | None) -> Timestamp | None:
    if moment is None:
        return None
    message = Timestamp()
    message.FromDatetime(moment)
    return message


def message_of(operation: Operation) -> pb.Operation:
    """The inverse of ``from_proto``."""
    told: dict[str, Any] = asdict(operation) | {
        "state": "OPERATION_STATE_UNSPECIFIED"
        if operation.state is OperationState.UNKNOWN
        else operation.state.name,
        "facts_json": to_json(operation.facts, "facts"),
        "argument_json": to_json(operation.argument, "argument"),
        "started_at": stamp(operation.started_at),
        "finished_at": stamp(operation.finished_at),
    }
    del told["facts"], told["argument"]
    return pb.Operation(**told)


@given(OPERATIONS)
def test_operations_come_back_equal(operation: Operation) -> None:
    sent = pb.Operation.FromString(message_of(operation).SerializeToString())
    assert Operation.from_proto(sent) == operation


def test_a_number_that_is_not_set_is_none_where_zero_means_nothing() -> None:
    assert Table.from_proto(pb.Table(name="t", location="/t")).snapshot_id is None
    assert Index.from_proto(pb.Index(column="a")).commits_behind is None
    assert Index.from_proto(pb.Index(column="a", commits_behind=0)).commits_behind == 0


def test_a_state_of_a_newer_server_is_unknown() -> None:
    message = pb.Operation.FromString(pb.Operation(name="x").SerializeToString() + b"\x30\x63")
    assert Operation.from_proto(message).state is OperationState.UNKNOWN
    assert not OperationState.UNKNOWN.final
