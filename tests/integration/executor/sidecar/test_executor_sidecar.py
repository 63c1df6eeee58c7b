"""The sidecar as a process, and tasks that reach etcd through it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from distop.executor.host.sidecar_folder import SidecarFolder, take_lock
from distop.executor.ledger.oversight import Oversight
from distop.executor.sidecar import dial, wire
from distop.executor.sidecar.client import SidecarClient
from distop.executor.sidecar.connection import HIGH_WATER
from distop.executor.sidecar.dial import SidecarUnavailable
from distop.executor.sidecar.server import Sidecar, SidecarConfig
from distop.executor.task.task import TaskSummary
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import Mark, success_record
from distop.metastore.operations.runs import Run
from distop.metastore.operations.tries import read_tries
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import ABORTING
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode
from support.etcd.counting import Counting
from support.etcd.etcds import enable_users
from support.etcd.lossy import LossyClient
from support.etcd.proxy import Proxy
from support.services.executing import (
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
from support.services.leases import LEASE_S
from support.services.sidecars import connected, program, task, worker_process
from support.services.sidecars import place as place
from support.services.sidecars import session as session
from support.types.work_types import files, traces
from support.waiting import eventually


async def test_marks_jobs_of_several_connections(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    operations = [await start_operation(client, jobs=200, table=f"t{n}") for n in range(3)]
    takens = [await take(client, arg, session) for arg in operations]
    with connected(place, etcd_config) as one, connected(place, etcd_config) as other:
        summaries = await asyncio.gather(task(one, takens[0]), task(other, takens[1]), task(one, takens[2]))
    assert [summary.won for summary in summaries] == [200, 200, 200]
    for arg in operations:
        assert len(await job_records(client, arg)) == 200


async def test_the_first_mark_wins_and_the_other_attempt_cleans_up(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
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


@pytest.mark.parametrize("characters", [1, 3 << 20])
async def test_an_error_that_is_no_text_or_longer_than_a_frame_counts(
    client: LossyClient,
    session: LeaseSession,
    etcd_config: EtcdConfig,
    place: SidecarFolder,
    tmp_path: Path,
    characters: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("CRITICAL", "distop")  # pytest's processes cannot send each other such a name
    argument = {"folder": str(tmp_path), "fail": {"0": 2}, "said": characters}
    arg = await start_operation(client, "traced", argument, max_job_attempts=2, job_backoff_s=0.01)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        assert await task(worker, taken) == TaskSummary(won=1, failed=1)
    keys = taken.run.keys
    tried = (await read_tries(client, keys, (await client.scan(keys.prefix)).kvs))["0"]
    assert tried.tries == 1
    for said, number in ((tried.error, 1), ((await job_records(client, arg))["0"].error, 2)):
        assert said.startswith(rf"JOB_CRASHED: OSError: try {number}\udcff")


async def test_one_sidecar_starts_however_many_tasks_come_first(
    etcd_config: EtcdConfig, place: SidecarFolder
) -> None:
    with ThreadPoolExecutor(6) as pool:
        clients = list(pool.map(lambda _: SidecarClient(place, etcd_config.to_env()), range(6)))
    pid = sidecar_pid(place)
    assert pid
    for client in clients:
        client.close()
    # It answers before it has said that it started.
    started = await eventually(lambda: place.log.read_text().count("sidecar_started"))
    assert started == 1
    assert place.folder.stat().st_mode & 0o077 == 0


async def test_a_sidecar_that_tasks_started_ends_when_nobody_is_connected(
    etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    async with sidecar_process(etcd_config, place, tmp_path, idle_exit_s=1.0) as sidecar:
        with connected(place, etcd_config):
            assert place.socket.exists()
        assert await sidecar.exit_code() == 0
    assert not place.socket.exists()
    assert not place.pid_file.exists()


async def sidecars(client: LossyClient) -> list[MemberRecord]:
    listed = await client.scan(client.keyspace.executors)
    return [decode(kv.value, MemberRecord, kv.key) for kv in listed.kvs]


async def test_a_sidecar_is_a_member_and_its_successor_is_another_one(
    client: LossyClient, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O13: the key of the dead one goes with its lease, that of one that was ended at once."""

    async def only(pid: int) -> MemberRecord | None:
        found = await sidecars(client)
        return found[0] if [one.pid for one in found] == [pid] else None

    async with sidecar_process(etcd_config, place, tmp_path) as sidecar:
        first = await eventually(lambda: only(sidecar.pid))
        sidecar.kill()
    async with sidecar_process(etcd_config, place, tmp_path) as sidecar:
        second = await eventually(lambda: only(sidecar.pid))
        sidecar.terminate()
        assert await sidecar.exit_code() == 0
        assert await sidecars(client) == []
    assert (first.role, first.host) == (second.role, second.host) == ("sidecar", socket.gethostname())
    assert first.id != second.id
    assert first.id.startswith("sidecar-")


