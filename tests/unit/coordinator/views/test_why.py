"""One-line answers to why a table makes no progress, and what listings show."""

import base64
import json
from contextlib import suppress
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.views.contents import _count
from distop.coordinator.views.listing import PageToken
from distop.coordinator.views.why import Mood, Reason, seconds_of, short_name, span, why
from distop.errors import InvalidArgument
from distop.metastore.tables.audit import Cursor
from distop.proto import distop_pb2 as pb

START_ONE = "start one that does: distop executor"
NOW = 1_700_000_000.0
COORDINATOR = pb.Member(id="c1", role="coordinator")
EXECUTOR = pb.Member(id="e1", role="executor", types=["ingest"])
OTHER_EXECUTOR = pb.Member(id="e2", role="executor", types=["noop"])


def moment(seconds: float) -> Timestamp:
    return Timestamp(seconds=int(seconds))


def operation(state: int = pb.RUNNING, done: int = 34, failed: int = 0, **fields: Any) -> pb.Operation:
    given = {
        "name": "flights/ingest/17",
        "table": "flights",
        "type": "ingest",
        "instance": 17,
        "started_at": moment(NOW - 10),
        "state": state,
        "jobs": pb.JobCounts(total=120, succeeded=done, failed=failed),
        **fields,
    }
    return pb.Operation(**given)


def ended(state: int, ago_s: float, code: str = "", message: str = "") -> pb.Operation:
    error = pb.OperationError(code=code, message=message) if code else None
    return operation(state, finished_at=moment(NOW - ago_s), error=error)


def told(
    *running: pb.Operation,
    leader: str = "c1",
    members: tuple[pb.Member, ...] = (COORDINATOR, EXECUTOR),
    last: pb.Operation | None = None,
    **more: Any,
) -> Reason:
    return why(running=running, leader=leader, members=members, last=last, now=NOW, **more)


def test_a_running_operation_says_how_far_it_is_and_who_runs_it():
    reason = told(operation(runner="e1"))
    assert reason == Reason(Mood.MOVING, "ingest/17 running: 34 of 120 jobs done, run by e1")


def test_what_holds_its_jobs_up_is_named():
    """U1: as its executor says; what it says of other operations is theirs."""
    held = pb.HeldUp(operation="flights/ingest/17", what="Spark has no executors", since=moment(NOW - 90))
    other = pb.HeldUp(operation="flights/ingest/1", what="no room", since=moment(NOW - 90))
    executor = pb.Member(id="e1", role="executor", types=["ingest"], held_up=[other, held])
    reason = told(operation(runner="e1"), members=(COORDINATOR, executor))
    said = "ingest/17 running: 34 of 120 jobs done, run by e1; for 1 min: Spark has no executors"
    assert reason == Reason(Mood.WAITING, said)


def test_what_holds_its_executor_up_is_named() -> None:
    held = pb.HeldUp(what="etcd is slow", since=moment(NOW - 90))
    executor = pb.Member(id="e1", role="executor", types=["ingest"], held_up=[held])
    reason = told(operation(runner="e1"), members=(COORDINATOR, executor))
    said = "ingest/17 running: 34 of 120 jobs done, run by e1; for 1 min: etcd is slow"
    assert reason == Reason(Mood.MOVING, said)


def test_a_runner_whose_jobs_stopped_finishing_is_named():
    silent = told(operation(runner="e1", last_job_at=moment(NOW - 360)))
    assert silent.mood is Mood.MOVING, "it was started ten seconds ago"
    old = operation(runner="e1", started_at=moment(NOW - 1000), last_job_at=moment(NOW - 360))
    silent = told(old)
    assert silent.mood is Mood.WAITING
    assert "run by e1; no job has finished for 6 min" in silent.sentence


def test_a_first_job_that_takes_long_is_no_silence():
    assert told(operation(runner="e1", done=0, started_at=moment(NOW - 1000))).mood is Mood.MOVING


def test_a_runner_that_is_not_alive_is_waited_for():
    for members in ((COORDINATOR, OTHER_EXECUTOR), (COORDINATOR,)):
        reason = told(operation(runner="e1"), members=members)
        lost = "run by e1, which is not among the live executors; others go on when its lease ends"
        assert reason == Reason(Mood.WAITING, f"ingest/17: 34 of 120 jobs done, {lost}")


