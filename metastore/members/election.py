"""Leadership of one table: campaign, hold, resign.

The names are those of etcd's own ``concurrency`` package; two things differ. The fence is public: an
:class:`Epoch` is a compare for the caller's own transaction, not a boolean. And there is no queue of waiters:
the member that should lead (see the coordinator's placement) tries, and tries again when the key is gone, so
no member can hold a leadership that it got when its session was already dead (etcd issue
19597).
"""

from __future__ import annotations

from dataclasses import dataclass

from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.update import settle
from distop.metastore.members.lease import LeaseSession
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.record import encode


@dataclass(frozen=True, slots=True)
class Epoch:
    """One leadership: the leader's key, and the revision that created it. Epochs of a table only grow."""

    key: bytes
    revision: int

    @property
    def lane(self) -> bytes:
        """The prefix of all keys of the table: see :class:`~distop.metastore.etcd.txn.Txn`."""
        return self.key.rpartition(b".")[0] + b"."

    def held(self) -> etcd.Compare:
        """The fence: holds in etcd exactly as long as this leadership does."""
        return etcd.created_at(self.key, self.revision)


async def campaign(
    client: EtcdClient, keys: TableKeys, session: LeaseSession, leader: LeaderRecord
) -> Epoch | None:
    """Try to become the leader of a table; ``None`` if another member is.

    The key is bound to the session's lease, which identifies its owner: a repetition after a lost reply
    recognises its own key. Campaigns for many tables share requests.
    """
    # The key goes with the lease, and never comes back with the same create revision: nor can a write of this
    # epoch happen after that, however long its request was on its way.
    txn = etcd.Txn(
        (etcd.absent(keys.coordinator),),
        (etcd.Put(keys.coordinator, encode(leader), session.lease_id),),
        (etcd.Get(keys.coordinator),),
        lane=keys.prefix,
    )

    def alive(_: bool) -> etcd.Txn:
        session.check()
        return txn

    reached("lead.before")
    result = await settle(client, alive, replied=lambda: reached("lead.after"))
    if result.succeeded:
        return Epoch(keys.coordinator, result.revision)
    existing = result.single(0, keys.coordinator)
    return Epoch(keys.coordinator, existing.create_revision) if existing.lease == session.lease_id else None


async def resign(client: EtcdClient, epoch: Epoch) -> None:
    """Resign a leadership; does nothing if it is already lost.

    Raises :class:`~distop.errors.Unavailable` when the key may still exist. Then it must be retried: no other
    member can lead before.
    """
    reached("resign.before")
    txn = etcd.Txn((epoch.held(),), (etcd.DeleteRange(epoch.key),), lane=epoch.lane)
    await settle(client, txn, replied=lambda: reached("resign.after"))
