"""Who leads a table, what a new leader knows, and what it survives: coordinators in this process."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from distop.coordinator.leading.driver import TableDriver
from distop.coordinator.leading.leadership import Leadership, preferred
from distop.coordinator.service import Coordinator
from distop.errors import EtcdOutOfSpace
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.txn import KeyValue, Put, Txn, TxnResult
from distop.metastore.etcd.update import MAX_TRIES
from distop.metastore.members.lease import LeaseSession, campaign
from distop.metastore.operations.ending import FinishParts, finish, finish_txn, seal
from distop.metastore.operations.retention import EVERY
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    RUNNING,
    ErrorRecord,
    HistoryRecord,
    JobRecord,
    OperationArg,
    WatermarkMove,
)
from distop.metastore.records.record import encode
from distop.proto import distop_pb2 as pb
from support.etcd.etcds import etcdctl, fill
from support.etcd.jobs import mark, mark_all
from support.etcd.lossy import Fault, LossyClient, deletes, puts
from support.etcd.proxy import Proxy
from support.etcd.starts import begin, make_table
from support.services.coordinators import (
    Service,
    config_of,
    leader_of,
    leadership,
    running,
    serving,
    tables_for,
    through,
)
from support.services.leases import LEASE_S, TTL_S
from support.waiting import eventually


async def state_of(client: EtcdClient, operation: OperationId) -> bytes:
    return (await client.get(client.keyspace.operation(operation).state)).value


async def over(client: EtcdClient, operation: OperationId) -> bool:
    """Whether an operation has its history and no key any more."""
    keys = client.keyspace.table(operation.table)
    below = (await client.scan(keys.operation(operation).prefix)).kvs
    active = await client.get(client.keyspace.active_operation(operation))
    return (await client.get(keys.history(operation))).exists and not below and not active.exists


async def test_each_table_with_work_has_its_one_leader(etcd_config: EtcdConfig, client: EtcdClient) -> None:
    """O24."""
    async with AsyncExitStack() as stack:
        standing = [await stack.enter_async_context(running(config_of(etcd_config))) for _ in range(3)]
        members = [coordinator.member for coordinator in standing]
        tables = tables_for(members, each=4)
        for table in tables:
            await make_table(client, table)
            await begin(client, table=table)

        async def led() -> bool:
            return all([await leader_of(client, table) == preferred(members, table) for table in tables])

        assert await eventually(led)


async def test_a_key_that_names_no_operation_holds_up_none(service: Service, client: EtcdClient) -> None:
    """C11: its table goes on."""
    await client.put(client.keyspace.active + b"t.odd", b"{}")
    operation = await service.start("t", "noop", {"partitions": 1})
    await mark(client, operation, "0")
    assert (await service.ended(operation)).state == pb.SUCCEEDED


async def test_tables_without_work_have_no_leader(etcd_config: EtcdConfig, client: EtcdClient) -> None:
    """O24: a hundred thousand idle tables cost nothing; a burst of operations pays for one election."""
    await make_table(client)
    async with serving(etcd_config, linger_s=0.3) as service:
        await service.ended(await service.start("t", argument={"partitions": 0}))
        epoch = (await client.get(client.keyspace.table("t").coordinator)).create_revision
        await service.ended(await service.start("t", argument={"partitions": 0}))
        again = await client.get(client.keyspace.table("t").coordinator)
        assert again.create_revision == epoch
        await eventually(lambda: leader_of(client, "t"), holds=lambda leader: not leader)
        await service.ended(await service.start("t", argument={"partitions": 0}))


@pytest.mark.parametrize("linger_s", [0.0, 5.0])
async def test_work_moves_when_a_coordinator_leaves(
    etcd_config: EtcdConfig, client: EtcdClient, linger_s: float
) -> None:
    """O24, O26: at once, in the middle of an operation, with a higher epoch."""
    await make_table(client)
    operation = await begin(client, partition_count=2)
    config = config_of(etcd_config, linger_s=linger_s)
    async with running(config) as staying, running(config) as leaving:
        # The first that stood may have led before the other one came; the table then moves on.
        first = preferred([staying.member, leaving.member], "t")
        if first == staying.member:
            staying, leaving = leaving, staying
        await eventually(lambda: leader_of(client, "t"), holds=lambda found: found == first)
        await mark(client, operation, "0")
        epoch = (await client.get(client.keyspace.table("t").coordinator)).create_revision
        began = asyncio.get_running_loop().time()
        leaving.stop()
        await eventually(lambda: leader_of(client, "t"), holds=lambda found: found == staying.member)
        assert asyncio.get_running_loop().time() - began < LEASE_S / 2, "before the lease would expire"
        assert (await client.get(client.keyspace.table("t").coordinator)).create_revision > epoch
        await mark(client, operation, "1")
        assert await eventually(lambda: over(client, operation))


async def test_a_joining_member_is_handed_tables_at_work(etcd_config: EtcdConfig, client: EtcdClient) -> None:
    """O24: what runs goes on under the new leader, and each table moves once."""
    tables = [f"t{number}" for number in range(8)]
    for table in tables:
        await make_table(client, table)
    operations = [await begin(client, table=table, partition_count=1) for table in tables]
    async with running(config_of(etcd_config, linger_s=8)) as old:
        for table in tables:
            await eventually(lambda table=table: leader_of(client, table))
        began = await client.revision()
        async with running(config_of(etcd_config, linger_s=8)) as new:
            mine = [table for table in tables if preferred([old.member, new.member], table) == new.member]

            async def moved() -> bool:
                return {one for one in tables if await leader_of(client, one) == new.member} == set(mine)

            assert await eventually(moved)
            for table in tables:
                kv = await client.get(client.keyspace.table(table).coordinator)
                assert (kv.create_revision > began) is (table in mine), "the others stay where they are"
            for operation in operations:
                await mark(client, operation, "0")
                assert await eventually(lambda operation=operation: over(client, operation))
            assert await moved()


async def test_tables_with_work_are_handed_over_one_after_the_other(
    etcd_config: EtcdConfig, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O24: a member that joins costs no burst of elections."""
    monkeypatch.setattr("distop.coordinator.leading.leadership.MOVE_EVERY_S", 3600.0)
    asked, moves = Counter[str](), Leadership._moves

    async def counted(leading: Leadership, table: str, driver: TableDriver) -> bool:
        asked[table] += 1
        return await moves(leading, table, driver)

    monkeypatch.setattr(Leadership, "_moves", counted)
    tables = [f"t{number}" for number in range(24)]
    for table in tables:
        await make_table(client, table)
        await begin(client, table=table, partition_count=1)
    async with running(config_of(etcd_config, linger_s=0.1)) as old:
        for table in tables:
            await eventually(lambda table=table: leader_of(client, table))
        async with running(config_of(etcd_config, linger_s=0.1)) as new:

            async def led() -> int:
                return [await leader_of(client, table) for table in tables].count(new.member)

            mine = [table for table in tables if preferred([old.member, new.member], table) == new.member]
            await eventually(led)
            asked.clear()
            await eventually(lambda: sum(asked[table] > 2 for table in mine) >= len(mine) - 1)
            assert await led() == 1 < len(mine)


