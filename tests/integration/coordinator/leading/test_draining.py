"""Draining a coordinator: its tables go to another one at once, with what runs on them."""

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack, aclosing

import pytest

from distop.errors import CorruptRecord, NotFound, PreconditionFailed
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.watch import watch
from distop.metastore.members.registration import set_draining
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.audit import audit_put
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import make_table
from support.services.coordinators import Service, config_of, leader_of, raising, running, tables_for
from support.waiting import eventually


async def drain(service: Service, member: str, *, undo: bool = False) -> pb.Member:
    request = pb.DrainCoordinatorRequest(member=member, undo=undo, requested_by="jane", reason="new host")
    with raising():
        seen: pb.Member = await service.cluster.DrainCoordinator(request, timeout=10)
    return seen


async def led_by(client: LossyClient, tables: Iterable[str], *members: str) -> bool:
    """Whether all tables are led, by these and nobody else."""
    return {await leader_of(client, table) for table in tables} == set(members)


async def leaders_since(client: LossyClient, tables: Iterable[str], revision: int) -> set[str]:
    """Who has begun to lead any of the tables after a revision and up to now."""
    now, found = await client.revision(), set[str]()
    for table in tables:
        key = client.keyspace.table(table).coordinator
        async with aclosing(watch(client, key, from_revision=revision + 1)) as changes:
            standing = await client.get(key)
            async for batch in changes:
                records = [one.kv for one in batch.events if one.kind == "put"]
                found |= {decode(kv.value, LeaderRecord).member for kv in records}
                if batch.revision >= min(now, standing.mod_revision):
                    break
    return found


async def test_a_drained_coordinator_hands_over_what_runs_and_gets_nothing_new(
    client: LossyClient, etcd_config: EtcdConfig
) -> None:
    """O21, O26: no operation is lost, calls are still answered, and it can lead again."""
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(running(config_of(etcd_config, linger_s=0.1))) for _ in range(2)
        ]
        tables = tables_for([first.member, second.member], each=3)
        for table in tables:
            await make_table(client, table)
        service = await stack.enter_async_context(Service(first.address))
        operations = [await service.start(table, "noop", {"partitions": 1}) for table in tables]
        await eventually(lambda: led_by(client, tables, first.member, second.member))

        assert (await drain(service, first.member)).draining
        assert (await drain(service, first.address)).id == first.member, "twice is fine, and by its address"
        await eventually(lambda: led_by(client, tables, second.member))
        listed = await service.cluster.ListMembers(pb.ListMembersRequest())
        assert {one.id: one.draining for one in listed.members} == {first.member: True, second.member: False}
        record = client.keyspace.coordinator(first.member)
        since = (await client.get(record)).mod_revision
        assert await leaders_since(client, tables, since) == {second.member}, "it does not campaign again"
        with pytest.raises(PreconditionFailed, match="last coordinator"):
            await drain(service, second.member)
        with pytest.raises(NotFound):
            await drain(service, "nobody")

        for operation in operations:
            await mark(client, operation, "0")
            assert (await service.ended(operation)).state == pb.SUCCEEDED
        operations = [await service.start(table, "noop", {"partitions": 1}) for table in tables]
        await eventually(lambda: led_by(client, tables, second.member))
        assert not (await drain(service, first.member, undo=True)).draining
        await _end(client, service, operations)
        await eventually(lambda: led_by(client, tables, ""))  # running operations stay where they are
        again = [await service.start(table, "noop", {"partitions": 1}) for table in tables]
        await eventually(lambda: led_by(client, tables, first.member, second.member))
        await _end(client, service, again)
        trail = await service.cluster.ListAudit(pb.ListAuditRequest())
        said = [(one.action, one.target, one.by, one.reason) for one in trail.entries]
        assert said == [(act, first.member, "jane", "new host") for act in ("undrain", "drain")]


async def test_a_lost_reply_of_a_drain_drains_once(client: LossyClient, etcd_config: EtcdConfig) -> None:
    """O21, U2"""
    space = client.keyspace
    async with running(config_of(etcd_config)) as first, running(config_of(etcd_config)):
        client.fail(Fault.LOST_REPLY, Fault.LOST_REQUEST, when=puts(space.coordinator(first.member)))
        assert (await _drain_in_etcd(client, first.member)).draining
        assert client.spent
        assert len((await client.scan(space.audit_prefix)).kvs) == 1


async def test_one_of_two_coordinators_drained_at_once_goes_on(
    client: LossyClient, etcd_config: EtcdConfig
) -> None:
    """O21: each would have been the one that takes the other's tables."""
    space = client.keyspace

    async def elsewhere() -> None:
        other = LossyClient(etcd_config)
        try:
            await _drain_in_etcd(other, "b")
        finally:
            await other.close()

    for member in "ab":
        record = MemberRecord(id=member, role="coordinator", address=f"{member}:1")
        await client.put(space.coordinator(member), encode(record))
    # The drain of the first one is sent twice; meanwhile somebody drains the other.
    client.fail(Fault.LOST_REQUEST, when=puts(space.coordinator("a")))
    client.meanwhile.append(lambda: asyncio.run(elsewhere()))
    with pytest.raises(PreconditionFailed, match="last coordinator"):
        await _drain_in_etcd(client, "a")
    kvs = (await client.scan(space.coordinators)).kvs
    assert [decode(kv.value, MemberRecord).draining for kv in kvs] == [False, True]


async def test_a_member_that_cannot_be_read_prevents_no_drain_of_others(client: LossyClient) -> None:
    """O21: nor does it count as one that could take their tables."""
    space = client.keyspace
    await client.put(space.coordinator("damaged"), b"damaged")
    for member in "ab":
        record = MemberRecord(id=member, role="coordinator", address=f"{member}:1")
        await client.put(space.coordinator(member), encode(record))
    assert (await _drain_in_etcd(client, "a")).draining
    with pytest.raises(PreconditionFailed, match="last coordinator"):
        await _drain_in_etcd(client, "b")
    with pytest.raises(CorruptRecord, match="damaged"):
        await _drain_in_etcd(client, "damaged")


async def _drain_in_etcd(client: LossyClient, member: str) -> MemberRecord:
    audit = audit_put(client.keyspace, "drain", by="jane", target=member, at=1.0)
    return await set_draining(client, member, lambda _: audit, draining=True)


async def _end(client: LossyClient, service: Service, operations: list[OperationId]) -> None:
    for operation in operations:
        await mark(client, operation, "0")
        await service.ended(operation)
