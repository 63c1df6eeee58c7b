"""What distop does to tables it does not do to views of the catalog, which have their names among them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.coordinator.doctor.rounds import Doctor, Examination
from distop.coordinator.work.work import Work
from distop.errors import TableExists, TableNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Put, Txn
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import ViewRecord
from distop.operations.registry import Registry
from support.services.coordinators import config_of, running
from support.tables.catalogs import SCHEMA
from support.tables.views import view_version


async def test_no_operation_and_no_listing_takes_a_view_for_a_table(
    etcd_config: EtcdConfig, python: EtcdCatalog, tmp_path: Path
) -> None:
    """O29: and no table gets its name, also of a name that was looked at before."""
    python.create_view("default.v", SCHEMA, view_version())
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as client,
    ):
        with pytest.raises(TableExists, match="the name of a view"):
            await client.create_table("v", str(tmp_path / "elsewhere"))
        for call in (client.start("v", "noop", {}), client.table("v").drop(), client.table("v").pause()):
            with pytest.raises(TableNotFound):
                await call
        assert [one async for one in client.tables()] == []
        python.drop_view("default.v")
        await client.create_table("v", str(tmp_path / "elsewhere"))
        assert [one.name async for one in client.tables()] == ["v"]


async def test_the_doctor_knows_the_claims_of_views(
    client: EtcdClient, python: EtcdCatalog, tmp_path: Path
) -> None:
    """S2: a claim is one of no table only if no view of that name lives there, either."""

    async def told() -> list[str]:
        with ThreadPoolExecutor(2) as threads:
            found = Doctor(client, Work(Registry(), threads)).examine(Examination(fix=True))
            return [one.finding.code async for progress in found for one in progress.reported]

    python.create_view("default.v", SCHEMA, view_version())
    assert "CLAIM_WITHOUT_TABLE" not in await told()
    key = client.keyspace.table("v").view
    record = decode((await client.get(key)).value, ViewRecord)
    record.location = f"file://{tmp_path}/elsewhere"
    await client.txn(Txn(then=(Put(key, encode(record)),)))
    assert "CLAIM_WITHOUT_TABLE" in await told()
    assert (await client.scan(client.keyspace.locations)).kvs == []
    await client.txn(Txn(then=(DeleteRange(key),)))
