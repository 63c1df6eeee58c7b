"""``distop alert run``: sends what stands to a webhook, each alert at least once, and once more at its end.

An alert is sent first and recorded afterwards (``_alerts.``), so a process that is killed between the two
sends it again. What is sent is the difference between what stands in etcd and what is recorded: nothing
depends on an event that could be missed. Only failures are events, since a later success hides them: a cursor
says up to which revision all of them were delivered, and those after it are found again in the history.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import urlencode

import msgspec
import uvloop

from distop.coordinator.alerts.conditions import (
    BLOCKED,
    FAILED,
    LATE,
    Lateness,
    TableAlerts,
    active_operations,
    failed,
    name_of,
    read_parked,
)
from distop.coordinator.alerts.webhook import Webhook
from distop.errors import CorruptRecord, DistopError, PreconditionFailed, Unavailable
from distop.metastore.etcd.client import EtcdClient, Listing
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Put, Txn, named, unchanged
from distop.metastore.etcd.update import settle
from distop.metastore.etcd.watch import WatchBatch, follow
from distop.metastore.members.installation import enter
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode, encode, readable
from distop.metastore.records.table import AlertCursor, AlertRecord
from distop.metastore.tables.registry import table_names
from distop.process.loop import kept_running, log_failure, notify_manager

log = logging.getLogger(__name__)

FIRING, RESOLVED = "firing", "resolved"

MOST_DELIVERED = 1_000
"""Alerts that are recorded at a time. Further ones are delivered when others have ended."""

MOST_ENDED = 100_000
"""Ended operations that wait to be looked up; if there are more, all histories are read instead."""

MOST_FAILURES = 10_000
"""Failures that one look collects, and those of one table more. The others are found by the next."""

LISTING_S = 0.1
"""Pause while the active operations are listed for the first time."""

MOST_UNANSWERED = 2
"""A look sends nothing more after so many alerts in a row without an answer: the webhook is away."""

SEND_S = 120.0
"""For how long one look sends, in seconds: what it knows grows old."""

MOVED_S = 3600.0
"""How long before the cursor's time an operation may have ended whose record, in a history that is read as a
whole, is newer than the cursor. One that ended earlier was probably moved: its table was renamed."""

SHARE = 20
"""A look is followed by a pause of this many times the duration of its reads, so that these take 5 % of a
processor at most, however many tables there are."""


Delivered: TypeAlias = tuple[AlertRecord, KeyValue]
"""An alert that was delivered, and its key."""


@dataclass(frozen=True, kw_only=True)
class AlertingConfig:
    """What to look for, and how often."""

    etcd: EtcdConfig
    lateness: Lateness = field(default_factory=Lateness)
    every_s: float = 30.0
    """Shortest pause between two looks."""
    page: str = ""
    """URL of a coordinator's web page, for the link of each alert; empty: none."""


@dataclass
class Followed:
    """The operations that are active, and those that have ended since. Belongs to one event loop."""

    revision: int
    """Up to where the index of active operations was followed."""
    active: set[OperationId]
    ended: set[OperationId] = field(default_factory=set)
    """Those whose end was not delivered yet, or not looked up."""
    complete: bool = False
    """Whether ``ended`` has all that ended after the cursor; else the histories have to be read."""

    def apply(self, client: EtcdClient, batch: WatchBatch) -> None:
        """Apply changes of the index."""
        for event in batch.events:
            for operation, _ in named([event.kv], client.keyspace.parse_active):
                if event.is_delete:
                    self.active.discard(operation)
                    self.ended.add(operation)
                else:
                    self.active.add(operation)
        self.revision = batch.revision


