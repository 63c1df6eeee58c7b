"""Draining a coordinator: it hands over its tables, gets none, and still answers calls (checklist O21).

The state is part of the member's own record, bound to its lease, and ends with the member. A restarted
process is another member, which is not drained.
"""

from __future__ import annotations

from collections.abc import Callable

from distop.errors import NotFound, PreconditionFailed
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.components import prefix_end
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.record import decode, encode


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
        It is the last one that is not draining: no other could take its tables.
    """

    async def decide(read: TxnResult) -> tuple[Txn | None, MemberRecord]:
        members = [(kv, decode(kv.value, MemberRecord, kv.key)) for kv in read.got(0)]
        kv, record = next((one for one in members if name in (one[1].id, one[1].address)), (None, None))
        if kv is None or record is None:
            raise NotFound(f"there is no coordinator {name!r}", hint="see distop members")
        if record.draining == draining:
            return None, record
        if draining and all(other.draining for at, other in members if at.key != kv.key):
            raise PreconditionFailed(
                f"{record.id} is the last coordinator that is not draining",
                hint="start another one first; to stop it for good, send it SIGTERM",
                details={"member": record.id},
            )
        record.draining = draining
        reached("drain.before")
        puts = (Put(kv.key, encode(record), kv.lease), audit(record.id))
        return Txn((unchanged(kv),), puts), record

    everybody = client.keyspace.coordinators
    reads = (Get(everybody, prefix_end(everybody)),)
    what, replied = f"coordinator {name}", lambda: reached("drain.after")
    return (await update(client, reads, decide, what=what, replied=replied))[0]
