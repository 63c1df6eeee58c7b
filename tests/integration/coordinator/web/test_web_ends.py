"""How the page shows operations that are over, or held."""

from __future__ import annotations

import asyncio
import http.client
from typing import Any
from urllib.parse import quote

import pytest

from distop.client import AsyncClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import encode
from distop.proto import distop_pb2 as pb
from support.etcd.lossy import LossyClient
from support.services.coordinators import Service, config_of, running
from support.tables.nowhere import nowhere
from support.waiting import eventually

LARGE = 2**62 + 1


def get(address: str, path: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=15)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize(("outcome", "amiss"), [("success", False), ("failed", True), ("cancelled", True)])
async def test_what_failed_has_no_green_bar_and_integers_stay_integers(
    etcd_config: EtcdConfig, client: LossyClient, outcome: str, amiss: bool
) -> None:
    """U1: a validation whose jobs are all done has failed all the same, if its rules are broken."""
    ended = OperationId("t", "validate", 1)
    facts = {"checkedRows": 3, "snapshotId": LARGE}
    record = HistoryRecord(outcome=outcome, partition_count=4, succeeded=4, facts=facts)
    async with (
        running(config_of(etcd_config, web="127.0.0.1:0")) as coordinator,
        Service(coordinator.address) as service,
    ):
        await service.create_table("t")
        await client.put(client.keyspace.table("t").history(ended), encode(record))
        page = await asyncio.to_thread(
            get, coordinator.web_address, f"/operation?name={quote(str(ended), safe='')}"
        )
    assert ('<div class="bar amiss">' in page) is amiss
    assert ('<div class="bar">' in page) is not amiss
    assert "4 of 4 jobs done" in page
    for value in ("3", str(LARGE)):
        assert f">{value}<" in page


@pytest.mark.parametrize("odd", ["text", [1.5], {"name": "s"}, [{"rule": "r", "rows": "many"}]])
async def test_facts_of_any_shape_are_shown(etcd_config: EtcdConfig, client: LossyClient, odd: Any) -> None:
    """U1: a type may give its facts the names of distop's own; a table can be described as well."""
    ended, names = OperationId("t", "mine", 1), ("bytes", "files", "rows", "series", "violations")
    record = HistoryRecord(outcome="success", facts=dict.fromkeys(names, odd))
    async with (
        running(config_of(etcd_config, web="127.0.0.1:0")) as coordinator,
        AsyncClient(coordinator.address) as sdk,
    ):
        await sdk.create_table("t", nowhere())
        await client.put(client.keyspace.table("t").history(ended), encode(record))
        page = await asyncio.to_thread(
            get, coordinator.web_address, f"/operation?name={quote(str(ended), safe='')}"
        )
        for name in names:
            assert f"<dt>{name}</dt>" in page
        assert "mine/1" in await asyncio.to_thread(get, coordinator.web_address, "/table?name=t")
        assert (await sdk.describe_table("t")).loaded_by == ""


async def test_what_is_paused_is_not_stuck(etcd_config: EtcdConfig) -> None:
    """U1: nobody serves its type, and yet it is held by somebody."""
    async with (
        running(config_of(etcd_config, web="127.0.0.1:0")) as coordinator,
        Service(coordinator.address) as service,
    ):
        await service.create_table("t")
        operation = await service.start("t", argument={"partitions": 1})

        async def shown(text: str) -> bool:
            return text in await asyncio.to_thread(get, coordinator.web_address, "/")

        assert await eventually(lambda: shown("stuck on this page"))
        request = pb.PauseOperationRequest(name=str(operation), requested_by="ana")
        await service.operations.PauseOperation(request, timeout=10)
        assert await eventually(lambda: shown("paused by ana"))
        assert not await shown("stuck on this page")
