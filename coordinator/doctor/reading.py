"""One table as it stands in etcd at one revision, in bounded pages: what the doctor looks at.

Reads at one revision show what transactions left, never half of one. So whatever contradicts itself there is
wrong, and not merely under way.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from distop.coordinator.doctor.findings import Finding, Fix, unreadable_record
from distop.coordinator.state.tracker import Tracked
from distop.errors import Compacted, CorruptRecord
from distop.metastore.backlog.batches import DONE
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import (
    TABLE_WORDS,
    OperationId,
    OperationKeys,
    TableKeys,
    escape,
    prefix_end,
    unescape,
)
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import JobRecord, OperationArg
from distop.metastore.records.record import decode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.locations import Claim

PAGE = 5000
MAX_BATCHES = 20
"""Batches of a backlog that are looked at."""
MAX_LEASELESS = 100
"""Claims without a lease that are named."""

_WORDS = frozenset(
    {"arg", "state", "runner", "cancel", "error", "commit", "completion", "resolve", "pause", "run"}
)
"""Keys directly below a root whose values are read."""


@dataclass(slots=True)
class OperationSeen:
    """An operation that has at least one key, or its index entry."""

    id: OperationId
    keys: OperationKeys
    active: KeyValue
    """Its entry in the index."""
    words: dict[str, KeyValue] = field(default_factory=dict)
    """The keys directly below its root."""
    tracked: Tracked | None = None
    """Its state, without its jobs; ``None`` if it has no argument that can be read."""
    unreadable: str = ""
    """Why a record of it cannot be read."""
    jobs: int = 0
    """Jobs with a result."""
    claims: dict[int, int] = field(default_factory=dict)
    """Claims by the lease that holds them."""
    leaseless: list[KeyValue] = field(default_factory=list)
    """Claims that no lease holds."""
    keys_count: int = 0
    newest: KeyValue = KeyValue.missing(b"")  # noqa: RUF009 - a frozen value
    """The key that was written last."""
    last_mark_at: float = 0.0

    def word(self, name: str) -> KeyValue:
        return self.words.get(name, KeyValue.missing(self.keys.prefix + name.encode()))

    @property
    def state(self) -> KeyValue:
        return self.word("state")


@dataclass(slots=True)
class MemberSeen:
    """A live member's key."""

    kv: KeyValue
    role: str
    record: MemberRecord


@dataclass(slots=True)
class Members:
    """Who is there."""

    members: list[MemberSeen] = field(default_factory=list)
    unreadable: dict[bytes, str] = field(default_factory=dict)
    revision: int = 0

    def leases(self) -> set[int]:
        return {member.kv.lease for member in self.members}

    def ids(self, role: str) -> set[str]:
        return {member.record.id for member in self.members if member.role == role}

    def serving(self, operation_type: str) -> list[str]:
        """The executors that run operations of a type."""
        return [
            member.record.id
            for member in self.members
            if member.role == "executor" and operation_type in member.record.types
        ]


@dataclass(slots=True)
class TableSeen:
    """A table at one revision."""

    keys: TableKeys
    revision: int
    members: Members
    table: KeyValue
    head: KeyValue
    watermarks: KeyValue
    run_ops: KeyValue
    coordinator: KeyValue
    pause: KeyValue
    ordering: KeyValue
    backlog_index: KeyValue
    claims: list[list[KeyValue]] = field(default_factory=list)
    """To its location, to folders above it, and the first in it."""
    batches: list[KeyValue] = field(default_factory=list)
    """The first of its backlog."""
    batches_limit: int = MAX_BATCHES
    unordered: list[KeyValue] = field(default_factory=list)
    """The first batches without an order that are not done with."""
    paused_index: list[KeyValue] = field(default_factory=list)
    """What the index of paused things says of the table and its operations."""
    next_instances: dict[str, KeyValue] = field(default_factory=dict)
    operations: dict[OperationId, OperationSeen] = field(default_factory=dict)
    history: dict[OperationId, KeyValue] = field(default_factory=dict)
    own_keys: int = 0
    """Keys that are of no operation."""

    @property
    def name(self) -> str:
        return self.keys.name

    def finding(
        self,
        code: str,
        *,
        sentence: str,
        remedy: str,
        operation: OperationId | str = "",
        subject: str = "",
        persists_s: float = 0.0,
        fix: Fix | None = None,
    ) -> Finding:
        """A finding about this table, or one of its operations."""
        return Finding(
            code=code,
            table=self.name,
            operation=str(operation),
            subject=subject,
            sentence=sentence,
            remedy=remedy,
            persists_s=persists_s,
            fix=fix,
        )

    def unreadable(self, key: bytes, why: str, operation: OperationId | str = "") -> Finding:
        """A record of this table that this version does not understand."""
        return unreadable_record(key, why, table=self.name, operation=str(operation))

    @property
    def empty(self) -> bool:
        """Nothing of it stands: it never was, or has been dropped."""
        spoken_of = self.backlog_index.exists or self.paused_index
        return not (self.own_keys or self.operations or spoken_of)


