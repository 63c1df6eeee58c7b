"""What a workload works with: a client, tables with their books, and how to wait for an end."""

import asyncio
import contextlib
import itertools
import random
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from chaos.checks import Findings, KnownFiles, check_keys, check_rows, check_whole, plain_leftovers, state_of
from chaos.cluster import Cluster
from chaos.ledger import Batch, Book, Sources, Started
from distop.client import AsyncClient
from distop.errors import DistopError, TableExists
from distop.lake.iceberg.takeover import TYPE, folder_of
from distop.metastore.operations.retention import entry_of
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode

T = TypeVar("T")

PATIENCE_S = 150.0
"""After so long an operation is called stuck."""
OPERATIONS_PER_TABLE = 24
"""Then a new table takes its place, so that looking at one stays cheap."""
READ_EVERY_S = 0.4
SCHEMA = ["id: long", "batch: string", "kind: string"]


class Stuck(Exception):
    """Something that must end has not."""


def do_nothing() -> None:
    """Where nothing is to be struck."""


@dataclass
class Lab:
    """One run's world."""

    cluster: Cluster
    client: AsyncClient
    rng: random.Random
    folder: Path
    books: dict[str, Book] = field(default_factory=dict)
    """The present tables, by what they are used for."""
    retired: list[Book] = field(default_factory=list)
    operations: int = 0
    torn: list[str] = field(default_factory=list)
    """What the reader has seen that nobody may see."""
    reads: int = 0
    here: Callable[[], None] = do_nothing
    """Called by a workload when nothing but the commit that it is about is still to come."""

    def __post_init__(self) -> None:
        self.sources = Sources(self.folder / "sources")
        self.files = KnownFiles()
        self._numbers = itertools.count(1)
        self._sizes: dict[str, int] = {}
        self._busy: set[str] = set()

    async def retry_until_known(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call until it is answered, as a caller does whose service is being killed."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return await call()
            except DistopError as error:
                if not error.retryable or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    async def table(
        self, use: str, *, replaces: bool = False, plain: bool = False, apart: bool = False, **options: Any
    ) -> Book:
        """The table for one use; created when it is first needed, and a new one after many operations."""
        book = self.books.get(use)
        if book is not None and book.operations < OPERATIONS_PER_TABLE:
            return book
        if book is not None:
            self.retired.append(book)
        name = f"{use}-{next(self._numbers)}"
        location = self.folder / "tables" / name
        given: Any = {"partitionBy": ["kind"], "schema": SCHEMA, **options}
        with contextlib.suppress(TableExists):  # made by a call whose answer was lost
            await self.retry_until_known(
                lambda: self.client.create_table(
                    name, str(location), format="files" if plain else "iceberg", options=given
                )
            )
        self.books[use] = book = Book(name, location, replaces, plain=plain, apart=apart)
        return book

    async def start(
        self, book: Book, kind: str, argument: dict[str, Any], *, outcome: str = "success", **more: Any
    ) -> Started:
        """Start an operation; sent again with the same run until there is an answer."""
        run = f"chaos-{secrets.token_hex(6)}"

        async def call() -> OperationId:
            started = await self.client.start(book.table, kind, argument, run=run)
            return OperationId.parse(started.name)

        return self.begun(await self.retry_until_known(call), book, outcome, **more)

    def begun(self, operation: OperationId, book: Book, outcome: str = "success", **more: Any) -> Started:
        """An operation that has been started, be it by the service itself."""
        book.operations += 1
        self.operations += 1
        return Started(operation, book, outcome, **more)

    async def ingest(self, book: Book, *, bad: bool = False, **argument: Any) -> Started:
        """Start to ingest a new batch."""
        batch = self.new_batch(bad=bad)
        given = {"paths": [str(batch.folder)], "split_bytes": 1024, **argument}
        if book.replaces:
            given["mode"] = "overwrite"
        outcome = "failed" if bad else "success"
        return await self.start(book, "ingest", given, outcome=outcome, batch=batch)

    def new_batch(self, *, bad: bool = False, rows: int = 0) -> Batch:
        batch = self.sources.batch(bad=bad, rows=rows)
        self._sizes[batch.name] = len(batch.ids)
        return batch

    async def program(self, module: str, *words: str, ends: tuple[int, ...] = (0,)) -> None:
        """Run a program; started again until it comes to its end, with one of these exit codes."""
        await self.command(module, sys.executable, "-m", module, *words, ends=ends)

    async def command(self, name: str, *words: str, ends: tuple[int, ...] = (0,)) -> None:
        """As :meth:`program`, by its command; ``name`` is that of its log."""
        deadline = time.monotonic() + PATIENCE_S
        with (self.cluster.logs / f"{name}.log").open("ab") as log:
            while True:
                process = await asyncio.create_subprocess_exec(
                    *words, env=self.cluster.environment(), stdout=log, stderr=log
                )
                if await process.wait() in ends:
                    return
                if time.monotonic() > deadline:
                    raise Stuck(f"{name} never came to its end")

    async def until(self, condition: Callable[[], Awaitable[T | None]], failure: str) -> T:
        """The first true value of the condition; :class:`Stuck` with ``failure`` if there is none in time."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if value := await condition():
                    return value
            except DistopError as error:
                if not error.retryable:
                    raise
            if time.monotonic() > deadline:
                raise Stuck(f"{failure} after {PATIENCE_S:.0f} s")
            await asyncio.sleep(0.05)

    async def ended(self, started: Started) -> list[str]:
        """Wait for the end of an operation, and enter what it published into its book; what is wrong."""
        store, keys = self.cluster.store, self.cluster.store.keyspace.table(started.book.table)
        key = keys.history(started.operation)

        async def history() -> HistoryRecord | None:
            kv = await store.get(key)
            if kv.exists:
                return decode(kv.value, HistoryRecord, key)
            # The next of its series may have replaced its line, which only says that it succeeded then.
            entry = await entry_of(store, keys, started.operation)
            return entry and HistoryRecord(
                outcome="success", started_at=entry[0].started_at, finished_at=entry[0].finished_at
            )

        record = await self.until(history, f"{started.operation} has not ended")
        if record.outcome == "success" and started.batch is not None:
            started.book.published(started.batch)
        if record.outcome != started.outcome:
            why = f": {record.error_code} {record.error[:300]}"
            return [f"{started.operation} ended as {record.outcome}, not {started.outcome}{why}"]
        return []

    async def quiet(self) -> None:
        """Wait until no operation has keys any more, and no leader is to look at a backlog."""
        store = self.cluster.store
        going_on = (store.keyspace.active, store.keyspace.backlog_tables)

        async def nothing() -> bool:
            return not any([(await store.scan(prefix, keys_only=True)).kvs for prefix in going_on])

        await self.until(nothing, "keys of operations or marks of backlogs are not collected")

    async def check(self) -> Findings:
        """All invariants of all present tables, at rest."""
        findings = await check_keys(self.cluster.store)
        for book in self.books.values():
            findings.add(await self.check_table(book))
        findings.wrong += self.torn
        self.torn = []
        return findings

    async def check_table(self, book: Book) -> Findings:
        store = self.cluster.store
        state = await state_of(store, store.keyspace.table(book.table))
        findings = await asyncio.to_thread(check_rows, book, state)
        if book.plain:
            findings.leftovers += await asyncio.to_thread(plain_leftovers, book)
            return findings
        own = (
            await self.retry_until_known(partial(self._folders_of_writes, book)) if book.apart else set[str]()
        )
        findings.add(await asyncio.to_thread(self.files.check, book, state.location, own))
        return findings

    async def _folders_of_writes(self, book: Book) -> set[str]:
        """Folders of writes that were published or abandoned. Those of other writers are found by age."""
        listed = self.client.operations(book.table, type=TYPE)
        return {folder_of(operation.object) async for operation in listed if operation.object}

    async def read_for_ever(self) -> None:
        """A reader in a loop, at any moment."""
        store, last = self.cluster.store, dict[str, Any]()
        while True:
            await asyncio.sleep(READ_EVERY_S)
            for book in list(self.books.values()):
                try:
                    state = await state_of(store, store.keyspace.table(book.table))
                except DistopError:
                    continue
                if book.plain or last.get(book.table) == state:  # a tree has no pointer that moves at once
                    continue
                last[book.table] = state
                try:
                    problem = await asyncio.to_thread(check_whole, book, state, self._sizes)
                except FileNotFoundError:
                    if book in self.books.values():
                        raise
                    continue  # it was dropped with its files
                self.reads += 1
                if problem:
                    self.torn.append(problem)
