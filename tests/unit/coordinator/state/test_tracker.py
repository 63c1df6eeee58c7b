"""What a leader knows of an operation, and what it does next."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.state.grid import JobGrid
from distop.coordinator.state.tracker import Collect, Finish, Nothing, Resolve, Seal, Tracked, decide
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.jobs import failure_record, success_record
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    RUNNING,
    CancelRecord,
    CompletionRecord,
    ErrorRecord,
    JobRecord,
    OperationArg,
    OperationOptions,
    PauseRecord,
    ResolveRecord,
    RunnerRecord,
    RunRecord,
)
from distop.metastore.records.record import encode

OPERATION = OperationId("t", "noop", 1)
KEYS = Keyspace().operation(OPERATION)
LATE = "not finished within 2.5 s: 1 of 3 jobs were done"
NAMES = ["0", "1", "a.b", "state.1", "% /"]


def grid_of(one: Tracked) -> JobGrid:
    """The grid of an operation with jobs few enough to be tracked one by one."""
    assert isinstance(one.jobs, JobGrid)
    return one.jobs


def tracked(
    total: int = len(NAMES),
    *,
    deadline_s: float | None = None,
    stages_files: bool = False,
    max_failed: int = 0,
) -> Tracked:
    arg = OperationArg(
        table="t",
        type="noop",
        instance=1,
        partition_count=total,
        partitions=NAMES[:total] if total == len(NAMES) else None,
        options=OperationOptions(deadline_s=deadline_s, max_failed_partitions=max_failed),
        stages_files=stages_files,
    )
    return Tracked(KEYS, arg)


@dataclass(frozen=True)
class Change:
    """One change of one job's state."""

    partition: str
    what: Literal["success", "failed", "delete"]

    def apply(self, to: Tracked, revision: int) -> None:
        key = KEYS.job_state(self.partition)
        match self.what:
            case "success":
                to.apply_put(KeyValue(key, success_record("a", {}, 1.0), revision, revision))
            case "failed":
                to.apply_put(KeyValue(key, failure_record("a", "X", "why", 1.0), revision, revision))
            case "delete":
                to.apply_delete(key, revision)


CHANGES = st.builds(
    Change, st.sampled_from(NAMES), st.sampled_from(["success", "success", "failed", "delete"])
)


@given(st.lists(st.tuples(CHANGES, st.integers(1, 3)), max_size=30))
def test_each_mark_counts_once_however_often_it_is_seen(history: list[tuple[Change, int]]) -> None:
    """O28: many keys in one event, seen again after a listing or a resumed watch."""
    one, model = tracked(), dict[str, str]()
    for revision, (change, times) in enumerate(history, start=1):
        for _ in range(times):
            change.apply(one, revision)
        if change.what == "delete":
            model.pop(change.partition, None)
        else:
            model[change.partition] = change.what
        assert one.jobs.succeeded == list(model.values()).count("success")
        assert one.jobs.failed == list(model.values()).count("failed")


@given(st.permutations(NAMES), st.sets(st.sampled_from(NAMES)))
def test_the_order_of_marks_does_not_matter(order: list[str], failed: set[str]) -> None:
    """O28: reordered marks."""
    one = tracked()
    for revision, name in enumerate(order, start=1):
        Change(name, "failed" if name in failed else "success").apply(one, revision)
    assert one.jobs.failed == len(failed)
    assert one.jobs.succeeded == len(NAMES) - len(failed)


@given(
    st.lists(st.tuples(st.sampled_from([RUNNING, COMMITTING, ABORTING, b""]), st.integers(1, 9)), max_size=12)
)
def test_the_state_is_the_one_of_the_highest_revision(news: list[tuple[bytes, int]]) -> None:
    """O28: late events of a state that was changed by ourselves meanwhile do not bring it back."""
    one, best = tracked(), (b"", 0)
    for state, revision in news:
        if state:
            one.apply_put(KeyValue(KEYS.state, state, revision, 1))
        else:
            one.apply_delete(KEYS.state, revision)
        if revision > best[1]:
            best = (state, revision)
        assert (one.state, one.state_revision) == best


