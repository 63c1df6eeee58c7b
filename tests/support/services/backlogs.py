"""The backlog of table ``t``, as tests fill it, look at it and decide about it."""

import secrets
from typing import Any

from distop.metastore.backlog import queue as deciding
from distop.metastore.backlog.batches import BatchRecord, OrderingRecord, ordering_of
from distop.metastore.backlog.queue import Answer, enqueue
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.operations.starting import digest_of
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import prefix_end


def record_of(argument: dict[str, Any] | None = None, kind: str = "noop") -> BatchRecord:
    argument = argument if argument is not None else {"partitions": 0}
    return BatchRecord(
        type=kind, argument=argument, digest=digest_of([kind, argument]), uid=secrets.token_hex(8)
    )


async def put(
    client: EtcdClient,
    batch: str,
    *,
    ordered: bool = True,
    republish: bool = False,
    kind: str = "noop",
    **argument: Any,
) -> Answer:
    record, keys = record_of(argument or None, kind), client.keyspace.table("t")
    return await enqueue(client, keys, batch, record, ordered=ordered, republish=republish)


async def configure(client: EtcdClient, **fields: Any) -> None:
    keys = client.keyspace.table("t")
    await deciding.set_ordering(client, keys, fields, request=secrets.token_hex(8))


async def open_gate(client: EtcdClient, keys: TableKeys) -> None:
    await deciding.open_gate(client, keys, request=secrets.token_hex(8))


async def approve(client: EtcdClient, keys: TableKeys, batch: str) -> None:
    await deciding.approve(client, keys, batch, request=secrets.token_hex(8))


async def unblock(client: EtcdClient, keys: TableKeys, batch: str, *, skip: bool) -> None:
    await deciding.unblock(client, keys, batch, skip=skip, now=1.0, request=secrets.token_hex(8))


async def ordering(client: EtcdClient) -> OrderingRecord:
    return ordering_of(await client.get(client.keyspace.table("t").ordering))


async def waiting(client: EtcdClient) -> list[str]:
    prefix = client.keyspace.table("t").backlog_prefix
    return [kv.key[len(prefix) :].decode() for kv in (await client.scan(prefix)).kvs]


async def applied(client: EtcdClient) -> list[str]:
    """The batches that were applied, in the order in which they were."""
    prefix = client.keyspace.table("t").applied_prefix
    kvs = sorted((await client.scan(prefix)).kvs, key=lambda kv: kv.mod_revision)
    return [kv.key[len(prefix) :].decode() for kv in kvs]


async def has_applied(client: EtcdClient, batches: list[str]) -> bool:
    return await applied(client) == batches


async def drained(client: EtcdClient) -> bool:
    prefix = client.keyspace.table("t").backlog_prefix
    return not (await client.get_range(prefix, prefix_end(prefix), limit=1)).kvs


async def places(client: EtcdClient) -> list[str]:
    """The keys of all batches below that of the table, such as ``backlog.a`` and ``unordered.done.a``."""
    keys = client.keyspace.table("t")
    prefixes = (keys.backlog_prefix, keys.applied_prefix, keys.unordered_prefix)
    batch_keys = [kv.key for prefix in prefixes for kv in (await client.scan(prefix)).kvs]
    return [key[len(keys.prefix) :].decode() for key in batch_keys]


async def rested(client: EtcdClient) -> bool:
    """The leader has looked, and there was nothing it could do."""
    return not (await client.get(client.keyspace.table("t").backlog_index)).exists


async def nothing_left(client: EtcdClient) -> bool:
    active = (await client.scan(client.keyspace.active)).kvs
    return await rested(client) and not active and not (await ordering(client)).running


async def is_blocked_by(client: EtcdClient, batch: str, code: str) -> bool:
    blocked = (await ordering(client)).blocked
    return blocked is not None and (blocked.batch, blocked.code) == (batch, code)
