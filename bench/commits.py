"""How the price of a commit grows: with the commits a table has seen, and with the files in one commit.

    python bench/commits.py

Publish parts only: jobs have written and marked before the clock starts. A commit is what a coordinator does:
prepare the steps on what stands in etcd, and send the transaction (to a real etcd, with fsync).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from common import print_json, print_table, sized

from distop.commit.contract import FinishContext, TransactionalStep
from distop.lake.cleanup.staged import sweep
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.lake.layout.model import DEFAULT_PROPERTIES, Layout
from distop.lake.rewriting.modes import IcebergOverwritePartitions
from distop.lake.writing.writer import StagedWriter
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Get, Txn
from distop.metastore.records.operation import HistoryRecord, JobRecord, OperationArg, WatermarkMove
from distop.metastore.records.table import TableRecord
from distop.operations.api import OperationView
from distop.operations.job import staging_folder, staging_stem

COLUMNS = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("note", pa.string())])
EARLY = (5, 15)
"""Commits of a table that stand for its 10th."""
COMMITS = sized(1000, 20)
"""Commits of a table that has seen many."""
TURNS = sized(30, 2)
"""Commits timed of either kind."""
SIZES = sized((1_000, 2_000, 4_000), (20, 40))
JOB_FILES = 10
"""Files that one job writes."""


class BenchTable:
    """A table in etcd and on disk, committed to without a coordinator."""

    def __init__(self, etcd: SyncEtcd, folder: Path, name: str) -> None:
        self._etcd = etcd
        self._keys = etcd.keyspace.table(name)
        self._record = TableRecord(name=name, location=f"file://{folder}/{name}")
        self._layout = Layout.create(COLUMNS, ["part"], DEFAULT_PROPERTIES)
        self._instance = 0

    def write(self, jobs: Sequence[range]) -> OperationView:
        """Run the jobs of an operation: one file in each of their partitions."""
        self._instance += 1
        arg = OperationArg(
            table=self._record.name,
            type="ingest",
            instance=self._instance,
            uuid=f"{self._instance:012x}",
            argument={"layout": self._layout.to_json()},
            partition_count=len(jobs),
            watermarks={"source": {f"p{self._instance}": WatermarkMove(after="1")}},
            location=self._record.location,
        )
        done = {str(index): self._job(arg, str(index), parts) for index, parts in enumerate(jobs)}
        return OperationView(arg=arg, jobs=MappingProxyType(done), token=f"{arg.id}/{arg.uuid}")

    def _job(self, arg: OperationArg, name: str, parts: range) -> JobRecord:
        def path_for(suffix: str, folder: str) -> str:
            return f"{staging_folder(arg, folder)}/{staging_stem(name, 'bench')}{suffix}"

        writer = StagedWriter(self._layout, path_for)
        writer.write(pa.table({"id": parts, "part": parts, "note": ["x"] * len(parts)}, schema=COLUMNS))
        return JobRecord(state="success", attempt="bench", result=writer.finish())

    def commit(self, view: OperationView, step: TransactionalStep) -> float:
        """Publish; the seconds it took. What a coordinator sweeps afterwards is swept, and not timed."""
        began = time.perf_counter()
        keys = self._keys
        read = self._etcd.txn(Txn(then=(Get(keys.head), Get(keys.watermarks))))
        context = FinishContext(
            table=self._record,
            keys=keys,
            head=read.single(0, keys.head),
            watermarks=read.single(1, keys.watermarks),
            view=view,
        )
        shares = [each.prepare(context) for each in (WatermarkStep(), step)]
        if not self._etcd.txn(shares[0].txn + shares[1].txn).succeeded:
            raise SystemExit("nobody else writes to this table")
        took = time.perf_counter() - began
        sweep(view.arg, HistoryRecord(outcome="success", facts=shares[1].facts), view.jobs)
        return took


@contextmanager
def _etcd(folder: Path) -> Iterator[SyncEtcd]:
    with EtcdProcess(folder / "etcd") as process:
        store = SyncEtcd(EtcdConfig(endpoints=(process.endpoint,), prefix="bench"))
        try:
            yield store
        finally:
            store.close()


def _append(table: BenchTable, number: int) -> float:
    """Append one file; the seconds of its commit."""
    return table.commit(table.write([range(number % 50, number % 50 + 1)]), IcebergAppend())


def early_and_late(etcd: SyncEtcd, folder: Path, commits: int) -> tuple[float, float]:
    """Median seconds of commits around the 10th of young tables, and around the last of one with many.

    They take turns, so that what else the machine does meanwhile slows both.
    """
    old = BenchTable(etcd, folder, "old")
    for number in range(commits - TURNS // 2):
        _append(old, number)
    early, late = [], []
    for turn in range(TURNS):
        if turn % len(range(*EARLY)) == 0:
            young = BenchTable(etcd, folder, f"young{turn}")
            for number in range(EARLY[0]):
                _append(young, number)
        early.append(_append(young, turn))
        late.append(_append(old, turn))
    return statistics.median(early), statistics.median(late)


def thousand_commits() -> dict[int, float]:
    """Seconds of the 10th and of the 1,000th append to one table: medians of those around each."""
    with tempfile.TemporaryDirectory(prefix="distop-bench-") as folder, _etcd(Path(folder)) as etcd:
        early, late = early_and_late(etcd, Path(folder), COMMITS)
    return {10: early, 1000: late}


def _large_commits(etcd: SyncEtcd, folder: Path, sizes: Sequence[int]) -> list[tuple[int, float, float]]:
    """Partitions, seconds of appending one file to each, seconds of replacing them all."""
    taken = []
    for size in sizes:
        table = BenchTable(etcd, folder, f"large{size}")
        jobs = [range(start, start + JOB_FILES) for start in range(0, size, JOB_FILES)]
        appended = table.commit(table.write(jobs), IcebergAppend())
        replaced = table.commit(table.write(jobs), IcebergOverwritePartitions())
        taken.append((size, appended, replaced))
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commits", type=int, default=COMMITS, help="appends to one table")
    parser.add_argument("--sizes", type=int, nargs="*", default=list(SIZES), help="partitions in one commit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="distop-bench-") as folder, _etcd(Path(folder)) as etcd:
        early, late = early_and_late(etcd, Path(folder), options.commits)
        large = _large_commits(etcd, Path(folder), options.sizes)
    print_table(
        f"{options.commits} appends to one table, one file each",
        ("commit", "median", "against the 10th", "bar"),
        [
            ("10th", f"{early * 1000:.1f} ms", "", ""),
            (f"{options.commits}th", f"{late * 1000:.1f} ms", f"{late / early:.2f}", "<= 2"),
        ],
    )
    print_table(
        "one commit of many partitions, a file in each",
        ("partitions", "append", "replace all", "append, µs a file"),
        [
            (f"{size:,}", f"{append:.2f} s", f"{replace:.2f} s", f"{append / size * 1e6:.0f}")
            for size, append, replace in large
        ],
    )
    print_json(
        commit_1000_over_10=round(late / early, 2),
        **{f"append_{size}_s": round(append, 3) for size, append, _ in large},
    )


if __name__ == "__main__":
    main()
