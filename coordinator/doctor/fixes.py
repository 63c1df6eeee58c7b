"""Putting findings right: transactions that compare what was seen, so that what has moved is left alone.

Each may be done twice, by two doctors at once, or with its reply lost: the second finds nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor

from distop.coordinator.doctor.findings import Change, CollectKeys, Finding, RemoveFiles, Reported
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import settle
from distop.metastore.operations.ending import collect
from distop.metastore.records.operation import HistoryRecord
from distop.metastore.records.record import decode

log = logging.getLogger(__name__)

MOVED = "nothing was done: it has changed meanwhile"

Remove = Callable[[RemoveFiles], int]
"""Removes the files; how many there were. Blocking."""


async def apply(client: EtcdClient, finding: Finding, threads: Executor, remove: Remove) -> Reported:
    """Put a finding right, if that can be done safely."""
    fix = finding.fix
    if fix is None:
        return Reported(finding)
    try:
        match fix:
            case Change():
                done = (await settle(client, fix.txn, patience_s=client.config.timeout_s)).succeeded
            case CollectKeys():
                keys = client.keyspace.table(fix.operation.table)
                done = await collect(client, keys, keys.operation(fix.operation)) > 0
            case RemoveFiles():
                done = await _removed(client, fix, threads, remove)
    except DistopError as error:
        return Reported(finding, outcome=f"could not be done: {error.code}: {error.message}")
    fields = {"table": finding.table, "operation": finding.operation, "code": finding.code, "done": done}
    log.info("doctor_fix", extra=fields)
    return Reported(finding, fixed=done, outcome=fix.does if done else MOVED)


async def _removed(client: EtcdClient, fix: RemoveFiles, threads: Executor, remove: Remove) -> bool:
    """Only while etcd says that the operation has ended without a need for them, and has no key of it."""
    table = client.keyspace.table(fix.operation.table)
    keys = table.operation(fix.operation)
    history, arg, state = [
        await client.get(key) for key in (table.history(fix.operation), keys.arg, keys.state)
    ]
    if not history.exists or arg.exists or state.exists:
        return False
    outcome = decode(history.value, HistoryRecord, history.key).outcome
    if outcome not in ("failed", "cancelled") and not fix.passing:
        return False
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads, remove, fix) > 0
