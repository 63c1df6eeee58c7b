"""The part of a merge's plan about the table: which rows are examined, and their possible
changes."""

from __future__ import annotations

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import file_io
from distop.lake.predicates.binding import ALL
from distop.lake.rewriting.plan import SnapshotPlan, concerned_by, planned_on
from distop.lake.storage.storage import storage_of
from distop.operations.api import PlanRequest
from distop.operations.arguments import invalid
from distop.spark_jobs.delete.operation import bytes_per_job

_KEYS = (
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
"""Types whose values are exactly comparable."""
_ORDERED = (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
"""Types whose values may say how new a row is."""


class MergePlan(SnapshotPlan, kw_only=True):
    """See the module. The conditions are predicates on the rows of the batch; NULL counts as false."""

    keys: list[str]
    """The key columns, which match rows of the batch with rows of the table."""
    delete_where: str = ""
    """Rows for which this is true delete those of the table; empty: none."""
    update_where: str = ""
    """Rows for which this is true replace those of the table; empty: all others."""
    insert_where: str = ""
    """Rows for which this is true are added if the table has none with their key; empty: all others."""
    order_by: str = ""
    """The column that says how new a row is; empty: the last row is the newest. See
    :class:`~distop.spark_jobs.merge.batch.Batch`."""


def plan_merge(request: PlanRequest, plan: MergePlan) -> tuple[MergePlan, int]:
    """The plan with the table's snapshot, and the number of its jobs: those that read the table's files, and
    one that looks for keys that the table does not have.

    Raises :class:`~distop.errors.PreconditionFailed` if a file of the table cannot be read here.
    """
    head = request.head
    if head is None or head.snapshot_id is None:
        return plan, 1
    storage = storage_of(request.table)
    file = TableFile.read(head.metadata_location, storage=storage)
    metadata, snapshot = file.metadata, file.snapshot(head.snapshot_id)
    assert snapshot is not None
    job_bytes = bytes_per_job(snapshot)
    io = file_io(metadata.location, storage)
    found = concerned_by(metadata, snapshot, io, ALL, job_bytes, all_go=plan.all_go)
    if not found.jobs:
        return plan, 1
    fixed = {**planned_on(metadata, snapshot), "job_bytes": job_bytes, "digest": found.digest}
    return msgspec.structs.replace(plan, **fixed), len(found.jobs) + 1


def check_merge(keys: list[str], order_by: str | None, schema: Schema) -> None:
    """Raises :class:`~distop.errors.InvalidArgument` unless a table can be merged by these columns."""
    known = {column.name: column.field_type for column in schema.columns}
    for key in keys:
        if key not in known:
            raise invalid("keys", f"there is no column {key!r}", f"the columns are {', '.join(known)}")
        if not isinstance(known[key], _KEYS):
            raise invalid(
                "keys",
                f"column {key!r} is {known[key]}, which cannot be a key",
                "keys must be integers, decimals, texts, booleans, dates or timestamps",
            )
    if order_by is None:
        return
    if order_by not in known:
        raise invalid(
            "order_by",
            f"the table has no column {order_by!r}, so nothing says how new its rows are",
            f"add it with distop tables alter --add, or order by one of {', '.join(known)}",
        )
    if not isinstance(known[order_by], _ORDERED):
        raise invalid(
            "order_by",
            f"column {order_by!r} is {known[order_by]}, which has no order",
            "order by numbers, texts, dates, times or timestamps",
        )
    if order_by in keys:
        raise invalid("order_by", f"column {order_by!r} is a key: it is equal in all rows of a key")
