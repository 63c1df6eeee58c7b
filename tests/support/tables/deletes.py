"""Files of deleted rows, as other engines write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.typedef import Record

from distop.commit.iceberg.snapshots import Draft
from support.tables import publishing

PATH, POSITION = 2147483546, 2147483545


class DeletesWriter(ManifestWriterV2):
    """pyiceberg writes manifests of data files only."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES


def position_deletes(table: Table, file: DataFile, positions: Sequence[int], *, bounds: bool) -> DataFile:
    """A file that names some rows of a data file; ``bounds``: whether its statistics name the data file."""
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(PATH)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(POSITION)}),
    ]
    path = file.file_path.encode()
    rows = pa.table([[file.file_path] * len(positions), list(positions)], schema=pa.schema(fields))
    told = {"lower_bounds": {PATH: path}, "upper_bounds": {PATH: path}} if bounds else {}
    return _written(table, rows, DataFileContent.POSITION_DELETES, file.spec_id, file.partition, **told)


def equality_deletes(
    table: Table, column: str, values: Sequence[Any], like: DataFile | None, **told: Any
) -> DataFile:
    """A file that names rows by a column: in the partition of a data file, or in all of the table."""
    field_id = table.schema().find_field(column).field_id
    kind = pa.field(column, pa.array(values).type, False, {"PARQUET:field_id": str(field_id)})
    rows = pa.table([list(values)], schema=pa.schema([kind]))
    spec_id, partition = (like.spec_id, like.partition) if like else (table.spec().spec_id, Record())
    content = DataFileContent.EQUALITY_DELETES
    return _written(table, rows, content, spec_id, partition, equality_ids=[field_id], **told)


def publish_deletes(table: publishing.Table, file: DataFile) -> int:
    """Commit a file of deleted rows; the snapshot."""
    iceberg, draft = table.iceberg(), table.draft()
    snapshot_id = 4711 + len(iceberg.metadata.snapshots)
    manifests = _manifests(iceberg, draft, file, snapshot_id)
    summary = Summary(operation=Operation.DELETE)
    table.replace(draft.add_snapshot(snapshot_id, manifests, summary, now=0.0), snapshot_id)
    return snapshot_id


def delete_positions(
    table: publishing.Table, path: str, positions: Sequence[int], *within: Any, spec_id: int | None = None
) -> int:
    """What merge-on-read does to rows of one file, which is in this partition; the snapshot."""
    file = DataFile.from_args(file_path=path, partition=Record(*within))
    file.spec_id = table.layout.spec.spec_id if spec_id is None else spec_id
    return publish_deletes(table, position_deletes(table.iceberg(), file, positions, bounds=False))


def _manifests(table: Table, draft: Draft, file: DataFile, snapshot_id: int) -> list[ManifestFile]:
    spec, place = table.metadata.specs()[file.spec_id], draft.new_manifest_path()
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file)
    with DeletesWriter(spec, table.schema(), table.io.new_output(place), snapshot_id, "deflate") as writer:
        writer.add_entry(entry)
    present = table.current_snapshot()
    return [*(present.manifests(table.io) if present else ()), writer.to_manifest_file()]


def _written(
    table: Table, rows: pa.Table, content: DataFileContent, spec_id: int, partition: Record, **told: Any
) -> DataFile:
    folder = Path(table.location().removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"deletes-{uuid4()}.parquet"
    pq.write_table(rows, name)
    file = DataFile.from_args(
        content=content,
        file_path=f"file://{name}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=name.stat().st_size,
        **told,
    )
    file.spec_id = spec_id
    return file
