"""A pyiceberg catalog whose tables are distop's: the pointer of table ``t`` is ``distOp.t.head`` in etcd.

    load_catalog("distop", **{"py-catalog-impl": "distop.commit.catalog.catalog.EtcdCatalog",
                              "etcd.endpoints": "127.0.0.1:2379"})

What a program writes through it and what operations publish move the same head, each by a transaction that
compares what it was built on: neither loses the other's rows (P6, P7).
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from pyiceberg.catalog import PropertiesUpdateSummary
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    TableAlreadyExistsError,
)
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties
from pyiceberg.view import View

from distop.commit.catalog.errors import for_pyiceberg
from distop.commit.catalog.namespaces import DEFAULT, Namespaces, namespace_name, table_identifier, table_name
from distop.commit.catalog.options import etcd_config
from distop.commit.catalog.places import Folder, new_location
from distop.commit.catalog.pointers import FOREIGN, Pointer, Pointers, Swap
from distop.commit.cleanup.reachable import files_of_table
from distop.commit.files.storage import StorageOptions, storage_of
from distop.commit.layout.model import file_io
from distop.commit.pyiceberg_private import StagingCatalog
from distop.errors import DistopError, OutcomeUnknown
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.records.locations import canonical
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.locations import Claim
from distop.proto.identity import default_identity

MAX_TRIES = 10
"""How often dropping or renaming a table is tried again when the table moves meanwhile."""


@for_pyiceberg
class EtcdCatalog(StagingCatalog):
    """Tables and namespaces in etcd.

    Properties: ``etcd.endpoints`` or ``uri`` (``host:port``, several separated by commas), ``etcd.prefix``,
    ``etcd.user``, ``etcd.password``, ``etcd.password-file``, ``etcd.ca-cert``, ``etcd.cert``, ``etcd.key``,
    ``etcd.timeout`` (seconds), which lie over the environment variables of distop; ``warehouse`` (where new
    tables go that name no location), and those of pyiceberg's ``FileIO``.

    Methods raise pyiceberg's exceptions. Where etcd does not answer, an operation is in the way, or a name
    cannot be, they raise errors of :mod:`distop.errors` that are pyiceberg's, too.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._etcd = SyncEtcd(etcd_config(self.properties))
        self._pointers = Pointers(self._etcd, default_identity())
        self._namespaces = Namespaces(self._pointers)
        self._storage: dict[str, StorageOptions] = {}
        """Storage options of the tables seen so far that have some, by location."""

    def close(self) -> None:
        """Close the connection to etcd."""
        self._etcd.close()

    # -- tables ----------------------------------------------------------------------------------------

    def create_table(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> Table:
        """Create an empty table. Raises ``TableAlreadyExistsError`` or ``NoSuchNamespaceError``."""
        staged = self.stage_new(identifier, schema, location, partition_spec, sort_order, dict(properties))
        self._check_namespace_of(identifier)
        self._create(identifier, staged)
        return self.load_table(identifier)

    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> Table:
        """Take in a table that exists as files. Raises as :meth:`create_table`."""
        if overwrite:
            raise NotImplementedError("overwriting a registered table is not supported")
        self._check_namespace_of(identifier)
        io = self.file_io(metadata_location)
        metadata = FromInputFile.table_metadata(io.new_input(metadata_location))
        full = table_identifier(table_name(identifier))
        self._create(identifier, StagedTable(full, metadata, metadata_location, io, self), written=True)
        return self.load_table(identifier)

    def load_table(self, identifier: str | Identifier) -> Table:
        """The table as it is now. Raises ``NoSuchTableError``."""
        return self._load(identifier)[0]

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """The tables right in a namespace that can be loaded. Raises ``NoSuchNamespaceError``."""
        name = self._existing(namespace)
        wanted = tuple(name.split("."))
        found = self._pointers.tables("" if name == DEFAULT else name)
        names = (table for table in found if table_identifier(table)[:-1] == wanted)
        return [table_identifier(table) for table in self._pointers.published(names)]

    def drop_table(self, identifier: str | Identifier) -> None:
        """Forget a table, with its watermarks and history; its files stay (``purge_table`` removes them).

        Raises ``NoSuchTableError``, and :class:`~distop.errors.IncompatibleOperation` while an operation
        runs on it.
        """
        name = table_name(identifier)
        for _ in range(MAX_TRIES):
            pointer = self._pointers.read(name)
            if pointer.record is None:
                raise NoSuchTableError(f"Table does not exist: {'.'.join(table_identifier(name))}")
            outcome = self._pointers.drop(pointer)
            if outcome is Swap.DONE:
                Folder(pointer.record, self.properties).give_up()
                return
            if outcome is Swap.UNKNOWN:
                raise OutcomeUnknown(f"whether table {name!r} was dropped is not known")
        raise CommitFailedException(f"Table {name} is written to all the time, it was not dropped")

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drop a table, and remove the files that its metadata names: those in its folder, no others.

        Raises as :meth:`drop_table`.
        """
        table, pointer = self._load(identifier)
        assert pointer.record is not None
        found = files_of_table(table.metadata, table.metadata_location, table.io)
        self.drop_table(identifier)
        Folder(pointer.record, self.properties).remove(found)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Give a table another name; its files stay where they are.

        Raises ``NoSuchTableError``, ``TableAlreadyExistsError``, ``NoSuchNamespaceError``, and
        :class:`~distop.errors.IncompatibleOperation` while an operation runs on it.
        """
        old, new = table_name(from_identifier), table_name(to_identifier)
        self._check_namespace_of(to_identifier)
        for _ in range(MAX_TRIES):
            pointer = self._pointers.read(old)
            record = pointer.record
            if record is None:
                raise NoSuchTableError(f"Table does not exist: {'.'.join(table_identifier(old))}")
            if self._pointers.read(new).record is not None:
                raise TableAlreadyExistsError(f"Table {'.'.join(table_identifier(new))} already exists")
            record.name = new
            outcome = self._pointers.rename(pointer, record)
            if outcome is Swap.DONE:
                return self.load_table(to_identifier)
            if outcome is Swap.UNKNOWN:
                raise OutcomeUnknown(f"whether table {old!r} was renamed is not known")
        raise CommitFailedException(f"Table {old} is written to all the time, it was not renamed")

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Move a table to its next metadata, if the requirements hold and nobody was faster.

        Raises
        ------
        CommitFailedException
            Somebody was faster, nothing has happened: refresh and try again.
        CommitStateUnknownException
            Nobody knows whether it has happened; no file was removed.
        """
        identifier = table.name()
        current: Table | None
        try:
            current, pointer = self._load(identifier)
        except NoSuchTableError:
            current, pointer = None, self._pointers.read(table_name(identifier))
        staged = self.stage_update(current, identifier, requirements, updates)
        metadata, location = staged.metadata, staged.metadata_location
        if current is not None and metadata == current.metadata:
            return _response(metadata, current.metadata_location)
        if current is None:
            self._check_namespace_of(identifier)
            self._create(identifier, staged)
        else:
            self._swap(current, pointer, staged)
        return _response(metadata, location)

    def _load(self, identifier: str | Identifier) -> tuple[Table, Pointer]:
        name = table_name(identifier)
        pointer = self._pointers.read(name)
        head = pointer.head
        full = table_identifier(name)
        if pointer.record is None:
            raise NoSuchTableError(f"Table does not exist: {'.'.join(full)}")
        if pointer.record.format != "iceberg":
            raise NoSuchTableError(f"Table {'.'.join(full)} is no Iceberg table but {pointer.record.format}")
        if head is None:
            raise NoSuchTableError(
                f"Table {'.'.join(full)} exists in distop, but no operation has published anything to it yet"
            )
        if storage := storage_of(pointer.record):
            self._storage[pointer.record.location] = storage
        io = self.file_io(head.metadata_location)
        metadata = FromInputFile.table_metadata(io.new_input(head.metadata_location))
        table = Table(
            identifier=full,
            metadata=metadata,
            metadata_location=head.metadata_location,
            io=self.file_io(head.metadata_location, metadata.properties),
            catalog=self,
        )
        return table, pointer

    def file_io(self, location: str, properties: Properties = EMPTY_DICT) -> FileIO:
        """See :class:`~distop.commit.pyiceberg_private.StagingCatalog`: with the table's storage options."""
        storage = next((self._storage[at] for at in self._storage if location.startswith(f"{at}/")), None)
        return file_io(location, {**self.properties, **properties}, storage)

    def _create(self, identifier: str | Identifier, staged: StagedTable, *, written: bool = False) -> None:
        """Put record and head of a new table, and its metadata file unless that is ``written``; it is removed
        again if the name or the location is taken."""
        name, metadata = table_name(identifier), staged.metadata
        record = TableRecord(
            name=name,
            location=canonical(metadata.location),
            created_at=time.time(),
            created_by=FOREIGN,
            # Not the table's own: it must tell this attempt from another one to register the same files.
            uuid=str(uuid4()),
        )
        exists = TableAlreadyExistsError(f"Table {'.'.join(table_identifier(name))} already exists")
        if not self._pointers.check_new(record):
            raise exists
        folder = Folder(record, self.properties)
        own = folder.is_free() and not written
        if not written:
            self.write_metadata(metadata, staged.io, staged.metadata_location)
        try:
            action = "register-table" if written else "create-table"
            outcome = self._pointers.create(record, _foreign_head(metadata, staged.metadata_location), action)
        except DistopError:
            if not written:
                _remove(staged.io, staged.metadata_location)
            raise
        if outcome is Swap.UNKNOWN:
            raise CommitStateUnknownException(f"Whether table {name} was created is not known")
        if outcome is Swap.LOST:
            if not written:
                _remove(staged.io, staged.metadata_location)
            raise exists
        if own:
            folder.mark()

    def location_of_new(self, location: str | None, namespace: str, table: str) -> str:
        """See :class:`~distop.commit.pyiceberg_private.StagingCatalog`."""
        return new_location(location, namespace, table, self.properties, self.load_namespace_properties)

    def _swap(self, current: Table, pointer: Pointer, staged: StagedTable) -> None:
        record, own = pointer.record, False
        if record is not None and record.location != (moved := canonical(staged.metadata.location)):
            record.location = moved
            self._pointers.check_free(Claim.of(self._pointers.keyspace, record))
            own = Folder(record, self.properties).is_free()
        else:
            record = None
        self.write_metadata(staged.metadata, staged.io, staged.metadata_location)

        def landed(found: Head | None) -> bool | None:
            return self._is_behind(found, staged.metadata_location, current.metadata_location)

        head = _foreign_head(staged.metadata, staged.metadata_location)
        try:
            outcome = self._pointers.move_head(pointer, head, landed, record)
        except DistopError:
            _remove(staged.io, staged.metadata_location)
            raise
        if outcome is Swap.UNKNOWN:
            raise CommitStateUnknownException(
                f"Whether {'.'.join(current.name())} has moved to {staged.metadata_location} is not known"
            )
        if outcome is Swap.LOST:
            _remove(staged.io, staged.metadata_location)
            raise CommitFailedException(f"Table {'.'.join(current.name())} was updated by another process")
        if record is not None and own:
            Folder(record, self.properties).mark()

    def _is_behind(self, found: Head | None, ours: str, base: str) -> bool | None:
        """Whether a head has our metadata among its ancestors, as far as its log reaches back."""
        if found is None:
            return None
        if found.metadata_location == ours:
            return True
        try:
            io = self.file_io(found.metadata_location)
            metadata = FromInputFile.table_metadata(io.new_input(found.metadata_location))
        except Exception:
            return None
        ancestors = {entry.metadata_file for entry in metadata.metadata_log}
        if ours in ancestors:
            return True
        return False if base in ancestors else None

    # -- namespaces ------------------------------------------------------------------------------------

    def create_namespace(self, namespace: str | Identifier, properties: Properties = EMPTY_DICT) -> None:
        """Raises ``NamespaceAlreadyExistsError``."""
        name = namespace_name(namespace)
        if not self._namespaces.create(name, dict(properties)):
            raise NamespaceAlreadyExistsError(f"Namespace {name} already exists")

    def drop_namespace(self, namespace: str | Identifier) -> None:
        """Raises ``NoSuchNamespaceError`` or ``NamespaceNotEmptyError``."""
        name = self._existing(namespace)
        if not self._namespaces.is_empty(name):
            raise NamespaceNotEmptyError(f"Namespace {name} is not empty")
        if not self._namespaces.drop(name) and name == DEFAULT:
            raise NamespaceNotEmptyError(f"Namespace {name} is always there")

    def list_namespaces(self, namespace: str | Identifier = ()) -> list[Identifier]:
        """The namespaces right below one; the top-level ones if none is given."""
        below = self._existing(namespace) if namespace else ""
        parent = tuple(below.split(".")) if below else ()
        known = {(DEFAULT,), *(tuple(name.split(".")) for name in self._namespaces.below(below))}
        known |= {table_identifier(name)[:-1] for name in self._pointers.tables(below)}
        depth = len(parent) + 1
        return sorted({path[:depth] for path in known if len(path) >= depth and path[: depth - 1] == parent})

    def namespace_exists(self, namespace: str | Identifier) -> bool:
        """Whether it was created, or something is in it."""
        try:
            return self._namespaces.exists(namespace_name(namespace))
        except NoSuchNamespaceError:
            return False

    def load_namespace_properties(self, namespace: str | Identifier) -> Properties:
        """Raises ``NoSuchNamespaceError``."""
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
        name = namespace_name(namespace)
        if not self._namespaces.exists(name):
            raise NoSuchNamespaceError(f"Namespace does not exist: {name}")
        return name

    def _check_namespace_of(self, identifier: str | Identifier) -> None:
        self._existing(table_identifier(table_name(identifier))[:-1])

    # -- views: there are none -------------------------------------------------------------------------

    def list_views(self, namespace: str | Identifier) -> list[Identifier]:
        """None."""
        return []

    def view_exists(self, identifier: str | Identifier) -> bool:
        """No."""
        return False

    def load_view(self, identifier: str | Identifier) -> View:
        """Raises ``NoSuchViewError``."""
        raise NoSuchViewError(f"View does not exist: {identifier}")

    def drop_view(self, identifier: str | Identifier) -> None:
        """Raises ``NoSuchViewError``."""
        raise NoSuchViewError(f"View does not exist: {identifier}")

    def register_view(self, identifier: str | Identifier, metadata_location: str) -> View:
        """Views are not supported."""
        raise NotImplementedError("views are not supported")

    # -- pyiceberg's helpers, for namespaces of several levels -----------------------------------------

    @staticmethod
    def identifier_to_database_and_table(
        identifier: str | Identifier,
        err: type[ValueError] | type[NoSuchTableError] | type[NoSuchNamespaceError] = ValueError,
    ) -> tuple[str, str]:
        """``(namespace, table)`` of an identifier; the namespace's parts are joined by dots."""
        full = table_identifier(table_name(identifier))
        return ".".join(full[:-1]), full[-1]


def _foreign_head(metadata: TableMetadata, location: str) -> Head:
    return Head(metadata_location=location, snapshot_id=metadata.current_snapshot_id, operation=FOREIGN)


def _response(metadata: TableMetadata, location: str) -> CommitTableResponse:
    fields: dict[str, Any] = {"metadata": metadata, "metadata-location": location}
    return CommitTableResponse(**fields)


def _remove(io: FileIO, location: str) -> None:
    """Remove a metadata file that certainly nothing refers to; best effort."""
    with suppress(Exception):
        io.delete(location)
