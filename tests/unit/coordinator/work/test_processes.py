"""The workers of a coordinator: those of calls that nobody waits for any more, and how many there are."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distop.coordinator.work import processes as processes_module
from distop.coordinator.work.processes import FEWEST, MOST, WORKER_BYTES, Processes
from distop.errors import Busy
from distop.process.frames import CALL, SMALL, Link
from distop.process.workers import Worker
from support import calls
from support.waiting import eventually


@pytest.fixture
def processes() -> Iterator[Processes]:
    made = Processes([])
    yield made
    made.close()


def waits(path: Path, size: int = 0) -> Any:
    return partial(calls.within, partial(calls.begin_and_wait_for, path, bytes(size)))


@pytest.mark.parametrize(("begins", "size"), [(True, 0), (True, 2 * SMALL), (False, 2 * SMALL)])
async def test_the_worker_of_a_cancelled_call_is_ended(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool, size: int
) -> None:
    """Also if the thread that sends a large one has not begun: two calls would share one process."""
    held, send = asyncio.Event(), Link.send
    loop, go = asyncio.get_running_loop(), threading.Event()

    def slowly(link: Link, kind: bytes, *args: Any) -> None:
        if kind == CALL:
            loop.call_soon_threadsafe(held.set)
            assert go.wait(60)
        send(link, kind, *args)

    if not begins:
        monkeypatch.setattr(Link, "send", slowly)
    calling = asyncio.create_task(processes.run(waits(tmp_path / "never", size), limit_s=60.0))
    if begins:
        await eventually((tmp_path / "never.begun").exists)
    else:
        await asyncio.wait_for(held.wait(), 60)
    [worker] = processes._busy
    assert not worker.is_idle
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert not worker.is_idle
    monkeypatch.setattr(Link, "send", send)
    (tmp_path / "come").touch()
    assert await processes.run(waits(tmp_path / "come"), limit_s=60.0) == "came"
    await eventually(lambda: not calls.lives(worker.pid))
    go.set()
    await eventually(lambda: worker._link.fileno() < 0)


async def test_calls_and_results_may_be_small_or_large(processes: Processes) -> None:
    """They arrive as they were sent, also around the size of which a message counts as large."""
    for size in (0, SMALL - 500, SMALL, 40 * SMALL):
        call = partial(calls.within, partial(bytes.__add__, b"+" * size, b"-" * size))
        assert await processes.run(call, limit_s=60.0) == b"+" * size + b"-" * size


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
