"""Runs an operation type in one process, without any service: its plan, its jobs and its completion.

For tests and debuggers. The parts of a service are missing (racing attempts, marks, publishing), its checks
are not: records are written as JSON and read again, results and checkpoints have their limits.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distop.errors import InvalidArgument, JobResultTooLarge
from distop.lake.layout.staging import ROWS
from distop.lake.rows import rows_steps, rows_writer, with_rows
from distop.lake.writing.writer import StagedWriter
from distop.metastore.records import operation as records
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord, Watermarks
from distop.operations.api import (
    DistributedOperation,
    OperationView,
    Plan,
    PlanRequest,
    facts_of,
    is_swept,
    make_plan,
)
from distop.operations.job import JobContext, result_of


class TrialJob(JobContext):
    """One attempt at one job, in this process.

    Parameters
    ----------
    checkpoint:
        The checkpoint of an earlier attempt.
    cancel_after:
        The attempt is cancelled once it has checked this often; ``None``: never.
    """

    def __init__(
        self,
        operation: records.OperationArg,
        partition: str,
        *,
        resumable: bool = False,
        checkpoint: bytes | None = None,
        cancel_after: int | None = None,
        scratch: Path | None = None,
        argument_type: type[Any] | None = None,
    ) -> None:
        self.operation = operation
        self.argument_type = argument_type
        self.partition = partition
        self.attempt = f"1-{secrets.token_hex(6)}"
        self.run_token = 1
        self.checkpoint = checkpoint
        """The last checkpoint."""
        self.cancel_after = cancel_after
        self._resumable = resumable
        self._scratch = scratch

    def load_checkpoint(self) -> bytes | None:
        return self.checkpoint

    def save_checkpoint(self, value: bytes) -> None:
        if not self._resumable:
            raise InvalidArgument(f"operation type {self.operation.type!r} keeps no checkpoints")
        if len(value) > records.MAX_CHECKPOINT_BYTES:
            raise InvalidArgument(
                f"the checkpoint takes {len(value):,} bytes of {records.MAX_CHECKPOINT_BYTES:,}"
            )
        self.raise_if_cancelled()
        self.checkpoint = bytes(value)

    @property
    def cancelled(self) -> bool:
        if self.cancel_after is None:
            return False
        self.cancel_after -= 1
        return self.cancel_after < 0

    def writer(self) -> StagedWriter:
        return rows_writer(self)

    def scratch_path(self) -> Path:
        if self._scratch is None:
            raise InvalidArgument("name a folder for scratch: Trial(..., scratch=tmp_path)")
        folder = self._scratch / (self.partition if self._resumable else self.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


@dataclass
class Trial:
    """A trial of an operation.

    Creating one plans it; raises the errors of ``plan``.

    Parameters
    ----------
    argument:
        The argument as a caller would send it.
    location:
        Of the table: a path or a URL.
    head:
        The published state of the table; ``None``: nothing.
    scratch:
        The folder for scratch.
    """

    kind: DistributedOperation
    argument: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""
    table: str = "t"
    format: str = "iceberg"
    table_options: Mapping[str, Any] = field(default_factory=dict)
    head: Head | None = None
    watermarks: Watermarks = field(default_factory=dict)
    partitions: Sequence[str] | None = None
    object: str = ""
    options: records.OperationOptions = field(default_factory=records.OperationOptions)
    scratch: Path | None = None

    def __post_init__(self) -> None:
        record = TableRecord(
            name=self.table, location=self.location, format=self.format, options=dict(self.table_options)
        )
        request: PlanRequest = PlanRequest(
            table=record,
            head=self.head,
            watermarks=self.watermarks,
            argument=self.argument,
            partitions=self.partitions,
            options=self.options,
            object=self.object,
        )
        self.plan: Plan = with_rows(make_plan(self.kind, request), request)
        names = self.plan.partitions
        made = records.OperationArg(
            table=self.table,
            type=self.kind.type,
            instance=1,
            object=self.object,
            uuid=secrets.token_hex(6),
            argument=self.plan.argument,
            partition_count=self.plan.partition_count if names is None else len(names),
            partitions=names,
            watermarks=self.plan.watermarks,
            options=self.options,
            location=self.location,
            stages_files=is_swept(self.kind, self.plan),
            nested_files=self.kind.nested_files,
            builds_index=self.kind.builds_index,
            effect=self.kind.effect,
        )
        self.operation: records.OperationArg = decode(encode(made), records.OperationArg)
        """The input of jobs: the plan as read from etcd."""
        self.jobs: dict[str, records.JobRecord] = {}
        """The record of each job that has ended, by its name."""

    @property
    def names(self) -> list[str]:
        """The names of the jobs, in the order of the plan."""
        return self.operation.partition_names()

    def job(
        self, name: str = "0", *, checkpoint: bytes | None = None, cancel_after: int | None = None
    ) -> TrialJob:
        """An attempt at a job; see :class:`TrialJob`."""
        return TrialJob(
            self.operation,
            name,
            resumable=self.kind.resumable,
            checkpoint=checkpoint,
            cancel_after=cancel_after,
            scratch=self.scratch,
            argument_type=self.kind.argument_type,
        )

    def run(self, job: TrialJob | str = "0") -> dict[str, Any]:
        """Run an attempt to its end; return the job's result, as completion will see it.

        Cleans up after one that raises, and raises the error again; there is no retry.
        """
        attempt = self.job(job) if isinstance(job, str) else job
        try:
            result = dict(result_of(attempt, self.kind.run_job(attempt)))
            value = encode(records.JobRecord(state="success", attempt=attempt.attempt, result=result, at=1e9))
            if len(value) > records.MAX_JOB_RECORD_BYTES:
                raise JobResultTooLarge(
                    f"the result takes {len(value):,} bytes of {records.MAX_JOB_RECORD_BYTES:,}"
                )
        except BaseException:
            self.kind.cleanup_attempt(attempt)
            raise
        self.jobs[attempt.partition] = decode(value, records.JobRecord)
        return self.jobs[attempt.partition].result

    def run_all(self) -> list[dict[str, Any]]:
        """Run all jobs, one after the other."""
        return [self.run(name) for name in self.names]

    def facts(self) -> dict[str, Any]:
        """The facts that its history would have, with the links; raises where a service would leave them
        out."""
        return facts_of(self.kind, self._view())

    def _view(self, error: records.ErrorRecord | None = None) -> OperationView:
        return OperationView(
            arg=self.operation,
            jobs={} if error else dict(self.jobs),
            token=f"{self.operation.id}/{self.operation.uuid}",
            argument_type=self.kind.argument_type,
            error=error,
        )

    def complete(self) -> OperationView:
        """Call ``before_publish``. Call it twice to test that it is idempotent."""
        view = self._view()
        self.kind.before_publish(view)
        return view

    def sweep(self, *, failed: bool = False) -> OperationView:
        """Call ``cleanup``, as after a success with the results so far, or after a failure."""
        error = records.ErrorRecord(code="JOB_FAILED", message="a trial of failure") if failed else None
        view = self._view(error)
        self.kind.cleanup(view)
        return view

    def steps(self) -> list[records.StepRecord]:
        """The steps that would publish it."""
        steps = list(self.kind.commit_steps(self.operation))
        return [*steps, *rows_steps(self.operation)] if self.operation.argument.get(ROWS) else steps
