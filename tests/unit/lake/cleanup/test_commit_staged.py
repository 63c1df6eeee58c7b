"""Removing staged files: everything that was not published, and never anything that was."""

from pathlib import Path
from typing import Any

import pytest

from distop.lake.cleanup.staged import sweep
from distop.lake.iceberg import takeover
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.lake.storage import storage
from distop.metastore.records.operation import Effect
from support.tables.publishing import Staged, Table, new_table, rows


def lose(operation: Staged, partition: str, attempt: str) -> None:
    """An attempt that wrote everything and was not the one that counted."""
    writer = operation.writer(partition, attempt)
    writer.write(rows(900, 5))
    writer.finish()


def die(operation: Staged, partition: str, attempt: str) -> None:
    """An attempt that was killed while it wrote."""
    lose(operation, partition, attempt)
    for path in Path(operation.arg.location.removeprefix("file://")).rglob(f"*{attempt}.avro"):
        path.unlink()


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return new_table(tmp_path, ["kind"])


@pytest.mark.parametrize("jobs", [2, 9], ids=["manifests adopted", "manifests joined"])
def test_only_what_was_not_published_is_removed(table: Table, jobs: int) -> None:
    """P2, C18: losers and the dead leave nothing; the table reads as before."""
    operation = table.staged(*([rows(10 * i, 4)] for i in range(jobs)))
    lose(operation, "0", "6-0")
    die(operation, "1", "6-1")
    facts = table.publish(operation).facts
    expected, referenced = table.ids(), {Path(path).name for path in table.data_files()}
    removed = sweep(operation.arg, operation.history(facts), operation.jobs)
    left = operation.files()
    assert left["data"] == referenced
    assert len(left["metadata"]) == (jobs if jobs == 2 else 0)
    assert removed == 3 + 1 + 3 + (jobs if jobs == 9 else 0)
    assert sweep(operation.arg, operation.history(facts), operation.jobs) == 0, "there is nothing more"
    assert table.ids() == expected


@pytest.mark.parametrize("effect", [Effect.READS, Effect.CLEANS])
def test_files_of_an_operation_that_adds_none_are_swept(table: Table, effect: Effect) -> None:
    """C18: the effect on the table is in the operation's record, so the type does not matter."""
    operation = table.staged([rows(0, 4)])
    operation.arg.effect = effect
    assert sweep(operation.arg, operation.history({}), operation.jobs) > 0
    assert not any(operation.files().values())


