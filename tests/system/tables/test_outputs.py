"""Tables that are no Iceberg tables, from the call to the rows; everything is real."""

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from distop.client import OperationState, TableOptions
from distop.errors import InvalidArgument, TableNotEmpty
from support.refusals import refused
from support.services.whole import Whole
from support.tables.trees import ids_in, names_in, success_of


async def tree(service: Whole, **options: Any) -> Path:
    """A new table ``f`` of plain files; its folder."""
    folder = service.folder / "tree"
    given: Any = options
    await service.client.create_table("f", str(folder), format="files", options=given)
    return folder


async def test_rows_come_into_a_tree_of_plain_files(service: Whole) -> None:
    """C1, C8, C18, P14: partition folders as Hive has them, the marker, and nothing else."""
    folder = await tree(service, partitionBy=["kind"])
    first = service.source("a", 0, 3000)
    ended = (await service.ingest(first, "f", split_bytes=4096)).raise_for_outcome()
    assert ended.jobs.total > 5
    assert (ended.facts["rows"], ended.facts["files"]) == (3000, 3 * ended.jobs.total)
    marker = success_of(folder)
    await service.ingest(service.source("b", 3000, 500), "f")
    await service.at_rest()

    table = ds.dataset(folder, partitioning="hive").to_table()
    assert sorted(table["id"].to_pylist()) == list(range(3500))
    assert all(f"k{row['id'] % 3}" == row["kind"] for row in table.to_pylist())
    tops = {name.partition("/")[0] for name in names_in(folder)}
    assert tops == {"_SUCCESS", "kind=k0", "kind=k1", "kind=k2"}
    assert "f/ingest/1" in marker
    assert "f/ingest/2" in success_of(folder)
    assert await service.ingested("f") == ["a", "b"]


async def test_save_modes_of_a_tree(service: Whole) -> None:
    """P5, C7: what was there when the commit was planned goes; what readers pass over stays."""
    folder = await tree(service, partitionBy=["kind"])
    source = service.source("a", 0, 30)
    for mode in ("error_if_exists", "append"):
        ended = (await service.ingest(source, "f", mode=mode, reingest=True)).raise_for_outcome()
    assert len(await asyncio.to_thread(ids_in, folder)) == 60

    with pytest.raises(TableNotEmpty, match="kind=k0"):
        await service.client.start(
            "f", "ingest", {"paths": [str(source)], "mode": "error_if_exists", "reingest": True}
        )
    ended = await service.ingest(source, "f", mode="ignore", reingest=True)
    assert ended.facts["ignored"]
    assert len(await asyncio.to_thread(ids_in, folder)) == 60

    (folder / "_mine").write_text("")
    one_kind = service.source("b", 100, 5, kinds=1)
    await service.ingest(one_kind, "f", mode="overwrite_partitions")
    kept = [number for number in range(30) if number % 3]
    assert await asyncio.to_thread(ids_in, folder) == sorted(kept * 2) + list(range(100, 105))

    await service.ingest(source, "f", mode="overwrite", reingest=True)
    assert await asyncio.to_thread(ids_in, folder) == list(range(30))
    await service.at_rest()
    assert len(names_in(folder)) == 3 + len(["_SUCCESS", "_mine"])
    with pytest.raises(InvalidArgument, match="only Iceberg tables"):
        await service.client.start("f", "ingest", {"paths": [str(source)], "on_conflict": "refuse"})


async def test_an_aborted_operation_leaves_no_file_in_the_tree(service: Whole) -> None:
    """P9, C18."""
    folder = await tree(service)
    bad = service.source("a", 0, 500)
    (bad / "2.csv").write_text("id,kind,day\nx,k1,2013-01-01\n")
    schema = {"id": "long", "kind": "string", "day": "date"}
    ended = await service.ingest(bad, "f", split_bytes=4096, schema=schema)
    assert ended.state is OperationState.FAILED
    await service.at_rest()
    assert names_in(folder) == []


def in_delta(folder: Path) -> list[int]:
    """The column ``id`` of a Delta table, sorted."""
    found: list[int] = []
    for uri in DeltaTable(str(folder)).file_uris():
        found += pq.read_table(uri, columns=["id"], partitioning=None)["id"].to_pylist()
    return sorted(found)


async def test_rows_come_into_a_delta_table(service: Whole) -> None:
    """C8, P1, P14: one version for each operation, with the values of partition columns and statistics."""
    folder = service.folder / "delta"
    await service.client.create_table("d", str(folder), format="delta", options={"partitionBy": ["kind"]})
    first = service.source("a", 0, 3000)
    (await service.ingest(first, "d", split_bytes=4096)).raise_for_outcome()
    await service.ingest(service.source("b", 3000, 500), "d")
    await service.at_rest()

    assert in_delta(folder) == list(range(3500))
    table = DeltaTable(str(folder))
    assert table.version() == 1
    assert table.metadata().partition_columns == ["kind"]
    added = pa.table(table.get_add_actions(flatten=True))
    assert set(added["partition.kind"].to_pylist()) == {"k0", "k1", "k2"}
    assert sum(added["num_records"].to_pylist()) == 3500
    assert (min(added["min.id"].to_pylist()), max(added["max.id"].to_pylist())) == (0, 3499)
    assert {str(path) for path in (folder / "data").rglob("*.parquet")} == set(table.file_uris())
    assert {name.partition("/")[0] for name in names_in(folder)} == {"_delta_log", "data"}
    assert await service.ingested("d") == ["a", "b"]


async def test_save_modes_of_a_delta_table(service: Whole) -> None:
    """P5, P9, P10."""
    folder = service.folder / "delta"
    await service.client.create_table("d", str(folder), format="delta")
    source = service.source("a", 0, 30)
    await service.ingest(source, "d", mode="error_if_exists")
    again = {"paths": [str(source)], "reingest": True}
    with refused(error=TableNotEmpty, version=0):
        await service.client.start("d", "ingest", {**again, "mode": "error_if_exists"})
    with pytest.raises(InvalidArgument, match="append, error_if_exists, ignore, overwrite"):
        await service.client.start("d", "ingest", {**again, "mode": "overwrite_partitions"})
    assert (await service.ingest(source, "d", mode="ignore", reingest=True)).facts["ignored"]
    await service.ingest(source, "d", reingest=True)
    assert in_delta(folder) == sorted([*range(30)] * 2)
    await service.ingest(service.source("b", 50, 3), "d", mode="overwrite")
    assert in_delta(folder) == [50, 51, 52]
    (await service.ingest(source, "d", filter="id > 99", reingest=True)).raise_for_outcome()
    assert DeltaTable(str(folder)).version() == 2


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"partitionBy": ["bucket[4](id)"]}, "partition_by"),
        ({"schema": {"id": "long", "kind": "string", "day": "date", "x": "time"}}, "options.schema"),
    ],
)
async def test_what_delta_cannot_hold_is_refused(service: Whole, options: TableOptions, field: str) -> None:
    """U3."""
    source = service.source("a", 0, 30)

    async def ingest() -> None:
        await service.client.create_table("d", str(service.folder / "delta"), format="delta", options=options)
        await service.client.start("d", "ingest", {"paths": [str(source)]})

    with refused(field):
        await ingest()
