"""``format("distop")`` and ``distop.spark.write`` on a real Spark: what is written, what is refused."""

import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from distop.errors import BadRow, InvalidArgument, PreconditionFailed
from distop.spark import write
from support.spark.spark_driver import COLUMNS, numbers
from support.spark.spark_service import Service, ids_of, reading, writing
from support.waiting import until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("several jobs of Spark each, some of which are tried again"),
]


def test_save_modes_of_spark_append_overwrite_ignore_and_refuse(service: Service, spark: Any) -> None:
    """P5"""
    table = service.table()
    writing(service, table, numbers(spark, 10))
    writing(service, table, numbers(spark, 10))
    assert service.ids(table) == sorted([*range(10)] * 2)
    with pytest.raises(Exception, match="already holds data"):
        writing(service, table, numbers(spark, 1), mode="error_if_exists")
    writing(service, table, numbers(spark, 1), mode="ignore")
    assert len(service.ids(table)) == 20
    writing(service, table, numbers(spark, 6), "overwrite")
    assert service.ids(table) == [*range(6)]
    replaced = numbers(spark, 31).where("kind = 'k1' AND id > 20")
    writing(service, table, replaced, mode="overwrite_partitions")
    assert service.ids(table) == [0, 2, 3, 5, 22, 25, 28]


def test_a_table_is_made_if_that_is_asked_for(service: Service, spark: Any) -> None:
    frame = numbers(spark, 5).selectExpr(
        "id", "kind", "CAST(id AS decimal(9,2)) AS price", "array(kind) AS tags"
    )
    with pytest.raises(Exception, match="does not exist"):
        writing(service, "made", frame)
    location = str(service.folder / "made")
    made = {"create": "true", "location": location, "partitionBy": "kind, bucket[4](id)"}
    writing(service, "made", frame, **made)
    writing(service, "made", frame, **made)
    assert service.ids("made") == sorted([*range(5)] * 2)
    assert [field.name for field in service.iceberg("made").spec().fields] == ["kind", "id_bucket_4"]
    assert reading(service, spark, "made").schema.simpleString() == (
        "struct<id:bigint,kind:string,price:decimal(9,2),tags:array<string>>"
    )


def test_values_may_become_wider_and_not_narrower(service: Service, spark: Any) -> None:
    """U3: what does not fit begins no operation."""
    table = service.table(schema=["id: long not null", "kind: string"])
    writing(service, table, numbers(spark, 3).selectExpr("kind", "CAST(id AS int) AS id"))
    assert service.ids(table) == [0, 1, 2]
    for refused, options, says in (
        (["id", "kind"], {"tabel": "x"}, "option 'tabel' is unknown"),
        (["CAST(id AS decimal(9,2)) AS id", "kind"], {}, "'id': decimal.* cannot become int64"),
    ):
        with pytest.raises(Exception, match=says):
            writing(service, table, numbers(spark, 3).selectExpr(*refused), **options)
    assert len(service.operations(table)) == 1
    assert service.ids(table) == [0, 1, 2]
    until(lambda: service.files(table) == service.published(table))


def test_a_write_that_fails_leaves_nothing(service: Service, spark: Any) -> None:
    """P9: neither the task that fails, nor those that had written already."""
    table, others = service.table(), 3 * 3  # tasks, each with partitions of the table
    folder = service.folder / table

    def last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            while 900 in batch["id"].to_pylist() and len(list(folder.rglob("*.parquet"))) < others:
                time.sleep(0.05)
            yield batch

    failing = numbers(spark, 1000).mapInArrow(last, COLUMNS).selectExpr("id + 1 DIV (id - 900) AS id", "kind")
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        writing(service, table, failing)
    assert service.client.table(table).get().snapshot_id is None
    until(lambda: not service.files(table))
    assert [operation.facts.get("gaveUp") for operation in service.operations(table)] == [True]


