"""Examines a live system, and checks again before it reports anything.

What etcd shows at one revision is certain. Files are read at another moment than etcd, and leaders and
runners change: such a suspicion is reported only if every look within its time finds it
(:attr:`Finding.persists_s`). A table without suspicions is examined once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
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
    read_members,
    read_table,
    read_tables,
)
from distop.coordinator.doctor.records import check_indexes, unreadable_keys
from distop.coordinator.work.work import Work
from distop.errors import Compacted, TableNotFound
from distop.lake.storage.storage import remove_files, remove_if_empty
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.health import read_health
from distop.metastore.etcd.txn import Get
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.audit import prune_softly
from distop.process.loop import cancel_all

if TYPE_CHECKING:
    from distop.coordinator.doctor.files import FileLooks

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
            await cancel_all(working)

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
        folders = await asyncio.gather(*(self._folders_of(record) for record in records))
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
                return await self._files.look(observed, table, folders, deep=scope.deep)
            except Compacted:
                observed = await read_table(self._client, observed.name)
                return await self._files.look(observed, table, folders, deep=scope.deep)
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

    @cached_property
    def _files(self) -> FileLooks:
        from distop.coordinator.doctor.files import FileLooks  # loads pyiceberg

        return FileLooks(self._client, self._blocking, self._wall)

    async def _folders_of(self, table: TableRecord | None) -> list[str] | Exception:
        return [] if table is None else await self._files.folders_of(table)

    async def _records(self, names: Sequence[str]) -> list[TableRecord | None]:
        keys = [self._client.keyspace.table(name).table for name in names]
        read = await self._client.read_many([Get(key) for key in keys])
        return [table_record(read.single(index, key)) for index, key in enumerate(keys)]

    async def _blocking(self, table: str, call: Callable[..., T], *args: Any, limit_s: float = LOOK_S) -> T:
        return await self._looks.blocking(table, "a look of the doctor", call, *args, limit_s=limit_s)


def _remove(fix: RemoveFiles) -> int:
    removed = remove_files((f"{fix.folder}/{name}" for name in fix.names), fix.storage)
    remove_if_empty(fix.folder)
    return removed
