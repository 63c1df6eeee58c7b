"""Dropping a table: nothing is left of it, and whatever interrupts that is gone on with."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from queue import Queue
from threading import Event, current_thread
from typing import Any

import pytest

from distop.client import AsyncClient
from distop.coordinator import service
from distop.coordinator.leading import leadership
from distop.errors import (
    IncompatibleOperation,
    LeadershipLost,
    LocationInUse,
    LocationNotOwned,
    TableNotFound,
)
from distop.lake.cleanup import purge
from distop.lake.layout.staging import take_folder
from distop.metastore.etcd.client import EtcdClient, RangePage
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Put, Txn, TxnResult
from distop.metastore.members.lease import LeaseSession, campaign
from distop.metastore.operations.ending import seal
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import COMMITTING, RUNNING
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import DropRecord, LocationRecord, TableRecord
from distop.metastore.tables.audit import audit_put
from distop.metastore.tables.registry import drop_table, finish_drop
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import begin, make_table
from support.refusals import refused
from support.services.coordinators import config_of, running
from support.tables.nowhere import nowhere
from support.waiting import eventually


async def keys_below(client: LossyClient, table: str = "t") -> list[str]:
    """What is left of a table; in the indexes, too."""
    space = client.keyspace
    kvs = (await client.scan(space.prefix, keys_only=True)).kvs
    names = [kv.key[len(space.prefix) :].decode() for kv in kvs]
    return [
        name
        for name in names
        if name.startswith(f"{table}.")
        or name.split(".")[:2] in ([index, table] for index in ("_active", "_paused", "_dropped", "_backlog"))
    ]


def below(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


async def leave_nothing(record: DropRecord) -> None:
    """Remove no files."""


async def die(record: DropRecord) -> None:
    raise KeyboardInterrupt


async def drop(
    client: EtcdClient, remove: Callable[[DropRecord], Awaitable[None]] = leave_nothing, **fields: Any
) -> DropRecord:
    """Drop the table ``t`` without a coordinator; ``fields``: of its tombstone."""

    def tombstone(record: TableRecord) -> DropRecord:
        return DropRecord(**{"name": "t", "location": record.location, "uuid": record.uuid, **fields})

    audit = audit_put(client.keyspace, "drop-table", by="", target="t", at=1.0)
    return await drop_table(client, client.keyspace.table("t"), tombstone, audit, remove)


async def record_of(client: LossyClient, table: str = "t") -> TableRecord:
    return decode((await client.get(client.keyspace.table(table).table)).value, TableRecord)


async def fill(client: LossyClient, count: int, table: str = "t") -> None:
    """Many keys below a table."""
    keys = client.keyspace.table(table)
    for first in range(0, count, 100):
        numbers = range(first, min(first + 100, count))
        await client.txn(Txn(then=tuple(Put(keys.request(str(number)), b"{}") for number in numbers)))


async def test_a_dropped_table_leaves_nothing_and_its_name_is_free(
    sdk: AsyncClient, client: LossyClient, tmp_path: Path
) -> None:
    """U2, U3: many keys go in bites; its files stay; it is in the trail of the installation."""
    (tmp_path / "file").touch()
    await sdk.create_table("t", str(tmp_path))
    await sdk.create_table("t2", "/tmp/elsewhere")
    operation = await sdk.start("t", "noop", {"partitions": 1})
    await mark(client, OperationId.parse(operation.name), "0")
    await operation.wait()
    await sdk.table("t").pause()
    await fill(client, 4500)
    await sdk.table("t").drop("old")
    assert await keys_below(client) == []
    assert (tmp_path / "file").exists()
    assert await keys_below(client, "t2")
    with pytest.raises(TableNotFound):
        await sdk.table("t").drop()
    trail = [(entry.action, entry.target, entry.by, entry.reason) async for entry in sdk.audit()]
    assert trail[0] == ("drop-table", "t", "jane", "old")
    await sdk.create_table("t", str(tmp_path))
    assert (await sdk.start("t", "noop", {"partitions": 0})).started.instance == 1


async def test_a_table_at_work_is_not_dropped(sdk: AsyncClient, client: LossyClient) -> None:
    """The error names the operation; once that is over it can be."""
    await sdk.create_table("t", nowhere())
    operation = await sdk.start("t", "noop", {"partitions": 1})
    with refused(error=IncompatibleOperation, operation=operation.name):
        await sdk.table("t").drop()
    assert (await sdk.table("t").get()).running == (operation.name,)
    await operation.cancel()
    await operation.wait()
    await sdk.table("t").drop()
    assert await keys_below(client) == []


async def test_purging_removes_nothing_that_distop_did_not_write(sdk: AsyncClient, tmp_path: Path) -> None:
    """S2: a folder that held files before; it is said before anything is dropped."""
    (tmp_path / "letters").touch()
    await sdk.create_table("t", f"{tmp_path}/./")
    with pytest.raises(LocationNotOwned):
        await sdk.table("t").drop(purge=True)
    assert (await sdk.table("t").get()).name == "t"
    await sdk.table("t").drop()
    assert below(tmp_path) == ["letters"]


async def test_purging_needs_the_claim(sdk: AsyncClient, client: LossyClient, tmp_path: Path) -> None:
    """S2: a table that has lost it may have lost it to another one."""
    folder = tmp_path / "t"
    table = await sdk.create_table("t", str(folder))
    take_folder(table.location, table.uuid)
    key = client.keyspace.location(table.location)
    standing = await client.get(key)
    for value in (b"", encode(LocationRecord(table="u", uuid="x"))):
        await client.txn(Txn(then=(Put(key, value) if value else DeleteRange(key),)))
        with pytest.raises(LocationInUse if value else LocationNotOwned):
            await sdk.table("t").drop(purge=True)
    await client.put(key, standing.value)
    await sdk.table("t").drop(purge=True)
    assert below(tmp_path) == []
    await sdk.create_table("t", str(folder))
    await sdk.table("t").drop(purge=True)  # nothing was ever written there


async def test_a_folder_is_free_again_only_when_its_files_are_gone(
    sdk: AsyncClient, client: LossyClient, tmp_path: Path
) -> None:
    """S2: else what is still to be removed would be the next table's."""
    table = await sdk.create_table("t", str(tmp_path / "t"))
    take_folder(table.location, table.uuid)
    with pytest.raises(KeyboardInterrupt):
        await drop(client, die, purge=True)
    with refused("location", error=LocationInUse, table="t"):
        await sdk.create_table("u", table.location)
    await sdk.table("t").drop()
    assert below(tmp_path) == []
    await sdk.create_table("u", table.location)


