"""What a type of operation is written with: typed arguments, inputs, rows, and types that are functions."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from distop import (
    Cancelled,
    DistributedOperation,
    Effect,
    InvalidArgument,
    JobContext,
    OperationView,
    Plan,
    PlanRequest,
    Trial,
    operation,
)

NUMBERS = pa.schema([("n", pa.int64())])


@dataclass
class Range:
    to: int
    names: list[str] = field(default_factory=list)
    step: int = 1

    def __post_init__(self) -> None:
        if self.step < 1:
            raise ValueError("step is less than 1")


def named(request: PlanRequest[Range]) -> dict[str, Any]:
    return {name: {"to": request.argument.to} for name in request.argument.names}


@operation(named, argument=Range, effect=Effect.READS, resumable=True)
def counted(job: JobContext[Range]) -> dict[str, Any]:
    return {"numbers": list(range(0, job.input["to"], job.argument.step))}


def rows(request: PlanRequest[Range]) -> Plan:
    return Plan.rows(range(request.argument.to), NUMBERS)


@operation(rows, argument=Range, effect=Effect.APPENDS, type="numbers-of")
def numbers(job: JobContext[Range]) -> Iterator[pa.RecordBatch]:
    for _ in range(job.argument.step):
        yield pa.record_batch({"n": [job.input]}, schema=NUMBERS)


@pytest.mark.parametrize(
    ("argument", "wrong", "message"),
    [
        ({"too": 3}, "too", "did you mean to"),
        ({"to": "many"}, "to", "Expected `int`"),
        ({"to": 3, "names": [1]}, "names", "Expected `str`"),
        ({}, "to", "missing required field"),
        ({"to": 3, "step": 0}, "argument", "step is less than 1"),
    ],
)
def test_an_argument_is_checked_before_the_type_is_called(
    argument: dict[str, Any], wrong: str, message: str
) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        Trial(counted(), argument)
    assert refused.value.details["field"] == wrong


def test_each_job_gets_its_input_and_the_argument_with_its_defaults() -> None:
    trial = Trial(counted(), {"to": 2, "names": ["a", "b"]})
    assert trial.names == ["a", "b"]
    assert trial.run("b") == {"numbers": [0, 1]}
    assert trial.operation.argument["argument"] == {"to": 2, "names": ["a", "b"], "step": 1}
    assert (counted.type, counted.resumable) == ("counted", True)


def test_callers_select_jobs_by_name_and_no_others() -> None:
    argument = {"to": 2, "names": ["a", "b"]}
    assert Trial(counted(), argument, partitions=["b"]).names == ["b"]
    with pytest.raises(InvalidArgument, match="no job 'c'"):
        Trial(counted(), argument, partitions=["c"])
    with pytest.raises(InvalidArgument, match="no names"):
        Trial(numbers(), {"to": 1}, partitions=["0"])


def test_rows_that_a_job_yields_are_written_published_and_swept_without_a_word(tmp_path: Path) -> None:
    trial = Trial(numbers(), {"to": 2, "step": 3}, location=str(tmp_path))
    assert [result["rows"] for result in trial.run_all()] == [3, 3]
    assert ds.dataset(tmp_path / "data").to_table()["n"].to_pylist() == [0, 0, 0, 1, 1, 1]
    assert (trial.operation.stages_files, trial.operation.type) == (True, "numbers-of")
    assert [step.step for step in trial.steps()] == ["iceberg.append"]


def test_a_job_that_is_cancelled_between_two_batches_leaves_no_file(tmp_path: Path) -> None:
    trial = Trial(numbers(), {"to": 1, "step": 3}, location=str(tmp_path))
    with pytest.raises(Cancelled):
        trial.run(trial.job("0", cancel_after=2))
    assert not list(tmp_path.rglob("*.parquet"))


def test_files_that_nothing_would_sweep_are_refused(tmp_path: Path) -> None:
    @operation(lambda request: [1])
    def staging(job: JobContext) -> dict[str, Any]:
        return {"path": job.staging_path(".bin")}

    with pytest.raises(InvalidArgument, match="nothing would sweep") as refused:
        Trial(staging(), location=str(tmp_path)).run()
    assert refused.value.hint == "set stages_files = True in the operation type"


def test_a_job_is_described_by_its_input_where_that_is_text() -> None:
    @operation(lambda request: ["/logs/a.log", "/logs/b.log"])
    def read(job: JobContext) -> None: ...

    trial = Trial(read())
    assert trial.kind.describe_job(trial.operation, "1") == "1: /logs/b.log"


def test_mistakes_of_the_author_are_refused_when_the_type_is_made_or_planned(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="no attribute 'resumeable'"):
        operation(named, argument=Range, resumeable=True)

    class Own(DistributedOperation[Range]):
        type = "own"

        def plan(self, request: PlanRequest[Range]) -> Plan:
            return Plan(argument={"of": "its own"}, partition_count=1)

        def run_job(self, job: JobContext[Range]) -> None:
            assert job.argument.to

    with pytest.raises(TypeError, match="argument of its own"):
        Trial(Own(), {"to": 1}).run()
    untyped = operation(lambda request: Plan.rows([1], NUMBERS))(lambda job: None)
    with pytest.raises(InvalidArgument, match="no 'mode': declare a class"):
        Trial(untyped(), {"mode": "append"}, location=str(tmp_path))


class Reporting(DistributedOperation[Range]):
    """Reports what its argument says."""

    type = "reporting"

    def plan(self, request: PlanRequest[Range]) -> Plan:
        return Plan.of([])

    def run_job(self, job: JobContext[Range]) -> None: ...

    def facts(self, operation: OperationView[Range]) -> dict[str, Any]:
        return {"text": "x" * operation.argument.to}

    def links(self, operation: OperationView[Range]) -> dict[str, str]:
        return {f"page {url[:9]}": url for url in operation.argument.names}


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "//example.com",
        "http://",
        "https://user:secret@example.com",
        "https://example.com/\u202e",
        "https://example.com/\n",
        "https://example.com\\@evil.example",
        "https://example.com/" + "x" * 1000,
    ],
)
def test_only_a_short_link_to_a_web_page_is_recorded(url: str) -> None:
    assert Trial(Reporting(), {"to": 1, "names": ["https://example.com/a?b=%20"]}).facts()["links"]
    with pytest.raises(InvalidArgument, match="link of reporting"):
        Trial(Reporting(), {"to": 1, "names": [url]}).facts()


def test_facts_of_an_operation_are_bounded() -> None:
    assert len(Trial(Reporting(), {"to": 4000}).facts()["text"]) == 4000
    with pytest.raises(InvalidArgument, match="bytes of 4,096"):
        Trial(Reporting(), {"to": 5000}).facts()
