"""A coordinator and a policy that others change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from distop.coordinator.access import gate
from distop.coordinator.access.callers import changed
from distop.coordinator.access.gate import Policies
from distop.errors import Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.installation import GrantRecord, PolicyRecord, change_policy, read_policy
from distop.metastore.tables.audit import audit_put
from support.defects import fail_once
from support.waiting import HANG_S, eventually


async def grant(client: EtcdClient, who: str) -> None:
    record = GrantRecord(who=who, role="admin", tables=["*"])
    audit = audit_put(client.keyspace, "grant", by="me", target=who, at=1.0)
    await change_policy(client, lambda policy: changed(policy, add=[record]), uuid4().hex, audit)


def admins(policies: Policies) -> list[str]:
    policy = policies.latest
    return [] if policy is None else [one.who for one in policy.grants]


@asynccontextmanager
async def followed(client: EtcdClient) -> AsyncIterator[Policies]:
    """The policies of a coordinator that runs, once it knows the first."""
    await grant(client, "root")
    policies = Policies(client)
    running = asyncio.create_task(policies.run())
    await eventually(lambda: admins(policies) == ["root"])
    yield policies
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("defects", [0, 1])
async def test_the_watch_shows_a_change(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch, defects: int
) -> None:
    """S4: at once, and also after a defect of it."""
    monkeypatch.setattr(gate, "REREAD_S", 10 * HANG_S)
    if defects:
        fail_once(monkeypatch, gate, "watch", RuntimeError("odd"))
    async with followed(client) as policies:
        await grant(client, "jane")
        await eventually(lambda: admins(policies) == ["jane", "root"])


async def test_a_change_is_read_when_the_watch_is_silent(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4. What has not changed stays the same object: streams are checked again for each new one."""
    reads = []

    async def silent(*_: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    async def counted(client: EtcdClient) -> PolicyRecord | None:
        reads.append(client)
        return await read_policy(client)

    monkeypatch.setattr(gate, "watch", silent)
    monkeypatch.setattr(gate, "read_policy", counted)
    monkeypatch.setattr(gate, "REREAD_S", 0.02)
    async with followed(client) as policies:
        before, seen = policies.latest, len(reads)
        await eventually(lambda: len(reads) > seen + 2)
        assert policies.latest is before
        await grant(client, "jane")
        await eventually(lambda: admins(policies) == ["jane", "root"])


async def test_a_policy_that_was_read_long_ago_is_read_again_before_use(
    client: EtcdClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4: as after the process was suspended. Without etcd the last one counts."""
    monkeypatch.setattr(gate, "STALE_S", 10 * HANG_S)
    await grant(client, "root")
    policies = Policies(client)
    assert await policies.present() is policies.latest
    await grant(client, "jane")
    await policies.present()
    assert admins(policies) == ["root"]
    for name in ("STALE_S", "REREAD_S"):
        monkeypatch.setattr(gate, name, 0.0)
    await policies.present()
    assert admins(policies) == ["jane", "root"]
    await grant(client, "joe")
    fail_once(monkeypatch, gate, "read_policy", Unavailable("etcd is silent"))
    await policies.present()
    assert admins(policies) == ["jane", "root"]