async def test_a_drop_that_was_interrupted_is_gone_on_with(
    sdk: AsyncClient, client: LossyClient, tmp_path: Path
) -> None:
    """By a repeated drop, or by creating a table with that name, which has no history of the old one."""
    keys, folder = client.keyspace.table("t"), tmp_path / "t"
    for again in (sdk.table("t").drop(), sdk.create_table("t", nowhere())):
        await make_table(client)
        take_folder(str(folder), (await record_of(client)).uuid)
        await fill(client, 10)
        with pytest.raises(KeyboardInterrupt):
            await drop(client, die, location=str(folder), purge=True)
        with pytest.raises(TableNotFound):
            await sdk.table("t").get()
        assert len(await keys_below(client)) == 11
        await again
        assert not folder.exists()
        assert not (await client.get(keys.request("3"))).exists
        assert not (await client.get(client.keyspace.dropped("t"))).exists


@pytest.mark.parametrize("made_again", [True, False])
async def test_a_drop_whose_reply_is_lost_takes_no_table_that_was_made_after_it(
    client: LossyClient, etcd_config: EtcdConfig, made_again: bool
) -> None:
    """P8: somebody else has finished the drop meanwhile, and perhaps made another table."""
    await make_table(client)
    before = await record_of(client)
    client.fail(Fault.LOST_REPLY, when=puts(client.keyspace.dropped("t")))

    async def goes_on() -> None:
        other = EtcdClient(etcd_config)
        try:
            await drop(other)  # goes on with it
            if made_again:
                await make_table(other)
        finally:
            await other.close()

    client.meanwhile.append(lambda: asyncio.run(goes_on()))
    assert (await drop(client)).uuid == before.uuid
    assert client.spent
    assert (await client.get(client.keyspace.table("t").table)).exists == made_again


async def test_a_late_drop_takes_nothing_of_the_next_table_of_that_name(client: LossyClient) -> None:
    """P8, H4: while it removed files, somebody else finished it, made another table, and renamed that,
    whose history is still to be moved."""
    await make_table(client)
    renamed = DropRecord(name="t", location="", uuid="another", renamed_to="u")
    history = client.keyspace.table("t").history(OperationId("t", "noop", 1))

    async def is_slow(record: DropRecord) -> None:
        await drop(client)
        await client.put(client.keyspace.dropped("t"), encode(renamed))
        await client.put(history, b"{}")

    await drop(client, is_slow)
    assert (await client.get(history)).exists
    assert (await client.get(client.keyspace.dropped("t"))).value == encode(renamed)


async def test_nothing_late_of_a_dropped_tables_leader_changes_the_next_table_of_that_name(
    client: LossyClient,
) -> None:
    """H4, O10: such as the seal of an operation; numbers of instances begin anew."""
    keys = client.keyspace.table("t")
    await make_table(client)
    async with LeaseSession(client, 10) as session:
        epoch = await campaign(client, keys, session, LeaderRecord(member="m"))
        assert epoch is not None
        await drop(client)
        await make_table(client)
        operation = keys.operation(await begin(client, partition_count=1))
        with pytest.raises(LeadershipLost):
            await seal(client, operation, epoch, before=RUNNING, after=COMMITTING)
        assert (await client.get(operation.state)).value == RUNNING


