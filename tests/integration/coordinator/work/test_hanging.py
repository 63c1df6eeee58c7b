"""Code of users that hangs: it delays no other table, is reported, counted, and ended."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from distop.commit.contract import VARIABLE, default_registry
from distop.coordinator.completion import attempts
from distop.coordinator.work import processes, work
from distop.errors import DistopError, UnknownOperationType
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.watch import watch
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import CompletionRecord
from distop.metastore.records.record import decode
from distop.operations import registry
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import from_json, to_json
from support.calls import lives
from support.etcd.lossy import LossyClient
from support.services.coordinators import Service, serving
from support.types.probes import PROBES
from support.types.stuck import STEPS
from support.waiting import eventually

pytestmark = pytest.mark.usefixtures("parks_soon")

TYPES = (*PROBES, "support.types.stuck:Stuck", "support.types.stuck:StuckObject")
FEW_S = 20.0

MANY = 12
"""More than run at a time: those that have run for a second make room for others."""


@pytest.fixture(autouse=True)
def stuck_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, STEPS)
    monkeypatch.setattr(attempts, "NOTE_AFTER_S", 0.1)
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


@asynccontextmanager
async def serving_stuck(etcd: EtcdConfig, call_timeout_s: float = 600.0) -> AsyncIterator[Service]:
    async with serving(etcd, operations=TYPES, call_timeout_s=call_timeout_s) as service:
        await service.create_table("t")
        yield service


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig) -> AsyncIterator[Service]:
    async with serving_stuck(etcd_config) as standing:
        yield standing


def hanging(folder: Path) -> set[int]:
    """The processes that hang, or did: the numbers that are names of files."""
    return {int(path.name) for path in folder.iterdir()}


def hang(where: str, folder: Path, kind: str = "stuck") -> pb.StartOperationRequest:
    argument = to_json({"where": where, "folder": str(folder)}, "argument")
    return pb.StartOperationRequest(table="t", type=kind, argument_json=argument)


async def many_tables(service: Service, count: int) -> list[str]:
    """New tables; their names."""
    names = [f"stuck{number}" for number in range(count)]
    await asyncio.gather(*map(service.create_table, names))
    return names


async def stuck(service: Service, folder: Path, where: str) -> OperationId:
    """An operation whose code hangs, once it hangs."""
    operation = await service.start("t", "stuck", {"where": where, "folder": str(folder)})
    await eventually(lambda: hanging(folder))
    return operation


async def test_plans_that_hang_keep_no_other_table_from_starting(service: Service, tmp_path: Path) -> None:
    """G5."""
    count = MANY
    log, go = tmp_path / "log", tmp_path / "go"
    argument = to_json({"log": str(log), "until": str(go)}, "argument")
    calls = []
    for table in await many_tables(service, count):
        request = pb.StartOperationRequest(table=table, type="tally", argument_json=argument)
        calls.append(service.operations.StartOperation(request, timeout=300))
    await eventually(lambda: log.exists() and len(log.read_text().splitlines()) == count, FEW_S)
    operation = await service.start("t", "seer")
    assert operation.type == "seer"
    assert not any(call.done() for call in calls)
    go.touch()
    for call in calls:
        await call


@pytest.mark.parametrize(
    ("kind", "where", "how"),
    [
        ("stuck", "plan", "cancelled"),
        ("stuck_object", "object_of", "cancelled"),
        ("stuck_object", "object_of", "too late"),
    ],
)
async def test_a_start_that_hangs_ends_with_its_call(
    service: Service, tmp_path: Path, kind: str, where: str, how: str
) -> None:
    """G5: and its neighbours go on."""
    timeout = 300 if how == "cancelled" else 3
    call = service.operations.StartOperation(hang(where, tmp_path, kind), timeout=timeout)
    (pid,) = await eventually(lambda: hanging(tmp_path))
    assert pid != os.getpid()
    await service.create_table("other")
    await service.start("other", "seer")
    if how == "cancelled":
        assert lives(pid)
        call.cancel()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call
    await eventually(lambda: not lives(pid))
    await service.start("t", "seer")


@pytest.mark.parametrize("who", ["a caller", "a batch"])
async def test_a_plan_that_hangs_is_named_and_ended(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    """G5, U1: by why and the doctor; that of a batch ends when its table is paused."""
    monkeypatch.setattr(work, "LONG_S", 0.2)
    start = hang("plan", tmp_path)
    if who == "a caller":
        call = service.operations.StartOperation(start, timeout=300)
    else:
        argument = start.argument_json
        batch = pb.EnqueueBatchRequest(table="t", batch="1", type="stuck", argument_json=argument)
        await distop_pb2_grpc.BacklogServiceStub(service.channel).EnqueueBatch(batch, timeout=10)
    (pid,) = await eventually(lambda: hanging(tmp_path))

    async def why() -> str:
        table = pb.GetTableRequest(name="t")
        return str((await service.tables.ExplainTable(table, timeout=10)).sentence)

    await eventually(why, FEW_S, holds=lambda sentence: "planning stuck" in sentence)
    await eventually(why, FEW_S, holds=lambda sentence: "and may hang" in sentence)
    at_once = pb.DiagnoseRequest(table="t", patience=Duration())
    found = [one async for reply in service.cluster.Diagnose(at_once, timeout=30) for one in reply.findings]
    assert [one.code for one in found if one.code == "CALL_TAKES_LONG"] == ["CALL_TAKES_LONG"]
    if who == "a caller":
        call.cancel()
    else:
        assert "for batch '1'" in await why()
        await service.tables.PauseTable(pb.PauseTableRequest(name="t"), timeout=10)
    await eventually(lambda: not lives(pid))
    await eventually(why, FEW_S, holds=lambda sentence: "planning stuck" not in sentence)


async def test_a_type_that_cannot_be_loaded_hangs_nobody(
    etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: of a package; it is refused by its name."""
    monkeypatch.setattr(processes, "LOAD_S", 1.0)
    until = tmp_path / "until"
    (tmp_path / "hangs_when_loaded.py").write_text(
        f"import pathlib, time\nwhile not pathlib.Path({str(until)!r}).exists():\n    time.sleep(0.01)\n"
    )
    package = tmp_path / "hangs-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: hangs\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[distop.operations]\nhangs = hangs_when_loaded:Hangs\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry._installed.cache_clear()
    at_once = pb.DiagnoseRequest(patience=Duration())

    try:
        async with serving_stuck(etcd_config) as service:

            async def found() -> str:
                replies = [reply async for reply in service.cluster.Diagnose(at_once, timeout=30)]
                return " ".join(one.sentence for reply in replies for one in reply.findings)

            with pytest.raises(UnknownOperationType, match="longer than 1 s"):
                await service.start("t", "hangs")
            await service.ended(await service.start("t", "noop", {"partitions": 0}))
            await eventually(
                found, FEW_S, holds=lambda text: "type hangs until it is restarted: loading it" in text
            )
    finally:
        until.touch()
        registry._installed.cache_clear()


