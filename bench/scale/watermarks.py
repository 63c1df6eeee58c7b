"""What a commit costs a table with a million watermarks, next to one with a thousand.

    python bench/scale/watermarks.py [--entries 1000000]

A commit is what a coordinator does to them: read what the finish stands on, make room, work out the new
watermarks of ten files that nobody has ingested yet, and send the transaction. The two tables take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from common import print_json, print_table, sized

from distop.commit.contract import FinishContext
from distop.coordinator.completion.publication import read_base
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.records.operation import OperationArg, WatermarkMove
from distop.metastore.records.record import encode
from distop.metastore.records.table import TableRecord
from distop.metastore.records.watermarks import FOLD_BYTES, Chunks, position, refilled
from distop.metastore.tables.watermarks import make_room, read_marks, watermark_chunks
from distop.operations.api import OperationView

FEW, ENTRIES = sized((1_000, 1_000_000), (20, 200))
FOLDER_FILES = sized(10_000, 100)
"""Files of one folder."""
MOVED = 10
"""Files of one commit."""
COMMITS = sized(120, 2)
"""Timed on either table: some of them make room."""
NOW = "2024-02-01T00:00:00.000000Z"


@dataclass
class Marked:
    """A table with watermarks, without a coordinator."""

    client: EtcdClient
    name: str
    entries: int

    async def fill(self) -> None:
        """Write the watermarks to etcd, in chunks as folding leaves them."""
        record = TableRecord(name=self.name, location=f"file:///nowhere/{self.name}", uuid=self.name)
        await self.client.put(self.client.keyspace.table(self.name).table, encode(record))
        prefix = watermark_chunks(self.client.keyspace, record)
        for first in range(0, self.entries, FOLDER_FILES):
            source = self._folder(first)
            names = [
                f"part-{number:08}.csv" for number in range(first, min(first + FOLDER_FILES, self.entries))
            ]
            entries = [(position(source, name), (source, name, NOW)) for name in names]
            puts = [
                Put(prefix + bound, value or b"")
                for bound, value in refilled(Chunks().at(b""), entries).items()
            ]
            for first_put in range(0, len(puts), 30):
                await self.client.txn(Txn(then=tuple(puts[first_put : first_put + 30])))

    def _folder(self, number: int) -> str:
        return f"s3://bucket/landing/{number // FOLDER_FILES:04}"

    def view(self, turn: int) -> OperationView:
        """An operation that has read ten new files of a folder, a different one each time."""
        source = self._folder(turn * 7919 * FOLDER_FILES % self.entries)
        moves = {
            f"new-{turn:06}-{file}.csv": WatermarkMove(after=NOW, neighbours="older") for file in range(MOVED)
        }
        arg = OperationArg(
            table=self.name, type="ingest", instance=turn + 1, uuid=f"{turn:012x}", watermarks={source: moves}
        )
        return OperationView(arg=arg, jobs=MappingProxyType({}), token=str(arg.id))

    async def commit(self, turn: int) -> float:
        """Publish the moves of :meth:`view` as a coordinator does; seconds it took."""
        keys, view = self.client.keyspace.table(self.name), self.view(turn)
        began = time.perf_counter()
        base = await read_base(self.client, keys, view.arg)
        if len(base.watermarks.value) > FOLD_BYTES:
            await make_room(self.client, keys, 1_000)
            base = await read_base(self.client, keys, view.arg)
        assert base.record is not None
        context = FinishContext(
            table=base.record,
            keys=keys,
            head=base.head,
            watermarks=base.watermarks,
            view=view,
            chunks=base.chunks,
        )
        share = await asyncio.to_thread(WatermarkStep().prepare, context)
        if not (await self.client.txn(share.txn)).succeeded:
            raise SystemExit("nobody else writes to this table")
        return time.perf_counter() - began

    async def look(self) -> float:
        """Seconds it takes to see which of 1,000 files are new, none of which was ingested."""
        began = time.perf_counter()
        marks, _ = await read_marks(self.client, self.client.keyspace.table(self.name))
        folder = self._folder(self.entries // 2)

        def count() -> int:
            urls = [f"{folder}/late-{file:06}.csv" for file in range(1_000)]
            marks.look_around(urls)
            return sum(1 for url in urls if marks.around(url))

        if await asyncio.to_thread(count):
            raise SystemExit("none of them was ingested")
        return time.perf_counter() - began


async def _measure(entries: int) -> dict[str, float]:
    with (
        tempfile.TemporaryDirectory(prefix="distop-bench-") as folder,
        EtcdProcess(Path(folder) / "etcd") as process,
    ):
        client = EtcdClient(EtcdConfig(endpoints=(process.endpoint,), prefix="bench"))
        try:
            few, many = Marked(client, "few", FEW), Marked(client, "many", entries)
            await few.fill()
            await many.fill()
            await few.commit(COMMITS)  # what is imported first counts for neither
            times: dict[str, list[float]] = {"few": [], "many": []}
            for turn in range(COMMITS):
                for table in (few, many):
                    times[table.name].append(await table.commit(turn))
            looks = {
                table.name: statistics.median([await table.look() for _ in range(5)]) for table in (few, many)
            }
        finally:
            await client.close()
    mean = {name: statistics.fmean(taken) * 1000 for name, taken in times.items()}
    longest = {name: max(taken) * 1000 for name, taken in times.items()}
    print_table(
        f"commits of {MOVED} new files",
        ("watermarks", "mean ms", "longest ms", "1,000 files looked up, ms"),
        [
            (
                f"{table.entries:,}",
                f"{mean[table.name]:.1f}",
                f"{longest[table.name]:.1f}",
                f"{looks[table.name] * 1000:.0f}",
            )
            for table in (few, many)
        ],
    )
    return {
        "watermarks_1m_over_1k_commit": mean["many"] / mean["few"],
        "watermarks_1m_commit_ms": mean["many"],
        "watermarks_1k_commit_ms": mean["few"],
        "watermarks_1m_look_ms": looks["many"] * 1000,
    }


def measure(entries: int = ENTRIES) -> dict[str, float]:
    """Measure both tables, print a table of their figures and return them: ratios and milliseconds."""
    return asyncio.run(_measure(entries))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    print_json(**measure(parser.parse_args().entries))