@pytest.mark.parametrize("fault", [Fault.DOWN, Fault.LOST_REQUEST])
async def test_a_resignation_that_fails_is_tried_again(client: LossyClient, fault: Fault) -> None:
    """O25: else everybody waits for a leader that does nothing."""
    await make_table(client)
    coordinator = client.keyspace.table("t").coordinator
    async with leadership(client):
        client.fail(*[fault] * (MAX_TRIES + 1), when=deletes(coordinator))
        operation = await begin(client)
        assert await eventually(lambda: over(client, operation))
        await eventually(lambda: client.get(coordinator), holds=lambda found: not found.exists)
        assert client.spent


async def test_a_campaign_whose_reply_was_lost_is_won_all_the_same(client: LossyClient) -> None:
    """O24, O25."""
    await make_table(client)
    client.fail(*[Fault.LOST_REPLY] * (MAX_TRIES + 1), when=puts(client.keyspace.table("t").coordinator))
    async with leadership(client):
        operation = await begin(client)
        assert await eventually(lambda: over(client, operation))
        assert client.spent


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.parametrize("leave_keys", [False, True])
async def test_every_step_of_an_end_survives_every_fault(
    client: LossyClient, etcd_config: EtcdConfig, fault: Fault, leave_keys: bool
) -> None:
    """O17, P8: seal, finish and collect each meet it, twice unless it is found done the first time; the
    operation ends, and ends once."""
    times = 1 if fault is Fault.FULL_YET_DONE else 2
    user = EtcdClient(etcd_config)
    await make_table(user)
    keys = user.keyspace.table("t")
    steps: list[Callable[[OperationKeys], Callable[[Txn], bool]]] = [
        lambda op: puts(op.state),
        lambda op: puts(keys.history(op.operation)),
        lambda op: deletes(op.arg) if leave_keys else lambda txn: False,
    ]
    async with leadership(client):
        for step in steps:
            instance = int((await user.get(keys.next_instance("noop"))).value or b"1")
            op = keys.operation(OperationId("t", "noop", instance))
            client.fail(*[fault] * times, when=step(op))
            # Something to publish: else there is no seal.
            moves = {"source": {str(instance): WatermarkMove(after="1")}}
            operation = await begin(
                user, partition_count=1, stages_files=leave_keys, location="file:///none", watermarks=moves
            )
            assert operation == op.operation
            await mark(user, operation, "0")
            assert await eventually(lambda operation=operation: over(user, operation))
            history = await user.get(keys.history(operation))
            assert history.mod_revision == history.create_revision, "written once"
            assert await eventually(lambda: client.spent or not leave_keys)
    await user.close()


