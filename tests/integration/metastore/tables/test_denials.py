"""Denials and ages in the audit trail."""

import time
from typing import Any

import pytest

from distop.metastore.etcd.client import RangePage
from distop.metastore.tables.audit import (
    DENIED,
    EACH,
    MOST,
    WINDOW_S,
    Actor,
    Denials,
    acting,
    audit_put,
    prune,
    read_audit,
)
from support.etcd.lossy import LossyClient


async def test_denials_are_recorded_so_few_that_they_fill_nothing(client: LossyClient) -> None:
    """S6: with the verified name, and with how many more there were."""
    now = [100.0]
    denials = Denials(client, clock=lambda: now[0])
    acting.set(Actor(subject="eve@example", claimed="root", address="10.0.0.9"))
    written = [await denials.record("drop-table", by="root", target="t") for _ in range(3 * EACH)]
    assert written == [True] * EACH + [False] * 2 * EACH
    for number in range(2 * MOST):
        acting.set(Actor(address=f"10.0.1.{number}"))
        await denials.record("drop-table", by="", target="t")
    entries, _ = await read_audit(client, client.keyspace.denials_prefix, limit=1000)
    assert len(entries) == MOST
    first = entries[-1].record
    assert (first.by, first.claimed, first.address) == ("eve@example", "root", "10.0.0.9")
    assert first.outcome == DENIED
    now[0] += WINDOW_S
    assert await denials.record("drop-table", by="", target="t", reason="no right")
    [last], _ = await read_audit(client, client.keyspace.denials_prefix, limit=1)
    assert last.record.reason.startswith("no right (")
    assert "earlier denials are omitted" in last.record.reason


async def test_denials_push_out_no_action(client: LossyClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """S6"""
    monkeypatch.setattr("distop.metastore.tables.audit.prune.__kwdefaults__", {"keep": 2, "keep_s": 1e9})
    space, denials = client.keyspace, Denials(client)
    for action in ("drain", "undrain"):
        put = audit_put(space, action, by="ana", target="m", at=time.time())
        await client.put(put.key, put.value)
        for number in range(3):
            acting.set(Actor(address=f"10.0.0.{number}"))
            assert await denials.record(f"{action}{number}", by="", target="m")
    trails = space.audit_prefix, space.denials_prefix
    merged, revision = await read_audit(client, *trails, limit=10)
    assert sorted(entry.record.outcome for entry in merged) == ["denied", "denied", "done", "done"]
    for number, entry in enumerate(merged[:-1], 1):
        [after], _ = await read_audit(client, *trails, limit=1, revision=revision, before=entry.id)
        assert after == merged[number]


async def test_a_network_is_one_caller(client: LossyClient) -> None:
    """S6: a host may own 2**64 addresses of IPv6."""
    denials, written = Denials(client), []
    for number in range(3 * EACH):
        acting.set(Actor(address=f"2001:db8::{number:x}"))
        written.append(await denials.record("drop-table", by="", target="t"))
    assert written == [True] * EACH + [False] * 2 * EACH


async def test_entries_are_kept_by_age_too(client: LossyClient) -> None:
    """S6"""
    keys, now = client.keyspace.table("t"), time.time()
    for days in (500, 450, 401, 399, 1):
        put = audit_put(keys, f"{days} days ago", by="", target="t", at=now - days * 86_400)
        await client.put(put.key, put.value)
    await prune(client, keys.audit_prefix)
    left, _ = await read_audit(client, keys.audit_prefix, limit=10)
    assert [entry.record.action for entry in left] == ["1 days ago", "399 days ago"]


async def test_two_that_prune_at_once_delete_what_one_would(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: the second one counted before the first one deleted."""
    keys, now = client.keyspace.table("t"), time.time()
    for number in range(6):
        put = audit_put(keys, f"{number}", by="", target="t", at=now + number)
        await client.put(put.key, put.value)
    counted, others = client.get_range, [prune]

    async def meanwhile(*of: Any, **how: Any) -> RangePage:
        page = await counted(*of, **how)
        if others:
            await others.pop()(client, keys.audit_prefix, keep=3)
        return page

    monkeypatch.setattr(client, "get_range", meanwhile)
    await prune(client, keys.audit_prefix, keep=3)
    left, _ = await read_audit(client, keys.audit_prefix, limit=10)
    assert [entry.record.action for entry in left] == ["5", "4", "3"]
