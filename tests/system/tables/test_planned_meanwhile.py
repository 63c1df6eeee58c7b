"""Operations that are planned while others end: real plans, jobs and commits."""

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import pytest

from distop.client import OperationState
from distop.coordinator.starting import launching
from distop.coordinator.work.processes import Call, Surroundings
from distop.coordinator.work.work import Work
from distop.sources.formats.files import find_files
from distop.spark_jobs.ingest import files
from support.services.backlogs import applied, rested
from support.services.whole import Whole, write_csv
from support.waiting import eventually

T = TypeVar("T")


class Meanwhile:
    """Has a small ingest run from its start to its end while a large one looks for its files."""

    def __init__(self, service: Whole, source: Path, large: Path, **argument: Any) -> None:
        self._service, self._source, self._large, self._argument = service, source, large, argument
        self._loop, self._find = asyncio.get_running_loop(), find_files
        self.looked = 0
        self.ended: list[OperationState] = []

    def __call__(self, paths: list[str], **more: Any) -> Any:
        found = self._find(paths, **more)
        if paths == [str(self._large)]:
            self.looked += 1
            if self.looked == 1:
                small = self._service.ingest(self._source, **self._argument)
                ended = asyncio.run_coroutine_threadsafe(small, self._loop).result(30)
                self.ended.append(ended.state)
        return found


def plan_here(monkeypatch: pytest.MonkeyPatch, find: Meanwhile) -> None:
    """Plans are made in this process, where they look for files in this way."""

    async def in_a_thread(self: Work, _: object, table: str, what: str, call: Call[T], **__: object) -> T:
        return await self.blocking(table, what, call, Surroundings(self.registry, lambda: None))

    monkeypatch.setattr(Work, "user", in_a_thread)
    monkeypatch.setattr(files, "find_files", find)


def write_many(folder: Path, files: int) -> Path:
    for number in range(files):
        write_csv(folder, f"{number}.csv", number, 1)
    return folder


async def test_an_overwrite_is_planned_on_the_small_one_that_ended_while_it_looked_for_its_files(
    service: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P5, P7: it replaces what the small one has written, as it would if it had been started after it."""
    await service.ingest(write_csv(service.folder / "first", "1.csv", 5000, 10))
    large = write_many(service.folder / "large", 200)
    small = write_csv(service.folder / "small", "1.csv", 9000, 3)
    meanwhile = Meanwhile(service, small, large, mode="overwrite")
    plan_here(monkeypatch, meanwhile)
    ended = await service.ingest(large, mode="overwrite")
    assert (ended.state, ended.error) == (OperationState.SUCCEEDED, None)
    assert (meanwhile.ended, meanwhile.looked) == ([OperationState.SUCCEEDED], 2)
    assert await asyncio.to_thread(service.ids) == list(range(200))


async def test_an_append_of_other_files_is_not_planned_again_for_every_commit(
    service: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P7: a slow plan has its turn on a table that others append to all the time."""
    await service.ingest(service.source("first", 5000, 10))
    large = write_many(service.folder / "src" / "large", 10)
    small = service.source("small", 9000, 3)
    meanwhile = Meanwhile(service, small, large)
    plan_here(monkeypatch, meanwhile)
    ended = await service.ingest(large)
    assert (ended.state, meanwhile.ended) == (OperationState.SUCCEEDED, [OperationState.SUCCEEDED])
    assert meanwhile.looked == 1
    ids = [*range(10), *range(5000, 5010), *range(9000, 9003)]
    assert await asyncio.to_thread(service.ids) == ids


async def test_a_pause_plans_anew(service: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B1, B6: however short. It came between the plan and the start; files that came meanwhile are read."""
    folder = write_csv(tmp_path / "in", "1.csv", 0, 10)
    planned, paused = asyncio.Event(), asyncio.Event()
    plan = launching.Launcher._unless_changed

    async def slowly(launcher: launching.Launcher, planning: Any, depends_on: Any) -> Any:
        made = await plan(launcher, planning, depends_on)
        planned.set()
        await paused.wait()
        return made

    monkeypatch.setattr(launching.Launcher, "_unless_changed", slowly)
    await service.client.table("t").enqueue("a", "ingest", {"paths": [str(folder)]})
    await asyncio.wait_for(planned.wait(), 60)
    await service.client.table("t").pause()
    paused.set()
    assert await eventually(lambda: rested(service.store))
    write_csv(folder, "2.csv", 10, 10)
    await service.client.table("t").resume()
    await eventually(lambda: applied(service.store))
    assert sorted(await asyncio.to_thread(service.ids)) == list(range(20))
