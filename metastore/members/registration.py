"""How a process becomes a member, and how a service that died is missed.

The record of a member ends with its lease, and then nothing shows that there was one. So a service has a
*place*, too: a key for its role and host, with the same record. The next service of this role on this host
takes it over, an orderly end removes it, and if neither happens it ends :data:`PLACE_S` after the service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from functools import partial

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Put, Txn, absent
from distop.metastore.etcd.update import settle
from distop.metastore.etcd.watch import follow_key
from distop.metastore.members.installation import enter
from distop.metastore.members.lease import LeaseSession
from distop.metastore.members.versions import tell_if_apart
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.record import encode
from distop.process.followers import kept_running

log = logging.getLogger(__name__)

PLACE_S = 3600
"""Longest time for which a service that died is missed, in seconds."""


@asynccontextmanager
async def registered(
    client: EtcdClient,
    session: LeaseSession,
    record: MemberRecord,
    *,
    missed: bool = True,
    replied: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Its record is there, and its place.

    Parameters
    ----------
    session:
        The lease that its record is bound to, which is the caller's.
    missed:
        Whether it has a place.

    Raises
    ------
    DistopError
        It could not register.

    A key that is removed, or is another's, ends the session: the process is no member any more for others,
    and begins again as a new one.
    """
    await enter(client)
    await tell_if_apart(client)
    space = client.keyspace
    key = space.coordinator if record.role == "coordinator" else space.executor
    puts = [Put(key(record.id), encode(record), session.lease_id)]
    place = await LeaseSession(client, PLACE_S).start() if missed else None
    try:
        if place is not None:
            puts.append(Put(space.place(record.role, record.host), encode(record), place.lease_id))
        # Only once: a late copy would undo what was changed since, such as that it is drained.
        txn = Txn((absent(puts[0].key),), tuple(puts))
        await settle(client, txn, patience_s=session.ttl_s, replied=replied)
        guard = kept_running("own record", partial(_guard, client, session, puts[0].key))
        guarding = asyncio.create_task(guard, name=f"member-{record.id}")
        try:
            yield
        finally:
            guarding.cancel()
    finally:
        if place is not None:
            await place.close(revoke=session.alive)


async def _guard(client: EtcdClient, session: LeaseSession, key: bytes) -> None:
    """End the session when its member's key is not there any more."""
    async with aclosing(follow_key(client, key)) as states:
        async for kv in states:
            if kv.lease != session.lease_id and session.alive:
                log.warning("member_removed", extra={"key": key.decode()})
                session.lose()
