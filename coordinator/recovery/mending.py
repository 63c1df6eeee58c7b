"""``distop doctor --after-restore``: etcd was restored from a backup, and the tables' files are ahead of it.

No service runs meanwhile. First, everything held before (leaderships, runs, claims, memberships) is released:
an old process that wakes up finds its fence gone. Then each table is examined, and led during the repair, so
that no other process can act on it. Everything compares what was read, and may be repeated from the
start.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field

import msgspec

from distop.coordinator.doctor.findings import DOCTOR, Finding, Reported
from distop.coordinator.recovery.strangers import files_without_table
from distop.coordinator.recovery.table import Restored, TableMending
from distop.errors import CorruptRecord, PreconditionFailed, TableNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Get, KeyValue, Put, Txn, unchanged
from distop.metastore.etcd.update import settle
from distop.metastore.members.installation import LEAP, was_restored
from distop.metastore.members.lease import LeaseSession
from distop.metastore.records.member import BackupRecord, InstallationRecord
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.audit import audit_put
from distop.metastore.tables.registry import table_names

TTL_S = 15
PAGE = 1000
BITE = 60
"""Keys released by one transaction."""

AFTER_RESTORE = f"{DOCTOR} --after-restore"


@dataclass(frozen=True, kw_only=True)
class Mending:
    """What to do."""

    fix: bool = False
    table: str = ""
    """Only this table; the first time it must be all."""
    anyway: bool = False
    """Also if no mark shows that etcd was restored: the backup was made by other means."""
    published: Collection[str] = field(default_factory=tuple)
    """Names of metadata files that the operator says were published, where that is unknown."""
    folders: Collection[str] = field(default_factory=tuple)
    """Further folders of tables that were created after the backup, apart from those next to others."""
    by: str = ""


async def mend(client: EtcdClient, what: Mending, *, now: float) -> AsyncGenerator[Reported, None]:
    """Examine all tables, and repair them if requested; yields the findings.

    Parameters
    ----------
    now:
        Seconds since the Unix epoch.

    Raises
    ------
    PreconditionFailed
        No mark shows that etcd was restored; services run already; or another process interferes.
    TableNotFound
        There is no such table. Nothing was done.
    """
    space = client.keyspace
    read = await client.txn(Txn(then=(Get(space.backup), Get(space.installation))))
    mark, installation = read.one(0, space.backup), read.one(1, space.installation)
    record = decode(installation.value, InstallationRecord, installation.key) if installation.exists else None
    if record is None:
        raise PreconditionFailed(f"there is no installation {space.name!r} in this etcd")
    if what.table and not (await client.get(space.table(what.table).table)).exists:
        raise TableNotFound(f"table {what.table!r} does not exist", details={"table": what.table})
    first = was_restored(mark, read.revision)
    if first:
        restored = Restored(mark.mod_revision + LEAP, decode(mark.value, BackupRecord, mark.key).at)
    elif what.anyway:
        first, restored = True, Restored(read.revision + 1, 0.0)
    elif record.restored:
        restored = Restored(record.restored, 0.0)
    else:
        raise PreconditionFailed(
            "this etcd has no mark of a restore from a distop backup",
            hint="restore it with --bump-revision 1000000000 --mark-compacted; was the backup made by other "
            "means? then, while no service runs: --anyway",
        )
    async with AsyncExitStack() as stack:
        session = None
        if what.fix:
            session = await stack.enter_async_context(LeaseSession(client, TTL_S))
        if first:
            held = await _held_before(client, restored, session)
            if held is not None:
                yield held
        places: dict[str, TableRecord] = {}
        held_back = False
        async with aclosing(table_names(client)) as listed:
            async for names, _ in listed:
                for name in names:
                    mending = TableMending(client, client.keyspace.table(name), restored, what.by, now)
                    with suppress(CorruptRecord):  # reported below
                        if (table := await mending.read()) is not None:
                            places[table.uuid] = table
                    if what.table in ("", name):
                        async for reported in mending.mend(session, what.published):
                            held_back = held_back or _is_open(reported)
                            yield reported
        if not what.table:
            for finding in await asyncio.to_thread(files_without_table, places, what.folders):
                yield Reported(finding)
        if first and what.fix and not what.table and not held_back:
            await _over(client, mark, installation, record, restored, what.by, now)


async def _held_before(
    client: EtcdClient, restored: Restored, session: LeaseSession | None
) -> Reported | None:
    """Release what old processes hold: their leases were restored, too, and they may still renew them."""
    space, held = client.keyspace, []
    pages = client.pages(space.prefix, prefix_end(space.prefix), limit=PAGE, keys_only=True)
    async with aclosing(pages):
        async for page in pages:
            held += [kv for kv in page.kvs if kv.lease and not _is_answer(client, kv)]
    if any(kv.create_revision >= restored.revision for kv in held):
        raise PreconditionFailed(
            "a service has registered since etcd was restored",
            hint="end all services, wait until their leases have expired, and try again",
        )
    if not held:
        return None
    finding = Finding(
        code="HELD_BEFORE_RESTORE",
        sentence=f"{len(held):,} keys are held by processes of before the restore, which may still run",
        remedy=f"{AFTER_RESTORE} releases them",
    )
    if session is None:
        return Reported(finding)
    for first in range(0, len(held), BITE):
        bite = held[first : first + BITE]
        # A key that is gone meanwhile has expired; it must not protect the others.
        gone = tuple(Txn((unchanged(kv),), (Delete(kv.key),)) for kv in bite)
        await settle(client, Txn(then=gone))
    return Reported(finding, fixed=True, outcome="took them away")


def _is_open(reported: Reported) -> bool:
    """Whether a table is neither repaired nor paused: no service may begin."""
    return reported.finding.code == "RESTORE_UNCLEAR" and not reported.outcome


def _is_answer(client: EtcdClient, kv: KeyValue) -> bool:
    """The answer to a request stays valid."""
    return kv.key.startswith(client.keyspace.prefix + b"_answers.")


async def _over(
    client: EtcdClient,
    mark: KeyValue,
    installation: KeyValue,
    record: InstallationRecord,
    restored: Restored,
    by: str,
    now: float,
) -> None:
    """Services may begin. Raises :class:`~distop.errors.PreconditionFailed` if they may not."""
    known = encode(msgspec.structs.replace(record, restored=restored.revision))
    target = client.keyspace.name
    entry = audit_put(client.keyspace, "after-restore", by=by, target=target, at=now)
    gone = (Delete(mark.key),) if mark.exists else ()
    ops = (Put(installation.key, known), entry, *gone)
    txn = Txn((unchanged(mark), unchanged(installation)), ops, (Get(installation.key),))
    done = await settle(client, txn)
    # Refused: an earlier copy may have done it.
    if not done.succeeded and done.one(0, installation.key).value != known:
        raise PreconditionFailed(
            f"installation {target!r} is being changed by another process",
            hint=f"services do not begin yet; repeat: {AFTER_RESTORE}",
        )
