"""Questions that people ask about indexes: how far behind one is, and where a value is to be found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.expressions import In
from pyiceberg.expressions.literals import literal
from pyiceberg.table import ManifestGroupPlanner

from distop.commit.files.storage import StorageOptions
from distop.commit.iceberg.metadata_files import TableFile
from distop.commit.iceberg.rollback import target_of
from distop.commit.index.lookup import MAX_VALUES, narrow
from distop.commit.layout.model import file_io
from distop.errors import InvalidArgument
from distop.metastore.records.model import Head, IndexRecord


@dataclass(frozen=True)
class FoundFile:
    """A data file that may hold a row with the value."""

    path: str
    size: int
    rows: int
    row_groups: tuple[int, ...] | None
    """Those that may; ``None``: all, since no index covers the file."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Where a value is to be found in a snapshot."""

    snapshot_id: int | None
    files: list[FoundFile]
    planned: int
    """Files that the table's own statistics leave."""
    covered: int = 0
    """How many of those an index covers."""
    index: str = ""
    """The operation that made the index; empty: there is none that serves."""


def look_up(
    head: Head | None,
    storage: StorageOptions,
    indexes: Sequence[IndexRecord],
    column: str,
    values: Sequence[str],
    snapshot_id: int | None = None,
) -> Answer:
    """The files in which a column may have one of some values. Blocking.

    Parameters
    ----------
    values:
        As people write them.
    snapshot_id:
        ``None``: the present one.

    Raises
    ------
    InvalidArgument
        There is no such column, a value is none of its type, or there are too many.
    PreconditionFailed
        There is no such snapshot.
    """
    if not values or len(values) > MAX_VALUES:
        raise InvalidArgument(f"look up 1 to {MAX_VALUES} values at a time", details={"field": "values"})
    if head is None:
        return Answer(snapshot_id=None, files=[], planned=0)
    also = [] if snapshot_id is None else [snapshot_id]
    metadata = TableFile.read(head.metadata_location, storage=storage, also=also).metadata
    snapshot = metadata.current_snapshot()
    if snapshot_id is not None:
        snapshot = target_of(metadata, snapshot_id=snapshot_id, as_of_ms=None)
    if snapshot is None:
        return Answer(snapshot_id=None, files=[], planned=0)
    schema = metadata.schema()
    if column not in {field.name for field in schema.columns}:
        known = ", ".join(field.name for field in schema.columns)
        raise InvalidArgument(
            f"the table has no column {column!r}; it has {known}", details={"field": "column"}
        )
    io = file_io(metadata.location, metadata.properties, storage)
    try:
        wanted = In(term=column, literals=[literal(value) for value in values])
        planner = ManifestGroupPlanner(metadata, io, wanted)
        tasks = {task.file.file_path: task.file for task in planner.plan_files(snapshot.manifests(io))}
    except (ValueError, TypeError) as error:
        raise InvalidArgument(
            f"the values do not fit column {column!r}: {error}", details={"field": "values"}
        ) from error
    found = narrow(indexes, io, metadata.location.rstrip("/"), schema, column, values, tasks)
    groups = dict.fromkeys(tasks) if found is None else found.files
    files = []
    for path in sorted(groups):
        chosen, file = groups[path], tasks[path]
        here = None if chosen is None else tuple(sorted(chosen))
        files.append(FoundFile(path, file.file_size_in_bytes, file.record_count, here))
    return Answer(
        snapshot_id=snapshot.snapshot_id,
        files=files,
        planned=len(tasks),
        covered=0 if found is None else found.covered,
        index="" if found is None else found.index,
    )


def sequence_number_of(head: Head | None, storage: StorageOptions) -> int | None:
    """The sequence number of a table's present snapshot; ``None`` if it cannot be told. Blocking.

    Each commit counts it on by one, so what an index is behind are the commits since.
    """
    if head is None:
        return None
    try:
        snapshot = TableFile.read(head.metadata_location, storage=storage).metadata.current_snapshot()
    except Exception:  # whatever a file system may raise: it is a remark
        return None
    return None if snapshot is None else snapshot.sequence_number
