"""More starts at once than a coordinator serves."""

from __future__ import annotations

import asyncio

from distop.client import AsyncClient
from distop.coordinator.starting.admission import MOST, MOST_WAITING
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import Service, config_of, running

COUNT = MOST + MOST_WAITING + 100


async def test_all_of_many_starts_at_once_succeed(etcd_config: EtcdConfig) -> None:
    """G6: those that are sent away come back by themselves."""
    async with (
        running(config_of(etcd_config)) as coordinator,
        Service(coordinator.address) as service,
        AsyncClient(coordinator.address, timeout_s=120.0) as client,
    ):
        await service.create_table("t")
        starts = (
            client.start("t", "per_object", {"partitions": 1}, object=f"o{number}") for number in range(COUNT)
        )
        started = await asyncio.gather(*starts)
    assert len({one.name for one in started}) == COUNT
