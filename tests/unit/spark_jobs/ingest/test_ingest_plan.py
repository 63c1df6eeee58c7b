"""What is fixed when an ingest starts."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.errors import AlreadyIngested, ArgumentTooLarge, InvalidArgument
from distop.metastore.records.operation import StepRecord, WatermarkMove
from distop.operations import Registry
from distop.spark_jobs.ingest import plan as ingest_plan
from distop.spark_jobs.ingest.operation import Ingest
from distop.spark_jobs.ingest.plan import IngestPlan
from support.refusals import refused
from support.sources.ingesting import Ingesting
from support.tables.plain_tables import PlainTable
from support.tables.publishing import rows as rows_of


def write(ingesting: Ingesting, name: str, text: str = "a\n1\n") -> str:
    path = ingesting.folder / "source" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(0, 1_356_998_400_000_005_000))
    return str(path)


def test_the_type_is_found_under_its_name() -> None:
    operation = Registry(["distop.spark_jobs.ingest.operation:Ingest"]).get("ingest")
    assert isinstance(operation, Ingest)
    assert operation.stages_files
    assert not operation.exclusive
    assert not operation.resumable


def test_a_folder_becomes_a_frozen_plan(ingesting: Ingesting) -> None:
    write(ingesting, "2013-01/a.csv", "a\n" + "12345\n" * 1000)
    write(ingesting, "2013-02/b.csv")
    source = f"{ingesting.folder}/source"
    request = ingesting.request(paths=f"{source}/2013-*", split_bytes=2048)
    plan = ingesting.operation.plan(request)
    assert plan == ingesting.operation.plan(request)
    assert plan.partition_count == 4
    assert plan.partitions is None
    assert plan.argument["folder"] == f"file://{source}"
    assert plan.argument["files"] == [
        ["2013-01/a.csv", 6002, 1_356_998_400_000_005, None],
        ["2013-02/b.csv", 4, 1_356_998_400_000_005, None],
    ]
    assert plan.argument["cuts"] == [0, 2000, 4001, 6002, 6006]
    moved = WatermarkMove(after="2013-01-01T00:00:00.000005Z", neighbours="nothing")
    assert plan.watermarks == {f"file://{source}": {"2013-01": moved, "2013-02": moved}}


def test_appending_and_overwriting_are_steps_of_the_commit(ingesting: Ingesting) -> None:
    path = write(ingesting, "a.csv")
    arg = ingesting.start(paths=path)
    assert ingesting.operation.commit_steps(arg) == [StepRecord(step="iceberg.append")]
    new = ingesting.start(paths=path, mode="overwrite")
    expected = {"expectedSnapshotId": None}
    assert ingesting.operation.commit_steps(new) == [StepRecord(step="iceberg.overwrite", argument=expected)]


@pytest.mark.parametrize(
    ("options", "layout"),
    [
        ({}, 1),
        ({"delimiter": ";", "on_bad_rows": "quarantine"}, 1),
        ({"escape": "\\"}, 3),
        ({"encoding": "latin-1"}, 3),
        ({"on_bad_rows": "quarantine", "max_bad_rows": 0}, 3),
        ({"schema": {"a": "timestamp"}, "epoch_units": {"a": "s"}}, 3),
        ({"partition_columns_from_path": True, "schema": {"a": "int", "day": "date"}}, 3),
    ],
)
def test_versions_that_would_ignore_an_option_refuse_the_operation(
    ingesting: Ingesting, options: dict[str, Any], layout: int
) -> None:
    """D3: while members are replaced."""
    path = write(ingesting, "day=2024-02-29/a.csv")
    assert ingesting.operation.plan(ingesting.request(paths=path, **options)).layout == layout


def test_a_source_that_was_ingested_is_refused_unless_reingest_is_given(ingesting: Ingesting) -> None:
    """P16."""
    path = write(ingesting, "a.csv")
    ingesting.ingest(paths=path)
    source = f"file://{ingesting.folder}/source"
    assert ingesting.watermarks == {source: {"a.csv": "2013-01-01T00:00:00.000005Z"}}
    with refused("paths", error=AlreadyIngested, partition="a.csv"):
        ingesting.start(paths=path)
    ingesting.ingest(paths=path, reingest=True)
    assert ingesting.rows("a") == [1, 1]
    ingesting.ingest(paths=path, watermark={"a.csv": "2014-01-01"})
    assert ingesting.watermarks == {source: {"a.csv": "2014-01-01"}}
    named = ingesting.start(paths=path, source="orders", reingest=True)
    assert list(named.watermarks) == ["orders"]


def test_partitions_are_not_for_the_caller_to_choose(ingesting: Ingesting) -> None:
    request = ingesting.request(paths=write(ingesting, "a.csv"))
    with refused("partitions"):
        ingesting.operation.plan(replace(request, partitions=["0"]))


def test_the_format_is_told_by_the_names(ingesting: Ingesting) -> None:
    write(ingesting, "m/a.csv")
    write(ingesting, "m/b.json", '{"a": 1}\n')
    folder = f"{ingesting.folder}/source/m"
    with refused("format", r"several formats: m/a\.csv \(csv\) and m/b\.json \(jsonl\)"):
        ingesting.start(paths=folder)
    with refused("format", r"notes\.txt"):
        ingesting.start(paths=write(ingesting, "notes.txt"))
    with refused("format", r"a\.parquet\.gz"):
        ingesting.start(paths=write(ingesting, "a.parquet.gz"))
    with pytest.raises(InvalidArgument, match="--delimiter is for csv"):
        ingesting.start(paths=f"{folder}/b.json", delimiter=";")
    ingesting.ingest(paths=write(ingesting, "notes.txt"), format="csv")
    assert ingesting.rows("a") == [1]


def test_a_plan_too_large_for_etcd_is_refused(ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest_plan, "MAX_PLAN_BYTES", 3000)
    for index in range(100):
        write(ingesting, f"m/{index}.csv")
    with pytest.raises(ArgumentTooLarge, match="100 files in 1 splits") as caught:
        ingesting.start(paths=f"{ingesting.folder}/source/m")
    assert "fewer paths" in caught.value.hint


def test_too_many_splits_are_refused_before_they_are_made(ingesting: Ingesting) -> None:
    path = write(ingesting, "a.csv")
    with Path(path).open("r+b") as file:
        file.truncate(1 << 40)
    with refused("split_bytes", "1073741824 splits of 1024 bytes", error=ArgumentTooLarge):
        ingesting.start(paths=path, split_bytes=1024)


def test_ten_thousand_files_fit_into_one_plan(ingesting: Ingesting) -> None:
    """O5."""
    folder = ingesting.folder / "source" / "m"
    folder.mkdir(parents=True)
    for index in range(10_000):
        (folder / f"part-{index:05}-0123456789abcdef.csv").write_bytes(b"a\n1\n")
    arg = ingesting.start(paths=str(folder), split_bytes=1024)
    assert arg.partition_count == 40
    plan = IngestPlan.of(arg)
    assert sum(len(plan.pieces(name)) for name in arg.partition_names()) == 10_000


def test_a_table_is_partitioned_as_it_was_created(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"partitionBy": ["day(t)"], "properties": {"owner": "ada"}})
    ingesting.ingest(paths=write(ingesting, "a.csv", "t\n2013-01-01 05:00:00\n2013-01-02 05:00:00\n"))
    iceberg = ingesting.table.iceberg()
    assert [str(field.transform) for field in iceberg.spec().fields] == ["day"]
    assert iceberg.properties["owner"] == "ada"
    assert len(ingesting.table.data_files()) == 2


def loaded_by(code: str) -> set[str]:
    """Which of the heavy packages a fresh process has loaded after ``code``."""
    report = "import sys; print(*{'pyspark', 'pyarrow', 'pyiceberg'}.intersection(sys.modules))"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_loading_the_type_costs_a_coordinator_nothing() -> None:
    assert loaded_by("import distop.spark_jobs.ingest.operation") == set()


def test_planning_never_loads_spark(ingesting: Ingesting) -> None:
    path = write(ingesting, "a.csv")
    code = f"""
