"""What manifests say of data files, with pyiceberg's own function as the reference where it is right."""

import math
import random
import struct
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)

from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.writing.file_lists import statistics_of
from support.tables.partition_values import VALUES
from support.tables.publishing import Table

BOUNDED = ("lower_bounds", "upper_bounds")


def footer_of(folder: Path, layout: Layout, *groups: dict[str, Any]) -> pq.FileMetaData:
    """Of a file with these row groups."""
    path = folder / "a.parquet"
    with pq.ParquetWriter(path, layout.arrow_schema, store_decimal_as_integer=True) as writer:
        for group in groups:
            writer.write_table(pa.table(group, schema=layout.arrow_schema))
    return pq.read_metadata(path)


def told(layout: Layout, footer: pq.FileMetaData, **nans: int) -> dict[str, Any]:
    plan, ids = (
        compute_statistics_plan(layout.schema, layout.properties),
        parquet_path_to_id_mapping(layout.schema),
    )
    return statistics_of(footer, plan, ids, nans)


@pytest.mark.parametrize("mode", ["", "none", "counts", "truncate(3)", "full"])
def test_statistics_are_those_of_pyiceberg(tmp_path: Path, mode: str) -> None:
    """P14: for every type, also in structs and lists, and NULL."""
    properties = {"write.metadata.metrics.default": mode} if mode else {}
    kinds = {f"c{number}": kind for number, kind in enumerate(VALUES) if kind != "uuid"}
    plain = Layout.create(parse_schema(kinds)).arrow_schema
    nested = pa.schema([("s", pa.struct([("x", pa.float64())])), ("l", pa.list_(pa.float64()))])
    layout = Layout.create(pa.schema([*plain, *nested]), (), properties)
    rng = random.Random(7)
    groups = []
    for _ in range(3):
        group: dict[str, Any] = {"s": [{"x": 1.5}, None] * 2 + [None], "l": [[1.5, None], []] * 2 + [None]}
        for name, kind in kinds.items():
            values = [rng.choice([*VALUES[kind], None]) for _ in range(5)]
            if kind == "string":
                values = ["".join(rng.choices("ab\u00e9\U0001f600", k=rng.randrange(40))) for _ in values]
            if kind == "binary":
                values = [rng.randbytes(rng.randrange(40)) for _ in values]
            group[name] = pa.array(values, layout.arrow_schema.field(name).type)
        groups.append(group)
    footer = footer_of(tmp_path, layout, *groups)
    plan, ids = (
        compute_statistics_plan(layout.schema, layout.properties),
        parquet_path_to_id_mapping(layout.schema),
    )
    expected = data_file_statistics_from_parquet_metadata(footer, plan, ids).to_serialized_dict()
    floats = {name: 0 for name, kind in kinds.items() if kind in ("float", "double")}
    found = told(layout, footer, **floats)
    known = {} if mode == "none" else {layout.schema.find_field(name).field_id: 0 for name in floats}
    assert found.pop("nan_value_counts") == known
    del expected["nan_value_counts"]
    assert found == expected
    assert bool(found["lower_bounds"]) == (mode not in ("none", "counts"))


def test_texts_and_bytes_are_cut_to_bounds_that_hold(tmp_path: Path) -> None:
    """Before a surrogate, and where no character or byte is greater."""
    layout = Layout.create(parse_schema({"t": "string", "b": "binary"}))
    last = "\U0010ffff"
    for text, bound in (
        ("a" * 15 + "\ud7ff" + "z", "a" * 15 + "\ue000"),
        ("a" * 14 + "b" + last * 9, "a" * 14 + "c"),
        (last * 17, None),
        ("a" * 16, "a" * 16),
    ):
        found = told(layout, footer_of(tmp_path, layout, {"t": [text], "b": [b"\xff" * 20]}))
        upper = None if bound is None else bound.encode()
        assert (found["lower_bounds"][1], found["upper_bounds"].get(1)) == (text[:16].encode(), upper)
        assert (found["lower_bounds"][2], found["upper_bounds"].get(2)) == (b"\xff" * 16, None)


def test_what_a_row_group_does_not_say_is_not_said_of_the_file(tmp_path: Path) -> None:
    """P3: Parquet keeps no bounds of texts of more than 4 KiB, and none where all values are NaN."""
    layout = Layout.create(parse_schema({"t": "string", "x": "double", "n": "int"}))
    plain: dict[str, Any] = {"t": ["b"], "x": [1.0], "n": [None]}
    long = {"t": ["x" * 5000], "x": [math.nan], "n": [7]}
    found = told(layout, footer_of(tmp_path, layout, plain, long), x=1)
    assert [{*found[bounds]} for bounds in BOUNDED] == [{3}, {3}]
    assert (found["nan_value_counts"], found["null_value_counts"]) == ({2: 1}, {1: 0, 2: 0, 3: 1})
    found = told(layout, footer_of(tmp_path, layout, plain))
    assert [{*found[bounds]} for bounds in BOUNDED] == [{1}, {1}]


@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamptz"])
def test_values_beyond_the_year_9999_are_bounded_like_others(tmp_path: Path, kind: str) -> None:
    """P3: other engines write such rows, and a compaction or a deletion writes them again."""
    days = [(date(9999, 12, 31) - date(1970, 1, 1)).days + 400_000, -10_000_000]
    values = days if kind == "date" else [day * 86_400_000_000 for day in days]
    layout = Layout.create(parse_schema({"t": kind}))
    table = Table("t", f"file://{tmp_path}/t", layout)
    column = pa.array(values, pa.int32() if kind == "date" else pa.int64())
    rows = pa.table({"t": column.cast(layout.arrow_schema.field("t").type)}, schema=layout.arrow_schema)
    table.publish(table.staged(rows.to_batches()))
    [entry] = table.entries()
    packed = struct.Struct("<i" if kind == "date" else "<q").pack
    bounds = (entry.data_file.lower_bounds[1], entry.data_file.upper_bounds[1])
    assert bounds == (packed(values[1]), packed(values[0]))


def test_uuids_have_no_bounds(tmp_path: Path) -> None:
    """Engines have ordered them in two ways."""
    layout = Layout.create(parse_schema({"u": "uuid"}))
    stored = pa.array([b"\x00" * 16, b"\xff" * 16], pa.binary(16)).cast(layout.arrow_schema.field("u").type)
    found = told(layout, footer_of(tmp_path, layout, {"u": stored}))
    assert (found["value_counts"], found["null_value_counts"]) == ({1: 2}, {1: 0})
    assert [found[bounds] for bounds in BOUNDED] == [{}, {}]
