"""Types that send the partitions of a table somewhere else, tried on small tables."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from distop import Cancelled, Export, InvalidArgument, JobContext, PlanRequest, PreconditionFailed, Trial
from distop.operations import Effect
from support.repository import ROOT

ROWS = pa.table({"id": [1, 2, 3], "kind": ["a", "b", "a"]})
BY_KIND = {"partitionBy": ["kind"]}


@dataclass
class Wanted:
    snapshot: int | None = None
    greeting: str = "hello"


class Collected(Export[Wanted]):
    """Keeps what it was given."""

    type = "collected"

    def __init__(self) -> None:
        self.sent: dict[str, pa.Table] = {}

    def snapshot_id(self, request: PlanRequest[Wanted]) -> int | None:
        return request.argument.snapshot

    def export(self, job: JobContext[Wanted], batches: pa.RecordBatchReader) -> dict[str, Any]:
        assert job.argument.greeting == "hello"
        self.sent[job.partition] = batches.read_all()
        return {"attempt": job.attempt}


def test_each_partition_is_sent_with_the_columns_of_the_table(tmp_path: Path) -> None:
    kind = Collected()
    trial = Trial(kind, table=ROWS, location=str(tmp_path), table_options=BY_KIND)
    assert [result["rows"] for result in trial.run_all()] == [2, 1]
    assert trial.jobs["kind=a"].result["attempt"] == trial.jobs["kind=a"].attempt
    assert kind.sent["kind=a"].to_pylist() == [{"id": 1, "kind": "a"}, {"id": 3, "kind": "a"}]
    assert kind.sent["kind=b"].schema.names == ["id", "kind"]
    assert trial.operation.effect is Effect.READS, "the table may be written meanwhile"
    assert not trial.operation.stages_files, "it has no method cleanup, so nothing has to be swept"


def test_a_table_without_partitions_is_one_and_a_table_without_rows_is_none(tmp_path: Path) -> None:
    assert Trial(Collected(), table=ROWS, location=str(tmp_path / "one")).names == ["all"]
    assert Trial(Collected(), table=ROWS.slice(0, 0), location=str(tmp_path / "none")).names == []
    with pytest.raises(InvalidArgument, match="no partition 'nosuch'") as refused:
        Trial(Collected(), table=ROWS.slice(0, 0), location=str(tmp_path / "no"), partitions=["nosuch"])
    assert refused.value.details == {"field": "partitions"}


def test_callers_choose_the_snapshot_and_some_of_its_partitions(tmp_path: Path) -> None:
    Trial(Collected(), table=ROWS, location=str(tmp_path), table_options=BY_KIND)
    (metadata,) = tmp_path.glob("metadata/*.metadata.json")
    table = StaticTable.from_metadata(str(metadata))
    (snapshot,) = table.snapshots()
    given = {"snapshot": snapshot.snapshot_id}
    assert Trial(Collected(), given, table=table, partitions=["kind=b"]).names == ["kind=b"]
    with pytest.raises(InvalidArgument, match="no partition 'kind=c'") as refused:
        Trial(Collected(), table=table, partitions=["kind=c"])
    assert refused.value.details == {"field": "partitions"}
    with pytest.raises(PreconditionFailed, match="snapshot 1 "):
        Trial(Collected(), {"snapshot": 1}, table=table)


def test_tables_without_snapshots_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PreconditionFailed, match="nothing has been published"):
        Trial(Collected(), location=str(tmp_path))
    with pytest.raises(PreconditionFailed, match="format files"):
        Trial(Collected(), location=str(tmp_path), format="files")
    with pytest.raises(InvalidArgument, match="name a folder"):
        Trial(Collected(), table=ROWS)


def test_an_export_stops_when_it_is_cancelled(tmp_path: Path) -> None:
    trial = Trial(Collected(), table=ROWS, location=str(tmp_path))
    with pytest.raises(Cancelled):
        trial.run(trial.job("all", cancel_after=0))


def test_an_argument_without_a_class_takes_no_name_that_the_plan_needs(tmp_path: Path) -> None:
    class Untyped(Export):
        type = "untyped"

        def export(self, job: JobContext, batches: pa.RecordBatchReader) -> dict[str, Any]:
            return {"to": job.argument["to"], "rows": batches.read_all().num_rows * 10}

    assert Trial(Untyped(), {"to": "x"}, table=ROWS, location=str(tmp_path / "t")).run("all") == {
        "to": "x",
        "rows": 30,
    }
    with pytest.raises(InvalidArgument, match="no 'snapshot': declare a class") as refused:
        Trial(Untyped(), {"snapshot": "1"}, table=ROWS, location=str(tmp_path / "u"))
    assert refused.value.details == {"field": "snapshot"}


def test_the_example_leaves_the_file_of_the_attempt_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    kind = importlib.import_module("exports").CsvExport()
    folder = tmp_path / "exported [1]*"
    folder.mkdir()
    trial = Trial(kind, {"to": str(folder)}, table=ROWS, location=str(tmp_path), table_options=BY_KIND)
    for _ in range(2):  # the second attempts count
        trial.run_all()
    with pytest.raises(Cancelled):
        trial.run(trial.job("kind=a", cancel_after=0))
    assert len(list(folder.iterdir())) == 4
    trial.sweep()
    texts = [(folder / Path(record.result["file"]).name).read_text() for record in trial.jobs.values()]
    assert texts == ['"id","kind"\n1,"a"\n3,"a"\n', '"id","kind"\n2,"b"\n']
    assert len(list(folder.iterdir())) == 2
    trial.sweep(failed=True)
    assert not list(folder.iterdir())
