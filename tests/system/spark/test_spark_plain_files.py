"""A tree of plain files and Spark: the names it gives, and what it reads."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import PartitionValues, named_values
from support.tables.plain_tables import PlainTable
from support.tables.publishing import ROWS

pytestmark = pytest.mark.spark

KINDS = ["a/b", "x=y", "50%", "a:b?", "q\"o't", "{c}[d]^", "b\\s", "日本", "with space", "#1*", "plain", None]


def test_spark_reads_a_tree_and_names_folders_alike(spark: Any, tmp_path: Path) -> None:
    """C12, P14."""
    table = PlainTable(f"file://{tmp_path}/tree", {})
    expected = list(enumerate(KINDS))
    table.publish(pa.record_batch({"id": list(range(len(KINDS))), "kind": KINDS}, schema=ROWS))
    read = spark.read.parquet(str(tmp_path / "tree")).select("id", "kind").collect()
    assert sorted(tuple(row) for row in read) == expected

    spark.createDataFrame(expected, "id long, kind string").write.partitionBy("kind").parquet(
        str(tmp_path / "its")
    )
    values = PartitionValues(table.layout.schema, table.layout.spec)
    ours = {values.folder((kind,)) for kind in KINDS}
    its = {path.name for path in (tmp_path / "its").iterdir() if path.is_dir()}
    assert its == ours
    assert {named_values(f"{folder}/x")["kind"] for folder in its} == set(KINDS)


def test_spark_reads_typed_partition_values(spark: Any, tmp_path: Path) -> None:
    """P14: dates, times and truth values come back as what they were."""
    kinds = {"id": pa.int64(), "d": pa.date32(), "t": pa.timestamp("us"), "b": pa.bool_(), "n": pa.int32()}
    texts = [[1, 2], ["2013-01-01", None], ["2013-01-01 10:00:00", None], [True, None], [-7, None]]
    arrays = [pa.array(text).cast(kind) for text, kind in zip(texts, kinds.values(), strict=True)]
    batch = pa.record_batch(arrays, names=list(kinds))
    table = PlainTable(f"file://{tmp_path}/tree", {}, ())
    table.layout = Layout.create(pa.schema(list(kinds.items())), ["d", "t", "b", "n"])
    table.publish(batch)
    read = spark.read.schema("id long, d date, t timestamp, b boolean, n int").parquet(str(tmp_path / "tree"))
    told = read.selectExpr("id", "cast(d as string)", "cast(t as string)", "b", "n").orderBy("id")
    found = [tuple(row) for row in told.collect()]
    assert found == [(1, "2013-01-01", "2013-01-01 10:00:00", True, -7), (2, None, None, None, None)]