async def test_a_sidecar_that_leaves_claims_behind_is_no_member_any_more(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O13: although its lease lives until its successor has taken them."""
    argument = {"folder": str(tmp_path), "steps": 2, "hold_at": 1}
    taken = await take(client, await start_operation(client, "owned", argument, exclusive=True), session)
    async with sidecar_process(etcd_config, place, tmp_path, ttl_s=20) as sidecar:
        with worker_process(etcd_config, place, tmp_path, taken) as worker:
            await eventually(lambda: traces(tmp_path, "holds"))
            worker.stop()
            sidecar.terminate()
            await sidecar.exit_code()
            assert await sidecars(client) == []
            assert (await client.get(taken.run.keys.claim("0"))).exists


async def test_tasks_go_on_when_their_sidecar_is_killed(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """Marks without an answer are sent again to the next sidecar, which the task starts."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["2"]}, jobs=300)
    taken = await take(client, arg, session)
    async with sidecar_process(etcd_config, place, tmp_path) as first:
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            first.stop()  # from now on marks are sent and not answered
            (tmp_path / "release").touch()
            await eventually(lambda: len(traces(tmp_path, "did")) > 100)
            first.kill()
            summary = await asyncio.wait_for(running, 30)
            assert sidecar_pid(place) not in (0, first.pid)
    assert summary == TaskSummary(won=300)
    assert len(files(tmp_path)) == 300
    assert len(await job_records(client, arg)) == 300


def service(etcd: EtcdConfig, place: SidecarFolder, folder: Path) -> Child:
    """``distop sidecar``, as a service manager starts it."""
    given = ["--folder", str(place.folder), "--lease-ttl", str(LEASE_S)]
    return Child(etcd, folder, "-m", "distop.cli.main", "sidecar", *given)


async def test_the_service_takes_over_from_a_sidecar_that_a_task_has_started(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O13: as after the service was stopped while tasks ran. A task goes on through it."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["2"]}, jobs=30)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "holds"))
        started = sidecar_pid(place)
        with service(etcd_config, place, tmp_path) as sidecar:
            await eventually(lambda: sidecar_pid(place) == sidecar.pid != started)
            (tmp_path / "release").touch()
            assert await asyncio.wait_for(running, 30) == TaskSummary(won=30)
            assert sidecar_pid(place) == sidecar.pid
            with service(etcd_config, place, tmp_path) as another:
                assert await another.exit_code(20.0) == 0
            sidecar.terminate()
            assert await sidecar.exit_code(20.0) == 0
    assert len(await job_records(client, arg)) == 30


async def test_a_worker_whose_sidecar_ended_between_tasks_connects_for_the_next_one(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """It does not start another one before, and its next tasks share a connection."""
    takens = [await take(client, await start_operation(client, jobs=3), session) for _ in range(3)]
    async with sidecar_process(etcd_config, place, tmp_path) as first:
        with connected(place, etcd_config) as worker:
            assert await task(worker, takens[0]) == TaskSummary(won=3)
            assert readers()
            first.terminate()
            await first.exit_code()
            await eventually(lambda: not readers())
            assert not place.socket.exists()
            assert await asyncio.gather(task(worker, takens[1]), task(worker, takens[2])) == [
                TaskSummary(won=3),
                TaskSummary(won=3),
            ]
            assert len(readers()) == 1
    for taken in takens:
        assert len(await job_records(client, taken.arg)) == 3


def readers() -> list[threading.Thread]:
    """The threads of this process that read from sidecars."""
    return [thread for thread in threading.enumerate() if thread.name == "distop-sidecar"]


async def test_a_task_starts_no_sidecar_while_the_service_is_about_to_serve(
    etcd_config: EtcdConfig, place: SidecarFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "START_TIMEOUT_S", 0.5)
    lock = take_lock(place.service_lock)
    assert lock is not None
    with pytest.raises(SidecarUnavailable):
        SidecarClient(place, etcd_config.to_env())
    assert not place.log.exists()
    os.close(lock)
    monkeypatch.undo()
    SidecarClient(place, etcd_config.to_env()).close()


async def test_a_sealed_operation_reaches_its_tasks_at_once(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O9, O15: by push."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=3)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "holds"))
        await set_state(client, arg, ABORTING)
        summary = await asyncio.wait_for(running, 20)
    assert summary == TaskSummary(gone=3)
    assert files(tmp_path) == []


async def test_a_runner_that_is_gone_cancels_its_tasks(
    client: LossyClient, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O9: ownership moves."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)
    async with LeaseSession(client, 10) as runner:
        taken = await take(client, arg, runner)
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            await runner.close()
            assert await asyncio.wait_for(running, 20) == TaskSummary(gone=1)


async def test_a_flood_is_not_read_faster_than_etcd_takes_it(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder
) -> None:
    """A connection that sends without waiting for answers fills the socket, not the sidecar."""
    count = 20_000
    taken = await take(client, await start_operation(client, jobs=count), session)
    async with Proxy(etcd_config.endpoints[0]) as proxy:
        through = replace(etcd_config, endpoints=(proxy.endpoint,), timeout_s=60.0)
        stop, sidecar = asyncio.Event(), Sidecar(SidecarConfig(etcd=through, folder=place.folder))
        serving = asyncio.create_task(sidecar.serve(stop))
        await eventually(place.socket.exists)
        await eventually(lambda: proxy.connections)
        proxy.hold_requests()
        reader, writer = await asyncio.open_unix_connection(str(place.socket))
        writer.write(wire.frame(wire.Attach(1, str(taken.arg.id), taken.run.token, False)))
        for start in range(0, count, 100):
            numbers = range(start, start + 100)
            marks = [(n, Mark(str(n), "a", success_record("a", {}, 1.0))) for n in numbers]
            writer.write(wire.frame(wire.Marks(1, marks)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.5)
        assert await eventually(lambda: sidecar.ledger.batcher.waiting) < 3 * HIGH_WATER
        proxy.flow()
        frames, answered = wire.Frames(wire.FromSidecar), 0
        while answered < count:
            for message in frames.feed(await asyncio.wait_for(reader.read(1 << 16), 10)):
                answered += len(message.answers) if isinstance(message, wire.Verdicts) else 0
        writer.close()
        stop.set()
        await serving
    assert len(await job_records(client, taken.arg)) == count


async def test_without_etcd_a_sidecar_serves_and_its_tasks_wait(
    client: LossyClient, etcd_config: EtcdConfig, place: SidecarFolder
) -> None:
    unreachable = EtcdConfig(endpoints=("127.0.0.1:1",), prefix=etcd_config.prefix, timeout_s=0.2)
    with connected(place, unreachable):
        assert place.socket.exists()


async def test_a_task_whose_connection_is_lost_for_good_ends(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """Rather than go on with what it could never mark. Its attempt cleans up."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["1"]}, jobs=3)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "holds"))

        async def first_is_marked() -> bool:
            return "0" in await job_records(client, arg)

        await eventually(first_is_marked)
        worker.close()
        with pytest.raises(SidecarUnavailable):
            await running
    records = await job_records(client, arg)
    assert list(records) == ["0"]
    assert files(tmp_path) == [f"{records['0'].attempt}.out"]


async def test_a_place_that_others_may_write_to_is_refused(
    etcd_config: EtcdConfig, place: SidecarFolder
) -> None:
    place.folder.chmod(0o755)
    with pytest.raises(Exception, match="not a folder of this user alone"):
        SidecarClient(place, etcd_config.to_env())


async def test_a_sidecar_that_cannot_start_is_reported(etcd_config: EtcdConfig, place: SidecarFolder) -> None:
    broken = {**etcd_config.to_env(), "DISTOP_ETCD": "nonsense"}
    with pytest.raises(SidecarUnavailable, match="no sidecar answers"):
        SidecarClient(place, broken)


async def test_a_sidecar_that_accepts_no_connection_is_reported(
    etcd_config: EtcdConfig, place: SidecarFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was halted, and its queue is full of those that have given up."""
    monkeypatch.setattr(dial, "SEND_TIMEOUT_S", 1)
    monkeypatch.setattr(dial, "START_TIMEOUT_S", 0.5)
    lock = take_lock(place.serving_lock)
    assert lock is not None
    with os.fdopen(lock), socket.socket(socket.AF_UNIX) as halted:
        halted.bind(str(place.socket))
        halted.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(place.socket))
            dialled = asyncio.to_thread(SidecarClient, place, etcd_config.to_env())
            with pytest.raises(SidecarUnavailable, match="no sidecar answers"):
                await asyncio.wait_for(dialled, 20)


async def test_a_sidecar_does_not_need_the_folder_that_its_task_has_python_in(
    etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on YARN: a container has a link to the environment, and goes with its links."""
    link = tmp_path / "env"
    link.symlink_to(sys.prefix)
    monkeypatch.setattr(sys, "executable", str(link / "bin" / "python"))
    with connected(place, etcd_config):
        assert not program(sidecar_pid(place)).startswith(str(tmp_path))


async def test_all_jobs_of_a_worker_process_are_marked(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    arg = await start_operation(client, jobs=50)
    taken = await take(client, arg, session)
    with worker_process(etcd_config, place, tmp_path, taken) as worker:
        assert await worker.exit_code(20.0) == 0
    await all_done(client, arg)


async def test_a_sidecar_that_a_task_starts_reads_its_password_itself(prefix: str, tmp_path: Path) -> None:
    """U5: the task knows the name of the file at most."""
    (tmp_path / "password").write_text("secret\n")
    with EtcdProcess(tmp_path / "etcd") as etcd, short_folder() as folder:
        enable_users(etcd, user="worker", password="secret", prefix=f"{prefix}.")
        known = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="worker").to_env()
        config = EtcdConfig.from_env({**known, "DISTOP_ETCD_PASSWORD_FILE": str(tmp_path / "password")})
        client, place = LossyClient(config), place_in(folder, config)
        worker = SidecarClient(place, config.to_public_env())
        await eventually(lambda: sidecars(client))
        worker.close()
        os.kill(sidecar_pid(place), signal.SIGKILL)
        await client.close()


async def test_a_sidecar_whose_user_has_lost_its_rights_does_not_storm_etcd(
    prefix: str, tmp_path: Path
) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd:
        enable_users(etcd, user="worker", password="secret", prefix=f"{prefix}.")
        known = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="worker", password="secret")
        client, refused = EtcdClient(known), Counting(replace(known, prefix="another"))
        operation = OperationId("flights", "noop", 1)
        oversight = Oversight(refused)
        oversight.attach(Run(refused.keyspace.operation(operation), 1), Mock())
        await eventually(lambda: refused.requests)
        for _ in range(100):
            await client.revision()
        assert refused.requests < 20
        await oversight.close()
        await refused.close()
        await client.close()
