"""A short part of `make chaos`: real Spark, a handful of points that stand for the others."""

import functools
import json
import os
import random
import sys
from pathlib import Path

import pytest

from chaos.faults import INSIDE, LOST, LOST_TOO, OF_COMMITS, PAUSED, strikes
from chaos.ledger import Book, Sources
from chaos.report import BEGIN, END, Line, Report
from chaos.workloads import BY_STEP, workloads_of
from distop.metastore.etcd.embedded import find_etcd
from support.processes import captured
from support.repository import TESTS, points

every_point = functools.cache(points)
SHORT = "job.file.after=die,mark.before=die,finish.after=die"
"""A Spark worker that has written its file, a sidecar before its marks, a leader that has published."""


@pytest.mark.process
@pytest.mark.slow("starts Spark, and kills a worker, a sidecar and a leader")
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_whoever_is_killed(tmp_path: Path) -> None:
    """C4, C13, P2, P3: rows, watermarks, keys and files are as if nothing had happened."""
    if find_etcd().lossy:
        pytest.skip(f"etcd {find_etcd().version} can lose data when it is killed")
    command = [sys.executable, "-m", "chaos", "--points", SHORT, "--faults", "none", "--runners", "1"]
    done = captured(
        [*command, "--folder", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["points"] == found["points_killed"] == 3
    assert found["rows_found"] == found["rows_expected"] > 0
    assert [found[name] for name in ("rows_lost", "rows_doubled", "leftovers", "stuck", "wrong")] == [0] * 5


def test_every_point_is_killed_and_the_order_follows_from_the_seed() -> None:
    found = list(every_point())
    chosen = strikes(found, ["*"], random.Random(7))
    killed = [strike.point for strike in chosen if strike.kind == "die" and not strike.inside]
    assert sorted(killed) == sorted(found)
    assert chosen == strikes(found, ["*"], random.Random(7)) != strikes(found, ["*"], random.Random(8))
    assert [strike.kind for strike in strikes(found, ["seal.after=lost"], random.Random(7))] == ["lost"]


def test_the_tables_of_the_harness_name_points_that_exist() -> None:
    """A point that was renamed must not silently fall out of the harness."""
    found = every_point()
    assert {f"{step}.after" for step in LOST} | {*LOST_TOO, *PAUSED} <= found.keys()
    for step in BY_STEP:
        assert any(point.startswith(f"{step}.") for point in found), step
    assert OF_COMMITS.keys() <= found.keys()


def test_every_point_has_a_workload_that_is_known_to_reach_it() -> None:
    assert [point for point in every_point() if not workloads_of(point)] == []


def test_commits_of_other_kinds_are_struck_while_they_are_under_way() -> None:
    """Compaction, branches, and what Spark's own interface writes: apart from the commits of ingests."""
    inside = [strike for strike in strikes(list(every_point()), ["*"], random.Random(7)) if strike.inside]
    assert {strike.inside for strike in inside} == INSIDE.keys()
    assert {strike.kind for strike in inside} == {"die", "lost", "sleep"}
    chosen = strikes(list(every_point()), ["finish.*=lost@a compaction"], random.Random(7))
    assert [strike.name for strike in chosen] == ["finish.after in a compaction"]


def test_a_report_is_good_only_if_everything_was_struck_and_nothing_is_wrong(tmp_path: Path) -> None:
    report = Report(seed=1, points=["a.after"])
    report.line("a.after", "m").missed.append("die")
    assert not report.good
    report = Report(seed=1, points=["a.after"], lines={"a.after": Line("a.after", "m", done={"die": 1})})
    assert report.good
    document = tmp_path / "chaos.md"
    document.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    report.write_markdown(document)
    text = document.read_text()
    assert "old" not in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "| `a.after` |" in text
    report.total.rows_lost = 1
    assert not report.good


def test_a_book_knows_what_a_table_holds(tmp_path: Path) -> None:
    sources, book = Sources(tmp_path), Book("t", tmp_path, replaces=True)
    first, second = sources.batch(), sources.batch()
    assert not set(first.ids) & set(second.ids)
    for batch in (first, second):
        book.published(batch)
    assert book.expected() == list(second.ids)
    assert book.watermarks == {first.name, second.name}
