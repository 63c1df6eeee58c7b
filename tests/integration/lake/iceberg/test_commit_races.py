"""Several writers of one table at once: programs through the catalog, and operations that finish."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import ValidationException

from distop.commit.contract import FinishContext, TransactionalStep
from distop.errors import HeadConflict
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.lake.layout.model import Layout
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Get, Txn
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord, decode_watermarks
from support.tables.catalogs import ids_in, make_catalog
from support.tables.publishing import ROWS, Staged, Table, local, rows

PROGRAM = """
import sys
import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, ValidationException
from distop.catalog.catalog import EtcdCatalog

def append(table, i):
    table.append(pa.table({"id": [i], "kind": ["k"]}))

def overwrite(table, i):
    table.overwrite(pa.table({"id": [i, i + 1, i + 2], "kind": ["a", "b", "c"]}))

endpoint = sys.argv[1]
for line in sys.stdin:
    prefix, write, first, rounds = line.split()
    with EtcdCatalog("writer", **{"etcd.endpoints": endpoint, "etcd.prefix": prefix}) as catalog:
        for i in range(int(first), int(first) + 3 * int(rounds), 3):
            while True:
                try:
                    {"append": append, "overwrite": overwrite}[write](catalog.load_table("flights"), i)
                    break
                except (CommitFailedException, ValidationException):
                    continue  # lost all of its tries
    print("done", flush=True)
"""


@dataclass(frozen=True)
class Foreign:
    """A process of pyiceberg that writes to tables of its etcd as often as it is told to."""

    process: subprocess.Popen[str]

    def begin(self, prefix: str, write: str, first: int, rounds: int) -> None:
        """``append`` or ``overwrite`` so often, with ids from ``first`` on, by threes."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{prefix} {write} {first} {rounds}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Wait until it has done so."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "done\n"


@pytest.fixture(scope="module")
def foreign(etcd: EtcdProcess) -> Iterator[dict[int, Foreign]]:
    """Two of them, by the first id that they write."""
    command = [sys.executable, "-c", PROGRAM, etcd.endpoint]
    with ExitStack() as stack:
        programs = {}
        for first in (10_000, 20_000):
            process = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            stack.callback(process.kill)
            programs[first] = Foreign(process)
        yield programs


class Shared:
    """A table in etcd, with a catalog for programs and a way to finish operations."""

    def __init__(self, etcd: EtcdProcess, prefix: str, folder: Path) -> None:
        self.prefix = prefix
        self.store = SyncEtcd(EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix))
        self.catalog = make_catalog(etcd, prefix, folder)
        self.table = Table("flights", f"file://{folder}/flights", Layout.create(ROWS))
        self.keys = self.store.keyspace.table("flights")
        self.record = TableRecord(name="flights", location=self.table.location)
        self.store.put(self.keys.table, encode(self.record))

    def close(self) -> None:
        self.catalog.close()
        self.store.close()

    def context(self, operation: Staged) -> FinishContext:
        head, watermarks = self.keys.head, self.keys.watermarks
        read = self.store.txn(Txn(then=(Get(head), Get(watermarks))))
        marks = read.single(1, watermarks)
        return FinishContext(
            table=self.record,
            keys=self.keys,
            head=read.single(0, head),
            watermarks=marks,
            view=operation.view,
        )

    def finish(self, operation: Staged, step: TransactionalStep | None = None) -> None:
        """What a coordinator does: prepare, send, and prepare again on whatever was faster."""
        for _ in range(200):
            context = self.context(operation)
            prepared = [each.prepare(context) for each in (WatermarkStep(), step or IcebergAppend())]
            txn = prepared[0].txn + prepared[1].txn
            if self.store.txn(txn).succeeded:
                return
            for contribution in prepared:
                contribution.discard()
        raise AssertionError("lost two hundred races")

    def finish_at_once(self, operations: list[Staged]) -> None:
        with ThreadPoolExecutor(len(operations)) as threads:
            list(threads.map(self.finish, operations))

    def ids(self) -> list[int]:
        return ids_in(self.catalog, "flights")


@pytest.fixture
def shared(etcd: EtcdProcess, prefix: str, tmp_path: Path) -> Iterator[Shared]:
    made = Shared(etcd, prefix, tmp_path)
    yield made
    made.close()


def test_ten_operations_finishing_at_once_are_all_there(shared: Shared) -> None:
    """P7: merge-if; each row once, and every snapshot is an ancestor of the last."""
    staged = [shared.table.staged([rows(10 * i, 10)]) for i in range(10)]
    shared.finish_at_once(staged)
    assert shared.ids() == list(range(100))
    metadata = shared.catalog.load_table("flights").metadata
    assert len(metadata.snapshots) == 10
    by = {snapshot.summary["distop.operation"] for snapshot in metadata.snapshots if snapshot.summary}
    assert by == {f"flights/ingest/{i}" for i in range(1, 11)}
    # What lost a race has left nothing behind.
    for left in ("*.metadata.json", "snap-*.avro"):
        assert len(list(local(shared.table.location).glob(f"metadata/{left}"))) == 10


