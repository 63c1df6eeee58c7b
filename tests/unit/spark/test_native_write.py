"""The partitions of files that Spark has written, as their footers show them."""

import math
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from distop.errors import CorruptRecord
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.partitioning import Partitioner
from distop.lake.layout.schemas import parse_schema
from distop.spark.native_write import partition_of
from support.tables.partition_values import VALUES, rows_of


def partition(folder: Path, kind: str, *groups: list[Any]) -> tuple[Any, ...]:
    """Of a file with these row groups."""
    layout = Layout.create(parse_schema({"id": "long", "p": kind}), ["p"])
    path = folder / "a.parquet"
    with pq.ParquetWriter(path, layout.arrow_schema) as writer:
        for values in groups:
            writer.write_table(rows_of(layout, dict(enumerate(values))))
    return partition_of(file_io(f"file://{folder}"), layout, f"file://{path}", pq.read_metadata(path))


NUMBERS = [0.1, -0.0, 0.0, math.nan, math.inf]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        *(
            (kind, value)
            for kind in VALUES
            if kind not in ("uuid", "fixed[3]")
            for value in (*VALUES[kind], None)
        ),
        *(("double", value) for value in NUMBERS),
    ],
)
def test_a_file_shows_its_partition(tmp_path: Path, kind: str, value: Any) -> None:
    """P1: with all its bits; NaN and zeros, too."""
    layout = Layout.create(parse_schema({"id": "long", "p": kind}), ["p"])
    [(key, _)] = Partitioner(layout.schema, layout.spec).split(rows_of(layout, {0: value}).to_batches()[0])
    assert repr(partition(tmp_path, kind, [value], [value, value])) == repr(key)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("string", [["a"], ["b"]]),
        ("string", [["a", None]]),
        ("string", [[""], [None]]),
        ("double", [[0.0, -0.0]]),
        ("double", [[1.0], [math.nan]]),
        ("double", [[None, math.nan]]),
    ],
)
def test_a_file_of_several_partitions_is_refused(tmp_path: Path, kind: str, groups: list[list[Any]]) -> None:
    """P1"""
    with pytest.raises(CorruptRecord, match="partition by p"):
        partition(tmp_path, kind, *groups)
