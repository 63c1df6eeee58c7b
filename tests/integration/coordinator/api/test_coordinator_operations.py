"""Operations from their start to their end, by a live coordinator; the tests play the executor."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from distop.errors import IncompatibleOperation, InvalidArgument, OperationNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import RUNNING, Effect, OperationArg
from distop.metastore.records.record import decode
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark, mark_all
from support.services.coordinators import Service, raising, serving
from support.waiting import eventually


async def everything(client: EtcdClient, table: str = "t") -> list[KeyValue]:
    """All keys of a table, except its leader's key."""
    keys = client.keyspace.table(table)
    return [kv for kv in (await client.scan(keys.prefix)).kvs if kv.key != keys.coordinator]


async def nothing_left(client: EtcdClient, operation: OperationId) -> bool:
    left = (await client.scan(client.keyspace.operation(operation).prefix)).kvs
    return not left and not (await client.get(client.keyspace.active_operation(operation))).exists


async def test_zero_partitions_complete_at_once(service: Service, client: EtcdClient) -> None:
    """O6."""
    operation = await service.start("t", argument={"partitions": 0}, started_by="me", run="r")
    ended = await service.ended(operation)
    assert ended.state == pb.SUCCEEDED
    assert (ended.jobs.total, ended.jobs.succeeded, ended.jobs.failed) == (0, 0, 0)
    assert (ended.name, ended.table, ended.type, ended.instance) == ("t/noop/1", "t", "noop", 1)
    assert (ended.started_by, ended.run) == ("me", "r")
    assert 0 < ended.started_at.ToNanoseconds() <= ended.finished_at.ToNanoseconds()
    assert await eventually(lambda: nothing_left(client, operation))


async def test_the_end_may_be_waited_for_wherever_it_is_led(
    service: Service, client: EtcdClient, etcd_config: EtcdConfig
) -> None:
    async with serving(etcd_config) as other:
        operation = await service.start("t", argument={"partitions": 1})
        wanted = pb.GetOperationRequest(name=str(operation))
        wanted.wait.FromMilliseconds(10)
        assert (await service.operations.GetOperation(wanted, timeout=60)).state == pb.RUNNING
        wanted.wait.FromSeconds(3600)

        async def state(at: Service) -> int:
            return int((await at.operations.GetOperation(wanted, timeout=60)).state)

        async def ended(at: Service) -> int:
            return await eventually(lambda: state(at), every_s=0, holds=lambda now: now != pb.RUNNING)

        # Whichever of the two leads it, the other one does not.
        waiting = [asyncio.create_task(ended(at)) for at in (service, other)]
        assert await mark(client, operation, "0")
        assert await asyncio.gather(*waiting) == [pb.SUCCEEDED] * 2
        assert await state(service) == pb.SUCCEEDED


async def test_a_subset_of_partitions_by_name(service: Service, client: EtcdClient) -> None:
    """O6, O29."""
    names = ["2013-01", "a.b", "a b", "a/b", "a%2Eb", "日本", "state.1"]
    operation = await service.start("t", partitions=names)
    assert (await service.get(operation)).jobs.total == len(names)
    for done, name in enumerate(names, start=1):
        assert (await service.get(operation)).state == pb.RUNNING
        assert await mark(client, operation, name)
        assert not await mark(client, operation, name), "the first mark wins"
        seen = await service.get(operation)
        assert seen.jobs.succeeded == done or seen.state != pb.RUNNING
    ended = await service.ended(operation)
    assert (ended.state, ended.jobs.succeeded) == (pb.SUCCEEDED, len(names))


async def test_an_operation_of_ten_thousand_partitions_ends_and_the_next_one_need_not_wait(
    service: Service, client: EtcdClient
) -> None:
    """O5, O28: more keys than one transaction removes; the next operation need not wait for the removal."""
    operation = await service.start("t", argument={"partitions": 10_000})
    await mark_all(client, operation, (str(number) for number in range(10_000)))
    ended = await service.ended(operation)
    assert (ended.state, ended.jobs.succeeded) == (pb.SUCCEEDED, 10_000)
    after = await service.start("t", argument={"partitions": 0})
    assert (await service.ended(after)).state == pb.SUCCEEDED
    assert await eventually(lambda: nothing_left(client, operation))


