"""Files of deleted rows, as other engines write them."""

import json
import zlib
from collections.abc import Mapping, Sequence
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
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries
from pyiceberg.table.update import AddPartitionSpecUpdate
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record
from pyroaring import BitMap

from distop.lake.iceberg.snapshots import Draft
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
    statistics = {"lower_bounds": {PATH: path}, "upper_bounds": {PATH: path}} if bounds else {}
    return _written(table, rows, DataFileContent.POSITION_DELETES, file.spec_id, file.partition, **statistics)


def deletion_vector(table: Table, file: DataFile, positions: Sequence[int]) -> DataFile:
    """The same as a deletion vector, in a Puffin file (Puffin specification, ``deletion-vector-v1``)."""
    vector = (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + BitMap(positions).serialize()
    body = bytes.fromhex("D1D33964") + vector
    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    metadata = {
        "type": "deletion-vector-v1",
        "fields": [],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": 4,
        "length": len(blob),
        "properties": {"referenced-data-file": file.file_path, "cardinality": str(len(positions))},
    }
    footer = json.dumps({"blobs": [metadata], "properties": {}}).encode()
    magic, size = b"PFA1", len(footer).to_bytes(4, "little")
    content = magic + blob + magic + footer + size + bytes(4) + magic
    name = Path(table.location().removeprefix("file://")) / "data" / f"deletes-{uuid4()}.puffin"
    name.write_bytes(content)
    made = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{name}",
        file_format=FileFormat.PUFFIN,
        partition=file.partition,
        record_count=len(positions),
        file_size_in_bytes=len(content),
    )
    made.spec_id = file.spec_id
    return made


def equality_deletes(
    table: Table,
    column: str,
    values: Sequence[Any] | pa.Array,
    like: DataFile | None,
    *,
    more: Mapping[str, Sequence[Any]] | None = None,
    **statistics: Any,
) -> DataFile:
    """A file that names rows by a column, and ``more`` columns: in the partition of a data file, or in all of
    the table."""
    keys = {column: values, **(more or {})}
    ids = [table.schema().find_field(name).field_id for name in keys]
    rows = pa.table(
        list(map(pa.array, keys.values())),
        schema=pa.schema(
            pa.field(name, pa.array(some).type, True, {"PARQUET:field_id": str(field_id)})
            for (name, some), field_id in zip(keys.items(), ids, strict=True)
        ),
    )
    spec_id, partition = (like.spec_id, like.partition) if like else (table.spec().spec_id, Record())
    content = DataFileContent.EQUALITY_DELETES
    return _written(table, rows, content, spec_id, partition, equality_ids=ids, **statistics)


def without_partition(table: publishing.Table, *, void: bool) -> DataFile:
    """What equality deletes of a table by one column are ``like`` to concern files of all partitions.

    Parameters
    ----------
    void:
        Whether the column of the partition was removed as tables of format 1 remove it.
    """
    spec_id, [term] = 7, table.layout.spec.fields
    removed = PartitionField(term.source_id, term.field_id, VoidTransform(), term.name)
    spec = PartitionSpec(*[removed][:void], spec_id=spec_id)
    table.replace(table.draft().write(AddPartitionSpecUpdate(spec=spec)))
    file = DataFile.from_args(partition=Record(*[None][:void]))
    file.spec_id = spec_id
    return file


def publish_deletes(table: publishing.Table, file: DataFile) -> int:
    """Commit a file of deleted rows; the snapshot."""
    iceberg, draft = table.iceberg(), table.draft()
    snapshot_id = 4711 + len(iceberg.metadata.snapshots)
    manifests = _manifests(iceberg, draft, file, snapshot_id)
    is_equality = file.content == DataFileContent.EQUALITY_DELETES
    added = {"added-delete-files": "1", "added-files-size": str(file.file_size_in_bytes)}
    added["added-equality-deletes" if is_equality else "added-position-deletes"] = str(file.record_count)
    summary = update_snapshot_summaries(Summary(operation=Operation.DELETE, **added), table.summary())
    table.replace(draft.add_snapshot(snapshot_id, manifests, summary, now=0.0), snapshot_id)
    return snapshot_id


def delete_positions(
    table: publishing.Table, path: str, positions: Sequence[int], *within: Any, spec_id: int | None = None
) -> int:
    """What merge-on-read does to rows of one file, which is in this partition; the snapshot."""
    file = DataFile.from_args(file_path=path, partition=Record(*within))
    file.spec_id = table.layout.spec.spec_id if spec_id is None else spec_id
    return publish_deletes(table, position_deletes(table.iceberg(), file, positions, bounds=False))


def delete_ids(table: publishing.Table, kind: str, ids: Sequence[int]) -> None:
    """Delete rows with these ids, which follow one another in each file of the table.

    Parameters
    ----------
    kind:
        By files of ``positions``, by deletion ``vectors``, or by ``equality``.
    """
    if kind == "equality":
        publish_deletes(table, equality_deletes(table.iceberg(), "id", list(ids), None))
        return
    number = table.iceberg().schema().find_field("id").field_id
    for task in table.iceberg().scan().plan_files():
        first = int.from_bytes(task.file.lower_bounds[number], "little")
        if not (positions := [row - first for row in ids if 0 <= row - first < task.file.record_count]):
            continue
        if kind == "vectors":
            publish_deletes(table, deletion_vector(table.iceberg(), task.file, positions))
        else:
            publish_deletes(table, position_deletes(table.iceberg(), task.file, positions, bounds=False))


def _manifests(table: Table, draft: Draft, file: DataFile, snapshot_id: int) -> list[ManifestFile]:
    spec, location = table.metadata.specs()[file.spec_id], draft.new_manifest_path()
    entry = ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, snapshot_id=snapshot_id, data_file=file)
    with DeletesWriter(spec, table.schema(), table.io.new_output(location), snapshot_id, "deflate") as writer:
        writer.add_entry(entry)
    present = table.current_snapshot()
    return [*(present.manifests(table.io) if present else ()), writer.to_manifest_file()]


def _written(
    table: Table, rows: pa.Table, content: DataFileContent, spec_id: int, partition: Record, **fields: Any
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
        **fields,
    )
    file.spec_id = spec_id
    return file
