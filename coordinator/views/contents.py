"""What is published in a table, in the form of the API: columns, rows, snapshots. Reads table metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of

from distop.errors import PreconditionFailed
from distop.lake.iceberg.measures import MEASURES
from distop.lake.iceberg.provenance import rewound
from distop.lake.layout.model import Layout, load_metadata
from distop.lake.storage.storage import storage_of
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.records.watermarks import Marks
from distop.proto import distop_pb2 as pb
from distop.proto.messages import timestamp

COUNT_DIGITS = 18
"""Of a count, at most; each number of so many fits into the 64 bits of the answer."""


def content_of(table: TableRecord, head: Head | None) -> pb.TableContent:
    """Columns and size of a table, as far as its published state has them."""
    content = pb.TableContent(table=table.name)
    if head is None:
        return content
    if head.metadata_location:
        metadata = load_metadata(head.metadata_location, storage=storage_of(table))
        layout = Layout.of(metadata)
        summary = _summary(metadata.current_snapshot())
        for field, name in (("rows", "records"), ("files", "data-files"), ("bytes", "files-size")):
            if (count := _count(summary, f"total-{name}")) is not None:
                setattr(content, field, count)
    elif head.layout:
        layout = Layout.from_json(head.layout)
    else:
        return content
    for column in layout.schema.fields:
        content.columns.add(
            name=column.name, type=str(column.field_type), required=column.required, doc=column.doc or ""
        )
    for term in layout.spec.fields:
        source, transform = layout.schema.find_column_name(term.source_id), str(term.transform)
        content.partition_by.append(str(source) if transform == "identity" else f"{transform}({source})")
    return content


def snapshots_of(table: TableRecord, head: Head | None) -> list[pb.Snapshot]:
    """The snapshots that an Iceberg table still has, the newest first."""
    _check_iceberg(table)
    if head is None:
        return []
    metadata = load_metadata(head.metadata_location, storage=storage_of(table))
    history = {snapshot.snapshot_id for snapshot in _history(metadata)}
    refs = defaultdict(list)
    for name, ref in metadata.refs.items():
        if name != MAIN_BRANCH:
            refs[ref.snapshot_id].append(name)
    return [
        _snapshot(snapshot, metadata, history, refs.get(snapshot.snapshot_id, []))
        for snapshot in _newest_first(metadata)
    ]


def rewound_watermarks(table: TableRecord, head: Head | None, watermarks: Marks, source: str = "") -> Marks:
    """The watermarks without the moves of snapshots that were rolled back.

    Raises :class:`~distop.errors.PreconditionFailed` if their earlier values are unknown.
    """
    _check_iceberg(table)
    if head is None:
        return watermarks
    metadata = load_metadata(head.metadata_location, storage=storage_of(table))
    live = _history(metadata)
    known = {snapshot.snapshot_id for snapshot in live}
    gone = [snapshot for snapshot in _newest_first(metadata) if snapshot.snapshot_id not in known]
    return rewound(live, gone, watermarks, source)


def _check_iceberg(table: TableRecord) -> None:
    if table.format != "iceberg":
        raise PreconditionFailed(f"table {table.name!r} has format {table.format}: it has no snapshots")


def _history(metadata: TableMetadata) -> list[Snapshot]:
    return list(ancestors_of(metadata.current_snapshot(), metadata))


def _newest_first(metadata: TableMetadata) -> list[Snapshot]:
    return sorted(
        metadata.snapshots,
        key=lambda snapshot: (snapshot.sequence_number or 0, snapshot.timestamp_ms),
        reverse=True,
    )


def _snapshot(snapshot: Snapshot, metadata: TableMetadata, history: set[int], refs: list[str]) -> pb.Snapshot:
    summary = _summary(snapshot)
    return pb.Snapshot(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        committed_at=timestamp(snapshot.timestamp_ms / 1000),
        change=snapshot.summary.operation.value if snapshot.summary else "",
        operation=summary.get("distop.operation", ""),
        started_by=summary.get("distop.started-by", ""),
        added_rows=_count(summary, "added-records"),
        removed_rows=_count(summary, "deleted-records"),
        rows=_count(summary, "total-records"),
        bytes=_count(summary, "total-files-size"),
        present=snapshot.snapshot_id == metadata.current_snapshot_id,
        in_history=snapshot.snapshot_id in history,
        refs=sorted(refs),
        files=(files := _count(summary, "total-data-files")),
        small_files=None if files is None else MEASURES["small_files"](metadata, summary),
        delete_files=_count(summary, "total-delete-files"),
    )


def _summary(snapshot: Snapshot | None) -> Mapping[str, Any]:
    return snapshot.summary.additional_properties if snapshot and snapshot.summary else {}


def _count(summary: Mapping[str, Any], name: str) -> int | None:
    """A count of a summary, if it is one: any engine writes summaries, and what it likes."""
    text = str(summary.get(name, ""))
    return int(text) if text.isdecimal() and len(text) <= COUNT_DIGITS else None
