"""An operation type that writes the benchmark's frame: one job, one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import frame

from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.layout.staging import format_of
from distop.lake.rows import output_of
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.operations import DistributedOperation, JobContext
from distop.operations.api import Plan, PlanRequest


class WriteFrame(DistributedOperation):
    """Argument: ``files`` and ``rows``, the rows of each."""

    type = "write_frame"
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        schema = parse_schema({name: kind for name, (kind, _) in frame.COLUMNS.items()})
        layout = Layout.create(schema, properties=request.table.options.get("properties"))
        argument = {
            "rows": int(request.argument["rows"]),
            "layout": layout.to_json(),
            "output": request.table.format,
            "mode": "append",
        }
        return Plan(argument=argument, partition_count=int(request.argument["files"]))

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        return output_of(format_of(operation)).steps(operation)

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        argument = job.operation.argument
        layout = Layout.from_json(argument["layout"])
        count = argument["rows"]
        with output_of(format_of(job.operation)).writer(layout, job) as writer:
            writer.write(frame.rows(int(job.partition) * count, count))
            return writer.finish()
