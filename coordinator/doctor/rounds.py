"""Examines a live system, and checks again before it reports anything.

What etcd shows at one revision is certain. Files are read at another moment than etcd, and leaders and
runners change: such a suspicion is reported only if every look within its time finds it
(:attr:`Finding.persists_s`). A table without suspicions is examined once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from distop.coordinator.doctor.backlog import check_backlog, check_pauses
from distop.coordinator.doctor.checks import check_schedules, check_table
from distop.coordinator.doctor.cluster import check_etcd, check_members
from distop.coordinator.doctor.findings import (
    Finding,
    Fixing,
    Progress,
    RemoveFiles,
    RepairTxn,
    Reported,
    apply,
    text,
    worst,
)
from distop.coordinator.doctor.liveness import Patience, check_progress
from distop.coordinator.doctor.locations import check_claim, check_location, read_claims, table_record
from distop.coordinator.doctor.reading import (
    ObservedTable,
    indexed_tables,
    names_with_keys,
    read_ends,
    read_members,
    read_table,
    read_tables,
)
from distop.coordinator.doctor.records import check_indexes, unreadable_keys
from distop.coordinator.work.work import LIMIT_S, Work
from distop.errors import (
    Busy,
    Compacted,
    CorruptRecord,
    DistopError,
    PreconditionFailed,
    TableNotFound,
    UnsupportedType,
)
from distop.metastore.backlog.undoing import Done, RollbackDifference, rollback_txn
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.health import read_health
from distop.metastore.etcd.txn import Get, Txn, unchanged
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.audit import prune_softly
from distop.metastore.tables.watermarks import ChunkReader

if TYPE_CHECKING:
    from distop.lake.cleanup.inspection import TableView
    from distop.lake.storage.listing import Entry

T = TypeVar("T")
Results: TypeAlias = asyncio.Queue[tuple[int, list[Reported]]]
"""How many operations a table has (-1: it is the cluster), and the findings."""

TABLES_AT_ONCE = 2
READ_TOGETHER = 48
"""Tables read in the same requests."""
LOOK_EVERY_S = 0.5
"""Pause between two looks at a table with a suspicion."""

LOOK_S = 60.0
"""Longest look into a table's storage, including the wait for its turn; a deep one may take longer."""