async def names_with_keys(client: EtcdClient, revision: int) -> AsyncGenerator[str, None]:
    """Names of all tables that have keys, also of those without a table record, as of ``revision``."""
    keyspace = client.keyspace
    start, end = keyspace.prefix, prefix_end(keyspace.prefix)
    while True:
        page = await client.get_range(start, end, revision=revision, keys_only=True, limit=1)
        if not page.kvs:
            return
        name = keyspace.table_of(page.kvs[0].key)
        if not name.startswith("_"):
            yield name
        start = prefix_end(keyspace.table(name).prefix)


async def indexed_tables(client: EtcdClient, revision: int) -> set[str]:
    """Tables that the indexes name, of active operations, backlogs and what is paused, as of ``revision``."""
    space, names = client.keyspace, set[str]()
    for prefix in (space.active, space.backlog_tables, space.paused):
        index = await client.scan(prefix, revision=revision, keys_only=True)
        names |= {unescape(kv.key[len(prefix) :].split(b".", 1)[0].decode()) for kv in index.kvs}
    return names


async def read_members(client: EtcdClient, revision: int = 0) -> Members:
    """All members as of ``revision``; 0: now."""
    seen = Members(revision=revision)
    keyspace = client.keyspace
    for role, prefix in (("coordinator", keyspace.coordinators), ("executor", keyspace.executors)):
        listing = await client.scan(prefix, revision=seen.revision)
        seen.revision = listing.revision
        for kv in listing.kvs:
            try:
                record = decode(kv.value, MemberRecord, kv.key)
            except CorruptRecord as error:
                seen.unreadable[kv.key] = str(error)
            else:
                seen.members.append(MemberSeen(kv, record.role or role, record))
    return seen


async def read_table(client: EtcdClient, name: str) -> TableSeen:
    """A table at the present revision; read anew should that be compacted meanwhile."""
    try:
        return await _read_table(client, name)
    except Compacted:
        return await _read_table(client, name)


async def _read_table(client: EtcdClient, name: str) -> TableSeen:
    keys = client.keyspace.table(name)
    members = await read_members(client, await client.revision())
    at = members.revision

    async def get(key: bytes) -> KeyValue:
        return await client.get(key, revision=at)

    seen = TableSeen(
        keys=keys,
        revision=at,
        members=members,
        table=await get(keys.table),
        head=await get(keys.head),
        watermarks=await get(keys.watermarks),
        run_ops=await get(keys.run_ops),
        coordinator=await get(keys.coordinator),
        pause=await get(keys.pause),
        ordering=await get(keys.ordering),
        backlog_index=await get(keys.backlog_index),
    )
    backlog = keys.backlog_prefix
    page = await client.get_range(backlog, prefix_end(backlog), revision=at, limit=MAX_BATCHES)
    seen.batches = page.kvs
    first, end = prefix_end(keys.unordered(DONE)), prefix_end(keys.unordered_prefix)
    seen.unordered = (await client.get_range(first, end, revision=at, limit=MAX_BATCHES)).kvs
    of_table = client.keyspace.paused_table(name)
    entry, below = await get(of_table), await client.scan(of_table + b".", revision=at)
    seen.paused_index = [kv for kv in (entry, *below.kvs) if kv.exists]
    seen.claims = await _claims(client, seen)
    await _list_keys(client, seen)
    history = await client.scan(keys.history_prefix, revision=at)
    for kv in history.kvs:
        seen.history[client.keyspace.parse_history(kv.key)] = kv
    index = await client.scan(client.keyspace.active + escape(name).encode() + b".", revision=at)
    for kv in index.kvs:
        operation = client.keyspace.parse_active(kv.key)
        _seen_operation(seen, operation).active = kv
    for one in seen.operations.values():
        await _read_values(client, one, at)
    for type_name in seen.next_instances:
        seen.next_instances[type_name] = await get(keys.next_instance(type_name))
    return seen


