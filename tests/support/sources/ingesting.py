"""Runs ingests from start to finish in one process: real plans, jobs and commit steps, no etcd, no Spark."""

import itertools
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa

from distop.commit.contract import TransactionalStep
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.lake.layout.model import Layout
from distop.lake.rewriting.modes import (
    IcebergAppendIfEmpty,
    IcebergAppendInstead,
    IcebergAppendOrIgnore,
    IcebergOverwrite,
    IcebergOverwritePartitions,
)
from distop.lake.rewriting.publish import IcebergMerge
from distop.metastore.records.operation import JobRecord, OperationArg, OperationOptions
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord, Watermarks, decode_watermarks
from distop.operations.api import PlanRequest, make_plan
from distop.operations.job import JobContext
from distop.spark_jobs.ingest.operation import Ingest
from distop.spark_jobs.ingest.report import IngestReport
from support.tables.publishing import Staged, Table
from support.tables.trees import all_files

STEPS: dict[str, type[TransactionalStep]] = {
    "ingest.report": IngestReport,
    "iceberg.append": IcebergAppend,
    "iceberg.overwrite": IcebergOverwrite,
    "iceberg.append_if_empty": IcebergAppendIfEmpty,
    "iceberg.append_instead": IcebergAppendInstead,
    "iceberg.append_or_ignore": IcebergAppendOrIgnore,
    "iceberg.overwrite_partitions": IcebergOverwritePartitions,
    "iceberg.merge": IcebergMerge,
}


class LocalJob(JobContext):
    """An attempt at a job that runs here and now."""

    def __init__(self, operation: OperationArg, partition: str, attempt: str = "") -> None:
        self.operation = operation
        self.partition = partition
        self.attempt = attempt or f"a{uuid4().hex[:8]}"
        self.run_token = 1
        self.looks_left: int | None = None
        """How often the job may still look before it finds itself cancelled; ``None``: for ever."""

    def load_checkpoint(self) -> bytes | None:
        return None

    def save_checkpoint(self, value: bytes) -> None:
        raise NotImplementedError

    def scratch_path(self) -> Path:
        folder = Path(urlsplit(self.operation.location).path).parent / "scratch" / self.attempt
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def cancelled(self) -> bool:
        if self.looks_left is None:
            return False
        self.looks_left -= 1
        return self.looks_left < 0


@dataclass
class Ingesting:
    """A table that is ingested into.

    Parameters
    ----------
    folder:
        An empty folder; the table is made in ``table`` below it.
    options:
        Of the table: ``schema``, ``partitionBy``, ``properties``.
    """

    folder: Path
    options: dict[str, Any] = field(default_factory=dict)
    _instances: Any = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        self.location = f"file://{self.folder}/table"
        self.table = Table("flights", self.location, Layout.create(pa.schema([("unused", pa.int64())])))
        self.operation = Ingest()

    @property
    def watermarks(self) -> Watermarks:
        return decode_watermarks(self.table.watermarks.value)

    def request(self, **argument: Any) -> PlanRequest:
        head = decode(self.table.head.value, Head) if self.table.head.exists else None
        record = TableRecord(name="flights", location=self.location, options=self.options)
        return PlanRequest(table=record, head=head, watermarks=self.watermarks, argument=argument)

    def start(self, **argument: Any) -> OperationArg:
        """Plan, and record the plan as etcd would keep it."""
        return self._recorded(self.request(**argument))

    def start_in_part(self, **argument: Any) -> OperationArg:
        """The same where jobs may fail."""
        options = OperationOptions(max_failed_partitions=-1)
        return self._recorded(replace(self.request(**argument), options=options))

    def _recorded(self, request: PlanRequest) -> OperationArg:
        plan = make_plan(self.operation, request)
        arg = OperationArg(
            table="flights",
            type="ingest",
            instance=next(self._instances),
            uuid=uuid4().hex,
            argument=plan.argument,
            partition_count=plan.partition_count,
            partitions=plan.partitions,
            watermarks=plan.watermarks,
            location=self.location,
            stages_files=True,
        )
        return decode(encode(arg), OperationArg)

    def run(self, arg: OperationArg) -> dict[str, JobRecord]:
        """Do all jobs."""
        return {name: self.run_job(LocalJob(arg, name)) for name in arg.partition_names()}

    def run_job(self, job: JobContext) -> JobRecord:
        result = dict(self.operation.run_job(job) or {})
        record = JobRecord(state="success", attempt=job.attempt, result=result)
        return decode(encode(record), JobRecord)

    def finish(self, arg: OperationArg, jobs: dict[str, JobRecord]) -> dict[str, Any]:
        """Publish; the facts of the commit."""
        staged = self._staged(arg, jobs)
        facts: dict[str, Any] = {}
        for record in self.operation.commit_steps(arg):
            facts |= self.table.publish(staged, STEPS[record.step](record.argument)).facts
        self.move_watermarks(arg, jobs)
        return facts

    def move_watermarks(self, arg: OperationArg, jobs: dict[str, JobRecord]) -> None:
        """The part of publishing that speaks of the source."""
        self.table.publish(self._staged(arg, jobs), WatermarkStep())

    def _staged(self, arg: OperationArg, jobs: dict[str, JobRecord]) -> Staged:
        layout = arg.argument["layout"]
        return Staged(arg, self.table.layout if layout is None else Layout.from_json(layout), jobs)

    def ingest(self, **argument: Any) -> dict[str, JobRecord]:
        """All of it; the records of the jobs."""
        arg = self.start(**argument)
        jobs = self.run(arg)
        self.finish(arg, jobs)
        return jobs

    def facts(self, **argument: Any) -> dict[str, Any]:
        """All of it; the facts of the commit."""
        arg = self.start(**argument)
        return self.finish(arg, self.run(arg))

    def write(self, text: str | bytes, name: str = "a.csv") -> str:
        """A file of a source; its path."""
        path = self.folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    def read(self) -> pa.Table:
        """The published rows, as any Iceberg reader sees them."""
        return self.table.iceberg().scan().to_arrow()

    def rows(self, *columns: str) -> list[Any]:
        """The values of some columns, sorted; of one column: not in tuples."""
        read = self.read().select(list(columns)).to_pydict()
        rows = list(read[columns[0]]) if len(columns) == 1 else list(zip(*read.values(), strict=True))
        return sorted(rows, key=repr)


def quarantined(ingesting: Ingesting, jobs: dict[str, JobRecord]) -> list[dict[str, Any]]:
    """The entries of all quarantine files."""
    root = Path(ingesting.location.removeprefix("file://"))
    paths = [root / job.result["quarantine"] for job in jobs.values() if "quarantine" in job.result]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def staged_files(ingesting: Ingesting) -> list[Path]:
    """All files below the table's location."""
    return all_files(Path(ingesting.location.removeprefix("file://")))
