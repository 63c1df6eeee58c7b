"""The audit trail: every control action, written in the transaction that does it (checklist U2).

``<table>.auditTrail.<id>`` for what is done to a table and its operations, ``_audit.<id>`` for the rest. An
id begins with the time, so key order is time order. The trail is bounded: the oldest entries are forgotten.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import dataclass

from distop.errors import DistopError, OutcomeUnknown
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Delete, Put, Txn
from distop.metastore.records.keyspace import Keyspace, TableKeys, prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import AuditRecord

log = logging.getLogger(__name__)

KEEP = 2000
"""Entries kept per table, and of the installation."""

BITE = 1000
"""Entries forgotten by one transaction."""


def audit_put(
    keys: TableKeys | Keyspace,
    action: str,
    *,
    by: str,
    target: str,
    at: float,
    reason: str = "",
    request_id: str = "",
    argument: str = "",
) -> Put:
    """The entry of one action, to be put into the transaction that does it.

    Parameters
    ----------
    keys:
        Of the table it is done to; the keyspace for what concerns no table, or one that is gone.
    at:
        Seconds since the Unix epoch; the key begins with it.
    """
    record = AuditRecord(
        action=action,
        target=target,
        by=by,
        reason=reason,
        at=at,
        request_id=request_id,
        argument=argument,
    )
    # Thirteen digits of milliseconds sort as numbers do until the year 2286; the rest tells apart what
    # happens within one.
    entry = f"{int(at * 1000):013d}-{secrets.token_hex(4)}"
    return Put(keys.audit_prefix + entry.encode(), encode(record))


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, with the id that its key ends with."""

    id: str
    record: AuditRecord


async def read_audit(
    client: EtcdClient, prefix: bytes, *, limit: int, revision: int = 0, before: str = ""
) -> tuple[list[Entry], int]:
    """Up to ``limit`` entries older than ``before`` (empty: the newest), the newest first; and the revision
    they were read at."""
    end = prefix + before.encode() if before else prefix_end(prefix)
    page = await client.get_range(prefix, end, revision=revision, limit=limit, backwards=True)
    found = ((kv.key[len(prefix) :].decode(), decode(kv.value, AuditRecord, kv.key)) for kv in page.kvs)
    entries = [Entry(name, record) for name, record in found]
    return entries, revision or page.revision


async def prune(client: EtcdClient, prefix: bytes, *, keep: int = KEEP) -> int:
    """Forget the oldest entries beyond ``keep``; returns how many. Safe to repeat and to leave unfinished."""
    listing = await client.scan(prefix, keys_only=True)
    victims = [kv.key for kv in listing.kvs[: max(0, len(listing.kvs) - keep)]]
    for first in range(0, len(victims), BITE):
        bite = victims[first : first + BITE]
        try:
            await client.txn(Txn(then=(Delete(bite[0], bite[-1] + b"\0"),)))
        except OutcomeUnknown:
            continue
    return len(victims)


async def prune_softly(client: EtcdClient, prefix: bytes) -> None:
    """:func:`prune` after an action that has happened, and that must not seem to have failed."""
    try:
        await prune(client, prefix)
    except DistopError as error:
        log.warning("audit_not_pruned", extra={"prefix": prefix.decode(), "error": str(error)})
