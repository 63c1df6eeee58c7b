"""Landing folders: what is dropped there is applied in order, and control files mean what they say."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import pytest_asyncio

from distop.client import AsyncClient, Client, OperationState
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.spark_jobs.landing.folder import Landing, Report
from distop.spark_jobs.landing.tables import Landings
from support.services.coordinators import config_of, running
from support.services.executing import runner
from support.services.whole import coordinated, write_csv
from support.waiting import eventually

T = TypeVar("T")


async def blocking(call: Callable[..., T], *args: Any, **more: Any) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(call, *args, **more))


class Dock:
    """A folder, the table that it feeds, and somebody who drops batches."""

    def __init__(self, folder: Path, sdk: AsyncClient, client: Client) -> None:
        self.folder, self.sdk, self.client = folder, sdk, client
        self.landing = self.fresh()

    def fresh(self) -> Landing:
        """A process that knows nothing of what the others have done."""
        return Landing(self.client, "t", str(self.folder), type="noop")

    async def look(self, landing: Landing | None = None) -> Report:
        return await blocking((landing or self.landing).poll)

    def drop(self, name: str, *, success: bool = True, **files: str) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        if success:
            (folder / "_SUCCESS").touch()

    def control(self, name: str, text: str = "") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    async def waiting(self) -> list[str]:
        return [batch.name async for batch in self.sdk.backlog("t")]

    async def arguments(self) -> dict[str, dict[str, Any]]:
        return {batch.name: batch.argument async for batch in self.sdk.backlog("t")}


@pytest_asyncio.fixture
async def dock(etcd_config: EtcdConfig, tmp_path: Path) -> AsyncIterator[Dock]:
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        await sdk.create_table("t", "/nowhere")
        await sdk.set_ordering("t", gate="closed")
        client = Client(coordinator.address)
        folder = tmp_path / "landing"
        folder.mkdir()
        try:
            yield Dock(folder, sdk, client)
        finally:
            await blocking(client.close)


async def test_complete_batches_are_published_once_whoever_looks(dock: Dock) -> None:
    """B12, B1: one without _SUCCESS is not there yet; another process finds the same."""
    dock.control("_config/ORDERME")
    dock.drop("2024/02", data="x")
    dock.drop("2024/01", data="x")
    dock.drop("2024/03", success=False, data="x")
    assert (await dock.look()).published == ["2024/01", "2024/02"]
    assert (await dock.look()).published == []
    assert (await dock.look(dock.fresh())).published == ["2024/01", "2024/02"]
    assert await dock.waiting() == ["2024/01", "2024/02"]
    dock.drop("2024/03")
    assert (await dock.look()).published == ["2024/03"]
    assert (await dock.arguments())["2024/03"]["paths"] == [str(dock.folder / "2024/03")]


async def test_what_a_table_has_forgotten_is_passed_over(dock: Dock, client: EtcdClient) -> None:
    """B1: a process that starts anew does not stop the table with batches that were applied long ago."""
    await client.put(client.keyspace.table("t").ordering, b'{"last":"5","forgotten":"3"}')
    dock.control("_config/ORDERME")
    for name in ("1", "3", "7"):
        dock.drop(name, data="x")
    report = await dock.look(dock.fresh())
    assert (report.passed_over, report.published) == (["1", "3"], ["7"])


async def test_the_nearest_configuration_wins(dock: Dock) -> None:
    """B12: objects are merged into each other."""
    dock.control("_config/ORDERME")
    dock.control("_config/base.json", '{"format": "csv", "csv": {"header": true, "delimiter": ","}}')
    dock.control("a/_config/more.json", '{"csv": {"delimiter": ";"}, "mode": "append"}')
    dock.drop("a/1", data="x")
    dock.drop("b/1", data="x")
    await dock.look()
    arguments = await dock.arguments()
    paths = {name: argument.pop("paths") for name, argument in arguments.items()}
    assert len(paths) == 2
    assert arguments["b/1"] == {"format": "csv", "csv": {"header": True, "delimiter": ","}}
    assert arguments["a/1"] == {
        "format": "csv",
        "csv": {"header": True, "delimiter": ";"},
        "mode": "append",
    }


async def test_history_done_opens_the_gate(dock: Dock) -> None:
    """B12, B6."""
    dock.control("_config/ORDERME")
    dock.drop("1", data="x")
    await dock.look()
    assert (await dock.sdk.ordering("t")).gate == "closed"
    dock.control("_HISTORYDONE")
    assert (await dock.look()).controls == ["_HISTORYDONE"]
    assert (await dock.sdk.ordering("t")).gate == "open"


async def test_backfill_approves_the_batch_it_names_and_no_other(dock: Dock) -> None:
    """B12, B7: also when it has to be repeated."""
    await dock.sdk.set_ordering("t", gate="open", validation=True)
    for name in ("a", "b", "c"):
        await dock.sdk.enqueue("t", name, "noop", {"partitions": 0})

    async def awaiting(batch: str) -> bool:
        return (await dock.sdk.ordering("t")).awaiting == batch

    assert await eventually(lambda: awaiting("a"))
    dock.control("_BACKFILL", "z")
    report = await dock.look()
    assert "waits for approval, not 'z'" in report.problems["_BACKFILL"]
    dock.control("_BACKFILL")
    assert (await dock.look()).controls == ["_BACKFILL"]
    assert not (dock.folder / "_BACKFILL").exists()
    assert await eventually(lambda: awaiting("b"))
    # A process that died after the approval of "a" left the file with the name in it.
    dock.control("_BACKFILL", "a")
    await dock.look()
    assert await awaiting("b")


async def test_what_is_wrong_is_reported_and_keeps_nothing_else(dock: Dock) -> None:
    """B12, U3."""
    dock.control("_config/ORDERME")
    dock.control("sub/_HISTORYDONE")
    dock.control("sub/ORDERME")
    dock.control("broken/_config/x.json", "{")
    dock.drop("broken/1", data="x")
    dock.drop("nothing", _POINTER="\n")
    dock.control("_SUCCESS")
    dock.drop("good", data="x")
    report = await dock.look()
    assert report.published == ["good"]
    assert set(report.problems) == {
        "sub/_HISTORYDONE",
        "sub/ORDERME",
        "broken/_config/x.json",
        "nothing",
        "_SUCCESS",
    }
    assert "misplaced" in report.problems["sub/ORDERME"]


async def test_a_pointer_names_data_elsewhere(dock: Dock) -> None:
    """B12."""
    dock.control("_config/ORDERME")
    dock.drop("1", _POINTER="/data/a\n\n/data/b\n")
    await dock.look()
    assert (await dock.arguments())["1"] == {"paths": ["/data/a", "/data/b"]}


async def test_unordered_batches_start_at_once_and_once(dock: Dock) -> None:
    """B13: their operations go by the name of the batch, whoever starts them."""
    dock.control("_config/a.json", '{"partitions": 0}')
    landing = Landing(dock.client, "t", str(dock.folder), type="friend")
    again = Landing(dock.client, "t", str(dock.folder), type="friend")
    dock.drop("1", data="x")
    assert (await dock.look(landing)).published == ["1"]
    assert (await dock.look(again)).published == ["1"]
    assert [operation.name async for operation in dock.sdk.list("t")] == ["t/friend/1"]


async def test_unordered_batches_are_applied_side_by_side(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """B13: all at once, nobody waits for another; the table gets each row once, also the first ones."""
    landed, ids = tmp_path / "landing", list[int]()
    for number in range(4):
        folder = write_csv(landed / f"{number}", "a.csv", number * 10, 10)
        (folder / "_SUCCESS").touch()
        ids += range(number * 10, number * 10 + 10)
    async with coordinated(etcd_config, tmp_path, client) as service:
        [member] = await service.client.members()
        feed = Landing(blocking_client := Client(member.address), "t", str(landed))
        try:
            assert (await blocking(feed.poll)).published == ["0", "1", "2", "3"]
            # There is nobody to do any job: all of them are in flight.
            running = [one for one in await service.operations() if one.state is OperationState.RUNNING]
            assert {one.object for one in running} == {f"batch:{number}" for number in range(4)}
            # What replaces rows has to be alone, and takes its turn.
            late = write_csv(landed / "late", "a.csv", 100, 1)
            (late / "_SUCCESS").touch()
            (late / "_config").mkdir()
            (late / "_config" / "mode.json").write_text('{"mode": "overwrite"}')
            assert (await blocking(feed.poll)).published == ["late"]
            alone = [one for one in await service.operations() if not one.object]
            assert [one.name for one in alone] == ["t/ingest/5"]
            await service.client.cancel(alone[0].name)
            async with runner(client):
                for one in running:
                    (await service.client.wait(one.name, timeout_s=180)).raise_for_outcome()
            assert await asyncio.to_thread(service.ids) == ids
            # Another process finds them again, and starts nothing.
            fresh = Landing(blocking_client, "t", str(landed))
            assert len((await blocking(fresh.poll)).published) == 5
            assert len(await service.operations()) == 5
        finally:
            await blocking(blocking_client.close)


@pytest.mark.parametrize("missing", ["not-there", "not/there/either"])
async def test_a_folder_that_is_not_there_yet_is_waited_for(dock: Dock, missing: str) -> None:
    landing = Landing(dock.client, "t", str(dock.folder / missing), type="noop")
    assert (await dock.look(landing)).published == []


async def test_each_folder_feeds_the_table_of_its_name(dock: Dock, tmp_path: Path) -> None:
    """B12: and one whose table does not exist, or is configured badly, keeps no other."""
    await dock.sdk.create_table("u", "/nowhere")
    for table in ("t", "u", "missing", "_ignored"):
        dock.control(f"{table}/_config/ORDERME")
        dock.drop(f"{table}/1", data="x")
    dock.control("u/_config/x.json", "[]")
    landings = Landings(dock.client, str(dock.folder), type="noop")
    reports = await blocking(landings.poll)
    assert {table: report.published for table, report in reports.items()} == {
        "t": ["1"],
        "u": [],
        "missing": [],
    }
    assert "TABLE_NOT_FOUND" in reports["missing"].problems[""]
    assert list(reports["u"].problems) == ["_config/x.json"]
    await dock.sdk.create_table("missing", "/nowhere")
    (dock.folder / "u/_config/x.json").write_text("{}")
    reports = await blocking(landings.poll)
    assert (reports["u"].published, reports["missing"].published) == (["1"], ["1"])
    assert await blocking(Landings(dock.client, str(tmp_path / "nowhere")).poll) == {}
