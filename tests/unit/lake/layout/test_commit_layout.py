"""The layout of a table: what users may write, and what is recorded of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.serializers import ToOutputFile

from distop.errors import CorruptRecord, InvalidArgument, PreconditionFailed
from distop.lake.layout.model import Layout, file_io, load_metadata
from distop.lake.layout.schemas import parse_schema

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("time", pa.timestamp("us")),
        ("day", pa.date32()),
        ("name", pa.string()),
        ("f(x)", pa.int32()),
        ("price", pa.decimal128(9, 2)),
        ("where", pa.struct([("city", pa.string())])),
    ]
)


@pytest.mark.parametrize(
    ("term", "transform", "name"),
    [
        ("month(time)", "month", "time_month"),
        ("months( time )", "month", "time_month"),
        ("year(day)", "year", "day_year"),
        ("day(time)", "day", "time_day"),
        ("HOUR(time)", "hour", "time_hour"),
        ("bucket[16](id)", "bucket[16]", "id_bucket_16"),
        ("bucket(16, id)", "bucket[16]", "id_bucket_16"),
        ("truncate[4](name)", "truncate[4]", "name_trunc_4"),
        ("truncate(50, price)", "truncate[50]", "price_trunc_50"),
        ("name", "identity", "name"),
        ("f(x)", "identity", "f(x)"),
        ("identity(day)", "identity", "day"),
        ("where.city", "identity", "where.city"),
    ],
)
def test_partition_terms_are_understood(term: str, transform: str, name: str) -> None:
    """P5, P14, O4: every transform, in both spellings; a column called like a term is a column."""
    layout = Layout.create(COLUMNS, [term])
    layout.spec.check_compatible(layout.schema)
    (field,) = layout.spec.fields
    assert (str(field.transform), field.name, field.field_id) == (transform, name, 1000)


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        (["colour"], "'colour' is neither a column"),
        (["month(colour)"], "there is no column 'colour'"),
        (["week(time)"], "there is no transform 'week'"),
        (["month(id)"], "cannot be taken of 'id', which is a long"),
        (["hour(day)"], "cannot be taken of 'day'"),
        (["bucket(id)"], "lacks its width"),
        (["bucket[0](id)"], "lacks its width"),
        (["where"], "cannot be taken of 'where'"),
        (["day(time)", "hour(time)"], "twice"),
        (["month[3](time)"], "there is no transform"),
    ],
)
def test_bad_partition_terms_are_refused_by_name(terms: list[str], complaint: str) -> None:
    """O4, U3: the error names the field and lists the columns."""
    with pytest.raises(InvalidArgument, match="partition-by") as caught:
        Layout.create(COLUMNS, terms)
    assert complaint in caught.value.message
    assert caught.value.details == {"field": "partition_by"}
    assert "id (long)" in caught.value.hint


def test_a_recorded_layout_is_the_same_layout() -> None:
    """P1, C13: through JSON, field ids and all, so that jobs and commit agree on any host."""
    layout = Layout.create(COLUMNS, ["month(time)", "bucket[4](id)"], {"a": "b", "fanout": True, "n": 3})
    recorded = json.loads(json.dumps(layout.to_json()))
    assert Layout.from_json(recorded) == layout
    assert layout.properties == {"a": "b", "fanout": "true", "n": "3"}
    assert layout.arrow_schema.field("id").metadata[b"PARQUET:field_id"] == b"1"


def test_a_record_that_is_no_layout_is_refused() -> None:
    """C11: a record that this version cannot read is an error of its own."""
    records: list[dict[str, Any]] = [{}, {"schema": 1, "spec": 2}, {"schema": {"fields": [{}]}, "spec": {}}]
    for damaged in records:
        with pytest.raises(CorruptRecord):
            Layout.from_json(damaged)


def test_arrow_types_are_widened_to_what_iceberg_has() -> None:
    """U3: unsigned, zoned, dictionary and null columns get a type that holds all their values."""
    for arrow, iceberg in (
        (pa.uint32(), "long"),
        (pa.uint64(), "decimal(20, 0)"),
        (pa.timestamp("ns", tz="Europe/Berlin"), "timestamptz"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.null(), "string"),
        (pa.time32("s"), "time"),
    ):
        assert str(Layout.create(pa.schema([("c", arrow)])).schema.find_type("c")) == iceberg


def test_arrow_types_that_iceberg_lacks_are_refused_by_column() -> None:
    """O4, U3"""
    with pytest.raises(InvalidArgument, match="'span'") as caught:
        Layout.create(pa.schema([("span", pa.duration("s"))]))
    assert caught.value.details == {"field": "schema", "column": "span"}


def test_a_schema_can_be_written_down() -> None:
    """U3: as a list or a mapping, with types as Iceberg calls them."""
    columns = ["id: long not null", "a:b : decimal(9, 2)", "raw: fixed[4]", "t: timestamptz"]
    schema = parse_schema(columns)
    assert schema.column_names == ["id", "a:b", "raw", "t"]
    types = [str(column.field_type) for column in schema.columns]
    assert types == ["long", "decimal(9, 2)", "fixed[4]", "timestamptz"]
    assert [column.required for column in schema.columns] == [True, False, False, False]
    assert isinstance(parse_schema({"id": "int"}), Schema)


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        (["id long"], "id long"),
        (["id: lung"], "id"),
        (["price: decimal(39,2)"], "price"),
        (["price: decimal(3,4)"], "price"),
        (["id: int", "id: long"], "id"),
        ([": int"], ""),
        ([], ""),
        (["raw: fixed[0]"], "raw"),
    ],
)
def test_a_bad_schema_is_refused_by_column(fields: list[str], column: str) -> None:
    """O4, U3"""
    with pytest.raises(InvalidArgument) as caught:
        parse_schema(fields)
    assert caught.value.details == {"field": "schema", "column": column}


def test_new_metadata_keeps_the_recorded_ids(tmp_path: Path) -> None:
    """P1: files are written with these ids before the table exists."""
    layout = Layout.create(COLUMNS, ["month(time)"], {"owner": "ada"})
    uuid = "0194ff6a-0000-7000-8000-000000000001"
    metadata = layout.new_metadata(f"file://{tmp_path}/t/", uuid=uuid, now=12.5)
    path = f"{tmp_path}/t.metadata.json"
    ToOutputFile.table_metadata(metadata, file_io(path).new_output(path))
    read = load_metadata(path)
    assert read.properties == {"owner": "ada", "write.parquet.compression-codec": "zstd"}
    assert Layout.of(read) == replace(layout, properties=read.properties)
    assert (str(read.table_uuid), read.last_updated_ms) == (uuid, 12500)
    assert read.location == f"file://{tmp_path}/t"


def test_a_table_of_iceberg_format_1_or_3_is_refused_when_planning() -> None:
    """U3: format 1 has no inheritance, and format 3 cannot be written."""
    metadata = Layout.create(COLUMNS).new_metadata("file:///t")
    with pytest.raises(PreconditionFailed, match="Iceberg format 1"):
        Layout.of(metadata.model_copy(update={"format_version": 1}))
