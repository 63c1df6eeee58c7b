"""What a task does: its jobs of one operation, one after the other.

The same code runs in a Spark worker and in a thread of the runner. Each job is tried in place; its result is
marked without waiting for the answer, and the next one begins. An attempt that does not count removes its
output; an attempt whose mark is in doubt leaves it, since published files stay where they were written.

One partition of a DataFrame is a job, too (:func:`run_frame_job`). It differs in who decides that it counts.
Tasks of a frozen plan mark their results themselves, and the first mark wins. Here that would be wrong: a
stage that is repeated after a lost executor reads rows that may be partitioned differently, and some tasks of
its first attempt may have marked already, which Spark does not know. So a task returns its result to Spark,
and the driver marks what Spark has accepted. The files of tasks that Spark does not accept, or kills, are
swept after the operation. Only a permanent failure is marked at once, so that the operation ends without
waiting for the other tasks.
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from heapq import nlargest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from distop import errors
from distop.executor.host.scratch import Scratch
from distop.executor.task.output import Output, collected
from distop.executor.task.session import Port, TaskSession
from distop.lake.storage.traces import PLACES, keep_output, keep_trace
from distop.metastore.crashpoints import reached
from distop.metastore.operations import jobs
from distop.metastore.records.operation import MAX_JOB_RECORD_BYTES, OperationArg
from distop.operations import DistributedOperation, JobContext, Retry
from distop.operations.job import result_of
from distop.process.loop import boot_clock

if TYPE_CHECKING:
    from distop.lake.writing.writer import StagedWriter

log = logging.getLogger(__name__)

SLOW_JOB_S = 1.0
"""Jobs that take at least so long may get a span of their own in the trace of their operation."""
MAX_TASK_TIMES, MAX_JOB_TIMES = 200, 8
"""Tasks of a launch, and jobs of a task, whose times are reported."""

SHORTEST_GRACE_S, LONGEST_GRACE_S = 2.0, 10.0
"""Grace after an attempt's timeout before it counts as hanging: as long as the timeout, within these
bounds."""


class JobTime(msgspec.Struct, array_like=True):
    """How long one job took; times are in seconds since the Unix epoch."""

    partition: str
    began: float
    ended: float
    error: str = ""
    """``CODE: message``, if it failed."""


class TaskTime(msgspec.Struct, array_like=True):
    """How long one task took; times are in seconds since the Unix epoch."""

    name: str
    host: str
    began: float
    ended: float
    jobs: list[JobTime] = []
    """Failed and slow ones: :data:`MAX_JOB_TIMES` at most."""


@dataclass
class TaskSummary:
    """The results of a task's jobs."""

    won: int = 0
    lost: int = 0
    """Have a result, but not from this task."""
    gone: int = 0
    """Not marked, since the run or a claim was over."""
    unknown: int = 0
    failed: int = 0
    """How many of ``won`` and ``lost`` failed here."""
    times: list[TaskTime] = field(default_factory=list, compare=False)
    """Of the task; of several tasks the longest, :data:`MAX_TASK_TIMES` at most."""

    @property
    def finished(self) -> int:
        """Jobs that certainly have a result now."""
        return self.won + self.lost

    @classmethod
    def total(cls, summaries: Collection[TaskSummary]) -> TaskSummary:
        """The results of several tasks."""
        return cls(
            won=sum(each.won for each in summaries),
            lost=sum(each.lost for each in summaries),
            gone=sum(each.gone for each in summaries),
            unknown=sum(each.unknown for each in summaries),
            failed=sum(each.failed for each in summaries),
            times=longest(time for each in summaries for time in each.times),
        )


def longest(times: Iterable[TaskTime]) -> list[TaskTime]:
    """The longest tasks of many, for the trace of their operation."""
    return nlargest(MAX_TASK_TIMES, times, key=lambda task: task.ended - task.began)


