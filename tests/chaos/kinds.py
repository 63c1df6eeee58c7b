"""Operation types of the chaos harness: they reach the steps that ingest does not."""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from distop.commit.contract import FinishContext, StepPlan
from distop.commit.hook import HookCall
from distop.lake.delta.commit import DeltaArgument, DeltaFile
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.operations import JobContext, OperationView
from support.types import step_probes
from support.types.work_types import Given

KINDS = ",".join(
    [
        *(f"chaos.kinds:{name}" for name in ("Stepping", "Holding", "Notifying", "Versioned")),
        "support.types.step_probes:Stepped",
        "support.types.dealing:Dealing",
    ]
)
STEPS = f"{step_probes.STEPS},chaos.versioned=chaos.kinds:VersionedPlan"


class Stepping(Given):
    """Claims its jobs, saves a checkpoint at each step, fails each job's first try, has a hook.

    Below ``argument.folder``: ``tried-<partition>`` once a job was tried, ``job-<partition>`` once it has
    been through, ``hook`` with the token of the completion.
    """

    type = "stepping"
    exclusive = True
    resumable = True

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
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

    def before_publish(self, operation: OperationView) -> None:
        folder = Path(operation.arg.argument["folder"])
        (folder / "hook").write_text(operation.token)


class Holding(Given):
    """Its jobs wait for a file, or until cancelled. An abort adds its token to ``argument.aborted``."""

    type = "holding"
    stages_files = True

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        path = _held(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job.partition)
        release = Path(job.operation.argument["release"])
        while not release.exists():
            job.raise_if_cancelled()
            time.sleep(0.01)
        path.unlink(missing_ok=True)  # what the attempt that counts has staged would stay
        return {}

    def cleanup_attempt(self, job: JobContext) -> None:
        _held(job).unlink(missing_ok=True)

    def after_failure(self, operation: OperationView) -> None:
        with Path(operation.arg.argument["aborted"]).open("a") as file:
            file.write(f"{operation.token}\n")


def _held(job: JobContext) -> Path:
    return Path(urlsplit(job.staging_path(".held")).path)


class Notifying(Given):
    """Calls a hook when it commits."""

    type = "notifying"

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        argument = {"call": "chaos.kinds:note_token", "argument": {"path": operation.argument["path"]}}
        return [StepRecord(step="hook", argument=argument)]


def note_token(call: HookCall) -> None:
    """The hook: each call adds its token to a file."""
    with Path(call.argument["path"]).open("a") as file:
        file.write(f"{call.token}\n")


class Versioned(Given):
    """Adds a file of each job to a Delta table: ids from ``argument.first`` on, ten for each job."""

    type = "versioned"

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        argument = job.operation.argument
        first = int(argument["first"]) + 10 * int(job.partition)
        path = Path(argument["folder"], f"{job.attempt}.parquet")
        pq.write_table(pa.table({"id": pa.array(range(first, first + 10), pa.int64())}), path)
        return {"path": path.name, "size": path.stat().st_size}

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        return [StepRecord(step="chaos.versioned", argument={"folder": operation.argument["folder"]})]


class VersionedPlan(StepPlan):
    """The one step of a :class:`Versioned`: the commit."""

    def expand(self, context: FinishContext) -> Sequence[StepRecord]:
        field = {"name": "id", "type": "long", "nullable": True, "metadata": {}}
        files = [
            DeltaFile(path=job.result["path"], size=job.result["size"], modified=0)
            for job in context.view.jobs.values()
        ]
        argument = DeltaArgument(
            table=self.argument["folder"],
            schema=json.dumps({"type": "struct", "fields": [field]}),
            files=files,
        )
        return [StepRecord(step=argument.STEP, argument=msgspec.to_builtins(argument))]
