"""What a finished ingest says of the rows that it could not read."""

from pathlib import Path
from typing import Any

import pytest

from distop.errors import TooManyBadRows
from support.refusals import refused
from support.sources.ingesting import Ingesting, quarantined, staged_files


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
    files = list((root / facts["quarantine"]).glob("*.jsonl"))
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
    from distop.commit.contract import default_registry
    from support.sources.ingesting import STEPS

    arg = ingesting.start(paths=source(tmp_path, 0), schema={"a": "int"}, on_bad_rows="quarantine")
    for record in ingesting.operation.commit_steps(arg):
        assert default_registry().kind(record.step) is STEPS[record.step]


def test_an_ingest_all_of_whose_rows_are_bad_fails(ingesting: Ingesting, tmp_path: Path) -> None:
    """U3: it moved the watermark, and called itself a success. The first row says what is wrong."""
    paths = ingesting.write("".join(f'{{"a": {row}}} é " \n' for row in range(50)), "a.jsonl")
    given = {"paths": paths, "schema": {"a": "int"}, "on_bad_rows": "quarantine"}
    arg = ingesting.start(**given)
    jobs = ingesting.run(arg)
    with pytest.raises(TooManyBadRows, match=r"50 of 50 .* all .*a\.jsonl, line 1: not a"):
        ingesting.finish(arg, jobs)
    assert ingesting.watermarks == {}
    assert ingesting.facts(**given, max_bad_share=1)["badRows"] == 50


@pytest.mark.parametrize(
    ("limits", "bad", "allowed"),
    [
        ({"max_bad_rows": 13}, 13, True),
        ({"max_bad_rows": 12}, 13, False),
        ({"max_bad_rows": 0}, 0, True),
        ({"max_bad_share": 13 / 2000}, 13, True),
        ({"max_bad_share": 0.0064}, 13, False),
        ({"max_bad_share": 0.5, "max_bad_rows": 12}, 13, False),
        ({}, 13, True),
    ],
)
def test_bad_rows_may_be_limited(
    ingesting: Ingesting, tmp_path: Path, limits: dict[str, float], bad: int, allowed: bool
) -> None:
    """Of all jobs together; no row of a refused ingest is published."""
    given = {"schema": {"a": "int"}, "on_bad_rows": "quarantine", "split_bytes": 1024}
    arg = ingesting.start(paths=source(tmp_path, bad), **given, **limits)
    jobs = ingesting.run(arg)
    if allowed:
        assert ingesting.finish(arg, jobs)["badRows"] == bad
        return
    with pytest.raises(TooManyBadRows, match=f"{bad} of 2,000 .*column 'a'") as caught:
        ingesting.finish(arg, jobs)
    assert caught.value.facts == {"badRows": bad}
    assert not ingesting.table.head.exists


def test_a_job_stops_once_it_alone_has_too_many_bad_rows(ingesting: Ingesting, tmp_path: Path) -> None:
    arg = ingesting.start(
        paths=source(tmp_path, 100), schema={"a": "int"}, on_bad_rows="quarantine", max_bad_rows=7
    )
    with pytest.raises(TooManyBadRows, match=r"more than 7 .*0\.csv, line 9: column 'a'"):
        ingesting.run(arg)
    assert staged_files(ingesting) == []


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("max_bad_rows", {"max_bad_rows": 1}),
        ("max_bad_share", {"max_bad_share": 0.5, "on_bad_rows": "fail"}),
        ("max_bad_rows", {"max_bad_rows": -1, "on_bad_rows": "quarantine"}),
        ("max_bad_share", {"max_bad_share": 1.1, "on_bad_rows": "quarantine"}),
    ],
)
def test_limits_that_mean_nothing_are_refused(
    ingesting: Ingesting, field: str, given: dict[str, Any]
) -> None:
    with refused(field):
        ingesting.start(paths=ingesting.write("a\n1\n"), **given)
