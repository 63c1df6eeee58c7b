"""What ``distop doctor`` finds: findings, and what can be done about them. Pure.

A finding is a sentence about something that should not be, with what to do. It is worked out from records and
listings alone (:mod:`.checks`, :mod:`.backlog`, :mod:`.liveness`, :mod:`.cluster`, :mod:`.files`), looked at
again before it is reported (:mod:`.rounds`), and put right, where that is safe, by transactions that compare
what was seen (:mod:`.fixes`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias

from distop.metastore.etcd.txn import Delete, KeyValue, Txn, unchanged
from distop.metastore.records.keyspace import OperationId

DOCTOR = "distop doctor --fix"
UPGRADE = "upgrade distop where it is older; if nobody has written it by hand, keep the value and report it"


class Severity(IntEnum):
    """How bad it is. From :attr:`WARNING` on something is wrong."""

    NOTICE = 1
    """Worth knowing; nothing is wrong."""
    WARNING = 2
    """Something does not go on, or may be lost; what is published is right."""
    ERROR = 3
    """Something that must always hold does not."""


SEVERITIES: dict[str, Severity] = {
    code: severity
    for severity, codes in {
        Severity.NOTICE: """
            BACKLOG_WAITS CALL_TAKES_LONG COMPLETION_FAILS COMPLETION_HANGS JOBS_QUIET OPERATION_PAUSED
            TABLE_PAUSED WAITING_FOR_RUNNER
        """,
        Severity.WARNING: """
            BACKLOG_BLOCKED BATCH_FAILED
            BACKLOG_INDEX_WITHOUT_TABLE BATCH_WITHOUT_FLIGHT BLOCKED_BY_NOTHING SCHEDULES_WITHOUT_TABLE
            CLAIM_WITHOUT_MEMBER CLAIM_WITHOUT_TABLE CLOCK_SKEW ENTRY_WITHOUT_TABLE
            ETCD_LOSSY_VERSION ETCD_MEMBER_AWAY ETCD_NEARLY_FULL ETCD_PERMISSIONS
            FLIGHT_WITHOUT_OPERATION HEAD_UNREADABLE HISTORY_WITHOUT_OUTCOME INDEX_WITHOUT_OPERATION
            KEYS_WITHOUT_TABLE LEADER_WITHOUT_MEMBER LEFTOVER_KEYS LOCATION_NOT_CLAIMED
            NOT_COLLECTED NO_EXECUTOR NO_PROGRESS
            PARKED PAUSE_INDEX_WITHOUT_PAUSE PAUSE_NOT_INDEXED RUNNER_WITHOUT_MEMBER
            STAGED_FILES_WITHOUT_OWNER UNKNOWN_STATE VERSIONS_APART
            FILES_WITHOUT_TABLE OPERATION_BEFORE_RESTORE
        """,
        Severity.ERROR: """
            BACKLOG_NOT_INDEXED SCHEDULES_NOT_INDEXED
            ENDED_OPERATION_WITH_STATE ETCD_ALARM ETCD_WITHOUT_LEADER
            HEAD_METADATA_MISSING HEAD_SNAPSHOT_UNKNOWN INSTANCE_NUMBER_BEHIND KEY_WITHOUT_LEASE
            HEAD_BEHIND_FILES HELD_BEFORE_RESTORE RESTORE_UNCLEAR
            LOCATION_SHARED NO_LEADER
            OPERATION_NOT_INDEXED OPERATION_NOT_IN_RUNOPS OPERATION_WITHOUT_ARGUMENT OPERATION_WITHOUT_STATE
            PUBLISHED_SNAPSHOT_MISSING RUNOPS_WITHOUT_OPERATION TABLE_FILES_MISSING TABLE_NOT_LISTED
            UNREADABLE_RECORD WATERMARKS_BEHIND_HEAD
        """,
    }.items()
    for code in codes.split()
}
"""Every code there is, and how bad it is."""


@dataclass(frozen=True, slots=True)
class Change:
    """Put right by one transaction, whose compares are what was seen: if that has moved, nothing happens."""

    does: str
    txn: Txn


@dataclass(frozen=True, slots=True)
class CollectKeys:
    """Put right by the collector: it removes keys in bites, and only while the operation has no state."""

    does: str
    operation: OperationId


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Put right by removing files that an operation which has ended does not need."""

    does: str
    operation: OperationId
    folder: str
    """URL of the folder they lie in."""
    names: tuple[str, ...]
    storage: dict[str, Any]
    """The table's storage options."""
    passing: bool = False
    """Whether nothing there is needed once the operation has ended, however it did."""


Fix: TypeAlias = Change | CollectKeys | RemoveFiles


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that should not be."""

    code: str
    """Stable."""
    sentence: str
    """What is wrong."""
    remedy: str
    """What to do."""
    table: str = ""
    operation: str = ""
    subject: str = ""
    """What tells it from others of the same code, table and operation: a key, a folder."""
    persists_s: float = 0.0
    """How long it must be seen before it is reported. What is read of etcd at one revision is certain at
    once; what passes by itself (a fail-over, a runner on its way) is not."""
    fix: Fix | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is."""
        return SEVERITIES[self.code]

    @property
    def identity(self) -> tuple[str, str, str, str]:
        """Equal for the same finding in two looks."""
        return self.code, self.table, self.operation, self.subject


@dataclass(frozen=True, slots=True)
class Reported:
    """A finding that has been confirmed."""

    finding: Finding
    fixed: bool = False
    outcome: str = ""
    """What an attempt to put it right came to; empty when none was made."""


@dataclass(slots=True)
class Progress:
    """What has been looked at so far, with what was found since the last time."""

    tables: int = 0
    operations: int = 0
    reported: list[Reported] = field(default_factory=list)
    done: bool = False


def worst(findings: list[Finding]) -> list[Finding]:
    """In the order in which they deserve a look."""
    return sorted(findings, key=lambda one: (-one.severity, one.table, one.operation, one.code, one.subject))


def unreadable_record(key: bytes, why: str, *, table: str = "", operation: str = "") -> Finding:
    """A value that this version does not understand."""
    return Finding(
        code="UNREADABLE_RECORD",
        table=table,
        operation=operation,
        subject=text(key),
        sentence=f"{text(key)} cannot be read: {why}",
        remedy=UPGRADE,
    )


def key_without_lease(kv: KeyValue, *, table: str = "", operation: str = "") -> Finding:
    """A key that should go with the process that wrote it, and would not."""
    return Finding(
        code="KEY_WITHOUT_LEASE",
        table=table,
        operation=operation,
        subject=text(kv.key),
        sentence=f"{text(kv.key)} is bound to no lease: it would outlive the process that it names",
        remedy=f"{DOCTOR} removes it; its holder notices by its next compare, and others go on",
        fix=Change(f"removed {text(kv.key)}", Txn((unchanged(kv),), (Delete(kv.key),))),
    )


def text(value: bytes) -> str:
    """A key or value of etcd, to be read by people."""
    return value.decode(errors="backslashreplace")
