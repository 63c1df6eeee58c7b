"""Several executors: who takes what, and what it costs the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from distop.executor.runner.runner import Runner
from distop.executor.runner.waiting import _HELP_S, WaitingOperations
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Put
from distop.metastore.operations.runs import release_runner, wait_again
from distop.metastore.records.operation import ABORTING, OperationArg, PauseRecord
from distop.metastore.records.record import decode, encode
from support.etcd.lossy import LossyClient
from support.services.executing import (
    all_done,
    lease,
    remove_operation,
    runner,
    runner_of,
    set_state,
    start_operation,
    take,
)
from support.types.work_types import traces
from support.waiting import eventually


@asynccontextmanager
async def executors(
    config: EtcdConfig, count: int, **options: Any
) -> AsyncIterator[list[tuple[Runner, LossyClient]]]:
    """So many, each with a connection of its own; each knows of all."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            connected = LossyClient(config)
            stack.push_async_callback(connected.close)
            serving, _ = await stack.enter_async_context(runner(connected, **options))
            made.append((serving, connected))
        await eventually(lambda: all(one._waiting.shares.executors == count for one, _ in made))
        yield made


def takes(client: LossyClient, arg: OperationArg) -> int:
    """How often it was tried to take an operation."""
    key = client.keyspace.operation(arg.id).runner
    return sum(any(isinstance(op, Put) and op.key == key for op in txn.then) for txn in client.sent)


async def waiting(client: LossyClient) -> list[OperationArg]:
    found = []
    for kv in (await client.scan(client.keyspace.waiting)).kvs:
        arg = await client.get(client.keyspace.operation(client.keyspace.parse_waiting(kv.key)).arg)
        found.append(decode(arg.value, OperationArg))
    return found


async def test_only_one_of_many_executors_tries_to_take_an_operation(
    client: LossyClient, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: and the others read nothing of it."""
    monkeypatch.setattr("distop.executor.runner.waiting._HELP_S", 3600.0)
    async with executors(etcd_config, 4, resync_s=3600) as made:
        args = [await start_operation(client, table=f"t{number}") for number in range(24)]
        for arg in args:
            await all_done(client, arg)
        # The one that looks after it may hear of it twice: from the watch, and from a look at its start.
        tried = [sum(takes(connected, arg) > 0 for _, connected in made) for arg in args]
        assert tried == [1] * len(args)
        assert len({await runner_of(client, arg) for arg in args}) > 1
        assert await waiting(client) == []


async def test_executors_with_room_take_what_waits_at_one_that_has_none(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """G1"""
    held = {"folder": str(tmp_path), "hold": ["0"]}
    async with executors(etcd_config, 3, max_operations=1, resync_s=3600):
        busy = [await start_operation(client, "traced", held, table=f"held{number}") for number in range(2)]
        await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
        quick = [await start_operation(client, table=f"t{number}") for number in range(12)]
        for arg in quick:
            await all_done(client, arg)
        assert not {await runner_of(client, arg) for arg in quick} & {
            await runner_of(client, arg) for arg in busy
        }
        (tmp_path / "release").touch()
        for arg in busy:
            await all_done(client, arg)


async def test_an_executor_waits_before_it_takes_an_operation_again_that_was_refused(
    client: LossyClient, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a paused operation, when the executor has not heard of the pause yet."""
    looks: list[tuple[WaitingOperations, float]] = []
    look = WaitingOperations._look_at_others

    async def looked(waiting: WaitingOperations) -> bool:
        found = await look(waiting)
        if found:
            looks.append((waiting, asyncio.get_running_loop().time()))
        return found

    monkeypatch.setattr(WaitingOperations, "_look_at_others", looked)
    keys = client.keyspace.table("paused")
    async with executors(etcd_config, 2, resync_s=3600) as made:
        await client.put(keys.pause, encode(PauseRecord()))  # without its entry in the index
        arg = await start_operation(client, table=keys.name)
        await eventually(lambda: len(looks) > 6)
        assert any(takes(connected, arg) for _, connected in made)
    for one in {waiting for waiting, _ in looks}:
        at = [time for waiting, time in looks if waiting is one]
        # The first one finds out.
        assert all(after - before >= _HELP_S for before, after in pairwise(at[1:]))


async def test_executors_share_operations_anew_when_one_joins_or_leaves(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distop.executor.runner.waiting._HELP_S", 3600.0)
    async with runner(client, resync_s=3600) as (first, _):
        async with runner(client, resync_s=3600) as (second, _):
            await eventually(lambda: first._waiting.shares.executors == second._waiting.shares.executors == 2)
            args = [await start_operation(client, table=f"t{number}") for number in range(12)]
            for arg in args:
                await all_done(client, arg)
            assert {await runner_of(client, arg) for arg in args} == {first.member, second.member}
        args = [await start_operation(client, table=f"t{number}") for number in range(12)]
        for arg in args:
            await all_done(client, arg)
        assert {await runner_of(client, arg) for arg in args} == {first.member}


async def test_a_type_served_by_one_of_two_executors_waits_for_that_one(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("distop.executor.runner.waiting._HELP_S", 3600.0)
    async with runner(client, resync_s=3600), runner(client, resync_s=3600, serving=["noop"]) as (second, _):
        await eventually(lambda: second._waiting.shares.executors == 2)
        for number in range(8):
            await all_done(
                client, await start_operation(client, "traced", {"folder": str(tmp_path)}, table=f"t{number}")
            )


async def test_an_operation_waits_until_it_is_taken_and_again_when_it_is_let_go(client: LossyClient) -> None:
    arg = await start_operation(client)
    async with lease(client) as session:
        assert await waiting(client) == [arg]
        taken = await take(client, arg, session)
        assert await waiting(client) == []
        await release_runner(client, taken.run, again=True)
        assert await waiting(client) == [arg]
        taken = await take(client, arg, session)
        await release_runner(client, taken.run)
        assert await waiting(client) == []


async def test_an_operation_sealed_meanwhile_is_not_put_back_to_wait(client: LossyClient) -> None:
    arg = await start_operation(client)
    async with lease(client) as session:
        taken = await take(client, arg, session)
        await set_state(client, arg, ABORTING)
        await release_runner(client, taken.run, again=True)
    assert await waiting(client) == []


async def test_only_what_runs_and_nobody_has_is_let_wait_again(client: LossyClient) -> None:
    free, held, sealed, gone = [await start_operation(client, table=f"t{number}") for number in range(4)]
    async with lease(client) as session:
        for arg in (free, held, sealed, gone):
            await release_runner(client, (await take(client, arg, session)).run)
        await take(client, held, session)
        await set_state(client, sealed, ABORTING)
        await remove_operation(client, gone)
        keys = [client.keyspace.operation(arg.id) for arg in (free, held, sealed, gone)]
        await wait_again(client, keys)
        assert await waiting(client) == [free]


async def test_an_entry_without_an_operation_goes_when_somebody_tries_to_take_it(client: LossyClient) -> None:
    """As after ``etcdctl del --prefix``."""
    arg = await start_operation(client)
    keys = client.keyspace.operation(arg.id)
    await client.delete(keys.arg, keys.state + b"\0")
    async with runner(client):
        await eventually(lambda: client.scan(client.keyspace.waiting), holds=lambda found: not found.kvs)
