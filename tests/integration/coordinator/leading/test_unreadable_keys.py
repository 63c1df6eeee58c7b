"""What nobody can read in etcd, of a newer version or written by hand, harms nobody else."""

import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.client import AsyncClient, OperationState
from distop.coordinator.doctor.records import unreadable_keys
from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore.backlog.batches import DONE
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.operations.pausing import PauseIndex
from distop.metastore.operations.retention import prune
from distop.metastore.records.keyspace import Keyspace, TableKeys
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import encode
from support.etcd.lossy import LossyClient
from support.etcd.starts import begin, make_table
from support.services.coordinators import config_of, leader_of, leadership, members, running, tables_for
from support.services.executing import runner
from support.services.whole import Whole, coordinated
from support.tables.nowhere import nowhere
from support.types.work_types import traces
from support.waiting import eventually

HANGING = "support.types.work_types:Hanging"
INDEXES = (
    "_active _backlog _coordinators _executors _schedules _paused _tables _waiting.0000 _locations _dropped"
)
TAILS = [f"{index}.\udcff" for index in INDEXES.split()]
TAILS += ["_active.t%FF.noop.1", "_active.foo", "_active.t.\udcff", "_paused.t.\udcff", "_waiting.foo"]
TAILS += ["t.\udcff", "t.\udcff.arg", "t.noop.%FF.1.state", "t.schedule.\udcff", "t.requestExpiry.0"]
NEWER = b'{"version": 99}'


def hostile(space: Keyspace) -> list[bytes]:
    """Keys that name nothing."""
    return [space.prefix + tail.encode(errors="surrogateescape") for tail in TAILS]


def damaged(table: TableKeys) -> dict[bytes, bytes]:
    """Values of one table that cannot be read."""
    job = table.operation(OperationId("t", "noop", 7))
    return {
        table.history(OperationId("t", "noop", 5)): b"no JSON",
        table.history(OperationId("t", "noop", 6)): NEWER,
        table.ordering: NEWER,
        table.unordered(DONE, "b"): NEWER,
        table.schedule("nightly"): b"\xff",
        table.agenda: NEWER,
        table.request("r"): NEWER,
        table.watermarks: b"[]",
        table.run_ops: b"[]",
        job.tries("0"): NEWER,
    }


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Whole]:
    async with coordinated(etcd_config, tmp_path, client, more=[HANGING]) as made:
        await made.client.create_table("other", nowhere())
        yield made


async def plant(client: LossyClient) -> dict[bytes, bytes]:
    """What nobody can read, at once; returns it."""
    space = client.keyspace
    planted = dict.fromkeys(hostile(space), NEWER) | damaged(space.table("t"))
    await client.txn(Txn(then=tuple(Put(key, value) for key, value in planted.items())))
    return planted


async def test_an_unreadable_key_harms_no_other_table_or_operation(
    service: Whole, client: LossyClient
) -> None:
    """C11, E4, U1, H3: who runs then goes on, and who begins later, too; operations of other tables end,
    and those of an executor that dies are given back."""
    sdk, folder = service.client, service.folder
    async with runner(client) as (dying, _):
        held = await sdk.start("other", "hanging", {"folder": str(folder), "partitions": 1})
        await eventually(lambda: traces(folder, "began"))
        async with runner(client):
            await plant(client)
            await client.lease_revoke(dying._session.lease_id)
            assert (await held.wait(timeout_s=60)).state is OperationState.SUCCEEDED
            assert (await service.run("noop", "other")).state is OperationState.SUCCEEDED
            async with running(config_of(service.etcd)) as later, AsyncClient(later.address) as other:
                await other.create_table("third", nowhere())
                async with runner(client):
                    assert (await service.run("noop", "third")).state is OperationState.SUCCEEDED
            (folder / "release").touch()
    async with aclosing(sdk.tables()) as listed:
        assert {table.name async for table in listed} >= {"t", "other", "third"}
    assert [member.role for member in await sdk.members()] == ["coordinator"]
    assert await sdk.leaders() is not None


async def test_pruning_goes_on_beside_what_cannot_be_read(service: Whole, client: LossyClient) -> None:
    """O30"""
    table = client.keyspace.table("t")
    await plant(client)
    for instance in range(10, 13):
        record = HistoryRecord(outcome="success", finished_at=float(instance))
        await client.put(table.history(OperationId("t", "noop", instance)), encode(record))
    assert await prune(client, table, now=time.time(), keep=1) == 2
    kept = {kv.key for kv in (await client.scan(table.history_prefix)).kvs}
    assert table.history(OperationId("t", "noop", 5)) in kept
    assert table.history(OperationId("t", "noop", 12)) in kept
    assert len(kept) == 3


