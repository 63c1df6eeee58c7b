"""Tables of plain files, and operations on them whose jobs run here, without a coordinator."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distop.commit.contract import FinishContext, StepContext
from distop.commit.execution import execute, undo
from distop.lake.layout.model import Layout
from distop.lake.plain.publish import FilesPublish, visible_files
from distop.lake.rows import FilesOutput
from distop.lake.storage.storage import file_system
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.operation import CommitSequence, JobRecord, OperationArg, StepRecord
from distop.metastore.records.table import TableRecord
from distop.operations.api import OperationView
from support.sources.ingesting import LocalJob
from support.tables.publishing import ROWS


class PlainTable:
    """A table of plain files, and operations on it whose jobs run here."""

    def __init__(
        self, location: str, storage: dict[str, Any], partition_by: tuple[str, ...] = ("kind",)
    ) -> None:
        self.location, self.storage = location, storage
        self.layout = Layout.create(ROWS, list(partition_by))
        self.number = 0

    def start(self, jobs: int = 1) -> OperationArg:
        self.number += 1
        return OperationArg(
            table="t",
            type="ingest",
            instance=self.number,
            uuid=f"{self.number:032x}",
            argument={"layout": self.layout.to_json(), "output": "files"},
            partition_count=jobs,
            location=self.location,
            storage=self.storage,
            stages_files=True,
        )

    def run(self, arg: OperationArg, name: str, batch: pa.RecordBatch) -> JobRecord:
        job = LocalJob(arg, name)
        writer = FilesOutput().writer(self.layout, job)
        writer.write(batch)
        return JobRecord(state="success", attempt=job.attempt, result=writer.finish())

    def context(self, arg: OperationArg, jobs: dict[str, JobRecord]) -> FinishContext:
        keys = Keyspace().table("t")
        return FinishContext(
            table=TableRecord(name="t", location=self.location, format="files"),
            keys=keys,
            head=KeyValue.missing(keys.head),
            watermarks=KeyValue.missing(keys.watermarks),
            view=OperationView(arg=arg, jobs=jobs, token=str(arg.id)),
        )

    def planned(
        self, *batches: pa.RecordBatch, mode: str = "append"
    ) -> tuple[OperationArg, list[StepRecord]]:
        arg = self.start(len(batches))
        jobs = {str(index): self.run(arg, str(index), batch) for index, batch in enumerate(batches)}
        return arg, list(FilesPublish({"mode": mode}).expand(self.context(arg, jobs)))

    def publish(self, *batches: pa.RecordBatch, mode: str = "append") -> None:
        arg, steps = self.planned(*batches, mode=mode)
        for _ in range(2):  # a second time, as after a crash
            self.execute(arg, steps)

    def execute(self, arg: OperationArg, steps: list[StepRecord]) -> None:
        sequence = CommitSequence.of(str(arg.id), arg.uuid, steps)
        execute(sequence, self.step_context(arg), check=lambda: None)

    def undo(self, arg: OperationArg, steps: list[StepRecord]) -> list[str]:
        """Undo the steps; return the kinds of those that could not be undone."""
        sequence = CommitSequence.of(str(arg.id), arg.uuid, steps)
        came = undo(sequence, self.step_context(arg), check=lambda: None)
        return [steps[index].step for index in came.left]

    def step_context(self, arg: OperationArg) -> StepContext:
        table = TableRecord(name="t", location=self.location, format="files")
        return StepContext(table=table, arg=arg, token=str(arg.id))

    def names(self) -> list[str]:
        return list(visible_files(self.location, self.storage))

    def ids(self) -> list[int]:
        fs, root = file_system(self.location, self.storage)
        ids: list[int] = []
        for name in self.names():
            with fs.open(f"{root}/{name}", "rb") as stream:
                ids += pq.read_table(stream)["id"].to_pylist()
        return sorted(ids)