def test_spark_writes_the_files_itself(service: Service, spark: Any) -> None:
    """P1, P5, P14: also with partitions, types that become wider, nulls; and once for a run."""
    table = service.table(
        schema=["id: long not null", "kind: string", "day: date", "at: timestamptz", "price: decimal(12,2)"],
        partitionBy=["kind", "month(day)"],
    )
    frame = numbers(spark, 100).selectExpr(
        "CAST(id AS decimal(9,2)) AS price",
        "TIMESTAMP'2013-01-01 10:00:00Z' AS at",
        "CASE WHEN id % 7 = 0 THEN NULL ELSE kind END AS kind",
        "date_add(DATE'2013-01-15', CAST(id AS int)) AS day",
        "CAST(id AS int) AS id",
    )
    where = {"coordinator": service.address}
    for _ in range(2):
        done = write(frame, table, run="once", **where)
        assert done is not None
        assert done.facts["rows"] == 100
    read_back = service.iceberg(table).scan().to_arrow()
    assert sorted(read_back["id"].to_pylist()) == list(range(100))
    assert {str(at) for at in read_back["at"].to_pylist()} == {"2013-01-01 10:00:00+00:00"}
    of_march = service.iceberg(table).scan(row_filter="day >= '2013-03-01' and day < '2013-04-01'")
    march = (2013 - 1970) * 12 + 2
    assert {tuple(task.file.partition) for task in of_march.plan_files()} == {
        (kind, march) for kind in ("k0", "k1", "k2", None)
    }
    assert of_march.to_arrow().num_rows == 31
    assert ids_of(reading(service, spark, table, filter="kind is null")) == list(range(0, 100, 7))
    until(lambda: service.files(table) == service.published(table))
    replaced = frame.where("month(day) = 3").limit(1)
    assert write(replaced, table, mode="overwrite", **where) is not None
    assert len(service.ids(table)) == 1