class TaskJob(JobContext):
    """The :class:`~distop.operations.JobContext` of one attempt."""

    def __init__(self, session: TaskSession[TaskJob], work: TaskWork, partition: str, attempt: str) -> None:
        self.operation = work.arg
        self.argument_type = work.operation.argument_type
        self.partition = partition
        self.attempt = attempt
        self.run_token = session.token
        self.claim = 0
        self.cleaned = False
        self._session, self._scratch = session, work.scratch
        self._checkpoint: bytes | None = None
        self._resumable = work.operation.resumable
        self._folder: Path | None = None
        self._begin()

    def _begin(self) -> None:
        timeout_s = self.operation.options.attempt_timeout_s
        self._ends_at = math.inf if timeout_s is None else boot_clock() + timeout_s

    def own(self, claim: int, checkpoint: bytes | None) -> None:
        """The job was claimed for this attempt, which may have waited for another one to end."""
        self.claim, self._checkpoint = claim, checkpoint
        self._begin()

    def scratch_path(self) -> Path:
        if self._folder is None:
            self.raise_if_cancelled()
            of = (self.operation.id, self.partition, self.attempt)
            if self._resumable:
                self._folder = self._scratch.kept(*of, self.claim, self._checkpoint)
            else:
                self._folder = self._scratch.private(*of)
        return self._folder

    def writer(self) -> StagedWriter:
        from distop.lake.rows import rows_writer

        return rows_writer(self)

    def remove_scratch(self, *, done: bool) -> None:
        """Remove the attempt's own folder; and what is kept for the next one, if the job is ``done``."""
        if self._resumable and done:
            self._scratch.remove(self.operation.id, self.partition)
        elif self._folder is not None and not self._resumable:
            self._scratch.remove(self.operation.id, self.partition, self.attempt)

    def clean(self, operation: DistributedOperation) -> None:
        """Remove the attempt's files, once."""
        if self.cleaned:
            return
        self.cleaned = True
        reached("job.clean.before")
        try:
            operation.cleanup_attempt(self)
            if self.operation.stages_files:
                from distop.lake.cleanup.staged import remove_attempt  # loads what only tables need

                remove_attempt(self)
            reached("job.clean.after")
        except (Exception, SystemExit):
            # Nothing is lost: an attempt's remains are private to it, and are swept after the operation.
            log.warning("job_cleanup_failed", extra={"partition": self.partition}, exc_info=True)
        self.remove_scratch(done=False)

    def timeout(self) -> errors.AttemptTimeout:
        """The error of an attempt after its timeout."""
        longest = self.operation.options.attempt_timeout_s
        return errors.AttemptTimeout(f"an attempt at job {self.partition} took longer than {longest:g} s")

    def load_checkpoint(self) -> bytes | None:
        return self._checkpoint

    def save_checkpoint(self, value: bytes) -> None:
        if not self.claim:
            raise errors.InvalidArgument(
                f"operation type {self.operation.type!r} keeps no checkpoints",
                hint="set resumable = True in it",
            )
        jobs.check_checkpoint(
            value
        )  # here: a sidecar ends the connection of who sends a frame that is too large
        if self._folder is not None:
            self._scratch.made_up_to(self._folder, self.partition, self._checkpoint, value)
        self._session.save(self.partition, self.claim, value)
        self._checkpoint = value
        if self._folder is not None:
            self._scratch.made_up_to(self._folder, self.partition, value)

    @property
    def cancelled(self) -> bool:
        return self.unwanted or self.expired

    @property
    def expired(self) -> bool:
        """Whether it has exceeded its timeout."""
        return boot_clock() >= self._ends_at

    @property
    def unwanted(self) -> bool:
        """Whether none of it can count any more: its run is over, or its claim is lost."""
        return bool(self._session.over) or (self.claim != 0 and not self._session.owns(self.claim))


