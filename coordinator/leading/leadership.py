"""Which tables this coordinator leads: placement decides who campaigns, etcd decides who leads.

Only tables with work have a leader. Every coordinator follows the index of active operations, the times of
schedules, and the set of live members. The member that should lead a table, by rendezvous hashing over the
live members, campaigns for it: every member computes the same one, and when a member joins or leaves, only
the tables that it wins or loses move (Thaler and Ravishankar, 1998). That is advice: the leader's key
decides.

A leader stays until its table has been idle for a while, so that bursts of small operations do not cost an
election each. When a member joins that is preferred for a table, the table's leader hands it over: at once if
the table is idle, else between two actions, one table after the other.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from functools import partial
from hashlib import blake2b
from typing import Any, TypeAlias

from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading.driver import TableDriver
from distop.coordinator.metrics.counts import Led
from distop.coordinator.schedules.ticking import Ticker
from distop.coordinator.schedules.timekeeping import Timekeeping
from distop.coordinator.starting.services import Services, Term
from distop.errors import Busy, DistopError, LeadershipLost, LeaseLost, Unavailable
from distop.lake.cleanup.purge import leave_files
from distop.metastore.etcd.client import EtcdClient, Listing
from distop.metastore.etcd.txn import Get, KeyValue, named
from distop.metastore.etcd.watch import follow, until_absent
from distop.metastore.members.lease import Epoch, LeaseSession, campaign, resign
from distop.metastore.operations.pausing import PauseIndex
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.record import decode, readable
from distop.metastore.records.table import DropRecord
from distop.metastore.tables.registry import finish_drop
from distop.process.loop import cancel_all, kept_running, log_failure

DROPS_EVERY_S = 10.0
"""Seconds between two checks. A tombstone that is present in two of them was abandoned, not just created."""

PURGING_S = 600.0
"""How long a caller may take to remove very many files before another process begins to remove them, too."""

DROPS_AT_ONCE = 100
"""Most drops finished at a time; the others follow in turn, also after purges that hang."""

InThread: TypeAlias = Callable[..., Awaitable[Any]]
"""Runs blocking code for a table, as :meth:`Work.blocking`."""


async def finish_drops(client: EtcdClient, prefers_me: Callable[[str], bool], in_thread: InThread) -> None:
    """Finish abandoned drops and renames of tables that this coordinator should lead, until cancelled."""
    prefix = client.keyspace.tombstones
    looks: dict[tuple[bytes, int], int] = {}
    under_way: dict[bytes, asyncio.Task[None]] = {}
    turns = asyncio.Semaphore(DROPS_AT_ONCE)
    try:
        while True:
            await asyncio.sleep(DROPS_EVERY_S)
            try:
                tombstones = (await client.scan(prefix)).kvs
            except DistopError as error:
                log_failure(log, "tombstones_not_read", error)
                continue
            looks = {
                entry: looks.get(entry, 0) + 1 for entry in ((kv.key, kv.mod_revision) for kv in tombstones)
            }
            under_way = {key: task for key, task in under_way.items() if not task.done()}
            for kv in tombstones:
                if kv.key not in under_way:
                    seen_s = (looks[kv.key, kv.mod_revision] - 1) * DROPS_EVERY_S
                    under_way[kv.key] = asyncio.create_task(
                        _finish_dropped(client, kv, seen_s, prefers_me, in_thread, turns)
                    )
    finally:
        await cancel_all(*under_way.values())


async def _finish_dropped(
    client: EtcdClient,
    kv: KeyValue,
    seen_s: float,
    prefers_me: Callable[[str], bool],
    in_thread: InThread,
    turns: asyncio.Semaphore,
) -> None:
    try:
        record = decode(kv.value, DropRecord, kv.key)
        if seen_s < (PURGING_S if record.purge else DROPS_EVERY_S) or not prefers_me(record.name):
            return
        in_turn = partial(in_thread, record.name, "removing the files of a dropped table", limit_s=PURGING_S)
        leave = partial(leave_files, in_thread=in_turn)
        async with turns:
            if (await client.get(kv.key)).mod_revision != kv.mod_revision:
                return  # finished meanwhile, by another process
            await finish_drop(client, client.keyspace.table(record.name), record, leave)
        log.info("drop_finished", extra={"table": record.name, "renamed_to": record.renamed_to})
    except Exception as error:  # of storage, or of etcd: the next check tries again
        log.warning(
            "drop_not_finished", extra={"key": kv.key.decode(errors="backslashreplace"), "error": str(error)}
        )


log = logging.getLogger(__name__)


def eligible(members: Mapping[str, bool]) -> set[str]:
    """The members that may lead, given each with whether it is draining. If all are draining, all may."""
    return {member for member, draining in members.items() if not draining} or set(members)


def preferred(members: Iterable[str], table: str) -> str | None:
    """The member that should lead ``table``; ``None`` if there are none."""
    return max(members, key=lambda member: (_weight(member, table), member), default=None)


def _weight(member: str, table: str) -> bytes:
    return blake2b(f"{member}\0{table}".encode(), digest_size=8).digest()


RETRY_S = 0.2
"""Pause before the next campaign after a failure, such as that of etcd."""

SHORTEST_LINGER_S = 0.05
"""Shortest time between two checks of whether a table is idle."""

MOVE_EVERY_S = 0.1
"""Shortest time between two hand-overs of tables with work by one member. Each costs an election."""

OWN_KEYS_S = 5.0
"""Between two looks at the leaders' keys under this member's lease."""


class Leadership:
    """Leads tables for one incarnation of a coordinator; :meth:`run` until cancelled.

    Parameters
    ----------
    linger_s:
        Seconds a leader keeps a table without work.
    """

    def __init__(
        self,
        services: Services,
        session: LeaseSession,
        member: MemberRecord,
        completion: Completion,
        *,
        linger_s: float = 5.0,
    ) -> None:
        self._services = services
        self._client, self._clock = services.client, services.clock
        self._keyspace = services.client.keyspace
        self._session = session
        self._member = member
        self._completion = completion
        self._linger_s = linger_s
        self._members: dict[str, bool] = {}
        """All live coordinators, and whether each is draining."""
        self._may_lead = set[str]()
        """Those that tables are divided among. Their records change more often than this set."""
        self._draining = asyncio.Event()
        """Set while this coordinator must lead nothing."""
        self._active: Counter[str] = Counter()
        self._queued: set[str] = set()
        self._leaders: dict[str, asyncio.Task[None]] = {}
        self._drivers: dict[str, TableDriver] = {}
        self._turns: dict[str, float] = {}
        """When tables that have work and that another member should lead are handed over, by ``clock``."""
        self._last_turn = -math.inf
        self._pauses = PauseIndex(self._keyspace)
        self._schedules = Timekeeping(self._client, services.wall, self._prefers_me, self._reconcile)
        self._known = {"members": False, "active": False, "pauses": False, "queued": False}

    def led(self) -> Led:
        """The tables led at present, and the operations followed in each."""
        return {table: driver.tracked() for table, driver in self._drivers.items()}

    async def run(self) -> None:
        """Follow members and work, lead what this member should, until cancelled."""
        followers: dict[str, Callable[[], Awaitable[None]]] = {
            "members": self._follow_members,
            "active": self._follow_active,
            "pauses": self._follow_pauses,
            "backlogs": self._follow_backlogs,
            "schedules": self._follow_schedules,
            "own keys": self._look_at_own_keys,
            "drops": partial(finish_drops, self._client, self._prefers_me, self._services.planning.blocking),
        }
        try:
            async with asyncio.TaskGroup() as group:
                for name, follower in followers.items():
                    group.create_task(kept_running(name, follower), name=f"follow-{name}")
        finally:
            await cancel_all(*self._leaders.values())

    # -- following members and work --------------------------------------------------------------------

    async def _follow_members(self) -> None:
        member_of = partial(self._keyspace.name_in, self._keyspace.coordinators)
        async for kvs, anew in self._changes(self._keyspace.coordinators, keys_only=False):
            if anew:
                self._members.clear()
            for member, kv in named(kvs, member_of):
                # A live process renews a lease; tables given to a key without one would have no leader.
                if kv.lease:
                    # One of a newer version decides itself whether it leads.
                    record = readable(kv.value, MemberRecord)
                    self._members[member] = record is not None and record.draining
                else:
                    self._members.pop(member, None)
            self._known["members"] = True
            if (may_lead := eligible(self._members)) != self._may_lead:
                self._may_lead = may_lead
                self._schedules.regroup()
            if self._member.id in self._members and self._member.id not in may_lead:
                self._draining.set()
            else:
                self._draining.clear()
            self._reconcile()

    async def _follow_active(self) -> None:
        async for kvs, anew in self._changes(self._keyspace.active):
            if anew:
                self._active.clear()
            changed = set[str]()
            for operation, kv in named(kvs, self._keyspace.parse_active):
                changed.add(table := operation.table)
                self._active[table] += 1 if kv.create_revision else -1
                if self._active[table] <= 0:
                    del self._active[table]
            self._known["active"] = True
            self._reconcile(None if anew else changed)

    async def _follow_backlogs(self) -> None:
        table_of = partial(self._keyspace.name_in, self._keyspace.backlog_tables)
        async for kvs, anew in self._changes(self._keyspace.backlog_tables):
            if anew:
                self._queued.clear()
            changed = set[str]()
            for table, kv in named(kvs, table_of):
                changed.add(table)
                (self._queued.add if kv.create_revision else self._queued.discard)(table)
            self._known["queued"] = True
            self._reconcile(None if anew else changed)

    def _has_work(self, table: str) -> bool:
        return table in self._active or table in self._queued or self._schedules.is_due(table)

    async def _follow_pauses(self) -> None:
        async with aclosing(follow(self._client, self._keyspace.paused, keys_only=True)) as changes:
            async for change in changes:
                changed = self._pauses.apply(change)
                self._known["pauses"] = True
                for table in self._drivers.keys() if changed is None else self._drivers.keys() & changed:
                    self._drivers[table].look_again()
                self._reconcile(changed)

    async def _follow_schedules(self) -> None:
        await self._schedules.run(follow(self._client, self._keyspace.agendas))

    async def _changes(
        self, prefix: bytes, *, keys_only: bool = True
    ) -> AsyncGenerator[tuple[Iterable[KeyValue], bool], None]:
        """All keys of an index (true), then those that change; a deleted one has no create revision."""
        async with aclosing(follow(self._client, prefix, keys_only=keys_only)) as changes:
            async for change in changes:
                if isinstance(change, Listing):
                    yield change.kvs, True
                else:
                    yield [event.kv for event in change.events], False

    # -- leading and handing over ----------------------------------------------------------------------

    def _prefers_me(self, table: str) -> bool:
        return preferred(eligible(self._members), table) == self._member.id

    async def _moves(self, table: str, driver: TableDriver) -> bool:
        """Whether to hand over a table with work now, since another member should lead it: its actions
        have ended, and no new ones begin."""
        if self._prefers_me(table):
            self._turns.pop(table, None)
            return False
        if table not in self._turns:
            self._last_turn = self._turns[table] = max(self._clock(), self._last_turn + MOVE_EVERY_S)
        if self._clock() < self._turns[table]:
            return False
        del self._turns[table]
        return await driver.wind_down()

    def _reconcile(self, tables: Iterable[str] | None = None) -> None:
        """Make sure that this coordinator campaigns for every active table that prefers it.

        ``tables``: those to check; ``None``: all, since the change does not concern a single table.
        """
        if not (all(self._known.values()) and self._schedules.known):
            return
        if tables is None:
            tables = (*self._active, *self._queued, *self._schedules.due())
        for table in tables:
            if table not in self._leaders and self._has_work(table) and self._prefers_me(table):
                task = asyncio.create_task(self._lead(table), name=f"lead-{table}")
                self._leaders[table] = task
                task.add_done_callback(partial(self._ended, table))

    def _ended(self, table: str, task: asyncio.Task[None]) -> None:
        self._leaders.pop(table, None)
        self._drivers.pop(table, None)
        if task.cancelled():
            return
        if (error := task.exception()) is not None:
            log.error("leadership_crashed", extra={"table": table, "error": str(error)}, exc_info=error)
        if self._session.alive:
            # The state may have changed while the task was ending: level-triggered, not edge-triggered.
            self._reconcile((table,))

    async def _look_at_own_keys(self) -> None:
        """Compare the leaders' keys under this member's lease with the tables that it leads.

        One of another table is deleted: a late copy of a campaign can create it after the table was resigned.
        Its lease lives, so the member that should lead would wait for ever. A table whose key is not there,
        since somebody has removed it, is led anew.
        """
        space, end, lease = self._keyspace, b".coordinator", self._session.lease_id
        while True:
            await asyncio.sleep(OWN_KEYS_S)
            bound = await self._client.lease_keys(lease)
            removed = (KeyValue.missing(key.removesuffix(end)) for key in bound if key.endswith(end))
            names = {name for name, _ in named(removed, partial(space.name_in, space.prefix))}
            drivers = self._drivers.copy()
            wanted = [*(names - self._leaders.keys()), *(drivers.keys() - names)]
            if not wanted:
                continue
            gets = [Get(space.table(name).coordinator, keys_only=True) for name in wanted]
            read = await self._client.read_many(gets)
            for index, name in enumerate(wanted):
                kv = read.single(index, gets[index].key)
                if name in drivers:
                    drivers[name].key_read(kv)
                elif kv.lease == lease and name not in self._leaders:
                    await self._resign(name, Epoch(kv.key, kv.create_revision))

    async def _lead(self, table: str) -> None:
        """Campaign for a table and drive it, until it is idle or another member should lead it."""
        keys = self._keyspace.table(table)
        leader = LeaderRecord(member=self._member.id, address=self._member.address)
        while self._session.alive and self._has_work(table) and not self._draining.is_set():
            try:
                epoch = await campaign(self._client, keys, self._session, leader)
                self._services.metrics.election(won=epoch is not None)
                if epoch is None:
                    if not self._prefers_me(table):
                        return
                    # A duplicate of the campaign may have come after the other leader's key was deleted.
                    await until_absent(self._client, keys.coordinator, own_lease=self._session.lease_id)
                    continue
                await self._drive(table, epoch)
                if not self._prefers_me(table):
                    return  # the preferred member is waiting for the key
            except LeadershipLost as error:
                self._services.metrics.leadership_lost()
                log.warning("leadership_lost", extra={"table": table, "error": str(error)})
            except LeaseLost:
                # The session may notice a little later; until then another attempt would fail alike.
                await asyncio.sleep(RETRY_S)
                return
            except Exception as error:
                # Whatever the error, the table is tried again, after a pause.
                log_failure(log, "leadership_failed", error, table=table)
                await asyncio.sleep(RETRY_S)

    async def _drive(self, table: str, epoch: Epoch) -> None:
        """Drive a table for one epoch; resigns when it has been idle for long enough, or is being drained."""
        log.info("leadership_won", extra={"table": table, "epoch": epoch.revision})
        term = Term(self._keyspace.table(table), epoch, self._session)
        driver = self._drivers[table] = TableDriver(
            self._services, term, self._completion, paused=self._pauses.holds, member=self._member.id
        )
        ticker = self._schedules.tickers[table] = Ticker(self._services, term)
        if self._schedules.is_due(table):
            ticker.notify()
        acting = [
            asyncio.create_task(driver.run(), name=f"drive-{table}"),
            asyncio.create_task(ticker.run(), name=f"tick-{table}"),
        ]
        draining = asyncio.create_task(self._draining.wait(), name=f"drain-{table}")
        try:
            while not any(task.done() for task in (*acting, draining)):
                pause = max(self._linger_s / 2, SHORTEST_LINGER_S)
                if table in self._turns:
                    pause = min(pause, max(self._turns[table] - self._clock(), 0.0))
                await asyncio.wait({*acting, draining}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                idle_since = driver.idle_since if not self._schedules.is_busy(table) else None
                linger = self._linger_s if self._prefers_me(table) else 0.0
                if idle_since is not None and self._clock() - idle_since >= linger:
                    break
                if not any(task.done() for task in acting) and await self._moves(table, driver):
                    break
            for task in acting:
                if task.done():
                    task.result()
        except (LeadershipLost, LeaseLost):
            raise
        except Exception:
            await cancel_all(*acting)
            await self._resign(table, epoch)
            raise
        else:
            # Stop driving before the key is deleted: this epoch must not act once the next can begin.
            await cancel_all(*acting)
            await self._resign(table, epoch)
        finally:
            draining.cancel()
            await cancel_all(*acting)
            for kept in (self._drivers, self._schedules.tickers, self._turns):
                kept.pop(table, None)

    async def _resign(self, table: str, epoch: Epoch) -> None:
        """Resign for certain: while the key exists, other members wait for a leader that does nothing."""
        while self._session.alive:
            try:
                await resign(self._client, epoch)
            except (Unavailable, Busy) as error:
                log_failure(log, "resignation_failed", error, table=table)
                await asyncio.sleep(RETRY_S)
            else:
                log.info("leadership_resigned", extra={"table": table, "epoch": epoch.revision})
                return
