"""``export``: the partitions of a table as CSV files in a folder outside of it, a job a partition."""

import glob
from dataclasses import dataclass

import fsspec
import pyarrow as pa
import pyarrow.csv

from distop import Export, JobContext, OperationView


@dataclass
class Target:
    to: str  # a folder

    def path(self, uuid: str, attempt: str) -> str:
        # Attempts may run at the same time: each has a file of its own, whose name says whose it is.
        return f"{self.to}/{uuid}.{attempt}.csv"


class CsvExport(Export[Target]):
    type = "export"

    def export(self, job: JobContext[Target], batches: pa.RecordBatchReader) -> dict[str, str]:
        path = job.argument.path(job.operation.uuid, job.attempt)
        with fsspec.open(path, "wb") as file, pa.csv.CSVWriter(file, batches.schema) as writer:
            for batch in batches:
                writer.write(batch)
        return {"file": path}

    def cleanup_attempt(self, job: JobContext[Target]) -> None:
        fs, path = fsspec.core.url_to_fs(job.argument.path(job.operation.uuid, job.attempt))
        if fs.exists(path):
            fs.rm_file(path)

    def cleanup(self, operation: OperationView[Target]) -> None:
        fs, start = fsspec.core.url_to_fs(f"{operation.argument.to}/{operation.arg.uuid}.")
        for path in fs.glob(f"{glob.escape(start)}*.csv"):
            if path.split(".")[-2] not in operation.attempts:
                fs.rm_file(path)
