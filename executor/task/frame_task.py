"""One partition of a DataFrame as a job: what a task of a dynamic plan does.

It differs from other jobs in who decides that it counts. Tasks of a frozen plan mark their results
themselves, and the first mark wins. Here that would be wrong: a stage that is repeated after a lost executor
reads rows that may be partitioned differently, and some tasks of its first attempt may have marked already,
which Spark does not know. So a task returns its result to Spark, and the driver marks what Spark has
accepted. The files of tasks that Spark does not accept, or kills, are swept after the operation.

Only a permanent failure is marked at once, so that the operation ends without waiting for the other
tasks.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from distop.errors import InvalidArgument, JobFailed
from distop.executor.task.session import Port, Session
from distop.executor.task.task import TaskJob, Work, error_text, run_attempt
from distop.metastore.crashpoints import reached
from distop.metastore.operations.jobs import Mark, failure_record, success_record

log = logging.getLogger(__name__)


class FrameResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of one partition."""

    partition: int
    stage: int
    """Spark's id of the task's stage."""
    attempt: str
    value: bytes
    """The record to mark; empty: none, since the job has failed for good, or is no longer needed."""


class FrameJob(TaskJob):
    """The job of one partition."""

    def __init__(
        self, session: Session[TaskJob], work: Work, partition: str, attempt: str, rows: Iterable[Any]
    ) -> None:
        super().__init__(session, work, partition, attempt)
        self._rows = rows

    def rows(self) -> Iterator[Any]:
        yield from self._rows


def run_frame_job(
    port: Port,
    work: Work,
    partition: int,
    rows: Iterable[Any],
    name: str,
    *,
    stage: int = 0,
    rng: random.Random | None = None,
) -> FrameResult:
    """Do the job of a partition.

    Parameters
    ----------
    name:
        Unique within the run, such as Spark's task attempt id.

    Raises the job's transient errors: its rows come only once, so Spark, which computes them, has to
    retry.
    """
    bits = (rng or random.Random()).getrandbits(48)
    attempt = f"{work.run_token}-{name}-{bits:012x}-1"
    session: Session[TaskJob] = Session(port, str(work.arg.id), work.run_token, claims=False)
    try:
        job = FrameJob(session, work, str(partition), attempt, rows)
        try:
            job.raise_if_cancelled()
            reached("job.before")
            result = run_attempt(work.operation, job)
            reached("job.after")
            _check_in_time(job)
            value = success_record(attempt, result, time.time(), run=work.run_token)
        except Exception as error:
            job.clean(work.operation)
            if not job.unwanted:
                if not isinstance(error, InvalidArgument | JobFailed):
                    _check_in_time(job)  # whatever it raises after it was stopped: this is the reason
                    raise
                log.warning("job_failed", extra={"attempt": attempt}, exc_info=error)
                code, _, text = error_text(error).partition(": ")
                failure = failure_record(attempt, code, text, time.time(), run=work.run_token)
                session.mark(Mark(str(partition), attempt, failure), job)
                session.drain()
            return FrameResult(partition, stage, attempt, b"")
        return FrameResult(partition, stage, attempt, value)
    finally:
        session.close()


def _check_in_time(job: TaskJob) -> None:
    if job.expired:
        raise job.timeout()
