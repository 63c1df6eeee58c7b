"""Coordinators as processes: killed, paused past their lease, asked to stop."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.commit.contract import VARIABLE
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.watch import watch
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import COMMITTING, HistoryRecord
from distop.metastore.records.record import decode
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.etcd.starts import begin, make_table
from support.services.coordinators import CoordinatorProcess, Service, leader_of, members
from support.services.leases import LEASE_S, TTL_S
from support.types.probes import PROBES
from support.types.stuck import STEPS
from support.waiting import PATIENCE, eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills or halts a leader in each test, and waits for its lease"),
]


@dataclass
class Pair:
    """Two coordinators."""

    client: EtcdClient
    processes: list[CoordinatorProcess]

    async def leader_and_other(self, table: str = "t") -> tuple[CoordinatorProcess, CoordinatorProcess]:
        """The leader and the other member, once one leads."""
        member = await eventually(lambda: leader_of(self.client, table))
        pid = next(pid for pid, record in (await members(self.client)).items() if record.id == member)
        first, second = self.processes
        return (first, second) if first.pid == pid else (second, first)

    async def led_by(self, process: CoordinatorProcess, table: str = "t") -> bool:
        record = (await members(self.client)).get(process.pid)
        return record is not None and await leader_of(self.client, table) == record.id


@pytest_asyncio.fixture
async def pair(
    etcd_config: EtcdConfig,
    client: EtcdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Pair]:
    """The parameter is how long their leases live."""
    ttl_s = getattr(request, "param", TTL_S)
    monkeypatch.setenv(VARIABLE, STEPS)
    await make_table(client)
    types = (*PROBES, "support.types.stuck:Stuck")
    one, other = (CoordinatorProcess(etcd_config, tmp_path, operations=types, ttl_s=ttl_s) for _ in range(2))
    async with one, other:
        for process in (one, other):
            await process.member(client)
        yield Pair(client, [one, other])


async def ended(client: EtcdClient, operation: OperationId) -> bool:
    """Whether it is in the history, and its last key is gone."""
    keys = client.keyspace.table(operation.table)
    left = (await client.scan(keys.operation(operation).prefix)).kvs
    active = await client.get(client.keyspace.active_operation(operation))
    return (await client.get(keys.history(operation))).exists and not left and not active.exists


async def epoch_of(client: EtcdClient, table: str = "t") -> int:
    return (await client.get(client.keyspace.table(table).coordinator)).create_revision


@pytest.mark.timed(0.5)
async def test_a_killed_leader_is_replaced_and_its_operation_finished(pair: Pair) -> None:
    """O24, O26: by the other one, within the TTL and a bit, with a higher epoch."""
    operation = await begin(pair.client, partition_count=3)
    leader, other = await pair.leader_and_other()
    epoch = await epoch_of(pair.client)
    await mark(pair.client, operation, "0")
    leader.kill()
    killed = time.monotonic()
    await mark(pair.client, operation, "1")
    assert await eventually(lambda: pair.led_by(other))
    assert time.monotonic() - killed < TTL_S + 1.0 * PATIENCE
    assert await epoch_of(pair.client) > epoch
    await mark(pair.client, operation, "2")
    assert await eventually(lambda: ended(pair.client, operation))
    async with Service(other.address) as service:
        assert (await service.get(operation)).jobs.succeeded == 3


async def test_a_plan_that_hangs_does_not_keep_a_coordinator_from_ending(pair: Pair, tmp_path: Path) -> None:
    """U4: nor does a hook; both are ended."""
    process = pair.processes[0]
    async with Service(process.address) as service:
        argument = {"until": str(tmp_path / "never")}
        starting = asyncio.create_task(service.start("t", "slow", argument))
        log = tmp_path / "log"
        hooked = await begin(pair.client, kind="hooked", argument={"log": str(log), **argument})
        await eventually(log.exists)
        leader, _ = await pair.leader_and_other()
        for each in {process, leader}:
            each.signal(signal.SIGTERM)
            assert await each.exit_code() == 0
        with pytest.raises(DistopError):
            await starting
    assert not await ended(pair.client, hooked)


async def _who_hangs(folder: Path, besides: int = 0) -> int:
    """The process in which something hangs that has left word in this folder."""

    def found() -> int | None:
        pids = {int(path.name) for path in folder.iterdir() if path.name.isdecimal()}
        return next(iter(pids - {besides}), None)

    return await eventually(found)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_hanging_calls_end_with_their_coordinator(pair: Pair, tmp_path: Path) -> None:
    """G5, O24: killing it leaves nothing that could act on."""
    folder = tmp_path / "words"
    folder.mkdir()
    operation = await begin(
        pair.client, kind="stuck", argument={"where": "hook", "folder": str(folder)}, partition_count=1
    )
    await mark(pair.client, operation, "0")
    pid = await _who_hangs(folder)
    leader, _ = await pair.leader_and_other()
    assert pid != leader.pid
    leader.kill()
    await eventually(lambda: not _lives(pid))
    again = await _who_hangs(folder, besides=pid)
    async with Service(next(one for one in pair.processes if one is not leader).address) as service:
        await service.cancel(operation)
        assert (await service.ended(operation)).state == pb.CANCELLED
    await eventually(lambda: not _lives(again))


async def test_a_step_of_a_leader_that_was_halted_knows_that_it_may_not_act(
    pair: Pair, tmp_path: Path
) -> None:
    """O10, O24: in a process of its own, which was not halted, by the deadline of the lease alone."""
    folder = tmp_path / "words"
    folder.mkdir()
    argument = {"where": "checking step", "folder": str(folder)}
    operation = await begin(pair.client, kind="stuck", argument=argument, partition_count=1)
    await mark(pair.client, operation, "0")
    pid = await _who_hangs(folder)
    leader, _ = await pair.leader_and_other()
    leader.signal(signal.SIGSTOP)
    await eventually((folder / f"{pid}.lost").exists, TTL_S + 5.0)
    assert await _who_hangs(folder, besides=pid)
    leader.signal(signal.SIGCONT)


async def _written_by_the_woken(pair: Pair, woken: CoordinatorProcess, revision: int) -> list[bytes]:
    """What changes below the prefix from ``revision`` on, until the woken process is a member again."""
    prefix = pair.client.keyspace.prefix
    changed: list[bytes] = []
    async with aclosing(
        watch(pair.client, prefix, prefix_end(prefix), from_revision=revision + 1)
    ) as changes:
        async for batch in changes:
            changed.extend(event.kv.key for event in batch.events)
            if woken.pid in await members(pair.client):
                return changed
    raise AssertionError("unreachable: a watch does not end")


@pytest.mark.parametrize("pair", [LEASE_S], indirect=True, ids=["long lease"])  # the other one must keep its
async def test_a_leader_that_wakes_after_its_time_writes_nothing(pair: Pair, tmp_path: Path) -> None:
    """O10, O24: halted where it is to seal one operation and to finish another; the other one does both."""
    client, keys = pair.client, pair.client.keyspace.table("t")
    hook = {"log": str(tmp_path / "log"), "until": str(tmp_path / "go")}
    anyone: dict[str, Any] = {"compatible": lambda other: True}
    sealed = await begin(client, partition_count=1, **anyone)
    finished = await begin(client, kind="hooked", argument=hook, **anyone)
    leader, other = await pair.leader_and_other()
    await eventually((tmp_path / "log").exists)
    assert (await client.get(keys.operation(finished).state)).value == COMMITTING
    leader.signal(signal.SIGSTOP)
    await mark(client, sealed, "0")
    stale = await epoch_of(client)
    assert await eventually(lambda: pair.led_by(other))
    (tmp_path / "go").touch()
    for operation in (sealed, finished):
        await eventually(lambda operation=operation: ended(client, operation))
    # Work under way for the new leader, which the old one might lay its hands on as well.
    running = await begin(client, kind="per_object", object="o", partition_count=1)
    histories = [await client.get(keys.history(operation)) for operation in (sealed, finished)]
    epoch = await epoch_of(client)
    assert epoch > stale
    before = await client.scan(client.keyspace.prefix)

    leader.signal(signal.SIGCONT)
    woke = await _written_by_the_woken(pair, leader, before.revision)

    own = client.keyspace.coordinators, client.keyspace.places
    assert [key for key in woke if not key.startswith(own)] == []
    after = await client.scan(client.keyspace.prefix)
    new = {kv.key for kv in after.kvs} - {kv.key for kv in before.kvs}
    assert new == {client.keyspace.coordinator(await leader.member(client))}
    assert [kv for kv in after.kvs if kv.key not in new and not kv.key.startswith(own[1])] == [
        kv for kv in before.kvs if not kv.key.startswith(own[1])
    ]
    assert await epoch_of(client) == epoch
    assert [decode(history.value, HistoryRecord).outcome for history in histories] == ["success"] * 2
    calls = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert len({pid for _, pid, _ in calls}) == len(calls) == 2
    assert len({token for token, _, _ in calls}) == 1, "the hook was called twice, for the same thing"
    await mark(client, running, "0")
    assert await eventually(lambda: ended(client, running))
    assert [await client.get(keys.history(operation)) for operation in (sealed, finished)] == histories
