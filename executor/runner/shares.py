"""Which executor watches which waiting operations: the live executors of a type divide them without messages.

Each operation belongs to a share, by a hash of its name (:meth:`Keyspace.share_of`), and each executor of its
type has a piece of the shares. So only one executor is notified when an operation begins to wait. A piece is
a hint and no right: the transaction that takes an operation decides which executor runs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from distop.errors import CorruptRecord
from distop.metastore.etcd.client import Snapshot
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.etcd.watch import WatchBatch
from distop.metastore.records.keyspace import SHARES, Keyspace
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation_id import OperationId
from distop.metastore.records.record import decode


class Piece(NamedTuple):
    """Shares from ``first`` to (without) ``end``."""

    first: int
    end: int

    def __contains__(self, share: object) -> bool:
        return isinstance(share, int) and self.first <= share < self.end


NOTHING = Piece(0, 0)


def piece_of(member: str, members: Iterable[str]) -> Piece:
    """The piece of one member, given all live ones of its type."""
    ordered = sorted(members)
    if member not in ordered:
        return NOTHING
    place = ordered.index(member)
    return Piece(place * SHARES // len(ordered), (place + 1) * SHARES // len(ordered))


class Shares:
    """The pieces of one executor, updated from ``follow(keyspace.executors)``, with values."""

    def __init__(self, keyspace: Keyspace, member: str, types: Iterable[str]) -> None:
        self._keyspace, self._member = keyspace, member
        self._pieces = dict.fromkeys(types, NOTHING)
        self._executors: dict[bytes, MemberRecord] = {}

    @property
    def executors(self) -> int:
        """How many live executors serve more than one operation."""
        return len(self._executors)

    @property
    def divided(self) -> bool:
        """Whether other executors watch shares that this one may take from."""
        return self._keyspace.executor(self._member) in self._executors and len(self._executors) > 1

    @property
    def hull(self) -> Piece:
        """The smallest piece that contains those of all types. Usually all executors serve the same types."""
        pieces = [piece for piece in self._pieces.values() if piece != NOTHING]
        return Piece(min(one.first for one in pieces), max(one.end for one in pieces)) if pieces else NOTHING

    def hold(self, operation: OperationId) -> bool:
        """Whether this executor watches the operation while it waits."""
        return self._keyspace.share_of(operation) in self._pieces.get(operation.type, NOTHING)

    def apply(self, news: Snapshot | WatchBatch) -> None:
        """Apply a listing of executors, or changes to it."""
        if isinstance(news, Snapshot):
            self._executors.clear()
            for kv in news.kvs:
                self._put(kv)
        else:
            for event in news.events:
                if event.kind == "put":
                    self._put(event.kv)
                else:
                    self._executors.pop(event.kv.key, None)
        for kind in self._pieces:
            serving = (one.id for one in self._executors.values() if kind in one.types)
            self._pieces[kind] = piece_of(self._member, serving)

    def _put(self, kv: KeyValue) -> None:
        self._executors.pop(kv.key, None)
        if not kv.lease:
            return  # a live one renews a lease: nobody would look after the piece of another
        try:
            record = decode(kv.value, MemberRecord, kv.key)
        except CorruptRecord:
            return  # of a newer version: executors with free slots find the operations of its piece
        if (
            record.types and not record.only
        ):  # otherwise a sidecar, or a program that serves only its own operation
            self._executors[kv.key] = record
