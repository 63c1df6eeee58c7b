"""What an index saves a look-up of one value, in a table of 2,000 files or of ``ARGS``.

    make bench-index [ARGS=10000]

Real processes: etcd, a coordinator, an executor. A pyiceberg program writes a million rows to a table, 500
to a file, with ids in random order: each file's least and greatest id enclose nearly all of them, so that
statistics rule out none. ``build_index`` makes an index of the ids. Then single ids are looked up, with the
index and, as the baseline of the same run, without it; both read the same snapshot through
``spark_jobs.tables``, and must find the same rows. Opens are counted in the file system beneath.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from pathlib import Path
from typing import Any

import counting_io
import pyarrow as pa
from common import Processes, print_json, print_table, run_on_own_etcd, sized, until_executors

from distop.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.lake.index import lookup as index_lookup
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.metastore.tables.registry import read_indexes
from distop.spark_jobs.tables import TableSnapshot, open_snapshot

FILES = int(sys.argv[1]) if sys.argv[1:] else sized(2000, 8)
ROWS = sized(1_000_000, 800)
LOOKUPS, SCANS = sized((30, 2), (3, 1))
TABLE = "default.events"


def write_table(config: EtcdConfig, location: str) -> None:
    """A table of so many files, in one commit of a pyiceberg program."""
    ids = list(range(ROWS))
    random.Random(1).shuffle(ids)
    rows = pa.table({"id": ids, "at": list(range(ROWS)), "name": [f"n{number % 977}" for number in ids]})
    catalog = EtcdCatalog("bench", **{"etcd.endpoints": config.endpoints[0]})
    per_file = rows.nbytes // FILES
    properties = {"write.target-file-size-bytes": str(per_file)}
    catalog.create_table(TABLE, rows.schema, location, properties=properties).append(rows)
    catalog.close()


async def opened_snapshot(etcd: EtcdClient, config: EtcdConfig) -> TableSnapshot:
    """The present snapshot with its indexes, read through a file system that counts."""
    catalog = EtcdCatalog("bench", **{"etcd.endpoints": config.endpoints[0]})
    location = await asyncio.to_thread(lambda: catalog.load_table(TABLE).metadata_location)
    catalog.close()
    indexes = await read_indexes(etcd, etcd.keyspace.table("events"))
    snapshot = open_snapshot(location, indexes=indexes)
    snapshot.__dict__["io"] = counting_io.CountingIO()  # in the place of the cached one
    return snapshot


def look_up(snapshot: TableSnapshot, number: int, *, use_indexes: bool) -> list[dict[str, Any]]:
    """The rows with an id."""
    where = f"id == {number}"
    files = snapshot.plan_files(where, use_indexes=use_indexes)
    return [row for batch in snapshot.batches(files, where=where) for row in batch.to_pylist()]


def measured(
    snapshot: TableSnapshot, numbers: list[int], *, use_indexes: bool
) -> tuple[float, float, float, list[Any]]:
    """Means of one look-up: seconds, data files opened, index files opened; and the rows of each look-up."""
    counting_io.opened.clear()
    began = time.perf_counter()
    rows = [look_up(snapshot, number, use_indexes=use_indexes) for number in numbers]
    took = time.perf_counter() - began
    opened = counting_io.opened
    return took / len(numbers), opened["data"] / len(numbers), opened["index"] / len(numbers), rows


async def measure(config: EtcdConfig, processes: Processes, folder: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    processes.start("coordinator", "coordinator", "--listen", address)
    processes.start("executor", "executor", "--master", "none")
    etcd = EtcdClient(config)
    await asyncio.to_thread(write_table, config, f"file://{folder}/events")
    async with AsyncClient(address, timeout_s=30, connect_timeout_s=30) as client:
        await until_executors(client, "build_index")
        began = time.perf_counter()
        operation = await client.start("events", "build_index", {"column": "id"})
        built = await operation.result(timeout_s=300)
        build_s = time.perf_counter() - began
    snapshot = await opened_snapshot(etcd, config)
    await etcd.close()
    rng = random.Random(2)
    numbers = [rng.randrange(ROWS) for _ in range(LOOKUPS)]
    scan_s, scanned, _, expected = measured(snapshot, numbers[:SCANS], use_indexes=False)
    index_lookup._manifests.clear()
    first_s, _, first_index, _ = measured(snapshot, numbers[:1], use_indexes=True)
    index_s, opened, of_index, by_index = measured(snapshot, numbers, use_indexes=True)
    if by_index[:SCANS] != expected or any(len(rows) != 1 for rows in by_index):
        raise SystemExit("a look-up by the index has not found the rows that a scan has found")
    print_table(
        f"one id of {ROWS:,}, in a table of {FILES:,} files",
        ("", "seconds", "data files opened", "index files opened"),
        [
            ("without the index", f"{scan_s:.3f}", f"{scanned:,.0f}", ""),
            ("with it, for the first time", f"{first_s:.3f}", "1", f"{first_index:.0f}"),
            ("with it", f"{index_s:.3f}", f"{opened:.1f}", f"{of_index:.1f}"),
        ],
    )
    size = int(built.facts["bytes"]) / (1 << 20)
    print(f"the index was built in {build_s:.1f} s and takes {size:.1f} MiB in {built.facts['parts']} parts")
    print_json(
        files_opened_fraction=round(opened / FILES, 5),
        index_files_opened=round(of_index, 1),
        lookup_speedup=round(scan_s / index_s, 1),
        build_s=round(build_s, 1),
    )


def main() -> None:
    run_on_own_etcd(lambda config, folder, processes: measure(config, processes, folder))


if __name__ == "__main__":
    main()
