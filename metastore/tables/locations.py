"""Claims to locations: each folder belongs to one table, and so does everything in it (checklist S2).

``_locations.<place>`` is written in the transaction that creates the table. That compares that there is no
claim to this place, to any place above it, or in the range of all places in it: of two concurrently created
tables that would share or nest folders, one wins. It costs a compare for each folder above, however many
tables there are. The claim is removed with the table, after its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distop.errors import CorruptRecord, LocationInUse
from distop.metastore.etcd import txn as etcd
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.locations import place_of, places_above
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import LocationRecord, TableRecord


@dataclass(frozen=True)
class LocationClaim:
    """The claim of one table.

    Parameters
    ----------
    location:
        In canonical form.
    uuid:
        Of the table.
    """

    keyspace: Keyspace
    location: str
    table: str
    uuid: str

    @classmethod
    def of(cls, keyspace: Keyspace, record: TableRecord) -> LocationClaim:
        """The claim of a table as it is recorded."""
        return cls(keyspace, record.location, record.name, record.uuid)

    @property
    def key(self) -> bytes:
        return self.keyspace.location(place_of(self.location))

    @property
    def put(self) -> etcd.Put:
        return etcd.Put(self.key, encode(LocationRecord(table=self.table, uuid=self.uuid)))

    @property
    def _above(self) -> list[bytes]:
        return [self.keyspace.location(folder) for folder in places_above(place_of(self.location))]

    @property
    def _inside(self) -> tuple[bytes, bytes]:
        start = self.key + b"/"
        return start, prefix_end(start)

    def free(self) -> tuple[etcd.Compare, ...]:
        """No table has claimed the place, one that contains it, or one in it."""
        return (
            etcd.absent(self.key),
            etcd.absent_range(*self._inside),
            *(etcd.absent(key) for key in self._above),
        )

    def reads(self) -> tuple[etcd.Get, ...]:
        """The keys and ranges to read before :meth:`check`."""
        return etcd.Get(self.key), etcd.Get(*self._inside, limit=1), *(etcd.Get(key) for key in self._above)

    def rivals(self, read: Sequence[list[etcd.KeyValue]]) -> list[etcd.KeyValue]:
        """The conflicting claims in the result of :meth:`reads`."""
        return [kv for kvs in read for kv in kvs if not (kv.key == self.key and self.is_mine(kv))]

    def check(self, read: Sequence[list[etcd.KeyValue]]) -> None:
        """Raises :class:`~distop.errors.LocationInUse` with the name of the conflicting table."""
        for kv in self.rivals(read):
            folder = kv.key[len(self.keyspace.locations) :].decode(errors="backslashreplace")
            other = owner_of(kv)
            name = repr(other.table) if other is not None else "that cannot be read"
            how = "is" if kv.key == self.key else "lies in" if kv.key < self.key else "has in it"
            raise LocationInUse(
                f"location {self.location} {how} the folder of table {name}",
                hint="give each table a folder of its own; if that table is being dropped, repeat the drop",
                details={"field": "location", "table": other.table if other else "", "claim": folder},
            )

    def is_mine(self, kv: etcd.KeyValue) -> bool:
        """Whether the record at :attr:`key` is the claim of this table."""
        other = owner_of(kv)
        return other is not None and (other.table, other.uuid) == (self.table, self.uuid)

    def given_up(self, existing: etcd.KeyValue) -> etcd.Txn:
        """The removal of the claim, if it is the one that was read; nothing if it is not this table's."""
        if not self.is_mine(existing):
            return etcd.Txn()
        return etcd.Txn((etcd.unchanged(existing),), (etcd.DeleteRange(self.key),))

    def passed_on(self, existing: etcd.KeyValue, to: LocationClaim) -> etcd.Txn:
        """The writes that replace this claim by another one, for a table that is renamed or moves: the new
        place may not contain the present one, or be in it."""
        if not self.is_mine(existing):
            return etcd.Txn(to.free(), (to.put,))
        if to.key == self.key:
            return etcd.Txn((etcd.unchanged(existing),), (to.put,))
        return etcd.Txn((etcd.unchanged(existing), *to.free()), (etcd.DeleteRange(self.key), to.put))


def owner_of(kv: etcd.KeyValue) -> LocationRecord | None:
    """The owner of a place; ``None`` if it has none, or the claim cannot be read."""
    try:
        return decode(kv.value, LocationRecord, kv.key) if kv.exists else None
    except CorruptRecord:
        return None