def test_runner_cancellation_error_and_claims_of_an_operation_are_tracked() -> None:
    one = tracked()
    one.apply_put(KeyValue(KEYS.runner, encode(RunnerRecord(member="e")), 3, 3))
    one.apply_put(KeyValue(KEYS.cancel, encode(CancelRecord(by="me")), 4, 4))
    one.apply_put(KeyValue(KEYS.error, encode(ErrorRecord(code="X", message="why")), 5, 5))
    one.apply_put(KeyValue(KEYS.claim("0"), b"{}", 6, 6))
    one.apply_put(KeyValue(KEYS.progress("0"), b"\xff", 6, 6))
    assert one.cancel_requested
    assert one.error == ErrorRecord(code="X", message="why")
    assert not one.jobs.succeeded
    one.apply_delete(KEYS.claim("0"), 7)
    assert one.cancel_requested


@pytest.mark.parametrize("value", [b"nonsense", encode(JobRecord(state="success", version=2))])
def test_a_mark_that_cannot_be_read_is_neither_done_nor_lost(value: bytes) -> None:
    """One strange value must not stop the table: this operation waits, and says why."""
    one = tracked(1)
    one.apply_put(KeyValue(KEYS.state, RUNNING, 1, 1))
    one.apply_put(KeyValue(KEYS.job_state("0"), value, 2, 2))
    assert decide(one, deadline_passed=False) == Nothing()
    assert "0.state" in next(iter(one.unreadable.values()))
    one.apply_delete(KEYS.job_state("0"), 3)
    assert not one.unreadable


def test_an_error_that_cannot_be_read_is_still_an_error() -> None:
    one = tracked(1)
    one.apply_put(KeyValue(KEYS.error, b"nonsense", 2, 2))
    assert one.error is not None
    assert one.error.code == "CORRUPT_RECORD"


def situations() -> Iterator[tuple[Tracked, bool]]:
    """Every combination of what ``decide`` looks at, for three jobs."""
    states, flags = (RUNNING, COMMITTING, ABORTING, b""), (False, True)
    for state, succeeded, failed, (cancel, gone, late) in product(
        states, range(4), range(4), product(flags, flags, flags)
    ):
        if succeeded + failed > 3:
            continue
        one = tracked(3, deadline_s=1.0)
        one.set_state(state, 1)
        for index in range(succeeded + failed):
            Change(str(index), "success" if index < succeeded else "failed").apply(one, 2)
        one.cancel_requested, one.gone = cancel, gone
        yield one, late


def test_no_situation_is_without_progress_or_a_reason() -> None:
    """O16, O19, O20: waiting is allowed for jobs that are under way, and once nothing is left; else act."""
    for one, late in situations():
        all_done = one.jobs.succeeded == 3
        match decide(one, deadline_passed=late):
            case Nothing():
                reasons = (one.cancel_requested, one.jobs.failed, all_done, late)
                jobs_under_way = one.state == RUNNING and not any(reasons)
                assert jobs_under_way or (not one.state and one.gone), one
            case Seal(before=before, after=after, code=code):
                assert before == one.state in (RUNNING, COMMITTING)
                assert (after == COMMITTING) == (not code), "whoever aborts says why"
                assert after == ABORTING or (all_done and not one.cancel_requested)
                assert one.state == RUNNING or one.cancel_requested, "nothing else undoes a sealed success"
            case Finish():
                assert one.state == ABORTING or (one.state == COMMITTING and not one.cancel_requested)
            case Collect():
                assert not one.state


def test_a_paused_operation_is_not_published_and_ends_in_every_other_way_as_before() -> None:
    """O21: it can fail, be cancelled, and pass its deadline; what is sealed is not held."""
    for one, late in situations():
        free, held = decide(one, deadline_passed=late), decide(one, deadline_passed=late, paused=True)
        if free == Seal(RUNNING, COMMITTING):
            late_seal = isinstance(held, Seal) and held.code == "DEADLINE_EXCEEDED"
            assert late_seal if late else held == Nothing()
        else:
            assert held == free


def test_a_pause_is_known_by_its_key() -> None:
    """O21: who holds it is shown; a pause of a newer version is one, too."""
    one = tracked(1)
    one.apply_put(KeyValue(KEYS.pause, encode(PauseRecord(by="jane")), 2, 2))
    assert one.pause == PauseRecord(by="jane")
    one.apply_delete(KEYS.pause, 3)
    assert one.pause is None
    one.apply_put(KeyValue(KEYS.pause, b"nonsense", 4, 4))
    assert one.pause == PauseRecord()


