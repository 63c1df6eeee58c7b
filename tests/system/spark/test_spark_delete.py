"""Deletion whose jobs are tasks of Spark, and what Spark reads then."""

from typing import Any

import pytest

from distop.executor.runner import run_hosted
from distop.metastore.records.names import OperationId
from distop.spark import read
from distop.spark_jobs.delete.operation import Delete
from support.spark.spark_driver import numbers
from support.spark.spark_service import Service, ids_of, reading, writing

pytestmark = [pytest.mark.spark, pytest.mark.slow("six jobs of Spark, and most kinds of its Python workers")]


def test_deleted_rows_are_not_read_by_spark(service: Service, spark: Any) -> None:
    """P3, P14: by the data source, nor by Spark's own reader; the snapshot before still has it."""
    table = service.table()
    writing(service, table, numbers(spark, 40))
    writing(service, table, numbers(spark, 60).where("id >= 40"))
    before = service.client.table(table).get().snapshot_id
    started = service.client.start(table, "delete", {"where": "kind = 'k0' or id in (4, 5, 59)"})
    ended = run_hosted(
        OperationId.parse(started.name),
        Delete(),
        lambda: started.wait(timeout_s=1.0),
        session=spark,
        etcd=service.etcd,
    ).raise_for_outcome()
    left = [n for n in range(60) if n % 3 and n not in (4, 5, 59)]
    assert ended.facts["removedRows"] == 60 - len(left)
    assert ids_of(reading(service, spark, table)) == left
    assert ids_of(read(spark, table, coordinator=service.address)) == left
    assert ids_of(reading(service, spark, table, snapshotId=str(before))) == list(range(60))
