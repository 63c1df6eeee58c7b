"""Operation types of the chaos harness: they reach the steps that ingest does not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distop.operations import DistributedOperation, JobContext, OperationView, Plan, PlanRequest

KINDS = "chaos.kinds:Stepping,chaos.kinds:Holding,support.step_probes:Stepped"


class Stepping(DistributedOperation):
    """Claims its jobs, saves a checkpoint at each step, fails each job's first try, has a hook.

    Below ``argument.folder``: ``tried-<partition>`` once a job was tried, ``job-<partition>`` once it has
    been through, ``hook`` with the token of the completion.
    """

    type = "stepping"
    exclusive = True
    resumable = True

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(argument=dict(request.argument), partition_count=int(request.argument["partitions"]))

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any] | None:
        argument, folder = job.operation.argument, Path(job.operation.argument["folder"])
        begin = int(job.load_checkpoint() or b"0")
        for step in range(begin, int(argument["steps"])):
            job.raise_if_cancelled()
            job.save_checkpoint(str(step + 1).encode())
        tried = folder / f"tried-{job.partition}"
        if not tried.exists():
            tried.touch()
            raise OSError("the first try fails, as it was asked to")
        (folder / f"job-{job.partition}").write_text(job.attempt)
        return {"steps": argument["steps"]}

    def complete_operation(self, operation: OperationView) -> None:
        folder = Path(operation.arg.argument["folder"])
        (folder / "hook").write_text(operation.token)


class Holding(DistributedOperation):
    """Its jobs wait for a file, or until they are cancelled."""

    type = "holding"
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(argument=dict(request.argument), partition_count=int(request.argument["partitions"]))

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any] | None:
        path = Path(job.staging_path(".held"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job.partition)
        release = Path(job.operation.argument["release"])
        while not release.exists():
            job.raise_if_cancelled()
            time.sleep(0.01)
        return {}

    def cancel_job_and_cleanup(self, job: JobContext) -> None:
        Path(job.staging_path(".held")).unlink(missing_ok=True)
