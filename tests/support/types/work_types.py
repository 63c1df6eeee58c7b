"""Operation types whose jobs leave traces in a folder, for tests of executors.

``argument.folder`` holds ``log`` (a line for whatever a job does) and a file for each attempt that was not
cleaned up. What a job does is chosen by its partition: see :class:`Traced`.
"""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distop.errors import JobFailed
from distop.operations import DistributedOperation, JobContext, Plan, PlanRequest, Retry

WORK_TYPES = ",".join(
    f"{__name__}:{name}" for name in ("Traced", "Owned", "Stubborn", "Deaf", "TracedSmall", "Hanging")
)


def trace(job: JobContext, event: str) -> None:
    """Append a line to the log: event, partition, attempt, pid."""
    with Path(job.operation.argument["folder"], "log").open("a") as log:
        log.write(f"{event} {job.partition} {job.attempt} {os.getpid()}\n")


def traces(folder: Path, event: str = "") -> list[list[str]]:
    """The lines of the log, of one event or all: ``[event, partition, attempt, pid]``."""
    log = folder / "log"
    lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    return [line for line in lines if not event or line[0] == event]


def files(folder: Path) -> list[str]:
    """The attempts whose file is still there."""
    return sorted(path.name for path in folder.glob("*.out"))


class Given(DistributedOperation):
    """Is planned as its argument says: so many ``partitions``, or one. Its jobs do nothing."""

    def plan(self, request: PlanRequest) -> Plan:
        argument = dict(request.argument)
        return Plan(argument=argument, partition_count=int(argument.get("partitions", 1)))

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        return None


class Traced(Given):
    """A job writes a file, and removes it when it does not count.

    ``argument`` may name partitions: ``hold`` waits for the file ``release``; ``fail`` raises (a mapping of
    how often), ``said`` times a file name that is no text; ``permanent`` raises what is not tried again;
    ``exit`` ends its thread; ``large`` returns more than fits. ``print`` is printed, and logged.
    """

    type = "traced"
    stages_files = True

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        argument = job.operation.argument
        folder = Path(argument["folder"])
        trace(job, "began")
        if text := argument.get("print"):
            print(text, job.partition)
            logging.getLogger("users.module").warning("%s logged", job.partition)
        (folder / f"{job.attempt}.out").write_text(job.partition)
        if job.partition in argument.get("permanent", []):
            raise JobFailed("as its argument says")
        if job.partition in argument.get("exit", []):
            raise SystemExit(2)
        if job.partition in argument.get("large", []):
            return {"text": "x" * 2000}
        tries = len([line for line in traces(folder, "began") if line[1] == job.partition])
        if tries <= argument.get("fail", {}).get(job.partition, 0):
            raise OSError(f"try {tries}" + os.fsdecode(b"\xff") * argument.get("said", 0))
        if job.partition in argument.get("hold", []):
            hold(job, folder / "release")
        trace(job, "did")
        return {"rows": 1}

    def cleanup_attempt(self, job: JobContext) -> None:
        trace(job, "cleaned")
        Path(job.operation.argument["folder"], f"{job.attempt}.out").unlink(missing_ok=True)


class TracedSmall(Traced):
    """Many jobs share a task."""

    type = "traced_small"
    small_jobs = True


class Stubborn(Traced):
    """Retried without limit, so that it never fails."""

    type = "stubborn"
    retry = Retry(attempts=None)


class Deaf(Traced):
    """Does not look whether it is cancelled, until the file ``release`` is there."""

    type = "deaf"

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        folder = Path(job.operation.argument["folder"])
        trace(job, "began")
        (folder / f"{job.attempt}.out").write_text(job.partition)
        await_file(folder / "release")
        return {}


class Hanging(Traced):
    """Hangs the first time, and does not look whether it is cancelled."""

    type = "hanging"

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        folder = Path(job.operation.argument["folder"])
        trace(job, "began")
        if len([line for line in traces(folder, "began") if line[1] == job.partition]) == 1:
            await_file(folder / "release", 600.0)
        return {}


class Owned(Traced):
    """Owned by one attempt at a time; saves how far it came, ``argument.steps`` times; goes on from there.

    Holds before step ``argument.hold_at``; before ``argument.deaf_at``, too, and ignores cancellation there.
    Its checkpoints have ``argument.width`` bytes, or ``argument.text`` instead.
    With ``argument.scratch`` each step leaves a line in its scratch; the result says which it found there.
    """

    type = "owned"
    exclusive = True
    resumable = True

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        argument = job.operation.argument
        begin = int(job.load_checkpoint() or b"0")
        scratch = job.scratch_path() / "steps" if argument.get("scratch") else None
        earlier = scratch.read_text().splitlines() if scratch is not None and scratch.exists() else []
        trace(job, f"began@{begin}")
        for step in range(begin, argument["steps"]):
            if step == argument.get("hold_at"):
                hold(job, Path(argument["folder"], "release"))
            if step == argument.get("deaf_at"):
                trace(job, "deaf")
                await_file(Path(argument["folder"], "release"))
            if scratch is not None:
                with scratch.open("a") as steps:
                    steps.write(f"{step}\n")
            value = str(step + 1).encode().ljust(argument.get("width", 0))
            job.save_checkpoint(argument.get("text", value))
            trace(job, f"saved@{step + 1}")
        trace(job, "did")
        return {"from": begin} | ({"found": earlier} if scratch is not None else {})


def hold(job: JobContext, until: Path) -> None:
    """Wait for a file, and for a cancellation."""
    trace(job, "holds")
    while not until.exists():
        job.raise_if_cancelled()
        time.sleep(0.005)


def await_file(path: Path, timeout_s: float = 30.0) -> None:
    """Wait for a file and nothing else."""
    deadline = time.monotonic() + timeout_s
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
