"""Rows merged into a table by keys, against Spark's ``MERGE INTO``, its join, and pyiceberg's ``upsert``.

    make bench-merge

Real processes: etcd, a coordinator, an executor with two threads. A table has 4 million rows in 20 files,
sorted by their keys. A batch of 20,000 rows, half of them new, is merged into it: once with keys of its
last files, as changes of recent days are, and once with keys of all files. Beside it, in the same run and
on the same rows: Spark on two cores writes the table anew without the old rows and with the new ones, as
one does where nothing keeps track of files; ``MERGE INTO`` on two cores, by Iceberg's own writer through
the catalog, on a table of its own, in the Spark that ``make conformance`` has put by, where it has (it
copies files, too, as is its default); and pyiceberg's ``Table.upsert``, on a tenth of the batch. All of
Spark's ways must come to the same rows. The best of two rounds counts.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import Processes, print_json, print_table, sized, until
from peers.native import NativeSpark

from distop.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.executor.launch.settings import SETTINGS
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.process.loop import event_loop

FILES, ROWS_PER_FILE, BATCH, ROUNDS = sized((20, 200_000, 20_000, 2), (2, 400, 40, 1))
ROWS = FILES * ROWS_PER_FILE
SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.float64()), ("day", pa.int32()), ("note", pa.string())])


def rows_of(ids: np.ndarray, version: int) -> pa.Table:
    columns = [ids, ids * 0.5 + version, (ids % 365).astype(np.int32)]
    notes = pa.array([f"note {number % 9973} of {version}" for number in ids.tolist()])
    return pa.table([*map(pa.array, columns), notes], schema=SCHEMA)


def batch_of(kind: str, size: int, version: int) -> pa.Table:
    chance = np.random.default_rng(version)
    first = ROWS * 9 // 10 if kind == "recent" else 0
    known = chance.choice(np.arange(first, ROWS), size // 2, replace=False)
    new = np.arange(ROWS, ROWS + size - size // 2)
    return rows_of(np.concatenate([known, new]), version)


def make_files(folder: Path) -> list[str]:
    """The files that all tables begin with."""
    paths = [folder / f"{number:02}.parquet" for number in range(FILES)]
    for number, path in enumerate(paths):
        ids = np.arange(number * ROWS_PER_FILE, (number + 1) * ROWS_PER_FILE)
        pq.write_table(rows_of(ids, 0), path)
    return [str(path) for path in paths]


def make_table(catalog: EtcdCatalog, name: str, folder: Path, files: list[str]) -> None:
    table = catalog.create_table(f"default.{name}", SCHEMA, str(folder / name))
    with table.transaction() as transaction:
        transaction.add_files(files)


def digest(table: pa.Table) -> tuple[int, int, float]:
    """Count and sums of the rows: the same for the same rows in any order."""
    return table.num_rows, int(np.sum(table["id"].to_numpy())), float(np.sum(table["amount"].to_numpy()))


def with_spark(session: Any, source: list[str], batch: Path, target: Path) -> float:
    began = time.perf_counter()
    new = session.read.parquet(str(batch))
    old = session.read.parquet(*source).join(new.select("id"), "id", "left_anti")
    old.unionByName(new).write.mode("overwrite").parquet(str(target))
    return time.perf_counter() - began


def with_merge(spark: NativeSpark, table: str, batch: Path) -> float:
    return spark.timed(
        f"MERGE INTO distop.default.{table} t USING (SELECT * FROM parquet.`{batch}`) n ON t.id = n.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


async def with_distop(client: AsyncClient, table: str, batch: Path) -> tuple[float, dict[str, Any]]:
    began = time.perf_counter()
    started = await client.start(table, "ingest", {"paths": str(batch), "mode": "merge", "keys": ["id"]})
    ended = await started.result(timeout_s=600)
    return time.perf_counter() - began, ended.facts


async def main() -> None:
    from pyspark.sql import SparkSession

    took: dict[str, list[float]] = {}
    changed: dict[str, int] = {}
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="distop-bench-")))
        source = make_files(folder)
        port, address = free_port(), f"127.0.0.1:{free_port()}"
        etcd = ending.enter_context(EtcdProcess(folder / "etcd"))
        config = EtcdConfig(endpoints=(etcd.endpoint,))
        processes = ending.enter_context(Processes(folder, config.to_env()))
        served = ("--catalog", address, "--warehouse", f"file://{folder}/tables")
        processes.start("coordinator", "coordinator", "--listen", f"127.0.0.1:{port}", *served)
        processes.start("executor", "executor", "--master", "none", "--slots", "2")
        catalog = EtcdCatalog("bench", **{"etcd.endpoints": config.endpoints[0]})
        builder = SparkSession.builder.master("local[2]").appName("bench")
        for name, value in {**SETTINGS, "spark.ui.enabled": "false"}.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        session.range(10).count()
        merging = None
        if missing := NativeSpark.missing():
            print(f"Spark's MERGE INTO is left out: {missing}")
        else:
            merging = ending.enter_context(NativeSpark(f"http://{address}", folder / "spark.log"))
        async with AsyncClient(f"127.0.0.1:{port}", timeout_s=60) as client:

            async def ready() -> bool | None:
                roles = {member.role for member in await client.members()}
                return True if {"coordinator", "executor"} <= roles else None

            await until(ready, "the executor")
            if merging:
                merging.sql("SELECT sum(id) FROM range(1000000)")  # it is up, and warm
            for number in range(ROUNDS):
                for kind in ("recent", "spread"):
                    name = f"{kind}{number}"
                    make_table(catalog, name, folder, source)
                    batch = folder / f"{name}-batch" / "1.parquet"
                    batch.parent.mkdir()
                    pq.write_table(batch_of(kind, BATCH, number + 1), batch)
                    target = folder / f"{name}-spark"
                    took.setdefault(f"spark {kind}", []).append(
                        await asyncio.to_thread(with_spark, session, source, batch, target)
                    )
                    seconds, facts = await with_distop(client, name, batch)
                    took.setdefault(f"distop {kind}", []).append(seconds)
                    changed[kind] = facts["removedFiles"]
                    expected = digest(pq.read_table(target))
                    assert digest(catalog.load_table(f"default.{name}").scan().to_arrow()) == expected
                    shutil.rmtree(target)
                    if merging:
                        make_table(catalog, f"{name}_merged", folder, source)
                        took.setdefault(f"merge {kind}", []).append(
                            await asyncio.to_thread(with_merge, merging, f"{name}_merged", batch)
                        )
                        merged = catalog.load_table(f"default.{name}_merged").scan().to_arrow()
                        assert digest(merged) == expected
            make_table(catalog, "upserted", folder, source)
            small = batch_of("recent", BATCH // 10, 9)
            began = time.perf_counter()
            result = catalog.load_table("default.upserted").upsert(small, join_cols=["id"])
            took["pyiceberg recent"] = [time.perf_counter() - began]
            assert (result.rows_updated, result.rows_inserted) == (BATCH // 20, BATCH // 20)
        session.stop()
    best = {name: min(seconds) for name, seconds in took.items()}
    upsert = f"pyiceberg's upsert of {BATCH // 10:,} rows, s"
    print_table(
        f"{BATCH:,} rows merged into {ROWS:,} in {FILES} files",
        ["", "files written anew", "distop, s", "MERGE INTO, s", "Spark's join, s", upsert],
        [
            [
                kind,
                str(changed[kind]),
                f"{best[f'distop {kind}']:.2f}",
                f"{best[f'merge {kind}']:.2f}" if merging else "",
                f"{best[f'spark {kind}']:.2f}",
                f"{best['pyiceberg recent']:.2f}" if kind == "recent" else "",
            ]
            for kind in ("recent", "spread")
        ],
    )
    distop = {kind: best[f"distop {kind}"] for kind in ("recent", "spread")}
    figures = {f"{kind}_over_spark": best[f"spark {kind}"] / distop[kind] for kind in distop}
    if merging:
        figures |= {f"{kind}_over_spark_merge": best[f"merge {kind}"] / distop[kind] for kind in distop}
    figures["recent_over_pyiceberg"] = best["pyiceberg recent"] / distop["recent"]
    print_json(**{name: round(ratio, 2) for name, ratio in figures.items()})


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(main())