@pytest.mark.parametrize(
    ("members", "mood", "end"),
    [
        ((COORDINATOR, EXECUTOR), Mood.WAITING, "1 executor for type ingest, none has taken it yet"),
        ((COORDINATOR,), Mood.STUCK, "no executor serves type ingest; start one that does: distop executor"),
        (
            (COORDINATOR, OTHER_EXECUTOR),
            Mood.STUCK,
            f"no executor serves type ingest; 1 executor for other types; {START_ONE}",
        ),
    ],
)
def test_without_a_runner_it_says_whether_one_can_come(members, mood, end):
    reason = told(operation(), members=members)
    assert reason == Reason(mood, f"ingest/17 is waiting for a runner (34 of 120 jobs done): {end}")


def test_an_executor_that_has_left_it_to_others_says_why():
    held = pb.HeldUp(operation="flights/ingest/17", what="left to other executors after: a defect")
    executor = pb.Member(id="e1", role="executor", types=["ingest"], held_up=[held])
    reason = told(operation(), members=(COORDINATOR, executor))
    assert reason.mood is Mood.WAITING
    assert reason.sentence.endswith("none has taken it yet; e1: left to other executors after: a defect")


@pytest.mark.parametrize(
    ("given", "begin"),
    [
        (operation(pb.COMMITTING, done=120), "ingest/17 is committing: all 120 jobs done"),
        (operation(done=120), "ingest/17 is about to commit: 120 of 120 jobs done"),
        (operation(failed=2), "ingest/17 is to be aborted: 2 jobs failed"),
        (operation(cancel_requested=True), "ingest/17 is being cancelled: 34 of 120 jobs done"),
        (
            operation(pb.ABORTING, error=pb.OperationError(code="JOB_FAILED", message="line 3")),
            "ingest/17 is being aborted: JOB_FAILED: line 3",
        ),
    ],
)
def test_what_is_left_to_the_leader_says_whether_there_is_one(given, begin):
    assert told(given) == Reason(Mood.MOVING, f"{begin}; c1 leads")
    vacant = told(given, leader="")
    assert vacant.mood is Mood.WAITING
    assert vacant.sentence.startswith(f"{begin}; waiting for a coordinator to lead the table and ")
    alone = told(given, leader="", members=())
    assert alone.mood is Mood.STUCK
    assert alone.sentence.startswith(f"{begin}; no coordinator is alive to ")


def test_a_state_of_a_newer_version_is_not_guessed_at():
    assert told(operation(pb.OPERATION_STATE_UNSPECIFIED)).mood is Mood.STUCK


def test_the_operation_that_is_worst_off_explains_the_table():
    fine = operation(runner="e1")
    lost = operation(type="build_index", object="tailnum", instance=3)
    reason = told(fine, lost, also_running=4)
    assert reason.mood is Mood.STUCK
    assert reason.sentence.startswith("build_index/tailnum/3 is waiting for a runner")
    assert reason.sentence.endswith("; 5 other operations")


def test_operations_that_were_not_looked_at_still_run():
    assert told(also_running=3) == Reason(Mood.MOVING, "3 operations running")


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        (None, Reason(Mood.IDLE, "idle: no operation has run yet")),
        (ended(pb.SUCCEEDED, 240), Reason(Mood.IDLE, "idle for 4 min: ingest/17 succeeded")),
        (ended(pb.CANCELLED, 5), Reason(Mood.IDLE, "idle for 5 s: ingest/17 was cancelled")),
        (
            ended(pb.FAILED, 7200, "BAD_ROW", "line 3"),
            Reason(Mood.FAILED, "idle for 2 h: ingest/17 failed: BAD_ROW: line 3"),
        ),
    ],
)
def test_an_idle_table_says_what_it_did_last(last, reason):
    assert told(last=last) == reason


def test_what_an_open_transaction_holds_back_from_an_ingest_is_said() -> None:
    """U1: it has succeeded, and so will the next one, without these records."""
    last = ended(pb.SUCCEEDED, 240)
    last.facts_json = json.dumps(
        {"rows": 0, "offsetsHeldBack": 5, "warnings": ["partition 2: a transaction"]}
    )
    assert told(last=last).sentence == "idle for 4 min: ingest/17 succeeded; partition 2: a transaction"
    last.facts_json = json.dumps({"rows": 0, "warnings": ["one column, and ';' in its name"]})
    assert told(last=last).sentence == "idle for 4 min: ingest/17 succeeded"


