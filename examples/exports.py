"""``export``: the data files of a table as CSV in a folder outside of it, a job a file."""

from dataclasses import dataclass

import fsspec
import pyarrow.csv
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from distop import (
    DistributedOperation,
    Effect,
    JobContext,
    OperationView,
    Plan,
    PlanRequest,
    PreconditionFailed,
)


@dataclass
class Target:
    to: str
    """The folder of the files that are written."""


class Export(DistributedOperation[Target]):
    type = "export"
    effect = Effect.READS

    def plan(self, request: PlanRequest[Target]) -> Plan:
        if request.head is None:
            raise PreconditionFailed(f"table {request.table.name!r} holds nothing yet")
        table = StaticTable.from_metadata(request.head.metadata_location)
        return Plan.of(task.file.file_path for task in table.scan().plan_files())

    def run_job(self, job: JobContext[Target]) -> dict[str, str]:
        # Attempts may run at the same time: each has a file of its own, whose name says whose it is.
        path = f"{job.argument.to}/{job.operation.uuid}.{job.attempt}.csv"
        with fsspec.open(job.input) as file, fsspec.open(path, "wb") as csv:
            parquet = pq.ParquetFile(file)
            with pyarrow.csv.CSVWriter(csv, parquet.schema_arrow) as writer:
                for batch in parquet.iter_batches():
                    job.raise_if_cancelled()
                    writer.write(batch)
        return {"file": path}

    def cleanup_attempt(self, job: JobContext[Target]) -> None:
        fs, path = fsspec.core.url_to_fs(f"{job.argument.to}/{job.operation.uuid}.{job.attempt}.csv")
        if fs.exists(path):
            fs.rm_file(path)

    def cleanup(self, operation: OperationView[Target]) -> None:
        fs, pattern = fsspec.core.url_to_fs(f"{operation.argument.to}/{operation.arg.uuid}.*.csv")
        for path in fs.glob(pattern):
            if path.split(".")[-2] not in operation.attempts:
                fs.rm_file(path)
