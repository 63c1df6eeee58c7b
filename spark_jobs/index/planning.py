"""Planning the build of an index: which files of the snapshot it reads, and which parts of the present index
stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distop.errors import PreconditionFailed
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.index.lookup import load_manifest
from distop.lake.index.manifest import IndexManifest, encoding_of
from distop.lake.index.publish import DataFileSeen, IndexPlan, not_covered, snapshot_files
from distop.lake.layout.model import file_io
from distop.lake.storage.storage import storage_of
from distop.operations import Plan, PlanRequest
from distop.operations.arguments import invalid
from distop.spark_jobs.index.argument import BuildIndexArgument

ROWS_PER_JOB = 32_000_000
"""Most rows of a job with several files: it limits what is sorted again when a job is killed."""

MERGE_ABOVE = 16
"""Most small parts of an index; if there are more, the next build indexes their files again."""


def plan_index(request: PlanRequest, argument: BuildIndexArgument) -> Plan:
    """The plan of :class:`.operation.BuildIndex`: which files each job indexes."""
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
        cuts=cut_into_jobs(not_covered(present, kept), argument.files_per_job),
        rebuilt=rebuilt,
        layout={"properties": dict(metadata.properties)},
    )
    return Plan(argument=plan.to_argument(), partition_count=plan.slices)


def cut_into_jobs(files: Sequence[DataFileSeen], most_files: int) -> list[int]:
    """Where to split a list of files, so that no job has too many of them, or (with more than one) too many
    rows."""
    cuts, rows = [0], 0
    for number, file in enumerate(files):
        if number > cuts[-1] and (number - cuts[-1] >= most_files or rows + file.rows > ROWS_PER_JOB):
            cuts.append(number)
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
    for number, part in enumerate(index.parts):
        rows = [rows_of[file] for file in part.files if file in rows_of]
        if rows and len(rows) * 2 < len(part.files):
            worn.append(number)
        elif rows and len(rows) * 2 <= files_per_job and sum(rows) * 2 <= ROWS_PER_JOB:
            small.append(number)
    return sorted(worn + small) if len(small) > MERGE_ABOVE else worn


def _names(mapping: Any, field_id: int) -> list[str]:
    return [name for field in mapping for name in field.names if field.field_id == field_id]
