"""The parts of the pyiceberg catalog that concern namespaces, of any number of levels, and views: SQL that
engines store under a name.

A view's metadata is a JSON file in its folder, which is never changed; etcd has its location. A file that
was certainly not published is removed. If the outcome is unknown, it stays.

Names are shared with tables: each transaction that gives a name to either compares that the other
does not have it. Folders are, too: a view claims its own as a table does. Operations of distop know no views.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import LOCATION, PropertiesUpdateSummary
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view import View
from pyiceberg.view.metadata import ViewMetadata, ViewVersion

from distop.catalog import namespaces, view_metadata
from distop.catalog.errors import for_pyiceberg
from distop.catalog.namespaces import MAX_TRIES, check_target, no_such_view, retry_until_known, view_exists
from distop.catalog.places import Folder, place_of_namespace
from distop.catalog.pointers import FOREIGN, Pointer, Pointers, Swap
from distop.errors import CorruptRecord, DistopError, InvalidArgument
from distop.lake.layout.metadata import read_view_metadata
from distop.lake.pyiceberg_private import StagingCatalog
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.records.names import check_new_name
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord, ViewRecord
from distop.metastore.tables.locations import LocationClaim, canonical, owner_of

if TYPE_CHECKING:
    import pyarrow as pa


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


@for_pyiceberg
class NamespaceCatalog(StagingCatalog):
    """Namespaces in etcd."""

    _pointers: Pointers
    _namespaces: namespaces.Namespaces

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Create it; raises ``NamespaceAlreadyExistsError``."""
        name = namespaces.namespace_name(namespace)
        if not self._namespaces.create(name, dict(properties)):
            raise iceberg_errors.NamespaceAlreadyExistsError(f"Namespace {name} already exists")

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Raises ``NoSuchNamespaceError`` or ``NamespaceNotEmptyError``."""
        name = self._existing(namespace)
        if not self._namespaces.is_empty(name):
            raise iceberg_errors.NamespaceNotEmptyError(f"Namespace {name} is not empty")
        if not self._namespaces.drop(name) and name == namespaces.DEFAULT:
            raise iceberg_errors.NamespaceNotEmptyError(f"Namespace {name} is always there")

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """The namespaces right below one; the top-level ones if none is given."""
        below = self._existing(namespace) if namespace else ""
        parent = namespaces.namespace_identifier(below) if below else ()
        known = {
            (namespaces.DEFAULT,),
            *(namespaces.namespace_identifier(name) for name in self._namespaces.below(below)),
        }
        known |= {namespaces.table_identifier(name)[:-1] for name in self._pointers.names(below)}
        depth = len(parent) + 1
        return sorted({path[:depth] for path in known if len(path) >= depth and path[: depth - 1] == parent})

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Whether it was created, or is not empty."""
        try:
            return self._namespaces.exists(namespaces.namespace_name(namespace))
        except iceberg_errors.NoSuchNamespaceError:
            return False

    def namespace_with_place(self, namespace: str | Identifier) -> Properties:
        """Its properties, and as ``location`` where its tables are made. Raises ``NoSuchNamespaceError``."""
        name = self._existing(namespace)
        own = self._namespaces.properties(name)
        location = place_of_namespace(name, self.properties, own)
        return {**own, LOCATION: location} if location else own

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Its properties; raises ``NoSuchNamespaceError``."""
        return self._namespaces.properties(self._existing(namespace))

    def update_namespace_properties(
        self,
        namespace: str | Identifier,
        removals: set[str] | None = None,
        updates: Properties = EMPTY_DICT,
    ) -> PropertiesUpdateSummary:
        """Raises ``NoSuchNamespaceError``, or ``ValueError`` if a property is both removed and set."""
        name = self._existing(namespace)
        summaries: list[PropertiesUpdateSummary] = []

        def change(properties: dict[str, str]) -> dict[str, str]:
            summary, changed = self.changed_properties(properties, removals, updates)
            summaries.append(summary)
            return changed

        self._namespaces.update(name, change)
        return summaries[-1]

    def _existing(self, namespace: str | Identifier) -> str:
        return self._there(namespaces.namespace_name(namespace))

    def _check_namespace_of(self, identifier: str | Identifier) -> None:
        self._existing(namespaces.table_identifier(namespaces.table_name(identifier))[:-1])

    def _there(self, name: str) -> str:
        if not self._namespaces.exists(name):
            raise iceberg_errors.NoSuchNamespaceError(f"Namespace does not exist: {name}")
        return name

    @staticmethod
    def identifier_to_database_and_table(
        identifier: str | Identifier,
        err: type[ValueError]
        | type[iceberg_errors.NoSuchTableError]
        | type[iceberg_errors.NoSuchNamespaceError] = ValueError,
    ) -> tuple[str, str]:
        """``(namespace, table)`` of an identifier; the namespace by its name, see :func:`namespace_name`."""
        full = namespaces.table_identifier(namespaces.table_name(identifier))
        return namespaces.namespace_name(full[:-1]), full[-1]


class StoredView(View):
    """A view, and the location of its metadata."""

    def __init__(self, name: str, metadata: ViewMetadata, metadata_location: str) -> None:
        super().__init__(namespaces.table_identifier(name), metadata)
        self.metadata_location = metadata_location


@for_pyiceberg
class ViewCatalog(NamespaceCatalog):
    """Views in etcd."""

    @property
    def _views(self) -> Views:
        return Views(self._pointers)

    def create_view(
        self,
        identifier: str | Identifier,
        schema: Schema | pa.Schema,
        view_version: ViewVersion,
        location: str | None = None,
        properties: Properties = EMPTY_DICT,
    ) -> StoredView:
        """Raises ``ViewAlreadyExistsError``, also for the name of a table, or ``NoSuchNamespaceError``."""
        name = namespaces.view_name(identifier)
        self._check_namespace_of(identifier)
        self._views.check_free(name)
        resolved = self.location_of_new(location, *self.identifier_to_database_and_table(identifier))
        metadata = view_metadata.new_view(resolved, self.schema_of(schema), view_version, properties)
        return self._made(name, metadata, "create-view")

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> StoredView:
        """Register a view that exists as a file. Raises as :meth:`create_view`."""
        name = namespaces.view_name(identifier)
        self._check_namespace_of(identifier)
        self._views.check_free(name)
        try:
            metadata = read_view_metadata(self.file_io(metadata_location), metadata_location)
        except (CorruptRecord, FileNotFoundError) as error:
            raise InvalidArgument(str(error), details={"field": "metadata-location"}) from error
        view_metadata.check_view(metadata)
        return self._made(name, metadata, "register-view", metadata_location)

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        """The views directly in a namespace. Raises ``NoSuchNamespaceError``."""
        return list(self.views_after(namespace))

    def views_after(self, namespace: str | Identifier, last: Identifier = ()) -> Iterator[Identifier]:
        """The views of :meth:`list_views` behind ``last``, in a stable order; read on demand. Raises
        ``NoSuchNamespaceError``."""
        name = self._existing(namespace)
        wanted = namespaces.namespace_identifier(name)
        names = self._pointers.views(
            "" if name == namespaces.DEFAULT else name, namespaces.view_name(last) if last else ""
        )
        return (view for view in map(namespaces.table_identifier, names) if view[:-1] == wanted)

    def view_exists(self, identifier: str | Identifier) -> bool:
        """Whether there is one."""
        try:
            self.view_metadata_location(identifier)
        except iceberg_errors.NoSuchViewError:
            return False
        return True

    def view_metadata_location(self, identifier: str | Identifier) -> str:
        """The location of the present metadata of a view. Raises ``NoSuchViewError``."""
        return self._views.read(namespaces.view_name(identifier))[0].metadata_location

    def load_view(self, identifier: str | Identifier) -> StoredView:
        """The view as it is now. Raises ``NoSuchViewError``."""
        location = self.view_metadata_location(identifier)
        return StoredView(namespaces.view_name(identifier), self._read(location), location)

    def drop_view(self, identifier: str | Identifier) -> None:
        """Remove a view; its files stay. Raises ``NoSuchViewError``."""
        self._views.drop(namespaces.view_name(identifier))

    def rename_view(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> None:
        """Give a view another name.

        Raises ``NoSuchViewError``, ``NoSuchNamespaceError``, and ``TableAlreadyExistsError`` if a table or a
        view has that name.
        """
        old, new = namespaces.view_name(from_identifier), namespaces.view_name(to_identifier)
        self._check_namespace_of(to_identifier)
        self._views.rename(old, new)

    def commit_view(
        self,
        identifier: str | Identifier,
        requirements: Sequence[view_metadata.ViewRequirement],
        updates: Sequence[view_metadata.ViewUpdate],
    ) -> StoredView:
        """Change a view. Concurrent changes stay: the updates are applied to their result.

        Raises
        ------
        CommitFailedException
            A requirement does not hold, or the view keeps changing; nothing has happened.
        CommitStateUnknownException
            The outcome is unknown; no file was removed.
        NoSuchViewError
            There is no such view.
        """
        name = namespaces.view_name(identifier)
        for _ in range(MAX_TRIES):
            record, base = self._views.read(name)
            before = self._read(record.metadata_location)
            after = view_metadata.view_after(before, requirements, updates, int(time.time() * 1000))
            if after is before:
                return StoredView(name, before, record.metadata_location)
            if after.location != before.location:
                record.location = canonical(after.location)
                self._check_place(name, record)
            record.metadata_location = written = self._written(after)
            if self._moved(name, written, partial(self._views.move, name, base, record)):
                return StoredView(name, after, written)
        raise iceberg_errors.CommitFailedException(f"View {name} is changed all the time, it was not changed")

    def _made(self, name: str, metadata: ViewMetadata, action: str, given: str = "") -> StoredView:
        """Create a view. ``given``: the location of its metadata, if that exists already."""
        record = ViewRecord(
            location=canonical(metadata.location),
            metadata_location=given,
            uuid=str(uuid4()),
            created_at=time.time(),
            created_by=FOREIGN,
        )
        self._check_place(name, record)
        written = "" if given else self._written(metadata)
        record.metadata_location = given or written
        if not self._moved(name, written, partial(self._views.create, name, record, action)):
            raise self._views.why_lost(name, record)
        return StoredView(name, metadata, record.metadata_location)

    def _check_place(self, name: str, record: ViewRecord) -> None:
        """Raise :class:`~distop.errors.LocationInUse` if another table or view has its location, here
        or in another installation."""
        self._views.check_place(name, record)
        Folder(TableRecord(name=name, location=record.location, uuid=record.uuid), self.properties).is_free()

    def _moved(self, name: str, written: str, send: Callable[[], Swap]) -> bool:
        """Whether a pointer was moved; if certainly not, the files written for it are removed."""
        try:
            outcome = send()
        except DistopError:
            self._remove(written)
            raise
        if outcome is Swap.UNKNOWN:
            raise iceberg_errors.CommitStateUnknownException(
                f"Whether view {name} has the new metadata is not known"
            )
        if outcome is Swap.LOST:
            self._remove(written)
        return outcome is Swap.DONE

    def _read(self, location: str) -> ViewMetadata:
        return read_view_metadata(self.file_io(location), location)

    def _written(self, metadata: ViewMetadata) -> str:
        places = load_location_provider(metadata.location, metadata.properties)
        location: str = places.new_table_metadata_file_location(metadata.current_version_id)
        try:
            with self.file_io(location).new_output(location).create() as stream:
                stream.write(view_metadata.encoded_view(metadata))
        except Exception:
            self._remove(location)
            raise
        return location

    def _remove(self, written: str) -> None:
        with suppress(Exception):
            if written:
                self.file_io(written).delete(written)
