"""What the doctor examines, and its reading: the members, and tables with their operations.

Everything is read at one revision, in bounded pages. Reads at one revision show complete transactions only.
So a contradiction is an error, and not work in progress.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

from distop.coordinator.doctor.findings import Finding, Fix, unreadable_record
from distop.coordinator.state.tracker import Tracked
from distop.errors import Compacted, CorruptRecord
from distop.metastore.backlog.batches import DONE
from distop.metastore.backlog.undoing import Done, batch_keys
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, named
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import TABLE_WORDS, OperationId, escape, prefix_end, unescape
from distop.metastore.records.operation import JobRecord, OperationArg
from distop.metastore.records.record import decode, readable
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.locations import LocationClaim
from distop.metastore.tables.registry import table_names
from distop.metastore.tables.schedules import all_of

MAX_BATCHES = 20
"""Batches of a backlog that are examined."""


@dataclass(slots=True)
class ObservedOperation:
    """An operation that has at least one key, or its index entry."""

    id: OperationId
    keys: OperationKeys
    active: KeyValue
    """Its entry in the index."""
    words: dict[str, KeyValue] = field(default_factory=dict)
    """The keys directly below its root."""
    tracked: Tracked | None = None
    """Its state, without its jobs; ``None`` if it has no readable argument."""
    unreadable: dict[bytes, str] = field(default_factory=dict)
    """Records of it that cannot be read, and why."""
    jobs: int = 0
    """Jobs with a result."""
    claims: dict[int, int] = field(default_factory=dict)
    """Claims by lease."""
    leaseless: list[KeyValue] = field(default_factory=list)
    """Claims without a lease."""
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
class ObservedMember:
    """A live member's key."""

    kv: KeyValue
    role: str
    record: MemberRecord


@dataclass(slots=True)
class Members:
    """The live members, and the services that began last in each place."""

    members: list[ObservedMember] = field(default_factory=list)
    places: list[MemberRecord] = field(default_factory=list)
    unreadable: dict[bytes, str] = field(default_factory=dict)
    revision: int = 0

    def leases(self) -> set[int]:
        return {member.kv.lease for member in self.members}

    def ids(self, role: str) -> set[str]:
        return {member.record.id for member in self.members if member.role == role}

    def executors(self) -> dict[str, Collection[str]]:
        """The types that each of them serves."""
        return {member.record.id: member.record.types for member in self.members if member.role == "executor"}

    def serving(self, operation_type: str) -> list[str]:
        """The executors that run operations of a type."""
        return [name for name, types in self.executors().items() if operation_type in types]


@dataclass(slots=True)
class ObservedTable:
    """A table at one revision."""

    keys: TableKeys
    revision: int
    members: Members
    table: KeyValue
    entry: KeyValue
    """Of the index of tables."""
    head: KeyValue
    watermarks: KeyValue
    run_ops: KeyValue
    coordinator: KeyValue
    pause: KeyValue
    ordering: KeyValue
    backlog_index: KeyValue
    dropped: KeyValue
    """The tombstone: the removal of the table's keys is not finished."""
    agenda: KeyValue
    """When its schedules are due."""
    schedules: list[KeyValue] = field(default_factory=list)
    claims: list[list[KeyValue]] = field(default_factory=list)
    """To its location, to folders above it, and the first in it."""
    batches: list[KeyValue] = field(default_factory=list)
    """The first of its backlog."""
    batches_limit: int = MAX_BATCHES
    unordered: list[KeyValue] = field(default_factory=list)
    """The first unfinished batches without an order."""
    paused_index: list[KeyValue] = field(default_factory=list)
    """What the index of paused things says of the table and its operations."""
    next_instances: dict[str, KeyValue] = field(default_factory=dict)
    operations: dict[OperationId, ObservedOperation] = field(default_factory=dict)
    history: dict[OperationId, KeyValue] = field(default_factory=dict)
    unparsed: dict[bytes, str] = field(default_factory=dict)
    """Keys of its history, and of the index of active operations, that name no operation, and why."""
    own_keys: int = 0
    """Keys that belong to no operation."""

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
        """A record of this table that this version cannot parse."""
        return unreadable_record(key, why, table=self.name, operation=str(operation))

    @property
    def empty(self) -> bool:
        """It has no keys: it never existed, or has been dropped."""
        indexes = self.entry, self.backlog_index, self.agenda
        spoken_of = any(index.exists for index in indexes) or self.paused_index
        return not (self.own_keys or self.operations or spoken_of)


