"""Operations that stage and publish rows, without a coordinator: for the tests of ``commit``."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestEntry, ManifestFile
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.schema import UpdateSchema

from distop.commit.contract import Contribution, FinishContext, TransactionalStep
from distop.lake.altering import altered
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.snapshots import Draft
from distop.lake.layout.evolution import parse_changes
from distop.lake.layout.model import Layout, load_metadata
from distop.lake.storage.storage import io_properties
from distop.lake.writing.writer import StagedWriter
from distop.metastore.etcd.txn import KeyValue, Put, Txn
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.operation import HistoryRecord, JobRecord, OperationArg, WatermarkMove
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord
from distop.operations.api import OperationView
from distop.operations.job import staging_folder, staging_stem

ROWS = pa.schema([("id", pa.int64()), ("kind", pa.string())])


def rows(start: int, count: int, kinds: int = 3) -> pa.RecordBatch:
    """``count`` rows with ids from ``start`` on, of kinds ``k0``, ``k1``, ..."""
    ids = range(start, start + count)
    return pa.record_batch({"id": list(ids), "kind": [f"k{i % kinds}" for i in ids]}, schema=ROWS)


@dataclass
class Staged:
    """An operation whose jobs have run: they have written, and nothing is published."""

    arg: OperationArg
    layout: Layout
    jobs: dict[str, JobRecord] = field(default_factory=dict)

    @property
    def view(self) -> OperationView:
        return OperationView(arg=self.arg, jobs=self.jobs, token=f"{self.arg.id}/{self.arg.uuid}")

    def writer(self, partition: str, attempt: str, *, inline: bool = False) -> StagedWriter:
        def path_for(suffix: str, folder: str) -> str:
            return f"{staging_folder(self.arg, folder)}/{staging_stem(partition, attempt)}{suffix}"

        return StagedWriter(self.layout, path_for, storage=self.arg.storage, inline=inline)

    def run(
        self,
        partition: str,
        batches: Iterable[pa.RecordBatch],
        *,
        attempt: str | None = None,
        inline: bool = False,
    ) -> None:
        """Run one job to its mark."""
        attempt = attempt or f"7-{partition}"
        writer = self.writer(partition, attempt, inline=inline)
        for batch in batches:
            writer.write(batch)
        self.jobs[partition] = JobRecord(state="success", attempt=attempt, result=writer.finish())

    def files(self) -> dict[str, set[str]]:
        """Names of all staged files by folder, as they lie on disk."""
        return {
            folder: {path.name for path in local(staging_folder(self.arg, folder)).glob("*")}
            for folder in ("data", "metadata")
        }

    def history(self, facts: Mapping[str, Any] | None = None, outcome: str = "success") -> HistoryRecord:
        return HistoryRecord(outcome=outcome, facts=dict(facts or {}))


@dataclass
class Table:
    """A table whose keys are held here, changed by applying transactions as etcd would."""

    name: str
    location: str
    layout: Layout
    storage: dict[str, Any] = field(default_factory=dict)
    head: KeyValue = field(init=False)
    watermarks: KeyValue = field(init=False)
    _revision: Any = field(default_factory=lambda: itertools.count(2))
    _instances: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.keys = Keyspace().table(self.name)
        self.head = KeyValue.missing(self.keys.head)
        self.watermarks = KeyValue.missing(self.keys.watermarks)

    def start(
        self, partitions: int = 1, *, watermarks: dict[str, dict[str, WatermarkMove]] | None = None
    ) -> Staged:
        instance = next(self._instances)
        arg = OperationArg(
            table=self.name,
            type="ingest",
            instance=instance,
            uuid=f"{self.name}{instance:08x}",
            argument={"layout": self.layout.to_json()},
            partition_count=partitions,
            watermarks=watermarks or {},
            location=self.location,
            storage=self.storage,
            started_by="ada",
            stages_files=True,
        )
        return Staged(arg, self.layout)

    def staged(self, *jobs: Iterable[pa.RecordBatch]) -> Staged:
        """An operation with one job per argument, all of them done."""
        operation = self.start(len(jobs))
        for index, batches in enumerate(jobs):
            operation.run(str(index), batches)
        return operation

    def context(self, operation: Staged) -> FinishContext:
        record = TableRecord(name=self.name, location=self.location)
        return FinishContext(
            table=record, keys=self.keys, head=self.head, watermarks=self.watermarks, view=operation.view
        )

    def apply(self, txn: Txn) -> bool:
        """Do what the transaction says if what it compares holds."""
        present = {kv.key: kv for kv in (self.head, self.watermarks)}
        if any(present[c.key].mod_revision != c.expected or c.target != "mod" for c in txn.compares):
            return False
        for op in txn.then:
            if not isinstance(op, Put):
                raise TypeError(f"steps only put: {op}")
            kv = KeyValue(op.key, op.value, next(self._revision), 1)
            if op.key == self.keys.head:
                self.head = kv
            else:
                self.watermarks = kv
        return True

    def publish(self, operation: Staged, step: TransactionalStep | None = None) -> Contribution:
        """Prepare a step (by default: append) on the present base and let its transaction happen."""
        contribution = (step or IcebergAppend()).prepare(self.context(operation))
        if not self.apply(contribution.txn):
            raise AssertionError("nobody else has moved anything")
        return contribution

    def record(self) -> Head:
        return decode(self.head.value, Head)

    def iceberg(self) -> StaticTable:
        """The published table, as any Iceberg reader sees it."""
        location = self.record().metadata_location
        return StaticTable.from_metadata(location, io_properties(location, self.storage))

    def snapshot(self) -> Snapshot:
        """The current snapshot, which must exist."""
        current = self.iceberg().current_snapshot()
        assert current is not None
        return current

    def summary(self) -> dict[str, str]:
        """The properties in the summary of the current snapshot."""
        summary = self.snapshot().summary
        assert summary is not None
        return summary.additional_properties

    def operation(self) -> Operation:
        """The operation in the summary of the current snapshot, such as ``append``."""
        summary = self.snapshot().summary
        assert summary is not None
        return summary.operation

    def manifests(self) -> list[ManifestFile]:
        return self.snapshot().manifests(self.iceberg().io)

    def entries(self) -> list[ManifestEntry]:
        """What the present manifests list, also of files that the snapshot has removed."""
        io = self.iceberg().io
        listed = (manifest.fetch_manifest_entry(io, discard_deleted=False) for manifest in self.manifests())
        return list(itertools.chain.from_iterable(listed))

    def draft(self) -> Draft:
        """Metadata that another program is about to write."""
        return Draft(self.iceberg().io, TableFile.read(self.record().metadata_location))

    def replace(self, location: str, snapshot_id: int | None = None) -> None:
        """Make this metadata of another program the table's; without an id the snapshot stays."""
        present = self.record().snapshot_id if snapshot_id is None else snapshot_id
        head = Head(metadata_location=location, snapshot_id=present, operation="foreign")
        self.apply(Txn(then=(Put(self.keys.head, encode(head)),)))

    def change_schema(self, change: Callable[[UpdateSchema], object]) -> None:
        """What another program does to a table's columns."""
        update = self.iceberg().update_schema()
        change(update)
        self.replace(self.draft().write(*update._commit()[0]))

    def append(self, columns: Mapping[str, Any], schema: pa.Schema) -> None:
        """Publish one file of these rows."""
        self.publish(self.staged([pa.record_batch(dict(columns), schema=schema)]))

    def ids(self, **which: Any) -> list[int]:
        """All ids, or those that a scan with these arguments finds."""
        ids: list[int] = self.iceberg().scan(**which).to_arrow()["id"].to_pylist()
        return sorted(ids)

    def apart(self) -> Table:
        """The table as it is now, for changes that are not to be seen in this one: it shares its files."""
        return copy.copy(self)

    def data_files(self) -> list[str]:
        return sorted(task.file.file_path for task in self.iceberg().scan().plan_files())