async def test_one_failed_job_aborts_the_rest(service: Service, client: EtcdClient) -> None:
    """O16: with its name and reason; no later mark lands."""
    operation = await service.start("t", argument={"partitions": 3})
    await mark(client, operation, "0")
    await mark(client, operation, "1", error="disk full")
    ended = await service.ended(operation)
    assert (ended.state, ended.error.code) == (pb.FAILED, "JOB_FAILED")
    assert (ended.jobs.total, ended.jobs.succeeded, ended.jobs.failed) == (3, 1, 1)
    assert "job 1 failed: disk full" in ended.error.message
    assert not await mark(client, operation, "2")
    assert await eventually(lambda: nothing_left(client, operation))


@pytest.mark.parametrize(("kind", "argument"), [("noop", {}), ("hooked", {"log": "log"})])
async def test_the_partitions_that_may_fail_are_named_and_the_others_count(
    service: Service, client: EtcdClient, tmp_path: Path, kind: str, argument: dict[str, str]
) -> None:
    """O20, C17: whether or not it has something to publish; names and errors are bounded."""
    jobs = 103
    options = pb.OperationOptions(max_failed_partitions=102)
    given = {"partitions": jobs, **{name: str(tmp_path / value) for name, value in argument.items()}}
    operation = await service.start("t", kind, given, options=options)
    for name in range(jobs - 1):
        await mark(client, operation, str(name), error=f"disk {name} full" + "!" * 300)
    seen = await service.get(operation)
    assert (seen.state, seen.jobs.failed, seen.max_failed_partitions) == (pb.RUNNING, 102, 102)
    await mark(client, operation, str(jobs - 1))
    ended = await service.ended(operation)
    assert (ended.state, ended.jobs.succeeded, ended.jobs.failed) == (pb.SUCCEEDED, 1, 102)
    failed: dict[str, str] = json.loads(ended.facts_json)["failedPartitions"]
    assert len(failed) == 100
    assert failed["7"].startswith("JOB_FAILED: disk 7 full!")
    assert len(failed["7"]) == 120


async def test_more_failures_than_allowed_abort_at_once(service: Service, client: EtcdClient) -> None:
    """O20: before the other jobs have a result; and a number that makes no sense is refused."""
    options = pb.OperationOptions(max_failed_partitions=1)
    operation = await service.start("t", argument={"partitions": 9}, options=options)
    for name in ("3", "5"):
        await mark(client, operation, name, error="full")
    ended = await service.ended(operation)
    assert ended.state == pb.FAILED
    assert ended.error.message == "2 of 9 jobs failed, 1 may; job 3 failed: full"
    with pytest.raises(InvalidArgument) as refused:
        await service.start("t", options=pb.OperationOptions(max_failed_partitions=-2))
    assert refused.value.details["field"] == "options.max_failed_partitions"


async def test_an_operation_past_its_deadline_is_aborted(service: Service, client: EtcdClient) -> None:
    """O20: by the leader's own clock, without any other event."""
    options = pb.OperationOptions()
    options.deadline.FromMilliseconds(300)
    operation = await service.start("t", argument={"partitions": 2}, options=options)
    await mark(client, operation, "0")
    ended = await service.ended(operation)
    assert (ended.state, ended.error.code) == (pb.FAILED, "DEADLINE_EXCEEDED")
    assert "1 of 2 jobs were done" in ended.error.message
    assert ended.finished_at.ToNanoseconds() - ended.started_at.ToNanoseconds() >= 300e6


async def test_cancelling_a_running_operation(service: Service, client: EtcdClient) -> None:
    """O19: requested, then done; asking again is fine, also when it is over."""
    operation = await service.start("t", argument={"partitions": 3})
    await mark(client, operation, "0")
    asked = await service.cancel(operation, requested_by="me", reason="wrong file")
    assert asked.cancel_requested
    assert asked.state in (pb.RUNNING, pb.ABORTING, pb.CANCELLED)
    ended = await service.ended(operation)
    assert (ended.state, ended.error.code) == (pb.CANCELLED, "CANCELLED")
    assert (ended.cancel_requested, ended.jobs.succeeded) == (True, 1)
    assert (await service.cancel(operation)).state == pb.CANCELLED
    assert await eventually(lambda: nothing_left(client, operation))
    assert not await mark(client, operation, "1")


