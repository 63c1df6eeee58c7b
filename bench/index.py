"""What an index saves a look-up of one value, in a table of 2,000 files, or as many as are asked for.

    make bench-index [ARGS=10000]

Real processes: etcd, a coordinator, an executor. A pyiceberg program writes a million rows to a table, 500
to a file, with ids in random order: each file's least and greatest id enclose nearly all of them, so that
statistics rule out none. ``build_index`` makes an index of the ids. Then single ids are looked up, with the
index and, as the baseline of the same run, without it; both read the same snapshot through
``spark_jobs.tables.snapshot``, and must find the same rows. Opens are counted in the file system beneath.

Then pyiceberg plans scans of the table, of one id and of all rows, by itself from the manifests and through
the catalog of the coordinator, in turns: seconds, files that are left to open, bytes read. At last four
clients have all files planned at once: so much memory the coordinator has taken by then.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import counting_io
import pyarrow as pa
from common import Processes, peak_mb, print_json, print_table, run_on_own_etcd, sized, until
from pyiceberg.catalog.rest import RestCatalog

from distop.client import AsyncClient
from distop.commit.catalog import EtcdCatalog
from distop.commit.index import lookup as index_lookup
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.metastore.tables.indexes import read_indexes
from distop.spark_jobs.tables.snapshot import TableSnapshot, open_snapshot

FILES = int(sys.argv[1]) if sys.argv[1:] else sized(2000, 8)
ROWS = sized(1_000_000, 800)
LOOKUPS, SCANS = sized((30, 2), (3, 1))
PLANS, AT_ONCE = sized((3, 4), (1, 2))
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
    """Seconds, data files and files of the index that are opened, all for one look-up; and the rows found."""
    counting_io.opened.clear()
    began = time.perf_counter()
    found = [look_up(snapshot, number, use_indexes=use_indexes) for number in numbers]
    took = time.perf_counter() - began
    opened = counting_io.opened
    return took / len(numbers), opened["data"] / len(numbers), opened["index"] / len(numbers), found


class Planner:
    """pyiceberg as a client of the catalog, which plans itself or has the catalog plan."""

    def __init__(self, address: str, **properties: str) -> None:
        self._catalog = RestCatalog("bench", uri=f"http://{address}", **properties)
        self._bytes: list[int] = []
        hooks = self._catalog._session.hooks["response"]
        hooks.append(lambda reply, **_: self._bytes.append(len(reply.content)))

    def plan(self, row_filter: str) -> tuple[float, int, int]:
        """Seconds of a plan; the files that it leaves; the bytes of the answers of the catalog."""
        table = self._catalog.load_table(TABLE)
        self._bytes.clear()
        began = time.perf_counter()
        files = sum(1 for _ in table.scan(row_filter=row_filter).plan_files())
        return time.perf_counter() - began, files, sum(self._bytes)


def plans(address: str, coordinator: int, folder: Path) -> dict[str, float]:
    """Plans by the engine and by the catalog, of one id and of all rows."""
    server = {"scan-planning-mode": "server"}
    planners = {"pyiceberg": Planner(address), "the catalog": Planner(address, **server)}
    manifests = sum(path.stat().st_size for path in (folder / "events/metadata").glob("*.avro"))
    rows, seconds = [], {}
    for what, row_filter in (("one id", f"id = {ROWS // 2}"), ("all rows", "true")):
        found = {name: [planner.plan(row_filter) for _ in range(PLANS)] for name, planner in planners.items()}
        for name, made in found.items():
            took = statistics.median(one[0] for one in made)
            _, files, answered = made[-1]
            read = (answered or manifests) / (1 << 20)
            rows.append((what, name, f"{took:.3f}", f"{files:,}", f"{read:.2f} MiB"))
            seconds[what, name] = took
    print_table(f"plans of {FILES:,} files", ("", "planned by", "seconds", "files left", "read"), rows)
    before = peak_mb(coordinator)
    clients = [Planner(address, **server) for _ in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        list(threads.map(lambda client: client.plan("true"), clients))
    after = peak_mb(coordinator)
    print(f"the coordinator took {before:.0f} MiB at most, and {after:.0f} MiB with {AT_ONCE} plans at once")
    over = {what: seconds[what, "the catalog"] / seconds[what, "pyiceberg"] for what, _ in seconds}
    return {
        "plan_one_over_client": round(over["one id"], 2),
        "plan_all_over_client": round(over["all rows"], 2),
        "coordinator_peak_mib": round(after),
    }


async def measure(config: EtcdConfig, processes: Processes, folder: Path) -> None:
    address, catalog = (f"127.0.0.1:{free_port()}" for _ in range(2))
    coordinator = processes.start("coordinator", "coordinator", "--listen", address, "--catalog", catalog)
    processes.start("executor", "executor", "--master", "none")
    etcd = EtcdClient(config)
    await asyncio.to_thread(write_table, config, f"file://{folder}/events")
    async with AsyncClient(address, timeout_s=30, connect_timeout_s=30) as client:

        async def served() -> bool | None:
            return any("build_index" in member.types for member in await client.members()) or None

        await until(served, "an executor")
        began = time.perf_counter()
        operation = await client.start("events", "build_index", {"column": "id"})
        built = (await client.wait(operation.name, timeout_s=300)).raise_for_outcome()
        build_s = time.perf_counter() - began
    snapshot = await opened_snapshot(etcd, config)
    await etcd.close()
    rng = random.Random(2)
    numbers = [rng.randrange(ROWS) for _ in range(LOOKUPS)]
    scan_s, scanned, _, expected = measured(snapshot, numbers[:SCANS], use_indexes=False)
    index_lookup._manifests.clear()
    first_s, _, first_index, _ = measured(snapshot, numbers[:1], use_indexes=True)
    index_s, opened, of_index, found = measured(snapshot, numbers, use_indexes=True)
    if found[:SCANS] != expected or any(len(rows) != 1 for rows in found):
        raise SystemExit("a look-up by the index has not found what a scan has")
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
    planning = await asyncio.to_thread(plans, catalog, coordinator, folder)
    print_json(
        files_opened_fraction=round(opened / FILES, 5),
        index_files_opened=round(of_index, 1),
        lookup_speedup=round(scan_s / index_s, 1),
        build_s=round(build_s, 1),
        **planning,
    )


def main() -> None:
    run_on_own_etcd(lambda config, folder, processes: measure(config, processes, folder))


if __name__ == "__main__":
    main()