def new_table(folder: Path, partition_by: Iterable[str] = (), **properties: str) -> Table:
    """A table of :data:`ROWS` that nothing was published to."""
    layout = Layout.create(ROWS, list(partition_by), properties)
    return Table("flights", f"file://{folder}/flights", layout)


def table_of(folder: Path, columns: pa.Schema, *partition_by: str) -> Table:
    """A table of these columns that nothing was published to."""
    return Table("flights", f"file://{folder}/flights", Layout.create(columns, list(partition_by)))


def alter(table: Table, *changes: dict[str, Any]) -> None:
    """Alter a table as one call does."""
    record = TableRecord(name=table.name, location=table.location)
    head = altered(record, table.record(), parse_changes(list(changes))).head
    assert head is not None
    table.apply(Txn(then=(Put(table.keys.head, encode(head)),)))
    table.layout = Layout.of(load_metadata(table.record().metadata_location))


def drop_partitioning(table: Table, column: str = "kind") -> None:
    """Partition the table by nothing from now on, and drop the column that its files are partitioned by."""
    alter(table, {"change": "partition_by", "terms": []}, {"change": "drop", "column": column})


def local(url: str) -> Path:
    """The path of a URL on this machine."""
    return Path(url.removeprefix("file://"))


def filled(
    folder: Path, commits: int = 6, *, partition_by: tuple[str, ...] = ("kind",), **more: str
) -> Table:
    """A table of many small files: ids from 0 on, ten a commit, of three kinds."""
    table = new_table(folder, partition_by, **more)
    for number in range(commits):
        table.publish(table.staged([rows(10 * number, 10)]))
    return table


def left_over(table: Table) -> set[str]:
    """Data files on disk that no snapshot knows."""
    iceberg = table.iceberg()
    known = {
        local(entry.data_file.file_path).name
        for snapshot in iceberg.metadata.snapshots
        for manifest in snapshot.manifests(iceberg.io)
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False)
    }
    return {path.name for path in local(table.location).rglob("*.parquet")} - known
