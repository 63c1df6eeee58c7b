"""An operation is followed once for all who look at it, by whatever knows of it."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing

import pytest
import pytest_asyncio

from distop.coordinator.state.caches import LocalLeaders
from distop.coordinator.views.following import UPDATES_PER_S, Followed, Following, updates
from distop.coordinator.views.operations import read_live, read_operation
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.operation import JobCountsRecord, PauseRecord
from distop.metastore.records.record import decode, encode
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark, mark_all
from support.services.coordinators import Service, config_of, running, serving
from support.waiting import eventually

MANY = 1500
"""Jobs of an operation that only its leader counts."""


@pytest_asyncio.fixture
async def following(client: EtcdClient) -> AsyncIterator[Following]:
    """At a coordinator that leads nothing."""
    standing = Following(client)
    yield standing
    await standing.close()


def numbers(*span: int) -> Iterable[str]:
    return map(str, range(*span))


def decoded(update: bytes | pb.OperationUpdate) -> pb.OperationUpdate:
    return pb.OperationUpdate.FromString(update) if isinstance(update, bytes) else update


async def caught_up(followed: Followed, succeeded: int) -> None:
    """Until an update would say that so many jobs have succeeded."""

    def says() -> bool:
        update = followed.update()
        return update is not None and decoded(update[0]).operation.jobs.succeeded == succeeded

    await eventually(says)


async def test_slow_readers_skip_states(service: Service, client: EtcdClient, following: Following) -> None:
    """G2: it skips the updates in between; its revision is that of the state."""
    operation = await service.start("t", argument={"partitions": 31})
    with following.watching(operation, whole=True) as followed:
        told = updates(client, LocalLeaders(), followed, after=0, heartbeat_s=0.3, stopping=asyncio.Event())
        async with aclosing(told):
            assert decoded(await anext(told)).operation.jobs.succeeded == 0
            for start in (0, 10, 20):
                await mark_all(client, operation, numbers(start, start + 10))
                await caught_up(followed, start + 10)
            newest = decoded(await anext(told))
            assert newest.operation.jobs.succeeded == 30
            assert newest.revision == newest.operation.revision
            again = decoded(await anext(told))
            assert (again.operation.jobs.succeeded, len(again.jobs)) == (30, 0), "the same, as a sign of life"
            await mark(client, operation, "30")
            rest = [decoded(update) async for update in told]
    assert rest[-1].operation.state == pb.SUCCEEDED
    assert all(one.operation.jobs.succeeded == 31 for one in rest)


async def test_early_and_late_watchers_of_an_operation_see_the_same(
    service: Service, client: EtcdClient, following: Following
) -> None:
    """G2: a later watcher gets nothing again that its first update has shown."""
    operation = await service.start("t", argument={"partitions": 3})
    stopping = asyncio.Event()
    with following.watching(operation, whole=True) as followed:
        assert len(following) == 1
        for done in (0, 1):
            told = updates(client, LocalLeaders(), followed, after=0, heartbeat_s=60, stopping=stopping)
            async with aclosing(told):
                assert decoded(await anext(told)).operation.jobs.succeeded == done
                await mark(client, operation, str(done))
                assert decoded(await anext(told)).operation.jobs.succeeded == done + 1
    assert len(following) == 0


async def test_an_operation_that_goes_while_its_pause_is_read_is_no_defect(
    service: Service, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: the sign of life of a watch comes at the very moment of its end."""
    operation = await service.start("t")
    with following.watching(operation, whole=True) as followed:
        await followed.listed.wait()

        async def goes(*_: object) -> tuple[None, int]:
            followed._own = None
            return None, 7

        monkeypatch.setattr("distop.coordinator.views.following.present_pause", goes)
        assert await followed.heartbeat() is None


