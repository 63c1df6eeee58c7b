"""Topics of Kafka from the command line to the rows: coordinator, executor, etcd and brokers are real."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from pyiceberg.exceptions import NoSuchTableError

from distop.client import AsyncClient
from distop.errors import IncompatibleOperation
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running
from support.services.executing import runner
from support.services.whole import Whole
from support.sources.kafka import Brokers, KafkaTopic
from support.waiting import eventually


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, tmp_path: Path, client: EtcdClient) -> AsyncIterator[Whole]:
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as sdk,
        runner(client),
    ):
        await sdk.create_table("t", str(tmp_path / "table"))
        yield Whole(etcd_config, client, sdk, tmp_path, coordinator.address)


@pytest.fixture
def topic(brokers: Brokers) -> KafkaTopic:
    return brokers.topic()


async def test_a_topic_is_followed_from_the_command_line(service: Whole, topic: KafkaTopic) -> None:
    """C8, P10, P11."""
    start = ("operation", "start", "t", "ingest", "--json", json.dumps({"kafka": topic.argument()}), "--wait")
    topic.ids(0, 300)
    code, first = await service.distop(*start)
    assert (code, first["facts"]["rows"]) == (0, 300)
    topic.ids(300, 30)
    assert (await service.distop(*start))[0] == 0
    code, shown = await service.distop("watermark", "list", "t")
    assert code == 0
    ((source, marks),) = shown.items()
    assert source.startswith("kafka://")
    assert source.endswith(f"/{topic.name}")
    assert marks.pop("topic-id")
    assert marks == {"0": "110", "1": "110", "2": "110"}
    code, third = await service.distop(*start)
    assert (code, third["facts"]["rows"], third["jobs"]["total"]) == (0, 0, 0)
    assert await asyncio.to_thread(service.ids) == list(range(330))
    table = await asyncio.to_thread(service.table)
    assert len(table.snapshots()) == 2
    explicit = {"kafka": topic.argument(**{"from": {"0": 0}})}
    code, refused = await service.distop("operation", "start", "t", "ingest", "--json", json.dumps(explicit))
    assert (code, refused["error"]["code"]) == (24, "ALREADY_INGESTED")
    assert not [key for key in await service.at_rest() if key.endswith((".state", ".arg", "runOps"))]


async def test_many_ingests_of_a_topic_at_once_take_each_record_once(
    service: Whole, topic: KafkaTopic
) -> None:
    """P16."""
    topic.ids(0, 600)
    most = topic.argument(max_records_per_partition=100)

    async def ingest() -> None:
        while True:
            try:
                operation = await service.client.start("t", "ingest", {"kafka": most})
                break
            except IncompatibleOperation:
                await asyncio.sleep(0.05)
        ended = await operation.wait(timeout_s=180)
        # Planned before another one had ended: its watermarks have moved, and it is refused.
        assert ended.error is None or ended.error.code == "WATERMARK_CONFLICT"

    while len(await asyncio.to_thread(published, service)) < 600:
        await asyncio.gather(*(ingest() for _ in range(4)))
    assert await asyncio.to_thread(service.ids) == list(range(600))


def published(service: Whole) -> list[int]:
    """The ids so far; none before the first commit."""
    try:
        return service.ids()
    except NoSuchTableError:
        return []


async def test_batches_of_a_backlog_take_what_is_new_in_their_turn(service: Whole, topic: KafkaTopic) -> None:
    """B2: what a batch means is fixed when its turn comes, not when it is published."""
    await service.client.table("t").set_ordering(gate="closed", together=5)
    argument = {"kafka": topic.argument(max_records_per_partition=10)}
    for name in ("a", "b", "c"):
        await service.client.table("t").enqueue(name, "ingest", argument)
    topic.ids(0, 75)
    await service.client.table("t").open_gate()

    assert await eventually(service.drained, 180)
    assert await asyncio.to_thread(service.ids) == list(range(75))
    (marks,) = (await service.client.table("t").watermarks()).values()
    assert marks.pop("topic-id")
    assert marks == {"0": "25", "1": "25", "2": "25"}


async def test_a_batch_waits_for_brokers_that_are_away(service: Whole, brokers: Brokers) -> None:
    """B9: it is tried again, and blocks nothing."""
    topic = brokers.topic()
    topic.ids(0, 30)
    await service.client.table("t").set_ordering(max_attempts=50)
    with brokers.down():
        await service.client.table("t").enqueue("a", "ingest", {"kafka": topic.argument(timeout_s=0.2)})

        async def tried() -> bool:
            return "KAFKA_UNAVAILABLE" in (await service.client.table("t").why()).sentence

        assert await eventually(tried, 90)

    assert await eventually(service.drained, 180)
    assert (await service.client.table("t").ordering()).blocked is None
    assert await asyncio.to_thread(service.ids) == list(range(30))