async def test_an_unreadable_key_is_named_by_the_doctor_and_removed_by_its_name(
    service: Whole, client: LossyClient
) -> None:
    """U1, U2: by the doctor; what says which rows the table has is removed by nobody."""
    planted, table = await plant(client), client.keyspace.table("t")
    kept = table.ordering, table.watermarks, table.unordered(DONE, "b")
    found = await service.findings(deep=True)
    names = {key: key.decode(errors="backslashreplace") for key in planted}
    unreadable = [one for one in found if one.code == "UNREADABLE_RECORD"]
    told = {
        name: [one for one in unreadable if one.remedy.endswith(f" '{name}' --fix")]
        for name in names.values()
    }
    assert {name: len(some) for name, some in told.items()} == dict.fromkeys(told, 1)
    for key, name in names.items():
        status, shown = await service.distop("cluster", "doctor", "--remove-key", name)
        if key in kept:
            assert shown["error"]["code"] == "PRECONDITION_FAILED"
            continue
        assert (status, [one["fixed"] for one in shown["findings"]]) == (22, [False])
        assert (await client.get(key)).value == planted[key]
        status, shown = await service.distop("cluster", "doctor", "--remove-key", name, "--fix")
        assert (status, [one["fixed"] for one in shown["findings"]]) == (0, [True])
        assert not (await client.get(key)).exists
        assert not (await service.client.remove_key(name, fix=True)).findings
    trail = {entry.target async for entry in service.client.audit() if entry.action == "remove-key"}
    assert trail >= set(names.values()) - {key.decode() for key in kept}


async def test_records_are_read_however_large_they_are(client: LossyClient) -> None:
    """U1: more than one answer of etcd may hold; and what etcd has compacted meanwhile is no matter."""
    table = client.keyspace.table("t")
    root = table.operation(OperationId("t", "noop", 1))
    for index in range(270):
        await client.put(root.commit_chunk(index), bytes(256 << 10))
    late = [table.history(OperationId("t", "noop", 1)), table.ordering]
    for key in late:
        await client.put(key, NEWER)
    found = []
    async with aclosing(unreadable_keys(client, table.prefix, values=True)) as keys:
        async for key, _ in keys:
            found.append(key)
            await client.compact(await client.put(table.entry, b""))
    assert found == late


async def test_the_doctor_removes_no_key_that_can_be_read(service: Whole, client: LossyClient) -> None:
    """U1: nor what this version does not know, or is another installation's."""
    table = client.keyspace.table("t")
    await client.put(table.prefix + b"later", NEWER)
    for key in (table.table, table.entry, table.prefix + b"later", client.keyspace.installation):
        with pytest.raises(PreconditionFailed, match="can be read"):
            await service.client.remove_key(key.decode(), fix=True)
        assert (await client.get(key)).exists
    with pytest.raises(InvalidArgument, match="this installation"):
        await service.client.remove_key("elsewhere.t.history.x", fix=True)


async def test_a_coordinator_whose_key_is_removed_leads_again(service: Whole, client: LossyClient) -> None:
    """C1, C2: it begins again as another member."""
    [before] = (await members(client)).values()
    await client.delete(client.keyspace.coordinator(before.id))
    [after] = await eventually(lambda: members(client))
    assert (await members(client))[after].id != before.id
    async with runner(client):
        assert (await service.run("noop", "other")).state is OperationState.SUCCEEDED
        assert await leader_of(client, "other") == (await members(client))[after].id


async def test_an_executor_whose_key_is_removed_ends_its_incarnation(client: LossyClient) -> None:
    """E1: its service begins the next one."""
    async with runner(client) as (made, _):
        await client.delete(client.keyspace.executor(made.member))
        assert await eventually(lambda: not made._session.alive)


async def test_tables_are_not_given_to_a_member_without_a_lease(client: LossyClient) -> None:
    """C1: a key that no process keeps alive would hold them for ever."""
    names = tables_for([f"m-{number}" for number in range(4)], each=1)
    for number in range(4):
        await client.put(client.keyspace.coordinator(f"m-{number}"), NEWER)
    async with leadership(client) as (_, member):
        for name in names:
            await make_table(client, name)
            await begin(client, table=name, partition_count=1)
            assert await eventually(partial(leader_of, client, name)) == member.id


async def test_a_follower_that_fails_is_started_again(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C11: its defect ends neither the process nor other followers."""
    failures: list[Any] = []
    apply = PauseIndex.apply

    def fails(self: PauseIndex, news: Any) -> Any:
        if len(failures) < 2:
            failures.append(news)
            raise ZeroDivisionError
        return apply(self, news)

    monkeypatch.setattr(PauseIndex, "apply", fails)
    async with leadership(client) as (_, member):
        await make_table(client)
        await begin(client, partition_count=1)
        assert await eventually(lambda: leader_of(client, "t")) == member.id
    assert len(failures) == 2
