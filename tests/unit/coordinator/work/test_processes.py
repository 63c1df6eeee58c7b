"""The workers of a coordinator: those of calls that nobody waits for any more, and how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distop.coordinator.work import processes as processes_module
from distop.coordinator.work.processes import FEWEST, MOST, WORKER_BYTES, Processes
from distop.errors import Busy
from distop.process.workers import Worker
from support import calls
from support.waiting import eventually


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes([])
    yield made
    made.close()


def waits(path: Path) -> Any:
    return partial(calls.within, partial(calls.wait_for, path))


@pytest.mark.parametrize("begins", [False, True])
async def test_the_worker_of_a_cancelled_call_is_ended(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool
) -> None:
    """Also if its thread has not begun to run the call: two calls would share one process."""
    ran, run, workers = asyncio.Event(), Worker.run, list[Worker]()
    loop, go = asyncio.get_running_loop(), asyncio.Event()

    def slowly(worker: Worker, *args: Any, **options: Any) -> Any:
        workers.append(worker)
        loop.call_soon_threadsafe(ran.set)
        if not begins:
            asyncio.run_coroutine_threadsafe(go.wait(), loop).result(60)
        return run(worker, *args, **options)

    monkeypatch.setattr(Worker, "run", slowly)
    calling = asyncio.create_task(processes.run(waits(tmp_path / "never"), limit_s=60.0))
    await asyncio.wait_for(ran.wait(), 60)
    if begins:
        await eventually(lambda: not workers[0].is_idle)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not workers[0].is_idle
    go.set()
    monkeypatch.setattr(Worker, "run", run)
    (tmp_path / "come").touch()
    assert await processes.run(waits(tmp_path / "come"), limit_s=60.0) == "came"
    await eventually(lambda: not calls.lives(workers[0].pid))


async def test_a_process_that_cannot_be_started_is_no_failure_of_the_call(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: it is tried again, and not counted."""

    def fork(*_: object) -> Worker:
        raise BlockingIOError("no memory")

    monkeypatch.setattr(processes_module._template, "fork", fork)
    with pytest.raises(Busy, match="no memory"):
        await processes.run(waits(Path("/never")), limit_s=60.0)


@pytest.mark.parametrize(
    ("memory", "cores", "most", "at_a_time"),
    [
        (1 << 30, 1, FEWEST, 4),
        (8 << 30, 2, 32, 4),
        (64 * WORKER_BYTES, 16, MOST, 32),
        (1 << 40, 500, MOST, MOST),
    ],
)
def test_calls_are_as_many_as_cores_and_memory_are_good_for(
    monkeypatch: pytest.MonkeyPatch, memory: int, cores: int, most: int, at_a_time: int
) -> None:
    monkeypatch.setattr(processes_module, "memory_bytes", lambda: memory)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(cores))
    places = Processes.places()
    assert (places._most, places.at_a_time) == (most, at_a_time)
