"""The sidecar as a process, and tasks that reach etcd through it."""

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

from distop.executor.host import scratch_sweep
from distop.executor.host.scratch import Scratch
from distop.executor.host.sidecar_folder import take_lock
from distop.executor.ledger.oversight import Oversight
from distop.executor.sidecar import client as sidecar_client
from distop.executor.sidecar import server, wire
from distop.executor.sidecar.client import SidecarClient, SidecarUnavailable
from distop.executor.sidecar.server import HIGH_WATER, Sidecar, SidecarConfig
from distop.executor.task.task import TaskSummary
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import Mark, read_tries, success_record
from distop.metastore.operations.runs import Run
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import ABORTING
from distop.metastore.records.record import decode
from support.defects import fail_once
from support.etcd.counting import Counting
from support.etcd.etcds import enable_users
from support.etcd.lossy import LossyClient
from support.etcd.proxy import Proxy
from support.services.executing import (
    Child,
    all_done,
    place_in,
    set_state,
    short_folder,
    sidecar_pid,
    start_operation,
    take,
)
from support.services.leases import LEASE_S
from support.services.sidecars import Host, connected, program, task
from support.services.sidecars import host as host
from support.services.sidecars import session as session
from support.services.sidecars import sidecar_folder as sidecar_folder
from support.types.work_types import files
from support.waiting import eventually


async def test_marks_jobs_of_several_connections(host: Host) -> None:
    takens = [await host.take(jobs=200, table=f"t{n}") for n in range(3)]
    with host.connected() as one, host.connected() as other:
        summaries = await asyncio.gather(task(one, takens[0]), task(other, takens[1]), task(one, takens[2]))
    assert [summary.won for summary in summaries] == [200, 200, 200]
    for taken in takens:
        assert len(await host.records(taken)) == 200


async def test_the_first_mark_wins_and_the_other_attempt_cleans_up(host: Host) -> None:
    """O11, P1: as with Spark's speculation."""
    taken = await host.take("traced", {"folder": str(host.folder), "hold": ["0"]}, jobs=1)
    with host.connected() as one, host.connected() as other:
        both = asyncio.gather(task(one, taken, "a"), task(other, taken, "b"))
        await eventually(lambda: len(host.traces("holds")) == 2)
        host.release()
        summaries = await both
    records = await host.records(taken)
    assert sorted(summary.won for summary in summaries) == [0, 1]
    assert sum(summary.lost for summary in summaries) == 1
    assert files(host.folder) == [f"{records['0'].attempt}.out"]


@pytest.mark.parametrize("characters", [1, 3 << 20])
async def test_an_error_that_is_no_text_or_longer_than_a_frame_counts(
    host: Host, characters: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "distop")  # pytest's processes cannot send each other such a name
    argument = {"folder": str(host.folder), "fail": {"0": 2}, "said": characters}
    taken = await host.take("traced", argument, max_job_attempts=2, job_backoff_s=0.01)
    with host.connected() as worker:
        assert await task(worker, taken) == TaskSummary(won=1, failed=1)
    keys = taken.run.keys
    tried = (await read_tries(host.client, keys, (await host.client.scan(keys.prefix)).kvs))["0"]
    assert tried.tries == 1
    for said, number in ((tried.error, 1), ((await host.records(taken))["0"].error, 2)):
        assert said.startswith(rf"JOB_CRASHED: OSError: try {number}\udcff")


async def test_one_sidecar_starts_however_many_tasks_come_first(host: Host) -> None:
    with ThreadPoolExecutor(6) as pool:
        clients = list(pool.map(lambda _: SidecarClient(host.sidecar_folder, host.etcd.to_env()), range(6)))
    pid = sidecar_pid(host.sidecar_folder)
    assert pid
    for client in clients:
        client.close()
    # It answers before it has said that it started.
    started = await eventually(lambda: host.sidecar_folder.log.read_text().count("sidecar_started"))
    assert started == 1
    assert host.sidecar_folder.folder.stat().st_mode & 0o077 == 0


async def test_a_sidecar_that_tasks_started_ends_when_nobody_is_connected(host: Host) -> None:
    async with host.sidecar(idle_exit_s=1.0) as sidecar:
        with host.connected():
            assert host.sidecar_folder.socket.exists()
        assert await sidecar.exit_code() == 0
    assert not host.sidecar_folder.socket.exists()
    assert not host.sidecar_folder.pid_file.exists()


