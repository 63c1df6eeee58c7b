"""Slow calls of a coordinator, in its member's record: bound to its lease, so they end with it."""

from __future__ import annotations

from collections.abc import Sequence

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.member import LongCall, MemberRecord
from distop.metastore.records.record import decode, encode


async def tell_of_calls(client: EtcdClient, member: bytes, calls: Sequence[LongCall]) -> None:
    """IF the member is as read THEN its record names these calls. Without the member: nothing."""

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        kv = read.one(0, member)
        if not kv.exists:
            return None, None
        record = decode(kv.value, MemberRecord, kv.key)
        record.calls = list(calls)
        return Txn((unchanged(kv),), (Put(kv.key, encode(record), kv.lease),)), None

    await update(client, (Get(member),), decide, what="the record of this member")
