"""Holding operations and tables, seen through gRPC and through what runners do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from distop.errors import OperationNotFound, PreconditionFailed, TableNotFound, TablePaused
from distop.metastore.backlog.batches import FAILED
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, KeyValue, Put, Txn
from distop.metastore.operations.pausing import pause_operation, pause_table, resume_operation, resume_table
from distop.metastore.operations.starting import (
    StartRequest,
    TableState,
    start,
    start_reads,
    start_txn,
    table_state,
)
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import ABORTING, RUNNING, OperationArg, PauseRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.audit import audit_put, prune, read_audit
from distop.metastore.tables.registry import table_deletes
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from support.etcd.jobs import mark_all
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import begin, make_table
from support.services.backlogs import record_of
from support.services.coordinators import Service, raising, serving
from support.services.executing import runner, runner_of, start_operation
from support.types.work_types import WORK_TYPES, files, traces
from support.waiting import eventually

REASON = "new disks"


async def pause(service: Service, operation: OperationId, reason: str = REASON) -> pb.Operation:
    request = pb.PauseOperationRequest(name=str(operation), reason=reason, requested_by="jane")
    with raising():
        return await service.operations.PauseOperation(request, timeout=10)  # type: ignore[no-any-return]


async def resume(service: Service, operation: OperationId) -> pb.Operation:
    request = pb.ResumeOperationRequest(name=str(operation), requested_by="joe")
    with raising():
        return await service.operations.ResumeOperation(request, timeout=10)  # type: ignore[no-any-return]


async def hold_table(service: Service, name: str = "t", reason: str = REASON) -> pb.Table:
    request = pb.PauseTableRequest(name=name, reason=reason, requested_by="jane")
    with raising():
        return await service.tables.PauseTable(request, timeout=10)  # type: ignore[no-any-return]


async def free_table(service: Service) -> pb.Table:
    request = pb.ResumeTableRequest(name="t", requested_by="joe")
    with raising():
        return await service.tables.ResumeTable(request, timeout=10)  # type: ignore[no-any-return]


async def trail(service: Service, table: str = "", **fields: int | str) -> pb.ListAuditResponse:
    with raising():
        request = pb.ListAuditRequest(table=table, **fields)  # type: ignore[arg-type]
        page: pb.ListAuditResponse = await service.cluster.ListAudit(request, timeout=10)
    return page


def said(page: pb.ListAuditResponse) -> list[tuple[str, str, str, str]]:
    return [(entry.action, entry.target, entry.by, entry.reason) for entry in page.entries]


@asynccontextmanager
async def working(etcd: EtcdConfig, client: LossyClient) -> AsyncIterator[Service]:
    """A coordinator and a runner of the same types, and the table ``t``."""
    async with serving(etcd, operations=tuple(WORK_TYPES.split(","))) as service, runner(client):
        await service.create_table("t")
        yield service


async def left_over(client: LossyClient) -> list[bytes]:
    """Remaining keys of operations and of pauses."""
    space = client.keyspace
    kvs = [*(await client.scan(space.active)).kvs, *(await client.scan(space.paused)).kvs]
    return [kv.key for kv in kvs]


async def test_a_paused_operation_launches_nothing_keeps_its_marks_and_goes_on(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O21: a job that runs is stopped and cleaned up, one that was done is not done again."""
    argument = {"folder": str(tmp_path), "partitions": 3, "hold": ["1", "2"]}
    async with working(etcd_config, client) as service:
        operation = await service.start("t", "traced", argument)
        await eventually(lambda: len(traces(tmp_path, "holds")) == 2 and traces(tmp_path, "did"))
        keys = client.keyspace.operation(operation)
        await eventually(lambda: client.get(keys.job_state("0")), holds=lambda found: found.exists)
        seen = await pause(service, operation)
        assert (seen.state, seen.pause.by, seen.pause.reason) == (pb.RUNNING, "jane", REASON)
        assert seen.pause.scope == "operation"
        assert seen.pause.at.seconds > 0
        await eventually(lambda: len(traces(tmp_path, "cleaned")) == 2)
        # Let go, and not taken again: another runner's look is refused by the transaction itself.
        await eventually(lambda: _absent(client, keys.runner))
        async with runner(client):
            assert (await service.get(operation)).runner == ""
            (tmp_path / "release").touch()
            resumed = await resume(service, operation)
            assert not resumed.HasField("pause")
            ended = await service.ended(operation)
    assert (ended.state, ended.jobs.succeeded) == (pb.SUCCEEDED, 3)
    assert len([line for line in traces(tmp_path, "began") if line[1] == "0"]) == 1
    assert len(files(tmp_path)) == 3