def test_an_operation_is_put_on_top_of_a_foreign_append(shared: Shared) -> None:
    """P6: a program appends after the operation has prepared: it re-bases, with its watermark."""
    shared.finish(shared.table.staged([rows(0, 2)]))
    operation = shared.table.start(watermarks={"files": {"m": WatermarkMove(after="1")}})
    operation.run("0", [rows(10, 2)])
    lost = IcebergAppend().prepare(shared.context(operation))
    shared.catalog.load_table("flights").append(pa.table({"id": [100], "kind": ["k"]}))
    assert not shared.store.txn(lost.txn).succeeded
    lost.discard()
    shared.finish(operation)
    assert shared.ids() == [0, 1, 10, 11, 100]
    assert decode_watermarks(shared.store.get(shared.keys.watermarks).value) == {"files": {"m": "1"}}


def test_a_foreign_append_is_put_on_top_of_an_operation(shared: Shared) -> None:
    """P6: a program that loaded the table before the operation finished loses nothing of it."""
    shared.finish(shared.table.staged([rows(0, 2)]))
    stale = shared.catalog.load_table("flights")
    shared.finish(shared.table.staged([rows(10, 2)]))
    stale.append(pa.table({"id": [100], "kind": ["k"]}))
    assert shared.ids() == [0, 1, 10, 11, 100]


def test_a_foreign_write_refuses_an_operation_that_does_not_allow_it(shared: Shared) -> None:
    """P6: the conflict names the snapshot and says that it is not distop's; the table is untouched."""
    shared.finish(shared.table.staged([rows(0, 2)]))
    expected = shared.catalog.load_table("flights").metadata.current_snapshot_id
    operation = shared.table.staged([rows(10, 2)])
    shared.catalog.load_table("flights").append(pa.table({"id": [100], "kind": ["k"]}))
    step = IcebergOverwrite({"expectedSnapshotId": str(expected)})
    with pytest.raises(HeadConflict, match="written by another program") as caught:
        shared.finish(operation, step)
    foreign = shared.catalog.load_table("flights").metadata.current_snapshot_id
    assert caught.value.details["snapshot"] == str(foreign)
    assert shared.ids() == [0, 1, 100]


def test_a_foreign_overwrite_does_not_swallow_an_operation(shared: Shared) -> None:
    """P6: a program that replaces what it has read is refused when rows have come between."""
    shared.finish(shared.table.staged([rows(0, 2)]))
    stale = shared.catalog.load_table("flights")
    shared.finish(shared.table.staged([rows(10, 2)]))
    with pytest.raises(ValidationException):
        stale.overwrite(pa.table({"id": [100], "kind": ["k"]}))
    assert shared.ids() == [0, 1, 10, 11]


def until_written(shared: Shared) -> None:
    deadline = time.monotonic() + 60
    while not shared.ids():
        assert time.monotonic() < deadline, "no process has written anything"
        threading.Event().wait(0.05)


def test_ten_writers_appending_at_once_lose_and_double_nothing(
    shared: Shared, foreign: dict[int, Foreign]
) -> None:
    """P6, P7: eight operations at a time and two processes of pyiceberg, while manifests are merged."""
    shared.finish(shared.table.staged([]))
    rounds = 4
    for first, program in foreign.items():
        program.begin(shared.prefix, "append", first, rounds)
    until_written(shared)
    for turn in range(3):
        staged = [shared.table.staged([rows(1000 * turn + 10 * i, 5)]) for i in range(8)]
        shared.finish_at_once(staged)
    for program in foreign.values():
        program.end()
    ours = [1000 * turn + 10 * i + n for turn in range(3) for i in range(8) for n in range(5)]
    theirs = [first + 3 * i for first in foreign for i in range(rounds)]
    assert shared.ids() == sorted([*ours, *theirs])


def test_ten_writers_overwriting_at_once_leave_the_set_of_the_last(
    shared: Shared, foreign: dict[int, Foreign]
) -> None:
    """P7: eight operations and two processes of pyiceberg; never a mixture, at any moment."""
    shared.finish(shared.table.staged([rows(0, 3)]))
    staged = [shared.table.staged(*([rows(100 * i + n, 1)] for n in range(3))) for i in range(1, 9)]
    seen: list[list[int]] = []
    for first, program in foreign.items():
        program.begin(shared.prefix, "overwrite", first, 3)
    with ThreadPoolExecutor(len(staged)) as threads:
        ends = [threads.submit(shared.finish, operation, IcebergOverwrite()) for operation in staged]
        while not all(end.done() for end in ends):
            seen.append(shared.ids())
        assert [end.result() for end in ends] == [None] * len(ends)
    for program in foreign.values():
        program.end()
    last = shared.ids()
    assert all(one == [one[0], one[0] + 1, one[0] + 2] for one in [*seen, last])
    head = decode(shared.store.get(shared.keys.head).value, Head)
    ours = {f"flights/ingest/{i + 1}": 100 * i for i in range(1, 9)}
    assert last[0] == ours.get(head.operation, last[0] if last[0] >= 10_000 else None)