def test_a_stream_that_would_leave_out_batches_is_refused(
    service: Service, spark: Any, tmp_path: Path
) -> None:
    """P11, P15: after a rollback, and after its checkpoint has lost its id. Batches without rows count."""
    table, source, checkpoint = service.table(), tmp_path / "source", tmp_path / "checkpoint"
    source.mkdir()

    def stream(number: int) -> None:
        """Run until the files 0 to ``number`` are read, one in each batch. File 1 has no row of use."""
        file = source / f"{number}.json"
        if not file.exists():
            file.write_text(json.dumps({"id": number, "kind": "k"}))
            os.utime(file, (number + 1, number + 1))
        rows = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(source))
        query = (
            rows.where("id <> 1")
            .writeStream.format("distop")
            .options(table=table, coordinator=service.address, checkpointLocation=str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    for number in range(3):
        stream(number)
    ((name, _),) = service.client.table(table).watermarks().items()
    assert service.client.table(table).watermarks() == {name: {"batch": "2"}}
    [first, _] = service.iceberg(table).snapshots()
    rolled_back = service.client.start(table, "rollback", {"snapshot": str(first.snapshot_id)})
    rolled_back.result(timeout_s=60)
    assert service.client.table(table).watermarks() == {name: {"batch": "1"}}
    known = service.files(table)
    with pytest.raises(Exception, match=f"batch 3 of {name} .* batch 1"):
        stream(3)
    assert service.ids(table) == [0]
    until(lambda: service.files(table) == known)
    for log in ("commits", "offsets"):
        for path in [*(checkpoint / log).glob("[23]"), *(checkpoint / log).glob(".[23].crc")]:
            path.unlink()
    stream(3)
    assert service.ids(table) == [0, 2, 3]
    metadata = checkpoint / "metadata"
    former = metadata.read_text()
    (checkpoint / ".metadata.crc").unlink()
    metadata.write_text(json.dumps({"id": str(uuid4())}))
    with pytest.raises(Exception, match="no batch of stream:"):
        stream(4)
    metadata.write_text(former)
    stream(4)
    assert service.ids(table) == [0, 2, 3, 4]


def test_every_value_of_a_partition_column_has_its_place(service: Service, spark: Any) -> None:
    """Also those that Spark would put into the folder of NULL, or of another value, or that are no names."""
    table = service.table(schema=["id: long", "kind: string"], partitionBy=["kind"])
    where = {"coordinator": service.address}
    kinds = ["", None, "__HIVE_DEFAULT_PARTITION__", "K", "k", "x" * 300]
    write(spark.createDataFrame([*enumerate(kinds)], COLUMNS).coalesce(1), table, **where)
    assert {row["id"]: row["kind"] for row in service.iceberg(table).scan().to_arrow().to_pylist()} == dict(
        enumerate(kinds)
    )
    assert {task.file.partition[0] for task in service.iceberg(table).scan().plan_files()} == set(kinds)
    hours = service.table(schema=["id: long", "at: timestamptz"], partitionBy=["at"])
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        at = "timestamp_seconds(1382832000 + 3600 * id) AS at"  # 2013-10-27 00:00 UTC: 02:00, twice
        write(numbers(spark, 2).coalesce(1).selectExpr("id", at), hours, **where)
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert len(list(service.iceberg(hours).scan().plan_files())) == 2


def test_partitions_by_numbers_and_nan_in_statistics(service: Service, spark: Any) -> None:
    """P14: a footer leaves NaN out, and does not say which zero it has."""
    table = service.table(schema=["id: long", "x: double", "y: double"], partitionBy=["x"])
    xs = [0.1, math.nan, None, 0.0, -1 / 3, math.inf]
    rows = [(number, x, math.nan if number == 4 else 1.5) for number, x in enumerate(xs)]
    frame = spark.createDataFrame(rows, "id long, x double, y double")
    write(frame.coalesce(1), table, coordinator=service.address)
    files = [task.file for task in service.iceberg(table).scan().plan_files()]
    assert sorted(repr(file.partition[0]) for file in files) == sorted(map(repr, xs))
    assert all(not {2, 3} & {*file.lower_bounds} for file in files), "some of both columns are NaN"
    write(frame.where("id < 1"), table, coordinator=service.address)
    [file] = [
        task.file for task in service.iceberg(table).scan().plan_files() if task.file.lower_bounds.get(3)
    ]
    assert (dict(file.nan_value_counts), {*file.lower_bounds}) == ({2: 0, 3: 0}, {1, 2, 3})
    assert ids_of(reading(service, spark, table, filter="x = 0.1")) == [0, 0]


def test_what_spark_cannot_write_by_itself_is_refused_and_leaves_nothing(
    service: Service, spark: Any
) -> None:
    """U3, P9"""
    where = {"coordinator": service.address}
    with pytest.raises(PreconditionFailed, match="bucket"):
        write(numbers(spark, 3), service.table(partitionBy=["bucket[4](id)"]), **where)
    table = service.table(schema=["id: long not null", "kind: string"])
    with pytest.raises(BadRow, match="is required"):
        write(spark.createDataFrame([(1, "k"), (None, "k")], COLUMNS), table, **where)
    texts = service.table(schema=["id: long", "kind: string not null"])
    with pytest.raises(BadRow, match="'kind' is required"):  # Parquet counts no NULLs next to a long text
        write(spark.createDataFrame([(1, "k" * 5000), (2, None)], COLUMNS).coalesce(1), texts, **where)
    moments = service.table(schema=["day: date", "at: timestamptz", "local: timestamp", "kind: string"])
    for value, says in (
        ("CAST(X'ff61' AS string) AS kind", r"'kind': b'\\xffa' is not UTF-8"),
        ("date_add(DATE'9999-12-31', 1) AS day", "'day': 10000-01-01 is outside of the years"),
        (
            "timestamp_micros(253402300800000000) AS at",
            "'at': 10000-01-01 00:00:00.000000Z is outside of the years",
        ),
        (
            "TIMESTAMP_NTZ'0001-01-01 00:00:00' - INTERVAL 1 SECOND AS local",
            "'local': 0000-12-31 23:59:59.000000 is outside",
        ),
    ):
        with pytest.raises(BadRow, match=says):
            write(spark.range(1).selectExpr(value), moments, **where)
    assert service.client.table(moments).get().snapshot_id is None
    first_and_last = spark.sql(
        "SELECT DATE'0001-01-01' AS day, timestamp_micros(-62135596800000000) AS at "
        "UNION SELECT DATE'9999-12-31', timestamp_micros(253402300799999999)"
    )
    write(first_and_last, moments, **where)
    assert len(service.iceberg(moments).scan().to_arrow().to_pylist()) == 2
    with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
        write(numbers(spark, 10).selectExpr("1 DIV (id - 9) AS id", "kind"), table, **where)
    with pytest.raises(InvalidArgument, match="no column 'number'"):
        write(numbers(spark, 3).withColumnRenamed("id", "number"), table, **where)
    assert service.client.table(table).get().snapshot_id is None
    until(lambda: not service.files(table))
