"""Which tables' schedules must be checked: a tick is due, or a head or watermark has moved.

The agendas of all tables are kept in memory, from ``_schedules.``, without reading any table: their times in
a heap, and the heads and watermarks that conditions depend on by their revisions alone, many in one request.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice

from distop.coordinator.schedules.due import AGAIN_S
from distop.coordinator.schedules.ticking import Ticker
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient, Listing
from distop.metastore.etcd.txn import Get, KeyValue, named
from distop.metastore.etcd.watch import WatchBatch
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.record import readable
from distop.metastore.tables.schedules import AgendaRecord
from distop.process.loop import log_failure

log = logging.getLogger(__name__)


class Agenda:
    """The agenda of one installation, restricted to the tables that are ``mine``.

    Parameters
    ----------
    wall:
        Seconds since the Unix epoch.
    mine:
        Whether this coordinator should lead a table; :meth:`regroup` announces a change of that.
    """

    def __init__(self, keyspace: Keyspace, wall: Callable[[], float], mine: Callable[[str], bool]) -> None:
        self._keyspace, self._wall, self._mine = keyspace, wall, mine
        self._table_of = partial(keyspace.name_in, keyspace.agendas)
        self._agendas: dict[str, AgendaRecord] = {}
        """The entries of all tables."""
        self._watching: set[str] = set()
        """Those with conditions."""
        self._times: list[tuple[float, str]] = []
        """A heap; an entry counts only if it matches the current one."""
        self._due: dict[str, None] = {}
        """Tables that are due, the longest waiting first."""
        self._moved: set[str] = set()
        """Due tables with conditions on what has moved since the last look at them."""
        self._now = 0.0
        """When the clock was last checked."""

    def apply(self, change: Listing | WatchBatch) -> set[str] | None:
        """Apply a listing or changes; returns the affected tables, ``None``: all."""
        if isinstance(change, Listing):
            agendas = dict(named(change.kvs, self._table_of))
            for table in self._agendas.keys() - agendas.keys():
                self._forget(table)
            for table, kv in agendas.items():
                self._note(table, kv)
            return None
        changed = dict(named((event.kv for event in change.events), self._table_of))
        for table, kv in changed.items():  # the last change of each: the others are history
            self._note(table, kv)
        return set(changed)

    def regroup(self) -> None:
        """Other tables may be mine now."""
        self._watching, self._times, self._due, self._moved = set(), [], {}, set()
        for table, record in self._agendas.items():
            self._enter(table, record)

    def _note(self, table: str, kv: KeyValue) -> None:
        self._forget(table)
        if (record := readable(kv.value, AgendaRecord)) is None:
            return  # it was deleted, or is a newer version's, whose coordinators handle it
        self._agendas[table] = record
        self._enter(table, record)
        if len(self._times) > 2 * len(self._agendas) + 100:  # most of it is of records that are gone
            self._times = [entry for entry in set(self._times) if self._is_current(*entry)]
            heapq.heapify(self._times)

    def _is_current(self, due: float, table: str) -> bool:
        record = self._agendas.get(table)
        return record is not None and record.due == due and table not in self._due

    def _enter(self, table: str, record: AgendaRecord) -> None:
        if not self._mine(table):
            return
        if record.watches or record.marks:
            self._watching.add(table)
        if record.due is not None:
            heapq.heappush(self._times, (record.due, table))

    def _forget(self, table: str) -> None:
        self._agendas.pop(table, None)
        self._due.pop(table, None)
        self._watching.discard(table)
        self._moved.discard(table)

    def fall_due(self) -> Collection[str]:
        """The tables that are due now, the longest waiting first. If the clock was set back before its time,
        a table waits again."""
        now, before = self._wall(), self._now
        self._now = now
        if now < before:
            for table in self._due.keys() - self._moved:
                due = self._agendas[table].due
                if due is not None and due > now:
                    del self._due[table]
                    heapq.heappush(self._times, (due, table))
        while self._times and self._times[0][0] <= now:
            due, table = heapq.heappop(self._times)
            if self._is_current(due, table):
                self._due[table] = None
        return self._due.keys()

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next one falls due, at most this many."""
        return min(max(0.0, self._times[0][0] - self._wall()), longest_s) if self._times else longest_s

    def watched(self) -> set[bytes]:
        """The keys whose revisions are to be read: heads and watermarks. Those of recently examined tables
        wait."""
        return {key for table in self._open() for key in self._depends_on(table)}

    def moved(self, revisions: Mapping[bytes, int]) -> None:
        """Apply the revisions of some keys: tables with conditions on a key that has moved are due."""
        for table in self._open():
            known = self._depends_on(table)
            if any(revisions.get(key, revision) != revision for key, revision in known.items()):
                self._moved.add(table)
                self._due[table] = None

    def _open(self) -> list[str]:
        now = self._wall()
        return [
            table
            for table in self._watching
            if table not in self._due and not 0 <= now - self._agendas[table].looked_at < AGAIN_S
        ]

    def _depends_on(self, table: str) -> dict[bytes, int]:
        """The keys that the table's conditions depend on, with their revisions at the last evaluation."""
        record, space = self._agendas[table], self._keyspace
        known = {space.table(name).watermarks: revision for name, revision in record.marks.items()}
        return known | ({space.table(table).head: record.head} if record.watches else {})


