"""Delta tables that ask more of writers than distop does: refused by name, at the start and the commit."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType

from distop.commit.contract import StepContext
from distop.errors import PreconditionFailed, StepConflict
from distop.lake.delta.commit import DeltaArgument, DeltaCommit
from distop.lake.delta.output import delta_schema
from distop.lake.layout.model import Layout
from distop.lake.rows import output_of, rows_plan
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.table import TableRecord
from distop.operations.api import PlanRequest
from support.refusals import refused

LONG = PrimitiveType("long")


def table_of(folder: Path) -> TableRecord:
    return TableRecord(name="t", location=f"file://{folder}", format="delta")


def planned(folder: Path, mode: str = "append") -> dict[str, Any]:
    request: PlanRequest = PlanRequest(table=table_of(folder), head=None, watermarks={}, argument={})
    return rows_plan(request, pa.schema([("id", pa.int64())]), mode=mode)


def commit(folder: Path, layout: Layout, mode: Any = "append") -> None:
    """An operation without files; each is another one."""
    argument = DeltaArgument(table=f"file://{folder}", schema=delta_schema(layout), mode=mode)
    number = DeltaTable(folder).version() + 1
    arg = OperationArg(table="t", type="ingest", instance=number, uuid="u", location=f"file://{folder}")
    step = DeltaCommit(dict(argument.record().argument))
    step.execute(StepContext(table=table_of(folder), arg=arg, token="t"))


def made(folder: Path, *fields: Field, **settings: str) -> DeltaTable:
    names = {name.replace("__", "."): value for name, value in settings.items()}
    return DeltaTable.create(str(folder), Schema([Field("id", LONG), *fields]), configuration=names)


def test_a_check_constraint_is_named_when_an_operation_starts_and_when_it_commits(tmp_path: Path) -> None:
    """V6."""
    table = made(tmp_path)
    layout = Layout.from_json(planned(tmp_path)["layout"])
    table.alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(PreconditionFailed, match="the CHECK constraint 'positive'"):
        planned(tmp_path)
    with pytest.raises(StepConflict, match="the CHECK constraint 'positive'"):
        commit(tmp_path, layout)


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"delta.invariants": '{"expression": {"expression": "x > 0"}}'}, "an invariant"),
        ({"delta.generationExpression": "id + 1"}, "a generated value"),
        ({"CURRENT_DEFAULT": "7"}, "a default value"),
    ],
)
def test_what_a_column_asks_of_writers_is_named(tmp_path: Path, metadata: dict[str, str], named: str) -> None:
    made(tmp_path, Field("x", LONG, metadata=metadata))
    with pytest.raises(PreconditionFailed, match=f"{named} for column 'x'"):
        planned(tmp_path)


def test_column_mapping_is_named(tmp_path: Path) -> None:
    made(tmp_path)
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    text = log.read_text()
    assert '"configuration":{}' in text
    log.write_text(text.replace('"configuration":{}', '"configuration":{"delta.columnMapping.mode":"name"}'))
    with pytest.raises(PreconditionFailed, match="column mapping by name"):
        planned(tmp_path)


@pytest.mark.parametrize("feature", ["rowTracking", "changeDataFeed"])
def test_a_feature_is_named_unless_it_asks_nothing_of_files(tmp_path: Path, feature: str) -> None:
    made(tmp_path)
    log = tmp_path / "_delta_log" / f"{0:020}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": [],
        "writerFeatures": [feature],
    }
    log.write_text(
        "\n".join(json.dumps(line | {"protocol": protocol} if "protocol" in line else line) for line in lines)
    )
    if feature == "rowTracking":
        with pytest.raises(PreconditionFailed, match="the feature rowTracking"):
            planned(tmp_path)
        return
    for mode in ("append", "overwrite"):
        commit(tmp_path, Layout.from_json(planned(tmp_path, mode)["layout"]), mode)


def test_a_table_that_is_only_appended_to_is_not_overwritten(tmp_path: Path) -> None:
    made(tmp_path, delta__appendOnly="true")
    layout = Layout.from_json(planned(tmp_path)["layout"])
    commit(tmp_path, layout)
    with pytest.raises(PreconditionFailed, match="appendOnly") as caught:
        planned(tmp_path, "overwrite")
    assert caught.value.details["field"] == "mode"
    with pytest.raises(StepConflict, match="appendOnly"):
        commit(tmp_path, layout, "overwrite")


@pytest.mark.parametrize("kind", ["short", "byte"])
def test_a_type_that_files_would_not_have_is_named(tmp_path: Path, kind: str) -> None:
    made(tmp_path, Field("x", PrimitiveType(kind)))
    with pytest.raises(PreconditionFailed, match=f"the type {kind} for column 'x'"):
        planned(tmp_path)


def test_nested_columns_and_comments_stay_as_they_are(tmp_path: Path) -> None:
    nested = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))])
    rows = pa.schema([("id", pa.int64()), ("s", nested), ("m", pa.map_(pa.string(), pa.int32()))])
    write_deltalake(tmp_path, rows.empty_table())
    DeltaTable(tmp_path).alter.set_column_metadata("id", {"comment": "which one"})
    before = DeltaTable(tmp_path).schema()
    layout = Layout.from_json(planned(tmp_path)["layout"])
    commit(tmp_path, layout)
    commit(tmp_path, layout, "overwrite")
    table = DeltaTable(tmp_path)
    assert (table.version(), table.schema()) == (3, before)


def test_a_table_is_not_partitioned_by_bytes(tmp_path: Path) -> None:
    rows = pa.schema([("id", pa.int64()), ("b", pa.binary())])
    with refused("partition_by", "'b' .*binary"):
        output_of("delta").check(Layout.create(rows, ["b"]))
    write_deltalake(tmp_path, rows.empty_table(), partition_by=["b"])
    with refused("partition_by", "'b' .*binary"):
        planned(tmp_path)