PAGE = 5000
MAX_LEASELESS = 100
"""Claims without a lease that are named."""
MAX_ROLLED_BACK = 1000
"""Batches, and requests, of snapshots that are not in a table's history: whose records are examined."""

_WORDS = frozenset(
    {"arg", "state", "runner", "cancel", "error", "commit", "completion", "resolve", "pause", "run"}
)
"""Keys directly below a root whose values are read."""


async def names_with_keys(client: EtcdClient, revision: int) -> list[str]:
    """Names of all tables with keys at ``revision``, also of those missing in the index.

    One key of a request checks whether keys exist between those of two tables that follow each other in the
    index, however many keys the tables have. Keys that cannot be those of a table are left out.
    """
    space = client.keyspace
    listed = [name async for names, _ in table_names(client, revision=revision) for name in names]
    known = sorted([space.prefix + b"_", *(space.table(name).prefix for name in listed)])
    starts = [space.prefix, *map(prefix_end, known)]
    gaps = [
        Get(*gap, keys_only=True, limit=1)
        for gap in zip(starts, [*known, prefix_end(space.prefix)], strict=True)
    ]
    gaps = [gap for gap in gaps if gap.key < gap.end]
    first_keys = await client.read_many(gaps, revision=revision)
    others: list[str] = []
    for index, gap in enumerate(gaps):
        kvs = first_keys.got(index)
        while kvs:
            # Of the key, not of the name: a name that was not escaped may sort before its own key.
            below = space.prefix + kvs[0].key[len(space.prefix) :].split(b".", 1)[0] + b"."
            with suppress(CorruptRecord):
                others.append(space.table_of(below))
            start = prefix_end(below)
            if start >= gap.end:
                break
            page = await client.get_range(start, gap.end, revision=revision, keys_only=True, limit=1)
            kvs = page.kvs
    return [*others, *listed]


async def indexed_tables(client: EtcdClient, revision: int) -> set[str]:
    """Tables that the indexes of operations, backlogs, schedules and pauses name, at ``revision``."""
    space, names = client.keyspace, set[str]()
    for prefix in (space.active, space.backlog_tables, space.paused, space.agendas):
        index = await client.scan(prefix, revision=revision, keys_only=True)
        names |= {name for name, _ in named(index.kvs, partial(space.table_in, prefix))}
    return names


async def read_members(client: EtcdClient, revision: int = 0) -> Members:
    """All members at ``revision``; 0: now."""
    members = Members(revision=revision)
    keyspace = client.keyspace
    for role, prefix in (("coordinator", keyspace.coordinators), ("executor", keyspace.executors)):
        listing = await client.scan(prefix, revision=members.revision)
        members.revision = listing.revision
        for kv in listing.kvs:
            try:
                record = decode(kv.value, MemberRecord, kv.key)
            except CorruptRecord as error:
                members.unreadable[kv.key] = str(error)
            else:
                members.members.append(ObservedMember(kv, record.role or role, record))
    for kv in (await client.scan(keyspace.places, revision=members.revision)).kvs:
        try:
            members.places.append(decode(kv.value, MemberRecord, kv.key))
        except CorruptRecord as error:
            members.unreadable[kv.key] = str(error)
    return members


async def read_table(client: EtcdClient, name: str) -> ObservedTable:
    """A table at the present revision."""
    return (await read_tables(client, [name]))[0]


async def read_tables(client: EtcdClient, names: Sequence[str]) -> list[ObservedTable]:
    """Some tables at the present revision; read again if that is compacted meanwhile.

    Tables may be many and far apart in the key space: some are read together, in few requests.
    """
    try:
        return await _read_tables(client, names)
    except Compacted:
        return await _read_tables(client, names)