async def test_a_preview_that_hangs_ends_with_its_call(service: Service, tmp_path: Path) -> None:
    """G5."""
    call = service.operations.PreviewOperation(hang("plan", tmp_path), timeout=300)
    (pid,) = await eventually(lambda: hanging(tmp_path))
    call.cancel()
    await eventually(lambda: not lives(pid))


async def test_batches_whose_type_hangs_when_they_are_combined_are_applied_one_by_one(
    etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """G5, B14."""
    async with serving_stuck(etcd_config, call_timeout_s=1.0) as service:
        await combined_one_by_one(service, tmp_path)


async def combined_one_by_one(service: Service, tmp_path: Path) -> None:
    argument = to_json({"where": "combine", "folder": str(tmp_path)}, "argument")
    backlog = distop_pb2_grpc.BacklogServiceStub(service.channel)
    await backlog.SetOrdering(pb.SetOrderingRequest(table="t", gate="closed", together=2), timeout=10)
    for batch in ("1", "2"):
        request = pb.EnqueueBatchRequest(table="t", batch=batch, type="stuck", argument_json=argument)
        await backlog.EnqueueBatch(request, timeout=10)
    await backlog.SetOrdering(pb.SetOrderingRequest(table="t", gate="open"), timeout=10)
    (pid,) = await eventually(lambda: hanging(tmp_path))
    await service.create_table("other")
    await service.ended(await service.start("other", "noop", {"partitions": 0}))
    await eventually(lambda: not lives(pid))
    get, table = service.tables.GetTable, pb.GetTableRequest(name="t")
    await eventually(lambda: get(table, timeout=10), FEW_S, holds=lambda seen: seen.ordering.last == "2")
    assert hanging(tmp_path) == {pid}


@pytest.mark.parametrize(("where", "count"), [("commit_steps", 4), ("hook", MANY), ("step", 4)])
async def test_completions_that_hang_keep_no_other_table_from_publishing(
    etcd_config: EtcdConfig, tmp_path: Path, count: int, where: str
) -> None:
    """G5."""
    async with serving_stuck(etcd_config) as service:
        argument = {"where": where, "folder": str(tmp_path)}
        tables = await many_tables(service, count)
        await asyncio.gather(*(service.start(table, "stuck", argument) for table in tables))
        await eventually(lambda: len(hanging(tmp_path)) == count, FEW_S)
        log = tmp_path.parent / f"{tmp_path.name}.log"
        operation = await service.start("t", "hooked", {"log": str(log), "partitions": 0})
        assert (await service.ended(operation, FEW_S)).state == pb.SUCCEEDED
        assert len(log.read_text().splitlines()) == 1
    await eventually(lambda: not any(map(lives, hanging(tmp_path))))


async def test_a_call_that_does_not_get_its_turn_has_not_failed(service: Service, tmp_path: Path) -> None:
    """G5: others of its table take long, and it is not parked for that."""
    hang = {"where": "hook", "folder": str(tmp_path)}
    longs = [await service.start("t", "stuck_object", hang, object=f"o{n}") for n in range(4)]
    await eventually(lambda: len(hanging(tmp_path)) == 4, FEW_S)
    late = await service.start("t", "stuck_object", {"where": ""}, object="late")
    waits = await eventually(lambda: service.get(late), FEW_S, holds=lambda seen: seen.completion.running)
    assert (waits.completion.running, waits.completion.attempts) == ("commit_steps", 0)
    for operation in longs:
        await service.cancel(operation)
    assert (await service.ended(late, FEW_S)).state == pb.SUCCEEDED


NAMED = {
    "commit_steps": "commit_steps of stuck",
    "hook": "before_publish",
    "step": "commit step 0 (probe.stuck)",
}


@pytest.mark.parametrize("where", NAMED)
async def test_an_operation_whose_completion_takes_too_long_is_parked(
    etcd_config: EtcdConfig, tmp_path: Path, where: str
) -> None:
    """G5: with a code of its own, by its name, and with the option that gives it more time."""
    async with serving_stuck(etcd_config, call_timeout_s=0.5) as service:
        operation = await service.start("t", "stuck", {"where": where, "folder": str(tmp_path)})
        completion = (await service.parked(operation, FEW_S)).completion
        assert (completion.attempts, completion.error.code) == (2, "CALL_TIMEOUT")
        assert completion.step == ("probe.stuck" if where == "step" else "")
        assert NAMED[where] in completion.error.message
        assert "longer than 0.5 s" in completion.error.message
        assert "--call-timeout" in completion.error.message
        await eventually(lambda: not any(map(lives, hanging(tmp_path))))


async def test_an_abort_that_hangs_is_given_up(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """O18: its table goes on."""
    async with serving_stuck(etcd_config, call_timeout_s=0.5) as service:
        argument = {"where": "abort", "folder": str(tmp_path), "partitions": 1}
        operation = await service.start("t", "stuck", argument)
        await service.cancel(operation)
        ended = await service.ended(operation, FEW_S)
        assert ended.state == pb.CANCELLED
        assert "CALL_TIMEOUT" in from_json(ended.facts_json, "facts")["abortError"]


@pytest.mark.parametrize("where", ["commit_steps", "hook", "step"])
async def test_resolve_abort_ends_what_hangs(service: Service, tmp_path: Path, where: str) -> None:
    """G5: once it is reported; other decisions are refused, since the operation is not parked."""
    operation = await stuck(service, tmp_path, where)
    named = {"hook": "before_publish", "step": "executing commit step 0 (probe.stuck)"}
    what = named.get(where, where)
    await eventually(lambda: service.get(operation), holds=lambda one: one.completion.running == what)
    with pytest.raises(DistopError) as refused:
        await service.resolve(operation, "retry")
    assert refused.value.code == "NOT_PARKED"
    await service.resolve(operation, "abort", requested_by="ada")
    ended = await service.ended(operation)
    assert (ended.state, ended.error.code) == (pb.FAILED, "COMPLETION_FAILED")
    assert "by ada" in ended.error.message
    await eventually(lambda: not any(map(lives, hanging(tmp_path))))


@pytest.mark.parametrize("where", ["dies", "exits", "odd"])
async def test_code_that_ends_its_process_has_failed(service: Service, where: str) -> None:
    """O17: and ends nothing else."""
    operation = await service.start("t", "stuck", {"where": where})

    async def parked() -> pb.Completion | None:
        completion = (await service.get(operation)).completion
        return completion if completion.parked else None

    assert (await eventually(parked, FEW_S)).error.code == "CRASHED"


async def test_a_step_that_ends_its_process_is_named_and_can_be_skipped(
    service: Service, tmp_path: Path
) -> None:
    """C10: it is found among those of the same call, however many they are; the others are done once."""
    operation = await service.start("t", "stuck", {"where": "deadly step", "folder": str(tmp_path)})
    completion = (await service.parked(operation, FEW_S)).completion
    assert (completion.step, completion.error.code, completion.skippable) == ("probe.deadly", "CRASHED", True)
    await service.resolve(operation, "skip")
    ended = await service.ended(operation, FEW_S)
    assert ended.state == pb.SUCCEEDED
    assert from_json(ended.facts_json, "facts")["skippedSteps"] == ["probe.deadly"]
    assert hanging(tmp_path) == {*range(40)} - {20}


async def test_a_call_that_has_ended_is_not_said_to_run(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path
) -> None:
    """U3: neither while what follows it takes its time, nor if the operation is parked then."""
    keys = client.keyspace.operation(OperationId.parse("t/hooked/1"))
    async with serving_stuck(etcd_config) as service, aclosing(watch(client, keys.completion)) as changes:
        await anext(changes)
        argument = {"log": str(tmp_path / "log"), "until": str(tmp_path / "until"), "partitions": 0}
        operation = await service.start("t", "hooked", argument)
        await eventually(lambda: service.get(operation), holds=lambda one: one.completion.running)
        (tmp_path / "until").touch()
        assert (await service.ended(operation, FEW_S)).state == pb.SUCCEEDED
        written, over = [], False
        while not over:  # its end removes the record
            events = (await anext(changes)).events
            written += [decode(one.kv.value, CompletionRecord) for one in events if one.kind == "put"]
            over = any(one.kind == "delete" for one in events)
    assert [record.running for record in written] == ["before_publish", ""]
