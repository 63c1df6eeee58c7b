"""Changes of the access policy: one record, one compare, and the audit entry in the same transaction."""

from __future__ import annotations

from collections.abc import Callable

from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.policy import PolicyRecord
from distop.metastore.records.record import decode, encode

REQUESTS = 50
"""Changes whose request ids are remembered."""


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
