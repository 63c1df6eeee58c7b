"""An etcd of three members: one is paused, cut off, or lost, while operations publish rows."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from support.etcd.clusters import NAMES, Cluster
from support.services.feeding import Stage, staged

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("starts an etcd of three members, and waits until they have elected another leader"),
    pytest.mark.timeout(400),
]


@pytest_asyncio.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path / "etcd") as made:
        yield made


@pytest_asyncio.fixture
async def stage(cluster: Cluster, prefix: str, tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(cluster.config(prefix), tmp_path) as made:
        yield made


async def test_a_leading_member_that_stands_still_is_done_without(cluster: Cluster, stage: Stage) -> None:
    """O27: etcd's leader is paused; another member leads, writes resume, nothing is lost or doubled."""
    leader = await cluster.leader()
    await cluster.pause(leader)
    await cluster.leader(but=leader)
    await stage.feeding.go_on()
    await cluster.resume(leader)
    await stage.feeding.go_on()
    await stage.whole_and_once()


async def test_a_leading_member_that_is_cut_off_is_done_without(cluster: Cluster, stage: Stage) -> None:
    """D1, O27: it still takes connections, and can answer nothing."""
    leader = await cluster.leader()
    await cluster.cut(leader)
    await cluster.leader(but=leader)
    await stage.feeding.go_on()
    await cluster.heal(leader)
    await stage.feeding.go_on()
    await stage.whole_and_once()


async def test_the_member_that_clients_use_may_be_cut_off(cluster: Cluster, stage: Stage) -> None:
    """O27, U4: they notice the silence and use another member, whether it leads or not."""
    await cluster.cut(NAMES[0])
    await stage.feeding.go_on()
    await cluster.heal(NAMES[0])
    await stage.feeding.go_on()
    await stage.whole_and_once()


async def test_a_member_that_is_lost_is_replaced(cluster: Cluster, stage: Stage) -> None:
    """D1, O27: killed, its data gone; a new one takes its place while operations go on."""
    victim = await cluster.leader()
    await cluster.kill(victim)
    await stage.feeding.go_on()
    await cluster.replace(victim)
    await stage.feeding.go_on()
    another = next(name for name in NAMES if name != victim)
    await cluster.kill(another)  # only with the new member there is a majority now
    await stage.feeding.go_on()
    await stage.whole_and_once()
