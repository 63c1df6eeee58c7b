"""The cells of docs/again.md for an etcd that came back from a backup, and is behind the tables."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.again.cells import Cell, cell, counted
from support.again.ways import DONE, NAMES, ways_into
from support.etcd.restoring import distop, etcd_that_restores, findings, lose, restore, services
from support.services.whole import Whole

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("needs an etcdutl that raises revisions, as etcd 3.6 has it"),
    pytest.mark.timeout(400),
]

EXPECTED = {name: Cell(DONE, [1, 2]) for name in NAMES} | {"file watermark": Cell("ALREADY_INGESTED", [1, 2])}


async def test_requests_done_after_the_backup_count_as_done(
    tmp_path: Path, prefix: str, record_property: Callable[[str, object], None]
) -> None:
    """D2, P16: through each way, once the doctor has taken it from the snapshots."""
    backup = tmp_path / "backup.db"
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(EtcdProcess(tmp_path / "etcd", binary=etcd_that_restores()))
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)
        store = EtcdClient(config)
        stack.push_async_callback(store.close)
        async with AsyncExitStack() as before:
            started = await services(before, config, tmp_path, store)
            service = Whole(config, store, started.client, tmp_path, started.coordinator.address)
            ways = ways_into(service)
            for way in ways:
                await way.create()
                await way.write(1)
            await asyncio.to_thread(distop, etcd.endpoint, prefix, "cluster", "backup", str(backup))
            for way in ways:
                await way.write(2)
        lose(etcd)
        restore(etcd, backup)
        with EtcdProcess(etcd.data_dir, binary=etcd.binary) as aside:
            mended = await findings(aside, prefix, "--fix", succeeds=True)
            assert all(one["fixed"] for one in mended), mended
        etcd.start()
        started = await services(stack, config, tmp_path, store)
        for way in ways:
            way.use(Whole(config, store, started.client, tmp_path, started.coordinator.address))
        seen = {way.name: await cell(way, 2) for way in ways}
        counted(record_property, seen, EXPECTED)
        assert seen == EXPECTED
