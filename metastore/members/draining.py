"""Draining a coordinator: it hands over its tables, gets none, and still answers calls (checklist O21).

The state is part of the member's own record, bound to its lease, and ends with the member. A restarted
process is another member, which is not drained.
"""

from __future__ import annotations

from collections.abc import Callable

from distop.errors import CorruptRecord, NotFound, PreconditionFailed
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, Put, Txn, TxnResult, unchanged
from distop.metastore.etcd.update import update
from distop.metastore.records.components import prefix_end
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.record import decode, encode


async def set_draining(
    client: EtcdClient, name: str, audit: Callable[[str], Put], *, draining: bool
) -> MemberRecord:
    """IF the member is as read THEN its record says whether it is draining, and the audit entry is there.

    To drain it, another one that can take its tables must be as read, too.

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
    CorruptRecord
        Its record cannot be read.
    """

    async def decide(read: TxnResult) -> tuple[Txn | None, MemberRecord]:
        members = [one for kv in read.got(0) if (one := _readable(kv, of=named)) is not None]
        kv, record = next((one for one in members if name in (one[1].id, one[1].address)), (None, None))
        if kv is None or record is None:
            raise NotFound(f"there is no coordinator {name!r}", hint="see distop members")
        if record.draining == draining:
            return None, record
        spare = next((at for at, other in members if at.key != kv.key and not other.draining), None)
        if draining and spare is None:
            raise PreconditionFailed(
                f"{record.id} is the last coordinator that is not draining",
                hint="start another one first; to stop it for good, send it SIGTERM",
                details={"member": record.id},
            )
        record.draining = draining
        reached("drain.before")
        puts = (Put(kv.key, encode(record), kv.lease), audit(record.id))
        # The other one must not be drained, or end, at the same time.
        stays = (unchanged(spare),) if draining and spare is not None else ()
        return Txn((unchanged(kv), *stays), puts), record

    everybody, named = client.keyspace.coordinators, client.keyspace.coordinator(name)
    reads = (Get(everybody, prefix_end(everybody)),)
    what, replied = f"coordinator {name}", lambda: reached("drain.after")
    return (await update(client, reads, decide, what=what, replied=replied))[0]


def _readable(kv: KeyValue, *, of: bytes) -> tuple[KeyValue, MemberRecord] | None:
    """A member with its record; ``None`` if that cannot be read, which is an error only for the member at
    ``of``: whether another one could take its tables is not known, and must not matter to all others."""
    try:
        return kv, decode(kv.value, MemberRecord, kv.key)
    except CorruptRecord:
        if kv.key == of:
            raise
        return None
