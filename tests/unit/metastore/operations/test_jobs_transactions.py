"""The transaction of marks as a value, and what its answers mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.errors import InvalidArgument
from distop.metastore.etcd.txn import MAX_OPS, MAX_REQUEST_BYTES, KeyValue, Put, Txn, TxnResult
from distop.metastore.operations.jobs import (
    MAX_GROUP,
    WON,
    Mark,
    Outcome,
    mark_txn,
    success_record,
    take_group,
    verdicts,
)
from distop.metastore.operations.runs import Run
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import MAX_NAME_BYTES, OperationId
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES

RUN = Run(Keyspace("t").operation(OperationId("flights", "ingest", 17)), 55)
STATE, ARG = KeyValue(RUN.keys.state, b"running", 5, 5), KeyValue(RUN.keys.arg, b"", 5, 5)
RUNNER = KeyValue(RUN.keys.runner, b"{}", 55, 55)
ANEW = KeyValue(RUN.keys.arg, b"", 57, 57), KeyValue(RUN.keys.state, b"running", 57, 57)
"""Of an operation of that name that was started after the run began: its table was made anew."""


def mark(partition: str = "0", attempt: str = "a", **fields: object) -> Mark:
    return Mark(partition, attempt, success_record(attempt, {}, 1.0), **fields)  # type: ignore[arg-type]


def job(attempt: str) -> KeyValue:
    return KeyValue(RUN.keys.job_state("0"), success_record(attempt, {}, 1.0), 60, 60)


def failed(*found: list[KeyValue]) -> TxnResult:
    return TxnResult(False, 70, tuple(found))


def one(result: TxnResult, sent: Mark) -> Outcome:
    return verdicts(RUN, [sent], result)[0].outcome


def test_a_token_that_would_mean_absent_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        Run(RUN.keys, 0)


def test_the_largest_group_keeps_within_etcds_limit_of_operations() -> None:
    marks = [mark(str(n), claim=9, checkpointed=True, repeated=True) for n in range(500)]
    count = take_group(RUN, marks)
    assert count == MAX_GROUP
    assert mark_txn(RUN, marks[:count]).weight() <= MAX_OPS


@given(
    st.lists(
        st.tuples(st.text(min_size=1, max_size=MAX_NAME_BYTES // 4), st.booleans()),
        min_size=1,
        max_size=300,
        unique_by=lambda pair: pair[0],
    )
)
def test_a_group_keeps_within_the_limit_of_bytes(jobs: list[tuple[str, bool]]) -> None:
    operation = OperationId("t" * MAX_NAME_BYTES, "ingest", 1, "ö" * (MAX_NAME_BYTES // 2))
    run = Run(Keyspace("t").operation(operation), 5)
    value = b"x" * MAX_JOB_RECORD_BYTES
    marks = [Mark(name, "a", value, 7 * owned, owned, True) for name, owned in jobs]
    count = take_group(run, marks)
    assert count >= 1
    assert mark_txn(run, marks[:count]).size() <= MAX_REQUEST_BYTES


def test_a_partition_stands_in_a_group_once() -> None:
    """etcd refuses a transaction that may write one key twice."""
    assert take_group(RUN, [mark("0", "a"), mark("1"), mark("0", "b"), mark("2")]) == 2


def test_each_mark_has_its_own_compare_and_its_own_puts() -> None:
    txn = mark_txn(RUN, [mark("0"), mark("1", claim=9, checkpointed=True)])
    assert txn.compares == RUN.held()
    plain, owned = txn.then
    assert isinstance(plain, Txn)
    assert isinstance(owned, Txn)
    assert plain.then == (Put(RUN.keys.job_state("0"), mark("0").value),)
    assert len(owned.compares) == 2
    assert len(owned.then) == 3


def test_a_mark_that_was_made_has_won() -> None:
    assert verdicts(RUN, [mark()], TxnResult(True, 70, (TxnResult(True, 70),))) == [WON]


def inside(*found: KeyValue) -> TxnResult:
    """What is read of a mark whose own compares do not hold, while the run does."""
    return TxnResult(True, 70, (TxnResult(False, 70, (list(found),)),))


@pytest.mark.parametrize(
    ("result", "repeated", "outcome"),
    [
        (inside(job("a")), False, Outcome.WON),
        (inside(job("b")), False, Outcome.LOST),
        (inside(), False, Outcome.GONE),
        (inside(KeyValue(RUN.keys.job_state("0"), b"rubbish", 60, 60)), False, Outcome.LOST),
        (failed([], [], []), False, Outcome.GONE),
        (failed([STATE], [], [ARG]), False, Outcome.GONE),
        (failed([], [], [ARG], [job("a")]), True, Outcome.WON),
        (failed([], [], [ARG], [job("b")]), True, Outcome.LOST),
        (failed([STATE], [], [ARG], []), True, Outcome.GONE),
        (failed([], [], [], []), True, Outcome.UNKNOWN),
        (failed([ANEW[1]], [], [ANEW[0]], []), True, Outcome.UNKNOWN),
        (failed([ANEW[1]], [], [ANEW[0]], [job("b")]), True, Outcome.UNKNOWN),
        (failed([], [], [ANEW[0]], [job("b")]), True, Outcome.UNKNOWN),
        (failed([ANEW[1]], [], [ANEW[0]]), False, Outcome.GONE),
    ],
    ids=[
        *("own from before", "of another", "claim lost", "a record that nobody can read"),
        *("first one, operation over", "first one, run over"),
        *("repeated, made", "repeated, of another", "repeated, run over", "repeated, no keys left"),
        *("repeated, another operation runs", "repeated, it has a result", "repeated, it has ended"),
        "first one, another operation runs",
    ],
)
def test_a_mark_that_was_not_made_is_looked_up(result: TxnResult, repeated: bool, outcome: Outcome) -> None:
    """P8: what is repeated and has left no keys may have been published; nothing of it may be deleted, also
    if there is another operation of that name by now."""
    assert one(result, mark(repeated=repeated)) is outcome


def test_the_reasons_name_what_happened() -> None:
    aborting = KeyValue(RUN.keys.state, b"aborting", 6, 5)
    other = KeyValue(RUN.keys.runner, b"{}", 58, 58)
    reasons = [
        verdicts(RUN, [mark()], failed(state, runner, [ARG]))[0].reason
        for state, runner in [([], []), ([aborting], [RUNNER]), ([STATE], []), ([STATE], [other])]
    ]
    assert reasons == ["the operation is over", "the operation is aborting", *["its runner is gone"] * 2]


def test_answers_of_repeats_belong_to_their_marks() -> None:
    marks = [mark("9"), mark("0", "a", repeated=True), mark("8"), mark("0", "b", repeated=True)]
    said = verdicts(RUN, marks, failed([STATE], [], [ARG], [job("a")], [job("a")]))
    assert [verdict.outcome for verdict in said] == [Outcome.GONE, Outcome.WON, Outcome.GONE, Outcome.LOST]