async def test_a_pause_that_the_leader_has_not_heard_of_holds_its_transactions(
    client: LossyClient, service: Service, tmp_path: Path
) -> None:
    """O21: the index is only a notification; the transaction compares the pause itself."""
    for kind in ("friend", "hooked_friend"):
        operation = await service.start("t", kind, {"partitions": 1, "log": str(tmp_path / kind)})
        keys = client.keyspace.operation(operation)
        await client.put(keys.pause, b'{"by":"nobody told"}')
        await mark_all(client, operation, "0")
        await _another_one_ends(service, client)
        assert (await client.get(keys.state)).value == RUNNING
        await resume(service, operation)
        assert (await service.ended(operation)).state == pb.SUCCEEDED


async def test_pausing_and_resuming_twice_is_truthful(service: Service) -> None:
    """O21: the first reason stays; what is not paused can be resumed; both are in the audit trail once."""
    operation = await service.start("t", "noop", {"partitions": 1})
    await pause(service, operation, "first")
    assert (await pause(service, operation, "second")).pause.reason == "first"
    await resume(service, operation)
    assert not (await resume(service, operation)).HasField("pause")
    await service.cancel(operation, requested_by="joe", reason="enough")
    await service.ended(operation)
    with pytest.raises(PreconditionFailed, match=r"is over: .*cancelled"):
        await pause(service, operation)
    with pytest.raises(PreconditionFailed, match="is over"):
        await resume(service, operation)
    with pytest.raises(OperationNotFound):
        await pause(service, OperationId("t", "noop", 99))
    assert said(await trail(service, "t")) == [
        ("cancel", str(operation), "joe", "enough"),
        ("resume", str(operation), "joe", ""),
        ("pause", str(operation), "jane", "first"),
        ("start", str(operation), "", ""),
        ("create-table", "t", "", ""),
    ]


async def test_a_sealed_operation_cannot_be_paused(client: LossyClient, service: Service) -> None:
    operation = await start_operation(client)
    await client.put(client.keyspace.operation(operation.id).state, ABORTING)
    with pytest.raises(PreconditionFailed, match=r"is aborting: too late|is over"):
        await pause(service, operation.id)


@pytest.mark.parametrize("of_table", [False, True])
async def test_a_paused_operation_can_be_cancelled_and_leaves_no_key(
    client: LossyClient, service: Service, of_table: bool
) -> None:
    """O19, O21"""
    operation = await service.start("t", "noop", {"partitions": 3})
    await (hold_table(service) if of_table else pause(service, operation))
    await mark_all(client, operation, "012")
    await service.cancel(operation)
    assert (await service.ended(operation)).state == pb.CANCELLED
    if of_table:
        await free_table(service)
    await eventually(lambda: left_over(client), holds=lambda left: not left)


async def test_the_deadline_of_a_paused_operation_goes_on(client: LossyClient, service: Service) -> None:
    """O20, O21: even when all its jobs are done."""
    options = pb.OperationOptions()
    options.deadline.FromMilliseconds(700)
    operation = await service.start("t", "noop", {"partitions": 1}, options=options)
    await pause(service, operation)
    await mark_all(client, operation, "0")
    ended = await service.ended(operation)
    assert (ended.state, ended.error.code) == (pb.FAILED, "DEADLINE_EXCEEDED")


