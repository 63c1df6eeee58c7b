"""Planning a compaction: the files of the table that it rewrites, and the names of its jobs."""

from __future__ import annotations

from collections import Counter

import msgspec

from distop.errors import InvalidName
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.partitioning import Partitioner
from distop.lake.predicates.binding import ALL, predicate_of
from distop.lake.rewriting.rewrite_plan import RewritePlan
from distop.lake.storage.storage import storage_of
from distop.lake.writing.writer import table_file_bytes
from distop.operations import Plan, PlanRequest, check_partition
from distop.operations.arguments import invalid
from distop.spark_jobs.compact.argument import CompactArgument, sizes_of
from distop.spark_jobs.compact.choice import WHOLE, Chooser, plan_of, sort_order

MAX_NAMED = 5
"""Partitions that an error lists as examples."""


def plan_compaction(request: PlanRequest, argument: CompactArgument) -> Plan:
    """The plan of :class:`.operation.Compact`: which files each job rewrites."""
    if request.head is None:
        return Plan(argument=msgspec.to_builtins(RewritePlan(layout={})))
    plan = _rewrite_plan(request, argument)
    # Release 0.2.0 would bring back rows that delete files remove, and write by another spec.
    layout = 3 if plan.deletes or plan.earlier else 1
    return Plan(argument=msgspec.to_builtins(plan), partitions=_names(plan), layout=layout)


def _rewrite_plan(request: PlanRequest, argument: CompactArgument) -> RewritePlan:
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


def _names(plan: RewritePlan) -> list[str]:
    """A name for each job: its partition, with a number if that has several. NULL and the text ``null`` have
    the same path."""
    counted: Counter[str] = Counter()
    names = []
    for position, job in enumerate(plan.jobs):
        path = plan.partitions[job.partition].path or WHOLE
        counted[path] += 1
        number = counted[path]
        name = path if number == 1 else f"{path}#{number}"
        try:
            names.append(check_partition(name))
        except InvalidName:
            names.append(str(position))
    return names
