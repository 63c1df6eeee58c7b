"""How much memory a plan takes: what it leaves, not what there is."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg import manifest as iceberg
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile, ManifestEntry
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField

from distop.commit.scans.pages import Span, planned, whole
from distop.commit.scans.scan import Scan, Wanted

COLUMNS = 10
FILES = 1_000
SCHEMA = Schema(*(NestedField(number, f"c{number}", LongType()) for number in range(1, COLUMNS + 1)))
IO = load_file_io()


def entry(number: int) -> ManifestEntry:
    """Of a data file whose columns hold its number, in all rows."""
    counts = dict.fromkeys(range(1, COLUMNS + 1), 100)
    bounds = dict.fromkeys(range(1, COLUMNS + 1), struct.pack("<q", number))
    file = DataFile.from_args(
        content=iceberg.DataFileContent.DATA,
        file_path=f"file:///data/{number}.parquet",
        file_format=iceberg.FileFormat.PARQUET,
        partition=Record(),
        record_count=100,
        file_size_in_bytes=1000,
        value_counts=counts,
        null_value_counts=dict.fromkeys(counts, 0),
        lower_bounds=bounds,
        upper_bounds=bounds,
    )
    return ManifestEntry.from_args(status=iceberg.ManifestEntryStatus.ADDED, snapshot_id=1, data_file=file)


def table_of_one_manifest(folder: Path) -> TableMetadata:
    """A table all of whose files are in one manifest, as one large append leaves it."""
    spec = UNPARTITIONED_PARTITION_SPEC
    place, listed = f"{folder}/manifest.avro", f"{folder}/list.avro"
    with iceberg.write_manifest(2, spec, SCHEMA, IO.new_output(place), 1, "deflate") as writer:
        for number in range(FILES):
            writer.add_entry(entry(number))
    with iceberg.write_manifest_list(2, IO.new_output(listed), 1, None, 1, "deflate") as lists:
        lists.add_manifests([writer.to_manifest_file()])
    numbers = {"snapshot_id": 1, "sequence_number": 1, "timestamp_ms": 1, "schema_id": 0}
    snapshot = Snapshot(manifest_list=listed, summary=Summary(Operation.APPEND), **numbers)
    made = new_table_metadata(SCHEMA, spec, UNSORTED_SORT_ORDER, str(folder), {})
    changed = {"snapshots": [snapshot], "current_snapshot_id": 1, "last_sequence_number": 1}
    return made.model_copy(update=changed)


def peak(call: Callable[[], Any]) -> tuple[Any, int]:
    """What a call gives, and the bytes that were taken at once meanwhile."""
    tracemalloc.start()
    try:
        return call(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_manifest_of_very_many_files_is_not_held_in_memory(tmp_path: Path) -> None:
    """A coordinator plans several scans at once, of tables of any size."""
    metadata = table_of_one_manifest(tmp_path)
    scan = Scan(metadata, IO, Wanted(filter={"type": "eq", "term": "c1", "value": 7}))
    [manifest] = scan.data
    page, of_page = peak(lambda: planned(scan, whole(scan), lambda *_: None))
    assert [task.file.file_path for task in page.tasks] == ["file:///data/7.parquet"]
    entries, of_all = peak(lambda: manifest.fetch_manifest_entry(IO))
    assert len(entries) == FILES
    assert of_page < of_all / 5


def test_a_full_page_says_where_in_a_manifest_the_next_one_begins(tmp_path: Path) -> None:
    scan = Scan(table_of_one_manifest(tmp_path), IO, Wanted())
    paths: list[str] = []
    rest: Span | None = whole(scan)
    while rest is not None:
        page = planned(scan, rest, lambda *_: None, most=FILES // 2 - 1)
        paths += [task.file.file_path for task in page.tasks]
        rest = page.rest
    assert paths == [f"file:///data/{number}.parquet" for number in range(FILES)]
