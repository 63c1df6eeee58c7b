"""How jobs have ended, as a short text: nothing of it is lost while it fits, and no failure ever."""

from hypothesis import given
from hypothesis import strategies as st

from distop.coordinator.state.grid import MAX_BYTES, JobGrid, Outcomes, outcomes_text
from distop.metastore.records.operation import OperationArg


def test_runs_of_equal_outcomes_are_counted() -> None:
    grid = JobGrid(OperationArg(table="t", type="noop", instance=1, partition_count=9))
    for partition in "0123":
        grid.succeed(partition, 1.0)
    grid.retry("3")
    grid.fail("4", 1.0, "no")
    grid.retry("5")
    assert grid.outcomes() == "3s1t1f4."
    live, ended = grid.cells(9), Outcomes.of(grid.outcomes(), 9)
    assert [cell.retried for cell in live] == [False] * 3 + [True, False, True] + [False] * 3
    assert ended is not None
    assert ended.retried
    assert [cell.state for cell in ended.cells(9)] == [cell.state for cell in live]
    assert ended.cells(9)[3].retried


@given(st.lists(st.sampled_from(["s", "f", "t", "."]), max_size=300), st.integers(1, 50))
def test_no_failure_is_lost_and_the_text_is_short(some: list[str], times: int) -> None:
    jobs = "".join(some * times).encode()
    text = outcomes_text(jobs)
    assert len(text) <= MAX_BYTES
    ended = Outcomes.of(text, len(jobs))
    if not jobs:
        assert ended is None
        return
    assert ended is not None
    if ended.each == 1:
        assert ended.letters == jobs
    for at, letter in enumerate(ended.letters):
        group = jobs[at * ended.each : (at + 1) * ended.each]
        assert letter == next(worst for worst in b"f.ts" if worst in group)


def test_a_million_jobs_that_ended_in_turns_fit() -> None:
    text = outcomes_text(b"sf" * 500_000)
    ended = Outcomes.of(text, 1_000_000)
    assert ended is not None
    assert (text, len(ended.cells(2000))) == ("500:2000f", 2000)
    assert ended.cells(2000)[1].label == "500 … 999"


def test_a_text_that_says_something_else_is_not_drawn() -> None:
    for text in ("", "3s", "5s1", "4x", "0:4s", "s4", "2:3s", "99999999999s"):
        assert Outcomes.of(text, 4) is None
    assert Outcomes.of("2:2s", 4) is not None