class Late(LossyClient):
    """Somebody else finishes the rename of ``t`` before its history is read, and makes another table."""

    record: DropRecord | None = None

    async def get_range(self, start: bytes, end: bytes, **how: Any) -> RangePage:
        keys, record = self.keyspace.table("t"), self.record
        if start == keys.history_prefix and record is not None:
            self.record = None
            await finish_drop(self, keys, record, leave_nothing)
            await make_table(self)
            await self.put(keys.history(OperationId("t", "noop", 1)), b"another")
        return await super().get_range(start, end, **how)


async def test_a_rename_that_comes_late_moves_nothing_of_the_next_table_of_that_name(
    etcd_config: EtcdConfig,
) -> None:
    """P8: the history of the renamed table gets no lines of that one, which would lose them."""
    client = Late(etcd_config)
    await make_table(client, "u")
    old, new = client.keyspace.table("t"), client.keyspace.table("u")
    record = DropRecord(name="t", location="", uuid=(await record_of(client, "u")).uuid, renamed_to="u")
    await client.put(client.keyspace.dropped("t"), encode(record))
    await client.put(old.history(OperationId("t", "noop", 1)), b"its own")
    client.record = record
    await finish_drop(client, old, record, leave_nothing)
    assert (await client.get(old.history(OperationId("t", "noop", 1)))).value == b"another"
    assert (await client.get(new.history(OperationId("u", "noop", 1)))).value == b"its own"
    await client.close()


@pytest.mark.parametrize("purge", [False, True])
async def test_only_the_table_that_is_meant_is_dropped(sdk: AsyncClient, tmp_path: Path, purge: bool) -> None:
    """P8: a repeated call takes no table that was made after the first one, whatever runs on that."""
    before = await sdk.create_table("t", str(tmp_path / "before"))
    await sdk.table("t").drop()
    after = await sdk.create_table("t", str(tmp_path / "after"))
    running = await sdk.start("t", "noop", {"partitions": 1})
    with pytest.raises(TableNotFound, match="another one by now"):
        await sdk._call("DropTable", name="t", uuid=before.uuid, purge=purge)
    await running.cancel()
    await running.wait()
    await sdk._call("DropTable", name="t", uuid=after.uuid, purge=purge)
    with pytest.raises(TableNotFound):
        await sdk.table("t").get()


class Overtaken(LossyClient):
    """An operation is started by somebody else just before the table is dropped."""

    begun: OperationId | None = None

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        if self.begun is None and puts(self.keyspace.dropped("t"))(txn):
            self.begun = OperationId("t", "noop", 1)
            assert await begin(self) == self.begun
        return await super().txn(txn, timeout_s=timeout_s)


async def test_an_operation_that_starts_meanwhile_wins(etcd_config: EtcdConfig) -> None:
    """Its table is not taken from under it."""
    client = Overtaken(etcd_config)
    await make_table(client)
    with refused(error=IncompatibleOperation, operation="t/noop/1"):
        await drop(client, location="")
    assert (await client.get(client.keyspace.table("t").table)).exists
    assert (await client.scan(client.keyspace.audit_prefix)).kvs == []
    await client.close()


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_lost_reply_drops_once(client: LossyClient, fault: Fault) -> None:
    """U2: and once in the trail."""
    await make_table(client)
    client.fail(fault, fault, when=puts(client.keyspace.dropped("t")))
    await drop(client, location="")
    assert client.spent
    assert await keys_below(client) == []
    assert len((await client.scan(client.keyspace.audit_prefix)).kvs) == 1


async def test_a_purge_that_hangs_hangs_where_the_coordinator_expects_it(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: in a thread for storage, which neither delays its end nor other calls."""
    found, released = Queue[str](), Event()

    def hangs(*_: object) -> bool:
        found.put(current_thread().name)
        return released.wait(60)

    monkeypatch.setattr(purge, "purge", hangs)
    monkeypatch.setattr(leadership, "DROPS_EVERY_S", 0.1)
    monkeypatch.setattr(leadership, "PURGING_S", 0.2)
    record = DropRecord(name="gone", location=str(tmp_path / "gone"), uuid="u", purge=True)
    try:
        async with running(config_of(etcd_config)):
            await client.put(client.keyspace.dropped("gone"), encode(record))
            await eventually(found.qsize)
            assert found.get().startswith(service.WORKING)
    finally:
        released.set()


async def test_purges_that_hang_keep_no_drop_from_being_finished(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: however many hang, those after them have their turns."""
    released = Event()
    monkeypatch.setattr(purge, "purge", lambda *_: released.wait(60))
    monkeypatch.setattr(leadership, "DROPS_EVERY_S", 0.05)
    monkeypatch.setattr(leadership, "PURGING_S", 0.1)
    monkeypatch.setattr(leadership, "DROPS_AT_ONCE", 1)
    hangs, last = client.keyspace.dropped("a"), client.keyspace.dropped("z")
    try:
        async with running(config_of(etcd_config)):
            for name, key in (("a", hangs), ("z", last)):
                place = str(tmp_path / name)
                await client.put(key, encode(DropRecord(name=name, location=place, purge=key is hangs)))
            await eventually(lambda: client.get(last), holds=lambda kv: not kv.exists)
            assert (await client.get(hangs)).exists
    finally:
        released.set()
