"""A user's own Spark program that writes to tables: ``python -m support.spark.spark_driver JSON``.

It writes rows and runs a stream at the same time. Each waits for ever in the middle of its rows: there tests
kill it.
"""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from distop.executor.launch import SETTINGS
from distop.spark import configure, register

COLUMNS = "id long, kind string"


def session_of(master: str, **settings: str) -> SparkSession:
    """A session that knows the data source, and is quick about Python.

    It is set up for Iceberg's runtime too, which is not there: only names below its catalog are not found.
    """
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = configure(SparkSession.builder.master(master)).config("spark.driver.host", "127.0.0.1")
    for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": "2", **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def gated(frame: DataFrame, gate: str, at: int) -> DataFrame:
    """The same rows; the one with id ``at`` never comes. A file ``gate`` with a suffix says that it is waited
    for."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if at in batch["id"].to_pylist():
                Path(f"{gate}.{os.getpid()}").touch()
                signal.pause()
            yield batch

    return frame.mapInArrow(passing, COLUMNS)


def numbers(session: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    """Rows with ids from 0 on, of three kinds."""
    return session.range(0, count, 1, partitions).selectExpr("id", "concat('k', id % 3) AS kind")


def main(options: dict[str, Any]) -> None:
    session = session_of("local[2]")

    def written(frame: DataFrame, name: str, at: int) -> Any:
        rows = gated(frame, f"{options['gate']}.{name}", at)
        write: Any = rows.writeStream if frame.isStreaming else rows.write
        return write.format("distop").options(coordinator=options["coordinator"], **options[name])

    batches = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(options["source"])
    query = written(batches, "stream", 250).trigger(availableNow=True).start()
    written(numbers(session, 1000), "write", 999).mode("append").save()
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
