"""What an executor holds and does not run: it is given back, whatever became of the take or the release."""

import asyncio
from pathlib import Path

import pytest

from distop.errors import OutcomeUnknown
from distop.executor.runner.runner import Runner
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Put, Txn, TxnResult
from distop.metastore.operations import runs
from distop.metastore.operations.pausing import pause_operation, resume_operation
from distop.metastore.operations.runs import give_back, release_runner
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import ABORTING, PauseRecord
from distop.metastore.tables.audit import audit_put
from distop.proto import distop_pb2 as pb
from support.etcd.lossy import LossyClient
from support.etcd.proxy import Proxy
from support.services import coordinators
from support.services.executing import all_done, lease, runner, runner_of, set_state, start_operation, take
from support.types.work_types import WORK_TYPES, traces
from support.waiting import eventually


class Parted(LossyClient):
    """Loses its connection when etcd has done the first transaction that takes an operation."""

    def __init__(self, proxy: Proxy, config: EtcdConfig) -> None:
        super().__init__(EtcdConfig(endpoints=(proxy.endpoint,), prefix=config.prefix, timeout_s=1.0))
        self._proxy = proxy
        self.took = asyncio.Event()

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        result = await super().txn(txn, timeout_s=timeout_s)
        if not self.took.is_set() and takes(txn):
            self.took.set()
            await self._proxy.refuse()
            raise OutcomeUnknown("the reply was lost")
        return result


def takes(txn: Txn) -> bool:
    return any(isinstance(op, Put) and op.key.endswith(b".runner") for op in txn.then)


async def parted_until_unknown(parted: Parted, serving: Runner) -> None:
    """Until its executor has stopped asking for the outcome."""
    await parted.took.wait()
    await eventually(lambda: not serving._working)
    await parted._proxy.accept()


async def pause(client: EtcdClient, operation: OperationId) -> None:
    table = client.keyspace.table(operation.table)
    note = audit_put(table, "pause", by="jane", target=str(operation), at=0.0)
    await pause_operation(client, client.keyspace.operation(operation), PauseRecord(), note)


async def resume(client: EtcdClient, operation: OperationId) -> None:
    table = client.keyspace.table(operation.table)
    note = audit_put(table, "resume", by="jane", target=str(operation), at=0.0)
    await resume_operation(client, client.keyspace.operation(operation), note)


@pytest.fixture(autouse=True)
def little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A take is not sent again for a minute until its outcome counts as unknown."""
    monkeypatch.setattr(runs, "PATIENCE_S", 0.2)


async def test_an_operation_is_done_though_its_take_had_no_known_outcome(
    client: LossyClient, etcd_config: EtcdConfig
) -> None:
    """H1: etcd cannot be reached from just after the take; the executor lives on."""
    async with Proxy(etcd_config.endpoints[0]) as proxy:
        parted = Parted(proxy, etcd_config)
        async with runner(parted, lease_ttl_s=30, resync_s=0.5) as (serving, _):
            arg = await start_operation(client, jobs=3)
            await parted_until_unknown(parted, serving)
            await all_done(client, arg, 60.0)
            assert await runner_of(client, arg) == serving.member
        await parted.close()


@pytest.mark.parametrize("end", ["cancelled", "paused"])
async def test_an_operation_whose_take_had_no_known_outcome_is_let_go(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path, end: str
) -> None:
    """H1: its executor may not run it any more, and its staged files are swept only without ``.runner``."""
    async with Proxy(etcd_config.endpoints[0]) as proxy:
        parted = Parted(proxy, etcd_config)
        async with runner(parted, lease_ttl_s=30, resync_s=0.5) as (serving, _):
            arg = await start_operation(client, "traced", {"folder": str(tmp_path)}, stages_files=True)
            await parted.took.wait()
            await (set_state(client, arg, ABORTING) if end == "cancelled" else pause(client, arg.id))
            await parted_until_unknown(parted, serving)
            await eventually(lambda: runner_of(client, arg), holds=lambda member: not member)
            if end == "paused":
                await resume(client, arg.id)
                await all_done(client, arg)
        await parted.close()


async def test_a_late_copy_of_a_take_keeps_no_operation_from_others(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """H1: it arrives after its runner has let go of the operation, and has no room for it any more."""
    held, other = ({"folder": str(tmp_path / name), "hold": ["0"]} for name in ("held", "other"))
    for name in ("held", "other"):
        (tmp_path / name).mkdir()
    connected = LossyClient(etcd_config)
    async with runner(connected, max_operations=1, resync_s=0.5) as (first, _):
        arg = await start_operation(client, "traced", held, table="held")
        await eventually(lambda: traces(tmp_path / "held", "holds"))
        (copy,) = [txn for txn in connected.sent if takes(txn)]
        await pause(client, arg.id)
        await eventually(lambda: runner_of(client, arg), holds=lambda member: not member)
        await start_operation(client, "traced", other, table="other")
        await eventually(lambda: traces(tmp_path / "other", "holds"))
        await resume(client, arg.id)
        assert (await client.txn(copy)).succeeded
        assert await runner_of(client, arg) == first.member
        (tmp_path / "held" / "release").touch()
        async with runner(client) as (second, _):
            await all_done(client, arg)
            assert await runner_of(client, arg) == second.member
        (tmp_path / "other" / "release").touch()
    await connected.close()


async def test_an_operation_that_is_held_for_nothing_can_be_cancelled_and_its_table_dropped(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """H1: of a type that stages files, which are swept only when its runner's key is gone."""
    held = {"folder": str(tmp_path), "hold": ["0"], "partitions": 1}
    connected = LossyClient(etcd_config)
    async with (
        coordinators.serving(etcd_config, operations=WORK_TYPES.split(",")) as service,
        runner(connected, resync_s=0.5) as (first, _),
    ):
        await service.create_table("t")
        operation = await service.start("t", "traced", held)
        keys = client.keyspace.operation(operation)
        await eventually(lambda: traces(tmp_path, "holds"))
        (copy,) = [txn for txn in connected.sent if takes(txn)]
        await pause(client, operation)
        await eventually(lambda: client.get(keys.runner), holds=lambda kv: not kv.exists)
        # As it stands after a late copy that came between a resume and this cancel.
        await client.put(keys.runner, put_of(copy).value, lease=first._session.lease_id)
        await service.cancel(operation)
        assert (await service.ended(operation, 60.0)).state == pb.CANCELLED
        await service.tables.DropTable(pb.DropTableRequest(name="t"), timeout=60)
        assert not (await client.scan(keys.prefix)).kvs
    await connected.close()