async def _claims(client: EtcdClient, seen: TableSeen) -> list[list[KeyValue]]:
    try:
        record = decode(seen.table.value, TableRecord, seen.table.key) if seen.table.exists else None
    except CorruptRecord:
        return []  # reported among the records
    found = []
    for get in Claim.of(client.keyspace, record).reads() if record is not None else ():
        end = get.end or get.key + b"\0"
        found.append((await client.get_range(get.key, end, revision=seen.revision, limit=1)).kvs)
    return found


async def _list_keys(client: EtcdClient, seen: TableSeen) -> None:
    start, end = seen.keys.prefix, prefix_end(seen.keys.prefix)
    while True:
        page = await client.get_range(start, end, revision=seen.revision, keys_only=True, limit=PAGE)
        for kv in page.kvs:
            _note(seen, kv)
        if not page.more:
            return
        start = page.kvs[-1].key + b"\0"


def _note(seen: TableSeen, kv: KeyValue) -> None:
    """Take note of one key below a table."""
    parts = kv.key[len(seen.keys.prefix) :].decode(errors="replace").split(".")
    if parts[0] in TABLE_WORDS:
        # Members and leases come and go; what makes a table is what was written by somebody's wish.
        seen.own_keys += parts[0] != "coordinator"
        return
    if parts[1:] == ["nextInstanceId"]:
        seen.next_instances[parts[0]] = kv
        seen.own_keys += 1
        return
    found = operation_of(seen.name, parts)
    if found is None:
        seen.own_keys += 1  # of a newer version, which knows what it is
        return
    operation, rest = found
    one = _seen_operation(seen, operation)
    one.keys_count += 1
    if kv.mod_revision > one.newest.mod_revision:
        one.newest = kv
    if len(rest) == 1:
        one.words[rest[0]] = kv
    elif rest[0] != "commit" and rest[-1] == "state":
        one.jobs += 1
    elif rest[0] != "commit" and rest[-1] == "claim":
        one.claims[kv.lease] = one.claims.get(kv.lease, 0) + 1
        if not kv.lease and len(one.leaseless) < MAX_LEASELESS:
            one.leaseless.append(kv)


def operation_of(table: str, parts: list[str]) -> tuple[OperationId, list[str]] | None:
    """The operation that a key below a table belongs to, by its components, and the components behind it."""
    for at, name in ((1, ""), (2, parts[1] if len(parts) > 1 else "")):
        if len(parts) > at + 1 and parts[at].isdecimal() and int(parts[at]) > 0:
            return OperationId(table, parts[0], int(parts[at]), unescape(name)), parts[at + 1 :]
    return None


def _seen_operation(seen: TableSeen, operation: OperationId) -> OperationSeen:
    one = seen.operations.get(operation)
    if one is None:
        missing = KeyValue.missing(seen.keys.keyspace.active_operation(operation))
        one = seen.operations[operation] = OperationSeen(operation, seen.keys.operation(operation), missing)
    return one


async def _read_values(client: EtcdClient, one: OperationSeen, revision: int) -> None:
    for word in one.words.keys() & _WORDS:
        one.words[word] = await client.get(one.words[word].key, revision=revision)
    if one.word("arg").exists:
        try:
            one.tracked = Tracked(one.keys, decode(one.word("arg").value, OperationArg, one.keys.arg))
        except CorruptRecord as error:
            one.unreadable = str(error)
    if one.tracked is not None:
        for word in one.words.keys() & _WORDS:
            one.tracked.apply_put(one.words[word])
        one.unreadable = next(iter(one.tracked.unreadable.values()), "")
    if one.newest.key.endswith(b".state") and one.newest.key != one.keys.state:
        kv = await client.get(one.newest.key, revision=revision)
        try:
            one.last_mark_at = decode(kv.value, JobRecord, kv.key).at
        except CorruptRecord as error:
            one.unreadable = one.unreadable or str(error)
