"""Coordinators that die while a client of the catalog waits for their answer."""

import asyncio
import http.client
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.services.coordinators import CoordinatorProcess
from support.services.rest import Answer, RestDoor
from support.tables.catalogs import SCHEMA, make_catalog

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills two coordinators; the leader of an ingest is killed in every run"),
]


def change(name: str, value: str) -> dict[str, Any]:
    return {
        "identifier": {"namespace": ["default"], "name": name},
        "requirements": [],
        "updates": [{"action": "set-properties", "updates": {"x": value}}],
    }


async def test_a_commit_to_two_tables_is_whole_whenever_the_coordinator_dies(
    etcd: EtcdProcess, prefix: str, etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """E2, P8: killed right before or after the transaction, of two tables both have changed or none; and who
    asks another coordinator, with the same key, has it done once."""
    python = make_catalog(etcd, prefix, tmp_path)
    names = ("a", "b")
    for name in names:
        python.create_table(f"default.{name}", SCHEMA)

    def commit(at: str, value: str, key: str) -> Answer:
        changes = {"table-changes": [change(name, value) for name in names]}
        return RestDoor(at, prefix).ask("POST", "transactions/commit", changes, idempotency_key=key)

    def state() -> list[tuple[str | None, int]]:
        tables = [python.load_table(f"default.{name}") for name in names]
        return [(table.properties.get("x"), len(table.metadata.metadata_log)) for table in tables]

    async with CoordinatorProcess(etcd_config, tmp_path, catalog=True) as other:
        for number, point in enumerate(("before", "after"), 1):
            dying = CoordinatorProcess(etcd_config, tmp_path, catalog=True, crash=f"catalog.swap.{point}=die")
            async with dying:
                await dying.member(client)
                key, value = str(uuid4()), point
                with pytest.raises((ConnectionError, http.client.HTTPException)):
                    await asyncio.to_thread(commit, dying.catalog, value, key)
                assert await dying.exit_code() == -9
            held = [(value, number)] * 2
            found = await asyncio.to_thread(state)
            assert found == (held if point == "after" else [(None, 0)] * 2)
            await other.member(client)
            for _ in range(2):
                assert (await asyncio.to_thread(commit, other.catalog, value, key)).status == 204
                assert await asyncio.to_thread(state) == held
    await asyncio.to_thread(python.close)
