"""Calls in other processes: their outcomes, their limits, and how they end."""

import asyncio
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from distop.errors import Crashed, InvalidArgument
from distop.process import serving, workers
from distop.process.template import NotLoaded, Template
from distop.process.workers import Died, Idle, TooLong, Worker, spawned, starved_s
from support import calls
from support.waiting import eventually

LONG_S, SHORT_S = 60.0, 0.05


@pytest.fixture
def template() -> Iterator[Template]:
    made = Template()
    yield made
    made.close()


@pytest.fixture
def worker(template: Template) -> Iterator[Worker]:
    made = template.fork(int)
    yield made
    made.end()


@pytest.mark.parametrize("where", ["forked", "spawned"])
def test_a_worker_runs_one_call_after_the_other(template: Template, where: str) -> None:
    """Elsewhere, and its errors are those of the call."""
    worker = template.fork(int) if where == "forked" else spawned({})
    assert worker.run(os.getpid, limit_s=LONG_S) == worker.pid != os.getpid()
    with pytest.raises(ZeroDivisionError) as raised:
        worker.run(partial(divmod, 1, 0), limit_s=LONG_S)
    assert "in a separate process" in raised.value.__notes__[0]
    with pytest.raises(Crashed, match="SystemExit: enough"):
        worker.run(partial(sys.exit, "enough"), limit_s=LONG_S)
    assert worker.is_idle
    assert worker.run(os.getpid, limit_s=LONG_S) == worker.pid
    worker.end()
    with pytest.raises(Died):
        worker.run(os.getpid, limit_s=LONG_S)


