"""An ingest whose plan is dynamic, and that needs no Spark: it deals the rows out at random each time."""

import random
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from distop.metastore.records.operation import OperationArg
from distop.operations import JobContext, Plan, PlanRequest
from distop.spark_jobs.ingest.operation import Ingest
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.ingest.transform import source_of, split_rows

DEALING = "support.types.dealing:Dealing"


class Dealing(Ingest):
    """An ingest whose partitions are computed when it runs, a random number of them each time.

    ``argument.folder`` (optional) holds ``log``: a line for each computation and each job. Jobs other than
    the first wait there for the file ``release``, and do not end when they are cancelled.
    """

    type = "dealing"

    def plan(self, request: PlanRequest) -> Plan:
        argument = dict(request.argument)
        folder = argument.pop("folder", None)
        plan = super().plan(replace(request, argument={**argument, "transform": "as it comes"}))
        return replace(plan, argument={**plan.argument, "traces": folder})

    def frame(self, session: Any, operation: OperationArg) -> Any:
        parts = random.randint(2, 6)
        _trace(operation, f"computed {parts}")
        if session is not None:
            return source_of(session, operation).repartition(parts)
        plan = IngestPlan.of(operation)
        splits = range(len(plan.cuts) - 1)
        tables = [table for split in splits for table in split_rows(operation, split)]
        rows = pa.concat_tables(tables)
        order = random.sample(range(rows.num_rows), rows.num_rows)
        return [rows.take(pa.array(order[part::parts], pa.int64())).to_batches() for part in range(parts)]

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        result = super().run_job(job)
        folder = job.operation.argument["traces"]
        _trace(job.operation, f"wrote {job.partition} {job.attempt}")
        notified = False
        while folder and job.partition != "0" and not Path(folder, "release").exists():
            if job.cancelled and not notified:
                notified = True
                _trace(job.operation, f"notified {job.partition} {job.attempt}")
            time.sleep(0.005)
        return result


def _trace(operation: OperationArg, line: str) -> None:
    if folder := operation.argument["traces"]:
        with Path(folder, "log").open("a") as log:
            log.write(f"{line}\n")


def computations(folder: Path) -> list[int]:
    """How many partitions each computation had."""
    return [int(line.split()[1]) for line in _log(folder) if line.startswith("computed")]


def attempts(folder: Path, event: str) -> list[str]:
    """The attempts that have written their rows (``wrote``), or were notified of their cancellation
    (``notified``)."""
    return [line.split()[2] for line in _log(folder) if line.startswith(event)]


def _log(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []
