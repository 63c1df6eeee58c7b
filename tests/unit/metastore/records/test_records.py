"""Records in etcd: round trips, older and newer layouts, foreign values."""

import typing

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from distop.errors import CorruptRecord, InvalidArgument
from distop.metastore.backlog.batches import AppliedRecord, BatchBlock, BatchRecord
from distop.metastore.records.member import HeldUp, LeaderRecord, LongCall, MemberRecord
from distop.metastore.records.operation import (
    ActiveRecord,
    CancelRecord,
    ClaimRecord,
    CompletionRecord,
    Effect,
    ErrorRecord,
    EventsRecord,
    FollowUpArg,
    HistoryRecord,
    JobRecord,
    OperationArg,
    OperationEvent,
    OperationOptions,
    PauseRecord,
    QueuedRecord,
    RequestNote,
    RequestRecord,
    ResolveRecord,
    RunnerRecord,
    SeriesEntry,
    SeriesNote,
    SeriesRecord,
    WatermarkMove,
)
from distop.metastore.records.record import Record, decode, encode, encode_plain
from distop.metastore.records.table import (
    AuditRecord,
    Head,
    NamespaceRecord,
    TableRecord,
    decode_run_ops,
    decode_watermarks,
)

KINDS: list[type[Record]] = [
    ActiveRecord,
    AuditRecord,
    CancelRecord,
    ClaimRecord,
    CompletionRecord,
    ErrorRecord,
    Head,
    HistoryRecord,
    JobRecord,
    LeaderRecord,
    MemberRecord,
    NamespaceRecord,
    OperationArg,
    EventsRecord,
    PauseRecord,
    QueuedRecord,
    RequestRecord,
    ResolveRecord,
    RunnerRecord,
    SeriesRecord,
    TableRecord,
    AppliedRecord,
    BatchRecord,
]
TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), INTEGERS, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=5,
)
OPTIONS = st.builds(
    OperationOptions,
    deadline_s=st.one_of(st.none(), st.floats(0.001, 1e9)),
    max_job_attempts=st.one_of(st.none(), st.integers(1, 100)),
    job_backoff_s=st.one_of(st.none(), st.floats(0.001, 600)),
    attempt_timeout_s=st.one_of(st.none(), st.floats(0.001, 1e9)),
)
MOVES = st.builds(WatermarkMove, before=st.one_of(st.none(), TEXT), after=TEXT)
FOLLOW_UPS = st.recursive(
    st.builds(FollowUpArg, type=TEXT, argument=st.dictionaries(TEXT, JSON, max_size=2), options=OPTIONS),
    lambda inner: st.builds(FollowUpArg, type=TEXT, object=TEXT, then=inner),
    max_leaves=3,
)
BLOCKS = st.builds(BatchBlock, batch=TEXT, code=TEXT, error=TEXT, operation=TEXT, at=FLOATS)
FIELDS: dict[typing.Any, st.SearchStrategy[typing.Any]] = {
    str: TEXT,
    int: INTEGERS,
    float: FLOATS,
    bool: st.booleans(),
    Effect: st.sampled_from(Effect),
    int | None: st.one_of(st.none(), INTEGERS),
    list[str]: st.lists(TEXT, max_size=3),
    list[str] | None: st.one_of(st.none(), st.lists(TEXT, max_size=3)),
    dict[str, str]: st.dictionaries(TEXT, TEXT, max_size=3),
    dict[str, typing.Any]: st.dictionaries(TEXT, JSON, max_size=3),
    dict[str, dict[str, WatermarkMove]]: st.dictionaries(
        TEXT, st.dictionaries(TEXT, MOVES, max_size=2), max_size=2
    ),
    OperationOptions: OPTIONS,
    RequestNote: st.builds(RequestNote, digest=TEXT, call=TEXT, forget_at=FLOATS, earlier=TEXT),
    FollowUpArg | None: st.one_of(st.none(), FOLLOW_UPS),
    list[HeldUp]: st.lists(st.builds(HeldUp, operation=TEXT, what=TEXT, since=FLOATS), max_size=2),
    list[LongCall]: st.lists(st.builds(LongCall, table=TEXT, what=TEXT, since=FLOATS), max_size=2),
    list[int]: st.lists(INTEGERS, max_size=3),
    list[OperationEvent]: st.lists(
        st.builds(OperationEvent, at=FLOATS, what=TEXT, by=TEXT, about=TEXT), max_size=2
    ),
    SeriesNote | None: st.one_of(
        st.none(),
        st.builds(SeriesNote, name=TEXT, last=st.lists(st.builds(SeriesEntry, operation=TEXT), max_size=2)),
    ),
    BatchBlock | None: st.one_of(st.none(), BLOCKS),
    BatchRecord | None: st.one_of(
        st.none(),
        st.builds(BatchRecord, type=TEXT, argument=st.dictionaries(TEXT, JSON, max_size=2), options=OPTIONS),
    ),
}


