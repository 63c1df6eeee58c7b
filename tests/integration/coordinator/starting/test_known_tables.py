"""Starts on what a leader has cached of its table: without a read, and never on stale values."""

import json
from typing import Any

import pytest

from distop.coordinator.state.caches import TableCache
from distop.errors import Compacted, DistopError, IncompatibleOperation, TableNotFound, TablePaused
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.starting import StartRequest, TableState, digest_of, start, start_reads
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.watermarks import Recent, decode_recent
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient
from support.etcd.starts import make_table
from support.services.coordinators import Service, raising, serving


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches of leaders hold their own changes, and none that the watch shows."""
    monkeypatch.setattr(TableCache, "apply_put", lambda cache, kv: None)


async def one(service: Service, client: EtcdClient) -> OperationId:
    """An operation from its start to its end."""
    operation = await service.start("t", "noop", {"partitions": 1})
    await mark(client, operation, "0")
    await service.ended(operation)
    return operation


async def test_a_table_led_here_is_read_once(
    service: Service, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O1, O2: while operations of one type follow each other, neither their starts nor their ends read."""
    await one(service, client)
    hits, read = list[bool](), TableCache.read

    def reading(cache: TableCache, *args: Any, **kwargs: Any) -> Any:
        result = read(cache, *args, **kwargs)
        hits.append(result is not None)
        return result

    monkeypatch.setattr(TableCache, "read", reading)
    assert [(await one(service, client)).instance for _ in range(5)] == [2, 3, 4, 5, 6]
    assert hits.count(True) >= 3, "those at once after an end may come before its reply"


@pytest.mark.parametrize("watched", [True, False])
async def test_operations_started_by_other_coordinators_count_as_running(
    service: Service,
    etcd_config: EtcdConfig,
    client: EtcdClient,
    watched: bool,
    request: pytest.FixtureRequest,
) -> None:
    """O1, O2: a coordinator whose cache is stale reads again."""
    if not watched:
        request.getfixturevalue("unwatched")
    async with serving(etcd_config) as other:
        instances = []
        for _ in range(4):
            instances += [(await one(each, client)).instance for each in (service, other)]
        assert instances == list(range(1, 9))
        for each, another in ((service, other), (other, service)):
            running = await each.start("t", "friend", {"partitions": 1})
            with pytest.raises(IncompatibleOperation) as caught:
                await another.start("t", "noop", {"partitions": 1})
            assert caught.value.details["operation"] == str(running)
            second = await another.start("t", "friendly", {"partitions": 1})
            for operation in (running, second):
                await mark(client, operation, "0")
                assert (await each.ended(operation)).state == pb.SUCCEEDED


async def test_a_pause_and_its_end_count(service: Service, client: EtcdClient, unwatched: None) -> None:
    """O21."""
    await one(service, client)
    await one(service, client)
    with raising():
        await service.tables.PauseTable(pb.PauseTableRequest(name="t", requested_by="jane"), timeout=60)
    with pytest.raises(TablePaused):
        await service.start("t", "noop", {"partitions": 1})
    with raising():
        await service.tables.ResumeTable(pb.ResumeTableRequest(name="t"), timeout=60)
    assert (await one(service, client)).instance == 3


async def test_a_table_made_anew_is_another_table(
    service: Service, client: EtcdClient, unwatched: None
) -> None:
    await one(service, client)
    await one(service, client)
    with raising():
        await service.tables.DropTable(pb.DropTableRequest(name="t"), timeout=60)
    with pytest.raises(TableNotFound):
        await service.start("t", "noop", {"partitions": 1})
    await service.create_table("t")
    assert (await one(service, client)).instance >= 1


async def test_a_plan_on_a_stale_cache_is_made_again_on_what_is_read(client: LossyClient) -> None:
    """P16: no operation starts on old watermarks; a refusal is one of what was read; a lost reply is settled
    all the same."""
    await make_table(client)
    keys = client.keyspace.table("t")
    planned: list[Recent] = []

    async def guessing(number: int, *errors: DistopError) -> OperationId:
        request = StartRequest(table="t", type="noop", run=f"r{number}", digest=digest_of(number))
        raised = list(errors)

        async def make_arg(now: TableState) -> OperationArg:
            planned.append(decode_recent(now.recent_watermarks.value))
            if raised:
                raise raised.pop()
            named: dict[str, Any] = {"run": request.run, "request_note": request.note(1.0)}
            return OperationArg(table="t", type="noop", instance=now.next_instance, uuid="u", **named)

        guess = await client.read_at_once(start_reads(keys, request))
        if number == 2:
            client.fail(Fault.LOST_REPLY)
        elif number != 4:
            await client.put(keys.watermarks, json.dumps({"s": {"p": str(number)}}).encode())
        begun = start(client, keys, request, make_arg, compatible=lambda _: True, guess=guess)
        try:
            return (await begun).operation
        finally:
            await client.delete(keys.run_ops)

    assert (await guessing(1, TablePaused("on what was guessed"))).instance == 1
    assert planned == [{}, {"s": {"p": "1"}}]
    assert (await guessing(2)).instance == 2
    assert (await guessing(3)).instance == 3
    assert planned[-2:] == [{"s": {"p": "1"}}, {"s": {"p": "3"}}]
    with pytest.raises(TablePaused):
        await guessing(4, TablePaused("on what was guessed right"))
    assert (await guessing(4, Compacted("what was guessed is too old to be looked up"))).instance == 4
