"""Rollbacks, replacements, clears and replays of a table at random, while services are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from chaos.backlogs import drained
from chaos.lab import Lab
from chaos.ledger import HEADER, Batch, Book
from distop.client import Operation
from distop.errors import RolledBack
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head

ACTIONS = 30


@dataclass(frozen=True)
class State:
    """What the table holds: by request or batch, its rows; and the names of its watermarks."""

    rows: dict[str, Batch] = field(default_factory=dict)
    watermarks: frozenset[str] = frozenset()

    def put(self, unit: str, batch: Batch, *watermarks: str) -> State:
        return State({**self.rows, unit: batch}, self.watermarks | set(watermarks))


@dataclass
class Table:
    """One table and its past."""

    lab: Lab
    book: Book
    now: State = field(default_factory=State)
    past: dict[str, State] = field(default_factory=dict)
    """The table's state at each snapshot, by its id."""
    folders: dict[str, Batch] = field(default_factory=dict)
    """The batch that each request reads, by its id."""
    delivered: dict[str, Batch] = field(default_factory=dict)
    """The content that each batch was published with last, by its name."""
    rejected: dict[str, Batch] = field(default_factory=dict)
    """The corrected row of each operation with a row in quarantine."""
    problems: list[str] = field(default_factory=list)

    async def run(self) -> list[str]:
        await self.ingest()
        for _ in range(ACTIONS):
            await self.lab.rng.choice(self.possible())()
            await drained(self.lab, self.book)
            await self.remember()
        self.book.batches = {batch.name: batch for batch in self.now.rows.values()}
        self.book.watermarks = set(self.now.watermarks)
        self.book.fresh.update(number for batch in self.now.rows.values() for number in batch.ids)
        return self.problems

    def possible(self) -> list[Callable[[], Awaitable[None]]]:
        steps: list[Callable[[], Awaitable[None]]]
        steps = [self.ingest, self.clear, self.repeat, self.publish, self.reject]
        if self.delivered:
            steps.append(self.replace)
        if self.rejected:
            steps.append(self.replay)
        if len(self.past) > 1:
            steps += [self.roll_back] * 3
        return steps

    async def remember(self) -> None:
        store = self.lab.cluster.store
        head = await store.get(store.keyspace.table(self.book.table).head)
        self.past[str(decode(head.value, Head, head.key).snapshot_id)] = self.now

    async def ingest(self) -> None:
        """With a named run."""
        batch = self.lab.new_batch()
        request = f"r-{batch.name}"
        self.folders[request] = batch
        await self._ends(await self._request(request))
        self.now = self.now.put(request, batch, batch.name)

    async def clear(self) -> None:
        """The files of a request change, and it is run again in place of its rows, if it has any."""
        request = self.lab.rng.choice(sorted(self.folders))
        before, after = self.folders[request], self.lab.new_batch()
        for file in after.folder.iterdir():
            file.replace(before.folder / file.name)
        self.folders[request] = anew = replace(after, folder=before.folder)
        await self._ends(await self._request(request, again=True))
        self.now = self.now.put(request, anew, before.folder.name)

    async def repeat(self) -> None:
        """A late copy of a call: nothing happens."""
        request = self.lab.rng.choice(sorted(self.folders))
        with suppress(RolledBack):
            await self._ends(await self._request(request))
            if request not in self.now.rows:
                self.problems.append(f"{self.book.table}: {request} was rolled back, and is called done")
            return
        if request in self.now.rows:
            self.problems.append(f"{self.book.table}: {request} is done, and is called rolled back")

    async def publish(self) -> None:
        """A batch of the backlog."""
        batch = self.lab.new_batch()
        name = f"b-{batch.name}"
        argument = {"paths": [str(batch.folder)]}
        await self.lab.retry_until_known(
            partial(self.lab.client.table(self.book.table).enqueue, name, "ingest", argument)
        )
        self.delivered[name] = batch
        self.now = self.now.put(name, batch, batch.name)

    async def replace(self) -> None:
        """A batch is delivered anew."""
        name, after = self.lab.rng.choice(sorted(self.delivered)), self.lab.new_batch()
        argument = {"paths": [str(after.folder)]}
        await self.lab.retry_until_known(
            partial(self.lab.client.table(self.book.table).replace_batch, name, argument)
        )
        self.delivered[name] = after
        self.now = self.now.put(name, after, after.name)

    async def reject(self) -> None:
        """An ingest one of whose rows goes into quarantine."""
        batch, bad = self.lab.new_batch(), self.lab.new_batch(rows=1)
        (row,) = bad.folder.iterdir()
        right = row.read_text()
        wrong = batch.folder / "part-0.csv"
        wrong.write_text(wrong.read_text() + right.removeprefix(HEADER).replace(f"{bad.ids[0]},", "none,", 1))
        argument = {"paths": [str(batch.folder)], "on_bad_rows": "quarantine"}
        started = await self.lab.start(self.book, "ingest", argument)
        self.problems += await self.lab.ended(started)
        ended = await self.lab.retry_until_known(
            partial(self.lab.client.operation(str(started.operation)).get)
        )
        self.book.rejected.append(f"{ended.facts['quarantine']}/")
        self.rejected[str(started.operation)] = bad
        self.now = self.now.put(f"q-{batch.name}", batch, batch.name)

    async def replay(self) -> None:
        """The row is put right; more than once, or after a rollback, it changes nothing more."""
        operation = self.lab.rng.choice(sorted(self.rejected))
        bad = self.rejected[operation]
        call = partial(self.lab.client.operation(operation).replay, {"paths": [str(bad.folder)]})
        try:
            replayed = await self.lab.retry_until_known(call)
        except RolledBack:
            replayed = await self.lab.retry_until_known(partial(call, again=True))
        await self._ends(replayed.started)
        self.now = self.now.put(f"p-{operation}", bad, operation)

    async def roll_back(self) -> None:
        """To any state that the table has had, also one ahead; batches that are undone are applied again."""
        snapshot = self.lab.rng.choice(sorted(self.past))
        then = self.past[snapshot]
        started = await self.lab.start(self.book, "rollback", {"snapshot": snapshot})
        self.problems += await self.lab.ended(started)
        gone = [name for name in self.now.rows if name in self.delivered and name not in then.rows]
        self.now = then
        await self.lab.retry_until_known(partial(self.lab.client.table(self.book.table).open_gate))
        for name in gone:
            batch = self.delivered[name]
            self.now = self.now.put(name, batch, batch.name)

    async def _request(self, request: str, *, again: bool = False) -> Operation:
        argument = {"paths": [str(self.folders[request].folder)], "split_bytes": 1024}
        start: Any = partial(self.lab.client.start, self.book.table, "ingest", argument)
        return await self.lab.retry_until_known(partial(start, run=request, again=again))

    async def _ends(self, operation: Operation) -> None:
        started = self.lab.begun(OperationId.parse(operation.name), self.book)
        self.problems += await self.lab.ended(started)


async def again_at_random(lab: Lab) -> list[str]:
    """A week of repairs, while one service after the other is killed.

    The next is killed when there is one of each kind again: where Spark starts slowly, none would ever work.
    """
    book = await lab.table(f"again-{lab.operations}", apart=True)
    working = asyncio.create_task(Table(lab, book).run())
    while not working.done():
        await lab.cluster.ready()
        await asyncio.wait([working], timeout=lab.rng.uniform(2.0, 6.0))
        service = lab.rng.choice(lab.cluster.services)
        if not working.done() and service.process is not None and service.running:
            service.process.kill()
    await lab.cluster.ready(coordinators=2, runners=2)
    return await working