async def sidecars(client: LossyClient) -> list[MemberRecord]:
    listed = await client.scan(client.keyspace.executors)
    return [decode(kv.value, MemberRecord, kv.key) for kv in listed.kvs]


async def test_a_sidecar_is_a_member_and_its_successor_is_another_one(host: Host) -> None:
    """O13: the key of the dead one goes with its lease, that of one that was ended at once."""

    async def only(pid: int) -> MemberRecord | None:
        found = await sidecars(host.client)
        return found[0] if [one.pid for one in found] == [pid] else None

    async with host.sidecar() as sidecar:
        first = await eventually(lambda: only(sidecar.pid))
        sidecar.kill()
    async with host.sidecar() as sidecar:
        second = await eventually(lambda: only(sidecar.pid))
        sidecar.terminate()
        assert await sidecar.exit_code() == 0
        assert await sidecars(host.client) == []
    assert (first.role, first.host) == (second.role, second.host) == ("sidecar", socket.gethostname())
    assert first.id != second.id
    assert first.id.startswith("sidecar-")


async def test_a_sidecar_that_leaves_claims_behind_is_no_member_any_more(host: Host) -> None:
    """O13: although its lease lives until its successor has taken them."""
    argument = {"folder": str(host.folder), "steps": 2, "hold_at": 1}
    taken = await host.take("owned", argument, exclusive=True)
    async with host.sidecar(ttl_s=20) as sidecar:
        with host.worker(taken) as worker:
            await eventually(lambda: host.traces("holds"))
            worker.stop()
            sidecar.terminate()
            await sidecar.exit_code()
            assert await sidecars(host.client) == []
            assert (await host.client.get(taken.run.keys.claim("0"))).exists


