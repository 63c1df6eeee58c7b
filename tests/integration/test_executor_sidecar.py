"""The sidecar as a process, and tasks that reach etcd through it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from distop.executor.dial import SidecarUnavailable
from distop.executor.place import Place
from distop.executor.sidecar_client import SidecarClient
from distop.executor.task import TaskSummary, Work, run_task
from distop.metastore.config import EtcdConfig
from distop.metastore.jobs import SUCCESS
from distop.metastore.lease import LeaseSession
from distop.metastore.records import ABORTING, ClaimRecord, OperationArg, decode
from distop.metastore.runs import Taken
from distop.operations import Registry
from support.executing import (
    Child,
    all_done,
    job_records,
    place_in,
    set_state,
    short_folder,
    sidecar_pid,
    sidecar_process,
    start_operation,
    take,
)
from support.lossy import LossyClient
from support.waiting import eventually
from support.work_types import WORK_TYPES, files, traces

REGISTRY = Registry(WORK_TYPES.split(","))


@pytest.fixture
def place(etcd_config: EtcdConfig) -> Iterator[Place]:
    """Where sidecars of this test serve. Those that tests made tasks start are ended."""
    with short_folder() as folder:
        place = place_in(folder, etcd_config)
        yield place
        end_sidecar(place)


@pytest_asyncio.fixture
async def session(client: LossyClient) -> AsyncIterator[LeaseSession]:
    """The lease of whoever plays the runner."""
    async with LeaseSession(client, 5) as session:
        yield session


def end_sidecar(place: Place, number: signal.Signals = signal.SIGTERM) -> int:
    """Signal the sidecar that serves there; its pid."""
    pid = sidecar_pid(place)
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return pid


@contextmanager
def connected(place: Place, etcd: EtcdConfig) -> Iterator[SidecarClient]:
    """A worker's connection, as of a process of its own."""
    client = SidecarClient(place, etcd.to_env())
    try:
        yield client
    finally:
        client.close()


def work_of(taken: Taken) -> Work:
    return Work(operation=REGISTRY.get(taken.arg.type), arg=taken.arg, run_token=taken.run.token)


def task(client: SidecarClient, taken: Taken, name: str = "a") -> asyncio.Future[TaskSummary]:
    """Run a task over all unfinished jobs, in a thread."""
    loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(1)
    return loop.run_in_executor(pool, run_task, client, work_of(taken), taken.unfinished, name)


