"""A user's own Spark program that ingests a DataFrame. Its arguments: ADDRESS MASTER FOLDER.

Rows in random order are dealt out over twelve partitions. Those from the fourth on wait for
``FOLDER/release`` before they look at their rows.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import rand

from distop.cli.output.logs import configure
from distop.client import Client
from distop.executor.launch import SETTINGS
from distop.spark_jobs.ingest import ingest_dataframe

ROWS, PARTITIONS, AT_ONCE = 6000, 12, 3


def main(address: str, master: str, folder: str) -> int:
    configure()
    builder = SparkSession.builder.master(master)
    for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": "3"}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()

    def held(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        while context.partitionId() >= AT_ONCE and not Path(folder, "release").exists():
            time.sleep(0.01)
        yield from batches

    frame = spark.range(ROWS).orderBy(rand()).repartition(PARTITIONS).mapInArrow(held, "id long")
    with Client(address, timeout_s=20, connect_timeout_s=20) as client:
        ended = ingest_dataframe(spark, frame, table="t", client=client, request_id="nightly")
    again = spark.range(3).count()
    spark.stop()
    return 0 if again == 3 and ended.facts["rows"] == ROWS else 3


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