async def test_an_operation_can_be_cancelled_as_long_as_nothing_is_published(
    service: Service, client: EtcdClient, tmp_path: Path
) -> None:
    """O19: as long as nothing is published it is still possible, and the hook's end changes nothing."""
    argument = {"log": str(tmp_path / "log"), "until": str(tmp_path / "go")}
    operation = await service.start("t", "hooked", argument)
    await mark(client, operation, "0")
    await eventually((tmp_path / "log").exists)
    assert (await service.get(operation)).state == pb.COMMITTING
    assert (await service.cancel(operation)).cancel_requested
    (tmp_path / "go").touch()
    assert (await service.ended(operation)).state == pb.CANCELLED


async def test_cancelling_does_not_wait_for_the_next_try(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O19: while completion fails and its back-off is half a minute."""
    monkeypatch.setattr("distop.metastore.records.operation.FIRST_PAUSE_S", 30.0)
    argument = {"partitions": 0, "log": str(tmp_path / "log"), "raises": 100}
    operation = await service.start("t", "hooked", argument)
    await eventually((tmp_path / "log").exists)
    await service.cancel(operation)
    assert (await service.ended(operation, 5.0)).state == pb.CANCELLED


async def test_a_hook_that_raises_is_retried(service: Service, client: EtcdClient, tmp_path: Path) -> None:
    """O17, O18: without a restart; with the same token every time, and with every job."""
    log = tmp_path / "log"
    argument = {"partitions": 2, "log": str(log), "raises": 2}
    operation = await service.start("t", "hooked", argument)
    await mark_all(client, operation, ["0", "1"])
    assert (await service.ended(operation)).state == pb.SUCCEEDED
    calls = [line.split() for line in log.read_text().splitlines()]
    assert len(calls) == 3
    assert len({token for token, _, _ in calls}) == 1
    assert {jobs for _, _, jobs in calls} == {"0,1"}


async def test_a_hook_that_refuses_aborts(service: Service, client: EtcdClient, tmp_path: Path) -> None:
    """O16, O20: a permanent error is not tried again; its text is kept as far as there is room for it."""
    argument = {"log": str(tmp_path / "log"), "refuses": 2_000_000}
    operation = await service.start("t", "hooked", argument)
    await mark(client, operation, "0")
    ended = await service.ended(operation)
    assert (ended.state, ended.error.code) == (pb.FAILED, "PRECONDITION_FAILED")
    assert ended.error.message.startswith("xxx")
    completed, aborted = (tmp_path / "log").read_text().splitlines()
    assert not completed.endswith("PRECONDITION_FAILED")
    assert aborted.endswith("PRECONDITION_FAILED")


async def test_hanging_plans_hold_up_no_endings(service: Service, client: EtcdClient, tmp_path: Path) -> None:
    """U4: planning reads sources of users. Ending an operation must not stand in the same queue."""
    log = tmp_path / "log"
    running = await service.start("t", "hooked", {"log": str(log)})
    go = tmp_path / "go"
    for number in range(8):
        await service.create_table(f"slow{number}")
    plans = [asyncio.create_task(service.start(f"slow{n}", "slow", {"until": str(go)})) for n in range(8)]
    await mark(client, running, "0")
    assert (await service.ended(running)).state == pb.SUCCEEDED
    assert not any(plan.done() for plan in plans)
    go.touch()
    await asyncio.gather(*plans)


async def test_operations_of_several_objects_run_side_by_side(service: Service, client: EtcdClient) -> None:
    """O3: and end in any order."""
    starts = (service.start("t", "per_object", {"partitions": 1}, object=f"index {n}") for n in range(10))
    operations = await asyncio.gather(*starts)
    with pytest.raises(IncompatibleOperation) as caught:
        await service.start("t", "per_object", object="index 3")
    assert caught.value.details["operation"] == str(operations[3])
    for operation in (operations[3], operations[0]):
        await mark(client, operation, "0")
        assert (await service.ended(operation)).state == pb.SUCCEEDED
    assert (await service.get(operations[1])).state == pb.RUNNING
    await asyncio.gather(*(mark(client, operation, "0") for operation in operations))
    for operation in operations:
        assert (await service.ended(operation)).state == pb.SUCCEEDED


async def test_types_of_users_run_beside_an_ingest_if_they_only_read_or_append(
    service: Service, client: EtcdClient, tmp_path: Path
) -> None:
    """O2, O3: what they declare decides, in either order; the sweep finds it recorded."""
    (tmp_path / "rows.csv").write_text("id\n1\n")
    ingest = await service.start("t", "ingest", {"paths": [str(tmp_path / "rows.csv")]})
    with pytest.raises(IncompatibleOperation, match=str(ingest)):
        await service.start("t", "replacing")
    reading = await service.start("t", "reading", {"partitions": 1})
    appending = await service.start("t", "appending", {"partitions": 1})
    for operation, effect in ((ingest, Effect.WRITES), (reading, Effect.READS), (appending, Effect.APPENDS)):
        record = await client.get(client.keyspace.operation(operation).arg)
        assert decode(record.value, OperationArg).effect is effect
    await service.create_table("t2")
    await service.start("t2", "reading", {"partitions": 1})
    await service.start("t2", "ingest", {"paths": [str(tmp_path / "rows.csv")]})
    await service.create_table("t3")
    alone = await service.start("t3", "replacing", {"partitions": 1})
    for other in ("reading", "appending"):
        with pytest.raises(IncompatibleOperation, match=str(alone)):
            await service.start("t3", other)


async def test_tables_of_any_name(service: Service, client: EtcdClient) -> None:
    """O29: from creation through an operation to its listing; next to a table whose name continues it."""

    async def whole(name: str) -> None:
        beside = f"{name[:500]}2"
        await service.create_table(name)
        await service.create_table(beside)
        operation = await service.start(name, "per_object", object="o.b/j %", run="a b/c")
        other = await service.start(beside, "per_object", object="o.b/j %", run="a b/c")
        await mark(client, operation, "0")
        ended = await service.ended(operation)
        assert (ended.state, ended.table, ended.object) == (pb.SUCCEEDED, name, "o.b/j %")
        assert (await service.get(other)).state == pb.RUNNING
        listed = await service.operations.ListOperations(pb.ListOperationsRequest(table=name))
        assert [each.name for each in listed.operations] == [str(operation)]

    names = ["a.b", "a b", "a%b", "a/b", "größe", "日本🦆", "%2Eb", "x" * 512, "orders"]
    await asyncio.gather(*map(whole, names))
    tables = (await service.tables.ListTables(pb.ListTablesRequest())).tables
    assert set(names) < {table.name for table in tables}


async def test_instance_1_beside_10(service: Service, client: EtcdClient) -> None:
    """O29: the end of one takes nothing from the other."""
    operations = [await service.start("t", "per_object", object=f"o{number}") for number in range(12)]
    first = next(each for each in operations if each.instance == 1)
    await mark(client, first, "0")
    await service.ended(first)
    assert await eventually(lambda: nothing_left(client, first))
    for other in operations:
        if other != first:
            assert (await client.get(client.keyspace.operation(other).state)).value == RUNNING


async def test_a_malformed_argument_leaves_nothing(service: Service, client: EtcdClient) -> None:
    """O4, U3."""
    before = await everything(client)
    bad: list[dict[str, Any]] = [{"partitions": value} for value in (-1, "many", 1.5, 2_000_000)]
    for argument in (*bad, {"typo": 1}):
        with pytest.raises(InvalidArgument) as caught:
            await service.start("t", argument=argument)
        assert caught.value.details["field"], argument
        assert await everything(client) == before, argument


async def test_an_operation_that_never_was_is_not_found(service: Service, client: EtcdClient) -> None:
    """U3: and asking makes no key."""
    before = await everything(client)
    watch = service.operations.WatchOperation(pb.WatchOperationRequest(name="t/noop/7"))
    missing = OperationId("t", "noop", 7)
    for call in (service.get(missing), service.cancel(missing), watch.read()):
        with pytest.raises(OperationNotFound, match="t/noop/7"), raising():
            await call
    assert await everything(client) == before
