"""When which table is to be looked at, as ``_schedules.`` says: kept in memory, without a look at any table.

A time is waited for with a heap; heads are read by their revisions alone, many in one request, and only those
of tables with conditions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping

from distop.coordinator.schedules.policy import AGAIN_S
from distop.errors import CorruptRecord
from distop.metastore.etcd.client import Snapshot
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.etcd.watch import WatchBatch
from distop.metastore.records.components import unescape
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.record import decode
from distop.metastore.records.schedule import AgendaRecord


class Agenda:
    """Of one installation; what it says is of the tables that are ``mine``.

    Parameters
    ----------
    wall:
        Seconds since the Unix epoch.
    mine:
        Whether this coordinator should lead a table; :meth:`regroup` says that this has changed.
    """

    def __init__(self, keyspace: Keyspace, wall: Callable[[], float], mine: Callable[[str], bool]) -> None:
        self._prefix, self._wall, self._mine = keyspace.agendas, wall, mine
        self._standing: dict[str, AgendaRecord] = {}
        """Of all tables."""
        self._watching: set[str] = set()
        """Those with conditions."""
        self._times: list[tuple[float, str]] = []
        """A heap; an entry counts if it says what stands."""
        self._due: dict[str, None] = {}
        """Those to be looked at, who waits longest first."""
        self._moved: set[str] = set()
        """Of these, those whose head has moved since their conditions were looked at."""
        self._now = 0.0
        """When it was looked at the clock last."""

    def apply(self, news: Snapshot | WatchBatch) -> set[str] | None:
        """Take in a listing or changes; returns the tables that it is about, ``None``: all."""
        if isinstance(news, Snapshot):
            for table in self._standing.keys() - {self._table_of(kv) for kv in news.kvs}:
                self._forget(table)
            for kv in news.kvs:
                self._note(kv)
            return None
        for event in news.events:
            if event.kind == "put":
                self._note(event.kv)
            else:
                self._forget(self._table_of(event.kv))
        return {self._table_of(event.kv) for event in news.events}

    def regroup(self) -> None:
        """Other tables may be mine now."""
        self._watching, self._times, self._due, self._moved = set(), [], {}, set()
        for table, record in self._standing.items():
            self._enter(table, record)

    def _table_of(self, kv: KeyValue) -> str:
        return unescape(kv.key[len(self._prefix) :].decode())

    def _note(self, kv: KeyValue) -> None:
        table = self._table_of(kv)
        self._forget(table)
        try:
            record = self._standing[table] = decode(kv.value, AgendaRecord, kv.key)
        except CorruptRecord:
            return  # of a newer version, whose coordinators look at it
        self._enter(table, record)
        if len(self._times) > 2 * len(self._standing) + 100:  # most of it is of records that are gone
            self._times = [entry for entry in set(self._times) if self._stands(*entry)]
            heapq.heapify(self._times)

    def _stands(self, due: float, table: str) -> bool:
        record = self._standing.get(table)
        return record is not None and record.due == due and table not in self._due

    def _enter(self, table: str, record: AgendaRecord) -> None:
        if (record.due is None and not record.watches) or not self._mine(table):
            return
        if record.watches:
            self._watching.add(table)
        if record.due is not None:
            heapq.heappush(self._times, (record.due, table))

    def _forget(self, table: str) -> None:
        self._standing.pop(table, None)
        self._due.pop(table, None)
        self._watching.discard(table)
        self._moved.discard(table)

    def fall_due(self) -> Collection[str]:
        """The tables to be looked at now, who waits longest first. Where the clock was set back to before its
        time, a table waits again."""
        now, before = self._wall(), self._now
        self._now = now
        if now < before:
            for table in self._due.keys() - self._moved:
                due = self._standing[table].due
                if due is not None and due > now:
                    del self._due[table]
                    heapq.heappush(self._times, (due, table))
        while self._times and self._times[0][0] <= now:
            due, table = heapq.heappop(self._times)
            if self._stands(due, table):
                self._due[table] = None
        return self._due.keys()

    def wait_s(self, longest_s: float) -> float:
        """Seconds until the next one falls due, at most so many."""
        return min(max(0.0, self._times[0][0] - self._wall()), longest_s) if self._times else longest_s

    def watched(self) -> list[str]:
        """The tables whose heads are to be looked at; what was looked at a moment ago waits."""
        now = self._wall()
        return [
            table
            for table in self._watching
            if table not in self._due and not 0 <= now - self._standing[table].looked_at < AGAIN_S
        ]

    def heads(self, revisions: Mapping[str, int]) -> None:
        """Take in at which revisions the heads of some tables stand: those that have moved are due."""
        for table, revision in revisions.items():
            if table in self._watching and self._standing[table].head != revision:
                self._moved.add(table)
                self._due[table] = None
