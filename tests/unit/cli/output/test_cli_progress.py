"""An operation on the screen."""

import io
from dataclasses import replace

from rich.console import Console

from distop.cli.output.human import MOST_CELLS, ProgressView, follow
from distop.cli.output.texts import counts, state_of
from distop.client import Completion, JobCounts, JobUpdate, Operation, OperationState, OperationUpdate
from distop.proto.json_text import duration, printable

NAME = "flights/ingest/1"


def update(
    total: int, done: int = 0, failed: int = 0, *jobs: JobUpdate, state: str = "running"
) -> OperationUpdate:
    operation = Operation(
        name=NAME,
        table="flights",
        type="ingest",
        state=OperationState(state),
        jobs=JobCounts(total, done, failed),
        runner="e1",
    )
    return OperationUpdate(operation=operation, jobs=jobs)


def drawn(view: ProgressView, *, legacy: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if legacy else "utf-8")
    console = Console(file=file, width=100, force_terminal=True, color_system=None, legacy_windows=False)
    console.print(view)
    file.flush()
    return file.buffer.getvalue().decode(file.encoding)


def test_each_partition_fills_its_own_cell() -> None:
    view = ProgressView(lambda: 0.0)
    view.apply(update(5, 1, 1, JobUpdate("3", "success"), JobUpdate("0", "failed", "BAD_ROW: line 7")))
    assert view.cells() == ["failed", "", "", "success", ""]
    assert "■ · · ■ ·" in drawn(view)
    assert "partition 0: BAD_ROW: line 7" in drawn(view)


def test_named_or_unnamed_partitions_fill_from_the_left() -> None:
    """The counts are never cut short, the lists of jobs are."""
    view = ProgressView(lambda: 0.0)
    view.apply(update(4, 2, 1, JobUpdate("2013-01", "success"), JobUpdate("3", "success")))
    assert view.cells() == ["success", "success", "failed", ""]


def test_a_grid_in_ascii_where_the_terminal_knows_no_more() -> None:
    view = ProgressView(lambda: 0.0)
    view.apply(update(2, 1, 0, JobUpdate("0", "success")))
    assert "# ." in drawn(view, legacy=True)


def test_very_many_partitions_are_one_bar() -> None:
    view = ProgressView(lambda: 0.0)
    view.apply(update(MOST_CELLS + 1, 100))
    text = drawn(view)
    assert "100/201" in text
    assert "━" in text
    assert "■" not in text


def test_no_partitions_at_all() -> None:
    view = ProgressView(lambda: 0.0)
    view.apply(update(0, state="committing"))
    assert drawn(view).split() == [NAME, "committing", "0/0", "0", "ms"]


def test_few_failures_are_shown_of_many() -> None:
    view = ProgressView(lambda: 0.0)
    view.apply(update(100, 0, 100, *(JobUpdate(str(i), "failed", "no") for i in range(100))))
    assert drawn(view).count("partition ") == 5


def test_without_a_terminal_there_is_a_line_for_each_state_and_now_and_then() -> None:
    file = io.StringIO()
    times = iter([0.0, 0.0, 0.0, 1.0, 11.0, 11.0, 11.0, 12.0, 12.0, 12.0])
    ended = follow(
        Console(file=file, width=100, color_system=None),
        [update(3), update(3, 1), update(3, 2), update(3, 3, state="succeeded")],
        clock=lambda: next(times),
    )
    assert ended.state is OperationState.SUCCEEDED
    assert [line.split()[1:3] for line in file.getvalue().splitlines()] == [
        ["running", "0/3"],
        ["running", "2/3"],
        ["succeeded", "3/3"],
    ]


def test_a_terminal_shows_it_live() -> None:
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=True, color_system=None)
    follow(console, [update(2), update(2, 2, state="succeeded")])
    assert NAME in file.getvalue()


def test_progress_is_worded_for_people() -> None:
    assert counts(JobCounts(1200, 40, 2)) == "40/1,200, 2 failed"
    assert [duration(s) for s in (None, -1.0, 0.314, 0.9996, 1.314, 9.996, 12.34, 59.96, 250, 7500)] == [
        "",
        "0 ms",
        "314 ms",
        "1.00 s",
        "1.31 s",
        "10.0 s",
        "12.3 s",
        "1 min 0 s",
        "4 min 10 s",
        "2 h 5 min",
    ]
    assert printable("a\x1b[31mb\nf\u00fcr") == "a\\x1b[31mb\\nf\u00fcr"


def test_a_total_that_nobody_knows_yet_is_a_question_mark() -> None:
    assert counts(JobCounts(counting=True)) == "0/?"
    assert counts(JobCounts(total=20, succeeded=5, counting=True)) == "5/20"
    unknown = update(0)
    operation = replace(unknown.operation, jobs=JobCounts(counting=True), runner="")
    view = ProgressView(lambda: 0.0)
    view.apply(replace(unknown, operation=operation))
    assert "0/?" in drawn(view)
    assert "waiting for an executor" in drawn(view)


def test_a_state_says_what_holds_it() -> None:
    """U1: in lists, too, as on the page."""
    parked = replace(
        update(2, 2, state="committing").operation, completion=Completion(parked=True, skippable=True)
    )
    assert state_of(parked) == "committing (parked)"
    resolve = f"distop operation resolve {NAME}"
    decide = f"committing (parked: {resolve} retry, or {resolve} skip, or {resolve} abort)"
    assert state_of(parked, decide=True) == decide
    assert state_of(replace(update(2).operation, cancel_requested=True)) == "running (cancel requested)"
