"""Following an operation over the wire, to its end."""

import asyncio
import re
from typing import Any

import grpc.aio
import httpx
import pytest
from google.protobuf import duration_pb2

from distop.coordinator.state.caches import RecentResults
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.records.names import OperationId
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark, mark_all
from support.etcd.proxy import Proxy
from support.services.coordinators import Service, serving, through
from support.waiting import eventually

END: Any = grpc.aio.EOF  # type: ignore[attr-defined]


def watching(
    service: Service,
    operation: OperationId,
    after: int = 0,
    heartbeat_s: float = 0,
    states_only: bool = False,
) -> Any:
    heartbeat = duration_pb2.Duration()
    heartbeat.FromNanoseconds(int(heartbeat_s * 1e9))
    request = pb.WatchOperationRequest(
        name=str(operation), after_revision=after, heartbeat=heartbeat, states_only=states_only
    )
    return service.operations.WatchOperation(request, timeout=60)


async def the_rest(call: Any) -> list[pb.OperationUpdate]:
    """All updates to the end of the stream."""
    updates = []
    while (update := await call.read()) is not END:
        updates.append(update)
    return updates


async def test_an_operation_is_followed_to_its_end(service: Service, client: EtcdClient) -> None:
    """O22: counts, the jobs by name, every change of state, the outcome; revisions only grow."""
    operation = await service.start("t", partitions=["a.b", "c d", "e"])
    await mark(client, operation, "e")
    call = watching(service, operation)
    first = await call.read()
    assert (first.operation.state, first.operation.jobs.succeeded) == (pb.RUNNING, 1)
    await mark(client, operation, "a.b")
    await mark(client, operation, "c d")
    updates = await the_rest(call)
    assert {job.partition for update in updates for job in update.jobs} <= {"a.b", "c d"}
    assert updates[-1].operation == await service.get(operation)
    assert updates[-1].operation.state == pb.SUCCEEDED
    revisions = [first.revision, *(update.revision for update in updates)]
    assert revisions == sorted(revisions)
    counts = [update.operation.jobs.succeeded for update in updates]
    assert counts == sorted(counts)


@pytest.fixture
def led(monkeypatch: pytest.MonkeyPatch) -> set[bytes]:
    """Operations led here: waiting for the end of one needs nothing else."""
    led: set[bytes] = set()
    lead = RecentResults.lead

    def noted(ends: RecentResults, history: bytes) -> None:
        lead(ends, history)
        led.add(history)

    monkeypatch.setattr(RecentResults, "lead", noted)
    monkeypatch.setattr("distop.coordinator.api.operations.SOON_S", 60.0)
    return led


@pytest.mark.parametrize(("error", "state"), [("", pb.SUCCEEDED), ("why", pb.FAILED)])
async def test_any_coordinator_answers_a_wait_for_the_end_of_an_operation(
    etcd_config: EtcdConfig, client: EtcdClient, led: set[bytes], error: str, state: int
) -> None:
    """O22: as the history has it, whether the coordinator leads the table or not."""
    async with serving(etcd_config) as first, serving(etcd_config) as second:
        await first.create_table("t")
        operation = await first.start("t", "friend", {"partitions": 1})
        history = client.keyspace.table("t").history(operation)
        await eventually(lambda: history in led)
        calls = [watching(service, operation, states_only=True) for service in (first, second)]
        rest = [asyncio.create_task(the_rest(call)) for call in calls]
        await mark(client, operation, "0", error=error)
        ends = [(await one)[-1].operation for one in rest]
        assert ends == [await first.get(operation)] * 2
        assert ends[0].state == state


