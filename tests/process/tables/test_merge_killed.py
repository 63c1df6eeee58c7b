"""Ordered batches of changes by keys, while their processes die or lose a reply."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from distop.client import AsyncClient
from distop.metastore.crashpoints import VARIABLE
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.backlogs import drained
from support.services.coordinators import CoordinatorProcess, config_of, running
from support.services.executing import Child, runner
from support.services.leases import TTL_S
from support.services.whole import Whole
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills a process while eight batches are merged, and waits for its lease"),
]

EXECUTOR = ("-m", "distop.cli", "executor", "--master", "none", "--slots", "2", "--lease-ttl", f"{TTL_S}")
SCHEMA = {"id": "long", "kind": "string", "batch": "int"}
BATCHES = 8


def batch_of(number: int) -> list[dict[str, Any]]:
    """Changes of keys that other batches change, too: in another order another table would come out."""
    chance = random.Random(number)
    return [
        {"id": key, "kind": f"k{chance.randrange(3)}", "batch": number, "op": chance.choice("UUD")}
        for key in chance.sample(range(20), 12)
    ]


def after_all() -> dict[int, tuple[str, int]]:
    """What the table holds when each batch was merged once, in order."""
    held: dict[int, tuple[str, int]] = {}
    for number in range(BATCHES):
        for row in batch_of(number):
            if row["op"] == "D":
                held.pop(row["id"], None)
            else:
                held[row["id"]] = (row["kind"], row["batch"])
    return held


@pytest.mark.parametrize(
    ("struck", "crash"), [("executor", "mark.after=die@3"), ("coordinator", "finish.after=die@2")]
)
async def test_batches_are_merged_once_and_in_order_whoever_dies(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, struck: str, crash: str
) -> None:
    """E5, B3, P2, P8: and no file is left over."""
    crashing = crash if struck == "coordinator" else ""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(CoordinatorProcess(etcd_config, tmp_path, crash=crashing))
        await first.member(client)
        sdk = await stack.enter_async_context(AsyncClient(first.address, timeout_s=60))
        options = {"partitionBy": ["kind"], "schema": SCHEMA}
        await sdk.create_table("t", str(tmp_path / "table"), options=options)
        for number in range(BATCHES):
            path = tmp_path / "in" / f"{number}.jsonl"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in batch_of(number)))
            argument = {"paths": str(path), "mode": "merge", "keys": ["id"], "delete_where": "op == 'D'"}
            await sdk.enqueue("t", f"{number:02}", "ingest", argument)
        dying = {VARIABLE: crash} if struck == "executor" else {}
        executor = stack.enter_context(Child(etcd_config, tmp_path, *EXECUTOR, **dying))
        address = first.address
        if struck == "coordinator":
            assert await first.exit_code(60) == -signal.SIGKILL
            other = await stack.enter_async_context(running(config_of(etcd_config)))
            address = other.address
        else:
            assert await executor.exit_code(60) == -signal.SIGKILL, executor.log.read_text()
            await stack.enter_async_context(runner(client))
        assert await eventually(lambda: drained(client), 360)
        sdk = await stack.enter_async_context(AsyncClient(address, timeout_s=60))
        service = Whole(etcd_config, client, sdk, tmp_path)
        await service.at_rest()
        rows = (await asyncio.to_thread(service.rows)).to_pylist()
        assert len(rows) == len(after_all())
        assert {row["id"]: (row["kind"], row["batch"]) for row in rows} == after_all()
        await service.forget_the_past()
        assert await service.only_published()
        assert await service.findings("t", deep=True) == []
