"""What changes make of the columns of a table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.types import LongType, NestedField

from distop.catalog.publishing import check_readable
from distop.errors import InvalidArgument, SchemaConflict
from distop.lake.altering import altered
from distop.lake.layout.evolution import changed_columns, evolved, parse_changes, put_on
from distop.lake.layout.model import Layout
from distop.lake.layout.properties import MAX_ID
from distop.lake.layout.schemas import parse_schema
from distop.lake.pyiceberg_arrow import schema_without_ids
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.metastore.records.table import TableRecord
from support.refusals import refused
from support.tables.publishing import Table

LAYOUT = Layout.create(parse_schema(["id: int not null", "fare: decimal(4,2)", "note: string", "f: float"]))
SCHEMA = LAYOUT.schema


def changed(*changes: dict[str, Any]) -> list[str]:
    schema = changed_columns(SCHEMA, parse_changes(changes), 9)
    return [
        f"{one.field_id} {one.name}: {one.field_type}{'' if one.required else '?'}{one.doc or ''}"
        for one in schema.columns
    ]


def added(column: str, kind: str) -> dict[str, Any]:
    return {"change": "add", "column": column, "type": kind}


def test_each_change_does_what_it_says() -> None:
    assert changed(
        {"change": "rename", "column": "note", "to": "remark"},
        {"change": "drop", "column": "f"},
        {"change": "add", "column": "f", "type": "date", "doc": "!"},
        {"change": "widen", "column": "id", "type": "long"},
        {"change": "widen", "column": "fare", "type": "decimal(9, 2)"},
        {"change": "optional", "column": "id"},
        {"change": "doc", "column": "remark", "doc": "what"},
        {"change": "move", "column": "remark"},
        {"change": "move", "column": "id", "after": "fare"},
    ) == ["3 remark: string?what", "2 fare: decimal(9, 2)?", "1 id: long?", "10 f: date?!"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (added("ID", "long"), "there is a column 'id' already"),
        (added("x", "long not null"), "cannot be required"),
        (added("x", "lnog"), "unknown type"),
        (added(" ", "long"), "no name"),
        (added("a\x1b", "long"), r"U\+001B"),
        ({"change": "add", "column": "x"}, "missing required field `type`"),
        ({"change": "add", "column": "x", "type": "long", "first": True}, "unknown field `first`"),
        ({"change": "rename", "column": "x", "to": "y"}, "no column 'x'"),
        ({"change": "rename", "column": "id", "to": "note"}, "already"),
        ({"change": "widen", "column": "f", "type": "long"}, "cannot become"),
        ({"change": "widen", "column": "fare", "type": "decimal(9,3)"}, "cannot become"),
        ({"change": "widen", "column": "fare", "type": "decimal(3,2)"}, "cannot become"),
        ({"change": "move", "column": "id", "after": "x"}, "no column 'x'"),
        ({"change": "paint", "column": "id"}, "paint"),
    ],
)
def test_an_impossible_change_of_columns_is_refused_by_its_number(change: dict[str, Any], says: str) -> None:
    """U3"""
    with pytest.raises(InvalidArgument, match=says) as caught:
        changed({"change": "optional", "column": "id"}, change)
    assert caught.value.details["field"] == "changes[1]"


def test_a_table_may_have_no_ids_left_for_columns() -> None:
    """U3: another program has given the last one."""
    add = parse_changes([added("x", "long")])
    assert changed_columns(SCHEMA, add, MAX_ID - 1).highest_field_id == MAX_ID
    with pytest.raises(InvalidArgument, match="no more of them"):
        changed_columns(SCHEMA, add, MAX_ID)
    with pytest.raises(InvalidArgument, match="no more of them"):
        evolved(replace(LAYOUT, last_column_id=MAX_ID), [NestedField(1, "x", LongType())])


def test_the_last_column_stays() -> None:
    names = ["id", "fare", "note", "f"]
    with pytest.raises(InvalidArgument, match="the only one"):
        changed(*({"change": "drop", "column": name} for name in names))
    with pytest.raises(InvalidArgument, match="0 changes"):
        changed()


@pytest.mark.parametrize(
    "changes",
    [
        [added("t_day", "int")],
        [{"change": "rename", "column": "id", "to": "t_day"}],
        [{"change": "rename", "column": "kind", "to": "old"}, added("kind", "string")],
        [{"change": "partition_by", "terms": ["kind"]}, added("t_day", "int")],
    ],
)
def test_no_column_gets_the_name_of_a_partition_field(tmp_path: Path, changes: list[dict[str, Any]]) -> None:
    """P14: Iceberg's Java library reads no table where another column has it, in any of its partitionings."""
    columns = parse_schema(["id: long", "t: timestamp", "kind: string"])
    table = Table("flights", f"file://{tmp_path}/flights", Layout.create(columns, ["day(t)", "kind"]))
    table.publish(table.start(0), IcebergOverwrite())
    record = TableRecord(name="flights", location=table.location)
    with pytest.raises(InvalidArgument, match="partition field"):
        altered(record, table.record(), parse_changes(changes))
    new = NestedField(9, "t_day", LongType())
    with refused(match="partition field", column="t_day"):
        evolved(table.layout, [new])
    head, unpartitioned = table.record(), {"change": "partition_by", "terms": ["day(t)"]}
    for free in (unpartitioned, {"change": "drop", "column": "kind"}, added("kind", "int")):
        made = altered(record, head, parse_changes([free]))
        assert made.head is not None
        head = made.head


