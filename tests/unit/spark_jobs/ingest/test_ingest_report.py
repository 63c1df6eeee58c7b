"""What a finished ingest says of the rows that it could not read."""

from __future__ import annotations

from pathlib import Path

from support.sources.ingesting import Ingesting, quarantined


def source(folder: Path, bad: int) -> str:
    """Five files of 400 rows, with ``bad`` bad rows in two of them."""
    sources = folder / "source"
    sources.mkdir()
    for number in range(5):
        wrong = {0: bad - bad // 2, 4: bad // 2}.get(number, 0)
        rows = ["x"] * wrong + [str(row) for row in range(wrong, 400)]
        (sources / f"{number}.csv").write_text("a\n" + "\n".join(rows) + "\n")
    return str(sources)


def test_bad_rows_of_jobs_are_counted_and_their_folder_is_named(ingesting: Ingesting, tmp_path: Path) -> None:
    arg = ingesting.start(
        paths=source(tmp_path, 13), schema={"a": "int"}, on_bad_rows="quarantine", split_bytes=1024
    )
    jobs = ingesting.run(arg)
    facts = ingesting.finish(arg, jobs)
    assert len(jobs) > 1
    assert (facts["rows"], facts["badRows"]) == (1987, 13)
    assert facts["quarantine"] == f"quarantine/ingest-{arg.uuid}"
    root = Path(ingesting.location.removeprefix("file://"))
    files = list((root / facts["quarantine"]).iterdir())
    assert len(files) == 2
    assert (
        sum(len(file.read_text().splitlines()) for file in files) == len(quarantined(ingesting, jobs)) == 13
    )


def test_without_bad_rows_it_says_so(ingesting: Ingesting, tmp_path: Path) -> None:
    """Nothing where bad rows fail the job."""
    paths = source(tmp_path, 0)
    assert "badRows" not in ingesting.facts(paths=paths, schema={"a": "int"})
    facts = ingesting.facts(paths=paths, schema={"a": "int"}, on_bad_rows="quarantine", reingest=True)
    assert facts["badRows"] == 0
    assert "quarantine" not in facts
    assert not (tmp_path / "table" / "quarantine").exists()


def test_the_step_is_registered(ingesting: Ingesting, tmp_path: Path) -> None:
    from distop.commit.steps.contract import default_registry
    from support.sources.ingesting import STEPS

    arg = ingesting.start(paths=source(tmp_path, 0), schema={"a": "int"}, on_bad_rows="quarantine")
    for record in ingesting.operation.commit_steps(arg):
        assert default_registry().kind(record.step) is STEPS[record.step]
