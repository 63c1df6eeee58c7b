"""``write``: publishes what the tasks of a write through Spark's own interface have staged.

It has no jobs: the rows were written before it began (``prepared``). It makes one snapshot, exactly once, as
the save mode says.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from distop.commit.contract import IGNORED, Contribution, FinishContext, TransactionalStep
from distop.errors import AlreadyIngested, CorruptRecord, PreconditionFailed, StreamGap, WriteTooOld
from distop.lake.iceberg.takeover import LIST, MAX_AGE_S, TYPE, age_of
from distop.lake.layout.model import Layout
from distop.lake.rows import rows_steps
from distop.lake.rules.parsing import refuse_unchecked
from distop.operations import (
    DistributedOperation,
    Effect,
    JobContext,
    OperationArg,
    Plan,
    PlanRequest,
    Role,
    Scope,
    StepRecord,
    WatermarkMove,
)
from distop.operations.arguments import invalid
from distop.spark_jobs.ingest.argument import DEFAULT_ON_CONFLICT

GAVE_UP = "gaveUp"
"""Fact of an operation that publishes nothing: its write was abandoned."""
WRITE = "write"
"""Fact: the name of the write."""
PARTITION = "batch"
"""The only partition in the watermark of a stream."""


class WriteArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to publish."""

    write: str
    """The name of the write; its files are in folders with this name."""
    give_up: bool = False
    """Publish nothing: the files are removed, and cannot be published later by the same run. With a
    batch: refused if the table already has that one, since this write may have brought it."""
    mode: Literal["append", "overwrite", "overwrite_partitions", "error_if_exists", "ignore"] = "append"
    on_conflict: Literal["rebase", "refuse"] | None = None
    """Whether an overwrite builds on changes of others since the write began, or is refused. Default:
    ``rebase`` for append, ``refuse`` for overwriting."""
    base_snapshot: str | None = None
    """The table's snapshot when the write began; ``None``: it had none."""
    layout: dict[str, Any] = {}
    """The layout of the files, from ``Layout.to_json``."""
    files: str = ""
    """Name of the list of tasks that count."""
    source: str = ""
    """Of a stream: the watermark source that counts its batches."""
    batch: str = ""
    """The number of the batch, for a stream."""


class Write(DistributedOperation[WriteArgument]):
    """Publishes files that were written before. Started by the Spark data source, not by people.

    The object of an operation is the name of its write, so that writes of one table do not wait for each
    other.
    """

    type = TYPE
    preloads = ("distop.lake.layout.model",)
    scope = Scope.PER_OBJECT
    effect = Effect.APPENDS
    role = Role.WRITER  # the rows come from the caller's own program
    stages_files = True

    def plan(self, request: PlanRequest[WriteArgument]) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        AlreadyIngested
            The batch of a stream is already in the table.
        StreamGap
            An earlier batch of the stream is not.
        WriteTooOld
            The write began so long ago that its files may have been removed.
        PreconditionFailed
            The table has rules that its rows must keep.
        """
        argument = _checked(request)
        moves = _moves(argument, request.table.name, request.watermarks)
        if argument.give_up:
            recorded = {"output": "iceberg", "layout": argument.layout or None, WRITE: argument.write}
            return Plan(argument={**recorded, GAVE_UP: True}, uuid=argument.write)
        if (age_of(argument.write, time.time()) or 0.0) > MAX_AGE_S:
            raise WriteTooOld(
                f"write {argument.write} began more than {MAX_AGE_S / 86_400:.0f} days ago",
                details={"write": argument.write},
            )
        _check_layout(argument)
        refuse_unchecked(request.table.name, request.table.options)
        default = DEFAULT_ON_CONFLICT.get(argument.mode, "")
        return Plan(
            argument={
                WRITE: argument.write,
                "mode": argument.mode,
                "output": "iceberg",
                "onConflict": argument.on_conflict or default,
                "expectedSnapshotId": argument.base_snapshot,
                "layout": argument.layout,
                LIST: argument.files,
            },
            watermarks=moves,
            uuid=argument.write,
            series=argument.source,
        )

    def plan_holds(
        self, plan: Plan, made_on: PlanRequest[WriteArgument], request: PlanRequest[WriteArgument]
    ) -> bool:
        """It depends on the snapshot on which the write began. Of the watermarks only its own counts."""
        source = made_on.argument.source
        return made_on.watermarks.get(source) == request.watermarks.get(source)

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """As the mode says; and a note of the write's name."""
        note = StepRecord(step="write.note")
        return [note] if operation.argument.get(GAVE_UP) else [*rows_steps(operation), note]

    def run_job(self, job: JobContext) -> None:
        """It has no jobs."""


