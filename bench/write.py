"""Writing DataFrames into a table, against Spark's own Parquet writer.

    make bench-write [ARGS="ROWS [ROUNDS]"]

5 million rows of 5 columns in 8 partitions, computed on the way, on ``local[2]``. Three ways, in turns in one
session: Spark's own ``df.write.parquet``; ``df.write.format("distop")``, whose rows pass through Python; and
``distop.spark.write``, which has Spark write the files and publishes them. Two more in the same turns,
in the Spark that Iceberg's runtime is there for, where ``make conformance`` has put it by: Parquet, and
Iceberg's own writer through the catalog. All compress by zstd, level 3. Each is warmed up, and the median of
three rounds counts. Tables and folders are on one disk; etcd and coordinator run beside Spark. Processor time
is that of all these processes; where others keep the machine busy its ratios are steadier.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from common import Processes, cpu_of_all_s, print_json, print_table, sized
from peers.native import NativeSpark

from distop.client import Client
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else sized(5_000_000, 1_000)
PARTITIONS = sized(8, 2)
ROUNDS = int(sys.argv[2]) if len(sys.argv) > 2 else sized(3, 1)
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
    from distop.spark import register

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "4g")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    return spark


class Taken(NamedTuple):
    """Seconds: on the clock, and of processor time in all processes."""

    clock: float
    cpu: float


def timed(way: Callable[[int], None]) -> Taken:
    cpu, began = cpu_of_all_s(), time.perf_counter()
    way(ROWS)
    return Taken(time.perf_counter() - began, cpu_of_all_s() - cpu)


class Iceberg:
    """The two ways of the Spark that has Iceberg's runtime; SQL that does what DataFrames do there."""

    def __init__(self, spark: NativeSpark, folder: Path) -> None:
        self._spark, self._folder, self._count = spark, folder, iter(range(1000))
        columns = "id BIGINT, customer BIGINT, price DOUBLE, item STRING, day DATE"
        spark.sql(f"CREATE TABLE distop.default.iceberg ({columns}) USING iceberg")

    def parquet(self, rows: int) -> None:
        folder = self._folder / f"parquet-{next(self._count)}"
        self._spark.sql(
            f"INSERT OVERWRITE DIRECTORY '{folder}' USING parquet OPTIONS (compression 'zstd') {select(rows)}"
        )

    def iceberg(self, rows: int) -> None:
        self._spark.sql(f"INSERT INTO distop.default.iceberg {select(rows)}")

    def count(self) -> int:
        [[rows]] = self._spark.sql("SELECT count(*) FROM distop.default.iceberg")
        return int(rows)


def select(rows: int) -> str:
    return f"SELECT {', '.join(COLUMNS)} FROM range(0, {rows}, 1, {PARTITIONS})"


def measure(client: Client, address: str, folder: Path, iceberg: NativeSpark | None) -> dict[str, Taken]:
    """The medians of what each way takes, by its name."""
    from distop.spark import read, write

    spark = session()  # which forks: before gRPC has threads

    def frame(rows: int) -> Any:
        return spark.range(0, rows, 1, PARTITIONS).selectExpr(*COLUMNS)

    for table in ("source", "plain"):
        client.create_table(table, str(folder / table))
    other = Iceberg(iceberg, folder) if iceberg else None
    count = iter(range(1000))

    def native(rows: int) -> None:
        frame(rows).write.option("compression", "zstd").parquet(str(folder / f"native-{next(count)}"))

    def source(rows: int) -> None:
        frame(rows).write.format("distop").options(table="source", coordinator=address).mode("append").save()

    def plain(rows: int) -> None:
        write(frame(rows), "plain", coordinator=address)

    ways = {"native": native, "source": source, "plain": plain}
    if other:
        ways |= {"parquet": other.parquet, "iceberg": other.iceberg}
    for way in ways.values():
        way(ROWS // 10)
    taken: dict[str, list[Taken]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            taken[name].append(timed(way))
        for folder_of_rows in (*folder.glob("native-*"), *folder.glob("parquet-*")):
            shutil.rmtree(folder_of_rows)
    expected = ROWS // 10 + ROUNDS * ROWS
    counts = {table: read(spark, table, coordinator=address).count() for table in ("source", "plain")}
    if other:
        counts["iceberg"] = other.count()
    for table, count_of_rows in counts.items():
        if count_of_rows != expected:
            raise SystemExit(f"table {table} holds {count_of_rows:,} rows instead of {expected:,}")
    spark.stop()
    return {
        name: Taken(*(statistics.median(column) for column in zip(*each, strict=True)))
        for name, each in taken.items()
    }


def main() -> None:
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="distop-bench-")))
        etcd = ending.enter_context(EtcdProcess(folder / "etcd"))
        environment = EtcdConfig(endpoints=(etcd.endpoint,)).to_env()
        processes = ending.enter_context(Processes(folder, environment))
        address, catalog = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        served = ("--catalog", catalog, "--warehouse", f"file://{folder}/tables")
        processes.start("coordinator", "coordinator", "--listen", address, *served)
        client = ending.enter_context(Client(address, timeout_s=60, connect_timeout_s=60))
        iceberg = None
        if missing := NativeSpark.missing():
            print(f"Iceberg's own writer is left out: {missing}")
        else:
            iceberg = ending.enter_context(NativeSpark(f"http://{catalog}", folder / "spark.log"))
        taken = measure(client, address, folder, iceberg)
    names = {
        "native": "df.write.parquet",
        "source": 'df.write.format("distop")',
        "plain": "distop.spark.write",
        "parquet": "Parquet, Spark 4.1",
        "iceberg": "Iceberg's, Spark 4.1",
    }
    bare = {"iceberg": "parquet", "parquet": "parquet"}
    against = {way: taken[bare.get(way, "native")] for way in taken}
    ratios = {way: against[way].clock / of.clock for way, of in taken.items()}
    of_cpu = {way: against[way].cpu / of.cpu for way, of in taken.items()}
    rows = [
        (names[way], *(f"{figure:.2f}" for figure in (*of, ROWS / of.clock / 1e6, ratios[way], of_cpu[way])))
        for way, of in taken.items()
    ]
    headings = ("way", "seconds", "of CPUs", "million rows/s", "Parquet / this", "of CPUs")
    print_table(f"{ROWS:,} rows of {len(COLUMNS)} columns, {PARTITIONS} partitions", headings, rows)
    keys = {
        "source": "native_over_distop",
        "plain": "native_over_write",
        "iceberg": "parquet_over_native_iceberg",
    }
    figures = {key: ratios[way] for way, key in keys.items() if way in ratios}
    figures |= {f"{key}_cpu": of_cpu[way] for way, key in keys.items() if way in ratios}
    print_json(**{name: round(ratio, 3) for name, ratio in figures.items()})


if __name__ == "__main__":
    main()
