"""Files that programs have added to a table as they were: they have no field ids, and may lack the column of
their folder."""

from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.spark_jobs.delete.operation import Delete
from distop.spark_jobs.tables import open_snapshot
from support.tables.indexing import Indexing
from support.tables.maintaining import Run
from support.tables.partition_values import VALUES, add_files, append_values, by_partition, literal_of
from support.tables.publishing import Table


def hive_files(folder: Path, values: dict[int, Any], *, whole: bool) -> dict[str, Any]:
    """A file for each id, in a folder that is named after its value; ``whole``: with that column in it.
    Returns the value of each."""
    found = {}
    for id, value in values.items():
        path = folder / f"p={quote_plus(str(value))}" / f"{id}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [id], **({"p": [value]} if whole else {})}), path)
        found[f"file://{path}"] = value
    return found


@pytest.mark.parametrize("hive", [False, True], ids=["the column is in the files", "in the folders only"])
@pytest.mark.parametrize("kind", ["string", "double", "long"])
def test_files_of_hives_layout_are_read_found_and_deleted_from(tmp_path: Path, kind: str, hive: bool) -> None:
    """P3, P14: by the table's name mapping."""
    table, values = by_partition(tmp_path, kind)
    append_values(table, {9: VALUES[kind][0]}, hive=False)
    del values[2]  # NULL
    add_files(table, hive_files(tmp_path / "t" / "data", values, whole=not hive), hive=hive)
    first, second = map(literal_of, VALUES[kind])
    world = Indexing(table)
    for column in ("id", "p"):
        world.build(column)

    def rows(where: str | None = None) -> dict[int, Any]:
        snapshot = open_snapshot(table.record().metadata_location, indexes=world.records())
        batches = snapshot.batches(snapshot.plan_files(where), where=where)
        return {row["id"]: row["p"] for batch in batches for row in batch.to_pylist()}

    present = {**values, 9: values[0]}
    assert rows() == present
    assert rows(f"p = {first}") == {id: present[id] for id in (0, 3, 9)}
    assert rows("id in (1, 3)") == {id: present[id] for id in (1, 3)}
    assert rows(f"p = {second} and id > 1") == {}
    assert deleted(table, f"p = {first} and id in (1, 3)") == 1
    assert deleted(table, f"p = {second}") == 1
    assert rows() == {id: present[id] for id in (0, 9)}


def deleted(table: Table, where: str) -> int:
    """Delete; how many rows."""
    return int(Run.of(table, Delete(), where=where).finish()["removedRows"])
