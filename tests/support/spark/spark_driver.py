"""A user's own Spark program that writes to a table: ``python -m support.spark.spark_driver JSON``.

Waits, in the middle of its rows, until a file is there. That is when tests kill it, or parts of it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from distop.executor.launch import SETTINGS
from distop.spark_jobs import register

COLUMNS = "id long, kind string"


def session_of(master: str, **settings: str) -> SparkSession:
    """A session that knows the data source, and is quick about Python."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).config("spark.driver.host", "127.0.0.1")
    for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": "2", **settings}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def gated(frame: DataFrame, gate: str, at: int) -> DataFrame:
    """The same rows; the one with id ``at`` does not come before the file ``gate`` is there."""

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if at in batch["id"].to_pylist():
                Path(f"{gate}.reached.{os.getpid()}").touch()
                while not Path(gate).exists():
                    time.sleep(0.05)
            yield batch

    return frame.mapInArrow(passing, COLUMNS)


def awkward(frame: DataFrame, gate: str, slow: int, deadly: int) -> DataFrame:
    """The same rows; who comes first to the row ``slow`` waits there, at ``deadly`` its executor dies."""

    def first(what: str) -> bool:
        try:
            Path(f"{gate}.{what}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def passing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            ids = batch["id"].to_pylist()
            if deadly in ids and first("deadly"):
                # Its parent is the daemon of Python workers, and the parent of that the executor.
                executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
                os.kill(executor, signal.SIGKILL)
            if slow in ids and first("slow"):
                while not Path(gate).exists():
                    time.sleep(0.05)
            yield batch

    return frame.mapInArrow(passing, COLUMNS)


def numbers(session: SparkSession, count: int, partitions: int = 4) -> DataFrame:
    """Rows with ids from 0 on, of three kinds."""
    return session.range(0, count, 1, partitions).selectExpr("id", "concat('k', id % 3) AS kind")


def main(what: dict[str, Any]) -> None:
    session = session_of(what["master"], **what.get("settings", {}))
    options = {"table": "t", "coordinator": what["coordinator"], **what.get("options", {})}
    if "stream" in what:
        read = session.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(what["stream"])
        query = (
            gated(read, what["gate"], what["at"])
            .writeStream.format("distop")
            .options(**options, checkpointLocation=what["checkpoint"])
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    else:
        frame, gate, at = numbers(session, what["rows"]), what["gate"], what["at"]
        frame = awkward(frame, gate, at, what["deadly"]) if "deadly" in what else gated(frame, gate, at)
        frame.write.format("distop").options(**options).mode("append").save()
    session.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
