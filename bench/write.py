"""Writing DataFrames into a table, against Spark's own Parquet writer.

    make bench-write

5 million rows of 5 columns in 8 partitions, computed on the way, on ``local[2]``. Three ways, in turns in one
session: Spark's own ``df.write.parquet``; ``df.write.format("distop")``, whose rows pass through Python; and
``distop.spark_jobs.write``, which has Spark write the files and publishes them. Each is warmed up, and the
median of three rounds counts. Tables and folders are on one disk; etcd and coordinator run beside Spark.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import Processes, print_json, print_table

from distop.client import Client
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000
PARTITIONS = 8
ROUNDS = 3
COLUMNS = (
    "id",
    "id % 1000 AS customer",
    "CAST(id AS double) * 1.5 AS price",
    "concat('item-', id % 5000) AS item",
    "date_add(DATE'2013-01-01', CAST(id % 365 AS int)) AS day",
)


def session() -> Any:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    from distop.executor.launch import SETTINGS
    from distop.spark_jobs import register

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


def timed(way: Callable[[int], None]) -> float:
    began = time.perf_counter()
    way(ROWS)
    return time.perf_counter() - began


def measure(client: Client, address: str, folder: Path) -> dict[str, float]:
    """Seconds of each way."""
    from distop.spark_jobs import read, write

    spark = session()

    def frame(rows: int) -> Any:
        return spark.range(0, rows, 1, PARTITIONS).selectExpr(*COLUMNS)

    for table in ("source", "plain"):
        client.create_table(table, str(folder / table))
    count = iter(range(1000))

    def native(rows: int) -> None:
        frame(rows).write.option("compression", "zstd").parquet(str(folder / f"native-{next(count)}"))

    def source(rows: int) -> None:
        frame(rows).write.format("distop").options(table="source", coordinator=address).mode("append").save()

    def plain(rows: int) -> None:
        write(frame(rows), "plain", coordinator=address)

    ways = {"native": native, "source": source, "plain": plain}
    for way in ways.values():
        way(ROWS // 10)
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            taken[name].append(timed(way))
    for table in ("source", "plain"):
        expected = ROWS // 10 + ROUNDS * ROWS
        found = read(spark, table, coordinator=address).count()
        if found != expected:
            raise SystemExit(f"table {table} holds {found:,} rows instead of {expected:,}")
    spark.stop()
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="distop-bench-") as name,
        EtcdProcess(Path(name) / "etcd") as etcd,
        Processes(Path(name), EtcdConfig(endpoints=(etcd.endpoint,)).to_env()) as processes,
    ):
        address = f"127.0.0.1:{free_port()}"
        processes.start("coordinator", "coordinator", "--listen", address)
        with Client(address, timeout_s=60, connect_timeout_s=60) as client:
            seconds = measure(client, address, Path(name))
    native = seconds["native"]
    rows = [
        (what, f"{seconds[key]:.1f}", f"{ROWS / seconds[key] / 1e6:.2f}", f"{native / seconds[key]:.2f}")
        for what, key in (
            ("df.write.parquet", "native"),
            ('df.write.format("distop")', "source"),
            ("distop.spark_jobs.write", "plain"),
        )
    ]
    headings = ("way", "seconds", "million rows/s", "native / this")
    print_table(f"{ROWS:,} rows of {len(COLUMNS)} columns, {PARTITIONS} partitions", headings, rows)
    print_json(
        native_over_distop=round(native / seconds["source"], 3),
        native_over_write=round(native / seconds["plain"], 3),
    )


if __name__ == "__main__":
    main()