def put_of(take: Txn) -> Put:
    return next(op for op in take.then if isinstance(op, Put))


class Counting(LossyClient):
    """Counts how often it is asked for the keys of a lease."""

    looks = 0

    async def lease_keys(self, lease: int) -> list[bytes]:
        self.looks += 1
        return await super().lease_keys(lease)


async def test_a_runner_holds_a_finished_operation_until_its_leader_has_ended_it(
    etcd_config: EtcdConfig,
) -> None:
    """And is not run again meanwhile."""
    client = Counting(etcd_config)
    async with runner(client, resync_s=0.1) as (serving, _):
        arg = await start_operation(client, jobs=2)
        await all_done(client, arg)
        await eventually(lambda: serving._settled)
        before, taken = client.looks, len([txn for txn in client.sent if takes(txn)])
        await eventually(lambda: client.looks > before + 5)
        assert await runner_of(client, arg) == serving.member
        assert len([txn for txn in client.sent if takes(txn)]) == taken
        assert serving._settled
        await client.delete(client.keyspace.operation(arg.id).runner)  # as its end does, among others
        await set_state(client, arg, ABORTING)
        await eventually(lambda: not serving._settled)
    await client.close()


async def test_only_what_is_held_under_the_lease_and_not_kept_is_given_back(client: LossyClient) -> None:
    kept, stray, ended, others = [await start_operation(client, table=f"t{number}") for number in range(4)]
    async with lease(client) as mine, lease(client) as foreign:
        taken = [await take(client, arg, mine) for arg in (kept, stray, ended)]
        await take(client, others, foreign)
        await set_state(client, ended, ABORTING)
        held = await give_back(client, mine.lease_id, lambda run: run.key == taken[0].run.key)
        assert {run.key for run in held} == {one.run.key for one in taken}
        assert [bool(await runner_of(client, arg)) for arg in (kept, stray, ended, others)] == [
            *(True, False, False, True)
        ]
        assert await waiting(client) == [stray.id]
        await release_runner(client, taken[0].run)
        assert await give_back(client, mine.lease_id, lambda run: False) == []
    assert await give_back(client, mine.lease_id, lambda run: False) == []


async def waiting(client: EtcdClient) -> list[OperationId]:
    found = (await client.scan(client.keyspace.waiting)).kvs
    return [client.keyspace.parse_waiting(kv.key) for kv in found]


HOSTILE = [b"_active.foo", b"_active.\xff", b"_active.t%FF.noop.1", b"_waiting.0000.\xff", b"_waiting.\xff"]


@pytest.mark.parametrize("key", HOSTILE)
async def test_a_key_that_nobody_can_read_keeps_no_operation_from_its_executor(
    client: LossyClient, key: bytes
) -> None:
    """H3: those of a dead executor, those that wait, and those that come."""
    left, there = await start_operation(client), await start_operation(client)
    async with lease(client) as session:
        await take(client, left, session)
    await client.put(client.keyspace.prefix + key, b"{}")
    async with runner(client, resync_s=0.2):
        for arg in (left, there, await start_operation(client)):
            await all_done(client, arg)