@pytest.mark.parametrize("name", ["s.a", "s.b", "S.b", "l.element.x"])
def test_no_column_gets_the_name_of_a_field_of_a_nested_one(tmp_path: Path, name: str) -> None:
    """P14: pyiceberg could not load the table, or would take the one for the other."""
    columns = [("id", pa.int64()), ("s", pa.struct([("a", pa.int64())])), ("l", pa.list_(pa.int64()))]
    layout = Layout.create(pa.schema(columns))
    table = Table("flights", f"file://{tmp_path}/flights", layout)
    table.publish(table.start(0), IcebergOverwrite())
    record = TableRecord(name="flights", location=table.location)
    for change in (added(name, "int"), {"change": "rename", "column": "id", "to": name}):
        with pytest.raises(InvalidArgument, match=f"'{name}' .*a field of column"):
            altered(record, table.record(), parse_changes([change]))
    # Names with dots are names like others where nothing is nested.
    assert altered(record, table.record(), parse_changes([added("id.b", "int")])).head is not None


def test_a_column_and_a_field_of_one_name_are_refused() -> None:
    """P14: whichever comes first, and whatever way it comes."""
    nested, flat = ("a", pa.struct([("b", pa.int64())])), ("a.b", pa.int64())
    with pytest.raises(InvalidArgument, match=r"multiple fields for name a\.b"):
        Layout.create(pa.schema([nested, flat]))
    for first, then in ((nested, flat), (flat, nested)):
        with pytest.raises(InvalidArgument, match=r"multiple fields for name a\.b"):
            evolved(Layout.create(pa.schema([first])), schema_without_ids(pa.schema([then])).columns)


def test_columns_that_a_delta_table_got_in_an_earlier_attempt_are_no_error(tmp_path: Path) -> None:
    """U3: however their types are spelled; what is wrong is named by its position in the call."""
    write_deltalake(tmp_path, pa.table({"id": [1]}))
    record = TableRecord(name="t", location=f"file://{tmp_path}", format="delta")
    again = [added("fare", "decimal(9, 2)"), added("n", "Long")]
    properties = {"change": "properties", "set": {"owner": "ada"}}
    for _ in range(2):
        made = altered(record, None, parse_changes([*again, properties]))
        assert made.schema is not None
        assert [str(one.field_type) for one in made.schema.columns] == ["long", "decimal(9, 2)", "long"]
        assert made.record.options["properties"] == {"owner": "ada"}
    assert DeltaTable(tmp_path).version() == 1
    for wrong in ("int", "long not null", "lnog"):
        with pytest.raises(InvalidArgument) as caught:
            altered(record, None, parse_changes([*again, added("n", wrong)]))
        assert caught.value.details["field"] == "changes[2]"


PAIR = pa.struct([("a", pa.int64()), ("A", pa.int64())])


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (None, "ID"),
        (PAIR, "s.A"),
        (pa.list_(PAIR), "s.element.A"),
        (pa.map_(pa.string(), pa.struct([("b", PAIR)])), "s.value.b.A"),
    ],
)
def test_names_that_differ_only_in_case_are_refused(kind: pa.DataType | None, name: str) -> None:
    """V5: SQL ignores case: Spark could read neither. When a table is made, altered, or committed to."""
    columns = pa.schema([("id", pa.int64()), ("s", kind) if kind is not None else ("ID", pa.int64())])
    with pytest.raises(InvalidArgument, match=f"'{name}' differ only in case") as refused:
        Layout.create(columns)
    assert refused.value.details == {"field": "schema", "column": name}
    twins = schema_without_ids(columns)
    table = Layout.create(pa.schema([("id", pa.int64())]))
    with pytest.raises(InvalidArgument, match="differ only in case"):
        evolved(table, twins.columns[1:])
    fresh = assign_fresh_schema_ids(twins)
    base, io = table.new_metadata("file:///t"), PyArrowFileIO()
    made = base.model_copy(update={"schemas": [fresh], "current_schema_id": fresh.schema_id})
    for before in (base, None):
        with pytest.raises(InvalidArgument, match="differ only in case"):
            check_readable(made, before, io)
    check_readable(made, made, io)  # a table that has such columns already can still be written


def test_two_operations_that_add_names_of_another_case_are_a_conflict() -> None:
    """V5: each was right on what it began on."""
    first, _ = evolved(LAYOUT, [NestedField(1, "tip", LongType())])
    second, added = evolved(LAYOUT, [NestedField(1, "Tip", LongType())])
    with refused(error=SchemaConflict, column="Tip"):
        put_on(first.schema, second.schema, added, [LAYOUT.schema])