async def test_a_leader_that_goes_halts_nobody(
    client: EtcdClient, etcd_config: EtcdConfig, led: set[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for it to tell of an end looks into etcd then."""
    monkeypatch.setattr("distop.coordinator.leading.leadership.OWN_KEYS_S", 0.05)
    async with serving(etcd_config) as service:
        await service.create_table("t")
        operation = await service.start("t")
        table = client.keyspace.table("t")
        await eventually(lambda: table.history(operation) in led)
        call = watching(service, operation, states_only=True)
        first = asyncio.create_task(call.read())

        async def told() -> bool:
            await client.delete(table.coordinator)  # again, should it have come before the watcher
            return first.done()

        await eventually(told)
        assert (await first).operation.state == pb.RUNNING
        await mark(client, operation, "0")
        assert (await the_rest(call))[-1].operation.state == pb.SUCCEEDED


async def test_jobs_that_finish_are_named_with_their_reasons(service: Service, client: EtcdClient) -> None:
    operation = await service.start("t", "friend", {"partitions": 2})
    call = watching(service, operation)
    await call.read()
    await mark(client, operation, "1")
    update = await call.read()
    assert [(job.partition, job.state) for job in update.jobs] == [("1", "success")]
    assert update.operation.state == pb.RUNNING
    await mark(client, operation, "0", error="why")
    updates = [update, *await the_rest(call)]
    said = [job for update in updates for job in update.jobs]
    assert [(job.partition, job.state) for job in said] in (
        [("1", "success"), ("0", "failed")],
        [("1", "success")],
    )
    assert updates[-1].operation.state == pb.FAILED
    assert "why" in updates[-1].operation.error.message


async def test_a_watch_is_resumed_where_it_was_left(service: Service, client: EtcdClient) -> None:
    """O22: nothing that was seen comes again, nothing that happened meanwhile is missed."""
    operation = await service.start("t", argument={"partitions": 3})
    call = watching(service, operation)
    await call.read()
    await mark(client, operation, "0")
    left = await call.read()
    call.cancel()
    assert left.operation.jobs.succeeded == 1

    await mark(client, operation, "1")
    call = watching(service, operation, after=left.revision)
    update = await call.read()
    assert update.revision > left.revision
    assert update.operation.jobs.succeeded == 2
    call.cancel()

    await mark(client, operation, "2")
    ended = await service.ended(operation)
    (last,) = await the_rest(watching(service, operation, after=update.revision))
    assert last.operation == ended
    (again,) = await the_rest(watching(service, operation, after=last.revision))
    assert again.operation == ended, "an end is always told"


async def test_cancelling_is_told_at_once(service: Service) -> None:
    """O19."""
    operation = await service.start("t")
    call = watching(service, operation)
    await call.read()
    await service.cancel(operation)
    updates = await the_rest(call)
    assert updates[0].operation.cancel_requested
    assert updates[-1].operation.state == pb.CANCELLED


async def test_many_marks_make_few_updates(service: Service, client: EtcdClient) -> None:
    """O28: a fast operation does not flood its watcher, and its counts are right."""
    count = 1200
    operation = await service.start("t", argument={"partitions": count})
    call = watching(service, operation)
    await call.read()
    await mark_all(client, operation, (str(number) for number in range(count)))
    updates = await the_rest(call)
    assert len(updates) < 30
    assert updates[-1].operation.jobs.succeeded == count


async def test_watchers_that_go_leave_nothing(service: Service, etcd: EtcdProcess, led: set[bytes]) -> None:
    """G2: cancelled, or past their deadlines: no watch stays in etcd, no task in the coordinator; and while
    they are there, they are one watch."""
    operation = await service.start("t")
    await eventually(lambda: led and _stands_still(etcd))
    before, tasks = await _watchers(etcd), len(asyncio.all_tasks())
    calls = [watching(service, operation) for _ in range(10)]
    short = [
        service.operations.WatchOperation(pb.WatchOperationRequest(name=str(operation)), timeout=0.3)
        for _ in range(10)
    ]
    for call in calls:
        await call.read()
    for call in short:
        with pytest.raises(grpc.aio.AioRpcError, match="DEADLINE_EXCEEDED"):
            await the_rest(call)
    await eventually(lambda: _watchers(etcd), holds=lambda now: now == before + 1)
    for call in calls:
        call.cancel()
    await eventually(lambda: _watchers(etcd), holds=lambda now: now == before)
    await eventually(lambda: len(asyncio.all_tasks()) <= tasks)


async def test_a_watch_survives_lost_history_and_cut_connections(
    etcd_config: EtcdConfig, etcd: EtcdProcess, client: EtcdClient
) -> None:
    """O27: between the coordinator and etcd."""
    async with Proxy(etcd.endpoint) as proxy, serving(through(etcd_config, proxy.endpoint)) as service:
        await service.create_table("t")
        operation = await service.start("t", argument={"partitions": 4})
        call = watching(service, operation)
        await call.read()
        proxy.cut()
        await mark(client, operation, "0")
        assert (await call.read()).operation.jobs.succeeded == 1
        await proxy.refuse()
        await mark(client, operation, "1")
        await mark(client, operation, "2")
        await client.compact(await client.put(client.keyspace.prefix + b"x", b""))
        await proxy.accept()
        while (update := await call.read()).operation.jobs.succeeded < 3:
            pass
        assert update.operation.jobs.succeeded == 3
        await mark(client, operation, "3")
        assert (await the_rest(call))[-1].operation.state == pb.SUCCEEDED


async def _stands_still(etcd: EtcdProcess) -> bool:
    # The coordinator's own four, and the two of the table's leader.
    return await _watchers(etcd) == await _watchers(etcd) >= 6


async def _watchers(etcd: EtcdProcess) -> int:
    async with httpx.AsyncClient() as web:
        text = (await web.get(f"http://{etcd.endpoint}/metrics")).text
    found = re.search(r"^etcd_debugging_mvcc_watcher_total (\S+)", text, re.MULTILINE)
    assert found
    return int(float(found[1]))
