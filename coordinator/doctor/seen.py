"""What the doctor examines: the members, and one table with its operations, at one revision."""

from __future__ import annotations

from dataclasses import dataclass, field

from distop.coordinator.doctor.findings import Finding, Fix, unreadable_record
from distop.coordinator.state.tracker import Tracked
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import OperationId

MAX_BATCHES = 20
"""Batches of a backlog that are examined."""


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
class MemberSeen:
    """A live member's key."""

    kv: KeyValue
    role: str
    record: MemberRecord


@dataclass(slots=True)
class Members:
    """The live members, and the services that began last in each place."""

    members: list[MemberSeen] = field(default_factory=list)
    places: list[MemberRecord] = field(default_factory=list)
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
    operations: dict[OperationId, OperationSeen] = field(default_factory=dict)
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