async def _read_tables(client: EtcdClient, names: Sequence[str]) -> list[ObservedTable]:
    members = await read_members(client, await client.revision())
    reading = _RevisionReader(client, members)
    tables = [client.keyspace.table(name) for name in names]
    kvs_of_tables = await reading.each([_table_gets(keys) for keys in tables])
    tables_read = [
        _observed_table(keys, members, kvs) for keys, kvs in zip(tables, kvs_of_tables, strict=True)
    ]
    claims = [_claims(table) for table in tables_read]
    for table, kvs in zip(tables_read, await reading.each(claims), strict=True):
        table.claims = [some[:1] for some in kvs]
    operations = [operation for table in tables_read for operation in table.operations.values()]
    gets = [[Get(table.words[word].key) for word in table.words.keys() & _WORDS] for table in operations]
    marks = [[Get(table.newest.key)] if _is_mark(table) else [] for table in operations]
    counters = [
        [Get(table.keys.next_instance(kind)) for kind in table.next_instances] for table in tables_read
    ]
    rest = await reading.each([*gets, *marks, *counters])
    for operation, words, mark in zip(operations, rest, rest[len(operations) :], strict=False):
        _take_values(operation, words, mark)
    for table, numbers in zip(tables_read, rest[2 * len(operations) :], strict=True):
        values = [kvs[0] if kvs else KeyValue.missing(b"") for kvs in numbers]
        table.next_instances = dict(zip(table.next_instances, values, strict=True))
    return tables_read


async def read_ends(client: EtcdClient, table: ObservedTable, done: Done) -> dict[bytes, KeyValue]:
    """The records of batches and requests at the table's revision, and what rollbacks have taken out."""
    keys = table.keys
    wanted = [keys.undone]
    for names, ordered in ((done.batches, True), (done.unordered, False)):
        for name in islice(names, MAX_ROLLED_BACK):
            wanted += batch_keys(keys, name, ordered=ordered)
    wanted += map(keys.request, islice(done.requests, MAX_ROLLED_BACK))
    read = await client.read_many([Get(key) for key in wanted], revision=table.revision)
    return {key: read.single(index, key) for index, key in enumerate(wanted)}


class _RevisionReader:
    """Reads of many things at one revision."""

    def __init__(self, client: EtcdClient, members: Members) -> None:
        self._client, self._revision = client, members.revision

    async def each(self, wanted: Sequence[Sequence[Get]]) -> list[list[list[KeyValue]]]:
        """The results of some lists of reads. A range of more than one page is read to its end."""
        gets = [get for some in wanted for get in some]
        if not gets:
            return [[] for _ in wanted]
        read = await self._client.read_many(gets, revision=self._revision)
        results = [read.got(index) for index in range(len(gets))]
        for get, kvs in zip(gets, results, strict=True):
            if get.limit == PAGE == len(kvs):
                start, only = kvs[-1].key + b"\0", get.keys_only
                pages = self._client.pages(
                    start, get.end, limit=PAGE, revision=self._revision, keys_only=only
                )
                async with aclosing(pages):
                    async for page in pages:
                        kvs += page.kvs
        parts = iter(results)
        return [list(islice(parts, len(some))) for some in wanted]


_SINGLE = (
    *("table", "entry", "head", "watermarks", "run_ops", "coordinator"),
    *("pause", "ordering", "backlog_index", "agenda"),
)
"""The single keys of a table, by their names in :class:`TableKeys` and :class:`ObservedTable`."""


def _table_gets(keys: TableKeys) -> list[Get]:
    space = keys.keyspace
    below_pause = space.paused_table(keys.name) + b"."
    active = space.active + escape(keys.name).encode() + b"."
    not_done = prefix_end(keys.unordered(DONE)), prefix_end(keys.unordered_prefix)
    return [
        *(Get(getattr(keys, name)) for name in _SINGLE),
        Get(space.dropped(keys.name)),
        Get(space.paused_table(keys.name)),
        all_of(keys),
        Get(keys.backlog_prefix, prefix_end(keys.backlog_prefix), limit=MAX_BATCHES),
        Get(*not_done, limit=MAX_BATCHES),
        Get(below_pause, prefix_end(below_pause), limit=PAGE),
        Get(active, prefix_end(active), limit=PAGE),
        Get(keys.history_prefix, prefix_end(keys.history_prefix), limit=PAGE),
        Get(keys.prefix, prefix_end(keys.prefix), keys_only=True, limit=PAGE),
    ]


