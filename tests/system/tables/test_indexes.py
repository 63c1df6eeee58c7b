"""Indexes from the call to the rows: coordinator, executor, etcd and pyiceberg are real."""

import asyncio
from pathlib import Path

import pytest

from distop.client import Operation
from distop.errors import IncompatibleOperation, InvalidArgument
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.table import decode_run_ops
from distop.metastore.tables.registry import read_indexes
from distop.spark.source import FileSplit, TableReader, table_schema
from distop.spark.target import read_options
from distop.spark_jobs.tables import open_snapshot
from support.etcd.lossy import LossyClient
from support.refusals import refused
from support.services.executing import runner
from support.services.whole import HEADER, Whole, whole


async def built(service: Whole, column: str, **argument: object) -> Operation:
    return (await service.run("build_index", column=column, **argument)).raise_for_outcome()


async def test_an_index_is_built_published_and_kept_up_to_date(service: Whole) -> None:
    """O3, O15: the pointer is one key; nothing else is left in etcd, and no file except the parts."""
    for i in range(3):
        await service.ingest(service.source(f"s{i}", 100 * i, 30))
    first = await built(service, "id")
    assert first.name == "t/build_index/id/1"
    assert (first.facts["files"], first.facts["entries"]) == (9, 90)
    await service.ingest(service.source("s3", 300, 30))
    second = await built(service, "id")
    assert (second.facts["newFiles"], second.facts["files"]) == (3, 12)
    await service.ingest(service.source("s4", 400, 30))
    (index,) = await service.client.table("t").indexes()
    assert (index.column, index.commits_behind, index.files) == ("id", 1, 12)
    location = (await asyncio.to_thread(service.table)).metadata_location
    records = await read_indexes(service.store, service.store.keyspace.table("t"))
    now = open_snapshot(location, indexes=records)
    where = "id in (305, 999)"
    assert len(now.plan_files(where)) == 1
    assert len(now.plan_files(where, use_indexes=False)) == 3
    before = open_snapshot(location, indexes=records, snapshot_id=index.snapshot_id)
    assert len(before.plan_files("id == 5")) == 1
    assert len(now.plan_files("kind == 'k1'")) == 5
    for where in ("nothing == 1", "id == 'x'"):
        with refused("filter"):
            now.plan_files(where)
    assert (await built(service, "id")).facts["newFiles"] == 3
    keys = await service.at_rest()
    (record,) = await read_indexes(service.store, service.store.keyspace.table("t"))
    assert record.snapshot_id == (await asyncio.to_thread(service.table)).metadata.current_snapshot_id
    assert [key for key in keys if ".index." in key] == ["t.index.id"]
    assert not [key for key in keys if key.startswith("t.build_index.id")]
    files = [path for path in (service.location / "index").rglob("*") if path.is_file()]
    assert len(files) == record.parts + 1
    await service.client.table("t").drop(purge=True)
    assert not [key for key in await service.keys() if key.startswith("t.index.")]
    assert not service.location.exists()


async def test_indexes_of_several_columns_are_built_side_by_side_and_beside_an_ingest(idle: Whole) -> None:
    """O3: each covers the snapshot that it began on, whatever is appended meanwhile."""
    async with runner(idle.store, serving=["ingest"]):
        await idle.ingest(idle.source("s0", 0, 30))
        covered = (await asyncio.to_thread(idle.table)).metadata.current_snapshot_id
        for column in ("id", "kind"):
            await idle.client.start("t", "build_index", {"column": column})
        run_ops = decode_run_ops((await idle.store.get(idle.store.keyspace.table("t").run_ops)).value)
        assert run_ops == {"build_index": ["id.1", "kind.2"]}
        with pytest.raises(IncompatibleOperation, match="build_index/id/1"):
            await idle.client.start("t", "build_index", {"column": "id"})
        for argument in ({}, {"column": 5}):
            with refused("object"):
                await idle.client.start("t", "build_index", argument)
        with pytest.raises(InvalidArgument, match="is object 'id'"):
            await idle.client.start("t", "build_index", {"column": "id"}, object="other")
        (await idle.ingest(idle.source("s1", 100, 30))).raise_for_outcome()
        with pytest.raises(IncompatibleOperation):
            await idle.client.start("t", "expire_snapshots", {"older_than": "0s"})
    async with runner(idle.store):
        for name in ("t/build_index/id/1", "t/build_index/kind/2"):
            await idle.client.operation(name).result(timeout_s=120)
        records = await read_indexes(idle.store, idle.store.keyspace.table("t"))
        assert [(one.column, one.snapshot_id, one.files) for one in records] == [
            ("id", covered, 3),
            ("kind", covered, 3),
        ]
        assert await idle.at_rest()
        second = await built(idle, "id")
        assert (second.facts["newFiles"], second.facts["files"]) == (3, 6)


async def test_reads_of_spark_leave_out_what_an_index_rules_out(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """Planned as in the driver of ``spark.read.format("distop")``; the same rows come of it."""
    async with whole(etcd_config, tmp_path, client) as service:
        for i in range(3):
            # Every third id: each file's least and greatest enclose nearly all of them.
            folder = tmp_path / "src" / str(i)
            folder.mkdir(parents=True)
            lines = [f"{number},k0,2013-01-01" for number in range(i, 300, 3)]
            (folder / "1.csv").write_text(HEADER + "\n".join(lines) + "\n")
            (await service.ingest(folder)).raise_for_outcome()
        await built(service, "id")
        (address,) = (one.address for one in await service.client.members() if one.role == "coordinator")

        def planned(**options: str) -> tuple[int, list[int]]:
            given = {"table": "t", "coordinator": address, **options}
            wanted = read_options(given)
            reader = TableReader(wanted, table_schema(wanted))
            splits = [split for split in reader.partitions() if isinstance(split, FileSplit)]
            ids = [row["id"] for split in splits for batch in reader.read(split) for row in batch.to_pylist()]
            return sum(len(split.files) for split in splits), sorted(ids)

        for where, files, ids in (("id == 100", 1, [100]), ("id in (100, 102)", 2, [100, 102])):
            assert await asyncio.to_thread(planned, filter=where) == (files, ids)
            assert await asyncio.to_thread(planned, filter=where, useIndexes="false") == (3, ids)
