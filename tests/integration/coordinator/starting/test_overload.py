"""More starts at once than a coordinator serves."""

import asyncio
from unittest.mock import patch

import pytest

from distop.client import AsyncClient
from distop.client.pace import MOST as COUNT
from distop.coordinator.starting import admission
from distop.coordinator.starting.admission import Admission
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running
from support.tables.nowhere import nowhere


async def test_all_of_many_starts_at_once_succeed(
    etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G6: those that are sent away come back by themselves."""
    monkeypatch.setattr(admission, "FEWEST_WAITING", 16)
    monkeypatch.setattr(admission, "MOST_WAITING", 16)
    refusals = patch.object(Admission, "_come_back", autospec=True, side_effect=Admission._come_back)
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=120.0) as client,
    ):
        await client.create_table("t", nowhere())
        starts = (client.start("t", "per_object", {"partitions": 1}, object=f"o{n}") for n in range(COUNT))
        with refusals as refused:
            started = await asyncio.gather(*starts)
    assert refused.call_count
    assert len({one.name for one in started}) == COUNT
