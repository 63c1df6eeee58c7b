"""Which tables' schedules must be checked: a tick is due, or a head or watermark has moved."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import islice

from distop.coordinator.schedules.agenda import Agenda
from distop.coordinator.schedules.ticking import Ticker
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient, Listing
from distop.metastore.etcd.txn import Get
from distop.metastore.etcd.watch import WatchBatch

log = logging.getLogger(__name__)

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
        self._agenda, self._news = Agenda(client.keyspace, wall, mine), asyncio.Event()
        self._admitted: dict[str, float] = {}
        """Tables being checked, with the time since when."""
        self.known = False
        """Whether the list of tables with schedules has been read."""
        self.tickers: dict[str, Ticker] = {}
        """Of the tables led here."""

    def regroup(self) -> None:
        """Call when the tables that this coordinator should lead may have changed."""
        self._agenda.regroup()
        self._heed(self._admit())

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
            self._heed(set(admitted) if changed is None else new | (changed & admitted))
            self._reconcile(changed)
            self._news.set()

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
            self._news.clear()
            self._heed(self._admit())
            try:
                async with asyncio.timeout(self._agenda.wait_s(LONGEST_WAIT_S)):
                    await self._news.wait()
            except TimeoutError:
                self._heed(set(self._admitted))  # again, in case an event was missed

    async def _follow_heads(self) -> None:
        while True:
            await asyncio.sleep(HEADS_EVERY_S)
            if not (keys := self._agenda.watched()):
                continue
            gets = [Get(key, keys_only=True) for key in keys]
            try:
                read = await self._client.read_many(gets)
            except DistopError as error:
                log.warning("heads_not_read", extra={"error": str(error)})
                continue
            self._agenda.moved(
                {get.key: read.one(index, get.key).mod_revision for index, get in enumerate(gets)}
            )
            self._news.set()

    def _heed(self, tables: set[str]) -> None:
        for table in tables & self.tickers.keys():
            self.tickers[table].heed()
        self._reconcile(tables)
