"""Operations whose completion keeps failing: counted, parked, explained, and ended as somebody decides."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from typer.testing import CliRunner, Result

from distop import errors
from distop.cli.main import app
from distop.client import AsyncClient, OperationParked
from distop.coordinator.doctor.records import remove_unreadable
from distop.coordinator.views.why import Mood, why
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Txn, TxnResult
from distop.metastore.operations.ending import request_resolve
from distop.metastore.operations.starting import BRIEFLY_S, forget_requests
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import COMMITTING, CompletionRecord, ResolveRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.audit import audit_put
from distop.operations import DistributedOperation, Retry
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient
from support.etcd.starts import begin, make_table
from support.refusals import refused
from support.services.coordinators import Service, config_of, running, serving
from support.waiting import eventually

ATTEMPTS = 2


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, parks_soon: None) -> AsyncIterator[Service]:
    async with serving(etcd_config) as standing:
        await standing.create_table("t")
        yield standing


async def start_hooked(
    service: Service, client: LossyClient, log: Path, raises: int, **argument: int
) -> OperationId:
    operation = await service.start("t", "hooked", {"log": str(log), "raises": raises, **argument})
    assert await mark(client, operation, "0")
    return operation


async def parked(service: Service, client: LossyClient, log: Path, raises: int = 1000) -> OperationId:
    operation = await start_hooked(service, client, log, raises)
    await service.parked(operation)
    return operation


async def test_a_hook_that_fails_for_seconds_parks_nothing(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path
) -> None:
    """O18: it is tried again, for half an hour, without a restart. A sixth attempt follows after 3 s."""
    async with serving(etcd_config) as service:
        await service.create_table("t")
        operation = await start_hooked(service, client, tmp_path / "log", raises=5)
        assert (await service.ended(operation)).state == pb.SUCCEEDED
        assert len((tmp_path / "log").read_text().splitlines()) == 6


@pytest.mark.parametrize("action", ["retry", "abort"])
async def test_a_decision_does_not_wait_for_the_next_attempt(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """C10: while completion fails and its back-off is half a minute."""
    monkeypatch.setattr("distop.metastore.records.operation.FIRST_PAUSE_S", 30.0)
    async with serving(etcd_config) as service:
        await service.create_table("t")
        operation = await start_hooked(service, client, tmp_path / "log", raises=1)
        await eventually(lambda: service.get(operation), holds=lambda seen: seen.completion.attempts == 1)
        await service.resolve(operation, action)
        ended = await service.ended(operation)
        assert ended.state == (pb.SUCCEEDED if action == "retry" else pb.FAILED)


async def test_an_operation_whose_completion_keeps_failing_is_parked_and_says_why(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """O18, C9, C10: nothing is tried any more, and one line says what to do."""
    operation = await start_hooked(service, client, tmp_path / "log", raises=1000)
    seen = await service.parked(operation)
    assert seen.state == pb.COMMITTING
    assert seen.completion.attempts == ATTEMPTS
    assert (seen.completion.error.code, seen.completion.error.message) == (
        "CRASHED",
        "RuntimeError: not yet",
    )
    reason = why(running=[seen], leader="m", members=[], last=None, now=0.0)
    assert reason.mood is Mood.STUCK
    assert "parked after 2 failed attempts for 0 ms: CRASHED: RuntimeError: not yet" in reason.sentence
    decide = "distop operation resolve t/hooked/1 retry, or distop operation resolve t/hooked/1 abort"
    assert reason.sentence.endswith(decide), "it cannot be skipped"
    kv = await client.get(client.keyspace.operation(operation).completion)
    assert decode(kv.value, CompletionRecord).parked
    # Another operation of the table is refused as long as this one stands (C9); other tables go on.
    with refused(error=errors.IncompatibleOperation, operation="t/hooked/1"):
        await service.start("t", "hooked", {"log": str(tmp_path / "log")})
    await service.create_table("other")
    other = await service.start("other", argument={"partitions": 0})
    assert (await service.ended(other)).state == pb.SUCCEEDED


async def test_an_operation_parked_by_an_unreadable_record_goes_on_when_that_is_removed(
    service: Service, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O18, U1: its leader, which watches no deletions, notices."""
    monkeypatch.setattr("distop.coordinator.leading.driver.CHECK_STATES_S", 0.2)
    operation = await parked(service, client, tmp_path / "log", raises=ATTEMPTS)
    key = client.keyspace.operation(operation).completion
    await client.put(key, b"{")
    await eventually(
        lambda: service.get(operation), holds=lambda seen: "holds no" in seen.completion.error.message
    )
    await remove_unreadable(
        client, key.decode(), audit_put(client.keyspace, "remove-key", by="me", target="x", at=1.0)
    )
    assert (await service.ended(operation)).state == pb.SUCCEEDED


