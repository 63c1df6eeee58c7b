"""What a live process says of itself, in its member's record: bound to its lease, so it ends with it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.member import HeldUp, MemberRecord
from distop.metastore.records.record import decode, encode
from distop.proto.identity import own_version

SLOW_S = (2.0, 1.0, 0.5, 0.2)
"""Times after which an answer of etcd is slow."""


def own_record(member: str, role: str, **fields: Any) -> MemberRecord:
    """The record of a member of this process, which begins now."""
    return MemberRecord(
        id=member,
        role=role,
        host=socket.gethostname(),
        pid=os.getpid(),
        distop=own_version(),
        started_at=time.time(),
        **fields,
    )


def slow_etcd(trips: Sequence[float]) -> str:
    """What to say of etcd after the latest renewals of a lease, given their durations; empty: nothing."""
    slow = next((one for one in SLOW_S if len(trips) > 1 and min(trips) > one), 0.0)
    return f"etcd takes more than {slow:g} s to answer it" if slow else ""


def still(known: Sequence[HeldUp], found: Mapping[str, str]) -> list[HeldUp]:
    """What holds it up now, by operation, each with the time since which something has."""
    since, now = {one.operation: one.since for one in known}, time.time()
    return [
        HeldUp(operation=operation, what=what, since=since.get(operation, now))
        for operation, what in found.items()
        if what
    ]


async def change_own_record(client: EtcdClient, member: bytes, **fields: Any) -> None:
    """IF the member is as read THEN its record has these fields. Without the member, or a change: nothing."""

    async def decide(read: TxnResult) -> tuple[Txn | None, None]:
        kv = read.one(0, member)
        if not kv.exists:
            return None, None
        standing = decode(kv.value, MemberRecord, kv.key)
        record = msgspec.structs.replace(standing, **fields)
        if record == standing:
            return None, None
        return Txn((unchanged(kv),), (Put(kv.key, encode(record), kv.lease),)), None

    await update(client, (Get(member),), decide, what="the record of this member")
