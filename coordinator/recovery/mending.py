"""``distop cluster doctor --after-restore``: etcd was restored from a backup, and tables are ahead of it.

No service runs meanwhile. First, everything held before (leaderships, runs, claims, memberships) is released:
an old process that wakes up finds its fence gone. Then each table is examined, and led during the repair, so
that no other process can act on it. Everything compares what was read, and may be repeated from the start. At
last, folders of tables that were created after the backup are reported: etcd does not know them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field

import msgspec

from distop.coordinator.doctor.findings import DOCTOR, Finding, Reported
from distop.coordinator.recovery.table import RestoredTable, TableMending
from distop.errors import CorruptRecord, PreconditionFailed, TableNotFound
from distop.lake.layout.staging import owner_file, owners
from distop.lake.storage.storage import Entry, StorageOptions, entries, storage_of
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Put, Txn, unchanged
from distop.metastore.etcd.update import settle
from distop.metastore.members.installation import LEAP, was_restored
from distop.metastore.members.lease import LeaseSession
from distop.metastore.records.member import BackupRecord, InstallationRecord
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.audit import audit_put
from distop.metastore.tables.registry import table_names

MAX_FOLDERS = 10_000
"""Folders examined next to those of known tables."""


def files_without_table(tables: Mapping[str, TableRecord], folders: Collection[str]) -> list[Finding]:
    """Folders of unknown tables next to the known ones (by their uuids), or in these folders."""
    parents: dict[str, StorageOptions | None] = {folder.rstrip("/"): None for folder in folders}
    for table in tables.values():
        parents.setdefault(table.location.rstrip("/").rpartition("/")[0], storage_of(table))
    known = {table.location.rstrip("/") for table in tables.values()}
    findings, looked = [], 0
    for parent, storage in parents.items():
        unread: dict[str, Exception] = {}
        siblings: list[Entry] = []
        try:
            siblings = entries(parent, storage)
        except Exception as error:  # any error of a file system
            unread[parent] = error
        for entry in siblings:
            location = f"{parent}/{entry.name}"
            if not entry.is_folder or location in known or looked >= MAX_FOLDERS:
                continue
            looked += 1
            try:
                unknown = [uuid for uuid in owners(location, storage) if uuid not in tables]
                findings += [_finding(location, uuid, storage) for uuid in unknown]
            except Exception as error:
                unread[location] = error
        if unread:
            findings.append(_unreadable(parent, unread))
    return findings


def _unreadable(parent: str, unread: Mapping[str, Exception]) -> Finding:
    """One finding for all: next to tables may be very many folders of others."""
    location, error = next(iter(unread.items()))
    others = f", nor {len(unread) - 1:,} other folders in {parent}" if len(unread) > 1 else ""
    return Finding(
        code="FOLDER_UNREADABLE",
        subject=parent,
        sentence=f"{location} cannot be read{others}: tables made after the backup may be there "
        f"({type(error).__name__}: {error})",
        remedy="repeat this as a user who may read it, unless only others use it",
    )


def _finding(location: str, uuid: str, storage: StorageOptions | None) -> Finding:
    names = [entry.name for entry in entries(f"{location}/metadata", storage)]
    newest = max((name for name in names if name.endswith(".metadata.json")), default="")
    if newest:
        remedy = (
            f"to register it again: remove {owner_file(location, uuid)}; in pyiceberg "
            f"register_table(NAME, {location + '/metadata/' + newest!r}); then: "
            "distop cluster doctor --after-restore --fix --table NAME"
        )
    else:
        remedy = "create the table again in another folder; remove this one if it is not needed"
    return Finding(
        code="FILES_WITHOUT_TABLE",
        subject=location,
        sentence=f"{location} belongs to a table of uuid {uuid}, which etcd does not know: "
        "it was made after the backup",
        remedy=remedy,
    )


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


async def mend(client: EtcdClient, wanted: Mending, *, now: float) -> AsyncGenerator[Reported, None]:
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
    mark, installation = read.single(0, space.backup), read.single(1, space.installation)
    record = decode(installation.value, InstallationRecord, installation.key) if installation.exists else None
    if record is None:
        raise PreconditionFailed(f"there is no installation {space.name!r} in this etcd")
    if wanted.table and not (await client.get(space.table(wanted.table).table)).exists:
        raise TableNotFound.named(wanted.table)
    first = was_restored(mark, read.revision)
    if first:
        restored = RestoredTable(mark.mod_revision + LEAP, decode(mark.value, BackupRecord, mark.key).at)
    elif wanted.anyway:
        first, restored = True, RestoredTable(read.revision + 1, 0.0)
    elif record.restored:
        restored = RestoredTable(record.restored, 0.0)
    else:
        raise PreconditionFailed(
            "this etcd has no mark of a restore from a backup of distop",
            hint="restore it with --bump-revision 1000000000 --mark-compacted; was the backup made by other "
            "means? then, while no service runs: --anyway",
        )
    async with AsyncExitStack() as stack:
        session = None
        if wanted.fix:
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
                    mending = TableMending(client, client.keyspace.table(name), restored, wanted.by, now)
                    with suppress(CorruptRecord):  # reported below
                        if (table := await mending.read()) is not None:
                            places[table.uuid] = table
                    if wanted.table in ("", name):
                        async for reported in mending.mend(session, wanted.published):
                            held_back = held_back or _is_open(reported)
                            yield reported
        if not wanted.table:
            for finding in await asyncio.to_thread(files_without_table, places, wanted.folders):
                yield Reported(finding)
        if first and wanted.fix and not wanted.table and not held_back:
            await _over(client, mark, installation, record, restored, wanted.by, now)


async def _held_before(
    client: EtcdClient, restored: RestoredTable, session: LeaseSession | None
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
        mended=True,
    )
    if session is None:
        return Reported(finding)
    for first in range(0, len(held), BITE):
        bite = held[first : first + BITE]
        # A key that is gone meanwhile has expired; it must not protect the others.
        gone = tuple(Txn((unchanged(kv),), (DeleteRange(kv.key),)) for kv in bite)
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
    restored: RestoredTable,
    by: str,
    now: float,
) -> None:
    """Services may begin. Raises :class:`~distop.errors.PreconditionFailed` if they may not."""
    known = encode(msgspec.structs.replace(record, restored=restored.revision))
    target = client.keyspace.name
    entry = audit_put(client.keyspace, "after-restore", by=by, target=target, at=now)
    gone = (DeleteRange(mark.key),) if mark.exists else ()
    ops = (Put(installation.key, known), entry, *gone)
    txn = Txn((unchanged(mark), unchanged(installation)), ops, (Get(installation.key),))
    done = await settle(client, txn)
    # Refused: an earlier copy may have done it.
    if not done.succeeded and done.single(0, installation.key).value != known:
        raise PreconditionFailed(
            f"installation {target!r} is being changed by another process",
            hint=f"services do not begin yet; repeat: {AFTER_RESTORE}",
        )
