"""What ``distop cluster doctor`` finds, and the repair of what it finds.

A finding is a sentence about a problem, with a remedy. It is derived from records and listings alone
(:mod:`.checks`, :mod:`.backlog`, :mod:`.liveness`, :mod:`.cluster`, :mod:`.files`) and confirmed before it is
reported (:mod:`.rounds`).

It is repaired, if that is safe, by transactions that compare what was seen, so that nothing changed since is
touched. Each repair is idempotent, and safe for two concurrent doctors or a lost reply: the second one
changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from distop.commit.contract import NOT_UNDONE
from distop.errors import as_distop
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Put, Txn, unchanged
from distop.metastore.etcd.update import settle
from distop.metastore.operations.ending import collect
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode
from distop.metastore.tables.audit import audit_put
from distop.proto import distop_pb2 as pb
from distop.proto.messages import message_of

DOCTOR = "distop cluster doctor --fix"
UPGRADE = "upgrade older versions of distop; if it was not written by hand, keep the value and report it"


SEVERITIES: dict[str, pb.Severity] = {
    code: severity
    for severity, codes in {
        pb.NOTICE: """
            BACKLOG_WAITS CALL_TAKES_LONG COMPLETION_FAILS COMPLETION_HANGS JOBS_QUIET OPERATION_PAUSED
            TABLE_PAUSED WAITING_FOR_RUNNER WATERMARKS_OF_ROLLED_BACK
        """,
        pb.WARNING: """
            APPLIED_NOT_IN_HISTORY BACKLOG_BLOCKED BATCH_FAILED BATCH_REWRITTEN
            BACKLOG_INDEX_WITHOUT_TABLE BATCH_WITHOUT_FLIGHT BLOCKED_BY_NOTHING SCHEDULES_WITHOUT_TABLE
            CLAIM_WITHOUT_MEMBER CLAIM_WITHOUT_TABLE CLOCK_SKEW ENTRY_WITHOUT_TABLE
            ETCD_LOSSY_VERSION ETCD_MEMBER_AWAY ETCD_NEARLY_FULL ETCD_PERMISSIONS
            FLIGHT_WITHOUT_OPERATION HEAD_UNREADABLE HISTORY_WITHOUT_OUTCOME INDEX_WITHOUT_OPERATION
            KEYS_WITHOUT_TABLE LEADER_WITHOUT_MEMBER LEFTOVER_KEYS LOCATION_NOT_CLAIMED
            JOBS_HELD_UP MEMBER_HELD_UP MEMBER_LOST METADATA_TIMES_GO_BACK NOT_COLLECTED
            NO_EXECUTOR NO_PROGRESS PARKED PAUSE_INDEX_WITHOUT_PAUSE PAUSE_NOT_INDEXED RUNNER_WITHOUT_MEMBER
            STAGED_FILES_WITHOUT_OWNER UNKNOWN_STATE UNSUPPORTED_TYPE VERSIONS_APART
            FILES_WITHOUT_TABLE FOLDER_UNREADABLE OPERATION_BEFORE_RESTORE
        """,
        pb.ERROR: """
            BACKLOG_NOT_INDEXED SCHEDULES_NOT_INDEXED
            ENDED_OPERATION_WITH_STATE ETCD_ALARM ETCD_WITHOUT_LEADER
            HEAD_METADATA_MISSING HEAD_SNAPSHOT_UNKNOWN INSTANCE_NUMBER_BEHIND KEY_WITHOUT_LEASE
            HEAD_BEHIND_FILES HELD_BEFORE_RESTORE RESTORE_UNCLEAR
            LOCATION_SHARED NO_LEADER
            OPERATION_NOT_INDEXED OPERATION_NOT_IN_RUNOPS OPERATION_WITHOUT_ARGUMENT OPERATION_WITHOUT_STATE
            PARTITION_VALUES_ROUNDED
            PUBLISHED_SNAPSHOT_MISSING RUNOPS_WITHOUT_OPERATION TABLE_FILES_MISSING TABLE_NOT_LISTED
            UNREADABLE_RECORD WATERMARKS_BEHIND_HEAD
        """,
    }.items()
    for code in codes.split()
}
"""All codes and their severities. A notice is worth knowing, and nothing is wrong. Of what a warning is
about, something does not progress, or may be lost. An error is a broken invariant."""


@dataclass(frozen=True, slots=True)
class RepairTxn:
    """Repair by one transaction that compares what was seen: if that has changed, nothing happens."""

    does: str
    txn: Txn


@dataclass(frozen=True, slots=True)
class CollectKeys:
    """Repair by the collector: it removes keys in bounded steps, only while the operation has no state."""

    does: str
    operation: OperationId


@dataclass(frozen=True, slots=True)
class RemoveFiles:
    """Repair by removing files that an ended operation does not need."""

    does: str
    operation: OperationId
    folder: str
    """URL of their folder."""
    names: tuple[str, ...]
    storage: dict[str, Any]
    """The table's storage options."""
    passing: bool = False
    """Whether none of the files is needed after the operation's end, whatever its outcome."""


