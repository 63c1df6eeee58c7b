"""Runs an operation type in one process, without any service: its plan, its jobs and its completion.

For tests and debuggers. The parts of a service are missing (racing attempts, marks, publishing), its checks
are not: records are written as JSON and read again, results and checkpoints have their limits.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from distop.commit.contract import FinishContext
from distop.errors import InvalidArgument, JobResultTooLarge
from distop.lake.cleanup.staged import remove_attempt
from distop.lake.iceberg.append import IcebergAppend
from distop.lake.layout.staging import ROWS
from distop.lake.rows import rows_steps, rows_writer, with_rows
from distop.lake.writing.writer import StagedWriter
from distop.metastore.etcd.txn import KeyValue, Put
from distop.metastore.records import operation as records
from distop.metastore.records.keyspace import Keyspace
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

NAME = "t"
"""The table's name."""


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


class _Rows(DistributedOperation):
    """Appends given rows."""

    type = "rows"
    effect = records.Effect.APPENDS

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def plan(self, request: PlanRequest) -> Plan:
        return Plan.rows([0], self._rows.schema)

    def run_job(self, job: JobContext) -> Iterator[pa.RecordBatch]:
        yield from self._rows.to_batches()


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
    table:
        Its rows: they are published there first, as an Iceberg table that ``table_options`` may partition
        (``{"partitionBy": ["day"]}``). Or a table of pyiceberg, which is where it is. ``None``: nothing was
        published.
    scratch:
        The folder for scratch.
    """

    kind: DistributedOperation
    argument: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""
    table: pa.Table | Table | None = None
    format: str = "iceberg"
    table_options: Mapping[str, Any] = field(default_factory=dict)
    watermarks: Watermarks = field(default_factory=dict)
    partitions: Sequence[str] | None = None
    object: str = ""
    options: records.OperationOptions = field(default_factory=records.OperationOptions)
    scratch: Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.table, Table):
            self.location = self.table.location()
        elif self.table is not None and not self.location:
            raise InvalidArgument("name a folder for the table: Trial(..., location=str(tmp_path))")
        self._record = TableRecord(
            name=NAME, location=self.location, format=self.format, options=dict(self.table_options)
        )
        request: PlanRequest = PlanRequest(
            table=self._record,
            head=self._head(),
            watermarks=self.watermarks,
            argument=self.argument,
            partitions=self.partitions,
            options=self.options,
            object=self.object,
        )
        self.plan: Plan = with_rows(make_plan(self.kind, request), request)
        names = self.plan.partitions
        made = records.OperationArg(
            table=NAME,
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
            builds_index=self.kind.builds_index,
            effect=self.kind.effect,
        )
        self.operation: records.OperationArg = decode(encode(made), records.OperationArg)
        """The input of jobs: the plan as read from etcd."""
        self.jobs: dict[str, records.JobRecord] = {}
        """The record of each job that has ended, by its name."""

    def _head(self) -> Head | None:
        if self.table is None:
            return None
        if isinstance(self.table, pa.Table):
            rows = Trial(_Rows(self.table), location=self.location, table_options=self.table_options)
            rows.run()
            return rows._published()
        snapshot = self.table.current_snapshot()
        return Head(
            metadata_location=self.table.metadata_location,
            snapshot_id=None if snapshot is None else snapshot.snapshot_id,
        )

    def _published(self) -> Head:
        """The head of the table with the rows of all jobs, as the first that it has."""
        keys = Keyspace().table(NAME)
        nothing = KeyValue.missing(b"")
        context = FinishContext(
            table=self._record, keys=keys, head=nothing, watermarks=nothing, view=self._view()
        )
        writes = IcebergAppend().prepare(context).txn.then
        return next(decode(write.value, Head) for write in writes if isinstance(write, Put))

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
            if self.operation.stages_files:
                remove_attempt(attempt)
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