def records(kind: type[Record]) -> st.SearchStrategy[Record]:
    """Records of a kind with any values in their fields."""
    hints = {
        name: hint for name, hint in typing.get_type_hints(kind).items() if name not in ("LAYOUT", "version")
    }
    return st.builds(kind, **{name: FIELDS[hint] for name, hint in hints.items()})


@given(st.one_of([records(kind) for kind in KINDS]))
def test_records_come_back_as_they_were(record: Record) -> None:
    """With the same bytes, by which a repeat of a transaction recognises its own value."""
    again = decode(encode(record), type(record))
    assert again == record
    assert encode(again) == encode(record)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_what_a_newer_version_wrote_is_read_or_refused_by_name(
    kind: type[Record], data: st.DataObject
) -> None:
    """Unknown optional fields of the same layout are ignored. Fields of a newer layout may have other types:
    the message is about the layout."""
    record = data.draw(records(kind))
    value = msgspec.json.decode(encode(record))
    assert decode(msgspec.json.encode(value | {"aFieldOfTomorrow": {"x": [1]}}), kind) == record
    newest = kind.LAYOUT + 1
    value |= {"version": newest}
    strange = {name: [[1]] for name in value} | {"version": newest}
    for newer in (value, strange):
        with pytest.raises(CorruptRecord) as caught:
            decode(msgspec.json.encode(newer), kind, b"distOp.t.key")
        assert f"distOp.t.key has layout {newest}" in caught.value.message
        assert kind.__name__ in caught.value.message
        assert "upgrade" in caught.value.hint


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b"null", b"\xff", b'"running"', b'{"version": "x"}'])
def test_a_value_that_is_no_record_is_reported_with_its_key(value: bytes) -> None:
    for kind in KINDS:
        if kind is not NamespaceRecord:
            with pytest.raises(CorruptRecord, match=r"distOp\.t\.key holds no"):
                decode(value, kind, b"distOp.t.key")


MOVE = WatermarkMove(after=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "record",
    [
        NamespaceRecord(properties={"a": 1}),  # type: ignore[dict-item]
        NamespaceRecord(properties={"a": None}),  # type: ignore[dict-item]
        NamespaceRecord(properties={"a": "\ud800"}),
        TableRecord(name="t", location=None),  # type: ignore[arg-type]
        Head(metadata_location="m", snapshot_id="1"),  # type: ignore[arg-type]
        OperationArg(table="t", type="x", instance=1, watermarks={"s": {"p": MOVE}}),
        OperationArg(table="t", type="x", instance=1, partitions=[1]),  # type: ignore[list-item]
        ErrorRecord(code="X", message="x", facts={"a": object()}),
    ],
)
def test_a_record_that_could_not_be_read_again_is_not_written(record: Record) -> None:
    """U3: the writer gets the error, not the readers."""
    with pytest.raises(InvalidArgument, match=type(record).__name__):
        encode(record)


