"""Changing the policy: once, whole, with its audit entry."""

import asyncio

import pytest

from distop.metastore.members.installation import GrantRecord, PolicyRecord, change_policy, read_policy
from distop.metastore.tables.audit import audit_put, read_audit
from support.etcd.lossy import Fault, LossyClient, puts


async def grant(client: LossyClient, who: str, request: str) -> PolicyRecord | None:
    """Add a grant to any policy."""

    def change(standing: PolicyRecord | None) -> PolicyRecord | None:
        before = standing.grants if standing is not None else []
        return PolicyRecord(grants=[*before, GrantRecord(who=who, role="admin", tables=["*"])])

    audit = audit_put(client.keyspace, "change-grants", by="root", target=who, at=1.0)
    return await change_policy(client, change, request, audit)


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.FULL_YET_DONE])
async def test_a_change_in_doubt_is_made_once(client: LossyClient, fault: Fault) -> None:
    """S6: with one audit entry; a repeat of the call, to whichever coordinator, changes nothing more."""
    client.fail(fault, when=puts(client.keyspace.policy))
    for _ in range(2):
        policy = await grant(client, "root", "one")
        assert policy is not None
        assert [one.who for one in policy.grants] == ["root"]
        assert await read_policy(client) == policy
    assert client.spent
    entries, _ = await read_audit(client, client.keyspace.audit_prefix, limit=10)
    assert len(entries) == 1


async def test_parallel_changes_of_the_policy_are_all_kept(client: LossyClient) -> None:
    """S6"""
    await asyncio.gather(*(grant(client, f"s{number}", f"r{number}") for number in range(8)))
    policy = await read_policy(client)
    assert policy is not None
    assert {one.who for one in policy.grants} == {f"s{number}" for number in range(8)}
    entries, _ = await read_audit(client, client.keyspace.audit_prefix, limit=20)
    assert len(entries) == 8
