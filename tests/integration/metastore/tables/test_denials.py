"""Denials and ages in the audit trail."""

from __future__ import annotations

import time

from distop.metastore.tables.audit import DENIED, Acting, acting, audit_put, prune, read_audit
from distop.metastore.tables.denials import EACH, MOST, WINDOW_S, Denials
from support.etcd.lossy import LossyClient


async def test_denials_are_recorded_so_few_that_they_fill_nothing(client: LossyClient) -> None:
    """S6: with the verified name, and with how many more there were."""
    now = [100.0]
    denials = Denials(client, clock=lambda: now[0])
    acting.set(Acting(subject="eve@example", claimed="root", address="10.0.0.9"))
    written = [await denials.record("drop-table", by="root", target="t") for _ in range(3 * EACH)]
    assert written == [True] * EACH + [False] * 2 * EACH
    for number in range(2 * MOST):
        acting.set(Acting(address=f"10.0.1.{number}"))
        await denials.record("drop-table", by="", target="t")
    entries, _ = await read_audit(client, client.keyspace.audit_prefix, limit=1000)
    assert len(entries) == MOST
    first = entries[-1].record
    assert (first.by, first.claimed, first.address) == ("eve@example", "root", "10.0.0.9")
    assert first.outcome == DENIED
    now[0] += WINDOW_S
    assert await denials.record("drop-table", by="", target="t", reason="no right")
    [last], _ = await read_audit(client, client.keyspace.audit_prefix, limit=1)
    assert last.record.reason.startswith("no right (")
    assert "earlier denials are omitted" in last.record.reason


async def test_entries_are_kept_by_age_too(client: LossyClient) -> None:
    """S6"""
    keys, now = client.keyspace.table("t"), time.time()
    for days in (500, 450, 401, 399, 1):
        put = audit_put(keys, f"{days} days ago", by="", target="t", at=now - days * 86_400)
        await client.put(put.key, put.value)
    await prune(client, keys.audit_prefix)
    left, _ = await read_audit(client, keys.audit_prefix, limit=10)
    assert [entry.record.action for entry in left] == ["1 days ago", "399 days ago"]