async def undescribed(service: Service, client: LossyClient, **argument: bool) -> OperationId:
    """An operation without anything to publish, whose end fails: one of its jobs may fail, and has."""
    options = {"max_failed_partitions": 1}
    operation = await service.start("t", "undescribed", {"partitions": 2, **argument}, options=options)
    assert await mark(client, operation, "0")
    assert await mark(client, operation, "1", error="no")
    return operation


async def test_an_operation_that_publishes_nothing_is_parked_like_others(
    service: Service, client: LossyClient
) -> None:
    """O18, C10, H2: and ends as somebody decides."""
    operation = await undescribed(service, client)
    seen = await service.parked(operation)
    assert (seen.completion.attempts, seen.completion.error.message) == (ATTEMPTS, "RuntimeError: no name")
    await service.resolve(operation, "abort", requested_by="me")
    assert (await service.ended(operation)).error.code == "COMPLETION_FAILED"


async def test_an_operation_that_publishes_nothing_is_aborted_if_its_end_is_refused_for_good(
    service: Service, client: LossyClient
) -> None:
    """O17, O18."""
    ended = await service.ended(await undescribed(service, client, refuses=True))
    assert (ended.state, ended.error.code) == (pb.FAILED, "INVALID_ARGUMENT")


async def test_facts_of_a_type_that_cannot_be_had_keep_no_operation_from_its_end(
    service: Service, client: LossyClient
) -> None:
    operation = await service.start("t", "undescribed")
    assert await mark(client, operation, "0")
    ended = await service.ended(operation)
    assert ended.state == pb.SUCCEEDED
    assert json.loads(ended.facts_json)["factsError"].endswith("RuntimeError: no facts")


async def test_an_error_that_names_a_file_whose_name_is_no_text_is_an_error_like_others(
    service: Service, client: LossyClient, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "distop")  # pytest's processes cannot send each other such a name
    operation = await start_hooked(service, client, tmp_path / "log", raises=1000, said=1)
    seen = await service.parked(operation)
    assert seen.completion.error.message == r"RuntimeError: not yet\udcff"