@dataclass(frozen=True, kw_only=True)
class TaskWork:
    """What the tasks of one launch share."""

    operation: DistributedOperation
    arg: OperationArg
    run_token: int
    scratch: Scratch
    tried: Mapping[str, jobs.Tried] = field(default_factory=dict)
    """Results of earlier attempts at jobs, by processes that are gone."""

    @property
    def claims(self) -> bool:
        """Whether jobs are claimed first. A resumable job has one owner at a time, since a checkpoint
        describes the state of one attempt."""
        return self.arg.exclusive or self.operation.resumable

    @property
    def retry(self) -> Retry:
        """How jobs are tried again."""
        return self.arg.options.retry(self.operation.retry)


@dataclass
class Task:
    """One task: a session, and its jobs.

    Parameters
    ----------
    name:
        Unique within the run, such as Spark's task attempt id; letters, digits and dashes.
    """

    work: TaskWork
    session: TaskSession[TaskJob]
    name: str
    hung: Callable[[], None] | None = None
    """Ends this process if an attempt does not end: see :data:`LONGEST_GRACE_S`."""
    clock: Callable[[], float] = time.time
    rng: random.Random = field(default_factory=random.Random)
    summary: TaskSummary = field(default_factory=TaskSummary)
    output: Output = field(default_factory=Output)
    """What the attempt's code prints and logs."""
    _outputs: deque[Callable[[], None]] = field(default_factory=lambda: deque(maxlen=PLACES))
    """Each stores what an attempt that succeeded has written."""
    _attempts: int = 0
    _error: str = ""
    """Why the last job failed."""

    def __post_init__(self) -> None:
        # (stage, partition, attempt number) of Spark is not unique after a stage is retried; this is.
        self._prefix = f"{self.session.token}-{self.name}-{self.rng.getrandbits(48):012x}"
        self._retry = self.work.retry
        self._time = TaskTime(self.name, os.uname().nodename, self.clock(), 0.0)

    def run(self, partitions: Iterable[str]) -> TaskSummary:
        """Do these jobs; returns when each has been accounted for.

        Raises
        ------
        DistopError
            etcd (or the sidecar) did not answer; some jobs may not be marked.
        """
        for partition in partitions:
            if self.session.over:
                self.summary.gone += 1
                continue  # to the end: Spark does not reuse a worker that leaves its input unread
            began, self._error = self.clock(), ""
            self._do(partition)
            self._note_time(partition, began)
            self._act_on(self.session.settled())
        self._act_on(self.session.drain())
        self._time.ended = self.clock()
        # Only now: a storage that hangs must delay no mark.
        for keep in self._outputs:
            keep()
        self.summary.times = [self._time]
        return self.summary

    def _note_time(self, partition: str, began: float) -> None:
        """Remember how long a job took, if it failed or is among the slowest."""
        if not self._error and self.clock() - began < SLOW_JOB_S:
            return
        jobs = [*self._time.jobs, JobTime(partition, began, self.clock(), self._error)]
        worst = nlargest(MAX_JOB_TIMES, jobs, key=lambda job: (bool(job.error), job.ended - job.began))
        self._time.jobs = worst

    # -- one job -------------------------------------------------------------------------------------

    def _do(self, partition: str) -> None:
        before = self.work.tried.get(partition, jobs.Tried(0))
        tries = before.tries
        while not self.session.over:
            job = self._next_attempt(partition)
            if self.work.claims and not self._own(job):
                return
            if tries >= self._retry.most_attempts:
                self._give_up(job, before.error)
                return
            tries += 1
            try:
                reached("job.before")
                with self._watched(job, tries):
                    self.output.is_open = True
                    try:
                        result = run_attempt(self.work.operation, job)
                    finally:
                        self.output.is_open = False
                reached("job.after")
                if job.expired:
                    raise job.timeout()
                value = jobs.success_record(job.attempt, result, self.clock())
            except Exception as error:
                # Whatever it raises after it was stopped: this is the reason.
                late = job.expired and not isinstance(error, errors.InvalidArgument | errors.JobFailed)
                if not self._goes_on(job, job.timeout() if late else error, tries):
                    return
            else:
                self._mark(job, value)
                if (text := self.output.take()) and not job.unwanted:
                    keep = partial(keep_output, job.operation, text, partition=partition)
                    self._outputs.append(partial(keep, attempt=job.attempt, at=self.clock()))
                return
        self.summary.gone += 1

    def _next_attempt(self, partition: str) -> TaskJob:
        self._attempts += 1
        return TaskJob(self.session, self.work, partition, f"{self._prefix}-{self._attempts}")

    @contextmanager
    def _watched(self, job: TaskJob, tries: int) -> Iterator[None]:
        """Make sure that a hanging attempt does not keep its slot for ever."""
        timeout_s = job.operation.options.attempt_timeout_s
        if timeout_s is None or self.hung is None:
            yield
            return
        grace_s = min(LONGEST_GRACE_S, max(SHORTEST_GRACE_S, timeout_s))
        timer = threading.Timer(timeout_s + grace_s, self._end_process, (job, tries))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end_process(self, job: TaskJob, tries: int) -> None:
        """Called by the timer's thread: the task's own hangs in a job."""
        if tries <= self._retry.most_attempts:
            self._count_try(job, job.timeout())
        if self.hung is not None:
            self.hung()

    def _own(self, job: TaskJob) -> bool:
        answer = self.session.claim(job.partition, job.attempt)
        if isinstance(answer, jobs.Verdict):
            self._count(answer)
            return False
        job.own(answer.claim, answer.checkpoint if self.work.operation.resumable else None)
        return True

    def _goes_on(self, job: TaskJob, error: Exception, tries: int) -> bool:
        """Handle an attempt that raised; return whether to try again."""
        operation, most = self.work.operation, self._retry.attempts
        fields = {"operation": str(job.operation.id), "partition": job.partition, "attempt": job.attempt}
        output = self.output.take()
        if job.unwanted:
            log.info("job_cancelled", extra=fields)
            job.clean(self.work.operation)
            if job.claim and not self.session.over:
                # Only our own clock may say that it is lost: then it blocks others, us too.
                self.session.release(job.partition, job.claim)
            return True  # the run may go on without this claim; if not, the caller's loop ends
        permanent = isinstance(error, errors.InvalidArgument | errors.JobFailed | errors.Cancelled)
        if most is not None and (permanent or tries >= most):
            log.warning("job_failed", extra=fields, exc_info=error)
            keep_trace(job.operation, error, partition=job.partition, attempt=job.attempt, output=output)
            job.clean(self.work.operation)
            self._give_up(job, error_text(error))
            return False
        log.warning("job_attempt_failed", extra=fields | {"tries": tries}, exc_info=error)
        keep_trace(job.operation, error, partition=job.partition, attempt=job.attempt, output=output)
        if not operation.resumable:
            job.clean(self.work.operation)
        if most is not None:
            self._count_try(job, error)
        if job.claim:
            self.session.release(job.partition, job.claim)
        # Randomised, so that jobs do not retry in step.
        self.session.pause(self._retry.job_pause_s(tries) * self.rng.uniform(0.5, 1.0))
        return True

    def _count_try(self, job: TaskJob, error: Exception) -> None:
        try:
            self.session.count_try(job.partition, job.attempt, error_text(error))
        except errors.DistopError as unavailable:
            # It is retried here anyway; if this process dies, one attempt too many is made.
            log.warning("try_not_counted", extra={"partition": job.partition, "error": str(unavailable)})

    def _give_up(self, job: TaskJob, error: str) -> None:
        """Mark a job failed, with the ``CODE: message`` of its last attempt."""
        code, _, text = error.partition(": ")
        self.summary.failed += 1
        self._error = error
        self._mark(job, jobs.failure_record(job.attempt, code, text, self.clock()))

    def _mark(self, job: TaskJob, value: bytes) -> None:
        resumable = self.work.operation.resumable
        self.session.mark(jobs.Mark(job.partition, job.attempt, value, job.claim, resumable), job)

    # -- what came of it -----------------------------------------------------------------------------

    def _act_on(self, answers: list[tuple[TaskJob, jobs.Verdict]]) -> None:
        for job, verdict in answers:
            self._count(verdict)
            # The next run may resume after a run that is over. An operation in doubt counts as over.
            job.remove_scratch(done=verdict.outcome is not jobs.Outcome.GONE)
            if verdict.outcome is jobs.Outcome.WON:
                continue
            fields = {"operation": str(job.operation.id), "partition": job.partition, "attempt": job.attempt}
            fields |= {"outcome": verdict.outcome.value, "reason": verdict.reason}
            log.info("attempt_does_not_count", extra=fields)
            if verdict.outcome is not jobs.Outcome.UNKNOWN:
                job.clean(self.work.operation)

    def _count(self, verdict: jobs.Verdict) -> None:
        name = verdict.outcome.value
        setattr(self.summary, name, getattr(self.summary, name) + 1)


