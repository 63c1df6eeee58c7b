"""The access policy: one record, changed by one compare, with the audit entry in the same transaction."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.record import Record, decode, encode

REQUESTS = 50
"""Changes whose request ids are remembered."""


class GrantRecord(Record, kw_only=True):
    """One line of the policy. Its fields are checked where it is granted."""

    who: str
    """A subject, or ``group:NAME``; ``*`` matches any text."""
    role: str
    tables: list[str]
    """Patterns of names of tables."""


class PolicyRecord(Record, kw_only=True):
    """``_policy``: all grants. If it exists, only actions that a grant allows are permitted."""

    grants: list[GrantRecord] = msgspec.field(default_factory=list)
    requests: list[str] = msgspec.field(default_factory=list)
    """Request ids of its last changes."""


async def read_policy(client: EtcdClient) -> PolicyRecord | None:
    """The present policy, if there is one."""
    kv = await client.get(client.keyspace.policy)
    return decode(kv.value, PolicyRecord, kv.key) if kv.exists else None


async def change_policy(
    client: EtcdClient,
    change: Callable[[PolicyRecord | None], PolicyRecord | None],
    request: str,
    audit: Put,
) -> PolicyRecord | None:
    """IF the policy is as read AND this request has not changed it yet THEN the changed one, and the audit
    entry.

    Parameters
    ----------
    change:
        Makes the policy from the present one; the same one, and ``None``, if nothing changes. Its errors end
        the change, and nothing has been written.
    request:
        Id of this change, the same in its repetitions.

    Returns
    -------
    The policy after that.
    """
    key = client.keyspace.policy

    async def decide(read: TxnResult) -> tuple[Txn | None, PolicyRecord | None]:
        kv = read.one(0, key)
        standing = decode(kv.value, PolicyRecord, kv.key) if kv.exists else None
        if standing is not None and request in standing.requests:
            return None, standing
        changed = change(standing)
        if changed is None or changed is standing:
            return None, standing
        changed.requests = [*(standing.requests if standing is not None else ()), request][-REQUESTS:]
        reached("grant.before")
        return Txn((unchanged(kv),), (Put(key, encode(changed)), audit)), changed

    return (
        await update(client, (Get(key),), decide, what="the policy", replied=lambda: reached("grant.after"))
    )[0]
