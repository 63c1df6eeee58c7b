"""Jobs as cells: counted once whatever comes twice, and drawn in a bounded number."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.state.grid import CLAIMED, FAILED, MAX_FAILURES, SUCCEEDED, WAITING, JobGrid
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.jobs import failure_record, success_record
from distop.metastore.records.keyspace import Keyspace, OperationId, OperationKeys
from distop.metastore.records.model import OperationArg, RunRecord, encode

KEYS = Keyspace().operation(OperationId("flights", "ingest", 17))
DONE = success_record("a1", {}, 5.0)
BROKEN = failure_record("a1", "BAD_ROW", "line 3", 6.0)


def grid_of(count: int = 0, names: list[str] | None = None) -> JobGrid:
    arg = OperationArg(
        table="flights",
        type="ingest",
        instance=17,
        partition_count=len(names or ()) or count,
        partitions=names,
    )
    return JobGrid(KEYS, arg)


def put(grid: JobGrid, partition: str, value: bytes = DONE, *, keys: OperationKeys = KEYS) -> None:
    grid.apply_put(KeyValue(keys.job_state(partition), value, 1, 1))


def test_marks_fill_cells_in_the_order_of_the_plan():
    grid = grid_of(names=["2013/01", "a.b", "käse %"])
    put(grid, "käse %")
    put(grid, "2013/01", BROKEN)
    assert grid.text(10) == FAILED + WAITING + SUCCEEDED
    assert (grid.succeeded, grid.failed, grid.total) == (1, 1, 3)
    assert grid.failures == {"2013/01": "BAD_ROW: line 3"}
    assert grid.last_job_at == 6.0
    assert [cell.label for cell in grid.cells(10)] == ["2013/01", "a.b", "käse %"]


def test_a_mark_seen_twice_counts_once():
    grid = grid_of(3)
    for _ in range(2):
        put(grid, "1")
    assert (grid.succeeded, grid.text(5)) == (1, ".s.")


def test_a_cleared_mark_is_waiting_again():
    grid = grid_of(3)
    put(grid, "1", BROKEN)
    grid.apply_delete(KEYS.job_state("1"))
    assert (grid.failed, grid.failures, grid.text(5)) == (0, {}, "...")


def test_claims_show_until_there_is_a_result():
    grid = grid_of(2)
    claim = KeyValue(KEYS.claim("0"), b"{}", 1, 1)
    grid.apply_put(claim)
    assert (grid.text(5), grid.claimed) == (CLAIMED + WAITING, 1)
    grid.apply_delete(KEYS.claim("0"))
    assert grid.text(5) == ".."
    put(grid, "0")
    grid.apply_put(claim)
    grid.apply_delete(KEYS.claim("0"))
    assert (grid.text(5), grid.claimed, grid.succeeded) == ("s.", 0, 1)


@pytest.mark.parametrize("partition", ["7", "-1", "x", "²"])
def test_jobs_that_are_not_of_the_plan_change_nothing(partition):
    grid = grid_of(3)
    put(grid, partition)
    assert grid.text(5) == "..."


def test_keys_of_no_job_change_nothing():
    grid = grid_of(3)
    for key in (KEYS.arg, KEYS.state, KEYS.runner, KEYS.cancel, KEYS.error, KEYS.commit, KEYS.commit + b".1"):
        grid.apply_put(KeyValue(key, b"running", 1, 1))
        grid.apply_delete(key)
    assert grid.text(5) == "..."


def test_a_mark_of_a_newer_layout_is_neither_done_nor_failed():
    grid = grid_of(1)
    put(grid, "0", b'{"version": 99, "state": "success"}')
    assert grid.text(5) == "."


def test_many_jobs_share_cells():
    grid = grid_of(100)
    for job in range(30):
        put(grid, str(job))
    put(grid, "99", BROKEN)
    cells = grid.cells(4)
    assert [cell.jobs for cell in cells] == [25, 25, 25, 25]
    assert [cell.state for cell in cells] == [SUCCEEDED, WAITING, WAITING, FAILED]
    assert [cell.level for cell in cells] == [4, 1, 0, 0]
    assert cells[1].label == "25 … 49: 5 of 25"


@given(st.integers(0, 5000), st.integers(1, 300))
def test_cells_are_bounded_and_cover_every_job(count, limit):
    cells = grid_of(count).cells(limit)
    assert len(cells) <= limit
    assert sum(cell.jobs for cell in cells) == count
    assert len(grid_of(count).text(limit)) == len(cells)


def test_failures_are_kept_in_a_bounded_number():
    grid = grid_of(500)
    for job in range(500):
        put(grid, str(job), BROKEN)
    assert grid.failed == 500
    assert len(grid.failures) == MAX_FAILURES


def test_a_million_jobs_take_a_megabyte():
    grid = grid_of(1_000_000)
    put(grid, "999999")
    assert sys.getsizeof(grid._cells) < 1_100_000
    assert grid.cells(1000)[-1].level == 1


def run_of(grid: JobGrid, token: int, **fields: int) -> None:
    grid.apply_put(KeyValue(KEYS.run, encode(RunRecord(token=token, **fields)), 1, 1))


def test_jobs_of_a_dynamic_plan_come_as_they_become_known_and_go_with_their_run():
    arg = OperationArg(table="flights", type="ingest", instance=17, dynamic=True, version=2)
    grid = JobGrid(KEYS, arg)
    assert (grid.total, grid.text(10)) == (0, "")
    run_of(grid, 5, tasks=4)
    put(grid, "1", success_record("5-a", {}, 5.0, run=5))
    assert grid.text(10) == WAITING + SUCCEEDED + WAITING + WAITING
    put(grid, "0", success_record("9-a", {}, 5.0, run=9))
    put(grid, "1", success_record("5-b", {}, 5.0, run=5))
    put(grid, "2", failure_record("9-b", "X", "why", 6.0, run=9))
    run_of(grid, 9, count=3)
    assert grid.text(10) == SUCCEEDED + WAITING + FAILED
    assert (grid.succeeded, grid.failed, list(grid.failures)) == (1, 1, ["2"])