def run_attempt(operation: DistributedOperation, job: TaskJob) -> Mapping[str, Any]:
    """Run an attempt's code."""
    try:
        return result_of(job, operation.run_job(job))
    except SystemExit as error:  # it would end the thread, or Spark's worker, without a word
        raise errors.JobCrashed(f"SystemExit: {error}") from error


def error_text(error: Exception) -> str:
    """``CODE: message`` of an attempt's error, which may quote all that it has read."""
    raised = errors.as_distop(error, errors.JobCrashed)
    return errors.shortened(f"{raised.code}: {raised.message}", MAX_JOB_RECORD_BYTES)


def run_task(
    port: Port,
    work: TaskWork,
    partitions: Iterable[str],
    name: str,
    hung: Callable[[], None] | None = None,
) -> TaskSummary:
    """Run one task to its end."""
    session: TaskSession[TaskJob] = TaskSession(port, str(work.arg.id), work.run_token, claims=work.claims)
    try:
        with collected() as output:
            return Task(work, session, name, hung, output=output).run(partitions)
    finally:
        session.close()


class FrameResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of one partition."""

    partition: int
    stage: int
    """Spark's id of the task's stage."""
    attempt: str
    value: bytes
    """The record to mark; empty: none, since the job has failed for good, or is no longer needed."""
    time: TaskTime | None = None


class FrameJob(TaskJob):
    """The job of one partition."""

    def __init__(
        self, session: TaskSession[TaskJob], work: TaskWork, partition: str, attempt: str, rows: Iterable[Any]
    ) -> None:
        super().__init__(session, work, partition, attempt)
        self._rows = rows

    def rows(self) -> Iterator[Any]:
        yield from self._rows


def run_frame_job(
    port: Port,
    work: TaskWork,
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
    took = TaskTime(name, os.uname().nodename, time.time(), 0.0)
    session: TaskSession[TaskJob] = TaskSession(port, str(work.arg.id), work.run_token, claims=False)
    try:
        job = FrameJob(session, work, str(partition), attempt, rows)
        try:
            job.raise_if_cancelled()
            reached("job.before")
            result = run_attempt(work.operation, job)
            reached("job.after")
            _check_in_time(job)
            value = jobs.success_record(attempt, result, time.time(), run=work.run_token)
        except Exception as error:
            job.clean(work.operation)
            if not job.unwanted:
                if not isinstance(error, errors.InvalidArgument | errors.JobFailed):
                    _check_in_time(job)  # whatever it raises after it was stopped: this is the reason
                    raise
                log.warning("job_failed", extra={"attempt": attempt}, exc_info=error)
                code, _, text = error_text(error).partition(": ")
                failure = jobs.failure_record(attempt, code, text, time.time(), run=work.run_token)
                session.mark(jobs.Mark(str(partition), attempt, failure), job)
                session.drain()
            return FrameResult(partition, stage, attempt, b"")
        took.ended = time.time()
        return FrameResult(partition, stage, attempt, value, took)
    finally:
        session.close()


def _check_in_time(job: TaskJob) -> None:
    if job.expired:
        raise job.timeout()
