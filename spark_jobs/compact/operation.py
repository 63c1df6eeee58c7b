"""``compact``: small files of a table's partitions rewritten into files of a target size, sorted if asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from distop.errors import InvalidName, PreconditionFailed
from distop.metastore.records.names import check_partition
from distop.metastore.records.operation import Effect, OperationArg, StepRecord
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.arguments import invalid
from distop.operations.job import JobContext
from distop.spark_jobs.compact.argument import CompactArgument, parse_argument, sizes_of

MAX_NAMED = 5
"""Partitions that an error lists as examples."""


class Compact(DistributedOperation):
    """Rewrites small files. The rows of the table do not change, whatever else happens to it meanwhile.

    The snapshot and its files are fixed at the start. Concurrent appends are not touched; if a concurrent
    operation removed one of the files, its replacement is left out, and reported. See
    :class:`~distop.spark_jobs.compact.argument.CompactArgument` for the argument.
    """

    type = "compact"
    effect = Effect.REWRITES
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A field is invalid, or names a column or a partition that the table does not have.
        PreconditionFailed
            The files of the table cannot be replaced: its format is a different one.
        """
        from distop.lake.rewriting.rewrite_plan import RewritePlan

        if request.table.format != "iceberg":
            raise PreconditionFailed(
                f"table {request.table.name!r} has format {request.table.format}, this is for Iceberg tables",
                hint="Delta has OPTIMIZE for this" if request.table.format == "delta" else "",
            )
        argument = parse_argument(request.argument)
        if request.head is None:
            return Plan(argument=msgspec.to_builtins(RewritePlan(layout={})))
        plan = _chosen(request, argument)
        # Release 0.2.0 would bring back rows that delete files remove, and write by another spec.
        layout = 3 if plan.deletes or plan.earlier else 1
        return Plan(argument=msgspec.to_builtins(plan), partitions=_names(plan), layout=layout)

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """Files that others have removed meanwhile are left out at the end."""
        return made_on.head is not None and request.head is not None

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the snapshot with the new files instead of the old ones."""
        return [StepRecord(step="iceberg.replace")] if operation.argument.get("layout") else []

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any]:
        """Rewrite some files of a partition.

        Returns
        -------
        The writer's result (``rows``, ``files``, ``bytes``, its manifest); or ``missing``: a file that is
        gone. The commit checks whether the table still has it.

        Raises
        ------
        JobFailed
            The files do not hold as many rows as the table says.
        """
        from distop.spark_jobs.compact.job import run_job

        return run_job(job)

    def cancel_job_and_cleanup(self, job: JobContext) -> None:
        """Remove the attempt's files."""
        from distop.lake.cleanup.staged import remove_attempt

        remove_attempt(job.operation, job.partition, job.attempt)


def _chosen(request: PlanRequest, argument: CompactArgument) -> Any:
    from distop.lake.iceberg.metadata_files import TableFile
    from distop.lake.layout.model import Layout, file_io
    from distop.lake.layout.partitioning import Partitioner
    from distop.lake.predicates.binding import ALL, predicate_of
    from distop.lake.storage.storage import storage_of
    from distop.lake.writing.writer import table_file_bytes
    from distop.spark_jobs.compact.choice import Chooser, plan_of, sort_order

    assert request.head is not None
    storage = storage_of(request.table)
    metadata = TableFile.read(request.head.metadata_location, storage=storage).metadata
    layout = Layout.of(metadata)
    Partitioner(layout.schema, layout.spec)  # raises if it cannot split rows as the table does
    sizes = sizes_of(argument, table_file_bytes(layout))
    order = sort_order(argument.sort_by, metadata)
    chooser = Chooser(
        metadata,
        file_io(metadata.location, storage),
        sizes,
        min_files=argument.min_files,
        order_id=None if order is None else order.order_id,
        where=ALL if argument.filter is None else predicate_of(argument.filter, layout.schema),
    )
    choice = chooser.choose(request.partitions)
    unknown = set(request.partitions or ()) - set(choice.paths.values())
    if unknown:
        raise invalid(
            "partitions",
            f"the table has no files in partition {min(unknown)!r}",
            f"it has {', '.join(sorted(choice.paths.values())[:MAX_NAMED])}",
        )
    return plan_of(
        choice,
        metadata,
        snapshot_id=None if metadata.current_snapshot_id is None else str(metadata.current_snapshot_id),
        target_file_bytes=sizes.target_file,
        sort_order=None if order is None else msgspec.json.decode(order.model_dump_json()),
    )


def _names(plan: Any) -> list[str]:
    """A name for each job: its partition, with a number if that has several. NULL and the text ``null`` have
    the same path."""
    from distop.spark_jobs.compact.choice import WHOLE

    counted: Counter[str] = Counter()
    names = []
    for place, job in enumerate(plan.jobs):
        path = plan.partitions[job.partition].path or WHOLE
        counted[path] += 1
        number = counted[path]
        name = path if number == 1 else f"{path}#{number}"
        try:
            names.append(check_partition(name))
        except InvalidName:
            names.append(str(place))
    return names
