"""The index of tables names those that there are, through whatever door they come and go."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.coordinator.api.tables import TableService
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.tables.registry import table_names
from distop.proto import distop_pb2 as pb
from support.etcd.counting import Counting
from support.etcd.starts import make_tables

SCHEMA = pa.schema([("id", pa.int64())])


async def indexed(client: EtcdClient) -> list[str]:
    return [name async for names, _ in table_names(client) for name in names]


async def test_the_index_follows_the_tables(
    sdk: AsyncClient, client: EtcdClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """G3, O22: made, renamed, registered and dropped by the service and by the catalog."""
    properties = {"etcd.endpoints": etcd_config.endpoints[0], "etcd.prefix": etcd_config.prefix}

    def by_catalog() -> None:
        with EtcdCatalog("distop", warehouse=tmp_path.as_uri(), **properties) as catalog:
            catalog.create_namespace("ny")
            catalog.create_table("ny.made", SCHEMA)
            location = catalog.create_table("default.left", SCHEMA).metadata_location
            catalog.rename_table("ny.made", "ny.renamed")
            catalog.drop_table("default.left")
            catalog.register_table("default.registered", location)

    for name in ("a", "a-b", "gone"):
        await sdk.create_table(name, location=(tmp_path / name).as_uri())
    await sdk.table("gone").drop()
    await asyncio.to_thread(by_catalog)
    assert await indexed(client) == ["a", "a-b", "ny.renamed", "registered"]
    assert [table.name async for table in sdk.tables(page_size=1)] == await indexed(client)
    await sdk.table("a").drop()
    assert await indexed(client) == ["a-b", "ny.renamed", "registered"]


@pytest.mark.parametrize("count", [0, 450])
async def test_a_page_of_tables_takes_few_requests(
    client: EtcdClient, counting: Counting, count: int
) -> None:
    """G3: also when each table has many keys of its own."""
    made = await make_tables(client, count)
    service = TableService(counting, None)  # type: ignore[arg-type]
    request, names = pb.ListTablesRequest(page_size=100), list[str]()
    while True:
        counting.requests = 0
        page = await service.ListTables(request, None)  # type: ignore[arg-type]
        assert counting.requests < 24
        names += [table.name for table in page.tables]
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    assert names == made
