"""Operations that publish through external steps: logged, executed, gone on with, parked and resolved."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from distop.commit.contract import VARIABLE, default_registry
from distop.errors import DistopError, NotSkippable
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import COMMITTING
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json
from support.etcd.jobs import mark_all
from support.etcd.lossy import LossyClient
from support.services.backlogs import (
    configure,
    drained,
    has_applied,
    is_blocked_by,
    open_gate,
    ordering,
    put,
    unblock,
)
from support.services.coordinators import Service, serving
from support.types.step_probes import STEPS
from support.waiting import eventually

TYPES = ("support.types.step_probes:Stepped",)


@pytest.fixture(autouse=True)
def probe_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(VARIABLE, STEPS)
    default_registry.cache_clear()
    yield
    default_registry.cache_clear()


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, parks_soon: None) -> AsyncIterator[Service]:
    async with serving(etcd_config, operations=TYPES) as standing:
        await standing.create_table("t")
        yield standing


async def start(
    service: Service, client: LossyClient, folder: Path, *, step: str = "probe.write", jobs: int = 3
) -> OperationId:
    argument = {"partitions": jobs, "folder": str(folder), "step": step}
    operation = await service.start("t", "stepped", argument)
    await mark_all(client, operation, map(str, range(jobs)))
    return operation


async def parked(
    service: Service, client: LossyClient, folder: Path, *, broken: str = "1", step: str = "probe.write"
) -> OperationId:
    """An operation of which one step is broken for good."""
    (folder / f"{broken}.broken").write_text("for good")
    operation = await start(service, client, folder, step=step)
    await service.parked(operation)
    return operation


def written(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != "journal" and not path.suffix}


def executions(folder: Path) -> list[str]:
    return (folder / "journal").read_text().splitlines()


async def nothing_left(client: LossyClient, operation: OperationId) -> bool:
    left = (await client.scan(client.keyspace.operation(operation).prefix)).kvs
    return not left


async def test_steps_are_executed_in_order_and_once(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C1, C16: and the log goes with the operation's other keys."""
    operation = await start(service, client, tmp_path)
    ended = await service.ended(operation)
    assert ended.state == pb.SUCCEEDED
    assert from_json(ended.facts_json, "facts")["written"] == 4
    assert written(tmp_path) == {"0", "1", "2", "last"}
    assert sorted(executions(tmp_path)[:3]) == ["0", "1", "2"]
    assert executions(tmp_path)[3:] == ["last"]
    request = pb.GetOperationRequest(name=str(operation), events=True)
    events = [one.what for one in (await service.operations.GetOperation(request)).events]
    assert events[-6:] == [*["step done"] * 4, "commit prepared", "finished"]
    assert await eventually(lambda: nothing_left(client, operation))