async def test_the_time_is_counted_across_leaders(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O18, O24, A5: from the first failure; the next leader's first attempt is the last one."""
    async with serving(etcd_config) as service:
        await service.create_table("t")
        operation = await start_hooked(service, client, tmp_path / "log", raises=1000)
        await eventually(lambda: service.get(operation), holds=lambda seen: seen.completion.attempts > 0)
    key = client.keyspace.operation(operation).completion
    before = decode((await client.get(key)).value, CompletionRecord)
    monkeypatch.setattr(DistributedOperation, "retry", Retry(for_s=0.05))
    async with serving(etcd_config) as service:
        await service.parked(operation)
    after = decode((await client.get(key)).value, CompletionRecord)
    assert (after.attempts, after.since) == (before.attempts + 1, before.since)


async def test_the_verdict_outlives_the_leader(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, parks_soon: None
) -> None:
    """O18, C10."""
    log = tmp_path / "log"
    async with serving(etcd_config) as service:
        await service.create_table("t")
        operation = await parked(service, client, log)
    tried = len(log.read_text().splitlines())
    async with serving(etcd_config) as service:
        assert (await service.get(operation)).completion.parked
        await service.resolve(operation, "abort", requested_by="me", reason="enough")
        ended = await service.ended(operation)
        assert (ended.state, ended.error.code) == (pb.FAILED, "COMPLETION_FAILED")
        assert "by me (enough) after 2 failed attempts: RuntimeError: not yet" in ended.error.message
    assert len(log.read_text().splitlines()) == tried + 1, "it heard of the abort"


async def test_a_hooks_limit_is_its_failure(service: Service, client: LossyClient, tmp_path: Path) -> None:
    """O18: of errors only those of etcd, the lease and rivals are passed over."""
    operation = await service.start("t", "hooked", {"log": str(tmp_path / "log"), "exhausts": True})
    assert await mark(client, operation, "0")
    seen = await service.parked(operation)
    assert seen.completion.error.code == "RESOURCE_EXHAUSTED"


async def test_a_caller_that_waits_for_an_operation_is_notified_that_it_is_parked(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, parks_soon: None
) -> None:
    """O18: on the command line with an exit code of its own; and a decision is waited for to its end."""
    config = config_of(etcd_config)
    async with running(config) as coordinator, AsyncClient(coordinator.address) as sdk:

        async def distop(*words: str) -> Result:
            given = [*words, "--address", coordinator.address, "--output", "json"]
            return await asyncio.to_thread(CliRunner().invoke, app, given)

        await sdk.create_table("t", str(tmp_path))
        argument = {"log": str(tmp_path / "log"), "raises": 2 * ATTEMPTS}
        started = await sdk.start("t", "hooked", argument)
        waiting = asyncio.create_task(started.wait(timeout_s=60.0))
        watching = asyncio.create_task(distop("operation", "watch", started.name))
        assert await mark(client, OperationId.parse(started.name), "0")
        with refused(error=OperationParked, match="2 .*CRASHED: RuntimeError: not yet", cause="CRASHED"):
            await waiting
        assert (await watching).exit_code == 23
        again = await distop("operation", "watch", started.name)
        assert again.exit_code == 23
        assert json.loads(again.stderr)["error"]["code"] == "OPERATION_PARKED"
        assert json.loads(again.stdout)["operation"]["completion"]["parked"] is True
        shown = json.loads((await distop("operation", "logs", started.name)).stdout)
        assert (shown[0]["partition"], shown[0]["error"]) == ("", "RuntimeError: not yet")
        assert "before_publish" in shown[0]["trace"]
        # It fails as often once more, and is parked again.
        assert (await distop("operation", "resolve", started.name, "retry", "--wait")).exit_code == 23
        assert (await distop("operation", "resolve", started.name, "retry", "--wait")).exit_code == 0


@pytest.mark.parametrize("times", [1, 2])
async def test_a_decision_to_retry_begins_to_count_attempts_again(
    service: Service, client: LossyClient, tmp_path: Path, times: int
) -> None:
    """C10: as often as somebody wants."""
    operation = await start_hooked(service, client, tmp_path / "log", raises=ATTEMPTS * times)
    for _ in range(times):
        await service.parked(operation)
        answer = await service.resolve(operation, "retry")
        assert answer.name == str(operation)
        await eventually(lambda: service.get(operation), holds=lambda seen: not seen.completion.parked)
    assert (await service.ended(operation)).state == pb.SUCCEEDED


async def test_a_decision_with_fields_of_a_newer_version_is_acted_upon(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C10: while versions are mixed, a newer coordinator may take the call, and an older one lead."""
    operation = await parked(service, client, tmp_path / "log", raises=ATTEMPTS)
    decision = json.loads(encode(ResolveRecord(action="retry", by="me", at=1.0)))
    keys = client.keyspace.operation(operation)
    await client.put(keys.resolve, json.dumps({**decision, "ofANewerVersion": 1}).encode())
    assert (await service.ended(operation)).state == pb.SUCCEEDED


async def test_only_commit_steps_are_skipped(service: Service, client: LossyClient, tmp_path: Path) -> None:
    """C10: half of an operation is never published."""
    operation = await parked(service, client, tmp_path / "log")
    with pytest.raises(errors.NotSkippable):
        await service.resolve(operation, "skip")
    with pytest.raises(errors.InvalidArgument):
        await service.resolve(operation, "forget")
    assert (await service.get(operation)).completion.parked


async def test_a_parked_operation_can_be_cancelled(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """O19: nothing of it was published, so it still can be."""
    operation = await parked(service, client, tmp_path / "log")
    await service.cancel(operation)
    assert (await service.ended(operation)).state == pb.CANCELLED


async def test_only_failing_operations_can_be_resolved(service: Service, client: LossyClient) -> None:
    operation = await service.start("t", argument={"partitions": 1})
    with pytest.raises(errors.NotParked):
        await service.resolve(operation, "abort")
    assert await mark(client, operation, "0")
    await service.ended(operation)
    with refused(error=errors.PreconditionFailed, match="succeeded", operation=operation):
        await service.resolve(operation, "abort")
    with pytest.raises(errors.OperationNotFound):
        await service.resolve(OperationId.parse("t/noop/99"), "abort")


async def test_an_abort_that_fails_backs_off_and_says_why(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """O17, O18: whatever it fails of. Here the backlog that its batch comes from cannot be read."""
    await make_table(client)
    keys = client.keyspace.operation(await begin(client, partition_count=1, batches=["a"]))
    ordering = client.keyspace.table("t").ordering
    await client.put(ordering, b"damaged")
    assert await mark(client, keys.operation, "0", error="no")
    async with serving(etcd_config) as service:
        more = ATTEMPTS + 1  # it is never parked: there is nothing to decide
        seen = await eventually(
            lambda: service.get(keys.operation), holds=lambda one: one.completion.attempts >= more
        )
        assert (seen.state, seen.completion.error.code) == (pb.ABORTING, "CORRUPT_RECORD")
        await client.delete(ordering)
        assert (await service.ended(keys.operation)).state == pb.FAILED


async def parked_in_etcd(client: LossyClient) -> OperationKeys:
    """The keys of an operation that nobody leads."""
    await make_table(client)
    keys = client.keyspace.operation(await begin(client))
    await client.put(keys.state, COMMITTING)
    await client.put(keys.completion, encode(CompletionRecord(attempts=5, error="x", parked=True)))
    return keys


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_decision_whose_reply_is_lost_is_made_once(client: LossyClient, fault: Fault) -> None:
    """C10: an opposite decision is refused until the first one is executed."""
    keys = await parked_in_etcd(client)
    client.fail(fault)
    retry = ResolveRecord(action="retry", by="me", at=1.0)
    await request_resolve(client, keys, retry, request="r1")
    assert client.spent
    await request_resolve(client, keys, ResolveRecord(action="retry", by="you", at=2.0), request="r2")
    assert (await client.get(keys.resolve)).value == encode(retry)
    with pytest.raises(errors.NotParked, match=r"me .*retry"):
        await request_resolve(client, keys, ResolveRecord(action="abort"), request="r3")
    # The operation parks once more: what both wanted has been done.
    await client.delete(keys.resolve)
    for request in ("r1", "r2"):
        await request_resolve(client, keys, retry, request=request)
    assert not (await client.get(keys.resolve)).exists
    await forget_requests(client, client.keyspace.table("t"), 3.0 + BRIEFLY_S)
    assert not (await client.get(client.keyspace.table("t").request("r2"))).exists


async def test_a_repeated_decision_is_answered_as_the_first_was_and_decides_nothing(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C10: not even if the operation was parked again meanwhile, or is over."""
    operation = await parked(service, client, log := tmp_path / "log")
    await service.resolve(operation, "retry", call_id="r1")

    async def parked_again() -> bool:
        tried = len(log.read_text().splitlines())
        return tried == 2 * ATTEMPTS and (await service.get(operation)).completion.parked

    assert await eventually(parked_again)
    assert (await service.resolve(operation, "retry", call_id="r1")).completion.parked
    assert not (await client.get(client.keyspace.operation(operation).resolve)).exists
    with refused("call_id", error=errors.RunReused, operation=str(operation)) as caught:
        await service.resolve(operation, "abort", call_id="r1")
    assert "--run" not in caught.value.hint, "the command has no such option"
    await service.resolve(operation, "abort", call_id="r2")
    assert (await service.ended(operation)).state == pb.FAILED
    for action, request in (("retry", "r1"), ("abort", "r2")):
        assert (await service.resolve(operation, action, call_id=request)).state == pb.FAILED


async def test_a_decision_that_was_acted_upon_before_its_reply_was_missed_is_no_error(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: found by make chaos. The operation is over by the time the decision is sent again; the note of its
    request says that it counted."""
    keys = await parked_in_etcd(client)
    table = client.keyspace.table("t")
    audit = audit_put(table, "resolve", by="me", target=str(keys.operation), at=1.0)
    send = client.txn

    async def meanwhile_over(txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        try:
            return await send(txn, timeout_s=timeout_s)
        except errors.OutcomeUnknown:
            await client.delete(keys.prefix, prefix_end(keys.prefix))
            raise

    monkeypatch.setattr(client, "txn", meanwhile_over)
    client.fail(Fault.LOST_REPLY)
    retry = ResolveRecord(action="retry", by="me", at=1.0)
    await request_resolve(client, keys, retry, request="r1", also=(audit,))
    assert client.spent
    assert not (await client.get(keys.state)).exists
