"""Manifests stay few, and the metadata of the past is not parsed, however many commits a table has seen."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table.update import SetSnapshotRefUpdate

from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout.model import Layout, load_metadata
from distop.lake.rewriting.modes import IcebergOverwrite
from distop.spark_jobs.tables import open_snapshot
from support.tables.publishing import Table, drop_partitioning, new_table, rows


def append(table: Table, commits: int, first: int = 0) -> None:
    for i in range(first, first + commits):
        table.publish(table.staged([rows(i, 1)]))


# -- manifests ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [[], ["kind"]], ids=["plain", "partitioned"])
def test_manifests_are_merged_by_size(tmp_path: Path, partitions: list[str]) -> None:
    """P4: of 40 commits with ten to a merge some ten manifests are left; each file is listed once."""
    table = new_table(tmp_path, partitions)
    append(table, 40)
    assert len(table.manifests()) <= 10 + 3
    assert table.ids() == list(range(40))
    assert len(table.data_files()) == 40
    assert sum((m.added_files_count or 0) + (m.existing_files_count or 0) for m in table.manifests()) == 40
    assert sum((m.added_rows_count or 0) + (m.existing_rows_count or 0) for m in table.manifests()) == 40


def test_merged_entries_keep_snapshot_and_sequence_numbers(tmp_path: Path) -> None:
    """P11, P14: time travel, incremental reads and deletes of rows go by them."""
    table = new_table(tmp_path, **{"commit.manifest.min-count-to-merge": "4"})
    append(table, 6)
    snapshots = table.iceberg().metadata.snapshots
    found = sorted((e.sequence_number, e.file_sequence_number, e.snapshot_id) for e in table.entries())
    assert found == [(n, n, snapshots[n - 1].snapshot_id) for n in range(1, 7)]
    old = next(m for m in table.manifests() if m.existing_files_count)
    assert (old.min_sequence_number, old.existing_files_count) == (1, 4)
    assert {e.status for e in old.fetch_manifest_entry(table.iceberg().io)} == {ManifestEntryStatus.EXISTING}
    assert table.ids(snapshot_id=snapshots[2].snapshot_id) == [0, 1, 2]
    inspect = table.iceberg().inspect
    assert (inspect.files().num_rows, inspect.entries().num_rows) == (6, 6)


def test_partition_ranges_of_merged_manifests_still_prune(tmp_path: Path) -> None:
    """P14: a reader of one partition opens no other manifest, and misses no row."""
    table = new_table(tmp_path, ["kind"], **{"commit.manifest.min-count-to-merge": "3"})
    append(table, 12)
    assert table.ids(row_filter="kind = 'k1'") == [1, 4, 7, 10]


@pytest.mark.parametrize(
    "properties",
    [
        {"commit.manifest-merge.enabled": "false"},
        {"commit.manifest.min-count-to-merge": "2", "commit.manifest.target-size-bytes": "1000"},
    ],
    ids=["as its property says", "because they are full"],
)
def test_manifests_are_left_alone(tmp_path: Path, properties: dict[str, str]) -> None:
    table = new_table(tmp_path, **properties)
    append(table, 12)
    assert len(table.manifests()) == 12


def test_files_that_an_overwrite_removed_do_not_come_back_by_merging_manifests(tmp_path: Path) -> None:
    """P5"""
    table = new_table(tmp_path, **{"commit.manifest.min-count-to-merge": "3"})
    append(table, 5)
    table.publish(table.staged([rows(100, 1)]), IcebergOverwrite())
    append(table, 6, first=200)
    assert table.ids() == [100, *range(200, 206)]
    table.publish(table.staged([rows(300, 1)]), IcebergOverwrite())
    assert table.ids() == [300]


def test_manifests_of_a_partition_column_that_was_dropped_are_merged(tmp_path: Path) -> None:
    """P4: and their files stay in their partitions."""
    table = new_table(tmp_path, ["kind"], **{"commit.manifest.min-count-to-merge": "3"})
    append(table, 3)
    drop_partitioning(table)
    table.publish(table.staged([rows(3, 1).select(["id"])]))
    assert sorted(m.existing_files_count or 0 for m in table.manifests()) == [0, 3]
    kinds = [e.data_file.partition[0] for e in table.entries() if e.data_file.spec_id == 0]
    assert sorted(kinds) == ["k0", "k1", "k2"]
    assert table.ids() == [0, 1, 2, 3]


# -- metadata files ----------------------------------------------------------------------------------


def test_metadata_spliced_together_is_what_pyiceberg_would_have_written(tmp_path: Path) -> None:
    """P14: all snapshots, both logs, tags; numbers beyond 2**53 to the last digit."""
    table = new_table(tmp_path)
    append(table, 3)
    first = table.iceberg().metadata.snapshots[0]
    fields: dict[str, Any] = {"ref-name": "v1", "type": "tag", "snapshot-id": first.snapshot_id}
    tag = SetSnapshotRefUpdate(**fields)
    location = table.record().metadata_location
    whole = TableFile.of(load_metadata(location), location).successor([tag])
    spliced = TableFile.read(location, also=[first.snapshot_id]).successor([tag])
    one, other = (msgspec.json.decode(each.content) for each in (whole, spliced))
    assert one.pop("last-updated-ms") <= other.pop("last-updated-ms")
    assert one == other
    logged = [entry["snapshot-id"] for entry in other["snapshot-log"]]
    assert logged == [snapshot["snapshot-id"] for snapshot in other["snapshots"]]
    assert len(other["metadata-log"]) == 3


def test_any_snapshot_of_the_past_is_found(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    append(table, 3)
    file = TableFile.read(table.record().metadata_location)
    known = table.iceberg().metadata.snapshots
    assert len(file.metadata.snapshots) == 1
    assert [file.snapshot(one.snapshot_id) for one in known] == known
    assert file.snapshot_ids == {one.snapshot_id for one in known}
    assert file.snapshot(5) is None


def test_the_log_of_earlier_metadata_is_bounded(tmp_path: Path) -> None:
    """And files that it no longer names stay: whether they go is a property of its own, off by default."""
    table = new_table(tmp_path, **{"write.metadata.previous-versions-max": "3"})
    locations = []
    for i in range(6):
        assert "droppedMetadata" not in table.publish(table.staged([rows(i, 1)])).facts
        locations.append(table.record().metadata_location)
    assert [entry.metadata_file for entry in table.iceberg().metadata.metadata_log] == locations[2:5]
    assert TableFile.read(locations[-1]).successor([]).dropped == []


def test_partitions_of_numbers_are_these_very_numbers(tmp_path: Path) -> None:
    """P14: readers take the values of rows from manifests, which are written again as they were."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64())])
    layout = Layout.create(schema, ["x"], {"commit.manifest.min-count-to-merge": "2"})
    table = Table("flights", f"file://{tmp_path}/flights", layout)
    values = [0.1, 1e300, -1 / 3, 0.5]
    for number, value in enumerate(values):
        table.publish(table.staged([pa.record_batch({"id": [number], "x": [value]}, schema=schema)]))
    snapshot = open_snapshot(table.record().metadata_location)
    assert {file.partition[0] for file in snapshot.plan_files()} == set(values)
    assert [len(snapshot.plan_files(f"x = {value:f}")) for value in (0.1, 0.5, 0.25)] == [1, 1, 0]
