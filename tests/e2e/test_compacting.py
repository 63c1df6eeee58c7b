"""Compaction from the call to the files: coordinator, executor, etcd and other writers are real."""

from __future__ import annotations

import asyncio

import pytest

from distop.metastore import crashpoints
from support.services.executing import Child
from support.services.whole import Whole


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
    assert [len(marks) for marks in (await service.client.watermarks("t")).values()] == [8]

    (await service.run("compact", min_files=2)).raise_for_outcome()
    assert len(await asyncio.to_thread(service.published_files)) == 4, "one a partition"
    await service.succeeds("expire_snapshots", older_than="0s")
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == expected
    assert service.data_files() == await asyncio.to_thread(service.published_files)


async def test_it_is_collected_without_any_answer(service: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """C9, C18: the leader has to find out that it is over, since nobody tells it."""
    await service.fill(2)
    await service.at_rest()
    monkeypatch.setattr(crashpoints, "_PLAN", "finish.after=lost")
    (await service.run("compact", min_files=2)).raise_for_outcome()
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == list(range(20))
    assert service.data_files() >= await asyncio.to_thread(service.published_files)
