"""One job: what it leaves when it fails, is cancelled, or finds its files changed."""

import os
from pathlib import Path

import pytest

from distop.errors import BadRow, Cancelled, CorruptRecord, JobFailed
from distop.lake.cleanup.staged import remove_attempt
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES, OperationArg
from distop.metastore.records.record import encode
from support.sources.ingesting import Ingesting, LocalJob, staged_files


@pytest.fixture
def source(ingesting: Ingesting) -> Path:
    path = ingesting.folder / "a.csv"
    path.write_text("a,b\n" + "".join(f"{number},x\n" for number in range(1000)))
    return path


def test_a_job_reports_what_it_did(ingesting: Ingesting, source: Path) -> None:
    source.write_text(source.read_text() + "bad,x\n")
    arg = ingesting.start(
        paths=str(source), filter="a < 10", on_bad_rows="quarantine", schema={"a": "int", "b": "string"}
    )
    job = LocalJob(arg, "0", attempt="r7-t12-abcdef")
    record = ingesting.run_job(job)
    result = record.result
    assert (result["rowsRead"], result["rows"], result["badRows"], result["files"]) == (1000, 10, 1, 1)
    assert result["quarantine"] == f"quarantine/ingest-{arg.uuid}/0-r7-t12-abcdef.jsonl"
    assert len(encode(record)) < MAX_JOB_RECORD_BYTES


def test_a_result_fits_into_its_record_however_the_table_is_partitioned(tmp_path: Path) -> None:
    names = [f"column_{index}" for index in range(12)]
    ingesting = Ingesting(tmp_path, {"schema": [f"{name}: string" for name in names], "partitionBy": names})
    path = tmp_path / "a.csv"
    for width in range(0, 30, 3):
        line = ",".join("v" * width for _ in names)
        path.write_text(",".join(names) + f"\n{line}\nbad\n")
        arg = ingesting.start(paths=str(path), on_bad_rows="quarantine", reingest=True)
        record = ingesting.run_job(LocalJob(arg, "0", attempt="r1234567-t1234567-abcdef0123-12"))
        assert len(encode(record)) <= MAX_JOB_RECORD_BYTES
        ingesting.finish(arg, {"0": record})
    assert ingesting.read().num_rows == 10


@pytest.mark.parametrize("change", ["grown", "touched", "gone", "replaced"])
def test_a_file_that_changed_since_fails_the_job(ingesting: Ingesting, source: Path, change: str) -> None:
    arg = ingesting.start(paths=str(source))
    text = source.read_text()
    match change:
        case "grown":
            source.write_text(text + "1,y\n")
        case "touched":
            os.utime(source)
        case "gone":
            source.unlink()
        case "replaced":
            source.write_text(text.replace("x", "y"))
            os.utime(source, ns=(0, 0))
    with pytest.raises(JobFailed, match=r"source changed .*a\.csv") as caught:
        ingesting.run(arg)
    assert not caught.value.retryable
    assert staged_files(ingesting) == []


def test_a_file_that_changes_while_it_is_read_fails_the_job(ingesting: Ingesting, source: Path) -> None:
    arg = ingesting.start(paths=str(source))

    class Meddling(LocalJob):
        @property
        def cancelled(self) -> bool:
            os.utime(source)
            return False

    with pytest.raises(JobFailed, match="source changed"):
        ingesting.run_job(Meddling(arg, "0"))


def test_a_failed_job_leaves_no_file(ingesting: Ingesting, source: Path) -> None:
    """O12."""
    source.write_text(source.read_text() + "bad,x\n")
    arg = ingesting.start(paths=str(source), schema={"a": "int", "b": "string"})
    with pytest.raises(BadRow):
        ingesting.run(arg)
    assert staged_files(ingesting) == []


def test_a_cancelled_job_stops_between_blocks_and_leaves_no_file(ingesting: Ingesting, source: Path) -> None:
    paths = []
    for index in range(5):
        path = ingesting.folder / f"{index}.csv"
        path.write_text("a,b\nbad,x\n1,y\n")
        paths.append(str(path))
    arg = ingesting.start(paths=paths, schema={"a": "int", "b": "string"}, on_bad_rows="quarantine")
    job = LocalJob(arg, "0")
    # Each file is one block with one bad row, and both look.
    job.looks_left = 5
    with pytest.raises(Cancelled):
        ingesting.run_job(job)
    assert staged_files(ingesting) == []


def test_clean_up_removes_one_attempt_wherever_it_was_written(ingesting: Ingesting, source: Path) -> None:
    """The process that cleans up knows nothing but the attempt's name."""
    source.write_text(source.read_text() + "bad,x\n")
    arg = ingesting.start(
        paths=str(source), split_bytes=2048, schema={"a": "int", "b": "string"}, on_bad_rows="quarantine"
    )
    last = arg.partition_names()[-1]
    for attempt in ("a1", "a10", "b1"):
        ingesting.run_job(LocalJob(arg, last, attempt=attempt))
    ingesting.run_job(LocalJob(arg, "0", attempt="a1"))
    before = {path.name for path in staged_files(ingesting)}
    assert f"{last}-a1.jsonl" in before
    remove_attempt(LocalJob(arg, last, attempt="a1"))
    left = {path.name for path in staged_files(ingesting)}
    mine = {f"{last}-a1.jsonl", f"{last}-a1-0.parquet"}
    assert before - left == mine
    remove_attempt(LocalJob(arg, last, attempt="a1"))
    remove_attempt(LocalJob(arg, last, attempt="never-ran"))


def test_two_attempts_at_a_job_write_the_same_rows_to_other_files(ingesting: Ingesting, source: Path) -> None:
    """P1."""
    arg = ingesting.start(paths=str(source))
    first, second = (ingesting.run_job(LocalJob(arg, "0", attempt=attempt)) for attempt in ("a1", "a2"))
    assert first.result["rows"] == second.result["rows"]
    assert len(staged_files(ingesting)) == 2
    ingesting.finish(arg, {"0": second})
    assert ingesting.read().num_rows == 1000
    assert all("-a2-" in path for path in ingesting.table.data_files())


def test_an_argument_that_is_no_plan_is_named(ingesting: Ingesting) -> None:
    arg = OperationArg(table="flights", type="ingest", instance=3, uuid="u3", argument={"format": "csv"})
    with pytest.raises(CorruptRecord, match="flights/ingest/3 is not a plan"):
        ingesting.run_job(LocalJob(arg, "0"))
