"""What deserves an alert now: derived from what stands in etcd, whatever happened before.

Operations that are parked are among those in the index of active operations. Blocked backlogs and late
watermarks are looked up table by table: one key each, or two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any

from distop.coordinator.views.why import cut, many, span
from distop.errors import CorruptRecord
from distop.metastore.backlog.batches import ordering_of
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, named
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId, prefix_end
from distop.metastore.records.operation import CompletionRecord, HistoryRecord
from distop.metastore.records.record import decode, readable
from distop.metastore.records.table import AlertRecord, AuditRecord
from distop.metastore.tables.registry import table_names
from distop.proto.commands import to_resolve, to_unblock

FAILED, PARKED, BLOCKED, LATE = "failed", "parked", "blocked", "late"
WAITING = "waiting"
"""The condition of a table with operations that no executor has taken; it is no alert."""

WATERMARK_LATE = "WATERMARK_LATE"
"""The code of a late watermark. Those of the other kinds are codes of errors."""

TOGETHER = 500
"""Tables that are read together."""


def name_of(alert: AlertRecord) -> str:
    """What the condition is about. At most one alert of a name stands at a time.

    The failures of one type on a table, and object, share a name, so that there are never many: the next
    success ends all of them.
    """
    if alert.kind == FAILED:
        operation = OperationId.parse(alert.operation)
        subject = "/".join(filter(None, (operation.table, operation.type, operation.object)))
    elif alert.kind == BLOCKED:
        subject = f"{alert.table}/{alert.batch}"
    else:
        subject = alert.operation or alert.table
    return f"{alert.kind}:{subject}"


@dataclass(frozen=True)
class Lateness:
    """How many seconds after they moved last the watermarks of a table are late."""

    default_s: float | None = None
    """Of tables without a limit of their own; ``None``: never."""
    tables: Mapping[str, float] = field(default_factory=dict)

    def limit_s(self, table: str) -> float | None:
        return self.tables.get(table, self.default_s)


def failed(operation: OperationId, record: HistoryRecord, revision: int) -> AlertRecord:
    """The alert for an operation whose failure was recorded at this revision."""
    return AlertRecord(
        kind=FAILED,
        table=operation.table,
        operation=str(operation),
        since=record.finished_at,
        code=record.error_code,
        message=cut(record.error),
        command=f"distop operation show {operation} --events",
        revision=revision,
    )


def parked(operation: OperationId, completion: CompletionRecord) -> AlertRecord | None:
    """The alert for an operation whose completion has failed; ``None``: it is tried again."""
    if not completion.parked:
        return None
    step = f" at step {completion.step}" if completion.step else ""
    return AlertRecord(
        kind=PARKED,
        table=operation.table,
        operation=str(operation),
        since=completion.since or completion.at,
        code=completion.error_code,
        message=f"{many(completion.attempts, 'failed attempt')}{step}: {cut(completion.error)}",
        command=to_resolve(str(operation), skippable=completion.skippable),
    )


def blocked(table: str, ordering: KeyValue, delivered: Mapping[str, AlertRecord]) -> Iterator[AlertRecord]:
    """The alerts for batches that wait for a decision: one that blocks the others, and those without an order
    that have failed. If the record cannot be read, those that were delivered have not ended."""
    try:
        record = ordering_of(ordering)
    except CorruptRecord:  # the doctor reports it
        yield from (alert for alert in delivered.values() if (alert.kind, alert.table) == (BLOCKED, table))
        return
    for block in (record.blocked, *record.failed):
        if block is not None:
            yield AlertRecord(
                kind=BLOCKED,
                table=table,
                operation=block.operation,
                batch=block.batch,
                since=block.at,
                code=block.code,
                message=cut(block.error),
                command=to_unblock(table, block.batch),
            )


def late(table: str, revision: int, moved_at: float, limit_s: float, now: float) -> AlertRecord | None:
    """The alert for a table whose watermarks moved last at ``moved_at``; ``None``: that is recent enough."""
    if now - moved_at <= limit_s:
        return None
    return AlertRecord(
        kind=LATE,
        table=table,
        since=moved_at,
        code=WATERMARK_LATE,
        message=f"no watermark has moved for more than {span(limit_s)}",
        command=f"distop table why {table}",
        revision=revision,
    )


async def read_parked(
    client: EtcdClient, operations: Sequence[OperationId], delivered: Mapping[str, AlertRecord]
) -> list[AlertRecord]:
    """The alerts for those of the active operations that are parked. If a record cannot be read, an alert
    that was delivered has not ended."""
    gets = [Get(client.keyspace.operation(operation).completion) for operation in operations]
    read = await client.read_many(gets)
    alerts = list[AlertRecord]()
    for index, (operation, get) in enumerate(zip(operations, gets, strict=True)):
        kv = read.single(index, get.key)
        record = readable(kv.value, CompletionRecord, kv.key)
        known = delivered.get(f"{PARKED}:{operation}") if kv.exists else None
        if alert := parked(operation, record) if record is not None else known:
            alerts.append(alert)
    return alerts


async def active_operations(client: EtcdClient) -> list[OperationId]:
    """The operations in the index of those that have keys."""
    listing = await client.scan(client.keyspace.active, keys_only=True)
    return [operation for operation, _ in named(listing.kvs, client.keyspace.parse_active)]


class TableAlerts:
    """Reads the alerts of tables; remembers when watermarks moved, which costs a read for each change."""

    def __init__(self, client: EtcdClient, lateness: Lateness) -> None:
        self._client = client
        self._lateness = lateness
        self._moved: dict[str, tuple[int, float]] = {}
        self._delivered: Mapping[str, AlertRecord] = {}

    async def read(
        self, now: float, delivered: Mapping[str, AlertRecord]
    ) -> tuple[list[AlertRecord], set[str]]:
        """The alerts of all tables, and the names of these.

        Parameters
        ----------
        now:
            Seconds since the Unix epoch.
        delivered:
            The alerts that were delivered, by name.
        """
        self._delivered = delivered
        alerts, names = list[AlertRecord](), set[str]()
        async with aclosing(table_names(self._client, limit=TOGETHER)) as pages:
            async for listed, _ in pages:
                names.update(listed)
                alerts += await self._of(listed, now)
        self._moved = {name: moved for name, moved in self._moved.items() if name in names}
        return alerts, names

    async def _of(self, names: Sequence[str], now: float) -> list[AlertRecord]:
        tables = [self._client.keyspace.table(name) for name in names]
        limited = [keys for keys in tables if self._lateness.limit_s(keys.name) is not None]
        gets = [Get(keys.ordering) for keys in tables]
        gets += [Get(keys.watermarks, keys_only=True) for keys in limited]
        read = await self._client.read_many(gets)
        kvs = [read.single(index, get.key) for index, get in enumerate(gets)]
        alerts = list[AlertRecord]()
        for name, kv in zip(names, kvs, strict=False):
            alerts += blocked(name, kv, self._delivered) if kv.exists else ()
        for keys, kv in zip(limited, kvs[len(tables) :], strict=True):
            limit_s = self._lateness.limit_s(keys.name)
            if kv.exists and limit_s is not None:
                revision = kv.mod_revision
                alert = late(keys.name, revision, await self._moved_at(keys, revision, now), limit_s, now)
                alerts += [alert] if alert is not None else []
        return alerts

    async def _moved_at(self, keys: TableKeys, revision: int, now: float) -> float:
        """When the watermarks moved that were written at this revision."""
        known = self._moved.get(keys.name)
        if known is None or known[0] != revision:
            before = self._delivered.get(f"{LATE}:{keys.name}")
            if before is not None and before.revision == revision:
                moved_at: float | None = before.since
            else:
                moved_at = await moved_time(self._client, keys, revision)
            known = self._moved[keys.name] = revision, moved_at if moved_at is not None else now
        return known[1]


async def moved_time(client: EtcdClient, keys: TableKeys, revision: int) -> float | None:
    """The time of a revision at which watermarks were written: that of the end of an operation, or of a
    change by hand, that was recorded in the same transaction. ``None``: neither was; a foreign engine did it.
    """
    for prefix, kind in ((keys.history_prefix, HistoryRecord), (keys.audit_prefix, AuditRecord)):
        page = await client.get_range(prefix, prefix_end(prefix), written_from=revision, keys_only=True)
        for key in (kv.key for kv in page.kvs if kv.mod_revision == revision):
            kv = await client.get(key)
            with suppress(CorruptRecord):
                record: Any = decode(kv.value, kind, key) if kv.mod_revision == revision else None
                return getattr(record, "finished_at", None) or getattr(record, "at", None)
    return None


async def count_tables(client: EtcdClient) -> dict[str, int]:
    """How many tables are blocked, have operations that are parked, or that wait for an executor. With 10,000
    tables it takes 0.2 s of processor time, and etcd as much."""
    space = client.keyspace
    alerts, _ = await TableAlerts(client, Lateness()).read(0.0, {})
    alerts += await read_parked(client, await active_operations(client), {})
    waiting = await client.scan(space.waiting, keys_only=True)
    tables = {(alert.kind, alert.table) for alert in alerts}
    tables |= {(WAITING, operation.table) for operation, _ in named(waiting.kvs, space.parse_waiting)}
    counts = Counter(condition for condition, _ in tables)
    return {condition: counts[condition] for condition in (BLOCKED, PARKED, WAITING)}
