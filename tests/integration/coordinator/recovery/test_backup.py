"""A backup of etcd in a file, and the look whether it still is one (O27)."""

import asyncio
import json
import os
import time
from contextlib import aclosing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from distop.client import AuditEntry
from distop.coordinator.recovery.backup import BackupDamaged, back_up, check
from distop.coordinator.views.messages import entry_message
from distop.errors import AlreadyExists, EtcdDenied, InvalidArgument, NotFound, Restored
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess, free_port
from distop.metastore.members.installation import BACKUP_LIMIT_S, LEAP, enter, was_restored
from distop.metastore.records.member import BackupRecord
from distop.metastore.records.record import encode
from distop.metastore.tables.audit import audit_put, read_audit
from support.etcd.etcds import enable_users
from support.etcd.restoring import distop
from support.etcd.starts import begin, make_table


async def test_a_backup_tells_what_it_holds_and_leaves_no_mark(client: EtcdClient, tmp_path: Path) -> None:
    await make_table(client)
    await begin(client, partition_count=1)
    before = await client.revision()
    made = await back_up(client, tmp_path / "b.db", by="ada@host")
    assert (made.tables, made.operations, made.prefix) == (1, 1, client.keyspace.name)
    assert made.revision > before
    assert await asyncio.to_thread(check, tmp_path / "b.db") == made
    assert (tmp_path / "b.db").stat().st_mode & 0o777 == 0o600
    assert not (await client.get(client.keyspace.backup)).exists
    (entry, *_), _ = await read_audit(client, client.keyspace.audit_prefix, limit=1)
    shown = AuditEntry.from_proto(entry_message(entry))
    assert (shown.action, shown.by, shown.argument) == ("backup", "ada@host", {"file": "b.db"})
    assert sorted(os.listdir(tmp_path)) == ["b.db", "b.db.json"]


async def test_what_release_0_2_0_wrote_of_a_backup_is_read(client: EtcdClient) -> None:
    """U2: one entry must not hide the whole audit trail."""
    keyspace = client.keyspace
    put = audit_put(keyspace, "backup", by="ada", target=keyspace.name, argument="b.db", at=time.time())
    await client.put(put.key, put.value)
    (entry,), _ = await read_audit(client, keyspace.audit_prefix, limit=1)
    assert AuditEntry.from_proto(entry_message(entry)).argument == {"file": "b.db"}


async def test_a_backup_overwrites_no_file(client: EtcdClient, tmp_path: Path) -> None:
    await back_up(client, tmp_path / "b.db", by="")
    with pytest.raises(AlreadyExists):
        await back_up(client, tmp_path / "b.db", by="")
    with pytest.raises(InvalidArgument):
        await back_up(client, tmp_path / "nowhere" / "b.db", by="")
    assert not (await client.get(client.keyspace.backup)).exists


@pytest.mark.parametrize(("age_s", "stays"), [(BACKUP_LIMIT_S, True), (3 * BACKUP_LIMIT_S, False)])
async def test_a_mark_of_a_killed_backup_goes_in_time(client: EtcdClient, age_s: float, stays: bool) -> None:
    """Else it would one day be taken for that of a restored etcd."""
    await enter(client)
    await client.put(client.keyspace.backup, encode(BackupRecord(at=time.time() - age_s)))
    await enter(client)
    assert (await client.get(client.keyspace.backup)).exists == stays


@pytest.mark.parametrize("damage", ["cut", "changed", "longer"])
async def test_a_damaged_backup_is_found(client: EtcdClient, tmp_path: Path, damage: str) -> None:
    file = tmp_path / "b.db"
    await back_up(client, file, by="")
    content = bytearray(file.read_bytes())
    if damage == "changed":
        content[len(content) // 2] ^= 1
    file.write_bytes(content[:-1] if damage == "cut" else content + b"x" * (damage == "longer"))
    with pytest.raises(BackupDamaged):
        check(file)


def test_a_backup_without_its_manifest_is_none(tmp_path: Path) -> None:
    (tmp_path / "b.db").write_bytes(b"")
    with pytest.raises(NotFound, match=r"b\.db\.json"):
        check(tmp_path / "b.db")


async def test_a_mark_that_a_killed_backup_left_keeps_nobody_out(client: EtcdClient, tmp_path: Path) -> None:
    await enter(client)
    await client.put(client.keyspace.backup, encode(BackupRecord(at=time.time())))
    await enter(client)
    await back_up(client, tmp_path / "b.db", by="")
    mark = await client.get(client.keyspace.backup)
    assert not mark.exists
    await client.put(client.keyspace.backup, encode(BackupRecord(at=time.time())))
    mark = await client.get(client.keyspace.backup)
    assert not was_restored(mark, mark.mod_revision + LEAP)
    assert was_restored(mark, mark.mod_revision + LEAP + 1)
    assert Restored.retryable, "a service that is there waits until the tables are mended"


async def test_a_snapshot_is_of_the_member_that_has_everything(
    etcd: EtcdProcess, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O27: and not of one that the client has moved on to since, which may lag behind."""
    other = f"127.0.0.1:{free_port()}"
    client = EtcdClient(EtcdConfig(endpoints=(etcd.endpoint, other), prefix=prefix))
    metadata, calls = client.members.metadata, []

    async def moves_on(timeout_s: float) -> Any:
        calls.append(client.endpoint)
        if len(calls) > 1:
            client.members.leave(etcd.endpoint)
        return await metadata(timeout_s)

    monkeypatch.setattr(client.members, "metadata", moves_on)
    async with aclosing(client.snapshot(10.0)) as pieces:
        assert await anext(pieces)
    await client.close()


async def test_only_root_of_an_etcd_with_users_gets_a_snapshot(tmp_path: Path, prefix: str) -> None:
    with EtcdProcess(tmp_path / "etcd") as etcd:
        enable_users(etcd, user="distop", password="secret", prefix=f"{prefix}.")
        for user, password, may in (("distop", "secret", False), ("root", "root", True)):
            config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user=user, password=password)
            client = EtcdClient(config)
            file = tmp_path / user
            if may:
                assert (await back_up(client, file, by="")).sha256 == check(file).sha256
            else:
                with pytest.raises(EtcdDenied):
                    await back_up(client, file, by="")
                assert os.listdir(tmp_path) == ["etcd"], "what is incomplete does not fill a disk"
                assert not (await client.get(client.keyspace.backup)).exists
            await client.close()


async def test_the_command_says_when_and_what(client: EtcdClient, tmp_path: Path) -> None:
    """Times are UTC, and text."""
    file, config = str(tmp_path / "b.db"), client.config
    said = await asyncio.to_thread(distop, config.endpoints[0], config.prefix, "cluster", "backup", file)
    again = await asyncio.to_thread(
        distop, config.endpoints[0], config.prefix, "cluster", "backup", "--check", file
    )
    assert said == again
    told = json.loads(said)
    assert datetime.fromisoformat(told["at"]).utcoffset() == timedelta(0)
    assert told["prefix"] == config.prefix
    await asyncio.to_thread(
        distop, config.endpoints[0], config.prefix, "cluster", "backup", file, succeeds=False
    )