def test_a_long_error_is_cut():
    sentence = told(last=ended(pb.FAILED, 5, "BAD_ROW", "x" * 5000)).sentence
    assert len(sentence) < 400
    assert sentence.endswith("…")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 ms"),
        (0.04, "40 ms"),
        (0.9996, "1 s"),
        (1, "1 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (47 * 3600, "47 h"),
        (48 * 3600, "2 d"),
        (400 * 86400, "400 d"),
    ],
)
def test_durations_are_shown_in_one_unit(seconds, text):
    assert span(seconds) == text


def test_names_leave_the_table_out():
    assert short_name(operation()) == "ingest/17"
    assert short_name(operation(object="tail.num")) == "ingest/tail.num/17"


def test_an_unset_moment_is_zero():
    assert seconds_of(pb.Operation().finished_at) == 0.0
    assert seconds_of(Timestamp(seconds=3, nanos=500_000_000)) == 3.5


def test_a_paused_operation_says_who_holds_it_and_how_it_goes_on():
    """O21, U1"""
    pause = pb.Pause(by="jane", reason="new disks", at=moment(NOW - 180), scope="operation")
    held = told(operation(pause=pause))
    assert held.mood is Mood.PAUSED
    assert held.sentence == (
        "ingest/17 is paused by jane since 3 min (new disks): 34 of 120 jobs done; "
        "distop operation resume flights/ingest/17"
    )
    assert "being cancelled" in told(operation(pause=pause, cancel_requested=True)).sentence


def test_a_paused_table_says_so_whether_or_not_something_runs():
    """O21, U1"""
    table = pb.Table(name="flights", pause=pb.Pause(at=moment(NOW - 5)))
    paused = "paused since 5 s: nothing starts; distop table resume flights"
    assert told(table=table) == Reason(Mood.PAUSED, paused)
    assert "nothing starts, 2 operations held" in told(operation(), table=table, also_running=1).sentence
    assert told(operation(runner="e1"), table=pb.Table(name="flights")).mood is Mood.MOVING


def test_failed_jobs_that_are_allowed_are_no_reason_to_abort():
    """C17, U1"""
    allowed = operation(failed=2, runner="e1", max_failed_partitions=2)
    assert told(allowed).sentence == "ingest/17 running: 34 of 120 jobs done, 2 failed, run by e1"
    assert "to be aborted" in told(operation(failed=3, max_failed_partitions=2)).sentence
    assert "about to commit" in told(operation(done=118, failed=2, max_failed_partitions=-1)).sentence


def test_the_number_of_jobs_of_a_dynamic_plan_is_unknown_until_it_is_sealed():
    unknown = operation(runner="e1", jobs=pb.JobCounts(counting=True))
    assert told(unknown).sentence == "ingest/17 running: 0 of an unknown number of jobs done, run by e1"
    known = operation(runner="e1", jobs=pb.JobCounts(total=20, succeeded=20, counting=True))
    assert told(known) == Reason(Mood.MOVING, "ingest/17 running: 20 of 20 jobs done, run by e1")
    sealed = operation(runner="e1", jobs=pb.JobCounts(total=20, succeeded=20))
    assert "is about to commit" in told(sealed).sentence


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=8,
)


def check(text: str) -> None:
    with suppress(InvalidArgument):
        assert 0 < PageToken.decode(text).revision < 2**63


@given(st.text())
def test_any_text_is_no_page_token_or_one_that_makes_sense(text: str) -> None:
    """U3"""
    check(text)


@given(st.binary())
def test_any_bytes_in_base64_are_no_page_token_or_one_that_makes_sense(data: bytes) -> None:
    check(base64.urlsafe_b64encode(data).decode())


@given(JSON)
def test_any_json_is_no_page_token_or_one_that_makes_sense(value: object) -> None:
    check(base64.urlsafe_b64encode(json.dumps(value).encode()).decode())


@given(st.text() | st.from_regex(r"[0-9]{1,30}(\.[0-9a-f-]{0,30})?", fullmatch=True))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    with suppress(InvalidArgument):
        assert str(Cursor.parse(text)).partition(".")[2] == text.partition(".")[2]


def test_a_cursor_is_written_as_it_is_read() -> None:
    text = "12.1700000000000-0a1b2c3d"
    assert str(Cursor.parse(text)) == text


@pytest.mark.parametrize("value", ["9" * 19, "9" * 5000, "-1", "many", ""])
def test_a_count_in_a_summary_that_is_no_number_is_left_out(value: str) -> None:
    """U3: an engine writes into a summary what it likes."""
    assert _count({"total-records": value}, "total-records") is None
    assert _count({"total-records": "9" * 18}, "total-records") == 10**18 - 1