class Outcomes:
    """How operations have ended whose records are newer than a cursor."""

    def __init__(self, cursor: AlertCursor, records: Mapping[str, Delivered]) -> None:
        self._cursor = cursor
        self.known = {name: record.revision for name, (record, _) in records.items() if record.kind == FAILED}
        """The revision of the last failure that was delivered, by name. Its instance would not do: of two
        operations the one that began first may be the last to fail."""
        self.failures: list[AlertRecord] = []
        """Those that were not delivered yet."""
        self.succeeded: dict[str, AlertRecord] = {}
        """The last success, by the name of the failures that it ends: what :func:`failed` makes of it."""
        self.all_read = True
        self.skipped = set[str]()
        """Tables with records that seem to have been moved."""

    @property
    def is_empty(self) -> bool:
        return not self.failures and not self.succeeded

    def of(self, names: Set[str]) -> set[OperationId]:
        """The operations whose ends are failures of these names, or end those."""
        ends = (*self.failures, *self.succeeded.values())
        return {OperationId.parse(end.operation) for end in ends if name_of(end) in names}

    async def read(self, client: EtcdClient, histories: Sequence[bytes], *, ended_after: float = 0.0) -> None:
        """Read some keys of the history; those that do not exist say nothing. Operations that ended earlier
        than ``ended_after``, in seconds since the Unix epoch, are skipped."""
        gets = [Get(key) for key in histories]
        read = await client.read_many(gets)
        kvs = (read.single(index, get.key) for index, get in enumerate(gets))
        new = (kv for kv in kvs if kv.mod_revision > self._cursor.revision)
        for operation, kv in named(new, client.keyspace.parse_history):
            record = readable(kv.value, HistoryRecord, kv.key)  # the doctor reports one that is not
            if record is not None and record.finished_at < ended_after:
                self.skipped.add(operation.table)
            elif record is not None:
                self.add(operation, record, kv.mod_revision)

    def add(self, operation: OperationId, record: HistoryRecord, revision: int) -> None:
        """Add how one has ended, and at which revision."""
        alert = failed(operation, record, revision)
        name = name_of(alert)
        if record.outcome == "success":
            self.succeeded[name] = max(alert, self.succeeded.get(name, alert), key=_ended_at)
        if record.outcome == "failed" and revision > self.known.get(name, 0):
            self.failures.append(alert)

    async def read_all(self, client: EtcdClient) -> None:
        """Read the histories of all tables."""
        async with aclosing(table_names(client)) as pages:
            async for names, _ in pages:
                for name in names:
                    if len(self.failures) >= MOST_FAILURES:
                        self.all_read = False
                        return
                    prefix, since = client.keyspace.table(name).history_prefix, self._cursor.revision + 1
                    page = await client.get_range(
                        prefix, prefix_end(prefix), written_from=since, keys_only=True
                    )
                    ended_after = self._cursor.at - MOVED_S
                    await self.read(client, [kv.key for kv in page.kvs], ended_after=ended_after)
        if self.skipped:
            reason = "operations ended long before: renamed, or the clock of a coordinator is behind"
            tables = {"tables": len(self.skipped), "first": min(self.skipped)}
            log.warning("alerts_skipped", extra={**tables, "reason": reason})


