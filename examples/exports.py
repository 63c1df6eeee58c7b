"""``export``: the data files of a table as CSV in a folder outside of it, a job a file."""

import fsspec
import pyarrow.csv
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from distop.errors import InvalidArgument, PreconditionFailed
from distop.operations import DistributedOperation, Effect, Plan


def path_of(operation, attempt):
    # Attempts may run at the same time: each has a file of its own, whose name says whose it is.
    return f"{operation.argument['to']}/{operation.uuid}.{attempt}.csv"


class Export(DistributedOperation):
    type = "export"
    effect = Effect.READS

    def plan(self, request):
        if not isinstance(to := request.argument.get("to"), str):
            raise InvalidArgument("say into which folder", details={"field": "to"})
        if request.head is None:
            raise PreconditionFailed(f"table {request.table.name!r} holds nothing yet")
        table = StaticTable.from_metadata(request.head.metadata_location)
        files = [task.file.file_path for task in table.scan().plan_files()]
        return Plan(argument={"to": to, "files": files}, partition_count=len(files))

    def run_job(self, job):
        source = job.operation.argument["files"][int(job.partition)]
        path = path_of(job.operation, job.attempt)
        with fsspec.open(source) as file, fsspec.open(path, "wb") as csv:
            parquet = pq.ParquetFile(file)
            with pyarrow.csv.CSVWriter(csv, parquet.schema_arrow) as writer:
                for batch in parquet.iter_batches():
                    job.raise_if_cancelled()
                    writer.write(batch)
        return {"file": path}

    def cleanup_attempt(self, job):
        fs, path = fsspec.core.url_to_fs(path_of(job.operation, job.attempt))
        if fs.exists(path):
            fs.rm_file(path)

    def cleanup(self, operation):
        fs, pattern = fsspec.core.url_to_fs(path_of(operation.arg, "*"))
        for path in fs.glob(pattern):
            if path.split(".")[-2] not in operation.attempts:
                fs.rm_file(path)
