"""One etcd that is killed, or full, while operations publish rows."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import pytest

from distop.client.connection import Connection
from distop.client.handles import follow
from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading.driver import TableDriver
from distop.coordinator.starting.services import Term
from distop.coordinator.work.work import Work
from distop.errors import EtcdOutOfSpace, EtcdUnavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession, campaign
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING, HistoryRecord, OperationOptions
from distop.metastore.records.record import decode
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from support.etcd.clusters import etcd_to_kill
from support.etcd.etcds import etcdctl, fill
from support.etcd.jobs import mark
from support.etcd.starts import begin, make_table
from support.services.coordinators import config_of, raising, running, serving
from support.services.feeding import staged
from support.services.leases import LEASE_S
from support.services.sharing import services_of
from support.tables.nowhere import nowhere
from support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.slow("waits for work in between"))])
async def test_an_etcd_that_is_killed_under_load_costs_nothing(
    tmp_path: Path, prefix: str, times: int
) -> None:
    """O27: kill -9 while operations start, mark, seal and finish; each goes on where it was."""
    with EtcdProcess(tmp_path / "etcd", binary=etcd_to_kill()) as etcd:
        async with staged(EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix), tmp_path) as stage:
            for _ in range(times):
                etcd.kill()
                await asyncio.to_thread(etcd.start)
                await stage.feeding.go_on()
            await stage.whole_and_once()


@pytest.mark.slow("fills an etcd, and makes room in it")
async def test_an_etcd_that_was_full_is_used_again(tmp_path: Path, prefix: str) -> None:
    """O27: NOSPACE; callers get the error, nothing is lost, and work continues once there is space."""
    with EtcdProcess(tmp_path / "etcd", options=("--quota-backend-bytes=6000000",)) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)
        async with staged(config, tmp_path) as stage:
            filling = b"elsewhere"
            with pytest.raises(EtcdOutOfSpace):
                await fill(stage.whole.store, filling)
            with pytest.raises(EtcdOutOfSpace):
                await stage.whole.client.create_table("u", nowhere())
            found = await stage.whole.client.diagnose()
            assert "ETCD_ALARM" in {one.code for one in found.findings}, "what to do is told"
            await asyncio.to_thread(etcdctl, etcd, "del", filling.decode())
            await stage.whole.store.compact(await stage.whole.store.revision())
            for command in (("defrag",), ("alarm", "disarm")):
                await asyncio.to_thread(etcdctl, etcd, *command)
            await stage.feeding.go_on()
            await stage.whole_and_once()


async def test_a_watch_of_an_operation_ends_when_etcd_does(tmp_path: Path, prefix: str) -> None:
    """U4: the error does not claim that nothing has changed; that is unknown."""
    with EtcdProcess(tmp_path / "etcd") as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, timeout_s=1.0)
        async with serving(config) as service:
            client = EtcdClient(config)
            await make_table(client)
            operation = await begin(client, partition_count=1)
            request = pb.WatchOperationRequest(name=str(operation))
            request.heartbeat.FromMilliseconds(200)
            updates = service.operations.WatchOperation(request)
            await updates.read()
            etcd.suspend()

            async def silence() -> None:
                while True:
                    await updates.read()

            with pytest.raises(EtcdUnavailable), raising():
                await asyncio.wait_for(silence(), 60)
            etcd.resume()
            await client.close()


@pytest.mark.timed(0.4)
@pytest.mark.parametrize(
    "stop",
    [EtcdProcess.suspend, pytest.param(EtcdProcess.kill, marks=pytest.mark.slow("starts etcd twice"))],
)
async def test_a_client_that_follows_an_operation_is_told_that_etcd_is_away(
    tmp_path: Path, prefix: str, stop: Callable[[EtcdProcess], None]
) -> None:
    """U4: before it takes the coordinator for silent, however long that waits for etcd."""
    with EtcdProcess(tmp_path / "etcd") as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, timeout_s=10.0)
        async with running(config_of(config)) as coordinator:
            client = EtcdClient(config)
            await make_table(client)
            operation = await begin(client, partition_count=1)
            connection = Connection((coordinator.address,), timeout_s=0.1, connect_timeout_s=0.1)
            async with aclosing(follow(connection, str(operation), heartbeat_s=1.0)) as updates:
                await anext(updates)
                stop(etcd)
                with pytest.raises(EtcdUnavailable):
                    async for _ in updates:
                        pass
            etcd.resume() if etcd.running else etcd.start()
            await connection.close()
            await client.close()


@pytest.mark.slow("waits for calls that etcd does not answer")
@pytest.mark.parametrize("stop", [EtcdProcess.suspend, EtcdProcess.kill])
async def test_an_outage_of_etcd_is_in_the_log_once_however_many_wait_for_it(
    tmp_path: Path, prefix: str, stop: Callable[[EtcdProcess], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Its beginning and its end, in words of etcd; what each of them meets meanwhile is for debugging."""
    caplog.set_level(logging.DEBUG, "distop")

    def events(level: int) -> list[str]:
        return [line.getMessage() for line in caplog.records if line.levelno >= level]

    with EtcdProcess(tmp_path / "etcd") as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, timeout_s=1.0)
        async with running(config_of(config)):
            before = len(events(logging.INFO))
            stop(etcd)
            await eventually(lambda: events(logging.DEBUG).count("policy_not_read") > 2)
            etcd.resume() if etcd.running else etcd.start()
            await eventually(lambda: "etcd_answers_again" in events(logging.INFO))
            during = events(logging.INFO)[before:]
    assert [event for event in during if event.startswith("etcd_")] == [
        "etcd_does_not_answer",
        "etcd_answers_again",
    ]
    assert len(during) < 10
    assert "debug_error_string" not in caplog.text


@pytest.mark.slow("waits until a lease has been renewed three times")
async def test_a_clock_that_jumps_costs_no_lease_and_no_deadline(client: EtcdClient) -> None:
    """O27: the wall clock is read once, when an operation is first seen; then the monotonic clock."""
    await make_table(client)
    keys = client.keyspace.table("t")
    options = OperationOptions(deadline_s=600.0)
    operation = await begin(client, partition_count=3, started_at=time.time(), options=options)
    jumps = 0.0
    with ThreadPoolExecutor(1) as threads:
        async with LeaseSession(client, LEASE_S) as session:
            epoch = await campaign(client, keys, session, LeaderRecord(member="m"))
            assert epoch is not None
            services = services_of(client, Work(Registry(), threads), wall=lambda: time.time() + jumps)
            driver = TableDriver(services, Term(keys, epoch, session), Completion(services))
            driving = asyncio.create_task(driver.run())
            await eventually(lambda: list(driver.tracked()))
            for number, jump in enumerate((86_400.0, -86_400.0, 3600.0)):
                jumps = jump
                renewed = session.deadline
                await eventually(lambda renewed=renewed: session.deadline > renewed)
                assert session.alive
                assert (await client.get(keys.operation(operation).state)).value == RUNNING
                await mark(client, operation, str(number))
            history = await eventually(lambda: finished(client, operation))
            assert history.outcome == "success"
            assert (await client.get(keys.coordinator)).create_revision == epoch.revision
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)


async def finished(client: EtcdClient, operation: OperationId) -> HistoryRecord | None:
    kv = await client.get(client.keyspace.table(operation.table).history(operation))
    return decode(kv.value, HistoryRecord, kv.key) if kv.exists else None