LONGEST_WAIT_S = 30.0
"""Longest time between two reads of the clock, since the clock may have been set."""

HEADS_EVERY_S = 30.0
"""How often the revisions of heads and watermarks with conditions on them are read."""

AT_ONCE = 32
"""Tables checked at the same time: very many may be due together, and each costs an election."""

SLOT_S = 30.0
"""How long a table counts as one of these: a check that hangs holds up the others no longer."""


class Timekeeping:
    """The schedules of all tables, for one incarnation of a coordinator. The cost depends only on the number
    of tables with schedules.

    Parameters
    ----------
    wall:
        Seconds since the Unix epoch: the clock for ticks.
    mine:
        Whether this coordinator should lead a table.
    reconcile:
        Makes sure that this coordinator campaigns for those of the tables that it should lead; ``None``: for
        all.
    """

    def __init__(
        self,
        client: EtcdClient,
        wall: Callable[[], float],
        mine: Callable[[str], bool],
        reconcile: Callable[[Iterable[str] | None], None],
    ) -> None:
        self._client, self._wall, self._reconcile = client, wall, reconcile
        self._agenda, self._changed = Agenda(client.keyspace, wall, mine), asyncio.Event()
        self._admitted: dict[str, float] = {}
        """Tables being checked, with the time since when."""
        self.known = False
        """Whether the list of tables with schedules has been read."""
        self.tickers: dict[str, Ticker] = {}
        """Of the tables led here."""

    def regroup(self) -> None:
        """Call when the tables that this coordinator should lead may have changed."""
        self._agenda.regroup()
        self._notify_tickers(self._admit())

    def due(self) -> Iterable[str]:
        """The tables whose schedules must be checked now."""
        return self._admitted

    def is_due(self, table: str) -> bool:
        """Whether a table's schedules must be checked now."""
        return table in self._admitted

    def is_busy(self, table: str) -> bool:
        """Whether the leader of a table has something to decide about its schedules."""
        ticker = self.tickers.get(table)
        return self.is_due(table) or (ticker is not None and ticker.busy)

    async def run(self, changes: AsyncIterator[Listing | WatchBatch]) -> None:
        """Run until cancelled. ``changes`` are those of :attr:`Keyspace.agendas`, with values."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(changes))
            group.create_task(self._keep_time())
            group.create_task(self._follow_heads())

    async def _follow(self, changes: AsyncIterator[Listing | WatchBatch]) -> None:
        async for change in changes:
            changed = self._agenda.apply(change)
            self.known = True
            new = self._admit()
            # A table that is being checked is only checked again if it has changed.
            admitted = self._admitted.keys()
            self._notify_tickers(set(admitted) if changed is None else new | (changed & admitted))
            self._reconcile(changed)
            self._changed.set()

    def _admit(self) -> set[str]:
        """Admit as many waiting tables as there are free slots, the longest waiting first; return them."""
        due, now = self._agenda.fall_due(), self._wall()
        self._admitted = {table: since for table, since in self._admitted.items() if table in due}
        taken = sum(0 <= now - since < SLOT_S for since in self._admitted.values())
        waiting = (table for table in due if table not in self._admitted)
        new = set(islice(waiting, max(0, AT_ONCE - taken)))
        self._admitted |= dict.fromkeys(new, now)
        return new

    async def _keep_time(self) -> None:
        while True:
            self._changed.clear()
            self._notify_tickers(self._admit())
            try:
                async with asyncio.timeout(self._agenda.wait_s(LONGEST_WAIT_S)):
                    await self._changed.wait()
            except TimeoutError:
                self._notify_tickers(set(self._admitted))  # again, in case an event was missed

    async def _follow_heads(self) -> None:
        while True:
            await asyncio.sleep(HEADS_EVERY_S)
            if not (keys := self._agenda.watched()):
                continue
            gets = [Get(key, keys_only=True) for key in keys]
            try:
                read = await self._client.read_many(gets)
            except DistopError as error:
                log_failure(log, "heads_not_read", error)
                continue
            self._agenda.moved(
                {get.key: read.single(index, get.key).mod_revision for index, get in enumerate(gets)}
            )
            self._changed.set()

    def _notify_tickers(self, tables: set[str]) -> None:
        for table in tables & self.tickers.keys():
            self.tickers[table].notify()
        self._reconcile(tables)
