"""The views of an installation in etcd: ``_views.<name>`` holds the location of a view's metadata.

Names are shared with tables: each transaction that gives a name to either compares that the other
does not have it. Folders are, too: a view claims its own as a table does. Operations of distop know no views.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyiceberg.exceptions import CommitFailedException

from distop.catalog.namespaces import no_such_view, view_exists
from distop.catalog.naming import check_target, retry_until_known
from distop.catalog.pointers import Pointer, Pointers, Swap
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.records.names import check_new_name
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import ViewRecord
from distop.metastore.tables.locations import LocationClaim, owner_of


class Views:
    """Pointers of views, and the transactions that move them."""

    def __init__(self, pointers: Pointers) -> None:
        self._pointers = pointers
        self._keyspace = pointers.keyspace

    def read(self, name: str) -> tuple[ViewRecord, Pointer]:
        """The present pointer of a view. Raises ``NoSuchViewError``."""
        base = self._pointers.read(name)
        if (record := base.view) is None:
            raise no_such_view(name)
        return record, base

    def check_free(self, name: str) -> None:
        """Raise ``ViewAlreadyExistsError`` if a view or a table has a name."""
        if kind := self._pointers.read(name).kind:
            raise view_exists(name, kind)

    def check_place(self, name: str, record: ViewRecord) -> None:
        """Raise :class:`~distop.errors.LocationInUse` if a table or a view has this location, or one above or
        below it."""
        self._pointers.check_free(self._claim(name, record))

    def create(self, name: str, record: ViewRecord, action: str) -> Swap:
        """Create a view, if its name and its location are free. ``action``: for the audit trail."""
        keys, claim = self._keyspace.table(check_new_name(name, "name")), self._claim(name, record)
        audit = self._pointers.audit(action, name)
        # A late copy finds the entry of the first: a view that was dropped since stays so.
        txn = etcd.Txn(
            (etcd.absent(keys.view), etcd.absent(keys.table), etcd.absent(audit[0].key), *claim.free()),
            (etcd.Put(keys.view, encode(record)), claim.put, *audit),
            (etcd.Get(keys.view), etcd.Get(claim.key)),
        )

        def is_own_write(read: etcd.TxnResult) -> bool:
            current, claimed = _record(read.single(0, keys.view)), owner_of(read.single(1, claim.key))
            # It may have been renamed since.
            return record.uuid in {owner.uuid for owner in (current, claimed) if owner is not None}

        return self._swap(txn, is_own_write, record.metadata_location)

    def why_lost(self, name: str, record: ViewRecord) -> Exception:
        """The obstacle to :meth:`create`. Raises :class:`~distop.errors.LocationInUse` if that is a
        location."""
        if kind := self._pointers.read(name).kind:
            return view_exists(name, kind)
        self.check_place(name, record)
        return CommitFailedException(f"View {name} was made and dropped by another process")

    def move(self, name: str, base: Pointer, record: ViewRecord) -> Swap:
        """Change the metadata of a view, and its location if the record says so, unless it has changed since
        ``base`` was read.

        Raises :class:`~distop.errors.LocationInUse`.
        """
        keys, before = self._keyspace.table(name), base.view
        assert before is not None
        audit = self._pointers.audit("alter-view", name)
        txn = etcd.Txn(
            (etcd.unchanged(base.view_kv),),
            (etcd.Put(keys.view, encode(record)), *audit),
            (etcd.Get(keys.view),),
        )
        if record.location != before.location:
            txn += self._passed_on(self._claim(name, before), self._claim(name, record))

        def is_own_write(read: etcd.TxnResult) -> bool | None:
            if (current := _record(read.single(0, keys.view))) is None:
                return None
            if current.metadata_location in (record.metadata_location, before.metadata_location):
                return current.metadata_location == record.metadata_location
            return None  # it may have been there in the meantime

        return self._swap(txn, is_own_write, record.metadata_location)

    def drop(self, name: str) -> None:
        """Remove a view; its files stay. Raises ``NoSuchViewError``."""

        def once() -> Swap:
            record, base = self.read(name)
            key, claim = base.view_kv.key, self._claim(name, record)
            audit = self._pointers.audit("drop-view", name)
            txn = etcd.Txn((etcd.unchanged(base.view_kv),), (etcd.DeleteRange(key), *audit), (etcd.Get(key),))
            txn += claim.given_up(self._pointers.existing(claim))

            def is_own_write(read: etcd.TxnResult) -> bool:
                current = _record(read.single(0, key))
                return current is None or current.uuid != record.uuid

            reached("catalog.drop.before")
            return self._pointers.settled(txn, is_own_write, lambda: reached("catalog.drop.after"))

        retry_until_known(once, f"view {name!r}", "dropped")

    def rename(self, name: str, new: str) -> None:
        """Give a view another name; its files stay where they are.

        Raises ``NoSuchViewError``, and ``TableAlreadyExistsError`` if a table or a view has the name.
        """
        target = self._keyspace.table(check_new_name(new, "name"))

        def once() -> Swap:
            record, base = self.read(name)
            check_target(self._pointers, name, new)
            key, claim = base.view_kv.key, self._claim(name, record)
            audit = self._pointers.audit("rename-view", new, reason=f"it was {name}")
            txn = etcd.Txn(
                (etcd.unchanged(base.view_kv), etcd.absent(target.view), etcd.absent(target.table)),
                (etcd.DeleteRange(key), etcd.Put(target.view, encode(record)), *audit),
                (etcd.Get(key), etcd.Get(target.view)),
            )
            txn += self._passed_on(claim, replace(claim, table=new))

            def is_own_write(read: etcd.TxnResult) -> bool | None:
                old, renamed = (
                    _record(read.single(at, key_of_view)) for at, key_of_view in enumerate((key, target.view))
                )
                if renamed is not None and renamed.uuid == record.uuid:
                    return True
                return False if old is not None and old.uuid == record.uuid else None

            reached("catalog.rename.before")
            return self._pointers.settled(txn, is_own_write, lambda: reached("catalog.rename.after"))

        retry_until_known(once, f"view {name!r}", "renamed")

    def _swap(
        self, txn: etcd.Txn, is_own_write: Callable[[etcd.TxnResult], bool | None], location: str
    ) -> Swap:
        reached("catalog.swap.before")
        return self._pointers.settled(txn, is_own_write, lambda: reached("catalog.swap.after"), location)

    def _claim(self, name: str, record: ViewRecord) -> LocationClaim:
        return LocationClaim(self._keyspace, record.location, name, record.uuid)

    def _passed_on(self, claim: LocationClaim, to: LocationClaim) -> etcd.Txn:
        existing = self._pointers.existing(claim)
        if to.key != claim.key or not claim.is_mine(existing):
            self._pointers.check_free(to)
        return claim.passed_on(existing, to)


def _record(kv: etcd.KeyValue) -> ViewRecord | None:
    return decode(kv.value, ViewRecord, kv.key) if kv.exists else None
