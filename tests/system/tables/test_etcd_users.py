"""The whole service on an etcd that lets it touch its own keys only; `make test-etcd` takes others."""

import asyncio
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from distop.errors import EtcdDenied
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.etcd.health import read_health
from distop.metastore.etcd.txn import DeleteRange, Put, Txn
from support.etcd.etcds import enable_users
from support.services.whole import Whole, whole, write_csv
from support.waiting import eventually

OTHERS = b"others.key"


SAFE = {"3.4": 44, "3.5": 33, "3.6": 14, "3.7": 1}
"""The release of each version from which on etcd's permissions hold."""


async def work(service: Whole) -> None:
    """Everything that people do with a table."""
    (await service.ingest(write_csv(service.folder / "src", "1.csv", 0, 10))).raise_for_outcome()
    assert await asyncio.to_thread(service.ids) == list(range(10))
    following = write_csv(service.folder / "later", "2.csv", 10, 10)
    await service.client.table("t").enqueue("a", "ingest", {"paths": [str(following)]})
    await service.client.table("t").pause("a look")
    await service.client.table("t").resume()
    assert [operation.name async for operation in service.client.operations("t")]

    await eventually(service.drained, 90)
    assert [entry.action async for entry in service.client.audit("t")]
    row = pa.table({"id": [20], "kind": ["k"], "day": [date(2013, 1, 1)]})
    await asyncio.to_thread(lambda: service.table().append(row))
    assert await asyncio.to_thread(service.ids) == list(range(21))


async def got_around(client: EtcdClient) -> bool:
    """Whether the user may write elsewhere in a transaction within a transaction."""
    try:
        await client.txn(Txn(then=(Txn(then=(Put(OTHERS, b"2"),)),)))
    except EtcdDenied:
        return False
    return True


async def test_an_installation_needs_its_own_keys_only(
    tmp_path: Path, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S4, O27: a table is made, loaded, looked at and dropped by a user of etcd who may touch nothing else;
    and the doctor says of which versions that can be got around."""
    with EtcdProcess(tmp_path / "etcd") as etcd:
        enable_users(etcd, user="distop", password="secret", prefix=f"{prefix}.")
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="distop", password="secret")
        client = EtcdClient(config)
        try:
            for forbidden in (Txn(then=(Put(OTHERS, b"1"),)), Txn(then=(DeleteRange(OTHERS),))):
                with pytest.raises(EtcdDenied):
                    await client.txn(forbidden)
            async with whole(config, tmp_path, client) as service:
                await work(service)
                findings = (await service.client.diagnose(deep=True)).findings
                await service.client.table("t").drop()
            [member] = (await read_health(config)).members
            around = await got_around(client)
        finally:
            await client.close()
    release, _, patch = member.version.rpartition(".")
    told = [one.sentence for one in findings if one.code == "ETCD_PERMISSIONS"]
    assert [member.endpoint in one for one in told] == [True] * (int(patch) < SAFE[release])
    assert told or not around
    assert {one.code for one in findings} <= {"ETCD_PERMISSIONS", "ETCD_LOSSY_VERSION"}
    assert "runner_cannot_look" not in [one.getMessage() for one in caplog.records]
