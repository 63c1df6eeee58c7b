"""What a live process says of itself, in its member's record: bound to its lease, so it ends with it."""

from __future__ import annotations

from typing import Any

import msgspec

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.record import decode, encode


async def change_own_record(client: EtcdClient, member: bytes, **fields: Any) -> None:
    """IF the member is as read THEN its record has these fields. Without the member: nothing."""

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        kv = read.one(0, member)
        if not kv.exists:
            return None, None
        record = msgspec.structs.replace(decode(kv.value, MemberRecord, kv.key), **fields)
        return Txn((unchanged(kv),), (Put(kv.key, encode(record), kv.lease),)), None

    await update(client, (Get(member),), decide, what="the record of this member")
