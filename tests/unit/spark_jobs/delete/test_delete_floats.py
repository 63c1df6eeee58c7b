"""Columns of 32 bits against the numbers of a predicate, which have 64: 0.1 is not 0.1 everywhere."""

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation, Summary

from distop.lake.writing.manifests import ManifestBuilder
from distop.spark_jobs.delete.operation import Delete
from distop.spark_jobs.tables import open_snapshot
from support.tables.maintaining import Run
from support.tables.publishing import Table, table_of

COLUMNS = pa.schema([("id", pa.int64()), ("x", pa.float32())])


def with_floats(folder: Path, values: list[float], *, foreign: bool) -> Table:
    """A file for each value; ``foreign``: with the statistics of other programs, which count NaN, too."""
    table = table_of(folder, COLUMNS)
    for number, value in enumerate(values):
        table.append({"id": [number], "x": [value]}, COLUMNS)
    if foreign:
        count_nan(table)
    return table


def count_nan(table: Table) -> None:
    iceberg = table.iceberg()
    current = iceberg.current_snapshot()
    assert current is not None
    draft = table.draft()
    builder = ManifestBuilder(iceberg.schema(), iceberg.spec(), snapshot_id=4711)
    for task in iceberg.scan().plan_files():
        file = task.file
        told = {name: getattr(file, name) for name in ("content", "file_path", "file_format", "partition")}
        told |= {name: getattr(file, name) for name in ("record_count", "file_size_in_bytes")}
        told |= {name: getattr(file, name) for name in ("value_counts", "null_value_counts")}
        told |= {"lower_bounds": file.lower_bounds, "upper_bounds": file.upper_bounds}
        builder.add(DataFile.from_args(**told, nan_value_counts={2: 0}))
    manifest = builder.write(iceberg.io, draft.new_manifest_path())
    location = draft.add_snapshot(4711, [manifest], Summary(operation=Operation.OVERWRITE), now=0.0)
    table.replace(location, 4711)


NUMBERS = [
    ("x = 0.1", [0]),
    ("x != 0.1", [1, 2]),
    ("x <= 0.1", [0]),
    ("not x < 16777217", [2]),
    ("x > 0.1", [1, 2]),
    ("x >= 0.1", [0, 1, 2]),
    ("x < 0.1", []),
    ("x in (0.1, 7.5)", [0]),
    ("x not in (0.1, 7.5)", [1, 2]),
    ("x = 16777217", [2]),
]


@pytest.mark.parametrize("foreign", [False, True])
def test_a_number_is_what_the_column_can_hold_of_it(tmp_path: Path, foreign: bool) -> None:
    """Whether statistics or the rows themselves decide; and a read with the predicate shows what will go."""
    stored = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    assert stored > 0.1
    table = with_floats(tmp_path, [0.1, 0.5, 16777216.0], foreign=foreign)
    snapshot = open_snapshot(table.record().metadata_location)
    for where, gone in NUMBERS:
        read = snapshot.batches(snapshot.plan_files(where), where=where)
        assert sorted(number for batch in read for number in batch["id"].to_pylist()) == gone, where
    for where, gone in NUMBERS if foreign else NUMBERS[:4]:
        apart = table.apart()
        facts = Run.of(apart, Delete(), where=where).finish()
        assert apart.ids() == [number for number in range(3) if number not in gone], where
        assert facts["removedRows"] == len(gone), where