async def test_the_hook_of_an_operation_that_has_ended_is_not_told_that_there_were_no_results(
    client: LossyClient, tmp_path: Path
) -> None:
    """O17: all replies to its finish are lost, so its leader looks at it once more."""
    await make_table(client)
    log = tmp_path / "log"
    async with leadership(client) as (leading, _):
        operation = OperationId("t", "hooked", 1)
        history = client.keyspace.table("t").history(operation)
        client.fail(*[Fault.LOST_REPLY] * MAX_TRIES, when=puts(history))
        assert await begin(client, kind="hooked", argument={"log": str(log)}, partition_count=1) == operation
        await mark(client, operation, "0")
        assert await eventually(lambda: over(client, operation))
        assert await eventually(lambda: client.spent and not any(map(list, leading.led().values())))
    assert {line.split()[-1] for line in log.read_text().splitlines()} == {"0"}


async def test_operations_that_end_together_do_not_make_each_other_lose(client: LossyClient) -> None:
    """P4: all of a table's finishes change one key; the cost of ending them grows with their number only."""
    await make_table(client)
    async with leadership(client):
        starts = (begin(client, kind="per_object", object=f"o{n}", partition_count=1) for n in range(30))
        operations = await asyncio.gather(*starts)
        client.sent.clear()
        await asyncio.gather(*(mark(client, operation, "0") for operation in operations))
        for operation in operations:
            assert await eventually(lambda operation=operation: over(client, operation))
        ends = {client.keyspace.table("t").history(operation) for operation in operations}
        finishes = [txn for txn in client.sent for op in txn.then if isinstance(op, Put) and op.key in ends]
        # The first may be sent before the leader has heard of the last start.
        assert len(operations) <= len(finishes) <= len(operations) + 1


class RacedClient(LossyClient):
    """While ``races``, somebody else changes ``runOps`` before every finish."""

    races = True

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        if self.races and any(isinstance(op, Put) and b".history." in op.key for op in txn.then):
            key = self.keyspace.table("t").run_ops
            await super().put(key, (await self.get(key)).value)
        return await super().txn(txn, timeout_s=timeout_s)