async def test_defects_end_neither_the_lease_of_a_sidecar_nor_its_sweeps(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C11, O13, O14: it becomes a member all the same, another one when its lease has ended, and sweeps."""
    fail_once(monkeypatch, server, "incarnation", RuntimeError("no member"))
    fail_once(monkeypatch, scratch_sweep, "sweep_scratch", RuntimeError("no sweep"))
    gone = await start_operation(host.client)
    await host.client.delete(host.client.keyspace.operation(gone.id).state)
    left = Scratch(host.sidecar_folder).private(gone.id, "0", "1-a-1")
    stop, sidecar = asyncio.Event(), Sidecar(SidecarConfig(etcd=host.etcd, folder=host.sidecar_folder.folder))
    serving = asyncio.create_task(sidecar.serve(stop))
    [first] = await eventually(lambda: sidecars(host.client))
    await eventually(lambda: not left.exists())
    [kv] = (await host.client.scan(host.client.keyspace.executors)).kvs
    await host.client.lease_revoke(kv.lease)
    [second] = await eventually(
        lambda: sidecars(host.client), holds=lambda found: [one.id for one in found] not in ([], [first.id])
    )
    assert second.host == first.host
    stop.set()
    await serving
    assert {"no member", "no sweep"} <= {str(one.exc_info[1]) for one in caplog.records if one.exc_info}


async def test_tasks_go_on_when_their_sidecar_is_killed(host: Host) -> None:
    """Marks without an answer are sent again to the next sidecar, which the task starts."""
    taken = await host.take("traced", {"folder": str(host.folder), "hold": ["2"]}, jobs=300)
    async with host.sidecar() as first:
        with host.connected() as worker:
            running = task(worker, taken)
            await eventually(lambda: host.traces("holds"))
            first.stop()  # from now on marks are sent and not answered
            host.release()
            await eventually(lambda: len(host.traces("did")) > 100)
            first.kill()
            summary = await asyncio.wait_for(running, 60)
            assert sidecar_pid(host.sidecar_folder) not in (0, first.pid)
    assert summary == TaskSummary(won=300)
    assert len(files(host.folder)) == 300
    assert len(await host.records(taken)) == 300


def service(host: Host) -> Child:
    """``distop sidecar``, as a service manager starts it."""
    given = ["--folder", str(host.sidecar_folder.folder), "--lease-ttl", str(LEASE_S)]
    return Child(host.etcd, host.folder, "-m", "distop.cli.main", "sidecar", *given)


async def test_the_service_takes_over_from_a_sidecar_that_a_task_has_started(host: Host) -> None:
    """O13: as after the service was stopped while tasks ran. A task goes on through it."""
    taken = await host.take("traced", {"folder": str(host.folder), "hold": ["2"]}, jobs=30)
    with host.connected() as worker:
        running = task(worker, taken)
        await eventually(lambda: host.traces("holds"))
        started = sidecar_pid(host.sidecar_folder)
        with service(host) as sidecar:
            await eventually(lambda: sidecar_pid(host.sidecar_folder) == sidecar.pid != started)
            host.release()
            assert await asyncio.wait_for(running, 60) == TaskSummary(won=30)
            assert sidecar_pid(host.sidecar_folder) == sidecar.pid
            with service(host) as another:
                assert await another.exit_code() == 0
            sidecar.terminate()
            assert await sidecar.exit_code() == 0
    assert len(await host.records(taken)) == 30


async def test_a_worker_whose_sidecar_ended_between_tasks_connects_for_the_next_one(host: Host) -> None:
    """It does not start another one before, and its next tasks share a connection."""
    takens = [await host.take(jobs=3) for _ in range(3)]
    async with host.sidecar() as first:
        with host.connected() as worker:
            assert await task(worker, takens[0]) == TaskSummary(won=3)
            assert readers()
            first.terminate()
            await first.exit_code()
            await eventually(lambda: not readers())
            assert not host.sidecar_folder.socket.exists()
            rest = await asyncio.gather(*(task(worker, taken) for taken in takens[1:]))
            assert rest == [TaskSummary(won=3)] * 2
            assert len(readers()) == 1
    for taken in takens:
        assert len(await host.records(taken)) == 3


def readers() -> list[threading.Thread]:
    """The threads of this process that read from sidecars."""
    return [thread for thread in threading.enumerate() if thread.name == "distop-sidecar"]


async def test_a_task_starts_no_sidecar_while_the_service_is_about_to_serve(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_client, "START_TIMEOUT_S", 0.5)
    lock = take_lock(host.sidecar_folder.service_lock)
    assert lock is not None
    with pytest.raises(SidecarUnavailable):
        SidecarClient(host.sidecar_folder, host.etcd.to_env())
    assert not host.sidecar_folder.log.exists()
    os.close(lock)
    monkeypatch.undo()
    SidecarClient(host.sidecar_folder, host.etcd.to_env()).close()


async def test_a_sealed_operation_reaches_its_tasks_at_once(host: Host) -> None:
    """O9, O15: by push."""
    taken = await host.take("traced", {"folder": str(host.folder), "hold": ["0"]}, jobs=3)
    with host.connected() as worker:
        running = task(worker, taken)
        await eventually(lambda: host.traces("holds"))
        await set_state(host.client, taken.arg, ABORTING)
        summary = await asyncio.wait_for(running, 60)
    assert summary == TaskSummary(gone=3)
    assert files(host.folder) == []


async def test_a_runner_that_is_gone_cancels_its_tasks(host: Host) -> None:
    """O9: ownership moves."""
    arg = await start_operation(host.client, "traced", {"folder": str(host.folder), "hold": ["0"]}, jobs=1)
    async with LeaseSession(host.client, 10) as runner:
        taken = await take(host.client, arg, runner)
        with host.connected() as worker:
            running = task(worker, taken)
            await eventually(lambda: host.traces("holds"))
            await runner.close()
            assert await asyncio.wait_for(running, 60) == TaskSummary(gone=1)


async def test_a_flood_is_not_read_faster_than_etcd_takes_it(host: Host) -> None:
    """A connection that sends without waiting for answers fills the socket, not the sidecar."""
    count = 20_000
    taken = await host.take(jobs=count)
    async with Proxy(host.etcd.endpoints[0]) as proxy:
        through = replace(host.etcd, endpoints=(proxy.endpoint,), timeout_s=60.0)
        config = SidecarConfig(etcd=through, folder=host.sidecar_folder.folder)
        stop, sidecar = asyncio.Event(), Sidecar(config)
        serving = asyncio.create_task(sidecar.serve(stop))
        await eventually(host.sidecar_folder.socket.exists)
        await eventually(lambda: proxy.connections)
        proxy.hold_requests()
        reader, writer = await asyncio.open_unix_connection(str(host.sidecar_folder.socket))
        writer.write(wire.frame(wire.Attach(1, str(taken.arg.id), taken.run.token, False)))
        for start in range(0, count, 100):
            numbers = range(start, start + 100)
            marks = [(n, Mark(str(n), "a", success_record("a", {}, 1.0))) for n in numbers]
            writer.write(wire.frame(wire.MarkGroup(1, marks)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 0.5)
        assert await eventually(lambda: sidecar.ledger.batcher.waiting) < 3 * HIGH_WATER
        proxy.flow()
        frames, answered = wire.Frames(wire.FromSidecar), 0
        while answered < count:
            for message in frames.feed(await asyncio.wait_for(reader.read(1 << 16), 60)):
                answered += len(message.answers) if isinstance(message, wire.Verdicts) else 0
        writer.close()
        stop.set()
        await serving
    assert len(await host.records(taken)) == count


async def test_without_etcd_a_sidecar_serves_and_its_tasks_wait(host: Host) -> None:
    unreachable = EtcdConfig(endpoints=("127.0.0.1:1",), prefix=host.etcd.prefix, timeout_s=0.2)
    with connected(host.sidecar_folder, unreachable):
        assert host.sidecar_folder.socket.exists()


async def test_a_task_whose_connection_is_lost_for_good_ends(host: Host) -> None:
    """Rather than go on with what it could never mark. Its attempt cleans up."""
    taken = await host.take("traced", {"folder": str(host.folder), "hold": ["1"]}, jobs=3)
    with host.connected() as worker:
        running = task(worker, taken)
        await eventually(lambda: host.traces("holds"))
        await eventually(lambda: host.records(taken))
        worker.close()
        with pytest.raises(SidecarUnavailable):
            await running
    records = await host.records(taken)
    assert list(records) == ["0"]
    assert files(host.folder) == [f"{records['0'].attempt}.out"]


async def test_a_sidecar_that_cannot_start_is_reported(host: Host) -> None:
    """Nor is one started in a folder that others may write to."""
    broken = {**host.etcd.to_env(), "DISTOP_ETCD": "nonsense"}
    with pytest.raises(SidecarUnavailable, match="no sidecar answers"):
        SidecarClient(host.sidecar_folder, broken)
    host.sidecar_folder.folder.chmod(0o755)
    with pytest.raises(Exception, match="this user alone"):
        SidecarClient(host.sidecar_folder, host.etcd.to_env())


async def test_a_sidecar_that_accepts_no_connection_is_reported(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was halted, and its queue is full of those that have given up."""
    monkeypatch.setattr(sidecar_client, "SEND_TIMEOUT_S", 1)
    monkeypatch.setattr(sidecar_client, "START_TIMEOUT_S", 0.5)
    lock = take_lock(host.sidecar_folder.serving_lock)
    assert lock is not None
    with os.fdopen(lock), socket.socket(socket.AF_UNIX) as halted:
        halted.bind(str(host.sidecar_folder.socket))
        halted.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.connect(str(host.sidecar_folder.socket))
            dialled = asyncio.to_thread(SidecarClient, host.sidecar_folder, host.etcd.to_env())
            with pytest.raises(SidecarUnavailable, match="no sidecar answers"):
                await asyncio.wait_for(dialled, 60)


async def test_a_sidecar_does_not_need_the_folder_that_its_task_has_python_in(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on YARN: a container has a link to the environment, and goes with its links."""
    link = host.folder / "env"
    link.symlink_to(sys.prefix)
    monkeypatch.setattr(sys, "executable", str(link / "bin" / "python"))
    with host.connected():
        assert not program(sidecar_pid(host.sidecar_folder)).startswith(str(host.folder))


async def test_all_jobs_of_a_worker_process_are_marked(host: Host) -> None:
    taken = await host.take(jobs=50)
    with host.worker(taken) as worker:
        assert await worker.exit_code() == 0
    await all_done(host.client, taken.arg)


async def test_a_sidecar_that_a_task_starts_reads_its_password_itself(prefix: str, tmp_path: Path) -> None:
    """U5: the task knows the name of the file at most."""
    (tmp_path / "password").write_text("secret\n")
    with EtcdProcess(tmp_path / "etcd") as etcd, short_folder() as folder:
        enable_users(etcd, user="worker", password="secret", prefix=f"{prefix}.")
        known = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="worker").to_env()
        config = EtcdConfig.from_env({**known, "DISTOP_ETCD_PASSWORD_FILE": str(tmp_path / "password")})
        client, sidecar_folder = LossyClient(config), place_in(folder, config)
        worker = SidecarClient(sidecar_folder, config.to_public_env())
        await eventually(lambda: sidecars(client))
        worker.close()
        os.kill(sidecar_pid(sidecar_folder), signal.SIGKILL)
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
