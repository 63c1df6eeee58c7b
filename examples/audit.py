"""``audit``: reads every data file of a table, and fails unless it holds the rows that the table says."""

import json
from urllib.parse import quote

import fsspec
import pyarrow.parquet as pq
from pyiceberg.table import StaticTable

from distop import (
    DistributedOperation,
    Effect,
    JobContext,
    JobFailed,
    OperationView,
    Plan,
    PlanRequest,
    PreconditionFailed,
)


class Audit(DistributedOperation):
    type = "audit"
    effect = Effect.READS  # so it may run while the table is written to
    resumable = True  # a job's checkpoint is handed to the next attempt

    def plan(self, request: PlanRequest) -> Plan:
        if request.head is None:
            raise PreconditionFailed(f"table {request.table.name!r} holds nothing yet")
        table = StaticTable.from_metadata(request.head.metadata_location)
        return Plan.of([task.file.file_path, task.file.record_count] for task in table.scan().plan_files())

    def run_job(self, job: JobContext) -> dict[str, int]:
        path, expected = job.input
        done, rows = json.loads(job.load_checkpoint() or b"[0, 0]")
        with fsspec.open(path) as file, pq.ParquetFile(file) as parquet:
            for group in range(done, parquet.num_row_groups):
                rows += parquet.read_row_group(group).num_rows
                job.save_checkpoint(json.dumps([group + 1, rows]).encode())
        if rows != expected:
            raise JobFailed(f"{path} holds {rows:,} rows, the table says {expected:,}")
        return {"rows": rows}

    def facts(self, operation: OperationView) -> dict[str, int]:
        rows = sum(job.result.get("rows", 0) for job in operation.jobs.values())
        return {"files": len(operation.jobs), "rows": rows}

    def links(self, operation: OperationView) -> dict[str, str]:
        return {"runbook": f"https://runbooks.example.com/audit?table={quote(operation.arg.table)}"}

    def before_publish(self, operation: OperationView) -> None:
        # The same name in every attempt at completing: a repeat after a crash writes the same report again.
        with fsspec.open(f"{operation.arg.location}/audits/{operation.arg.uuid}.json", "w") as report:
            json.dump({"operation": operation.token, **self.facts(operation)}, report)
