"""The audit trail: every control action, written in the transaction that executes it (checklist U2).

``<table>.auditTrail.<id>`` for actions on a table and its operations, ``_audit.<id>`` for the rest, and
``_denied.<id>`` for refused calls. An id begins with the time, so key order is time order. Each trail is
bounded by itself: its oldest entries are deleted. Denials have limits per caller besides, so that no caller
can fill their trail (:class:`Denials`).
"""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from zlib import crc32

from distop.errors import CorruptRecord, DistopError, InvalidArgument, OutcomeUnknown
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import DeleteRange, KeyValue, Put, Txn
from distop.metastore.etcd.update import settle
from distop.metastore.records.keyspace import Keyspace, TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import AuditRecord
from distop.proto.addresses import caller_of

log = logging.getLogger(__name__)

DONE, DENIED = "done", "denied"
"""The outcome of an action: it happened, or its caller had no right to it."""

KEEP = 2000
"""Entries kept per table, of the installation, and of refused calls."""

KEEP_S = 400 * 86_400.0
"""Longest time that they are kept, in seconds: a year, and the time to look back at it."""

BITE = 1000
"""Entries deleted by one transaction."""

_CURSOR = re.compile(r"(\d{1,18})(?:\.(\d{13}-[0-9a-f]{8}))?")

WINDOW_S = 60.0
EACH, MOST = 5, 60
"""Denials of one caller, and of all, that are written in a window; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Actor:
    """The present actor, in addition to the caller's name in a request."""

    subject: str = ""
    """The verified name; empty: none was verified."""
    claimed: str = ""
    """The name that the caller states."""
    address: str = ""
    """The address of the caller."""


_NOBODY = Actor()
acting: ContextVar[Actor] = ContextVar("acting", default=_NOBODY)
"""Set where a call arrives; every entry written during the call contains it."""


def audit_put(
    keys: TableKeys | Keyspace,
    action: str,
    *,
    by: str,
    target: str,
    at: float,
    reason: str = "",
    run: str = "",
    argument: str = "",
) -> Put:
    """The entry of one action, for the transaction that executes it.

    Parameters
    ----------
    keys:
        Keys of the affected table; the keyspace for actions on no table, or on one that is gone.
    by:
        The name that the caller states. A verified name replaces it, and the stated one is kept as well.
    at:
        Seconds since the Unix epoch; the key begins with it.
    """
    record = _acted(by, action=action, target=target, reason=reason, at=at)
    record.run, record.argument = run, argument
    return Put(_key(keys.audit_prefix, at, secrets.token_hex(4)), encode(record))


def denial_put(keyspace: Keyspace, action: str, *, by: str, target: str, at: float, reason: str) -> Put:
    """The entry of a refused call."""
    record = _acted(by, action=action, target=target, reason=reason, at=at)
    record.outcome = DENIED
    return Put(_key(keyspace.denials_prefix, at, secrets.token_hex(4)), encode(record))


def _acted(by: str, *, action: str, target: str, reason: str, at: float) -> AuditRecord:
    who = acting.get()
    return AuditRecord(
        action=action,
        target=target,
        by=who.subject or by,
        claimed=who.claimed if who.subject else "",
        address=who.address,
        outcome=DONE,
        reason=reason,
        at=at,
    )


def operation_puts(keys: TableKeys, arg: OperationArg, ended: HistoryRecord | None = None) -> tuple[Put, ...]:
    """The entry of an operation: written at its start, and again at its end under the same key, so that it
    takes the room of one.

    Operations of a series have none, unless they fail: thousands of them would displace the actions of
    people, and the history has a line about all of them.
    """
    if arg.series and (ended is None or ended.outcome == "success"):
        return ()
    operation = str(arg.id)
    record = AuditRecord(
        action="start",
        target=operation,
        by=arg.started_by,
        claimed=arg.claimed_by,
        address=arg.address,
        reason=_reason(arg),
        at=arg.started_at,
        run=arg.run,
        argument=arg.asked,
    )
    if ended is not None:
        record.outcome, record.error_code = ended.outcome, ended.error_code
        record.rows, record.bytes = ended.count("rows"), ended.count("bytes")
    return (Put(_key(keys.audit_prefix, arg.started_at, f"{crc32(operation.encode()):08x}"), encode(record)),)


def _reason(arg: OperationArg) -> str:
    if arg.schedule:
        return f"schedule {arg.schedule}"
    return f"follows {arg.follows}" if arg.follows else f"again: {arg.retry_of}" if arg.retry_of else ""


def _key(prefix: bytes, at: float, entry: str) -> bytes:
    # The part after the time distinguishes entries of one millisecond.
    return b"%s%s-%s" % (prefix, _time_of(at), entry.encode())


@dataclass(frozen=True, slots=True)
class TrailEntry:
    """One entry, with the id that its key ends with, and the revision that it was written at."""

    id: str
    record: AuditRecord
    revision: int
    table: str = ""
    """The table of its trail; empty: the installation's."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a trail: after one of its entries, in the order in which they were written."""

    revision: int
    id: str = ""

    def __str__(self) -> str:
        return f"{self.revision}.{self.id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        if (match := _CURSOR.fullmatch(text)) is None:
            raise InvalidArgument(
                f"{text[:50]!r} is not a position in the audit trail",
                hint="give the cursor of an entry, or 0 for all entries",
                details={"field": "after"},
            )
        return cls(int(match[1]), match[2] or "")

    def precedes(self, entry: TrailEntry) -> bool:
        """Whether an entry comes after it."""
        return (entry.revision, entry.id) > (self.revision, self.id)


