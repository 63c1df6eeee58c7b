"""Draining a coordinator: it gives its tables up and gets none, and still answers calls (checklist O21).

It stands in the member's own record, bound to its lease: what was said of a member ends with it. A process
that begins again is another member, which nobody has drained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distop.errors import NotFound, PreconditionFailed
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.settle import settle
from distop.metastore.etcd.txn import KeyValue, Put, Txn, unchanged
from distop.metastore.records.model import MemberRecord, decode, encode

MAX_TRIES = 8


@dataclass(frozen=True, slots=True)
class _Member:
    kv: KeyValue
    record: MemberRecord


async def set_draining(
    client: EtcdClient, name: str, audit: Callable[[str], Put], *, draining: bool
) -> MemberRecord:
    """IF the member is as read THEN its record says whether it is draining, and the audit entry is there.

    Parameters
    ----------
    name:
        The id of a live coordinator, or its address.
    audit:
        Makes the audit entry for the member's id.

    Raises
    ------
    NotFound
        There is no such coordinator.
    PreconditionFailed
        It is the last one that is not draining: nobody could take its tables.
    """
    for _ in range(MAX_TRIES):
        listing = await client.scan(client.keyspace.coordinators)
        members = [_Member(kv, decode(kv.value, MemberRecord, kv.key)) for kv in listing.kvs]
        found = [one for one in members if name in (one.record.id, one.record.address)]
        if not found:
            raise NotFound(f"there is no coordinator {name!r}", hint="see distop members")
        kv, record = found[0].kv, found[0].record
        if record.draining == draining:
            return record
        if draining and not any(not one.record.draining for one in members if one.kv.key != kv.key):
            raise PreconditionFailed(
                f"{record.id} is the last coordinator that is not draining",
                hint="start another one first; to stop it for good, send it SIGTERM",
                details={"member": record.id},
            )
        record.draining = draining
        txn = Txn((unchanged(kv),), (Put(kv.key, encode(record), kv.lease), audit(record.id)))
        reached("drain.before")
        await settle(
            client,
            txn,
            patience_s=4 * client.config.timeout_s,
            tries=MAX_TRIES,
            insist=False,
            replied=lambda: reached("drain.after"),
        )
        # Whether it was this transaction or somebody else's: the next look says how it stands.
    raise PreconditionFailed(f"coordinator {name} changes too fast to be drained")
