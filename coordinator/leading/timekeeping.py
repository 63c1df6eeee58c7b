"""Which tables are to be looked at for their schedules: a time has come, or the head has moved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice

from distop.coordinator.schedules.agenda import Agenda
from distop.coordinator.schedules.ticking import Ticker
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient, Snapshot
from distop.metastore.etcd.txn import Get
from distop.metastore.etcd.watch import WatchBatch

log = logging.getLogger(__name__)

LONGEST_WAIT_S = 30.0
"""How long at most nobody looks at the clock, which may have been set."""

HEADS_EVERY_S = 30.0
"""How often it is looked which heads have moved, of tables with conditions."""


AT_ONCE = 32
"""Tables that are looked at side by side: very many may have the same time, and each costs an election."""


class Timekeeping:
    """For one incarnation of a coordinator. What it costs depends on the tables that have schedules, and on
    no others.

    Parameters
    ----------
    wall:
        Seconds since the Unix epoch: the clock that ticks go by.
    mine:
        Whether this coordinator should lead a table.
    reconcile:
        Makes sure that somebody here tries to lead those of the tables that should be led here; ``None``: of
        all.
    """

    def __init__(
        self,
        client: EtcdClient,
        wall: Callable[[], float],
        mine: Callable[[str], bool],
        reconcile: Callable[[Iterable[str] | None], None],
    ) -> None:
        self._client, self._reconcile = client, reconcile
        self._agenda, self._news = Agenda(client.keyspace, wall, mine), asyncio.Event()
        self._admitted: set[str] = set()
        """Those that are looked at."""
        self.known = False
        """Whether it has heard which tables have schedules."""
        self.tickers: dict[str, Ticker] = {}
        """Of the tables led here."""

    def regroup(self) -> None:
        """Other tables may have to be led here."""
        self._agenda.regroup()
        self._heed(self._admit())

    def due(self) -> Iterable[str]:
        """The tables to be looked at by now."""
        return self._admitted

    def is_due(self, table: str) -> bool:
        """Whether a table is to be looked at by now."""
        return table in self._admitted

    def is_busy(self, table: str) -> bool:
        """Whether its leader has something to decide about its schedules."""
        ticker = self.tickers.get(table)
        return self.is_due(table) or (ticker is not None and ticker.busy)

    async def run(self, changes: AsyncIterator[Snapshot | WatchBatch]) -> None:
        """Until cancelled; ``changes`` are those of :attr:`Keyspace.agendas`, with values."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(changes))
            group.create_task(self._keep_time())
            group.create_task(self._follow_heads())

    async def _follow(self, changes: AsyncIterator[Snapshot | WatchBatch]) -> None:
        async for change in changes:
            changed = self._agenda.apply(change)
            self.known = True
            new = self._admit()
            # Of what is looked at already, only what has changed is to be looked at once more.
            self._heed(self._admitted if changed is None else new | (changed & self._admitted))
            self._reconcile(changed)
            self._news.set()

    def _admit(self) -> set[str]:
        """Let as many in as there are places for, who waits longest first; returns those let in."""
        due = self._agenda.fall_due()
        self._admitted = {table for table in self._admitted if table in due}
        waiting = (table for table in due if table not in self._admitted)
        new = set(islice(waiting, AT_ONCE - len(self._admitted)))
        self._admitted = self._admitted | new
        return new

    async def _keep_time(self) -> None:
        while True:
            self._news.clear()
            self._heed(self._admit())
            try:
                async with asyncio.timeout(self._agenda.wait_s(LONGEST_WAIT_S)):
                    await self._news.wait()
            except TimeoutError:
                self._heed(self._admitted)  # also what has been forgotten, if that can be

    async def _follow_heads(self) -> None:
        while True:
            await asyncio.sleep(HEADS_EVERY_S)
            if not (tables := self._agenda.watched()):
                continue
            gets = [Get(self._client.keyspace.table(table).head, keys_only=True) for table in tables]
            try:
                read = await self._client.read_many(gets)
            except DistopError as error:
                log.warning("heads_not_read", extra={"error": str(error)})
                continue
            heads = [read.one(index, get.key).mod_revision for index, get in enumerate(gets)]
            self._agenda.heads(dict(zip(tables, heads, strict=True)))
            self._news.set()

    def _heed(self, tables: set[str]) -> None:
        for table in tables & self.tickers.keys():
            self.tickers[table].heed()
        self._reconcile(tables)