HEARTBEAT_S = 1.0
"""Longest interval between progress reports to the caller."""


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What to examine."""

    table: str = ""
    """Only this table, and not the cluster."""
    deep: bool = False
    """Also read manifests and all records, and check that data files exist."""
    fix: bool = False
    patience: Patience = field(default_factory=Patience)
    by: str = ""
    """Who requested repairs, for the audit trail."""


class Doctor:
    """Examines one installation.

    Parameters
    ----------
    work:
        Where files are listed and read, with fair turns for tables.
    wall:
        Seconds since the Unix epoch.
    """

    def __init__(self, client: EtcdClient, work: Work, *, wall: Callable[[], float] = time.time) -> None:
        self._client = client
        self._looks = work
        self._wall = wall

    async def examine(self, scope: Examination) -> AsyncGenerator[Progress, None]:
        """Examine everything; yields findings as they are confirmed, and heartbeats.

        Raises :class:`~distop.errors.TableNotFound` when the requested table has no keys.
        """
        results: Results = asyncio.Queue(16)
        working = asyncio.create_task(self._work(scope, results))
        progress = Progress()
        try:
            while not (working.done() and results.empty()):
                getting = asyncio.create_task(results.get())
                await asyncio.wait(
                    {getting, working}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if getting.done():
                    operations, reported = getting.result()
                    progress.tables += operations >= 0
                    progress.operations += max(operations, 0)
                    progress.reported = reported
                else:
                    getting.cancel()
                yield progress
                progress.reported = []
            working.result()
            progress.done = True
            yield progress
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def _work(self, scope: Examination, results: Results) -> None:
        try:
            await self._examine_all(scope, results)
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _examine_all(
        self, scope: Examination, results: asyncio.Queue[tuple[int, list[Reported]]]
    ) -> None:
        if scope.table:
            if (await read_table(self._client, scope.table)).empty:
                raise TableNotFound.named(scope.table)
            await self._tables((scope.table,), scope, results)
            return
        began, first = asyncio.get_running_loop().time(), await self._look_at_cluster(scope)
        await results.put((-1, await self._confirmed(self._look_at_cluster, scope, began, first)))
        names = iter(await self._names())

        async def examine_tables() -> None:
            while some := tuple(islice(names, READ_TOGETHER)):
                await self._tables(some, scope, results)

        async with asyncio.TaskGroup() as group:
            for _ in range(TABLES_AT_ONCE):
                group.create_task(examine_tables())

    async def _names(self) -> list[str]:
        """Tables with keys of their own, and those that only an index names."""
        revision = await self._client.revision()
        indexed = await indexed_tables(self._client, revision)
        names = await names_with_keys(self._client, revision)
        return [*names, *sorted(indexed.difference(names))]

    # -- tables, or the cluster ------------------------------------------------------------------------

    async def _tables(self, names: Sequence[str], scope: Examination, results: Results) -> None:
        began = asyncio.get_running_loop().time()

        async def confirm(observed: ObservedTable, findings: list[Finding]) -> None:
            async def look(scope: Examination) -> list[Finding]:
                return (await self._look_at_tables((observed.name,), scope))[0][1]

            reported = await self._confirmed(look, scope, began, findings)
            await results.put((len(observed.operations), reported))

        await asyncio.gather(*(confirm(*pair) for pair in await self._look_at_tables(names, scope)))

    async def _confirmed(
        self,
        look: Callable[[Examination], Awaitable[list[Finding]]],
        scope: Examination,
        began: float,
        first: list[Finding],
    ) -> list[Reported]:
        """Findings that are in every look for their required time. ``first``: those of the first look."""
        loop = asyncio.get_running_loop()
        suspects: dict[tuple[str, ...], Finding] = {finding.identity: finding for finding in first}
        confirmed: dict[tuple[str, ...], Finding] = {}
        while suspects:
            for identity, finding in list(suspects.items()):
                if loop.time() - began >= finding.persists_s:
                    confirmed[identity] = suspects.pop(identity)
            if not suspects:
                break
            await asyncio.sleep(LOOK_EVERY_S)
            again: dict[tuple[str, ...], Finding] = {
                finding.identity: finding for finding in await look(scope)
            }
            suspects = {identity: again[identity] for identity in suspects.keys() & again.keys()}
            # A fix compares what was seen last: a busy table has moved on since the first look.
            confirmed |= {identity: again[identity] for identity in confirmed.keys() & again.keys()}
        findings = worst(list(confirmed.values()))
        if not scope.fix:
            return [Reported(finding) for finding in findings]
        fixing = Fixing(self._client, self._blocking, _remove, by=scope.by, at=self._wall())
        reported = [await apply(fixing, finding) for finding in findings]
        await prune_softly(self._client, self._client.keyspace.audit_prefix)
        return reported

    async def _look_at_cluster(self, scope: Examination) -> list[Finding]:
        health = await read_health(self._client.config)
        findings = check_etcd(health) + check_members(await read_members(self._client), self._wall())
        async with aclosing(read_claims(self._client)) as claims:
            async for claim in claims:
                findings += check_claim(claim)
        known = {finding.subject for finding in findings}
        indexes = await check_indexes(self._client, values=scope.deep)
        return findings + [finding for finding in indexes if finding.subject not in known]

    async def _look_at_tables(
        self, names: Sequence[str], scope: Examination
    ) -> list[tuple[ObservedTable, list[Finding]]]:
        records = await self._records(names)
        # Folders before etcd: see files.py.
        folders = await asyncio.gather(*(self._staged_folders(record) for record in records))
        observed = await read_tables(self._client, names)
        looks = (self._look_at(*table, scope) for table in zip(observed, records, folders, strict=True))
        return list(zip(observed, await asyncio.gather(*looks), strict=True))

    async def _look_at(
        self,
        observed: ObservedTable,
        record: TableRecord | None,
        folders: list[str] | Exception,
        scope: Examination,
    ) -> list[Finding]:
        findings = check_table(observed) + check_progress(observed, self._wall(), scope.patience)
        findings += [
            *check_backlog(observed, scope.patience),
            *check_pauses(observed),
            *check_location(observed),
        ]
        findings += check_schedules(observed)
        if scope.deep:
            known = {finding.subject for finding in findings}
            async with aclosing(unreadable_keys(self._client, observed.keys.prefix, values=True)) as keys:
                findings += [
                    observed.unreadable(*finding) async for finding in keys if text(finding[0]) not in known
                ]
        if record is not None:
            findings += await self._files_of(observed, record, folders, scope)
        return findings

    async def _files_of(
        self, observed: ObservedTable, table: TableRecord, folders: list[str] | Exception, scope: Examination
    ) -> list[Finding]:
        """What is wrong with its files; that they cannot be looked at ends the looks at no other table."""
        try:
            try:
                return await self._look_at_files(observed, table, folders, scope)
            except Compacted:
                observed = await read_table(self._client, observed.name)
                return await self._look_at_files(observed, table, folders, scope)
        except Exception as error:  # any error of etcd or of a file system
            return [
                observed.finding(
                    "FOLDER_UNREADABLE",
                    persists_s=1.0,
                    sentence=f"the files of table {observed.name!r} could not be looked at "
                    f"({type(error).__name__}: {error})",
                    remedy="give this coordinator access to the table's location, or try again later",
                )
            ]

    async def _records(self, names: Sequence[str]) -> list[TableRecord | None]:
        keys = [self._client.keyspace.table(name).table for name in names]
        read = await self._client.read_many([Get(key) for key in keys])
        return [table_record(read.single(index, key)) for index, key in enumerate(keys)]

    async def _staged_folders(self, table: TableRecord | None) -> list[str] | Exception:
        if table is None:
            return []
        from distop.lake.cleanup.inspection import staged_folders

        try:
            return await self._blocking(table.name, staged_folders, table)
        except Exception as error:  # reported among the findings about files
            return error

    async def _look_at_files(
        self, observed: ObservedTable, table: TableRecord, folders: list[str] | Exception, scope: Examination
    ) -> list[Finding]:
        from distop.coordinator.doctor.files import (
            check_head,
            check_staged,
            check_values,
            unowned_folders,
        )
        from distop.lake.cleanup.inspection import staged_files

        findings: list[Finding] = []
        view, head = None, _head_of(observed) if table.format == "iceberg" else None
        if head is not None:
            view, failed = await self._view(observed, table, head, deep=scope.deep)
            findings += [failed] if failed is not None else []
            if view is not None:
                chunks = ChunkReader(self._client, table, observed.revision)
                findings += await self._blocking(observed.name, check_head, observed, head, view, chunks)
                findings += check_values(observed, view)
                if view.gone:
                    findings += await self._not_in_history(observed, view)
        if isinstance(folders, Exception):
            if findings:
                return findings  # such as a head that cannot be read, either
            raise folders
        unowned = unowned_folders(observed, folders)
        files: dict[str, list[Entry]] = {}
        for folder, operation in unowned.items():
            if operation is not None or scope.deep:
                files[folder] = await self._blocking(observed.name, staged_files, table, folder)
        return findings + check_staged(observed, table, unowned, files, view, self._wall())

    async def _not_in_history(self, observed: ObservedTable, view: TableView) -> list[Finding]:
        """What counts as applied, and was taken out of the table's history."""
        from distop.catalog.pointers import FOREIGN
        from distop.coordinator.doctor.files import counted_as_applied, gone_from_history, not_in_history
        from distop.lake.iceberg.provenance import done_by

        gone = gone_from_history(view)
        try:
            ends = await read_ends(self._client, observed, gone)
            applied = counted_as_applied(observed, gone, ends, self._wall())
        except CorruptRecord:
            return []  # a deep look reports it
        if not any((applied.batches, applied.unordered, applied.requests)):
            return []
        undoes = RollbackDifference(gone=applied, back=Done(), left=done_by(view.live))
        fix, by = None, str(OperationId(observed.name, FOREIGN, 0))
        with suppress(Busy, PreconditionFailed):  # others are put back at present, or these are too many
            txn = await rollback_txn(self._client, observed.keys, undoes, by=by, now=self._wall())
            fix = RepairTxn("took it back", Txn((unchanged(observed.head),)) + txn)
        return list(not_in_history(observed, applied, fix))

    async def _view(
        self, observed: ObservedTable, table: TableRecord, head: Head, *, deep: bool
    ) -> tuple[TableView | None, Finding | None]:
        from distop.coordinator.doctor.files import head_unreadable, not_supported
        from distop.lake.cleanup.inspection import view_table
        from distop.lake.storage.storage import storage_of

        def view() -> TableView:
            return view_table(head.metadata_location, deep=deep, storage=storage_of(table))

        try:
            return await self._blocking(observed.name, view, limit_s=LIMIT_S if deep else LOOK_S), None
        except UnsupportedType as error:
            return None, not_supported(observed, head, error)
        except CorruptRecord as error:
            return None, head_unreadable(observed, head, error.message, missing=True)
        except DistopError as error:
            return None, head_unreadable(observed, head, error.message, missing=False)
        except Exception as error:  # any error of a file system
            why = f"{type(error).__name__}: {error}"
            return None, head_unreadable(observed, head, why, missing=False)

    async def _blocking(self, table: str, call: Callable[..., T], *args: Any, limit_s: float = LOOK_S) -> T:
        return await self._looks.blocking(table, "a look of the doctor", call, *args, limit_s=limit_s)


def _head_of(observed: ObservedTable) -> Head | None:
    try:
        return decode(observed.head.value, Head, observed.head.key) if observed.head.exists else None
    except CorruptRecord:
        return None  # reported among the records


def _remove(fix: RemoveFiles) -> int:
    from distop.lake.storage.listing import remove_files, remove_if_empty

    removed = remove_files((f"{fix.folder}/{name}" for name in fix.names), fix.storage)
    remove_if_empty(fix.folder)
    return removed
