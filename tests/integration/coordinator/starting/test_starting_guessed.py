"""Starts on a table that its leader remembers: without a read, and never on what is not so any more."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from distop.coordinator.api import operations as api_operations
from distop.coordinator.state.turns import Turn
from distop.errors import IncompatibleOperation, RequestIdReused, TableNotFound, TablePaused
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import KeyValue, Txn
from distop.metastore.operations import starting
from distop.metastore.operations.starting import (
    StartRequest,
    TableState,
    digest_of,
    read_table_state,
    start,
    start_txn,
)
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.watermarks import Recent, decode_recent
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient
from support.etcd.starts import make_table
from support.services.coordinators import Service, raising, serving


class Reads(list[str]):
    """Tables that starts have read."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    noted, read = Reads(), read_table_state

    async def reading(*args: object) -> TableState:
        noted.append(str(args[1]))
        return await read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(api_operations, "read_table_state", reading)
    return noted


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders remember what they did themselves and hear of nothing else."""
    monkeypatch.setattr(Turn, "seen", lambda turn, kv: None)


async def one(service: Service, client: EtcdClient, **fields: object) -> OperationId:
    """An operation from its start to its end."""
    operation = await service.start("t", "noop", {"partitions": 1}, **fields)
    await mark(client, operation, "0")
    await service.ended(operation)
    return operation


async def test_a_table_led_here_is_not_read_again(service: Service, client: EtcdClient, reads: Reads) -> None:
    """O1, O2: while operations of one type follow each other."""
    for instance in range(1, 6):
        assert (await one(service, client)).instance == instance
    assert len(reads) < 5


async def test_starts_and_ends_of_one_table_lose_no_races_to_each_other(
    service: Service, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: each start sends one transaction, however many there are at once. Under load there would be more to
    do for each of them than without."""
    await one(service, client)
    sent = list[str]()

    def sending(keys: TableKeys, state: TableState, arg: OperationArg) -> Txn:
        sent.append(arg.object)
        return start_txn(keys, state, arg)

    monkeypatch.setattr(starting, "start_txn", sending)
    objects = [f"o{number}" for number in range(30)]
    await service.start("t", "per_object", {"partitions": 0}, object="first")  # so that its type is known
    sent.clear()
    starts = (service.start("t", "per_object", {"partitions": 0}, object=name) for name in objects)
    for operation in await asyncio.gather(*starts):
        await service.ended(operation)
    assert sorted(sent) == sorted(objects)


async def test_what_others_have_started_meanwhile_counts(
    service: Service, etcd_config: EtcdConfig, client: EtcdClient, deaf: None
) -> None:
    """O1, O2: a coordinator whose cached state is wrong reads it again."""
    async with serving(etcd_config) as other:
        instances = []
        for _ in range(4):
            instances += [(await one(each, client)).instance for each in (service, other)]
        assert instances == list(range(1, 9))
        for each in (service, other):
            await one(each, client)
            standing = await each.start("t", "friend", {"partitions": 1})
            with pytest.raises(IncompatibleOperation) as caught:
                await each.start("t", "noop", {"partitions": 1})
            assert caught.value.details["operation"] == str(standing)
            beside = await each.start("t", "friendly", {"partitions": 1})
            for operation in (standing, beside):
                await mark(client, operation, "0")
                assert (await each.ended(operation)).state == pb.SUCCEEDED


async def test_a_pause_holds_those_that_missed_it(service: Service, client: EtcdClient, deaf: None) -> None:
    """O21."""
    await one(service, client)
    await one(service, client)
    with raising():
        await service.tables.PauseTable(pb.PauseTableRequest(name="t", requested_by="jane"), timeout=10)
    with pytest.raises(TablePaused):
        await service.start("t", "noop", {"partitions": 1})


async def test_a_repeat_gets_the_first_answer(service: Service, client: EtcdClient, deaf: None) -> None:
    """O7: also when it is thought to be new."""
    first = await one(service, client, request_id="r")
    await one(service, client)
    assert await service.start("t", "noop", {"partitions": 1}, request_id="r") == first
    with pytest.raises(RequestIdReused):
        await service.start("t", "noop", {"partitions": 2}, request_id="r")


async def test_a_table_made_anew_is_another_table(service: Service, client: EtcdClient, deaf: None) -> None:
    await one(service, client)
    await one(service, client)
    with raising():
        await service.tables.DropTable(pb.DropTableRequest(name="t"), timeout=10)
    with pytest.raises(TableNotFound):
        await service.start("t", "noop", {"partitions": 1})
    await service.create_table("t")
    assert (await one(service, client)).instance >= 1


async def test_what_was_guessed_wrong_is_read_and_planned_again(client: LossyClient) -> None:
    """P16: no operation starts on old watermarks; a lost reply is settled all the same."""
    await make_table(client)
    keys = client.keyspace.table("t")
    planned: list[Recent] = []

    async def guess(number: int) -> OperationId:
        request = StartRequest(table="t", type="noop", request_id=f"r{number}", digest=digest_of(number))

        async def make_arg(now: TableState) -> OperationArg:
            planned.append(decode_recent(now.recent_watermarks.value))
            named: dict[str, Any] = {"request_id": request.request_id, "request_note": request.note(1.0)}
            return OperationArg(table="t", type="noop", instance=now.next_instance, uuid="u", **named)

        state = replace(await read_table_state(client, keys, request), guessed=True)
        if number == 1:
            await client.put(keys.watermarks, json.dumps({"s": {"p": "1"}}).encode())
        if number == 2:
            client.fail(Fault.LOST_REPLY)
        return (await start(client, keys, state, request, make_arg, compatible=lambda _: True)).operation

    assert (await guess(1)).instance == 1
    assert planned == [{}, {"s": {"p": "1"}}]
    await client.delete(keys.run_ops)
    assert (await guess(2)).instance == 2


async def test_nothing_is_guessed_of_a_table_that_has_changed(client: EtcdClient) -> None:
    await make_table(client)
    keys = client.keyspace.table("t")
    request = StartRequest(table="t", type="noop", request_id="r", digest="d")
    state = await read_table_state(client, keys, request)
    arg = OperationArg(table="t", type="noop", instance=4, uuid="u", partition_count=0)
    for changed in (keys.table, keys.head, keys.watermarks, keys.pause):
        turn = Turn(keys)
        turn.started(state, arg, 7)
        assert (guessed := turn.guess("noop", "r")) is not None
        assert guessed.guessed
        assert (guessed.run_ops_kv.value, guessed.run_ops_kv.mod_revision) == (b'{"noop":["4"]}', 7)
        turn.seen(KeyValue(keys.run_ops, b"{}", 6, 6))
        assert turn.guess("noop", "r") == guessed, "late news"
        assert (guessed.next_instance_kv.value, guessed.next_instance_kv.mod_revision) == (b"5", 7)
        turn.seen(KeyValue(keys.next_instance("noop"), b"6", 9, 1))
        assert (seen := turn.guess("noop", "r")) is not None
        assert seen.next_instance_kv.value == b"6"
        assert turn.guess("friend", "r") is None
        turn.seen(KeyValue(changed, b"{}", 10, 1))
        assert turn.guess("noop", "r") is None
