"""Compaction from the call to the files: coordinator, executor, etcd and other writers are real."""

import asyncio

import pytest

from distop.coordinator.schedules import timekeeping
from distop.lake.layout.model import Layout
from distop.metastore import crashpoints
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head
from distop.metastore.tables.schedules import agenda_of
from support.services.executing import Child
from support.services.schedules import operations
from support.services.whole import Whole
from support.tables.deletes import equality_deletes, publish_deletes
from support.tables.publishing import ROWS, Table
from support.waiting import eventually


async def test_no_row_is_lost_or_doubled_while_two_others_append(service: Whole) -> None:
    """P7, C8: ingests, a program of pyiceberg, and compactions all the time; watermarks stay."""
    await service.fill(3)
    command = ("-m", "support.tables.foreign_appender", "default.t", "3", "1000000")
    rewritten = 0
    with Child(service.etcd, service.folder, *command) as foreign:
        appending = asyncio.create_task(service.fill(5, first=3))
        exited = asyncio.create_task(foreign.exit_code())
        while not (appending.done() and exited.done()):
            ended = (await service.run("compact", min_files=2, sort_by=["id"])).raise_for_outcome()
            rewritten += ended.facts["filesBefore"]
            await asyncio.sleep(0.05)  # a compaction without pause would keep a slower writer waiting
        await appending
        assert await exited == 0, foreign.log.read_text()
    assert rewritten > 0
    expected = [*range(80), *range(1_000_000, 1_000_003)]
    assert await asyncio.to_thread(service.ids) == expected
    assert [len(marks) for marks in (await service.client.table("t").watermarks()).values()] == [8]

    (await service.run("compact", min_files=2)).raise_for_outcome()
    assert len(await asyncio.to_thread(service.published_files)) == 4, "one a partition"
    await service.succeeds("expire_snapshots", older_than="0s")
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == expected
    assert service.data_files() == await asyncio.to_thread(service.published_files)


async def test_a_schedule_that_can_change_nothing_starts_once_and_says_why(
    service: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V5: the rows of a delete file cannot be read here, so it stays."""
    monkeypatch.setattr(timekeeping, "HEADS_EVERY_S", 0.05)
    await service.fill(1)
    await service.at_rest()
    key = service.store.keyspace.table("t").head
    made = Table("t", f"file://{service.location}", Layout.create(ROWS, ["kind"]))
    made.head = await service.store.get(key)
    [some, *_] = [task.file for task in made.iceberg().scan("id = 0").plan_files()]
    unreadable = equality_deletes(made.iceberg(), "id", [-1], some, key_metadata=b"k")
    await asyncio.to_thread(publish_deletes, made, unreadable)
    await service.store.put(key, made.head.value)
    before = made.record().metadata_location

    await service.client.table("t").add_schedule("s", "compact", when="delete_files > 0")

    async def said() -> str:
        return (await service.client.table("t").why()).sentence

    why = await eventually(said, holds=lambda line: "schedule s" in line and "compact/1 succeeded" in line)
    assert "its last operation changed nothing, since it passed over files" in why

    async def looked() -> bool:
        agenda = agenda_of(await service.store.get(service.store.keyspace.table("t").agenda))
        return agenda.due is None and agenda.head == (await service.store.get(key)).mod_revision

    assert await eventually(looked), "the head as it is now"
    ended = await service.client.operation("t/compact/1").get()
    assert (ended.facts["passedOver"], ended.jobs.total) == ({"deletes": 1}, 0)
    assert decode((await service.store.get(key)).value, Head).metadata_location == before
    assert [one for one in await operations(service.store) if "compact" in one] == ["t/compact/1"]


async def test_a_compaction_is_collected_though_no_reply_arrives(
    service: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9, C18: the leader has to find out that it is over, since nobody tells it."""
    await service.fill(2)
    await service.at_rest()
    monkeypatch.setattr(crashpoints, "_PLAN", "finish.after=lost")
    (await service.run("compact", min_files=2)).raise_for_outcome()
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == list(range(20))
    assert service.data_files() >= await asyncio.to_thread(service.published_files)
