"""``build_index``: a secondary index of one column of an Iceberg table.

The object of such an operation is the column, so several indexes of a table are built concurrently. See
``docs/indexes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from distop.errors import InvalidName, PreconditionFailed
from distop.metastore.records.names import check_object
from distop.metastore.records.operation import Effect, OperationArg, StepRecord
from distop.operations.api import DistributedOperation, Plan, PlanRequest, Scope
from distop.operations.arguments import invalid, parse
from distop.operations.job import JobContext

if TYPE_CHECKING:
    from distop.lake.index.manifest import IndexManifest
    from distop.lake.index.plan import DataFileSeen

FILES_PER_JOB = 256
"""Default number of data files per job."""
MOST_FILES_PER_JOB = 1000
ROWS_PER_JOB = 32_000_000
"""Most rows of a job with several files: it limits what is sorted again when a job is killed."""

MERGE_ABOVE = 16
"""Most small parts of an index; if there are more, the next build indexes their files again."""

_MARKED = "column="
"""Prefix of objects for columns whose names are not valid objects."""


class BuildIndexArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The argument of ``build_index``."""

    column: str
    """The column. It must be of a primitive type, and not within a struct."""
    full: bool = False
    """Index all files again, instead of only those that the index does not cover yet."""
    files_per_job: int = FILES_PER_JOB
    """Most data files that one job indexes."""


def object_of_column(column: str) -> str:
    """The object for a column: its name, if that is a valid object."""
    try:
        return check_object(column) if not column.startswith(_MARKED) else _MARKED + column
    except InvalidName:
        return _MARKED + column


class BuildIndex(DistributedOperation):
    """Builds an index of a column, or updates it to the table's present snapshot.

    Cannot fail: a job that fails is retried. A killed job is resumed after the last file that it has
    finished.
    """

    type = "build_index"
    scope = Scope.PER_OBJECT
    effect = Effect.READS
    can_fail = False
    resumable = True
    stages_files = True
    builds_index = True

    def object_of(self, argument: Mapping[str, Any]) -> str:
        """The column."""
        column = argument.get("column")
        return object_of_column(column) if isinstance(column, str) and column else ""

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            There is no such column, or it cannot be indexed.
        PreconditionFailed
            The table is not an Iceberg table, or nothing has been published to it.
        """
        from distop.lake.iceberg.metadata_files import TableFile
        from distop.lake.index.keys import encoding_of
        from distop.lake.index.lookup import load_manifest
        from distop.lake.index.plan import IndexPlan, not_covered, snapshot_files
        from distop.lake.layout.model import file_io
        from distop.lake.storage.storage import storage_of

        argument = _parsed(request)
        head, storage = request.head, storage_of(request.table)
        metadata = None if head is None else TableFile.read(head.metadata_location, storage=storage).metadata
        snapshot = None if metadata is None else metadata.current_snapshot()
        if metadata is None or snapshot is None:
            raise PreconditionFailed(
                f"nothing has been published to table {request.table.name!r}",
                hint="ingest something first, then build the index",
            )
        schema = metadata.schema()
        column = next((field for field in schema.columns if field.name == argument.column), None)
        if column is None:
            known = ", ".join(field.name for field in schema.columns)
            raise invalid("column", f"the table has no column {argument.column!r}; it has {known}")
        if column.initial_default is not None:
            raise invalid(
                "column",
                f"column {column.name!r} has a default value, which is not in files without the column",
                "index another column",
            )
        encoding = encoding_of(column.name, column.field_type)
        io = file_io(request.table.location, storage)
        published = request.index
        base: IndexManifest | None = None
        if published is not None and not argument.full and published.field_id == column.field_id:
            base = load_manifest(io, published.manifest, request.table.location.rstrip("/"))
            if base is not None and not base.fits(schema, column.field_id):
                base = None
        present = snapshot_files(io, snapshot.manifest_list)
        rebuilt = [] if base is None else parts_to_rebuild(base, present, argument.files_per_job)
        kept = None if base is None else base.without(rebuilt)
        mapping = metadata.name_mapping()
        plan = IndexPlan(
            column=column.name,
            field_id=column.field_id,
            type=str(column.field_type),
            names=[] if mapping is None else _names(mapping, column.field_id),
            encoding=encoding,
            snapshot_id=str(snapshot.snapshot_id),
            sequence_number=snapshot.sequence_number or 0,
            manifest_list=snapshot.manifest_list,
            replaces="" if published is None else published.manifest,
            base=published.manifest if published is not None and base is not None else "",
            cuts=cut(not_covered(present, kept), argument.files_per_job),
            rebuilt=rebuilt,
            layout={"properties": dict(metadata.properties)},
        )
        return Plan(argument=plan.to_argument(), partition_count=plan.slices)

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """An index covers the snapshot of its plan, and is published if no other one was meanwhile."""
        return made_on.index == request.index

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """One: the pointer."""
        return [StepRecord(step="index.publish")]

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any]:
        """Index some files; the result is a :class:`~distop.lake.index.publish.PartResult`."""
        from distop.spark_jobs.index.job import run_job

        return run_job(job)


def cut(files: Sequence[DataFileSeen], most_files: int) -> list[int]:
    """Where to split a list of files, so that no job has too many of them, or (with more than one) too many
    rows."""
    cuts, rows = [0], 0
    for place, file in enumerate(files):
        if place > cuts[-1] and (place - cuts[-1] >= most_files or rows + file.rows > ROWS_PER_JOB):
            cuts.append(place)
            rows = 0
        rows += file.rows
    return [*cuts, len(files)] if files else cuts


def parts_to_rebuild(index: IndexManifest, present: Sequence[DataFileSeen], files_per_job: int) -> list[int]:
    """Positions of parts whose files are indexed again: small ones, if there are many; and those that have
    lost most files.

    A part is small if one job could index the files of two such parts: so it does not stay small for ever.

    Parameters
    ----------
    present:
        The files of the snapshot to cover.
    """
    rows_of = {file.path: file.rows for file in present}
    small, worn = [], []
    for place, part in enumerate(index.parts):
        rows = [rows_of[file] for file in part.files if file in rows_of]
        if rows and len(rows) * 2 < len(part.files):
            worn.append(place)
        elif rows and len(rows) * 2 <= files_per_job and sum(rows) * 2 <= ROWS_PER_JOB:
            small.append(place)
    return sorted(worn + small) if len(small) > MERGE_ABOVE else worn


def _parsed(request: PlanRequest) -> BuildIndexArgument:
    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}, indexes are for Iceberg tables"
        )
    argument = parse(request.argument, BuildIndexArgument, "build_index")
    if request.partitions is not None:
        raise invalid("partitions", "build_index makes its own partitions")
    if not 1 <= argument.files_per_job <= MOST_FILES_PER_JOB:
        raise invalid("files_per_job", f"--arg files_per_job must lie between 1 and {MOST_FILES_PER_JOB}")
    wanted = object_of_column(argument.column)
    if request.object != wanted:
        raise invalid("object", f"the index of column {argument.column!r} is object {wanted!r}")
    return argument


def _names(mapping: Any, field_id: int) -> list[str]:
    return [name for field in mapping for name in field.names if field.field_id == field_id]
