"""The part of a merge's plan about the table: which rows are examined, and their possible
changes."""

from __future__ import annotations

import msgspec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from distop.commit.deleting.files import concerned_by
from distop.commit.deleting.plan import SnapshotPlan, planned_on
from distop.commit.files.storage import storage_of
from distop.commit.iceberg.metadata_files import TableFile
from distop.commit.layout.model import file_io
from distop.commit.predicates.binding import ALL
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


def check_keys(keys: list[str], schema: Schema) -> None:
    """Raises :class:`~distop.errors.InvalidArgument` unless these can be the keys of a table."""
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
