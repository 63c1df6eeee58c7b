"""Jobs as cells: counted once whatever comes twice, and drawn in a bounded number."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.state.grid import CLAIMED, FAILED, MAX_FAILURES, SUCCEEDED, WAITING, JobGrid
from distop.coordinator.state.tracker import Tracked
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.jobs import failure_record, success_record
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg, RunRecord
from distop.metastore.records.record import encode

KEYS = Keyspace().operation(OperationId("flights", "ingest", 17))
DONE = success_record("a1", {}, 5.0)
BROKEN = failure_record("a1", "BAD_ROW", "line 3", 6.0)


def grid_of(one: Tracked) -> JobGrid:
    """The grid of an operation with jobs few enough to be tracked one by one."""
    assert isinstance(one.jobs, JobGrid)
    return one.jobs


def test_jobs_in_a_state_are_listed_with_the_place_to_go_on_from() -> None:
    grid = JobGrid(OperationArg(table="t", type="noop", instance=1, partition_count=5))
    for partition in ("1", "3", "4"):
        grid.succeed(partition, 1.0)
    assert grid.some(SUCCEEDED, 0, 2) == ([("1", "s"), ("3", "s")], 4)
    assert grid.some(SUCCEEDED, 4, 2) == ([("4", "s")], 0)
    assert grid.some("", 3, 2) == ([("3", "s"), ("4", "s")], 0)
    assert grid.some("", 9, 2) == grid.some(FAILED, 0, 2) == ([], 0)


def operation_of(count: int = 0, names: list[str] | None = None) -> Tracked:
    arg = OperationArg(
        table="flights",
        type="ingest",
        instance=17,
        partition_count=len(names or ()) or count,
        partitions=names,
    )
    return Tracked(KEYS, arg)


def put(one: Tracked, partition: str, value: bytes = DONE) -> None:
    one.apply_put(KeyValue(KEYS.job_state(partition), value, 1, 1))


def test_marks_fill_cells_in_the_order_of_the_plan():
    one = operation_of(names=["2013/01", "a.b", "käse %"])
    put(one, "käse %")
    put(one, "2013/01", BROKEN)
    assert grid_of(one).text(10) == FAILED + WAITING + SUCCEEDED
    assert (one.jobs.succeeded, one.jobs.failed, grid_of(one).total) == (1, 1, 3)
    assert one.jobs.failures == {"2013/01": "BAD_ROW: line 3"}
    assert one.jobs.last_job_at == 6.0
    assert [cell.label for cell in grid_of(one).cells(10)] == ["2013/01", "a.b", "käse %"]


def test_a_mark_seen_twice_counts_once():
    one = operation_of(3)
    for _ in range(2):
        put(one, "1")
    assert (one.jobs.succeeded, grid_of(one).text(5)) == (1, ".s.")


def test_a_cleared_mark_is_waiting_again():
    one = operation_of(3)
    put(one, "1", BROKEN)
    one.apply_delete(KEYS.job_state("1"), 2)
    assert (one.jobs.failed, one.jobs.failures, grid_of(one).text(5)) == (0, {}, "...")


def test_claims_show_until_there_is_a_result():
    one = operation_of(2)
    claim = KeyValue(KEYS.claim("0"), b"{}", 1, 1)
    one.apply_put(claim)
    assert (grid_of(one).text(5), grid_of(one).claimed) == (CLAIMED + WAITING, 1)
    one.apply_delete(KEYS.claim("0"), 2)
    assert grid_of(one).text(5) == ".."
    put(one, "0")
    one.apply_put(claim)
    one.apply_delete(KEYS.claim("0"), 2)
    assert (grid_of(one).text(5), grid_of(one).claimed, one.jobs.succeeded) == ("s.", 0, 1)


@pytest.mark.parametrize("partition", ["7", "-1", "x", "²"])
def test_jobs_that_are_not_of_the_plan_change_nothing(partition):
    one = operation_of(3)
    put(one, partition)
    assert grid_of(one).text(5) == "..."


def test_keys_of_no_job_change_nothing():
    one = operation_of(3)
    for key in (KEYS.arg, KEYS.state, KEYS.runner, KEYS.cancel, KEYS.error, KEYS.commit, KEYS.commit + b".1"):
        one.apply_put(KeyValue(key, b"running", 1, 1))
        one.apply_delete(key, 2)
    assert grid_of(one).text(5) == "..."


def test_a_mark_of_a_newer_layout_is_neither_done_nor_failed():
    one = operation_of(1)
    put(one, "0", b'{"version": 99, "state": "success"}')
    assert grid_of(one).text(5) == "."


def test_many_jobs_share_cells():
    one = operation_of(100)
    for job in range(30):
        put(one, str(job))
    put(one, "99", BROKEN)
    cells = grid_of(one).cells(4)
    assert [cell.jobs for cell in cells] == [25, 25, 25, 25]
    assert [cell.state for cell in cells] == [SUCCEEDED, WAITING, WAITING, FAILED]
    assert [cell.level for cell in cells] == [4, 1, 0, 0]
    assert cells[1].label == "25 … 49: 5 of 25"


@given(st.integers(0, 5000), st.integers(1, 300))
def test_cells_are_bounded_and_cover_every_job(count, limit):
    cells = grid_of(operation_of(count)).cells(limit)
    assert len(cells) <= limit
    assert sum(cell.jobs for cell in cells) == count
    assert len(grid_of(operation_of(count)).text(limit)) == len(cells)


def test_failures_are_kept_in_a_bounded_number():
    one = operation_of(500)
    for job in range(500):
        put(one, str(job), BROKEN)
    assert one.jobs.failed == 500
    assert len(one.jobs.failures) == MAX_FAILURES


def test_a_million_jobs_take_a_megabyte():
    one = operation_of(1_000_000)
    put(one, "999999")
    assert sys.getsizeof(grid_of(one)._cells) < 1_100_000
    assert grid_of(one).cells(1000)[-1].level == 1


def run_of(one: Tracked, token: int, **fields: int) -> None:
    one.apply_put(KeyValue(KEYS.run, encode(RunRecord(token=token, **fields)), 1, 1))


def test_jobs_of_a_dynamic_plan_come_as_they_become_known_and_go_with_their_run():
    arg = OperationArg(table="flights", type="ingest", instance=17, dynamic=True, version=2)
    one = Tracked(KEYS, arg)
    grid = grid_of(one)
    assert (grid.total, grid.text(10)) == (0, "")
    run_of(one, 5, tasks=4)
    put(one, "1", success_record("5-a", {}, 5.0, run=5))
    assert grid.text(10) == WAITING + SUCCEEDED + WAITING + WAITING
    put(one, "0", success_record("9-a", {}, 5.0, run=9))
    put(one, "1", success_record("5-b", {}, 5.0, run=5))
    put(one, "2", failure_record("9-b", "X", "why", 6.0, run=9))
    run_of(one, 9, count=3)
    assert grid.text(10) == SUCCEEDED + WAITING + FAILED
    assert (grid.succeeded, grid.failed, list(grid.failures)) == (1, 1, ["2"])