async def test_marks_jobs_of_several_connections(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    operations = [await start_operation(client, jobs=700, table=f"t{n}") for n in range(3)]
    takens = [await take(client, arg, session) for arg in operations]
    with connected(place, etcd_config) as one, connected(place, etcd_config) as other:
        summaries = await asyncio.gather(task(one, takens[0]), task(other, takens[1]), task(one, takens[2]))
    assert [summary.won for summary in summaries] == [700, 700, 700]
    for arg in operations:
        assert len(await job_records(client, arg)) == 700


async def test_the_first_mark_wins_and_the_other_attempt_cleans_up(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """O11, P1: as with Spark's speculation."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as one, connected(place, etcd_config) as other:
        both = asyncio.gather(task(one, taken, "a"), task(other, taken, "b"))
        await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
        (tmp_path / "release").touch()
        summaries = await both
    records = await job_records(client, arg)
    assert sorted(summary.won for summary in summaries) == [0, 1]
    assert sum(summary.lost for summary in summaries) == 1
    assert files(tmp_path) == [f"{records['0'].attempt}.out"]


async def test_one_sidecar_starts_however_many_tasks_come_first(
    etcd_config: EtcdConfig, place: Place
) -> None:
    with ThreadPoolExecutor(6) as pool:
        clients = list(pool.map(lambda _: SidecarClient(place, etcd_config.to_env()), range(6)))
    pid = sidecar_pid(place)
    assert pid
    for client in clients:
        client.close()
    started = place.log.read_text().count("sidecar_started")
    assert started == 1
    assert place.folder.stat().st_mode & 0o077 == 0


async def test_a_sidecar_that_tasks_started_ends_when_nobody_is_connected(
    etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    async with sidecar_process(etcd_config, place, tmp_path, idle_exit_s=1.0) as sidecar:
        with connected(place, etcd_config):
            assert place.socket.exists()
        assert await sidecar.exit_code() == 0
    assert not place.socket.exists()
    assert not place.pid_file.exists()


async def test_tasks_go_on_when_their_sidecar_is_killed(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """Marks without an answer are sent again to the next sidecar, which the task starts."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["2"]}, jobs=900)
    taken = await take(client, arg, session)
    async with sidecar_process(etcd_config, place, tmp_path) as first:
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            first.stop()  # from now on marks are sent and not answered
            (tmp_path / "release").touch()
            await eventually(lambda: len(traces(tmp_path, "did")) > 300)
            first.kill()
            summary = await asyncio.wait_for(running, 30)
            assert sidecar_pid(place) not in (0, first.pid)
    assert summary == TaskSummary(won=900)
    assert len(files(tmp_path)) == 900
    assert len(await job_records(client, arg)) == 900


async def test_a_sealed_operation_reaches_its_tasks_at_once(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """O9, O15: by push."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=3)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "holds"))
        await set_state(client, arg, ABORTING)
        summary = await asyncio.wait_for(running, 1)
    assert summary == TaskSummary(gone=3)
    assert files(tmp_path) == []


async def test_a_runner_that_is_gone_cancels_its_tasks(
    client: LossyClient, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """O9: ownership moves."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)
    async with LeaseSession(client, 5) as runner:
        taken = await take(client, arg, runner)
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            await runner.close()
            assert await asyncio.wait_for(running, 1) == TaskSummary(gone=1)


# -- claims ------------------------------------------------------------------------------------------


async def claim_of(client: LossyClient, arg: OperationArg) -> ClaimRecord | None:
    kv = await client.get(client.keyspace.operation(arg.id).claim("0"))
    return decode(kv.value, ClaimRecord, kv.key) if kv.exists else None


def owned(folder: Path, **argument: int) -> dict[str, object]:
    return {"folder": str(folder), "steps": 4, **argument}


async def test_a_claimed_job_leaves_neither_claim_nor_checkpoint(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    arg = await start_operation(client, "owned", owned(tmp_path), jobs=2, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        assert await task(worker, taken) == TaskSummary(won=2)
    keys = client.keyspace.operation(arg.id)
    left = [kv.key.removeprefix(keys.prefix) for kv in (await client.scan(keys.prefix)).kvs]
    assert left == [b"0.state", b"1.state", b"arg", b"runner", b"state"]


async def test_a_second_attempt_waits_for_the_owner_and_learns_that_it_is_done(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as one, connected(place, etcd_config) as other:
        first = task(one, taken, "a")
        await eventually(lambda: traces(tmp_path, "holds"))
        second = task(other, taken, "b")
        (tmp_path / "release").touch()
        assert await first == TaskSummary(won=1)
        assert await second == TaskSummary(lost=1)
    assert len(traces(tmp_path, "began@0")) == 1


async def test_a_worker_that_dies_frees_its_job_and_the_next_one_resumes(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """O9: without waiting for a lease that the sidecar goes on renewing."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config):  # keeps the sidecar
        worker = worker_process(etcd_config, place, tmp_path, taken)
        with worker:
            await eventually(lambda: traces(tmp_path, "holds"), 20.0)
            worker.kill()
            (tmp_path / "release").touch()
            with connected(place, etcd_config) as other:
                assert await asyncio.wait_for(task(other, taken, "b"), 1.5) == TaskSummary(won=1)
    assert traces(tmp_path, "began@2")
    assert (await job_records(client, arg))["0"].result == {"from": 2}


async def test_an_owner_whose_sidecar_slept_past_its_lease_saves_and_marks_nothing(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """O10, O13"""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    keys = client.keyspace.operation(arg.id)
    async with sidecar_process(etcd_config, place, tmp_path) as sidecar:
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            owner = await claim_of(client, arg)
            sidecar.stop()

            async def expired() -> bool:
                return await claim_of(client, arg) is None

            await eventually(expired, 10.0)
            checkpoint = await client.get(keys.progress("0"))
            (tmp_path / "release").touch()  # the job goes on and tries to save, through a halted sidecar
            sidecar.resume()
            summary = await asyncio.wait_for(running, 20)
    # It was cancelled and tried again under a new claim, from what it had saved while it owned the job.
    assert checkpoint.value == b"2"
    assert summary == TaskSummary(won=1)
    assert [line[2] for line in traces(tmp_path, "began@0")] == [owner.attempt if owner else ""]
    assert [line[2] for line in traces(tmp_path, "cleaned")] == [owner.attempt if owner else ""]
    saved = {line[0] for line in traces(tmp_path) if owner and line[2] == owner.attempt}
    assert "saved@3" not in saved
    assert (await job_records(client, arg))["0"].result == {"from": 2}


@pytest.mark.parametrize("end", [Child.kill, Child.terminate], ids=["killed", "ended"])
async def test_a_claim_moves_to_the_next_sidecar(
    client: LossyClient,
    session: LeaseSession,
    etcd_config: EtcdConfig,
    place: Place,
    tmp_path: Path,
    end: Callable[[Child], None],
) -> None:
    """The attempt goes on as if nothing had happened: its claim's key was never gone."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    claim = client.keyspace.operation(arg.id).claim("0")
    # The next one must start within the time to live of its claims.
    async with sidecar_process(etcd_config, place, tmp_path, ttl_s=20) as first:
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            before = await client.get(claim)
            end(first)

            async def moved() -> bool:
                return (await client.get(claim)).lease not in (0, before.lease)

            await eventually(moved, 15.0)
            assert (await client.get(claim)).create_revision == before.create_revision
            (tmp_path / "release").touch()
            assert await asyncio.wait_for(running, 10) == TaskSummary(won=1)
    assert len(traces(tmp_path, "began@0")) == 1
    assert (await job_records(client, arg))["0"].state == SUCCESS


async def test_a_claim_that_is_taken_away_cancels_its_job(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """O9: the loser is cancelled by push, then tries for the job again."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "holds"))
        await client.delete(client.keyspace.operation(arg.id).claim("0"))
        await eventually(lambda: traces(tmp_path, "cleaned"), 1.0)
        (tmp_path / "release").touch()
        assert await asyncio.wait_for(running, 5) == TaskSummary(won=1)
    assert traces(tmp_path, "began@2")


async def test_without_etcd_a_sidecar_serves_and_its_tasks_wait(
    client: LossyClient, etcd_config: EtcdConfig, place: Place
) -> None:
    unreachable = EtcdConfig(endpoints=("127.0.0.1:1",), prefix=etcd_config.prefix, timeout_s=0.2)
    with connected(place, unreachable) as worker:
        assert worker.dead is None


async def test_a_task_whose_connection_is_lost_for_good_ends(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """Rather than go on with what it could never mark. Its attempt cleans up."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["1"]}, jobs=3)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "holds"))
        worker.close()
        with pytest.raises(SidecarUnavailable):
            await running
    records = await job_records(client, arg)
    assert list(records) == ["0"]
    assert files(tmp_path) == [f"{records['0'].attempt}.out"]


async def test_a_place_that_others_may_write_to_is_refused(etcd_config: EtcdConfig, place: Place) -> None:
    place.folder.chmod(0o755)
    with pytest.raises(Exception, match="not a folder of this user alone"):
        SidecarClient(place, etcd_config.to_env())


async def test_a_sidecar_that_cannot_start_is_reported(etcd_config: EtcdConfig, place: Place) -> None:
    broken = {**etcd_config.to_env(), "DISTOP_ETCD": "nonsense"}
    with pytest.raises(SidecarUnavailable, match="no sidecar answers"):
        SidecarClient(place, broken)


async def test_scratch_of_operations_that_are_over_is_removed(
    client: LossyClient, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    """O14"""
    running, over = await start_operation(client), await start_operation(client)
    kept, gone = place.scratch_of(running.id), place.scratch_of(over.id)
    (gone / "part").write_text("x")
    stranger = place.scratch / "not-ours"
    stranger.mkdir()
    await set_state(client, over, ABORTING)
    async with sidecar_process(etcd_config, place, tmp_path):
        await eventually(lambda: not gone.exists())
    assert kept.exists()
    assert stranger.exists()


def worker_process(etcd: EtcdConfig, place: Place, folder: Path, taken: Taken) -> Child:
    """A worker as a process of its own, which runs all jobs."""
    arg = folder / "arg.json"
    arg.write_bytes(taken.arg_value)
    given = [str(place.folder), str(arg), str(taken.run.token)]
    return Child(etcd, folder, "-m", "support.worker_main", *given)


async def test_all_jobs_of_a_worker_process_are_marked(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: Place, tmp_path: Path
) -> None:
    arg = await start_operation(client, jobs=50)
    taken = await take(client, arg, session)
    with worker_process(etcd_config, place, tmp_path, taken) as worker:
        assert await worker.exit_code(20.0) == 0
    await all_done(client, arg)