async def test_a_call_that_takes_too_long_is_ended(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(TooLong):
        worker.run(partial(calls.wait_for, tmp_path / "never"), limit_s=SHORT_S)
    assert not worker.is_idle
    await eventually(lambda: not calls.lives(worker.pid))


async def test_signs_of_life_begin_its_time_anew(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them does."""
    limit_s = 4 * serving.SIGN_OF_LIFE_S
    call = partial(calls.wait_for, tmp_path / "come", shows_life=True)
    running = asyncio.create_task(asyncio.to_thread(worker.run, call, limit_s=limit_s))
    done, _ = await asyncio.wait({running}, timeout=2 * limit_s)
    assert not done
    (tmp_path / "come").touch()
    assert await running == "came"


def starving(monkeypatch: pytest.MonkeyPatch, come: Path) -> list[int]:
    """Every process seems to starve until its tenth look, which makes the file; those that were looked at."""
    asked = list[int]()

    def starved(pid: int) -> float:
        asked.append(pid)
        if len(asked) == 10:
            come.touch()
        return len(asked) * (LONG_S if come.exists() else SHORT_S)

    monkeypatch.setattr(workers, "starved_s", starved)
    return asked


def test_time_in_which_it_could_have_run_is_not_counted(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is busy with others makes no call fail."""
    come = tmp_path / "come"
    asked = starving(monkeypatch, come)
    assert worker.run(partial(calls.wait_for, come), limit_s=SHORT_S) == "came"
    assert set(asked) == {worker.pid}


async def test_a_process_that_gets_no_processor_is_seen_to_starve(template: Template, tmp_path: Path) -> None:
    """Two share one processor; one that waits by itself does not starve."""
    both, spin = [template.fork(int) for _ in range(2)], partial(calls.spin, tmp_path / "end")
    for each in both:
        os.sched_setaffinity(each.pid, {min(os.sched_getaffinity(0))})
    spinning = [asyncio.create_task(asyncio.to_thread(each.run, spin, limit_s=LONG_S)) for each in both]
    await eventually(lambda: all(starved_s(each.pid) > 0.2 for each in both))
    (tmp_path / "end").touch()
    await asyncio.gather(*spinning)
    before = starved_s(both[0].pid)
    with pytest.raises(TooLong):
        both[0].run(partial(calls.wait_for, tmp_path / "never"), limit_s=SHORT_S)
    assert before > 0.2
    assert starved_s(2**22 + 1) == 0.0
    both[1].end()


async def test_a_call_ends_with_its_process_and_when_it_is_ended(template: Template, tmp_path: Path) -> None:
    for end in (lambda worker: os.kill(worker.pid, signal.SIGKILL), Worker.end):
        worker = template.fork(int)
        call = partial(calls.wait_for, tmp_path / "never")
        running = asyncio.create_task(asyncio.to_thread(worker.run, call, limit_s=LONG_S))
        await eventually(lambda worker=worker: not worker.is_idle)
        end(worker)
        with pytest.raises(Died):
            await running
        await eventually(lambda worker=worker: not calls.lives(worker.pid))


def test_a_call_that_nobody_waits_for_any_more_is_ended(worker: Worker, tmp_path: Path) -> None:
    def look() -> None:
        raise InvalidArgument("enough")

    with pytest.raises(InvalidArgument):
        worker.run(partial(calls.wait_for, tmp_path / "never"), limit_s=LONG_S, look=look)
    assert not worker.is_idle


async def test_idle_workers_are_few_and_alive(template: Template) -> None:
    idle, first, second, third = Idle(2), *(template.fork(int) for _ in range(3))
    for each in (first, second, third):
        idle.put(each)
    await eventually(lambda: not calls.lives(third.pid))
    os.kill(second.pid, signal.SIGKILL)
    await eventually(lambda: not second.is_alive)
    assert idle.take() is first
    assert idle.take() is None
    idle.close()
    idle.put(first)
    await eventually(lambda: not calls.lives(first.pid))


async def test_a_worker_whose_threads_log_between_two_calls_is_used_again(
    worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker.run(partial(calls.log_later, tmp_path / "log"), limit_s=LONG_S)
    (tmp_path / "log").touch()
    await eventually((tmp_path / "log.logged").exists)
    idle = Idle(1)
    idle.put(worker)
    assert idle.take() is worker
    assert worker.run(os.getpid, limit_s=LONG_S) == worker.pid
    assert "it came" in caplog.text


# -- what a template has loaded ------------------------------------------------------------------------


def module(folder: Path, source: str) -> str:
    """A new module that notes each process that loads it."""
    name = f"made_{folder.name}".replace("-", "_")
    note = f"import os, time, threading\nopen({str(folder / 'log')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    (folder / f"{name}.py").write_text(note + source)
    return name


def modules_of(worker: Worker) -> list[str]:
    """What it has loaded, before it is ended."""
    found: list[str] = worker.run(calls.modules, limit_s=LONG_S)
    worker.end()
    return found


def loads(folder: Path) -> list[int]:
    return list(map(int, (folder / "log").read_text().split()))


def test_workers_have_what_their_template_has_loaded(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = module(tmp_path, "")
    for _ in range(2):
        template.load(name, LONG_S)
    for _ in range(3):
        worker = template.fork(int)
        assert name in modules_of(worker)
    assert len(loads(tmp_path)) == 1


def test_output_of_loading_and_of_calls_is_shown_once(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither by each fork, nor lost when a worker is ended."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    template.load(module(tmp_path, "print('loaded')"), LONG_S)
    for _ in range(2):
        worker = template.fork(int)
        worker.run(partial(print, "called"), limit_s=LONG_S)
        worker.end()
    assert capfd.readouterr().out.split() == ["loaded", "called", "called"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("raise OSError('no disk')", "OSError: no disk"),
        ("while True: time.sleep(0.01)", "takes longer than 1 s"),
        ("os._exit(3)", "ends the process"),
        ("import missing_module", "No module named 'missing_module'"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_named_and_keeps_none_other_from_it(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, why: str
) -> None:
    """Once; what was there before it is there afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    name = module(tmp_path, source)
    template.load("html", LONG_S)
    for _ in range(2):
        with pytest.raises(NotLoaded, match=why):
            template.load(name, 1.0)
    worker = template.fork(int)
    assert "html" in modules_of(worker)
    assert len(loads(tmp_path)) == 1


def test_a_module_that_starves_while_it_is_loaded_is_given_more_time(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is busy with others."""
    monkeypatch.syspath_prepend(tmp_path)
    come = tmp_path / "come"
    name = module(tmp_path, f"while not os.path.exists({str(come)!r}): time.sleep(0.01)")
    template.start()
    asked = starving(monkeypatch, come)
    template.load(name, SHORT_S)
    assert len(set(asked)) == 1


@pytest.mark.parametrize(
    "source",
    ["threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()", "held = open(os.devnull)"],
)
def test_a_module_that_forks_could_not_share_is_not_in_the_template(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = module(tmp_path, source)
    template.load(name, LONG_S)
    worker = template.fork(int)
    assert name not in modules_of(worker)


async def test_a_template_that_has_died_is_started_again_with_its_modules(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = module(tmp_path, "")
    template.load(name, LONG_S)
    (first,) = loads(tmp_path)
    os.kill(first, signal.SIGKILL)
    await eventually(lambda: not calls.lives(first))
    worker = template.fork(int)
    assert name in modules_of(worker)
    assert len(loads(tmp_path)) == 2


async def test_a_module_that_ignores_the_ends_of_processes_does_not_end_the_template(
    template: Template, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    name = module(tmp_path, "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)")
    template.load(name, LONG_S)
    for _ in range(2):
        worker = template.fork(int)
        assert worker.run(os.getpid, limit_s=LONG_S) == worker.pid
        worker.end()
        await eventually(lambda worker=worker: not calls.lives(worker.pid))
    assert len(loads(tmp_path)) == 1


async def test_a_template_that_hangs_while_it_loads_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do its workers, also one that hangs, too."""
    monkeypatch.syspath_prepend(tmp_path)
    name = module(tmp_path, "while True: time.sleep(0.01)")
    parent = multiprocessing.get_context("spawn").Process(
        target=calls.leave_loading, args=(name, tmp_path / "never", tmp_path / "log")
    )
    parent.start()
    await eventually(lambda: len(loads(tmp_path)) == 2 if (tmp_path / "log").exists() else False)
    parent.kill()
    parent.join()
    for pid in loads(tmp_path):
        await eventually(lambda pid=pid: not calls.lives(pid))
