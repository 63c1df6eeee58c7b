"""Tables that change with what is ingested: new columns and wider types."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DecimalType, DoubleType, LongType

from distop.errors import BadRow, InvalidArgument, JobFailed, SchemaConflict
from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.metastore.records.table import Head, TableRecord
from distop.operations.api import PlanRequest
from distop.sources.formats.inference import CsvSample
from distop.spark_jobs.ingest.operation import DataFrameIngest, Ingest
from support.refusals import refused
from support.sources.ingesting import Ingesting, quarantined


def csv(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def parquet(folder: Path, file: str, /, **columns: Any) -> str:
    path = folder / file
    pq.write_table(pa.table(columns), path)
    return str(path)


def avro(folder: Path, name: str, fields: dict[str, Any], *rows: tuple[Any, ...]) -> str:
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": f, "type": kind} for f, kind in fields.items()],
    }
    path = folder / name
    with path.open("wb") as stream:
        fastavro.writer(stream, schema, [dict(zip(fields, row, strict=True)) for row in rows])
    return str(path)


@pytest.fixture
def ingesting(tmp_path: Path) -> Ingesting:
    made = Ingesting(tmp_path, {"schema": ["id: int not null", "name: string"]})
    made.ingest(paths=csv(tmp_path, "0.csv", "id,name\n1,a\n"))
    return made


def test_a_new_column_is_refused_unless_somebody_wants_it(ingesting: Ingesting, tmp_path: Path) -> None:
    """U3: by name, and with what to do."""
    path = csv(tmp_path, "1.csv", "id,name,fare\n2,b,1.5\n")
    with pytest.raises(InvalidArgument, match="no column 'fare'") as caught:
        ingesting.start(paths=path)
    assert "--on-new-columns" in caught.value.hint


def test_a_new_column_is_left_out(ingesting: Ingesting, tmp_path: Path) -> None:
    ingesting.ingest(paths=csv(tmp_path, "1.csv", "id,fare,name\n2,1.5,b\n"), on_new_columns="ignore")
    assert ingesting.read().column_names == ["id", "name"]
    assert ingesting.rows("id", "name") == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("given", [{}, {"on_new_columns": "ignore"}, {"on_new_columns": "add"}])
def test_a_schema_of_some_columns_keeps_the_others_of_the_table(
    ingesting: Ingesting, tmp_path: Path, given: dict[str, str]
) -> None:
    """They are no new columns, and were NULL with ``ignore``."""
    path = csv(tmp_path, "1.csv", "id,name\n2,b\n")
    ingesting.ingest(paths=path, schema={"id": "int"}, **given)
    assert ingesting.rows("id", "name") == [(1, "a"), (2, "b")]


def test_columns_that_neither_schema_nor_table_have_are_new(ingesting: Ingesting, tmp_path: Path) -> None:
    path = csv(tmp_path, "1.csv", "id,name,fare\n2,b,1.5\n")
    with refused("schema", "'fare'"):
        ingesting.start(paths=path, schema={"id": "int"})
    ingesting.ingest(paths=path, schema={"id": "int"}, on_new_columns="ignore")
    assert ingesting.read().column_names == ["id", "name"]
    assert ingesting.rows("id", "name") == [(1, "a"), (2, "b")]


def test_a_new_column_comes_with_the_rows(ingesting: Ingesting, tmp_path: Path) -> None:
    """P1: readers see the column from the commit on that brings its rows, older rows have NULL."""
    arg = ingesting.start(paths=csv(tmp_path, "1.csv", "id,name,fare\n2,b,1.5\n"), on_new_columns="add")
    jobs = ingesting.run(arg)
    assert ingesting.read().column_names == ["id", "name"]
    ingesting.finish(arg, jobs)
    assert ingesting.rows("id", "name", "fare") == [(1, "a", None), (2, "b", 1.5)]
    assert ingesting.table.iceberg().schema().find_field("fare").field_type == DoubleType()
    # An older file comes late: it lacks the column.
    ingesting.ingest(paths=csv(tmp_path, "2.csv", "id,name\n3,c\n"), on_new_columns="add")
    assert ingesting.rows("id", "fare") == [(1, None), (2, 1.5), (3, None)]
    assert len(ingesting.table.iceberg().metadata.schemas) == 2


def test_files_of_one_operation_may_differ(ingesting: Ingesting, tmp_path: Path) -> None:
    paths = [csv(tmp_path, "1.csv", "id,name\n2,b\n"), csv(tmp_path, "2.csv", "fare,id,name\n1.5,3,c\n")]
    with pytest.raises(JobFailed, match="--on-new-columns"):
        ingesting.run(ingesting.start(paths=paths))
    ingesting.ingest(paths=paths, on_new_columns="add")
    assert ingesting.rows("id", "fare") == [(1, None), (2, None), (3, 1.5)]


def test_parquet_files_of_one_operation_may_differ(ingesting: Ingesting, tmp_path: Path) -> None:
    first = parquet(tmp_path, "1.parquet", id=pa.array([2], pa.int32()), name=["b"])
    second = parquet(tmp_path, "2.parquet", id=pa.array([3], pa.int32()), at=[{"x": 1}], n=[2**40])
    ingesting.ingest(paths=[first, second], on_new_columns="add")
    assert ingesting.rows("id", "name", "n") == [(1, "a", None), (2, "b", None), (3, None, 2**40)]
    assert ingesting.read()["at"].to_pylist().count({"x": 1}) == 1


def test_two_operations_add_columns_at_the_same_time(ingesting: Ingesting, tmp_path: Path) -> None:
    """P6: each is put on what the other has made of the table; a column that both add is one column."""
    one = ingesting.start(paths=csv(tmp_path, "1.csv", "id,x,y\n2,1,2\n"), on_new_columns="add")
    two = ingesting.start(paths=csv(tmp_path, "2.csv", "id,z,x\n3,5,6\n"), on_new_columns="add")
    jobs = [ingesting.run(one), ingesting.run(two)]
    ingesting.finish(one, jobs[0])
    ingesting.finish(two, jobs[1])
    assert ingesting.read().column_names == ["id", "name", "x", "y", "z"]
    assert ingesting.rows("id", "x", "y", "z") == [(1, None, None, None), (2, 1, 2, None), (3, 6, None, 5)]


def test_a_column_that_others_have_made_another_is_refused(ingesting: Ingesting, tmp_path: Path) -> None:
    """P6: nothing of the operation is visible, and it may be started again."""
    arg = ingesting.start(paths=csv(tmp_path, "1.csv", "id,x\n2,1\n"), on_new_columns="add")
    jobs = ingesting.run(arg)
    ingesting.ingest(paths=csv(tmp_path, "2.csv", "id,x\n3,t\n"), on_new_columns="add")
    with refused(error=SchemaConflict, column="x") as caught:
        ingesting.finish(arg, jobs)
    assert caught.value.retryable
    assert ingesting.rows("id") == [1, 3]


def test_a_file_without_rows_brings_its_columns(ingesting: Ingesting, tmp_path: Path) -> None:
    ingesting.ingest(paths=csv(tmp_path, "1.csv", "id,name,fare\n"), on_new_columns="add")
    assert ingesting.read().column_names == ["id", "name", "fare"]


def test_names_that_differ_in_case_only_are_no_two_columns(ingesting: Ingesting, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="case"):
        ingesting.start(paths=csv(tmp_path, "1.csv", "id,NAME\n2,b\n"), on_new_columns="add")


# -- nested columns ----------------------------------------------------------------------------------

A, B = pa.struct([("a", pa.int64())]), pa.struct([("b", pa.string()), ("a", pa.int32())])
SHAPES: dict[str, tuple[Callable[[pa.DataType], pa.DataType], Callable[[Any], Any], str]] = {
    "struct": (lambda kind: kind, lambda value: value, "c.b"),
    "list": (pa.list_, lambda value: [value], "c.element.b"),
    "map": (lambda kind: pa.map_(pa.string(), kind), lambda value: [("k", value)], "c.value.b"),
}
"""How a struct is held by the column ``c``, and the path of its field ``b``."""


@pytest.mark.parametrize("shape", SHAPES)
def test_nested_fields_go_by_name(tmp_path: Path, shape: str) -> None:
    kind, wrap, path = SHAPES[shape]
    ingesting = Ingesting(tmp_path)
    old = parquet(tmp_path, "1.parquet", id=[1], c=pa.array([wrap({"a": 1})], kind(A)))
    new = parquet(tmp_path, "2.parquet", id=[2], c=pa.array([wrap({"b": "x", "a": 2})], kind(B)))
    ingesting.ingest(paths=old)
    with refused("paths", f"{path!r}"):
        ingesting.start(paths=new)
    facts = ingesting.facts(paths=new, on_new_columns="ignore", reingest=True)
    assert facts["ignoredColumns"] == [path]
    assert ingesting.rows("id", "c") == [(1, wrap({"a": 1})), (2, wrap({"a": 2}))]
    ingesting.ingest(paths=new, on_new_columns="add", reingest=True)
    ingesting.ingest(paths=old, reingest=True)
    grown = [wrap({"a": number, "b": text}) for number, text in ((1, None), (1, None), (2, None), (2, "x"))]
    assert sorted(ingesting.read()["c"].to_pylist(), key=repr) == sorted(grown, key=repr)
    assert len(ingesting.table.iceberg().metadata.schemas) == 2


def test_files_of_one_operation_may_differ_in_nested_fields(tmp_path: Path) -> None:
    """Of a column that they bring, and of one that the table has."""
    paths = [
        parquet(tmp_path, "1.parquet", c=pa.array([{"a": 1}], A)),
        parquet(tmp_path, "2.parquet", c=pa.array([{"b": "x", "a": 2}], B)),
    ]
    for folder, first in (("new", []), ("known", [paths[0]])):
        ingesting = Ingesting(tmp_path / folder)
        if first:
            ingesting.ingest(paths=first, reingest=True)
        ingesting.ingest(paths=paths, on_new_columns="add", reingest=True)
        read = sorted(ingesting.read()["c"].to_pylist(), key=repr)
        assert read == [{"a": 1, "b": None}] * (1 + len(first)) + [{"a": 2, "b": "x"}]
    many = [parquet(tmp_path, f"m{number:02}.parquet", c=pa.array([{"a": 1}], A)) for number in range(40)]
    arg = ingesting.start(paths=many, on_new_columns="add", reingest=True)
    parquet(tmp_path, "m17.parquet", c=pa.array([{"z": 1, "a": 2}]))
    arg = ingesting.start(paths=many, on_new_columns="add", reingest=True)
    with pytest.raises(JobFailed, match=r"m17\.parquet .*'c\.z'"):
        ingesting.run(arg)


def test_new_keys_of_nested_objects_follow_the_same_option(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path)
    ingesting.ingest(paths=ingesting.write('{"c": {"a": 1}, "d": [{"x": 1}]}', "1.jsonl"))
    new = ingesting.write('{"c": {"a": 2, "b": 2.5}, "d": [{"x": 2}, {"y": "t", "x": 3}]}', "2.jsonl")
    with refused("paths", "'c.b'"):
        ingesting.start(paths=new)
    facts = ingesting.facts(paths=new, on_new_columns="ignore", reingest=True)
    assert facts["ignoredColumns"] == ["c.b", "d.element.y"]
    ingesting.ingest(paths=new, on_new_columns="add", reingest=True)
    assert sorted(ingesting.read().to_pylist(), key=repr) == [
        {"c": {"a": 1, "b": None}, "d": [{"x": 1, "y": None}]},
        {"c": {"a": 2, "b": 2.5}, "d": [{"x": 2, "y": None}, {"x": 3, "y": "t"}]},
        {"c": {"a": 2, "b": None}, "d": [{"x": 2, "y": None}, {"x": 3, "y": None}]},
    ]
    # An object without a field, and lists without elements, say nothing about types.
    ingesting.ingest(paths=ingesting.write('{"c": {}, "d": []}\n{"c": null}', "3.jsonl"))
    # What the sample did not show is a bad row, by name.
    late = ['{"c": {"a": 1}, "d": [{"x": 1}]}'] * 80_000 + ['{"d": [null, {"x": 1, "z": 1}]}']
    arg = ingesting.start(paths=ingesting.write("\n".join(late), "4.jsonl"))
    with refused(error=BadRow, match=r"column 'd\.element\.z'", line=80001):
        ingesting.run(arg)


def test_two_operations_add_nested_fields_at_the_same_time(tmp_path: Path) -> None:
    """P6: as columns, and beside a field that another program has added meanwhile."""
    ingesting = Ingesting(tmp_path)
    ingesting.ingest(paths=parquet(tmp_path, "0.parquet", c=[{"a": 1}]))
    args = [
        ingesting.start(paths=parquet(tmp_path, f"{n}.parquet", c=[fields]), on_new_columns="add")
        for n, fields in enumerate(({"a": 2, "x": 2}, {"x": 3, "y": "b"}), start=1)
    ]
    odd = ingesting.start(paths=parquet(tmp_path, "3.parquet", c=[{"a": 4, "x": "t"}]), on_new_columns="add")
    jobs = [ingesting.run(arg) for arg in (*args, odd)]
    ingesting.finish(args[0], jobs[0])
    ingesting.finish(args[1], jobs[1])
    assert sorted(ingesting.read()["c"].to_pylist(), key=repr) == [
        {"a": 1, "x": None, "y": None},
        {"a": 2, "x": 2, "y": None},
        {"a": None, "x": 3, "y": "b"},
    ]
    with refused(error=SchemaConflict, match="long .*string", column="c.x"):
        ingesting.finish(odd, jobs[2])


def test_nested_names_that_differ_in_case_only_are_no_two_fields(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path)
    ingesting.ingest(paths=parquet(tmp_path, "1.parquet", c=[{"a": 1, "b": 1}]))
    for number, fields in enumerate(({"a": 1, "A": 2}, {"A": 2, "x": 3, "b": 4}), start=2):
        path = parquet(tmp_path, f"{number}.parquet", c=[fields])
        with pytest.raises(InvalidArgument, match=r"columns 'c\.a' and 'c\.A' differ only in case"):
            ingesting.start(paths=path, on_new_columns="add")


# -- types -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", ["csv", "parquet", "jsonl", "avro"])
def test_wider_values_are_refused_or_widen_a_column(ingesting: Ingesting, tmp_path: Path, make: str) -> None:
    """No row of them is a bad one: the quarantine stays empty."""
    if make == "parquet":
        path = parquet(tmp_path, "1.parquet", id=[2, 2**40], name=["b", "c"])
    elif make == "avro":
        path = avro(tmp_path, "1.avro", {"id": "long", "name": "string"}, (2, "b"), (2**40, "c"))
    elif make == "csv":
        path = csv(tmp_path, "1.csv", f"id,name\n2,b\n{2**40},c\n")
    else:
        path = csv(tmp_path, "1.jsonl", f'{{"id": 2, "name": "b"}}\n{{"id": {2**40}, "name": "c"}}\n')
    with refused("on_wider_types", "'id'"):
        ingesting.start(paths=path)
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine", on_wider_types="widen")
    assert quarantined(ingesting, jobs) == []
    assert sorted(ingesting.rows("id")) == [1, 2, 2**40]
    column = ingesting.table.iceberg().schema().find_field("id")
    assert (column.field_type, column.required, column.field_id) == (LongType(), True, 1)


def test_a_wide_file_is_not_parsed_once_per_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"c{number}" for number in range(200)]
    ingesting = Ingesting(tmp_path, {"schema": [f"{name}: int" for name in names]})
    values = dict.fromkeys(names, "1") | {"c7": str(2**40), "c130": str(2**40)}
    parses, parse = 0, CsvSample._parse

    def counting(*given: Any) -> pa.Table:
        nonlocal parses
        parses += 1
        return parse(*given)

    monkeypatch.setattr(CsvSample, "_parse", counting)
    path = csv(tmp_path, "1.csv", f"{','.join(names)}\n{','.join(values.values())}\n")
    ingesting.ingest(paths=path, on_wider_types="widen")
    columns = ingesting.table.iceberg().schema().columns
    assert {column.name for column in columns if column.field_type == LongType()} == {"c7", "c130"}
    assert parses < 60


def test_values_that_fit_widen_nothing(ingesting: Ingesting, tmp_path: Path) -> None:
    """A file of 64-bit numbers that are small fits a column of 32 bits."""
    ingesting.ingest(paths=parquet(tmp_path, "1.parquet", id=[2], name=["b"]), on_wider_types="widen")
    ingesting.ingest(paths=avro(tmp_path, "1.avro", {"id": "long", "name": "string"}, (3, "c")))
    assert len(ingesting.table.iceberg().metadata.schemas) == 1


def test_floats_and_decimals_widen(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["f: float", "d: decimal(4,2)"]})
    small = pa.array([1.5], pa.float32()), pa.array(["1.50"]).cast(pa.decimal128(4, 2))
    ingesting.ingest(paths=parquet(tmp_path, "0.parquet", f=small[0], d=small[1]))
    large = pa.array([1e300]), pa.array(["12345.50"]).cast(pa.decimal128(9, 2))
    path = parquet(tmp_path, "1.parquet", f=large[0], d=large[1])
    with pytest.raises(InvalidArgument):
        ingesting.start(paths=path)
    ingesting.ingest(paths=path, on_wider_types="widen")
    schema = ingesting.table.iceberg().schema()
    assert [column.field_type for column in schema.columns] == [DoubleType(), DecimalType(9, 2)]
    assert ingesting.rows("f") == [1.5, 1e300]


def test_a_type_that_cannot_be_widened_is_refused_before_a_row_is_read(
    ingesting: Ingesting, tmp_path: Path
) -> None:
    path = csv(tmp_path, "1.csv", "id,name\n2,b\n2.5,c\n")
    with refused("on_wider_types", "cannot be widened") as caught:
        ingesting.start(paths=path, on_wider_types="widen")
    assert caught.value.details["column"] == "id"


@pytest.mark.parametrize("wider", ["fail", "widen"])
@pytest.mark.parametrize("value", ["2.5", str(2**40)])
@pytest.mark.parametrize("make", ["csv", "jsonl", "parquet"])
def test_a_bad_value_of_the_sample_refuses_no_other_row(
    ingesting: Ingesting, tmp_path: Path, make: str, value: str, wider: str
) -> None:
    """A14: it goes to quarantine as behind the sample, unless its column is widened."""
    if make == "csv":
        path = csv(tmp_path, "1.csv", f"id,name\n2,b\n{value},c\n")
    elif make == "jsonl":
        path = csv(tmp_path, "1.jsonl", f'{{"id": 2, "name": "b"}}\n{{"id": {value}, "name": "c"}}\n')
    else:
        path = parquet(tmp_path, "1.parquet", id=[2, json.loads(value)], name=["b", "c"])
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine", on_wider_types=wider)
    widened = wider == "widen" and value != "2.5"
    assert len(quarantined(ingesting, jobs)) == (0 if widened else 1)
    assert sorted(ingesting.rows("id")) == ([1, 2, 2**40] if widened else [1, 2])


def test_a_new_field_of_the_sample_refuses_no_other_row(tmp_path: Path) -> None:
    """A14: nor a new key; both are options that the row can be replayed with."""
    ingesting = Ingesting(tmp_path)
    ingesting.ingest(paths=csv(tmp_path, "1.jsonl", '{"id": 1, "c": {"a": 1}}\n'))
    lines = '{"id": 2, "c": {"a": 2}}\n{"id": 3, "c": {"b": 3}}\n{"id": 4, "x": {"y": 4}}\n'
    jobs = ingesting.ingest(paths=csv(tmp_path, "2.jsonl", lines), on_bad_rows="quarantine")
    assert [entry["reason"].partition(" is")[0] for entry in quarantined(ingesting, jobs)] == [
        "column 'c.b'",
        "column 'x'",
    ]
    assert ingesting.rows("id") == [1, 2]


def test_operations_that_widen_a_column_at_the_same_time_are_all_right(
    ingesting: Ingesting, tmp_path: Path
) -> None:
    """P6: an operation that began on the narrow type is right on the wide one, and one that widens again."""
    narrow = ingesting.start(paths=csv(tmp_path, "1.csv", "id\n2\n"))
    wide = [
        ingesting.start(paths=csv(tmp_path, f"{n}.csv", f"id\n{2**40 + n}\n"), on_wider_types="widen")
        for n in (2, 3)
    ]
    jobs = [ingesting.run(arg) for arg in (*wide, narrow)]
    for arg, done in zip((*wide, narrow), jobs, strict=True):
        ingesting.finish(arg, done)
    assert sorted(ingesting.rows("id")) == [1, 2, 2**40 + 2, 2**40 + 3]
    assert len(ingesting.table.iceberg().metadata.schemas) == 2


def test_a_branch_brings_columns_to_the_table(ingesting: Ingesting, tmp_path: Path) -> None:
    """Columns are the table's, not a branch's: its readers find them empty until the branch is published."""
    path = csv(tmp_path, "1.csv", "id,fare\n2,1.5\n")
    ingesting.ingest(paths=path, on_new_columns="add", branch="day")
    assert ingesting.rows("id", "fare") == [(1, None)]
    table = ingesting.table.iceberg()
    branch = table.scan(snapshot_id=table.metadata.refs["day"].snapshot_id).to_arrow()
    assert sorted(branch["id"].to_pylist()) == [1, 2]


# -- other formats, and DataFrames ---------------------------------------------------------------------


def request(table_format: str, head: Head | None, location: Path, **argument: Any) -> PlanRequest:
    record = TableRecord(name="t", location=f"file://{location}/t", format=table_format)
    return PlanRequest(table=record, head=head, watermarks={}, argument=argument)


def test_a_tree_of_files_gets_columns_but_no_wider_types(tmp_path: Path) -> None:
    layout = Layout.create(parse_schema(["id: int"]))
    head = Head(metadata_location="", layout=layout.to_json())
    new = csv(tmp_path, "1.csv", "id,fare\n1,2.5\n")
    with pytest.raises(InvalidArgument, match="fare"):
        Ingest().plan(request("files", head, tmp_path, paths=new))
    plan = Ingest().plan(request("files", head, tmp_path, paths=new, on_new_columns="add")).argument
    assert [field["name"] for field in plan["layout"]["schema"]["fields"]] == ["id", "fare"]
    wide = csv(tmp_path, "2.csv", f"id\n{2**40}\n")
    with refused("on_wider_types", "files tables cannot change"):
        Ingest().plan(request("files", head, tmp_path, paths=wide, on_wider_types="widen"))
    head = Head(metadata_location="", layout=Layout.create(pa.schema([("c", A)])).to_json())
    grown = parquet(tmp_path, "3.parquet", c=pa.array([{"a": 1, "b": "x"}], B))
    with refused("on_new_columns", r"column 'c.b': types of files tables cannot change"):
        Ingest().plan(request("files", head, tmp_path, paths=grown, on_new_columns="add"))


def test_a_dataframe_brings_columns_and_wider_types(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path, {"schema": ["id: int"]})
    ingesting.ingest(paths=csv(tmp_path, "0.csv", "id\n1\n"))
    columns = Layout.create(pa.schema([("id", pa.int64()), ("fare", pa.float64())])).to_json()["schema"]
    with pytest.raises(InvalidArgument, match="fare"):
        DataFrameIngest().plan(ingesting.request(columns=columns))
    asked = ingesting.request(columns=columns, on_new_columns="add", on_wider_types="widen")
    fields = DataFrameIngest().plan(asked).argument["layout"]["schema"]["fields"]
    assert [(field["name"], field["type"]) for field in fields] == [("id", "long"), ("fare", "double")]


def test_a_dataframe_brings_nested_fields(tmp_path: Path) -> None:
    ingesting = Ingesting(tmp_path)
    ingesting.ingest(paths=parquet(tmp_path, "0.parquet", c=pa.array([{"a": 1}], A)))
    columns = Layout.create(pa.schema([("c", B)])).to_json()["schema"]
    with pytest.raises(InvalidArgument, match=r"'c\.b'"):
        DataFrameIngest().plan(ingesting.request(columns=columns))
    plan = DataFrameIngest().plan(ingesting.request(columns=columns, on_new_columns="add")).argument
    (field,) = plan["layout"]["schema"]["fields"]
    assert [(inner["name"], inner["type"]) for inner in field["type"]["fields"]] == [
        ("a", "long"),
        ("b", "string"),
    ]
