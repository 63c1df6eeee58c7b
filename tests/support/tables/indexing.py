"""Builds of indexes from plan to sweep, and look-ups, without a coordinator."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.expressions import EqualTo

from distop.commit.contract import Contribution, FinishContext
from distop.errors import Cancelled
from distop.lake.cleanup.staged import sweep
from distop.lake.index.lookup import Left, narrow
from distop.lake.index.publish import IndexPublish
from distop.lake.layout.model import file_io
from distop.lake.predicates.binding import column_of, plain
from distop.metastore.etcd.txn import KeyValue, Put, Txn
from distop.metastore.records.operation import HistoryRecord, JobRecord, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, IndexRecord, TableRecord
from distop.operations.api import OperationView, PlanRequest, make_plan
from distop.spark_jobs.index.operation import BuildIndex, object_of_column
from support.sources.ingesting import LocalJob
from support.tables.publishing import Table

_uuids = itertools.count(1)


class SavingJob(LocalJob):
    """An attempt that keeps checkpoints in a dictionary.

    Parameters
    ----------
    dies_after:
        Checkpoints after which it is as if the process were killed.
    """

    def __init__(
        self, arg: OperationArg, partition: str, saved: dict[str, bytes], scratch: Path, dies_after: int
    ) -> None:
        super().__init__(arg, partition)
        self._saved, self._scratch, self._left = saved, scratch, dies_after

    def scratch_path(self) -> Path:
        return self._scratch

    def load_checkpoint(self) -> bytes | None:
        return self._saved.get(self.partition)

    def save_checkpoint(self, value: bytes) -> None:
        assert len(value) <= 1024
        self._saved[self.partition] = value
        self._left -= 1
        if not self._left:
            raise Cancelled("killed")


@dataclass
class BuiltIndex:
    """One build of an index, and what became of it."""

    world: Indexing
    arg: OperationArg
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    saved: dict[str, bytes] = field(default_factory=dict)

    def run(self, names: Iterable[str] | None = None) -> BuiltIndex:
        for name in self.arg.partition_names() if names is None else names:
            self.attempt(name)
        return self

    def attempt(self, name: str, dies_after: int = -1) -> None:
        with TemporaryDirectory() as scratch:
            job = SavingJob(self.arg, name, self.saved, Path(scratch), dies_after)
            result = dict(self.world.kind.run_job(job))
        self.jobs[name] = JobRecord(state="success", attempt=job.attempt, result=result)

    def context(self) -> FinishContext:
        view = OperationView(arg=self.arg, jobs=self.jobs, token=f"{self.arg.id}/{self.arg.uuid}")
        return FinishContext(
            table=TableRecord(name=self.world.table.name, location=self.world.table.location),
            keys=self.world.table.keys,
            head=self.world.table.head,
            watermarks=self.world.table.watermarks,
            view=view,
            index=self.world.pointer(self.arg.object),
        )

    def commit(self) -> Contribution:
        contribution = IndexPublish().prepare(self.context())
        self.world.apply(contribution.txn)
        return contribution

    def finish(self) -> dict[str, Any]:
        facts = self.commit().facts
        self.sweep(facts)
        return facts

    def sweep(self, facts: dict[str, Any], outcome: str = "success") -> int:
        return sweep(self.arg, HistoryRecord(outcome=outcome, facts=facts), self.jobs)


@dataclass
class Indexing:
    """A table and its indexes."""

    table: Table
    kind: BuildIndex = field(default_factory=BuildIndex)
    pointers: dict[bytes, KeyValue] = field(default_factory=dict)
    _revisions: Any = field(default_factory=lambda: itertools.count(1000))

    def pointer(self, object: str) -> KeyValue:
        key = self.table.keys.index(object)
        return self.pointers.get(key, KeyValue.missing(key))

    def record(self, object: str) -> IndexRecord | None:
        kv = self.pointer(object)
        return decode(kv.value, IndexRecord) if kv.exists else None

    def records(self) -> list[IndexRecord]:
        return [decode(kv.value, IndexRecord) for kv in self.pointers.values()]

    def apply(self, txn: Txn) -> None:
        for compare in txn.compares:
            present = self.pointers.get(compare.key, KeyValue.missing(compare.key))
            assert present.mod_revision == compare.expected
        for op in txn.then:
            assert isinstance(op, Put)
            self.pointers[op.key] = KeyValue(op.key, op.value, next(self._revisions), 1)

    def start(self, column: str, **argument: Any) -> BuiltIndex:
        """Plan a build."""
        table = self.table
        obj = object_of_column(column)
        given = {"column": column, **argument}
        assert self.kind.object_of(given) == obj
        request = PlanRequest(
            table=TableRecord(name=table.name, location=table.location, options={"storage": table.storage}),
            head=decode(table.head.value, Head) if table.head.exists else None,
            watermarks={},
            argument=given,
            object=obj,
            index=self.record(obj),
        )
        plan = make_plan(self.kind, request)
        number = next(_uuids)
        arg = OperationArg(
            table=table.name,
            type=self.kind.type,
            instance=number,
            object=obj,
            uuid=f"{number:012x}",
            argument=plan.argument,
            partition_count=plan.partition_count,
            partitions=plan.partitions,
            location=table.location,
            storage=table.storage,
            stages_files=True,
            builds_index=self.kind.builds_index,
            effect=self.kind.effect,
        )
        return BuiltIndex(self, arg)

    def build(self, column: str, **argument: Any) -> dict[str, Any]:
        """A build from start to end; its facts."""
        return self.start(column, **argument).run().finish()

    def look(self, column: str, *values: Any, snapshot: int | None = None) -> Left | None:
        """Narrow the files of a snapshot."""
        iceberg = self.table.iceberg()
        planned = [task.file.file_path for task in iceberg.scan(snapshot_id=snapshot).plan_files()]
        io = file_io(self.table.location, self.table.storage)
        schema = iceberg.schema()
        of = column_of(schema, (column,))
        assert of is not None
        plain_values = [plain(value, of.kind) for value in values]
        return narrow(self.records(), io, self.table.location, schema, of, plain_values, planned)

    def narrowed(self, column: str, *values: Any) -> Left:
        """The result of :meth:`look`, which must not be ``None``: the index can be used."""
        left = self.look(column, *values)
        assert left is not None
        return left

    def rows_with(self, column: str, *values: Any, snapshot: int | None = None) -> list[dict[str, Any]]:
        """The rows with one of these values, read from the row groups that a look-up leaves."""
        narrowed = self.look(column, *values, snapshot=snapshot)
        assert narrowed is not None
        rows = []
        for path, groups in narrowed.items():
            with pq.ParquetFile(path.removeprefix("file://")) as parquet:
                chosen = range(parquet.num_row_groups) if groups is None else sorted(groups)
                read = parquet.read_row_groups(list(chosen)).to_pylist()
                rows += [row for row in read if row[column] in values]
        return rows

    def scanned(self, column: str, value: Any, snapshot: int | None = None) -> list[dict[str, Any]]:
        """The rows with this value, by a scan without the index."""
        wanted = EqualTo(term=column, value=value)
        scan = self.table.iceberg().scan(row_filter=wanted, snapshot_id=snapshot)
        rows: list[dict[str, Any]] = scan.to_arrow().to_pylist()
        return rows