Fix: TypeAlias = RepairTxn | CollectKeys | RemoveFiles


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A broken invariant, or something that makes no progress, and what to do about it."""

    code: str
    """Stable; `SEVERITIES` lists all."""
    sentence: str
    """What is wrong."""
    remedy: str
    """What to do."""
    table: str = ""
    operation: str = ""
    subject: str = ""
    """Distinguishes it from others with the same code, table and operation: a key, a folder."""
    persists_s: float = 0.0
    """How long it must be seen before it is reported. What is read from etcd at one revision is certain at
    once; transient states (a fail-over, a runner about to start) are not."""
    fix: Fix | None = None
    mended: bool = False
    """Whether ``distop cluster doctor --after-restore --fix`` repairs it."""

    @property
    def fixable(self) -> bool:
        """Whether it can be repaired."""
        return self.fix is not None or self.mended

    @property
    def severity(self) -> pb.Severity:
        """What the code stands for, whatever the table."""
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
    """The result of an attempt to repair it; empty if there was none."""


def finding_message(reported: Reported) -> pb.Finding:
    """A finding in the form of the API."""
    finding = reported.finding
    return message_of(
        pb.Finding,
        finding,
        severity=finding.severity,
        fixable=finding.fixable,
        fixed=reported.fixed,
        outcome=reported.outcome,
    )


@dataclass(slots=True)
class Progress:
    """Progress so far, with the findings since the last report."""

    tables: int = 0
    operations: int = 0
    reported: list[Reported] = field(default_factory=list)
    done: bool = False


def worst(findings: list[Finding]) -> list[Finding]:
    """In order of importance."""
    return sorted(
        findings, key=lambda item: (-item.severity, item.table, item.operation, item.code, item.subject)
    )


def unreadable_record(key: bytes, why: str, *, table: str = "", operation: str = "") -> Finding:
    """A value that this version cannot parse."""
    return Finding(
        code="UNREADABLE_RECORD",
        table=table,
        operation=operation,
        subject=text(key),
        sentence=f"{text(key)} cannot be read: {why}",
        remedy=f"{UPGRADE}. Others skip it; "
        f"to remove it: distop cluster doctor --remove-key '{text(key)}' --fix",
    )


def key_without_lease(kv: KeyValue, *, table: str = "", operation: str = "") -> Finding:
    """A key that should expire with the process that wrote it, but would not."""
    return Finding(
        code="KEY_WITHOUT_LEASE",
        table=table,
        operation=operation,
        subject=text(kv.key),
        sentence=f"{text(kv.key)} is bound to no lease: it would outlive the process that it names",
        remedy=f"{DOCTOR} removes it; its holder notices by its next compare, and others go on",
        fix=RepairTxn(f"removed {text(kv.key)}", Txn((unchanged(kv),), (DeleteRange(kv.key),))),
    )


def text(value: bytes) -> str:
    """An etcd key or value in readable form."""
    return value.decode(errors="backslashreplace")


log = logging.getLogger(__name__)

MOVED = "nothing was done: the keys have changed meanwhile"

Remove = Callable[[RemoveFiles], int]
"""Removes the files; returns how many there were. Blocking."""


@dataclass(frozen=True)
class Fixing:
    """What fixes need, and the caller who requested them."""

    client: EtcdClient
    in_thread: Callable[..., Awaitable[Any]]
    remove: Remove
    by: str
    at: float

    def entry(self, finding: Finding, does: str) -> Put:
        """Keys of the installation's audit trail: the table may not exist."""
        target = finding.operation or finding.table
        reason = f"{finding.code}: {does}"
        return audit_put(
            self.client.keyspace, "doctor-fix", by=self.by, target=target, reason=reason, at=self.at
        )

    async def record(self, entry: Put) -> None:
        """Check before an action outside of transactions."""
        await settle(self.client, Txn(then=(entry,)), patience_s=self.client.config.timeout_s)


async def apply(fixing: Fixing, finding: Finding) -> Reported:
    """Repair a finding, if that is safe, and write an entry to the audit trail."""
    fix, client = finding.fix, fixing.client
    if fix is None:
        return Reported(finding)
    entry = fixing.entry(finding, fix.does)
    try:
        match fix:
            case RepairTxn():
                # The entry of an earlier copy, whose reply was lost.
                txn = Txn(fix.txn.compares, (*fix.txn.then, entry), (Get(entry.key),))
                settled = await settle(client, txn, patience_s=client.config.timeout_s)
                done = settled.succeeded or settled.single(0, entry.key).exists
            case CollectKeys():
                keys = client.keyspace.table(fix.operation.table)
                await fixing.record(entry)
                done = await collect(client, keys, keys.operation(fix.operation)) > 0
            case RemoveFiles():
                done = await _removed(fixing, fix, entry)
    except Exception as raised:  # any error of etcd or of a file system
        error = as_distop(raised)
        return Reported(finding, outcome=f"failed: {error.code}: {error.message}")
    fields = {"table": finding.table, "operation": finding.operation, "code": finding.code, "done": done}
    log.info("doctor_fix", extra=fields)
    return Reported(finding, fixed=done, outcome=fix.does if done else MOVED)


def needs_no_files(history: HistoryRecord) -> bool:
    """Whether an operation has ended and published nothing. Commit steps that remain in effect may have."""
    return history.outcome in ("failed", "cancelled") and not history.facts.get(NOT_UNDONE)


async def _removed(fixing: Fixing, fix: RemoveFiles, entry: Put) -> bool:
    """Only while etcd says that the operation has ended, does not need the files, and has no key left."""
    client = fixing.client
    table = client.keyspace.table(fix.operation.table)
    keys = table.operation(fix.operation)
    history, arg, state = [
        await client.get(key) for key in (table.history(fix.operation), keys.arg, keys.state)
    ]
    if not history.exists or arg.exists or state.exists:
        return False
    if not fix.passing and not needs_no_files(decode(history.value, HistoryRecord, history.key)):
        return False
    await fixing.record(entry)
    return bool(await fixing.in_thread(fix.operation.table, fixing.remove, fix) > 0)
