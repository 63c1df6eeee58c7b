"""Members, the live processes of an installation: how one registers, what its record says, how it is drained.

A member is an incarnation, bound to one lease: a restart on the same host is another member, and never takes
over state of its predecessor. Its record says what it is and what holds it up, and ends with the lease. A
coordinator that is drained hands over its tables, gets none, and still answers calls (checklist O21); a
restarted process is another member, which is not drained.

Once a record has ended with its lease, nothing shows that there was one. So a service has a *place*, too: a
key for its role and host, with the same record. The next service of this role on this host takes it over, an
orderly end removes it, and if neither happens it ends :data:`PLACE_S` after the service.

A release understands the records of the one before it, and vice versa, so that members can be replaced one at
a time. Versions further apart may refuse each other's records.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import msgspec

from distop.errors import CorruptRecord, NotFound, PreconditionFailed
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import settle, update
from distop.metastore.etcd.watch import follow_key
from distop.metastore.members.installation import enter
from distop.metastore.members.lease import LeaseSession
from distop.metastore.records.member import HeldUp, MemberRecord
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.process.loop import kept_running
from distop.proto.identity import own_version

log = logging.getLogger(__name__)

_RELEASE = re.compile(r"(\d+)\.(\d+)")
MOST = 200
"""Members of a kind that are checked, at the start of one."""


PLACE_S = 3600
"""Longest time for which a service that died is missed, in seconds."""

SLOW_S = (2.0, 1.0, 0.5, 0.2)
"""Times after which an answer of etcd is slow."""


def far_apart(version: str, other: str) -> bool:
    """Whether two versions are more than one release apart. Unknown for an invalid version."""
    releases = _RELEASE.match(version), _RELEASE.match(other)
    if releases[0] is None or releases[1] is None:
        return False
    (major, minor), (major_too, minor_too) = (tuple(map(int, match.groups())) for match in releases if match)
    return major != major_too or abs(minor - minor_too) > 1


async def log_distant_versions(client: EtcdClient) -> None:
    """Log which members are too old, or too new, to run together with this one."""
    space = client.keyspace
    for prefix in (space.coordinators, space.executors):
        page = await client.get_range(prefix, prefix_end(prefix), limit=MOST)
        for kv in page.kvs:
            try:
                member = decode(kv.value, MemberRecord, kv.key)
            except CorruptRecord as error:
                log.warning("version_not_known", extra={"key": repr(kv.key), "error": str(error)})
                continue
            if far_apart(member.distop, own_version()):
                fields = {"member": member.id, "version": member.distop, "own": own_version()}
                log.warning("version_far_apart", extra=fields)


@asynccontextmanager
async def registered(
    client: EtcdClient,
    session: LeaseSession,
    record: MemberRecord,
    *,
    missed: bool = True,
    replied: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Register a process as a member, for as long as the context lasts: its record is there, and its place.

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
    await log_distant_versions(client)
    space = client.keyspace
    key = space.coordinator if record.role == "coordinator" else space.executor
    puts = [etcd.Put(key(record.id), encode(record), session.lease_id)]
    lease = await LeaseSession(client, PLACE_S).start() if missed else None
    try:
        if lease is not None:
            puts.append(
                etcd.Put(space.latest_service(record.role, record.host), encode(record), lease.lease_id)
            )
        # Only once: a late copy would undo what was changed since, such as that it is drained.
        txn = etcd.Txn((etcd.absent(puts[0].key),), tuple(puts))
        await settle(client, txn, patience_s=session.ttl_s, replied=replied)
        guard = kept_running("own record", partial(_guard, client, session, puts[0].key))
        guarding = asyncio.create_task(guard, name=f"member-{record.id}")
        try:
            yield
        finally:
            guarding.cancel()
    finally:
        if lease is not None:
            await lease.close(revoke=session.alive)


async def _guard(client: EtcdClient, session: LeaseSession, key: bytes) -> None:
    """End the session when its member's key is not there any more."""
    async with aclosing(follow_key(client, key)) as states:
        async for kv in states:
            if kv.lease != session.lease_id and session.alive:
                log.warning("member_removed", extra={"key": key.decode()})
                session.lose()


def incarnation(role: str) -> str:
    """A new member id: contains the host, and is never reused, not even by a restart there."""
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def is_of_this_host(member: str) -> bool:
    """Whether a member id was made on this host. In doubt (a host's name within another's) it was."""
    return f"-{socket.gethostname()}-" in member


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
    slow = next((limit for limit in SLOW_S if len(trips) > 1 and min(trips) > limit), 0.0)
    return f"etcd takes more than {slow:g} s to answer it" if slow else ""


def held_up_now(known: Sequence[HeldUp], reasons: Mapping[str, str]) -> list[HeldUp]:
    """What holds it up now, by operation, each with the time since which something has."""
    since, now = {entry.operation: entry.since for entry in known}, time.time()
    return [
        HeldUp(operation=operation, what=reason, since=since.get(operation, now))
        for operation, reason in reasons.items()
        if reason
    ]


async def change_own_record(client: EtcdClient, member: bytes, **fields: Any) -> None:
    """IF the member is as read THEN its record has these fields. Without the member, or a change: nothing."""

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        kv = read.single(0, member)
        if not kv.exists:
            return None, None
        existing = decode(kv.value, MemberRecord, kv.key)
        record = msgspec.structs.replace(existing, **fields)
        if record == existing:
            return None, None
        return etcd.Txn((etcd.unchanged(kv),), (etcd.Put(kv.key, encode(record), kv.lease),)), None

    await update(client, (etcd.Get(member),), decide, subject="the record of this member")


async def set_draining(
    client: EtcdClient, name: str, audit: Callable[[str], etcd.Put], *, draining: bool
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

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, MemberRecord]:
        members = [entry for kv in read.got(0) if (entry := _readable(kv, of=named)) is not None]
        kv, record = next(
            (entry for entry in members if name in (entry[1].id, entry[1].address)), (None, None)
        )
        if kv is None or record is None:
            raise NotFound(f"there is no coordinator {name!r}", hint="see distop cluster members")
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
        puts = (etcd.Put(kv.key, encode(record), kv.lease), audit(record.id))
        # The other one must not be drained, or end, at the same time.
        stays = (etcd.unchanged(spare),) if draining and spare is not None else ()
        return etcd.Txn((etcd.unchanged(kv), *stays), puts), record

    everybody, named = client.keyspace.coordinators, client.keyspace.coordinator(name)
    reads = (etcd.Get(everybody, prefix_end(everybody)),)
    subject, replied = f"coordinator {name}", lambda: reached("drain.after")
    return (await update(client, reads, decide, subject=subject, replied=replied))[0]


def _readable(kv: etcd.KeyValue, *, of: bytes) -> tuple[etcd.KeyValue, MemberRecord] | None:
    """A member with its record; ``None`` if that cannot be read, which is an error only for the member at
    ``of``: whether another one could take its tables is not known, and must not matter to all others."""
    try:
        return kv, decode(kv.value, MemberRecord, kv.key)
    except CorruptRecord:
        if kv.key == of:
            raise
        return None