async def test_a_paused_table_starts_none_and_holds_what_runs(client: LossyClient, service: Service) -> None:
    """O21: the error names who, why and what to do; a repeated start still gets its first answer."""
    async with runner(client):
        done = await service.start("t", run="r1")
        await service.ended(done)
        table = await hold_table(service)
        assert (table.pause.by, table.pause.reason, table.pause.scope) == ("jane", REASON, "table")
        assert (await hold_table(service, reason="again")).pause.reason == REASON
        with pytest.raises(TablePaused) as refused:
            await service.start("t")
        assert "by jane: new disks" in refused.value.message
        assert "distop table resume t" in refused.value.hint
        assert await service.start("t", run="r1") == done
        assert not (await free_table(service)).HasField("pause")
        assert not (await free_table(service)).HasField("pause")
        assert (await service.ended(await service.start("t"))).state == pb.SUCCEEDED
        with pytest.raises(TableNotFound):
            await hold_table(service, "nowhere")


async def test_operations_of_a_paused_table_show_it_and_wait(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O21: also those that are watched, and those started by a transaction that was on its way."""
    argument = {"folder": str(tmp_path), "partitions": 1, "hold": ["0"]}
    async with working(etcd_config, client) as service:
        operation = await service.start("t", "traced", argument)
        await eventually(lambda: traces(tmp_path, "holds"))
        request = pb.WatchOperationRequest(name=str(operation))
        request.heartbeat.FromMilliseconds(100)
        watching = service.operations.WatchOperation(request)
        assert not (await watching.read()).operation.HasField("pause")
        await hold_table(service)
        await eventually(lambda: traces(tmp_path, "cleaned"))
        while not (update := await watching.read()).operation.HasField("pause"):
            pass
        assert update.operation.pause.scope == "table"
        watching.cancel()
        listed = await service.operations.ListOperations(pb.ListOperationsRequest(table="t"))
        assert [one.pause.by for one in listed.operations] == ["jane"]
        assert await runner_of(client, await _arg(client, operation)) == ""
        # Resuming the operation does not move a table that is held.
        assert (await resume(service, operation)).pause.scope == "table"
        (tmp_path / "release").touch()
        await free_table(service)
        assert (await service.ended(operation)).state == pb.SUCCEEDED


async def test_an_operation_paused_while_a_runner_takes_it_is_not_launched(
    client: LossyClient, tmp_path: Path
) -> None:
    """The reply to the transaction that takes it is lost; it is paused before the runner finds its key."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path)})
    keys, loop = client.keyspace.operation(arg.id), asyncio.get_running_loop()
    note = audit_put(client.keyspace.table(arg.table), "pause", by="jane", target=str(arg.id), at=0.0)

    async def paused() -> None:
        assert await pause_operation(client, keys, PauseRecord(), note)

    other = LossyClient(client.config)
    other.fail(Fault.LOST_REPLY, when=puts(keys.runner))
    other.meanwhile = [lambda: asyncio.run_coroutine_threadsafe(paused(), loop).result(5)]

    async def let_go() -> bool:
        # It waits from its start on, too: only after the pause does a waiting entry mean that it was let go.
        return (await client.get(keys.pause)).exists and (await client.get(keys.waiting)).exists

    async with runner(other):
        await eventually(let_go)
        assert not traces(tmp_path)
        assert await runner_of(client, arg) == ""
        await resume_operation(client, keys, note)
        await eventually(lambda: traces(tmp_path, "did"))
    await other.close()


async def test_a_start_that_was_planned_before_the_pause_does_not_happen(client: LossyClient) -> None:
    """O21: the transaction compares it."""
    await make_table(client)
    keys = client.keyspace.table("t")
    request = StartRequest(table="t", type="noop", run="r", digest="d")

    async def make_arg(now: TableState) -> OperationArg:
        await client.put(keys.pause, b"{}")
        return OperationArg(table="t", type="noop", instance=now.next_instance)

    with pytest.raises(TablePaused):
        await start(client, keys, request, make_arg, compatible=lambda other: False)
    assert await _absent(client, keys.run_ops)


async def test_a_start_that_a_pause_refused_does_not_happen_once_the_table_is_resumed(
    client: LossyClient,
) -> None:
    """O21, P8: its first copy was delayed; its caller starts it again, perhaps without a name of the run."""
    await make_table(client)
    keys = client.keyspace.table("t")
    request = StartRequest(table="t", type="noop", run="r", digest="d")
    state = table_state(keys, request, await client.read_at_once(start_reads(keys, request)))
    late = start_txn(keys, state, OperationArg(table="t", type="noop", instance=state.next_instance))
    pause, resume = (audit_put(keys, how, by="jane", target="t", at=1.5) for how in ("pause", "resume"))
    assert await pause_table(client, keys, PauseRecord(by="jane", at=1.5), pause)
    assert await resume_table(client, keys, resume)
    assert not (await client.txn(late)).succeeded


async def pause_in_etcd(client: LossyClient, keys: OperationKeys, audit: Put, of_table: bool) -> bool:
    record = PauseRecord(by="jane", at=1.5)
    if of_table:
        return await pause_table(client, client.keyspace.table("t"), record, audit)
    return await pause_operation(client, keys, record, audit)


@pytest.mark.parametrize("of_table", [False, True])
async def test_a_lost_reply_of_a_pause_is_answered_by_what_stands(
    client: LossyClient, service: Service, of_table: bool
) -> None:
    """O21, U2: paused once, and once in the trail."""
    operation = await service.start("t", "noop", {"partitions": 1})
    table = client.keyspace.table("t")
    audit = audit_put(table, "pause", by="jane", target="x", at=1.5)
    client.fail(Fault.LOST_REPLY)
    assert await pause_in_etcd(client, table.operation(operation), audit, of_table)
    assert client.spent
    assert [entry.action for entry in (await trail(service, "t")).entries].count("pause") == 1


@pytest.mark.parametrize("of_table", [False, True])
async def test_a_pause_that_arrives_again_once_somebody_has_resumed_holds_nothing(
    client: LossyClient, service: Service, of_table: bool
) -> None:
    """O21: a copy of it was delayed, and nobody would know why nothing moves."""
    operation = await service.start("t", "noop", {"partitions": 1})
    table = client.keyspace.table("t")
    keys = table.operation(operation)
    first, again = (audit_put(table, how, by="jane", target="x", at=1.5) for how in ("pause", "resume"))
    assert await pause_in_etcd(client, keys, first, of_table)
    assert await (resume_table(client, table, again) if of_table else resume_operation(client, keys, again))
    assert await pause_in_etcd(client, keys, first, of_table)  # it has, before
    assert await _absent(client, table.pause if of_table else keys.pause)


async def test_a_late_pause_holds_no_operation_of_the_next_table_of_that_name(client: LossyClient) -> None:
    """O21, H4: numbers of instances begin anew, and nobody would know why it does not move."""
    table, everything = client.keyspace.table("t"), client.keyspace.prefix
    await make_table(client)
    keys = table.operation(await begin(client, partition_count=1))
    assert await pause_in_etcd(client, keys, audit_put(table, "pause", by="", target="x", at=1.5), False)
    late = client.sent[-1]
    await client.txn(Txn(then=(DeleteRange(everything, prefix_end(everything)),)))
    await make_table(client)
    assert table.operation(await begin(client, partition_count=1)).state == keys.state
    assert not (await client.txn(late)).succeeded
    assert await _absent(client, keys.pause)


async def test_a_table_that_is_dropped_while_it_is_resumed_leaves_no_backlog(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O21, P8: coordinators would lead it for ever."""
    await make_table(client, "flights")
    keys = client.keyspace.table("flights")
    put = audit_put(keys, "pause", by="jane", target="flights", at=1.5)
    await pause_table(client, keys, PauseRecord(by="jane", at=1.5), put)
    read = client.get

    async def then_dropped(key: bytes, **how: Any) -> KeyValue:
        kv = await read(key, **how)
        if key == keys.table:
            await client.txn(Txn(then=table_deletes(keys)))
        return kv

    monkeypatch.setattr(client, "get", then_dropped)
    await resume_table(client, keys, audit_put(keys, "resume", by="jane", target="flights", at=2.5))
    assert await _absent(client, keys.backlog_index)


async def test_the_audit_trail_is_paged_newest_first_and_bounded(
    client: LossyClient, service: Service
) -> None:
    """U2"""
    keys = client.keyspace.table("t")
    await service.create_table("t2")
    for index in range(5):
        put = audit_put(keys, f"act{index}", by="jane", target="t", at=2e9 + index)
        await client.put(put.key, put.value)
    pages, token = [], ""
    while True:
        page = await trail(service, "t", page_size=2, page_token=token)
        pages.append([entry.action for entry in page.entries])
        if not (token := page.next_page_token):
            break
    assert pages == [["act4", "act3"], ["act2", "act1"], ["act0", "create-table"], []]
    assert said(await trail(service))[0][:2] == ("create-table", "t2")
    with pytest.raises(TableNotFound):
        await trail(service, "nowhere")
    assert await prune(client, keys.audit_prefix, keep=2) == 4
    left, _ = await read_audit(client, keys.audit_prefix, limit=10)
    assert [entry.record.action for entry in left] == ["act4", "act3"]


async def test_making_tables_keeps_the_trail_of_the_installation_bounded(
    client: LossyClient, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2"""
    monkeypatch.setattr("distop.metastore.tables.audit.prune.__kwdefaults__", {"keep": 2, "keep_s": 1e9})
    async with serving(etcd_config) as service:
        for number in range(4):
            await service.create_table(f"t{number}")
    left, _ = await read_audit(client, client.keyspace.audit_prefix, limit=10)
    assert [entry.record.target for entry in left] == ["t3", "t2"]


async def test_a_change_without_an_operation_keeps_the_trail_of_its_table_bounded(
    client: LossyClient, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2, G7: whatever is opened and closed, queued and taken back, or paused and resumed, however often."""
    monkeypatch.setattr("distop.metastore.tables.audit.prune.__kwdefaults__", {"keep": 2, "keep_s": 1e9})
    prefix = client.keyspace.table("t").audit_prefix
    async with serving(etcd_config) as service:
        await service.create_table("t")
        backlog = distop_pb2_grpc.BacklogServiceStub(service.channel)
        schedules = distop_pb2_grpc.ScheduleServiceStub(service.channel)
        batch = pb.EnqueueBatchRequest(table="t", batch="b", type="noop", argument_json="{}", republish=True)
        added = pb.AddScheduleRequest(table="t", name="s", type="noop", argument_json="{}", cron="0 0 1 1 *")
        # As a landing folder does whose file is written again and again: no operation of it ever starts.
        again = pb.EnqueueBatchRequest(table="t", batch="f", type="noop", unordered=True)
        again.argument_json = '{"partitions": -1}'
        failed = client.keyspace.table("t").unordered(FAILED, "f")
        await client.put(failed, encode(record_of({"partitions": -2})))
        calls: list[tuple[Any, Any]] = [
            (backlog.SetOrdering, pb.SetOrderingRequest(table="t", gate="closed")),
            (backlog.EnqueueBatch, batch),
            (backlog.EnqueueBatch, again),
            (backlog.ControlBacklog, pb.ControlBacklogRequest(table="t", batch="b", action="remove")),
            (schedules.AddSchedule, added),
            (schedules.ControlSchedule, pb.ControlScheduleRequest(table="t", name="s", action="pause")),
        ]
        for call, request in calls:
            for number in range(2):
                put = audit_put(client.keyspace.table("t"), "before", by="jane", target="t", at=1e9 + number)
                await client.put(put.key, put.value)
            with raising():
                await call(request, timeout=10)
            left, _ = await read_audit(client, prefix, limit=10)
            assert len(left) == 2, request


async def _absent(client: LossyClient, key: bytes) -> bool:
    return not (await client.get(key)).exists


async def _arg(client: LossyClient, operation: OperationId) -> OperationArg:
    return decode((await client.get(client.keyspace.operation(operation).arg)).value, OperationArg)


async def _another_one_ends(service: Service, client: LossyClient) -> None:
    """Run another operation to its end: the leader has then acted on all it knew before."""
    other = await service.start("t", "friendly", {"partitions": 1})
    await mark_all(client, other, "0")
    await service.ended(other)