def _observed_table(keys: TableKeys, members: Members, results: list[list[KeyValue]]) -> ObservedTable:
    gets = _table_gets(keys)
    singles = [kvs[0] if kvs else KeyValue.missing(get.key) for get, kvs in zip(gets, results, strict=True)]
    paused, schedules, batches, unordered, below_pause, active, history, every = results[-8:]
    own: dict[str, Any] = dict(zip(_SINGLE, singles, strict=False))
    table = ObservedTable(
        keys=keys,
        revision=members.revision,
        members=members,
        **own,
        dropped=singles[len(_SINGLE)],
        batches=batches,
        unordered=unordered,
        paused_index=[*paused, *below_pause],
        schedules=schedules,
    )
    for kv in every:
        _note(table, kv)
    space = keys.keyspace
    for kv in history:
        if (operation := _parsed(table, kv, space.parse_history)) is not None:
            table.history[operation] = kv
    for kv in active:
        if (operation := _parsed(table, kv, space.parse_active)) is not None:
            _observed_operation(table, operation).active = kv
    return table


def _parsed(table: ObservedTable, kv: KeyValue, parse: Callable[[bytes], OperationId]) -> OperationId | None:
    try:
        return parse(kv.key)
    except CorruptRecord as error:
        table.unparsed[kv.key] = str(error)
        return None


def _claims(table: ObservedTable) -> list[Get]:
    record = readable(table.table.value, TableRecord)  # else it is reported among the records
    return list(LocationClaim.of(table.keys.keyspace, record).reads()) if record is not None else []


def _note(table: ObservedTable, kv: KeyValue) -> None:
    """Record one key below a table."""
    parts = kv.key[len(table.keys.prefix) :].decode(errors="replace").split(".")
    if parts[0] in TABLE_WORDS:
        # Members and leases come and go; a table consists of keys that a caller requested.
        table.own_keys += parts[0] != "coordinator"
        return
    if parts[1:] == ["nextInstanceId"]:
        table.next_instances[parts[0]] = kv
        table.own_keys += 1
        return
    try:
        operation_id = operation_of(table.name, parts)
    except UnicodeDecodeError as error:
        table.unparsed[kv.key], operation_id = str(error), None
    if operation_id is None:
        table.own_keys += 1  # a key that a newer version knows
        return
    operation, rest = operation_id
    entry = _observed_operation(table, operation)
    entry.keys_count += 1
    if kv.mod_revision > entry.newest.mod_revision:
        entry.newest = kv
    if len(rest) == 1:
        entry.words[rest[0]] = kv
    elif rest[0] != "commit" and rest[-1] == "state":
        entry.jobs += 1
    elif rest[0] != "commit" and rest[-1] == "claim":
        entry.claims[kv.lease] = entry.claims.get(kv.lease, 0) + 1
        if not kv.lease and len(entry.leaseless) < MAX_LEASELESS:
            entry.leaseless.append(kv)


def operation_of(table: str, parts: list[str]) -> tuple[OperationId, list[str]] | None:
    """The operation of a key below a table, by the key's components, and the remaining components."""
    for at, name in ((1, ""), (2, parts[1] if len(parts) > 1 else "")):
        if len(parts) > at + 1 and parts[at].isdecimal() and int(parts[at]) > 0:
            return OperationId(table, parts[0], int(parts[at]), unescape(name)), parts[at + 1 :]
    return None


def _observed_operation(table: ObservedTable, operation: OperationId) -> ObservedOperation:
    entry = table.operations.get(operation)
    if entry is None:
        missing = KeyValue.missing(table.keys.keyspace.active_operation(operation))
        entry = table.operations[operation] = ObservedOperation(
            operation, table.keys.operation(operation), missing
        )
    return entry


def _is_mark(operation: ObservedOperation) -> bool:
    return operation.newest.key.endswith(b".state") and operation.newest.key != operation.keys.state


def _take_values(
    operation: ObservedOperation, words: list[list[KeyValue]], mark: list[list[KeyValue]]
) -> None:
    for kv in (kv for kvs in words for kv in kvs):
        operation.words[kv.key[len(operation.keys.prefix) :].decode()] = kv
    if operation.word("arg").exists:
        try:
            operation.tracked = Tracked(
                operation.keys, decode(operation.word("arg").value, OperationArg, operation.keys.arg)
            )
        except CorruptRecord as error:
            operation.unreadable[operation.keys.arg] = error.message
    if operation.tracked is not None:
        for word in operation.words.keys() & _WORDS:
            operation.tracked.apply_put(operation.words[word])
        operation.unreadable |= operation.tracked.unreadable
    for kv in (kv for kvs in mark for kv in kvs):
        try:
            operation.last_mark_at = decode(kv.value, JobRecord, kv.key).at
        except CorruptRecord as error:
            operation.unreadable[kv.key] = error.message
