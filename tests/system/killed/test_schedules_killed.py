"""Ticks while the leader of their table is killed, or paused for longer than its lease."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.metastore.crashpoints import ONCE_VARIABLE, record_name
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.services.coordinators import CoordinatorProcess
from support.services.leases import TTL_S
from support.services.schedules import YEARLY, at_rest, backdate, operations, schedule
from support.tables.nowhere import nowhere
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills the leader of a table three times, and halts it for longer than its lease"),
]

STRUCK = [
    ("schedule.start.before", "die"),
    ("schedule.start.after", "die"),
    ("schedule.rest.before", "die"),
    ("schedule.start.before", f"sleep:{2 * TTL_S + 1}"),
]


async def test_each_time_starts_one_operation_whenever_its_leader_is_struck(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B10's question, of schedules: before, in and after the step; one that sleeps finds it done."""
    plan, fired = tmp_path / "plan", tmp_path / "fired"
    fired.mkdir()
    monkeypatch.setenv(ONCE_VARIABLE, str(fired))
    async with AsyncExitStack() as stack:
        pair = [
            await stack.enter_async_context(CoordinatorProcess(etcd_config, tmp_path, crash=f"@{plan}"))
            for _ in range(2)
        ]
        for one in pair:
            await one.member(client)
        addresses = ",".join(one.address for one in pair)
        sdk = await stack.enter_async_context(AsyncClient(addresses, timeout_s=40))
        await sdk.create_table("t", nowhere())
        await sdk.table("t").add_schedule("s", "noop", {"partitions": 0}, cron=YEARLY)
        assert await eventually(lambda: at_rest(client))
        for count, (point, action) in enumerate(STRUCK, 1):
            plan.write_text(f"{point}={action}")
            await backdate(client, "s")

            async def decided(count: int = count) -> bool:
                return (await schedule(client, "s")).started == count and await at_rest(client)

            assert await eventually(decided, 120), (point, action)
            assert (fired / record_name(point, action)).exists(), (point, action)
            plan.write_text("")
            for one in pair:
                if action == "die" and not one.is_running:
                    one.start()
                await one.member(client)
        record = await schedule(client, "s")
        assert (record.started, record.skipped) == (len(STRUCK), 0)
        assert await operations(client) == [f"t/noop/{number}" for number in range(1, len(STRUCK) + 1)]