async def test_a_step_that_fails_is_tried_again_and_the_others_are_not(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C3, C10, C13: another leader goes on with the log, after a decision of a person."""
    (tmp_path / "1.broken").touch()
    operation = await start(service, client, tmp_path)
    parked = await service.parked(operation)
    assert (parked.completion.step, parked.completion.attempts) == ("probe.write", 2)
    assert "it is broken" in parked.completion.error.message
    assert "last" not in written(tmp_path)
    (tmp_path / "1.broken").unlink()
    await service.resolve(operation, "retry")
    assert (await service.ended(operation)).state == pb.SUCCEEDED
    assert written(tmp_path) == {"0", "1", "2", "last"}
    assert executions(tmp_path).count("0") == executions(tmp_path).count("last") == 1


async def test_an_external_step_that_can_never_succeed_parks_its_operation_at_once(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C6, C10."""
    (tmp_path / "1.broken").write_text("for good")
    operation = await start(service, client, tmp_path)
    assert (await service.parked(operation)).completion.attempts == 1


async def test_skipping_leaves_out_the_one_step(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C10: the history says so."""
    operation = await parked(service, client, tmp_path)
    await service.resolve(operation, "skip")
    ended = await service.ended(operation)
    assert ended.state == pb.SUCCEEDED
    assert from_json(ended.facts_json, "facts")["skippedSteps"] == ["probe.write"]
    assert written(tmp_path) == {"0", "2", "last"}


async def test_steps_with_rows_are_not_skipped(service: Service, client: LossyClient, tmp_path: Path) -> None:
    operation = await parked(service, client, tmp_path, step="probe.must")
    with pytest.raises(NotSkippable):
        await service.resolve(operation, "skip")


async def test_aborting_takes_back_what_was_done(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C10: and says how much of it."""
    operation = await parked(service, client, tmp_path, broken="last")
    assert written(tmp_path) == {"0", "1", "2"}
    await service.resolve(operation, "abort", requested_by="me")
    ended = await service.ended(operation)
    assert (ended.state, ended.error.code) == (pb.FAILED, "COMPLETION_FAILED")
    facts = from_json(ended.facts_json, "facts")
    assert (facts["stepsUndone"], facts["stepsNotUndone"]) == (3, 0), "the last one never was executed"
    assert written(tmp_path) == set()
    assert await eventually(lambda: nothing_left(client, operation))


async def test_steps_whose_process_dies_while_they_are_taken_back_are_taken_back_by_another(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C10: that one attempt has failed leaves no rows of an aborted operation in its table."""
    (tmp_path / "1.fatal").touch()
    operation = await parked(service, client, tmp_path, broken="last")
    await service.resolve(operation, "abort")
    facts = from_json((await service.ended(operation)).facts_json, "facts")
    assert facts["stepsNotUndone"] == 0
    assert written(tmp_path) == set()


@pytest.mark.parametrize("undone", [True, False])
async def test_a_batch_that_was_aborted_is_not_applied_again_by_itself(
    service: Service, client: LossyClient, tmp_path: Path, undone: bool
) -> None:
    """B9, C10: its rows may be in the table. Whoever aborted it decides."""
    (tmp_path / "last.broken").write_text("for good")
    await put(client, "b", kind="stepped", partitions=1, folder=str(tmp_path), step="probe.write")
    operation = OperationId.parse(await eventually(lambda: applying(client)))
    await mark_all(client, operation, ["0"])
    await service.parked(operation)
    if not undone:
        await client.put(client.keyspace.operation(operation).commit, b"of a later version")
    await service.resolve(operation, "abort")
    assert await eventually(lambda: is_blocked_by(client, "b", "COMPLETION_FAILED"))
    blocked = (await ordering(client)).blocked
    assert blocked is not None
    assert ("skip its batches if their rows are in the table" in blocked.error) is not undone
    assert not await drained(client)


async def test_each_batch_of_an_abort_that_left_something_waits_for_a_decision(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """B8, B14, C10: the rows of all may be in the table, not only those of the first."""
    keys, broken = client.keyspace.table("t"), tmp_path / "last.broken"
    broken.write_text("for good")
    await configure(client, gate="closed", together=2)
    for name in "abc":
        await put(client, name, kind="stepped", partitions=1, folder=str(tmp_path), step="probe.write")
    await open_gate(client, keys)
    operation = OperationId.parse(await eventually(lambda: applying(client)))
    await mark_all(client, operation, ["0", "1"])
    await service.parked(operation)
    await client.put(client.keyspace.operation(operation).commit, b"of a later version")
    await service.resolve(operation, "abort")
    assert await eventually(lambda: is_blocked_by(client, "a", "COMPLETION_FAILED"))
    await unblock(client, keys, "a", skip=True)
    assert await eventually(lambda: is_blocked_by(client, "b", "COMPLETION_FAILED"))
    broken.unlink()
    await unblock(client, keys, "b", skip=False)
    for names in ("ab", "abc"):
        again = OperationId.parse(await eventually(lambda: applying(client)))
        await mark_all(client, again, ["0"])
        assert await eventually(lambda names=names: has_applied(client, list(names)))


async def applying(client: LossyClient) -> str:
    return (await ordering(client)).running


async def test_a_log_that_cannot_be_read_does_not_hold_up_the_end(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C10, C11: the operation is aborted all the same, and says that its steps were not taken back."""
    operation = await parked(service, client, tmp_path)
    await client.put(client.keyspace.operation(operation).commit, b"of a later version")
    await service.resolve(operation, "abort")
    ended = await service.ended(operation)
    assert ended.state == pb.FAILED
    facts = from_json(ended.facts_json, "facts")
    assert "CORRUPT_RECORD" in str(facts["undoError"])
    assert facts["stepsNotUndone"], "what they have made may be in use: it is not swept"


async def test_once_steps_may_have_been_executed_it_is_too_late_to_cancel(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """O19: the answer is the truth, and says what can be done instead."""
    operation = await parked(service, client, tmp_path)
    with pytest.raises(DistopError) as refused:
        await service.cancel(operation)
    assert refused.value.code == "TOO_LATE_TO_CANCEL"
    assert f"distop operation resolve {operation} abort" in refused.value.hint
    assert not (await service.get(operation)).cancel_requested
    await service.resolve(operation, "abort")
    assert (await service.ended(operation)).state == pb.FAILED


async def test_the_next_leader_goes_on_with_the_log(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path
) -> None:
    """C4, C13: it executes what is left, and nothing twice."""
    (tmp_path / "last.broken").touch()
    async with serving(etcd_config, operations=TYPES) as service:
        await service.create_table("t")
        operation = await start(service, client, tmp_path)
        # The last one begins when all others are done.
        assert await eventually(lambda: (tmp_path / "journal").exists() and "last" in executions(tmp_path))
    assert written(tmp_path) == {"0", "1", "2"}
    assert (await client.get(client.keyspace.operation(operation).state)).value == COMMITTING
    (tmp_path / "last.broken").unlink()
    async with serving(etcd_config, operations=TYPES) as service:
        assert (await service.ended(operation)).state == pb.SUCCEEDED
    assert written(tmp_path) == {"0", "1", "2", "last"}
    assert [executions(tmp_path).count(name) for name in "012"] == [1, 1, 1]


async def test_a_step_nobody_knows_blocks_only_its_own_operation(
    service: Service, client: LossyClient, tmp_path: Path
) -> None:
    """C11: it is reported by name."""
    operation = await start(service, client, tmp_path, step="probe.newer")
    parked = await service.parked(operation)
    assert parked.completion.error.code == "UNKNOWN_COMMIT_STEP"
    assert "'probe.newer'" in parked.completion.error.message
    await service.create_table("other")
    argument = {"partitions": 0, "folder": str(tmp_path), "step": "probe.write"}
    other = await service.start("other", "stepped", argument)
    assert (await service.ended(other)).state == pb.SUCCEEDED
