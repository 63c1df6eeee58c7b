"""Running what may hang: places of tables, and processes."""

import asyncio
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from distop.coordinator.work import processes as processes_module
from distop.coordinator.work.places import Places, Slot
from distop.coordinator.work.processes import FEWEST, MOST, WORKER_BYTES, Processes
from distop.coordinator.work.work import Work
from distop.errors import Busy
from distop.operations import Registry
from distop.process.frames import CALL, SMALL, Link
from distop.process.workers import Worker
from support import calls
from support.types.work_types import Given
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


async def entered(places: Places, *keys: str) -> list[asyncio.Task[Slot]]:
    """Calls of these tables, which have asked for their places in this order."""
    asking = []
    for key in keys:
        asking.append(asyncio.create_task(places.enter(key)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    return asking


async def test_tables_take_turns_however_many_calls_one_of_them_has() -> None:
    """G5."""
    places = Places(at_a_time=1, each=1, patience_s=60.0)
    first, *others = await entered(places, *["busy"] * 50, "quiet")
    (await first).leave()
    done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    quiet = others[-1]
    assert done <= {others[0], quiet}
    done.pop().result().leave()
    assert (await quiet).key == "quiet"
    for asking in others:
        asking.cancel()


async def test_a_call_that_takes_long_gives_its_place_to_others_up_to_a_bound() -> None:
    """G5."""
    places = Places(at_a_time=1, most=3, each=3, patience_s=0.0)
    asking = await entered(places, "a", "b", "c", "d")
    await eventually(lambda: sum(one.done() for one in asking) == 3)
    assert not asking[3].done()
    asking[0].result().leave()
    assert (await asking[3]).key == "d"


async def test_what_hangs_for_one_table_leaves_room_for_the_others() -> None:
    """G5."""
    places = Places(at_a_time=1, each=2, patience_s=0.0)
    asking = await entered(places, *["hangs"] * 9, "other")
    assert (await asking[-1]).key == "other"
    assert sum(one.done() for one in asking[:-1]) <= 2
    for one in asking:
        one.cancel()


async def test_no_more_wait_than_may_however_many_tables_they_are_of() -> None:
    """G6."""
    places = Places(at_a_time=1, waiting=2, waiting_in_all=3, patience_s=60.0)
    asking = await entered(places, "a", "b", "c", "d")
    with pytest.raises(Busy, match="3 calls wait already"):
        await places.enter("e")
    (await asking[0]).leave()
    (place,) = await entered(places, "e")
    for one in asking[1:]:
        (await one).leave()
    assert (await place).key == "e"


async def test_a_call_that_is_given_up_leaves_no_trace() -> None:
    """Also when its turn comes along with the cancellation."""
    places = Places(at_a_time=1, each=1, waiting=1, patience_s=60.0)
    first, second = await entered(places, "t", "t")
    with pytest.raises(Busy):
        await places.enter("t")
    second.cancel()
    await asyncio.wait({second})
    (third,) = await entered(places, "t")
    first.result().leave()  # the turn of the third
    third.cancel()
    await asyncio.wait({third})
    assert (await places.enter("u")).key == "u"
    assert places.active == 1


class Prepared(Given):
    """Imports a module when it is called."""

    type = "prepared"
    preloads = ("wave",)


class Computing(Given):
    """Reads nothing, and waits for nothing."""

    type = "computing"
    only_computes = True


async def test_a_users_type_declares_what_its_calls_need_and_where_they_may_run() -> None:
    """G5: modules that load slowly are loaded once, before; what only computes needs no process."""
    registry = Registry([f"{__name__}:{name}" for name in ("Prepared", "Computing")])
    made = Processes(registry.extra)
    call = partial(calls.within, partial(calls.process_with, "wave"))
    try:
        work = Work(registry, None, made)
        process, loaded = await work.user(registry.get("prepared"), "t", "asking", call)
        assert process != os.getpid()
        assert loaded
        process, _ = await work.user(registry.get("computing"), "t", "asking", call)
        assert process == os.getpid()
    finally:
        made.close()