def test_a_sweep_that_was_interrupted_is_taken_up(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4, C18: killed between any two removals, then run again."""
    operation = table.staged(*([rows(10 * i, 4)] for i in range(9)))
    for attempt in ("5-0", "6-0"):
        lose(operation, "0", attempt)
    facts = table.publish(operation).facts
    expected = table.ids()

    real, countdown = storage.remove_file, iter(range(5))

    def removing(location: str, storage: Any) -> bool:
        if next(countdown, None) is None:
            raise KeyboardInterrupt
        return real(location, storage)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "remove_file", removing)
        with pytest.raises(KeyboardInterrupt):
            sweep(operation.arg, operation.history(facts), operation.jobs)
    assert table.ids() == expected
    sweep(operation.arg, operation.history(facts), operation.jobs)
    assert table.ids() == expected
    assert operation.files()["data"] == {Path(path).name for path in table.data_files()}


def test_nothing_is_removed_once_jobs_or_the_facts_of_the_commit_are_forgotten(table: Table) -> None:
    """C11, C18, P8: a collector that died among the keys of jobs leaves too little to tell what is published;
    what an older or newer version may have adopted is not removed on a guess."""
    operation = table.staged(*([rows(10 * i, 4)] for i in range(9)))
    facts = table.publish(operation).facts
    expected, files = table.ids(), operation.files()
    for known in ({}, {"0": operation.jobs["0"]}, dict(list(operation.jobs.items())[:8])):
        assert sweep(operation.arg, operation.history(facts), known) == 0
    assert sweep(operation.arg, operation.history(), operation.jobs) == 0
    assert operation.files() == files
    assert table.ids() == expected


def test_files_that_a_step_may_have_published_stay_when_the_operation_is_aborted(table: Table) -> None:
    """P8: a commit to a Delta table cannot be taken back; what it names must not go."""
    operation = table.staged([rows(0, 4)], [rows(10, 4)])
    history = operation.history({"stepsNotUndone": 1}, "failed")
    assert sweep(operation.arg, history, operation.jobs) == 0
    assert sweep(operation.arg, operation.history({"stepsNotUndone": 0}, "failed"), operation.jobs) > 0


def test_adopted_files_stay_when_another_version_sweeps(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11, C13: the coordinator that sweeps may be of another version than the one that committed."""
    operation = table.staged(*([rows(10 * i, 4)] for i in range(4)))
    facts = table.publish(operation).facts
    monkeypatch.setattr(takeover, "ADOPT_AT_MOST", 0)
    assert sweep(operation.arg, operation.history(facts), operation.jobs) == 0
    assert len(table.ids()) == 16


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
def test_an_aborted_operation_leaves_nothing(table: Table, outcome: str) -> None:
    """P9, O19: twice is fine, and so is one that wrote nothing."""
    table.publish(table.staged([rows(0, 4)]))
    operation = table.staged([rows(100, 4)], [rows(200, 4)])
    history = operation.history(outcome=outcome)
    assert sweep(operation.arg, history, {}) == 8
    assert sweep(operation.arg, history, operation.jobs) == 0
    assert operation.files() == {"data": set(), "metadata": set()}
    folders = list(Path(table.location.removeprefix("file://")).glob(f"*/ingest-{operation.arg.uuid}"))
    assert folders == []
    assert table.ids() == [0, 1, 2, 3]
    assert sweep(table.start(3).arg, history, {}) == 0


def test_sweeping_touches_no_files_of_other_operations(table: Table) -> None:
    """C19, P13: folders and names are an operation's own; what was overwritten stays for time travel."""
    published, running, aborted = (table.staged([rows(10 * i, 4)]) for i in range(3))
    facts = table.publish(published).facts
    table.publish(table.staged([rows(50, 1)]), IcebergOverwrite())
    before = published.files(), running.files()
    sweep(aborted.arg, aborted.history(outcome="failed"), {})
    sweep(published.arg, published.history(facts), published.jobs)
    assert (published.files(), running.files()) == before


def test_extra_files_of_a_winner_are_kept(table: Table) -> None:
    """C18: an attempt that counts may have written more than rows, such as a list of bad ones."""
    operation = table.staged([rows(0, 4)])
    folder = Path(table.location.removeprefix("file://"), "data", f"ingest-{operation.arg.uuid}")
    (folder / "0-7-0_bad.jsonl").write_text("{}")
    (folder / "0-7-01-0.parquet").write_text("another attempt whose name begins alike")
    facts = table.publish(operation).facts
    assert sweep(operation.arg, operation.history(facts), operation.jobs) == 1
    assert "0-7-0_bad.jsonl" in operation.files()["data"]


def test_names_that_file_systems_dislike(table: Table) -> None:
    """C12, O29: partitions with any name whatever."""
    names = ["a/b", "a?b#c", "ä 'quoted'\n", "x" * 500, "..", "-", "100%", "a.b", "a-b"]
    operation = table.start(len(names))
    for index, name in enumerate(names):
        operation.run(name, [rows(10 * index, 4)], attempt=f"7-{index}")
        lose(operation, name, f"6-{index}")
    facts = table.publish(operation).facts
    expected = [10 * i + n for i in range(len(names)) for n in range(4)]
    assert table.ids() == expected
    sweep(operation.arg, operation.history(facts), operation.jobs)
    assert table.ids() == expected
    assert operation.files()["data"] == {Path(path).name for path in table.data_files()}
