"""Repairs findings: transactions compare what was seen, so that nothing changed since is touched.

Each is idempotent and safe for two concurrent doctors or a lost reply: the second one changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from distop.commit.contract import NOT_UNDONE
from distop.coordinator.doctor.findings import Change, CollectKeys, Finding, RemoveFiles, Reported
from distop.errors import as_distop
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Put, Txn
from distop.metastore.etcd.update import settle
from distop.metastore.operations.ending import collect
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode
from distop.metastore.tables.audit import audit_put

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
            case Change():
                # The entry of an earlier copy, whose reply was lost.
                txn = Txn(fix.txn.compares, (*fix.txn.then, entry), (Get(entry.key),))
                settled = await settle(client, txn, patience_s=client.config.timeout_s)
                done = settled.succeeded or settled.one(0, entry.key).exists
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