async def test_what_a_leader_knows_is_used_while_it_leads(
    etcd_config: EtcdConfig, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G2: once the leader has moved, etcd is watched; watchers do not notice."""
    monkeypatch.setattr("distop.coordinator.leading.leadership.OWN_KEYS_S", 0.05)
    async with running(config_of(etcd_config)) as coordinator:
        following, service = coordinator._following, Service(coordinator.address)
        assert following is not None
        async with service:
            await service.create_table("t")
            operation = await service.start("t", argument={"partitions": 4})
            keys = client.keyspace.operation(operation)
            leads = following._leads
            await eventually(lambda: leads.get(keys.root) is not None)
            with following.watching(operation, whole=True) as followed:
                await mark(client, operation, "0")
                await caught_up(followed, 1)
                assert followed._led is leads.get(keys.root)
                before = leads.get(keys.root)
                await client.delete(client.keyspace.table("t").coordinator)
                await eventually(lambda: leads.get(keys.root) is not before)
                await mark(client, operation, "1")
                await caught_up(followed, 2)
                await mark(client, operation, "2")
                await caught_up(followed, 3)
                await mark(client, operation, "3")
                await eventually(lambda: followed.last is not None)
                assert followed.last is not None
                assert followed.last.operation.state == pb.SUCCEEDED


async def test_watching_changes_nothing_of_the_leaders_state(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """G2: neither by what it alone sees, nor by how far it has seen."""
    async with running(config_of(etcd_config)) as coordinator, Service(coordinator.address) as service:
        await service.create_table("t")
        operation = await service.start("t", argument={"partitions": 2})
        keys, following = client.keyspace.operation(operation), coordinator._following
        assert following is not None
        await client.put(keys.runner, b'{"version":1,"member":"e1"}')
        await eventually(lambda: following._leads.get(keys.root) is not None)
        led = following._leads.get(keys.root)
        assert led is not None
        with following.watching(operation, whole=True) as followed:
            await eventually(lambda: followed.tracked is not None and followed.tracked.runner == "e1")
            before = led.revision
            await client.delete(keys.runner)
            await client.put(keys.table_pause, encode(PauseRecord(by="ann")))
            await eventually(lambda: followed.tracked is not None and followed.tracked.runner == "")
            told = await followed.heartbeat()
            assert told is not None
            assert decoded(told[0]).operation.pause.by == "ann"
            assert told[1] > before
            assert (led.runner, led.table_pause, led.revision) == ("e1", None, before)
            await mark(client, operation, "0")
            await caught_up(followed, 1)


@pytest.mark.parametrize(("watchers", "least"), [(1, 0.05), (50, 0.05), (500, 500 / UPDATES_PER_S)])
async def test_updates_come_the_less_often_the_more_are_told(
    following: Following, watchers: int, least: float
) -> None:
    """G2: what all watchers of a coordinator cost is bounded."""
    following._watchers = watchers
    assert following.spacing(False) == least
    assert following.spacing(True) == watchers / UPDATES_PER_S


async def test_very_many_jobs_are_counted_by_their_leader_alone(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """G3: the others say what it has written down last, and read no result; where it is, it is asked."""
    async with serving(etcd_config) as first, serving(etcd_config) as second:
        await first.create_table("t")
        operation = await first.start("t", argument={"partitions": MANY})
        keys = client.keyspace.operation(operation)
        await mark_all(client, operation, numbers(MANY - 300))

        async def all_say() -> bool:
            said = [(await one.get(operation)).jobs.succeeded for one in (first, second)]
            return said == [MANY - 300] * 2

        await eventually(all_say)
        counts = decode((await client.get(keys.job_counts)).value, JobCountsRecord)
        assert counts.succeeded == MANY - 300
        listed = await second.operations.ListOperations(pb.ListOperationsRequest(table="t"), timeout=60)
        assert [one.jobs.succeeded for one in listed.operations] == [MANY - 300]
        await mark_all(client, operation, numbers(MANY - 300, MANY))
        assert (await first.ended(operation)).jobs.succeeded == MANY
        await eventually(lambda: client.scan(keys.prefix), holds=lambda found: not found.kvs)


async def test_counts_are_of_the_run_that_counts(service: Service, client: EtcdClient) -> None:
    """G3: what was said of results that are not there any more is not believed."""
    operation = await service.start("t", argument={"partitions": MANY})
    keys = client.keyspace.operation(operation)
    for run, believed in ((0, 7), (3, 0)):
        await client.put(keys.job_counts, encode(JobCountsRecord(succeeded=7, failed=0, run=run)))
        seen = await read_live(client, operation)
        assert seen is not None
        assert seen.jobs.succeeded == believed
    assert (await read_operation(client, operation)).state == pb.RUNNING


async def test_few_jobs_are_counted_by_whoever_is_asked(service: Service, client: EtcdClient) -> None:
    """What was written before the call is in the answer; nothing is written for it."""
    operation = await service.start("t", argument={"partitions": 20})
    await mark_all(client, operation, numbers(15))
    assert (await service.get(operation)).jobs.succeeded == 15
    assert not (await client.get(client.keyspace.operation(operation).job_counts)).exists


async def test_a_new_leader_counts_all_before_it_speaks(etcd_config: EtcdConfig, client: EtcdClient) -> None:
    """G3: the results are read in short ranges, at one revision."""
    async with serving(etcd_config) as service:
        await service.create_table("t")
        operation = await service.start("t", argument={"partitions": MANY})
        await mark_all(client, operation, numbers(MANY - 300))
    async with serving(etcd_config) as service:
        await eventually(lambda: service.get(operation), holds=lambda seen: seen.jobs.succeeded == MANY - 300)
        await mark_all(client, operation, numbers(MANY - 300, MANY))
        assert (await service.ended(operation)).jobs.succeeded == MANY


def test_a_listener_hears_of_its_operation_alone() -> None:
    """And of nothing once it has let go."""
    leads, heard = LocalLeaders(), Recorder()
    leads.listen(b"a", heard)
    leads.key_written(b"b", b"b.state", None)
    leads.key_written(b"a", b"a.state", None)
    leads.forget(b"a", heard)
    leads.key_written(b"a", b"a.cancel", None)
    assert heard.keys == [b"a.state"]


def test_a_defect_of_who_looks_on_is_not_the_leaders(caplog: pytest.LogCaptureFixture) -> None:
    """The one who tells goes on, and so does the next one who listens."""
    leads, heard = LocalLeaders(), Recorder()
    leads.listen(b"a", Recorder(broken=True))
    leads.listen(b"a", heard)
    leads.key_written(b"a", b"a.state", None)
    assert heard.keys == [b"a.state"]
    assert "listener_failed" in caplog.text


async def test_following_that_crashes_is_an_error_to_who_watches(
    client: EtcdClient, following: Following, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no end of the stream, which says that the operation is over."""
    operation = await service.start("t")
    monkeypatch.setattr(Followed, "_apply", lambda *_: 1 / 0)
    with following.watching(operation, whole=True) as followed:
        told = updates(client, LocalLeaders(), followed, after=0, heartbeat_s=60, stopping=asyncio.Event())
        async with aclosing(told):
            assert decoded(await anext(told)).operation.state == pb.RUNNING
            await mark(client, operation, "0")
            with pytest.raises(DistopError, match="ZeroDivisionError"):
                await anext(told)


class Recorder:
    """Records its events."""

    def __init__(self, *, broken: bool = False) -> None:
        self.keys: list[bytes] = []
        self.broken = broken

    def moved(self) -> None:
        """Never, here."""
        raise AssertionError

    def key_written(self, key: bytes, ended: object) -> None:
        """Note it."""
        if self.broken:
            raise RuntimeError("planted")
        self.keys.append(key)