class Alerting:
    """One process that sends alerts. A second one beside it sends each of them, too.

    ``wall`` returns seconds since the Unix epoch.
    """

    def __init__(
        self,
        client: EtcdClient,
        webhook: Webhook,
        config: AlertingConfig,
        *,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._webhook = webhook
        self._config = config
        self._wall = wall
        self._tables = TableAlerts(client, config.lateness)
        self._followed: Followed | None = None
        self._unanswered = set[str]()
        """Names of alerts that got no answer, and were not delivered since."""
        self._reads_s = 0.0

    async def run(self) -> None:
        """Look and send until it is cancelled. What goes wrong is logged and tried again."""
        following = asyncio.create_task(kept_running("operations", self._follow))
        try:
            while True:
                if self._followed is not None:
                    try:
                        await self._look(self._followed)
                    except DistopError as error:
                        log_failure(log, "alerts_not_sent", error, code=error.code)
                pause_s = max(self._config.every_s, SHARE * self._reads_s)
                await asyncio.sleep(pause_s if self._followed is not None else LISTING_S)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        space = self._client.keyspace
        async with aclosing(follow(self._client, space.active, keys_only=True)) as changes:
            async for change in changes:
                if isinstance(change, Listing):
                    active = {operation for operation, _ in named(change.kvs, space.parse_active)}
                    self._followed = Followed(change.revision, active)
                elif (followed := self._followed) is not None:
                    followed.apply(self._client, change)
                    if len(followed.ended) > MOST_ENDED:
                        self._followed = Followed(followed.revision, followed.active)

    async def _look(self, followed: Followed) -> None:
        """Send what has begun or ended since the last look, and record it."""
        client, now, space = self._client, self._wall(), self._client.keyspace
        loop = asyncio.get_running_loop()
        began = loop.time()
        # One state of the index. What had ended by then is in one of the two: an operation that has ended
        # stays in the index while its keys are being removed.
        revision, complete = followed.revision, followed.complete
        active, ended = list(followed.active), list(followed.ended)
        cursor_kv, cursor = await self._cursor(revision, now)
        records = await read_alerts(client)
        delivered = {name: record for name, (record, _) in records.items()}
        current, tables = await self._tables.read(now, delivered)
        current += await read_parked(client, active, delivered)
        outcomes = Outcomes(cursor, records)
        # The records of a table that is gone may have been moved, with a new name of it.
        if complete and tables.issuperset(operation.table for operation in ended):
            operations = {*active, *ended}
            await outcomes.read(client, [space.table(each.table).history(each) for each in operations])
        else:
            await outcomes.read_all(client)
        self._reads_s = loop.time() - began
        names = await self._send(changes(current, outcomes, delivered, tables), records)
        if not outcomes.all_read:
            return
        unsent = outcomes.of(names)
        if revision > cursor.revision and not (unsent or outcomes.is_empty):
            value = encode(AlertCursor(revision=revision, at=now))
            await settle(client, Txn((unchanged(cursor_kv),), (Put(cursor_kv.key, value),)))
        followed.ended.difference_update(ended)
        followed.ended.update(unsent)
        followed.complete = True

    async def _cursor(self, revision: int, now: float) -> tuple[KeyValue, AlertCursor]:
        """Up to where failures were delivered. The first process of all begins with those from now on."""
        key = self._client.keyspace.alert_cursor
        kv = await self._client.get(key)
        if kv.exists:
            return kv, decode(kv.value, AlertCursor, key)
        first = AlertCursor(revision=revision, at=now)
        await settle(self._client, Txn((unchanged(kv),), (Put(key, encode(first)),)))
        kv = await self._client.get(key)  # another process may have been faster
        return kv, decode(kv.value, AlertCursor, key)

    async def _send(
        self, changed: Iterable[tuple[str, AlertRecord]], records: dict[str, Delivered]
    ) -> set[str]:
        """Send what has changed, and return the names of what was not delivered. ``records`` is kept up to
        date."""
        loop, left_out, in_a_row, unsent = asyncio.get_running_loop(), 0, 0, set[str]()
        until = loop.time() + SEND_S
        # What a webhook cannot answer must not hold up the others in each look: it is sent after them.
        for status, alert in sorted(changed, key=lambda change: name_of(change[1]) in self._unanswered):
            name, at = name_of(alert), self._wall()
            no_room = status == FIRING and name not in records and len(records) >= MOST_DELIVERED
            if no_room or in_a_row == MOST_UNANSWERED or loop.time() > until:
                left_out += 1
                unsent.add(name)
                continue
            if name in unsent or (status == RESOLVED and name not in records):
                continue  # a later failure must not hide one that was not delivered
            try:
                page = self._config.page
                await self._webhook.send(payload(alert, status, at, self._client.keyspace.name, page))
            except (PreconditionFailed, Unavailable) as error:
                # It is sent again by the next look.
                log.warning("alert_undelivered", extra={"alert": name, "error": str(error)})
                unsent.add(name)
                in_a_row = in_a_row + 1 if isinstance(error, Unavailable) else 0
                if in_a_row:
                    self._unanswered.add(name)
                continue
            in_a_row = 0
            log.info("alert_sent", extra={"alert": name, "status": status})
            await self._record(name, alert if status == FIRING else None, at, records)
        if left_out:
            log.warning("alerts_left_out", extra={"alerts": left_out, "delivered": len(records)})
        self._unanswered &= unsent
        return unsent

    async def _record(
        self, name: str, alert: AlertRecord | None, at: float, records: dict[str, Delivered]
    ) -> None:
        """Record that an alert, or with ``None`` its end, was delivered, unless another process has changed
        the record since: that one's word stands, and what is wrong about it is sent again."""
        key = self._client.keyspace.alert(name)
        kv = records[name][1] if name in records else KeyValue.missing(key)
        if alert is None:
            await settle(self._client, Txn((unchanged(kv),), (DeleteRange(key),)))
            records.pop(name, None)
            return
        record = msgspec.structs.replace(alert, delivered_at=at)
        value = encode(record)
        result = await settle(self._client, Txn((unchanged(kv),), (Put(key, value),), (Get(key),)))
        if result.succeeded:
            created = kv.create_revision or result.revision
            records[name] = record, KeyValue(key, value, result.revision, created)
        else:
            records[name] = record, result.single(0, key)


def changes(
    current: Sequence[AlertRecord],
    outcomes: Outcomes,
    delivered: Mapping[str, AlertRecord],
    tables: set[str],
) -> list[tuple[str, AlertRecord]]:
    """What to send, in this order: what has begun, then what has ended. Pure.

    Parameters
    ----------
    current:
        The present alerts, but for failures.
    delivered:
        Those that were delivered, by name.
    tables:
        All tables that exist.
    """
    now = {name_of(alert): alert for alert in current}
    firing = [
        alert
        for name, alert in now.items()
        if (before := delivered.get(name)) is None or before.since != alert.since
    ]
    ended = [record for name, record in delivered.items() if record.kind != FAILED and name not in now]
    failures = {name: record for name, record in delivered.items() if record.kind == FAILED}
    for failure in sorted(outcomes.failures, key=_ended_at):
        firing.append(failure)
        failures[name_of(failure)] = failure
    ended += [
        failure
        for name, failure in failures.items()
        if failure.table not in tables
        or ((success := outcomes.succeeded.get(name)) and _ended_at(success) > _ended_at(failure))
    ]
    return [*((FIRING, alert) for alert in firing), *((RESOLVED, alert) for alert in ended)]


def _instance(alert: AlertRecord) -> int:
    return OperationId.parse(alert.operation).instance


def _ended_at(alert: AlertRecord) -> tuple[int, int]:
    """Orders operations by their ends. Records that were moved together share a revision."""
    return alert.revision, _instance(alert)


async def read_alerts(client: EtcdClient) -> dict[str, Delivered]:
    """The alerts that were delivered and have not ended, by name. What cannot be read counts as not
    delivered."""
    alerts = {}
    for kv in (await client.scan(client.keyspace.alerts)).kvs:
        with suppress(CorruptRecord):
            record = decode(kv.value, AlertRecord, kv.key)
            alerts[name_of(record)] = record, kv
    return alerts


def payload(alert: AlertRecord, status: str, at: float, installation: str, page: str) -> dict[str, Any]:
    """The document that is sent: docs/operating.md describes it."""
    subject = alert.operation or f"table {alert.table}"
    if alert.batch:
        subject = f"batch {alert.batch} of table {alert.table}"
    text = f"{subject}: {alert.kind}: {alert.code}: {alert.message}"
    return {
        "version": 1,
        "status": status,
        "name": name_of(alert),
        "installation": installation,
        "kind": alert.kind,
        "table": alert.table,
        "operation": alert.operation,
        "instance": _instance(alert) if alert.operation else None,
        "batch": alert.batch,
        "since": _utc(alert.since),
        "at": _utc(at),
        "code": alert.code,
        "message": alert.message,
        "text": f"{text}; {alert.command}" if status == FIRING else f"{subject}: no longer {alert.kind}",
        "command": alert.command,
        "link": _link(alert, page),
    }


def _link(alert: AlertRecord, page: str) -> str:
    if not page:
        return ""
    paths = {BLOCKED: "/table/batches", LATE: "/table/watermarks"}
    name = alert.table if alert.kind in paths else alert.operation
    return f"{page.rstrip('/')}{paths.get(alert.kind, '/operation')}?{urlencode({'name': name})}"


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


async def current_alerts(client: EtcdClient, lateness: Lateness) -> list[AlertRecord]:
    """The present alerts, the oldest first: what is derived from etcd, and the failures that were delivered.
    Those that were delivered have a time in ``delivered_at``."""
    delivered = {name: record for name, (record, _) in (await read_alerts(client)).items()}
    current, _ = await TableAlerts(client, lateness).read(time.time(), delivered)
    current += await read_parked(client, await active_operations(client), delivered)
    alerts = [record for record in delivered.values() if record.kind == FAILED]
    for alert in current:
        before = delivered.get(name_of(alert))
        alerts.append(before if before is not None and before.since == alert.since else alert)
    return sorted(alerts, key=lambda alert: alert.since)


async def serve(config: AlertingConfig, webhook: Webhook) -> None:
    """Send alerts until SIGTERM or SIGINT."""
    loop, client = asyncio.get_running_loop(), EtcdClient(config.etcd)
    try:
        await enter(client)
        running = asyncio.create_task(Alerting(client, webhook, config).run())
        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, running.cancel)
        notify_manager("READY=1")
        log.info("alerting", extra={"webhook": webhook.origin, "every_s": config.every_s})
        with suppress(asyncio.CancelledError):
            await running
    finally:
        await client.close()


def run(config: AlertingConfig, webhook: Webhook) -> None:
    """Send alerts in this process until SIGTERM or SIGINT."""
    uvloop.run(serve(config, webhook))
