"""An installation as a whole: its access policy, and checks before a process registers: does this version
understand the existing keys, and is etcd not a restored backup?

``_installation`` has the layout of the keys. The first process of an installation writes it. Keys with
another layout are refused by name, before anything is read. The first page adds the secret of all pages.

``_backup`` exists during a backup, and so in an etcd restored from it. A restore raises the revision by a
lot; a process that finds the revision far ahead of the key does nothing before the tables are repaired. A
killed backup leaves the key, too: the next process removes it, long before so much is written.

``_policy`` is the access policy: one record, changed by one compare, with the audit entry in the same
transaction.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from distop.errors import DistopError, OtherLayout, Restored
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.update import settle, update
from distop.metastore.records.member import BackupRecord, InstallationRecord
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import Record, decode, encode

T = TypeVar("T")

LAYOUT = 2
"""Layout of the keys that this version uses. Layout 1 had no index of tables, and no record."""

BUMP = 1_000_000_000
"""By how much a restore must raise the revision."""

LEAP = BUMP // 2
"""The difference from which a restore is assumed."""

BACKUP_LIMIT_S = 3600.0
"""Longest time that etcd may take to send a backup."""

REQUESTS = 50
"""Changes whose calls are remembered."""


async def enter(client: EtcdClient) -> None:
    """Make sure that the installation's keys have this version's layout.

    Raises
    ------
    OtherLayout
        They have not. Nothing was written.
    Restored
        etcd was restored from a backup, and the tables are not repaired yet.
    """
    known, mark = await _look(client)
    if mark.exists:
        await _remove_old(client, mark)
    if known.exists:
        return
    space = client.keyspace
    reserved = space.prefix + b"_"
    places = (space.prefix, reserved), (prefix_end(reserved), prefix_end(space.prefix))
    # What layout 1 did not have: tables in the index, or their tombstones.
    known_here = ((start, prefix_end(start)) for start in (space.tables, space.tombstones))
    reads = (
        etcd.Get(space.installation),
        *(etcd.Get(*at, keys_only=True, limit=1) for at in (*known_here, *places)),
    )

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, None]:
        existing = read.single(0, space.installation)
        if existing.exists:
            _check(existing.value, space.installation)
            return None, None
        if not (read.got(1) or read.got(2)) and (read.got(3) or read.got(4)):
            raise _other(space.name, 1)
        record = InstallationRecord(layout=LAYOUT, at=time.time())
        return etcd.Txn(
            (etcd.absent(space.installation),), (etcd.Put(space.installation, encode(record)),)
        ), None

    await update(client, reads, decide, subject="the installation")


async def page_secret(client: EtcdClient) -> bytes:
    """The secret that the pages of an installation share: made by the first one, and never changed.

    Raises as :func:`enter`.
    """
    await enter(client)
    key, new = client.keyspace.installation, secrets.token_urlsafe(32)

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, str]:
        kv = read.single(0, key)
        record = decode(kv.value, InstallationRecord, key)
        if record.secret:
            return None, record.secret
        changed = msgspec.structs.replace(record, secret=new)
        return etcd.Txn((etcd.unchanged(kv),), (etcd.Put(key, encode(changed)),)), new

    return (await update(client, (etcd.Get(key),), decide, subject="the installation"))[0].encode()


async def is_known(client: EtcdClient) -> bool:
    """Whether the layout of the keys is recorded.

    Raises :class:`~distop.errors.OtherLayout` if it is not this version's, and
    :class:`~distop.errors.Restored`.
    """
    known, _ = await _look(client)
    return known.exists


async def _look(client: EtcdClient) -> tuple[etcd.KeyValue, etcd.KeyValue]:
    """``_installation`` and ``_backup``. Raises as :func:`is_known`."""
    space = client.keyspace
    read = await client.txn(etcd.Txn(then=(etcd.Get(space.installation), etcd.Get(space.backup))))
    known, backup = read.single(0, space.installation), read.single(1, space.backup)
    if known.exists:
        _check(known.value, known.key)
    if was_restored(backup, read.revision):
        raise Restored(f"the etcd of installation {space.name!r} was restored from a backup")
    return known, backup


async def _remove_old(client: EtcdClient, mark: etcd.KeyValue) -> None:
    """Remove the mark of a killed backup. If one still runs, because of a wrong clock, it notices, and
    fails."""
    with suppress(DistopError):  # the next process tries it, too
        if time.time() - decode(mark.value, BackupRecord, mark.key).at > 2 * BACKUP_LIMIT_S:
            await settle(client, etcd.Txn((etcd.unchanged(mark),), (etcd.DeleteRange(mark.key),)))


def was_restored(backup: etcd.KeyValue, revision: int) -> bool:
    """Whether etcd, at this revision, was restored from a backup made with this key."""
    return backup.exists and revision - backup.mod_revision > LEAP


class CheckedEtcd(SyncEtcd):
    """Checks before its first call whether this version understands the existing keys."""

    _known = False

    def run(self, call: Callable[[EtcdClient], Coroutine[Any, Any, T]]) -> T:
        """See :meth:`SyncEtcd.run`. Raises :class:`~distop.errors.OtherLayout`."""
        if not self._known:
            super().run(is_known)
            self._known = True
        return super().run(call)


def _check(value: bytes, key: bytes) -> None:
    record = decode(value, InstallationRecord, key)
    if record.layout != LAYOUT:
        raise _other(key.decode().partition(".")[0], record.layout)


def _other(name: str, layout: int) -> OtherLayout:
    return OtherLayout(
        f"the keys of installation {name!r} have layout {layout}, this version of distop has layout {LAYOUT}",
        details={"installation": name, "layout": str(layout)},
    )


class GrantRecord(Record, kw_only=True):
    """One line of the policy. Its fields are checked where it is granted."""

    who: str
    """A subject, or ``group:NAME``; ``*`` matches any text."""
    role: str
    tables: list[str]
    """Patterns of names of tables."""


class PolicyRecord(Record, kw_only=True):
    """``_policy``: all grants. If it exists, only actions that a grant allows are permitted."""

    grants: list[GrantRecord] = msgspec.field(default_factory=list)
    requests: list[str] = msgspec.field(default_factory=list)
    """Ids of the calls of its last changes."""


async def read_policy(client: EtcdClient) -> PolicyRecord | None:
    """The present policy, if there is one."""
    kv = await client.get(client.keyspace.policy)
    return decode(kv.value, PolicyRecord, kv.key) if kv.exists else None


async def change_policy(
    client: EtcdClient,
    change: Callable[[PolicyRecord | None], PolicyRecord | None],
    request: str,
    audit: etcd.Put,
) -> PolicyRecord | None:
    """IF the policy is as read AND this request has not changed it yet THEN the changed one, and the audit
    entry.

    Parameters
    ----------
    change:
        Makes the policy from the present one; the same one, and ``None``, if nothing changes. Its errors end
        the change, and nothing has been written.
    request:
        Id of this change, the same in its repetitions.

    Returns
    -------
    The policy after that.
    """
    key = client.keyspace.policy

    async def decide(read: etcd.TxnResult) -> tuple[etcd.Txn | None, PolicyRecord | None]:
        kv = read.single(0, key)
        existing = decode(kv.value, PolicyRecord, kv.key) if kv.exists else None
        if existing is not None and request in existing.requests:
            return None, existing
        changed = change(existing)
        if changed is None or changed is existing:
            return None, existing
        changed.requests = [*(existing.requests if existing is not None else ()), request][-REQUESTS:]
        reached("grant.before")
        return etcd.Txn((etcd.unchanged(kv),), (etcd.Put(key, encode(changed)), audit)), changed

    return (
        await update(
            client, (etcd.Get(key),), decide, subject="the policy", replied=lambda: reached("grant.after")
        )
    )[0]