class WriteNote(TransactionalStep):
    """Adds the published or abandoned write to the facts. Changes nothing."""

    def prepare(self, context: FinishContext) -> Contribution:
        """The note of the write; see :class:`TransactionalStep`."""
        argument = context.view.arg.argument
        facts: dict[str, Any] = {WRITE: argument[WRITE]}
        return Contribution(facts=facts | ({GAVE_UP: True, IGNORED: True} if argument.get(GAVE_UP) else {}))


def _checked(request: PlanRequest[WriteArgument]) -> WriteArgument:
    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}: only Iceberg tables can be "
            "written to through Spark's own interface",
            hint="use ingest",
        )
    if request.partitions is not None:
        raise invalid("partitions", "a write has no jobs")
    argument = request.argument
    if age_of(argument.write, 0.0) is None:
        raise invalid("write", f"{argument.write!r} is not the name of a write")
    if not argument.give_up and (not argument.files or "/" in argument.files):
        raise invalid("files", f"{argument.files!r} is not the name of a list")
    if bool(argument.source) != bool(argument.batch):
        raise invalid("batch", "source and batch go together")
    if argument.source and argument.mode in ("error_if_exists", "ignore"):
        raise invalid("mode", f"a stream cannot be written with mode {argument.mode}")
    if argument.on_conflict is not None and argument.mode not in DEFAULT_ON_CONFLICT:
        raise invalid("on_conflict", f"mode {argument.mode} depends only on whether the table holds data")
    return argument


def _check_layout(argument: WriteArgument) -> None:
    try:
        Layout.from_json(argument.layout)
    except CorruptRecord as error:
        raise invalid("layout", str(error)) from None


def _moves(
    argument: WriteArgument, table: str, watermarks: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, WatermarkMove]]:
    """The batch of a stream, counted.

    Spark numbers the batches of a query from 0 on without gaps, and writes each of them, also one without
    rows: a batch that is not the next one would leave out those before it for ever.
    """
    if not argument.source:
        return {}
    before = watermarks.get(argument.source, {}).get(PARTITION)
    if not argument.batch.isdecimal():
        raise invalid("batch", f"{argument.batch!r} is not the number of a batch")
    if before is not None and not before.isdecimal():
        raise PreconditionFailed(
            f"the watermark of {argument.source} in table {table!r} is {before!r}, not the number of a batch",
            hint=f"correct it: distop watermark set {table} {argument.source} {PARTITION} NUMBER",
        )
    if before is not None and int(argument.batch) <= int(before):
        raise AlreadyIngested(
            f"batch {argument.batch} of {argument.source} is already in the table, which has {before}",
            hint="nothing needs to be done",
            details={"source": argument.source, "partition": PARTITION, "watermark": before},
        )
    if not argument.give_up and int(argument.batch) > (0 if before is None else int(before) + 1):
        raise _gap(table, argument.source, int(argument.batch), before)
    return {argument.source: {PARTITION: WatermarkMove(before=before, after=argument.batch)}}


def _gap(table: str, source: str, batch: int, before: str | None) -> StreamGap:
    last = batch - 1
    without = f"distop watermark set {table} {source} {PARTITION} {last}"
    if before is None:
        message = (
            f"table {table!r} has no batch of {source}, whose first one would be batch {batch}: the "
            "checkpoint has lost its query id, or belongs to another table, or its watermark was removed"
        )
        hint = (
            f"restore the file metadata in the checkpoint with the former query id, which "
            f"distop watermark list {table} shows; or begin with batch {batch} "
            f"(if the table has its rows, set {batch}): {without}"
        )
    else:
        first = int(before) + 1
        missing = f"batch {last}" if first == last else f"batches {first} to {last}"
        message = (
            f"batch {batch} of {source} does not follow batch {before}, the last one that table {table!r} "
            f"has: the rows of {missing} would be missing"
        )
        hint = (
            f"to write them, remove all batches after {before} from the folders commits and offsets of the "
            "checkpoint (on a local disk with their .crc files), and start the query again; to go on without "
            f"them: {without}"
        )
    details = {"source": source, "partition": PARTITION, "watermark": before or "", "batch": str(batch)}
    return StreamGap(message, hint=hint, details=details)
