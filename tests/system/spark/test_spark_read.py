"""Tables read by Spark: through ``format("distop")``, and as a stream."""

import math
from pathlib import Path
from typing import Any

import pytest

from distop.errors import DistopError, TableNotFound
from distop.spark import read
from distop.spark.source import DistopDataSource
from support.refusals import refused
from support.spark.spark_driver import numbers
from support.spark.spark_service import Service, ids_of, reading, writing
from support.tables.deletes import delete_ids
from support.tables.formats import as_format_3
from support.tables.publishing import filled

pytestmark = pytest.mark.spark


def test_without_icebergs_runtime_only_names_below_its_catalog_are_not_found(spark: Any) -> None:
    """All tests of this folder have a session that was set up for it."""
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW numbers AS SELECT 1 AS id")
    assert spark.sql("SELECT id FROM numbers").collect()[0].id == 1
    with pytest.raises(Exception, match=r"org\.apache\.iceberg\.spark\.SparkCatalog"):
        spark.sql("SELECT * FROM distop.default.t")


@pytest.mark.slow("ten jobs of Spark")
def test_snapshots_columns_and_filters(service: Service, spark: Any) -> None:
    """P14"""
    table = service.table()
    writing(service, table, numbers(spark, 30))
    first = service.client.table(table).get().snapshot_id
    writing(service, table, numbers(spark, 60).where("id >= 30"))
    assert ids_of(reading(service, spark, table)) == list(range(60))
    assert ids_of(reading(service, spark, table, snapshotId=str(first))) == list(range(30))
    assert ids_of(reading(service, spark, table, asOf="2199-01-01")) == list(range(60))
    chosen = reading(
        service, spark, table, columns="kind,id", filter="kind = 'k1' and id >= 30", splitBytes="1024"
    )
    assert chosen.columns == ["kind", "id"]
    assert ids_of(chosen) == [n for n in range(30, 60) if n % 3 == 1]
    assert (
        reading(service, spark, table).where("kind = 'k2'").groupBy("kind").count().collect()[0]["count"]
        == 20
    )
    for options, says in (
        ({"snapshotId": "7"}, "no snapshot 7"),
        ({"filter": "nothing = 1"}, "no column 'nothing'"),
        ({"columns": "nothing"}, "no column 'nothing'"),
        ({"asOf": "yesterday"}, "is not a time"),
    ):
        # As a worker of Spark's plans it, which ends when that fails.
        source = DistopDataSource({"table": table, "coordinator": service.address, **options})
        with pytest.raises(DistopError, match=says):
            source.reader(source.schema()).partitions()
    with pytest.raises(Exception, match="does not exist"):
        reading(service, spark, "nobody").count()


def test_a_table_is_read_by_a_function(service: Service, spark: Any) -> None:
    """P14: as by the data source; its errors are distop's."""
    table = service.table()
    writing(service, table, numbers(spark, 30))
    first = service.client.table(table).get().snapshot_id
    writing(service, table, numbers(spark, 60).where("id >= 30"))
    where: dict[str, Any] = {"coordinator": service.address}
    assert ids_of(read(spark, table, **where)) == list(range(60))
    assert ids_of(read(spark, table, snapshot_id=first, **where)) == list(range(30))
    chosen = read(spark, table, columns=["id"], filter="kind in ('k0', 'k1') and not id < 30", **where)
    assert chosen.columns == ["id"]
    assert ids_of(chosen) == [n for n in range(30, 60) if n % 3 < 2]
    assert read(spark, table, filter="id > 1000", **where).count() == 0
    with refused("filter", "no column 'nothing'"):
        read(spark, table, filter="nothing = 1", **where)
    with pytest.raises(TableNotFound):
        read(spark, "nobody", **where)


_IN_SPARK = {"x is nan": "isnan(x)"}


def test_rows_that_other_engines_have_deleted_are_not_read(
    service: Service, spark: Any, tmp_path: Path
) -> None:
    """V5: by positions, deletion vectors and equality, in a table of format 3."""
    made = filled(tmp_path, 3, partition_by=())
    for kind, gone in {"positions": [1], "vectors": [12, 15], "equality": [20, 29]}.items():
        delete_ids(made, kind, gone)
    left = [n for n in range(30) if n not in (1, 12, 15, 20, 29)]
    service.catalog.register_table(f"default.{tmp_path.name}", as_format_3(made))
    assert ids_of(reading(service, spark, tmp_path.name, filter="id > 9")) == left[9:]
    assert ids_of(read(spark, tmp_path.name, coordinator=service.address)) == left


@pytest.mark.slow("fifteen jobs of Spark")
def test_a_filter_means_the_same_as_a_condition_of_spark(service: Service, spark: Any) -> None:
    """NaN is greater than all numbers, and is in no statistics."""
    table = service.table(schema=["id: long", "x: double"])
    for rows in ([(0, 1.0), (1, math.nan)], [(2, 2.0), (3, None)], [(4, math.nan)]):
        writing(service, table, spark.createDataFrame(rows, "id long, x double").coalesce(1))
    for where, ids in {
        "x >= 1": [0, 1, 2, 4],
        "not x < 2": [1, 2, 4],
        "x < 5": [0, 2],
        "x != 1": [1, 2, 4],
        "x not in (1, 2)": [1, 4],
        "x is nan": [1, 4],
    }.items():
        frame = reading(service, spark, table)
        assert {where: ids_of(reading(service, spark, table, filter=where))} == {where: ids}
        assert {where: ids_of(frame.where(_IN_SPARK.get(where, where)))} == {where: ids}


@pytest.mark.slow("a stream that is started three times, each with Python workers of its own")
def test_a_stream_reads_what_is_published_as_it_is_published(
    service: Service, spark: Any, tmp_path: Path
) -> None:
    """Every row once, in bounded batches, over restarts; what rewrites rows is refused by name."""
    table = service.table()

    def published(start: int) -> None:
        writing(service, table, numbers(spark, start + 30, 1).where(f"id >= {start}"))

    def run(**options: str) -> list[int]:
        stream = (
            spark.readStream.format("distop")
            .options(table=table, coordinator=service.address, maxFilesPerTrigger="2", **options)
            .load()
        )
        query = (
            stream.writeStream.format("parquet")
            .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return ids_of(spark.read.parquet(str(tmp_path / "out")))

    published(0)
    published(30)
    files = len(service.published(table))
    assert run() == list(range(60))
    assert len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))) >= files / 2
    published(60)
    writing(service, table, numbers(spark, 10, 1), "overwrite")
    with pytest.raises(Exception, match="ignoreOverwrites"):
        run()
    published(90)
    assert run(ignoreOverwrites="true") == list(range(120))
