"""Operation types of the chaos harness: they reach the steps that ingest does not."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distop.commit.hook_step import HookCall
from distop.metastore.records import OperationArg, StepRecord
from distop.operations import DistributedOperation, JobContext, OperationView, Plan, PlanRequest

KINDS = "chaos.kinds:Stepping,chaos.kinds:Holding,chaos.kinds:Notifying,support.step_probes:Stepped"


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
        path = _held(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job.partition)
        release = Path(job.operation.argument["release"])
        while not release.exists():
            job.raise_if_cancelled()
            time.sleep(0.01)
        return {}

    def cancel_job_and_cleanup(self, job: JobContext) -> None:
        _held(job).unlink(missing_ok=True)


def _held(job: JobContext) -> Path:
    return Path(urlsplit(job.staging_path(".held")).path)


class Notifying(DistributedOperation):
    """Calls a hook when it commits."""

    type = "notifying"

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(argument=dict(request.argument), partition_count=1)

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any] | None:
        return None

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        argument = {"call": "chaos.kinds:note_token", "argument": {"path": operation.argument["path"]}}
        return [StepRecord(step="hook", argument=argument)]


def note_token(call: HookCall) -> None:
    """The hook: each call adds its token to a file."""
    with Path(call.argument["path"]).open("a") as file:
        file.write(f"{call.token}\n")
