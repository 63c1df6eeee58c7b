"""How much of the past is kept: the newest operations of a table, and the requests that made them."""

from __future__ import annotations

from distop.errors import OutcomeUnknown
from distop.metastore import audit
from distop.metastore.client import EtcdClient
from distop.metastore.crashpoints import reached
from distop.metastore.keyspace import TableKeys, escape
from distop.metastore.records import HistoryRecord, decode
from distop.metastore.txn import Delete, Op, Txn

KEEP = 1000
"""Finished operations remembered per table. Within it a repeated request id gets its first answer."""

EVERY = 64
"""A table is pruned when an instance number divisible by this finishes."""

_BITE = 50
"""Operations forgotten by one transaction: two deletes each, under etcd's 128."""


async def prune(client: EtcdClient, keys: TableKeys, *, keep: int = KEEP) -> int:
    """Forget the oldest finished operations of a table beyond ``keep``; returns how many. Its audit trail is
    cut too.

    Operations that still have keys are spared: their collector reads from the history how they ended.
    Deleting is idempotent, so a lost reply needs no answer; the next call goes on where this one stopped.
    """
    keyspace = keys.keyspace
    active = await client.scan(keyspace.active + escape(keys.name).encode() + b".", keys_only=True)
    await audit.prune(client, keys.audit_prefix)
    spared = {keys.history(keyspace.parse_active(kv.key)) for kv in active.kvs}
    listing = await client.scan(keys.history_prefix)
    records = [
        (kv.key, decode(kv.value, HistoryRecord, kv.key)) for kv in listing.kvs if kv.key not in spared
    ]
    records.sort(key=lambda item: item[1].finished_at, reverse=True)
    victims = records[keep:]
    for start in range(0, len(victims), _BITE):
        deletes: list[Op] = []
        for key, record in victims[start : start + _BITE]:
            deletes.append(Delete(key))
            if record.request_id:
                deletes.append(Delete(keys.request(record.request_id)))
        try:
            reached("prune.before")
            await client.txn(Txn(then=tuple(deletes)))
            reached("prune.after")
        except OutcomeUnknown:
            continue
    return len(victims)