@pytest.mark.parametrize(
    ("allowed", "succeeded", "failed", "then"),
    [
        (0, 2, 0, Nothing()),
        (0, 3, 0, Seal(RUNNING, COMMITTING)),
        (1, 1, 1, Nothing()),
        (1, 2, 1, Seal(RUNNING, COMMITTING)),
        (1, 0, 2, "2 of 3 jobs failed, 1 may; job 0 failed: X: why"),
        (2, 1, 2, Seal(RUNNING, COMMITTING)),
        (3, 0, 3, "3 of 3 jobs failed, one must succeed; job 0 failed: X: why"),
        (-1, 0, 2, Nothing()),
        (-1, 1, 2, Seal(RUNNING, COMMITTING)),
        (-1, 0, 3, "3 of 3 jobs failed, one must succeed; job 0 failed: X: why"),
    ],
)
def test_an_operation_is_aborted_by_one_more_failed_job_than_allowed(
    allowed: int, succeeded: int, failed: int, then: object
) -> None:
    """O20, C17: it is published once every job has a result; one of them must be a success."""
    one = tracked(3, max_failed=allowed)
    one.set_state(RUNNING, 1)
    for index in range(failed + succeeded):
        Change(str(index), "failed" if index < failed else "success").apply(one, 2)
    expected = Seal(RUNNING, ABORTING, "JOB_FAILED", then) if isinstance(then, str) else then
    assert decide(one, deadline_passed=False) == expected


@pytest.mark.parametrize(
    ("total", "options", "done", "late", "then"),
    [
        (0, {}, "", False, Seal(RUNNING, COMMITTING)),
        (0, {"max_failed": -1}, "", False, Seal(RUNNING, COMMITTING)),
        (2, {}, "f", False, Seal(RUNNING, ABORTING, "JOB_FAILED", "job 0 failed: X: why")),
        (1, {"deadline_s": 1.0}, "s", True, Seal(RUNNING, COMMITTING)),
        (3, {"deadline_s": 2.5}, "s", True, Seal(RUNNING, ABORTING, "DEADLINE_EXCEEDED", LATE)),
    ],
    ids=["no jobs", "no jobs are not too few successes", "a failed job", "done, so not too late", "too late"],
)
def test_what_is_sealed_says_why(
    total: int, options: dict[str, Any], done: str, late: bool, then: object
) -> None:
    """O6, O16, O20, C17."""
    one = tracked(total, **options)
    one.set_state(RUNNING, 1)
    for index, how in enumerate(done):
        Change(str(index), "success" if how == "s" else "failed").apply(one, 2)
    assert decide(one, deadline_passed=late) == then


def test_a_failed_job_says_its_code_once() -> None:
    one = tracked(1)
    one.set_state(RUNNING, 1)
    one.apply_put(KeyValue(KEYS.job_state("0"), failure_record("a", "JOB_FAILED", "why", 1.0), 2, 2))
    action = decide(one, deadline_passed=False)
    assert action == Seal(RUNNING, ABORTING, "JOB_FAILED", "job 0 failed: why")


def test_a_state_of_a_newer_version_is_left_alone() -> None:
    """Else its leader would try to seal it for ever, without a pause."""
    one = tracked(0)
    one.set_state(b"paused", 1)
    assert decide(one, deadline_passed=True) == Nothing()


def parked_at(revision: int, **fields: Any) -> KeyValue:
    record = CompletionRecord(attempts=5, error="x", parked=True, **fields)
    return KeyValue(KEYS.completion, encode(record), revision, revision)


def decided_at(revision: int, action: str = "retry") -> KeyValue:
    return KeyValue(KEYS.resolve, encode(ResolveRecord(action=action)), revision, revision)


def committing(*kvs: KeyValue) -> Tracked:
    seen = tracked()
    seen.set_state(COMMITTING, 1)
    for kv in kvs:
        seen.apply_put(kv)
    return seen


def test_a_parked_operation_waits_for_a_decision() -> None:
    """O18, C10."""
    assert decide(committing(), deadline_passed=False) == Finish()
    assert decide(committing(parked_at(5)), deadline_passed=True) == Nothing()
    seen = committing(parked_at(5), decided_at(6))
    assert decide(seen, deadline_passed=False) == Resolve(ResolveRecord(action="retry"))


@pytest.mark.parametrize("order", [0, 1])
def test_a_decision_is_acted_on_once_whatever_comes_late(order: int) -> None:
    """C10: the decision of before is not taken for one on what has failed since."""
    news = [decided_at(6), parked_at(9)]
    seen = committing(parked_at(5), *(news if order else reversed(news)))
    assert decide(seen, deadline_passed=False) == Nothing()
    seen.apply_put(decided_at(10, "abort"))
    assert decide(seen, deadline_passed=False) == Resolve(ResolveRecord(action="abort"))