from distop.metastore.records.table import TableRecord
from distop.operations.api import PlanRequest
from distop.spark_jobs.ingest.operation import Ingest

table = TableRecord(name="t", location="file:///t")
Ingest().plan(PlanRequest(table=table, head=None, watermarks={{}}, argument={{"paths": {path!r}}}))
"""
    assert loaded_by(code) == {"pyarrow", "pyiceberg"}


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({"paths": "/a"}, {"paths": ["/b", "/c"]}, {"paths": ["/a", "/b", "/c"]}),
        (
            {"paths": ["/a"], "format": "csv"},
            {"paths": ["/b"], "format": "csv"},
            {"paths": ["/a", "/b"], "format": "csv"},
        ),
        ({"paths": ["/a"], "format": "csv"}, {"paths": ["/b"], "format": "jsonl"}, None),
        ({"paths": ["/a"], "mode": "overwrite"}, {"paths": ["/b"], "mode": "overwrite"}, None),
        ({"paths": ["/a"] * 1000}, {"paths": ["/b"]}, None),
    ],
)
def test_batches_that_differ_in_their_paths_only_go_together(first, second, both) -> None:
    """B14: in this order; what replaces rows does not."""
    assert Ingest().combine(first, second) == both


# -- columns that only paths have --------------------------------------------------------------------


def by_day(ingesting: Ingesting, name: str = "a", text: str = "id\n1\n", *more: str) -> str:
    """Files of two days, and one of none; their folder."""
    for place, day in enumerate(("2024-01-01", "2024-01-02", "__HIVE_DEFAULT_PARTITION__", *more)):
        ingesting.write(text.replace("1", str(place)), f"{name}/day={day}/kind=a%2Fb/x.csv")
    return f"{ingesting.folder}/source/{name}"


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "avro"])
def test_columns_that_only_folders_name_are_read_from_there(ingesting: Ingesting, ending: str) -> None:
    for place, day in enumerate(("2024-01-01", "2024-01-02", "__HIVE_DEFAULT_PARTITION__")):
        rows = pa.table({"id": [place]})
        sink = pa.BufferOutputStream()
        pq.write_table(rows, sink)
        records = io.BytesIO()
        fields = [{"name": "id", "type": "long"}]
        fastavro.writer(records, {"type": "record", "name": "r", "fields": fields}, [{"id": place}])
        text = {
            "csv": f"id\n{place}\n",
            "jsonl": f'{{"id": {place}}}\n',
            "parquet": sink.getvalue().to_pybytes(),
            "avro": records.getvalue(),
        }
        ingesting.write(text[ending], f"a/day={day}/kind=a%2Fb/x.{ending}")
    path, days = f"{ingesting.folder}/source/a", [date(2024, 1, 1), date(2024, 1, 2), None]
    expected = [(place, day, "a/b") for place, day in enumerate(days)]
    ingesting.ingest(paths=path, partition_columns_from_path=True)
    assert ingesting.rows("id", "day", "kind") == expected
    # Into a table that has them, one folder by its name, and a filter on them.
    again = {"paths": f"{path}/day=2024-01-02", "partition_columns_from_path": True, "reingest": True}
    ingesting.ingest(**again, filter="day = '2024-01-02' and kind = 'a/b'", mode="overwrite")
    assert ingesting.rows("id", "day", "kind") == expected[1:2]
    ingesting.ingest(**again, columns=["id", "kind"], mode="overwrite")
    assert ingesting.rows("id", "day", "kind") == [(1, None, "a/b")]


def test_columns_that_only_folders_name_have_the_type_of_the_table(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["id: long", "day: string", "kind: string"]})
    ingesting.ingest(paths=by_day(ingesting), partition_columns_from_path=True)
    pq.write_table(pa.table({"id": [5]}), ingesting.write("", "b/day=2024-01-03/kind=x/x.parquet"))
    ingesting.ingest(paths=f"{ingesting.folder}/source/b", partition_columns_from_path=True)
    assert ingesting.rows("id", "day") == [(0, "2024-01-01"), (1, "2024-01-02"), (2, None), (5, "2024-01-03")]


def test_a_column_of_the_table_that_only_folders_name_is_not_lost(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["id: long", "day: date"]})
    path = by_day(ingesting)
    with refused(
        "partition_columns_from_path", "name 'day', a column of the table that the files do not have"
    ):
        ingesting.start(paths=path)
    with refused("paths", "'kind'"):
        ingesting.start(paths=path, partition_columns_from_path=True)
    ingesting.ingest(paths=path, partition_columns_from_path=True, on_new_columns="ignore")
    assert ingesting.rows("id", "day") == [(0, date(2024, 1, 1)), (1, date(2024, 1, 2)), (2, None)]
    ingesting.ingest(paths=path, columns=["id"], reingest=True, mode="overwrite")
    assert ingesting.rows("day") == [None] * 3
    ingesting.ingest(paths=by_day(ingesting, "own", "id,day\n1,2024-05-05\n"))


def test_folders_that_do_not_fit_are_refused_by_name(ingesting: Ingesting) -> None:
    option = {"partition_columns_from_path": True}
    mixed = by_day(ingesting)
    ingesting.write("id\n1\n", "a/y.csv")
    with refused("paths", "name a column 'day', and those of a/y.csv do not"):
        ingesting.start(paths=mixed, **option)
    path = by_day(ingesting, "b", "id\n1\n", "x")
    with refused("partition_columns_from_path", "in the names of folders does not fit: column 'day'.* 'x'"):
        ingesting.start(paths=path, schema={"id": "long", "day": "date", "kind": "string"}, **option)
    hexadecimal = ingesting.write("id\n1\n", "c/hour=0x1F/x.csv")
    with refused("partition_columns_from_path", "column 'hour': invalid value '0x1F' for int32"):
        ingesting.start(paths=hexadecimal, schema={"id": "long", "hour": "int"}, **option)
    with refused("partition_columns_from_path", "cannot be a"):
        ingesting.start(paths=path, schema={"id": "long", "day": "binary", "kind": "string"}, **option)
    with refused("columns", "only folders"):
        ingesting.start(paths=path, columns=["day"], **option)


def test_a_new_table_without_the_columns_of_folders_is_warned_of(ingesting: Ingesting) -> None:
    plan = IngestPlan.of(ingesting.start(paths=by_day(ingesting)))
    assert any("the folders name day, kind: --partition-columns-from-path" in text for text in plan.warnings)


def test_folders_that_name_a_column_twice_are_refused_only_if_it_is_taken_from_there(
    ingesting: Ingesting,
) -> None:
    path = ingesting.write("id\n1\n", "year=2023/backup/year=2024/a.csv")
    with refused("paths", "two values for 'year'"):
        ingesting.start(paths=path, partition_columns_from_path=True)
    ingesting.ingest(paths=path)
    assert ingesting.rows("id") == [1]


def test_a_table_of_plain_files_is_ingested_with_the_columns_of_its_folders(tmp_path: Path) -> None:
    tree = PlainTable(f"file://{tmp_path}/tree", {})
    tree.publish(rows_of(0, 6))
    ingesting = Ingesting(tmp_path, {"schema": ["id: long", "kind: string"]})
    with refused("partition_columns_from_path", "'kind'"):
        ingesting.start(paths=f"{tmp_path}/tree")
    ingesting.ingest(paths=f"{tmp_path}/tree", partition_columns_from_path=True)
    assert ingesting.rows("id", "kind") == [(number, f"k{number % 3}") for number in range(6)]