def entry_of(keyspace: Keyspace, kv: KeyValue) -> TrailEntry | None:
    """The entry of a key; ``None`` if it is not the key of a trail. What cannot be read is in its place as
    ``unreadable``: it must not hide the others, nor be missing without a word."""
    trail, _, name = kv.key.rpartition(b".")
    if trail + b"." in (keyspace.audit_prefix, keyspace.denials_prefix):
        table = ""
    else:
        parts = trail[len(keyspace.prefix) :].split(b".")
        if len(parts) != 2 or parts[1] != b"auditTrail":
            return None
        try:
            table = keyspace.table_of(kv.key)
        except CorruptRecord:
            return None
    ident = name.decode(errors="backslashreplace")
    try:
        record = decode(kv.value, AuditRecord, kv.key)
    except CorruptRecord as error:
        at = int(ident[:13]) / 1000 if ident[:13].isdecimal() else 0.0
        record = AuditRecord(action="unreadable", target=table, reason=str(error), at=at)
    return TrailEntry(ident, record, kv.mod_revision, table)


_BEGINNING = Cursor(0)


async def read_audit(
    client: EtcdClient,
    *prefixes: bytes,
    limit: int,
    revision: int = 0,
    before: str = "",
    after: Cursor = _BEGINNING,
) -> tuple[list[TrailEntry], int]:
    """Up to ``limit`` entries of some trails, older than ``before`` (empty: the newest), the newest first;
    and the revision they were read at.

    ``after``: only those that were written after this position, such as an older start that has ended since.
    Raises :class:`~distop.errors.InvalidArgument` for one in the future.
    """
    entries: list[TrailEntry] = []
    for prefix in prefixes:
        end, some, more = prefix + before.encode() if before else prefix_end(prefix), list[TrailEntry](), True
        while more and len(some) < limit:  # those of the revision of the position itself are left out
            page = await client.get_range(
                prefix, end, revision=revision, limit=limit, backwards=True, written_from=after.revision
            )
            page_entries = (entry for kv in page.kvs if (entry := entry_of(client.keyspace, kv)) is not None)
            some += filter(after.precedes, page_entries)
            revision, more = revision or page.revision, page.more
            end = page.kvs[-1].key if page.kvs else end
        entries += some
    if after.revision > revision:
        raise InvalidArgument(
            f"revision {after.revision} is in the future",
            hint="give the cursor of an entry of this installation",
            details={"field": "after"},
        )
    return sorted(entries, key=lambda entry: entry.id, reverse=True)[:limit], revision


async def prune(client: EtcdClient, prefix: bytes, *, keep: int = KEEP, keep_s: float = KEEP_S) -> int:
    """Delete the entries that are older than ``keep_s`` seconds, and the oldest beyond ``keep``; return how
    many. One read of one key where there are none. Idempotent, and may be left unfinished."""
    forgotten = 0
    too_old = prefix + _time_of(time.time() - keep_s)
    while True:
        first = await client.get_range(prefix, prefix_end(prefix), limit=1, keys_only=True)
        beyond = min(first.count - keep, BITE)
        if first.kvs and first.kvs[0].key < too_old:
            end, count = too_old, 0
        elif beyond > 0:
            # As of that count: others prune, too, and what they have deleted must not be deleted twice over.
            page = await client.get_range(
                prefix, prefix_end(prefix), limit=beyond, keys_only=True, revision=first.revision
            )
            end, count = page.kvs[-1].key + b"\0", len(page.kvs)
        else:
            return forgotten
        try:
            await client.txn(Txn(then=(DeleteRange(prefix, end),)))
        except OutcomeUnknown:
            return forgotten
        forgotten += count


def _time_of(at: float) -> bytes:
    """The prefix of ids of a time. Thirteen digits of milliseconds sort as numbers until the year 2286."""
    return b"%013d" % max(0, int(at * 1000))


async def prune_softly(client: EtcdClient, prefix: bytes) -> None:
    """Call :func:`prune` after an action that has happened; an error must not make it seem to have failed."""
    try:
        await prune(client, prefix)
    except DistopError as error:
        log.warning("audit_not_pruned", extra={"prefix": prefix.decode(), "error": str(error)})


class Denials:
    """The denials of one process. Belongs to one event loop."""

    def __init__(self, client: EtcdClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._window = -WINDOW_S
        self._written = Counter[str]()
        self._left_out = 0

    async def record(self, action: str, *, by: str, target: str, reason: str = "") -> bool:
        """Write a denial to its trail; return whether it was written, and not only
        counted.

        It is written afterwards, and a failure is ignored: the denied action has not happened in any case.
        The present actor supplies the verified name and the address.
        """
        now = self._clock()
        if now - self._window >= WINDOW_S:
            self._window = now
            self._written.clear()
        who = acting.get()
        caller = who.subject or caller_of(who.address)
        if self._written[caller] >= EACH or self._written.total() >= MOST:
            self._left_out += 1
            return False
        self._written[caller] += 1
        left_out, self._left_out = self._left_out, 0
        if left_out:
            reason = f"{reason} ({left_out:,} earlier denials are omitted)".lstrip()
        keyspace = self._client.keyspace
        entry = denial_put(keyspace, action, by=by, target=target, reason=reason, at=time.time())
        try:
            await settle(self._client, Txn(then=(entry,)), patience_s=self._client.config.timeout_s)
        except DistopError as error:
            self._left_out += left_out + 1
            log.warning("denial_not_recorded", extra={"action": action, "error": str(error)})
            return False
        await prune_softly(self._client, keyspace.denials_prefix)
        return True