def test_a_cancellation_ends_a_parked_operation() -> None:
    """O19."""
    seen = committing(parked_at(5))
    seen.apply_put(KeyValue(KEYS.cancel, encode(CancelRecord(by="me")), 7, 7))
    action = decide(seen, deadline_passed=False)
    assert isinstance(action, Seal)
    assert (action.before, action.after, action.code) == (COMMITTING, ABORTING, "CANCELLED")


def test_a_completion_that_cannot_be_read_is_not_completed() -> None:
    """O18: a newer version has counted there, and may have parked it."""
    seen = committing(KeyValue(KEYS.completion, b"{", 5, 5))
    assert decide(seen, deadline_passed=False) == Nothing()


def of_run(token: int, *partitions: str, start: int = 10) -> list[KeyValue]:
    """Results of a run."""
    return [
        KeyValue(KEYS.job_state(name), success_record(f"{token}-a", {}, 1.0, run=token), start + n, start + n)
        for n, name in enumerate(partitions)
    ]


def run_of(token: int, count: int | None = None, at: int = 50, **told: int) -> KeyValue:
    return KeyValue(KEYS.run, encode(RunRecord(token=token, count=count, **told)), at, at)


def dynamic() -> Tracked:
    arg = OperationArg(table="t", type="noop", instance=1, dynamic=True, version=2)
    return Tracked(KEYS, arg, RUNNING, 1)


def test_a_dynamic_plan_is_not_sealed_before_its_count_is() -> None:
    seen = dynamic()
    assert decide(seen, deadline_passed=False) == Nothing()
    seen.apply_put(run_of(7))
    for kv in of_run(7, "0", "1"):
        seen.apply_put(kv)
        assert decide(seen, deadline_passed=False) == Nothing()
    seen.apply_put(run_of(7, 3))
    assert decide(seen, deadline_passed=False) == Nothing()
    seen.apply_put(of_run(7, "2")[0])
    assert decide(seen, deadline_passed=False) == Seal(RUNNING, COMMITTING)
    assert (seen.total, seen.counting) == (3, False)


@given(st.permutations([*of_run(7, "0", "1", "2"), run_of(7), *of_run(9, "0", "1"), run_of(9, 2)]))
def test_only_results_of_the_run_that_counts_are_counted_in_whatever_order_they_come(
    changes: list[KeyValue],
) -> None:
    """The leader does not see deletions, and listings come in the order of keys."""
    seen = dynamic()
    for kv in changes:
        seen.apply_put(kv)
    # A key holds one value in the end; which of both runs was heard of last is up to the order.
    for kv in of_run(9, "0", "1"):
        seen.apply_put(kv)
    assert (grid_of(seen).text(5), seen.jobs.succeeded) == ("ss", 2)
    assert (seen.total, seen.counting, seen.run.token) == (2, False, 9)
    assert decide(seen, deadline_passed=False) == Seal(RUNNING, COMMITTING)


def test_a_sealed_count_stands_whatever_comes_later() -> None:
    seen = dynamic()
    seen.apply_put(run_of(7, 1))
    seen.apply_put(run_of(9, at=60))
    assert (seen.run.token, seen.run.count) == (7, 1)


def test_a_failure_of_the_present_run_aborts_it_and_one_of_another_does_not() -> None:
    seen = dynamic()
    seen.apply_put(run_of(9))
    key = KEYS.job_state("0")
    seen.apply_put(KeyValue(key, failure_record("a", "X", "why", 1.0, run=7), 10, 10))
    assert decide(seen, deadline_passed=False) == Nothing()
    seen.apply_put(KeyValue(key, failure_record("a", "X", "why", 1.0, run=9), 11, 11))
    assert isinstance(decide(seen, deadline_passed=False), Seal)
    assert decide(seen, deadline_passed=False).after == ABORTING  # type: ignore[union-attr]


def test_until_its_results_are_there_it_says_how_far_spark_is() -> None:
    seen = dynamic()
    assert (seen.total, seen.done, seen.counting) == (0, 0, True)
    seen.apply_put(run_of(7, tasks=20, done=5))
    assert (seen.total, seen.done, seen.counting) == (20, 5, True)
    seen.apply_put(run_of(9, at=60))
    assert (seen.total, seen.done) == (0, 0)