def test_an_unknown_option_is_not_ignored() -> None:
    """The caller relies on it: an operation is not run without an option that was requested."""
    value = msgspec.json.decode(encode(OperationArg(table="t", type="noop", instance=1)))
    with pytest.raises(CorruptRecord, match="retryOnTuesdays"):
        decode(msgspec.json.encode(value | {"options": {"retryOnTuesdays": 3}}), OperationArg, b"key")


def test_options_that_are_refused_on_reading_are_a_corrupt_record() -> None:
    """A reader of etcd never gets the error that *its* argument is invalid."""
    arg = OperationArg(table="t", type="noop", instance=1)
    value = msgspec.json.decode(encode(arg)) | {"options": {"deadlineS": -1.0}}
    with pytest.raises(CorruptRecord, match="deadline must be positive"):
        decode(msgspec.json.encode(value), OperationArg, b"key")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"deadline_s": 0.0}, "options.deadline_s"),
        ({"deadline_s": -1.0}, "options.deadline_s"),
        ({"deadline_s": float("nan")}, "options.deadline_s"),
        ({"max_job_attempts": 0}, "options.max_job_attempts"),
        ({"max_job_attempts": 101}, "options.max_job_attempts"),
        ({"job_backoff_s": 0.0}, "options.job_backoff_s"),
        ({"job_backoff_s": 601.0}, "options.job_backoff_s"),
        ({"job_backoff_s": float("nan")}, "options.job_backoff_s"),
        ({"attempt_timeout_s": 0.0}, "options.attempt_timeout_s"),
        ({"attempt_timeout_s": float("inf")}, "options.attempt_timeout_s"),
        ({"attempt_timeout_s": float("nan")}, "options.attempt_timeout_s"),
        ({"retry_for_s": -1.0}, "options.retry_for_s"),
        ({"retry_for_s": float("inf")}, "options.retry_for_s"),
        ({"retry_for_s": float("nan")}, "options.retry_for_s"),
    ],
)
def test_bad_options_of_an_operation_are_refused_by_field(options: dict[str, typing.Any], field: str) -> None:
    """O20, U3: the error names the field."""
    with pytest.raises(InvalidArgument) as caught:
        OperationOptions(**options)
    assert caught.value.details["field"] == field


@given(st.dictionaries(TEXT, st.dictionaries(TEXT, TEXT, max_size=3), max_size=3))
def test_watermarks_survive_encoding(watermarks: dict[str, dict[str, str]]) -> None:
    assert decode_watermarks(encode_plain(watermarks)) == watermarks


@given(st.dictionaries(TEXT, st.lists(TEXT, max_size=3), max_size=3))
def test_running_operations_come_back(run_ops: dict[str, list[str]]) -> None:
    assert decode_run_ops(encode_plain(run_ops)) == run_ops


def test_a_missing_key_decodes_to_nothing() -> None:
    assert decode_watermarks(b"") == {}
    assert decode_run_ops(b"") == {}


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"a": 1}', b"\xff"])
def test_plain_values_that_cannot_be_read_are_reported(value: bytes) -> None:
    for read in (decode_watermarks, decode_run_ops):
        with pytest.raises(CorruptRecord):
            read(value)


def test_unnamed_partitions_are_numbered_and_take_no_room() -> None:
    """O5, O6: ten thousand unnamed partitions take no room in the argument; a subset is named."""
    many = OperationArg(table="t", type="noop", instance=1, partition_count=10_000)
    assert many.partition_names()[::9_999] == ["0", "9999"]
    assert len(encode(many)) < 200
    some = OperationArg(table="t", type="noop", instance=1, partition_count=2, partitions=["a", "b.c"])
    assert some.partition_names() == ["a", "b.c"]


@pytest.mark.parametrize(
    ("rows", "count"), [(3, 3), (0, 0), (3.0, None), (True, None), ("3", None), (-1, None), (1 << 63, None)]
)
def test_only_a_whole_number_counts(rows: object, count: int | None) -> None:
    """Facts are whatever JSON a type reports."""
    assert HistoryRecord(outcome="success", facts={"rows": rows}).count("rows") == count
    assert HistoryRecord(outcome="success").count("rows") is None
