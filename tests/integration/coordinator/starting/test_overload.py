"""More starts at once than a coordinator serves."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from distop.client import AsyncClient
from distop.client.transport.pace import MOST as MOST_OF_A_CLIENT
from distop.coordinator.starting.admission import MOST, MOST_WAITING
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import Service, config_of, running

COUNT = MOST + MOST_WAITING + 100


async def test_all_of_many_starts_at_once_succeed(etcd_config: EtcdConfig) -> None:
    """G6: those that are sent away come back by themselves."""
    async with AsyncExitStack() as held:
        coordinator = await held.enter_async_context(running(config_of(etcd_config)))
        service = await held.enter_async_context(Service(coordinator.address))
        clients = [
            await held.enter_async_context(AsyncClient(coordinator.address, timeout_s=120.0))
            for _ in range(-(-COUNT // MOST_OF_A_CLIENT))
        ]
        await service.create_table("t")
        starts = (
            clients[number % len(clients)].start("t", "per_object", {"partitions": 1}, object=f"o{number}")
            for number in range(COUNT)
        )
        started = await asyncio.gather(*starts)
    assert len({one.name for one in started}) == COUNT