async def test_a_finish_that_always_loses_stands_back(
    etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """P6: it is tried again, not for ever and not without a pause, and ends when the others let it."""
    monkeypatch.setattr("distop.coordinator.completion.completion.MAX_REBASES", 3)
    client = RacedClient(etcd_config)
    await make_table(client)
    async with leadership(client):
        operation = await begin(client)
        await eventually(lambda: "operation_action_failed" in caplog.text)
        assert await state_of(client, operation) == COMMITTING
        client.races = False
        assert await eventually(lambda: over(client, operation))
    await client.close()


async def test_a_new_leader_derives_everything_from_etcd(etcd_config: EtcdConfig, client: EtcdClient) -> None:
    """O24: running, sealed either way, half collected; with jobs that finished while nobody led."""
    await make_table(client)
    keys = client.keyspace.table("t")
    anyone: dict[str, Any] = {"compatible": lambda other: True}
    done = await begin(client, kind="friend", partition_count=2, **anyone)
    failed = await begin(client, kind="friendly", partition_count=2, **anyone)
    waiting = await begin(client, kind="per_object", object="o", partition_count=1, **anyone)
    committing = await begin(client, kind="noop", **anyone)
    aborting = await begin(client, kind="slow", partition_count=1, **anyone)
    collecting = await begin(client, kind="clumsy", partition_count=30, **anyone)
    await mark_all(client, done, ["0", "1"])
    await mark(client, failed, "1", error="why")
    await mark_all(client, collecting, [str(number) for number in range(30)])
    async with LeaseSession(client, 10) as session:
        epoch = await campaign(client, keys, session, LeaderRecord(member="gone"))
        assert epoch is not None
        error = ErrorRecord(code="CANCELLED", message="by hand")
        for operation, after in ((committing, COMMITTING), (aborting, ABORTING), (collecting, COMMITTING)):
            because = error if after == ABORTING else None
            await seal(client, keys.operation(operation), epoch, before=RUNNING, after=after, error=because)
        plan = FinishParts(
            sealed=COMMITTING,
            run_ops=await client.get(keys.run_ops),
            history=HistoryRecord(outcome="success"),
            leave_keys=True,
        )
        op = keys.operation(collecting)
        await finish(client, keys, op, epoch, finish_txn(keys, op, epoch, plan))

    async with serving(etcd_config) as service:
        for operation, state in (
            (done, pb.SUCCEEDED),
            (failed, pb.FAILED),
            (committing, pb.SUCCEEDED),
            (aborting, pb.CANCELLED),
            (collecting, pb.SUCCEEDED),
        ):
            assert (await service.ended(operation)).state == state
            assert await eventually(lambda operation=operation: over(client, operation))
        assert await state_of(client, waiting) == RUNNING
        await mark(client, waiting, "0")
        assert (await service.ended(waiting)).state == pb.SUCCEEDED


async def test_an_operation_started_between_listing_and_watching_is_not_missed(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """O24: starts race with a leader that comes up and goes idle, in many rounds."""
    await make_table(client)
    async with serving(etcd_config, linger_s=0.0) as service:
        for _ in range(40):
            operation = await service.start("t", argument={"partitions": 0})
            assert (await service.ended(operation)).state == pb.SUCCEEDED


async def test_a_lost_lease_is_the_end_of_an_incarnation_and_not_of_the_coordinator(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """O13, O25: a new member with a new epoch goes on with the work."""
    await make_table(client)
    operation = await begin(client, partition_count=1)
    async with running(config_of(etcd_config)) as coordinator:
        first = await eventually(lambda: leader_of(client, "t"))
        lease = (await client.get(client.keyspace.coordinator(first))).lease
        await client.lease_revoke(lease)
        await eventually(lambda: leader_of(client, "t"), holds=lambda found: found not in ("", first))
        assert coordinator.member != first
        await mark(client, operation, "0")
        assert await eventually(lambda: over(client, operation))


async def test_the_loss_of_the_leaders_own_key_is_noticed(
    etcd_config: EtcdConfig, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O25: the session lives on, the leadership does not; somebody leads again."""
    monkeypatch.setattr("distop.coordinator.leading.leadership.OWN_KEYS_S", 0.05)
    await make_table(client)
    operation = await begin(client, partition_count=1)
    async with running(config_of(etcd_config)):
        await eventually(lambda: leader_of(client, "t"))
        key = client.keyspace.table("t").coordinator
        epoch = (await client.get(key)).create_revision
        await client.delete(key)
        await eventually(lambda: client.get(key), holds=lambda found: found.create_revision > epoch)
        await mark(client, operation, "0")
        assert await eventually(lambda: over(client, operation))


async def test_a_campaign_that_arrives_late_is_not_waited_for(client: LossyClient) -> None:
    """O25: its key comes when the member that has sent it waits for the leader's to go. It leads then."""
    await make_table(client)
    coordinator = client.keyspace.table("t").coordinator
    await client.put(coordinator, encode(LeaderRecord(member="other")), lease=await client.lease_grant(60))
    operation = await begin(client)
    client.sent.clear()
    async with leadership(client) as (_, member):
        campaigns = await eventually(lambda: [txn for txn in client.sent if puts(coordinator)(txn)])
        lease = next(op.lease for op in campaigns[0].then if isinstance(op, Put))
        await client.put(coordinator, encode(LeaderRecord(member=member.id)), lease=lease)
        assert await eventually(lambda: over(client, operation))


async def test_a_campaign_that_arrives_after_its_table_was_resigned_is_given_back(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O24, O25: its lease lives on, so that the member that should lead would wait for ever."""
    monkeypatch.setattr("distop.coordinator.leading.leadership.OWN_KEYS_S", 0.05)
    tables = [f"t{number}" for number in range(12)]
    for table in tables:
        await make_table(client, table)
    async with leadership(client) as (_, old), leadership(client) as (_, new):
        mine = next(table for table in tables if preferred([old.id, new.id], table) == new.id)
        key = client.keyspace.table(mine).coordinator
        old_kv = await client.get(client.keyspace.coordinator(old.id))
        await client.put(key, encode(LeaderRecord(member=old.id)), lease=old_kv.lease)
        operation = await begin(client, table=mine)
        assert await eventually(lambda: over(client, operation))


async def test_a_stray_key_of_a_leader_is_given_back_before_there_is_work(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O24, O25: whoever should lead once there is some need not wait for it."""
    monkeypatch.setattr("distop.coordinator.leading.leadership.OWN_KEYS_S", 0.05)
    async with leadership(client) as (_, member):
        lease = (await client.get(client.keyspace.coordinator(member.id))).lease
        idle, others = (client.keyspace.table(name).coordinator for name in ("t", "other's"))
        await client.put(others, encode(LeaderRecord(member="other")))
        await client.put(idle, encode(LeaderRecord(member=member.id)), lease=lease)
        await eventually(lambda: client.get(idle), holds=lambda found: not found.exists)
        assert (await client.get(others)).exists


async def test_an_etcd_that_is_away_for_longer_than_a_lease(
    etcd_config: EtcdConfig, etcd: EtcdProcess, client: EtcdClient
) -> None:
    """O27: leading ends within the TTL and begins again; what happened meanwhile is found."""
    await make_table(client)
    operation = await begin(client, partition_count=1)
    async with Proxy(etcd.endpoint) as proxy:
        config = config_of(through(etcd_config, proxy.endpoint), lease_ttl_s=TTL_S)
        async with running(config):
            first = await eventually(lambda: leader_of(client, "t"))
            await proxy.refuse()
            await mark(client, operation, "0")
            await eventually(lambda: leader_of(client, "t"), holds=lambda found: not found)
            await proxy.accept()
            assert await eventually(lambda: over(client, operation))
            assert await leader_of(client, "t") != first


async def test_an_etcd_that_restarts(tmp_path: Path, prefix: str) -> None:
    """O27: with a job that finishes before, and one after."""
    with EtcdProcess(tmp_path) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)
        client = EtcdClient(config)
        await make_table(client)
        operation = await begin(client, partition_count=2)
        async with running(config_of(config)):
            await eventually(lambda: leader_of(client, "t"))
            await mark(client, operation, "0")
            await asyncio.to_thread(etcd.stop)
            await asyncio.to_thread(etcd.start)
            await mark(client, operation, "1")
            assert await eventually(lambda: over(client, operation))
        await client.close()


async def test_lost_history_under_a_leader(
    etcd_config: EtcdConfig, etcd: EtcdProcess, client: EtcdClient
) -> None:
    """O27: marks and a whole operation in what was compacted while its watch was cut off."""
    await make_table(client)
    running_ = await begin(client, kind="friend", partition_count=3)
    async with Proxy(etcd.endpoint) as proxy, running(config_of(through(etcd_config, proxy.endpoint))):
        first = await eventually(lambda: leader_of(client, "t"))
        for round_ in range(3):
            await proxy.refuse()
            await mark(client, running_, str(round_))
            other = await begin(
                client, kind="per_object", object=f"o{round_}", compatible=lambda _: True, partition_count=1
            )
            await mark(client, other, "0")
            await client.compact(await client.put(client.keyspace.prefix + b"x", b""))
            await proxy.accept()
            assert await eventually(lambda other=other: over(client, other))
        assert await eventually(lambda: over(client, running_))
        assert await leader_of(client, "t") == first, "short cuts do not cost the leadership"


async def test_a_seal_that_was_delayed_in_the_network_changes_nothing(
    etcd_config: EtcdConfig, etcd: EtcdProcess, client: EtcdClient
) -> None:
    """O10, O24: it reaches etcd after the next leader has taken over and finished."""
    await make_table(client)
    operation = await begin(client, partition_count=1)
    keys = client.keyspace.table("t")
    async with Proxy(etcd.endpoint) as proxy, running(config_of(through(etcd_config, proxy.endpoint))):
        await eventually(lambda: leader_of(client, "t"))
        proxy.hold_requests()
        await mark(client, operation, "0")
        await eventually(lambda: proxy.held)
        await client.lease_revoke((await client.get(keys.coordinator)).lease)  # as if its time were over
        async with running(config_of(etcd_config)):
            assert await eventually(lambda: over(client, operation))
            history = await client.get(keys.history(operation))
            proxy.flow()
            await eventually(lambda: not proxy.held)
            other = await begin(client)
            assert await eventually(lambda: over(client, other))
            assert await client.get(keys.history(operation)) == history
            assert await over(client, operation)


async def test_an_unreadable_one_blocks_only_itself(etcd_config: EtcdConfig, client: EtcdClient) -> None:
    """C11, U1: written by a newer version, or by no version at all."""
    await make_table(client)
    anyone: dict[str, Any] = {"compatible": lambda other: True}
    newer = await begin(client, kind="friend", partition_count=1, **anyone)
    arg = OperationArg(table="t", type="friend", instance=newer.instance, version=9)
    await client.put(client.keyspace.operation(newer).arg, encode(arg))
    strange = await begin(client, kind="friendly", partition_count=1, **anyone)
    job = client.keyspace.operation(strange).job_state("0")
    await client.put(job, encode(JobRecord(state="success", version=9)))
    healthy = await begin(client, kind="noop", partition_count=1, **anyone)
    async with serving(etcd_config) as service:
        await mark(client, healthy, "0")
        assert (await service.ended(healthy)).state == pb.SUCCEEDED
        later = await begin(client, kind="per_object", object="o", **anyone)
        assert (await service.ended(later)).state == pb.SUCCEEDED
        shown = await service.get(strange)
        assert (shown.state, shown.error.code) == (pb.RUNNING, "CORRUPT_RECORD")
        assert "layout 9" in shown.error.message
        await service.cancel(strange)
        assert (await service.ended(strange)).state == pb.CANCELLED
        assert await state_of(client, newer) == RUNNING


async def test_an_operation_whose_steps_this_version_does_not_know_blocks_only_itself(
    etcd_config: EtcdConfig, client: EtcdClient, parks_soon: None
) -> None:
    """C11: a newer version may know another mode of ingest."""
    await make_table(client)
    anyone: dict[str, Any] = {"compatible": lambda other: True}
    later = await begin(client, kind="ingest", argument={"mode": "of a newer version"}, **anyone)
    async with serving(etcd_config) as service:
        healthy = await begin(client, kind="noop", **anyone)
        assert (await service.ended(healthy)).state == pb.SUCCEEDED
        await service.parked(later)


async def test_an_operation_that_is_removed_by_hand_is_forgotten(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """O15: it does not keep its leader busy for ever."""
    await make_table(client)
    hook = {"log": str(tmp_path / "log"), "until": str(tmp_path / "go")}
    async with running(config_of(etcd_config, linger_s=0.2)):
        operation = await begin(client, kind="hooked", argument=hook)
        await eventually((tmp_path / "log").exists)
        keys = client.keyspace.operation(operation)
        await client.delete(keys.prefix, prefix_end(keys.prefix))
        await client.delete(client.keyspace.active_operation(operation))
        await client.delete(client.keyspace.table("t").run_ops)
        (tmp_path / "go").touch()
        await eventually(lambda: leader_of(client, "t"), holds=lambda found: not found)
        again = await begin(client)
        assert await eventually(lambda: over(client, again))


async def test_an_operation_whose_state_is_removed_by_hand_is_collected(
    etcd_config: EtcdConfig, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O15, U1: by the leader in office, as the doctor says."""
    monkeypatch.setattr("distop.coordinator.leading.driver.CHECK_STATES_S", 0.05)
    await make_table(client)
    async with running(config_of(etcd_config, linger_s=0.2)):
        operation = await begin(client, partition_count=2)
        keys = client.keyspace.operation(operation)
        await eventually(lambda: leader_of(client, "t"))
        await mark(client, operation, "0")
        await client.delete(keys.state)

        async def left() -> list[KeyValue]:
            return (await client.scan(keys.prefix)).kvs

        await eventually(left, holds=lambda kvs: not kvs)
        assert not (await client.get(client.keyspace.active_operation(operation))).exists
        await eventually(lambda: leader_of(client, "t"), holds=lambda found: not found)


async def test_a_full_etcd_does_not_end_a_coordinator(tmp_path: Path, prefix: str) -> None:
    """O27: NOSPACE, also while it starts; it leads as soon as there is room."""
    with EtcdProcess(tmp_path, options=("--quota-backend-bytes=2000000",)) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)
        client = EtcdClient(config)
        await make_table(client)
        operation = await begin(client)
        filling = client.keyspace.prefix + b"filling"
        with pytest.raises(EtcdOutOfSpace):
            await fill(client, filling)
        coordinator = Coordinator(config_of(config))
        running_ = asyncio.create_task(coordinator.run())
        await eventually(lambda: coordinator.address)
        async with Service(coordinator.address) as service:
            assert (await service.get(operation)).state == pb.COMMITTING, "reads go on"
            assert not running_.done()
            # Deleting is allowed without space; room comes of forgetting, and of saying so.
            await asyncio.to_thread(etcdctl, etcd, "del", filling.decode())
            await client.compact(await client.revision())
            for command in (("defrag",), ("alarm", "disarm")):
                await asyncio.to_thread(etcdctl, etcd, *command)
            assert (await service.ended(operation)).state == pb.SUCCEEDED
        coordinator.stop()
        await running_
        await client.close()


async def test_only_so_much_history_is_kept(
    service: Service, client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O22: the newest, and nothing of what still runs; requests are remembered apart from it."""
    monkeypatch.setattr("distop.metastore.operations.retention.prune.__kwdefaults__", {"keep": 10})
    keys = client.keyspace.table("t")
    old = [
        Put(
            keys.history(OperationId("t", "noop", number)),
            encode(HistoryRecord(outcome="success", run=f"r{number}", finished_at=float(number))),
        )
        for number in range(1, EVERY)
    ]
    await client.txn(Txn(then=tuple(old)))
    await client.txn(Txn(then=tuple(Put(keys.request(f"r{number}"), b"{}") for number in range(1, EVERY))))
    await client.put(keys.next_instance("noop"), b"%d" % EVERY)
    operation = await service.start("t", argument={"partitions": 0}, run=f"r{EVERY}")
    await service.ended(operation)

    async def kept() -> list[str]:
        listed = await service.operations.ListOperations(pb.ListOperationsRequest(table="t"))
        return [each.name for each in listed.operations]

    await eventually(kept, holds=lambda found: len(found) == 10)
    assert set(await kept()) == {f"t/noop/{number}" for number in range(EVERY - 9, EVERY + 1)}
    assert (await client.get(keys.request("r1"))).exists
