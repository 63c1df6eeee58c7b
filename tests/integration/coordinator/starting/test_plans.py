"""A plan is never older than the state that its operation starts from."""

import asyncio
import json
from pathlib import Path

import pytest

from distop.client import AsyncClient, FollowUp, OperationState
from distop.coordinator.starting.planner import Planner
from distop.errors import DeadlineExceeded, DistopError, IncompatibleOperation
from distop.metastore.backlog.batches import ordering_of
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.operations.starting import StartRequest, TableState, start
from distop.metastore.records.operation import OperationArg
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from support.etcd.lossy import LossyClient
from support.etcd.starts import make_table
from support.waiting import eventually


class Slow:
    """A plan that takes until it is let go, and the file in which it tells what it has seen."""

    def __init__(self, folder: Path) -> None:
        self._log, self._until = folder / "log", folder / "until"

    @property
    def argument(self) -> dict[str, str]:
        return {"log": str(self._log), "until": str(self._until)}

    @property
    def seen(self) -> list[int]:
        """How far the table was each time that it was planned."""
        return [int(line) for line in self._log.read_text().split()] if self._log.exists() else []

    async def is_planned(self) -> None:
        await eventually(lambda: bool(self.seen))

    def let_go(self) -> None:
        self._until.touch()


@pytest.fixture
def slow(tmp_path: Path) -> Slow:
    return Slow(tmp_path)


async def count(sdk: AsyncClient) -> str | None:
    return (await sdk.table("t").watermarks()).get("tally", {}).get("count")


async def test_an_operation_that_ends_during_planning_is_part_of_the_plan(
    sdk: AsyncClient, slow: Slow
) -> None:
    """P16: it does not start on watermarks that have moved, to fail after all its work."""
    first = asyncio.create_task(sdk.start("t", "tally", slow.argument))
    await slow.is_planned()
    second = await sdk.start("t", "tally")
    assert (await second.wait()).state is OperationState.SUCCEEDED
    slow.let_go()
    ended = await sdk.operation((await first).name).wait()
    assert (ended.state, ended.error) == (OperationState.SUCCEEDED, None)
    assert slow.seen == [0, 1]
    assert await count(sdk) == "2"


async def test_many_that_share_a_watermark_are_all_applied(sdk: AsyncClient) -> None:
    """P16, B13: each is refused while another one runs, is started again, and then succeeds."""

    async def one(number: int) -> OperationState:
        while True:
            try:
                started = await sdk.start("t", "tally", run=f"r{number}")
            except IncompatibleOperation:
                await asyncio.sleep(0)
            else:
                return (await started.wait()).state

    assert set(await asyncio.gather(*(one(number) for number in range(8)))) == {OperationState.SUCCEEDED}
    assert await count(sdk) == "8"


async def test_a_batch_is_planned_on_what_has_ended_meanwhile(
    sdk: AsyncClient, slow: Slow, client: EtcdClient
) -> None:
    """B8: and does not block its table by the commit of another operation."""
    await sdk.table("t").enqueue("b", "tally", slow.argument)
    await slow.is_planned()
    other = await sdk.start("t", "tally")
    assert (await other.wait()).state is OperationState.SUCCEEDED
    slow.let_go()
    assert await eventually(lambda: _is_applied(sdk, "2"))
    assert slow.seen == [0, 1]
    assert ordering_of(await client.get(client.keyspace.table("t").ordering)).last == "b"
    ended = [operation async for operation in sdk.operations("t")]
    assert {operation.state for operation in ended} == {OperationState.SUCCEEDED}


async def _is_applied(sdk: AsyncClient, wanted: str) -> bool:
    return await count(sdk) == wanted and not [batch async for batch in sdk.table("t").backlog()]


async def test_a_follow_up_is_planned_on_what_a_foreign_program_has_moved(
    sdk: AsyncClient, slow: Slow, client: EtcdClient
) -> None:
    """O23: the first operation publishes nothing that would have noticed."""
    one = await sdk.start("t", "noop", {"partitions": 0}, then=FollowUp(type="tally", argument=slow.argument))
    await slow.is_planned()
    await client.put(client.keyspace.table("t").watermarks, json.dumps({"tally": {"count": "7"}}).encode())
    slow.let_go()
    assert (await one.wait()).facts == {"followUp": "t/tally/1"}
    assert (await sdk.operation("t/tally/1").wait()).state is OperationState.SUCCEEDED
    assert slow.seen == [0, 7]
    assert await count(sdk) == "8"


async def test_planning_again_ends_with_the_deadline_of_the_call(
    sdk: AsyncClient, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U4: on a table that keeps changing; nothing is started."""
    keys, moves = client.keyspace.table("t"), iter(range(1_000_000))
    plan = Planner.plan

    async def move(
        planner: Planner, kind: DistributedOperation, request: PlanRequest, limit_s: float, whose: str
    ) -> Plan:
        mark = json.dumps({"tally": {"count": str(next(moves))}}).encode()
        await client.put(keys.watermarks, mark)
        return await plan(planner, kind, request, limit_s, whose)

    monkeypatch.setattr(Planner, "plan", move)
    with pytest.raises(DistopError) as caught:
        await sdk.start("t", "tally", timeout_s=2.0)
    assert caught.value.retryable or isinstance(caught.value, DeadlineExceeded)
    assert next(moves) > 2
    monkeypatch.undo()
    assert not (await client.get(keys.run_ops)).exists


@pytest.mark.parametrize("moved", ["table", "head", "watermarks", "index", "run_ops"])
async def test_a_start_compares_every_key_that_its_plan_has_read(client: LossyClient, moved: str) -> None:
    """O2, P16: every key of it; a change causes planning on the new state."""
    await make_table(client)
    keys = client.keyspace.table("t")
    written = {
        "table": (keys.table, (await client.get(keys.table)).value),
        "head": (keys.head, b'{"metadataLocation":"m"}'),
        "watermarks": (keys.watermarks, b'{"s":{"p":"1"}}'),
        "index": (keys.index("o"), b'{"column":"o","fieldId":1,"manifest":"m","snapshotId":1}'),
        "run_ops": (keys.run_ops, b'{"other":["1"]}'),
    }
    request = StartRequest(
        table="t", type="noop", object="o", run="r", digest="d", index="o", sees_active=True
    )
    planned: list[TableState] = []

    async def make_arg(now: TableState) -> OperationArg:
        if not planned:
            await client.put(*written[moved])
        planned.append(now)
        return OperationArg(table="t", type="noop", object="o", instance=now.next_instance)

    await start(client, keys, request, make_arg, compatible=lambda other: True)
    first, second = planned
    assert first.planned_on != second.planned_on
    changed = {kv.key for kv, before in zip(second.planned_on, first.planned_on, strict=True) if kv != before}
    assert changed == {written[moved][0]}
