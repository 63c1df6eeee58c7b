"""Modes and maintenance from the call to the files: coordinator, executor, etcd and pyiceberg are real."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distop.catalog import EtcdCatalog
from distop.client import OperationState
from distop.errors import AlreadyIngested, IncompatibleOperation
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import decode
from distop.spark_jobs.ingest.operation import Ingest
from support.etcd.lossy import LossyClient
from support.services.executing import runner
from support.services.whole import HEADER, Whole, coordinated, error_of
from support.sources.ingesting import LocalJob
from support.tables.trees import age
from support.waiting import eventually


async def test_a_renamed_table_and_one_made_under_its_old_name_share_no_files(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """P13, C4: neither the removal of orphans nor a drop with purge of the one touches the other."""
    properties = {"etcd.endpoints": ",".join(etcd_config.endpoints), "etcd.prefix": etcd_config.prefix}
    catalog = EtcdCatalog("test", **properties, warehouse=f"file://{tmp_path}/warehouse")
    rows = pa.table({"id": [1, 2, 3]})

    def make() -> None:
        table = catalog.create_table("a.x", schema=rows.schema)
        table.append(rows)

    def count(name: str) -> int:
        return len(catalog.load_table(name).scan().to_arrow())

    async with coordinated(etcd_config, tmp_path, client) as service, runner(client):
        await asyncio.to_thread(catalog.create_namespace, "a")
        await asyncio.to_thread(make)
        await asyncio.to_thread(catalog.rename_table, "a.x", "a.y")
        await asyncio.to_thread(make)
        age(tmp_path / "warehouse")
        for name in ("a.x", "a.y"):
            swept = await service.succeeds("remove_orphans", name, older_than="1d", dry_run=False)
            assert swept["orphans"] == 0
        assert [await asyncio.to_thread(count, name) for name in ("a.x", "a.y")] == [3, 3]
        await asyncio.to_thread(catalog.purge_table, "a.x")
        assert await asyncio.to_thread(count, "a.y") == 3
        await asyncio.to_thread(catalog.close)


async def test_maintenance_leaves_a_running_operation_alone(idle: Whole) -> None:
    """P13: an ingest in the middle of its jobs, while snapshots expire and orphans go; its files are old."""
    async with runner(idle.store):
        for i in range(3):
            await idle.ingest(idle.source(f"s{i}", 100 * i, 30), mode="overwrite")
        await idle.at_rest()
    litter = idle.location / "data" / "litter.parquet"
    litter.write_text("of a process that was killed")

    argument = {"paths": [str(idle.source("held", 1000, 600))], "split_bytes": 4096}
    held = await idle.client.start("t", "ingest", argument)
    keys = idle.store.keyspace.operation(OperationId.parse(held.name))
    arg = decode((await idle.store.get(keys.arg)).value, OperationArg)
    for partition in arg.partition_names()[:2]:
        await asyncio.to_thread(Ingest().run_job, LocalJob(arg, partition))
    staged = {path for path in idle.location.rglob("*") if arg.uuid in str(path) and path.is_file()}
    assert staged
    await asyncio.to_thread(age, idle.location)

    async with runner(idle.store, serving=["remove_orphans"]):

        async def swept() -> bool:
            active = [key for key in await idle.keys() if key.startswith("_active.")]
            return len(active) == 1  # that of the ingest

        assert (await idle.succeeds("expire_snapshots", older_than="0s"))["expiredSnapshots"] == 2
        await eventually(swept)
        found = await idle.succeeds("remove_orphans", older_than="1d", dry_run=False)
        await eventually(swept)
        current = str((await asyncio.to_thread(idle.table)).metadata.current_snapshot_id)
        with pytest.raises(IncompatibleOperation):
            await idle.client.start("t", "rollback", {"snapshot": current})
    assert not litter.exists()
    assert found["examples"] == ["data/litter.parquet"]
    assert all(path.exists() for path in staged)
    assert await asyncio.to_thread(idle.ids) == list(range(200, 230))

    async with runner(idle.store):
        assert (await held.wait(timeout_s=90)).state is OperationState.SUCCEEDED
        await idle.at_rest()
    assert await asyncio.to_thread(idle.ids) == [*range(200, 230), *range(1000, 1600)]
    assert idle.data_files() == await asyncio.to_thread(idle.published_files)


async def test_callers_that_overwrite_at_once_leave_exactly_the_rows_of_the_last(service: Whole) -> None:
    """P7: each waits for the operation that is in its way."""
    folders = [service.source(f"s{i}", 100 * i, 20) for i in range(5)]

    async def overwrite(folder: Path) -> int:
        while True:
            argument = {"paths": [str(folder)], "mode": "overwrite"}
            try:
                started = await service.client.start("t", "ingest", argument)
            except IncompatibleOperation as error:
                await service.client.operation(error.details["operation"]).wait(timeout_s=90)
                continue
            await started.result(timeout_s=90)
            return started.started.instance

    instances = await asyncio.gather(*map(overwrite, folders))
    last = instances.index(max(instances))
    assert sorted(instances) == [1, 2, 3, 4, 5]
    assert await asyncio.to_thread(service.ids) == list(range(100 * last, 100 * last + 20))
    await service.at_rest()
    snapshots = (await asyncio.to_thread(service.table)).metadata.snapshots
    assert len(snapshots) >= 5


async def test_what_was_rolled_back_can_be_ingested_again(service: Whole) -> None:
    """P11, C8: rows and watermarks go back together."""
    first = await service.ingest(service.source("a", 0, 10))
    late = service.source("b", 100, 10)
    await service.ingest(late)
    await service.succeeds("rollback", snapshot=first.facts["snapshotId"])
    assert await asyncio.to_thread(service.ids) == list(range(10))
    assert await service.ingested() == ["a"]
    (await service.ingest(late)).raise_for_outcome()
    assert await asyncio.to_thread(service.ids) == [*range(10), *range(100, 110)]


async def test_an_emergency_on_the_command_line(service: Whole) -> None:
    """P11, C8: snapshots are found, one is rolled back to, and watermarks that were kept are taken back."""

    async def distop(*words: str) -> Any:
        code, told = await service.distop(*words)
        assert code == 0, told
        return told

    first = await service.ingest(service.source("a", 0, 10))
    late = service.source("b", 100, 20)
    last = await service.ingest(late)
    found = await distop("snapshot", "list", "t")
    assert [(one["operation"], one["rows"], one["added_rows"], one["present"]) for one in found] == [
        (last.name, 30, 20, True),
        (first.name, 10, 10, False),
    ]
    target = found[1]["snapshot_id"]
    assert target == first.facts["snapshotId"]
    shown = await distop("table", "show", "t")
    assert [column["name"] for column in shown["content"]["columns"]] == ["id", "kind", "day"]
    assert shown["content"]["partition_by"] == ["kind"]
    assert (shown["content"]["rows"], shown["content"]["loaded_by"]) == (30, last.name)

    kept = await distop("table", "rollback", "t", target, "--watermarks", "keep", "--wait")
    assert (kept["state"], kept["facts"]["snapshotId"]) == ("succeeded", target)
    assert [one["in_history"] for one in await distop("snapshot", "list", "t")] == [False, True]
    with pytest.raises(AlreadyIngested):
        await service.ingest(late)
    marks = await distop("watermark", "rewind", "t", "--reason", "b was wrong")
    assert [sorted(partitions) for partitions in marks.values()] == [["a"]]
    assert await distop("watermark", "list", "t") == marks
    assert await distop("watermark", "rewind", "t") == marks
    (await service.ingest(late)).raise_for_outcome()
    after = await distop("watermark", "list", "t")
    assert await distop("watermark", "rewind", "t") == after != marks
    assert await asyncio.to_thread(service.ids) == [*range(10), *range(100, 120)]
    # A number is the same as text, to the last digit.
    back = await distop("operation", "start", "t", "rollback", "--arg", f"snapshot={target}", "--wait")
    assert back["facts"]["snapshotId"] == target


async def test_the_history_shows_which_operations_ran_and_their_outcome(service: Whole) -> None:
    """U2, O22: what was asked for, in its order, and what came of it."""
    paths = [str(service.source("a", 0, 10))]
    given = {"paths": paths, "mode": "overwrite", "filter": "id < 7", "format": "csv"}
    started = await service.client.start("t", "ingest", given)
    assert list(started.started.argument.items()) == list(given.items())
    ended = await started.wait(timeout_s=30)
    assert list(ended.argument.items()) == list(given.items())
    assert (ended.facts["rows"], ended.facts["bytes"] > 0) == (7, True)
    entry = await anext(service.client.audit("t"))
    assert (entry.action, entry.argument) == ("start", given)
    assert (entry.outcome, entry.rows, entry.bytes) == ("success", 7, ended.facts["bytes"])
    long = await service.client.start("t", "friend", {"partitions": 0, "many": ["x" * 900] * 400})
    kept = (await long.wait()).argument
    assert len(json.dumps(kept)) < 3000
    assert kept["many"][-1] == "… and 395 more"


async def test_data_that_somebody_else_wrote_meanwhile(idle: Whole) -> None:
    """P5, P6, P9: error_if_exists fails and names it, ignore does nothing; neither leaves a file."""
    async with runner(idle.store):
        await idle.ingest(idle.source("none", 0, 5), filter="id > 100")

    def foreign(number: int) -> None:
        table = idle.table()
        row = {"id": [number], "kind": ["k0"], "day": [None]}
        table.append(pa.table(row, schema=table.schema().as_arrow()))

    argument = {"paths": [str(idle.source("a", 0, 5))]}
    refused = await idle.client.start("t", "ingest", {**argument, "mode": "error_if_exists"})
    await asyncio.to_thread(foreign, 7)
    async with runner(idle.store):
        ended = await refused.wait(timeout_s=90)
        assert error_of(ended).code == "TABLE_NOT_EMPTY"
        foreign_snapshot = (await asyncio.to_thread(idle.table)).metadata.current_snapshot_id
        assert str(foreign_snapshot) in error_of(ended).message
        ignored = await idle.ingest(idle.folder / "nowhere", mode="ignore")
        assert (ignored.state, ignored.jobs.total) == (OperationState.SUCCEEDED, 0)
        assert ignored.facts["ignored"] is True
        await idle.at_rest()
    assert await asyncio.to_thread(idle.ids) == [7]
    assert idle.data_files() == await asyncio.to_thread(idle.published_files)
    assert [list(partitions) for partitions in (await idle.client.table("t").watermarks()).values()] == [
        ["none"]
    ]


async def test_good_paths_of_an_ingest_are_published_and_bad_ones_can_be_repeated(service: Whole) -> None:
    """C17, O20: one path of three is bad: reported, held back as a whole, and ingested once it is good."""
    folders = [service.source(name, 100 * i, 20) for i, name in enumerate("abc")]
    bad = folders[1] / "2.csv"
    bad.write_text(HEADER + "120,k0,2013-01-01\nx,k1,2013-01-01\n")
    argument = {
        "paths": [str(folder) for folder in folders],
        "schema": {"id": "long", "kind": "string", "day": "date"},
    }
    started = await service.client.start("t", "ingest", argument, max_failed_partitions=1)
    ended = await started.result(timeout_s=90)
    assert (ended.jobs.failed, ended.facts["rows"]) == (1, 40)
    assert list(ended.facts["failedPartitions"]) == ["b/1.csv, b/2.csv"]
    assert await asyncio.to_thread(service.ids) == [*range(20), *range(200, 220)]
    marks = await service.client.table("t").watermarks()
    ((src, partitions),) = marks.items()
    assert sorted(partitions) == ["a", "c"]
    bad.write_text(HEADER + "120,k0,2013-01-01\n")
    again: dict[str, Any] = {**argument, "paths": [str(folders[1])], "source": src, "watermark": {"b": "1"}}
    await service.succeeds("ingest", **again)
    assert await asyncio.to_thread(service.ids) == [*range(20), *range(100, 121), *range(200, 220)]
    await service.expect_no_other_files()
