"""A pyiceberg catalog whose tables are distop's: the pointer of table ``t`` is ``distOp.t.head`` in etcd.

    load_catalog("distop", **{"py-catalog-impl": "distop.catalog.catalog.EtcdCatalog",
                              "etcd.endpoints": "127.0.0.1:2379"})

A commit of a program and a publication of an operation move the same head, each by a transaction that
compares the state that it was based on: neither loses the other's rows (P6, P7).

Its properties ``etcd.endpoints`` (or ``uri``), ``etcd.prefix`` and so on override the environment.

The snapshot of a commit that has happened is in the table, under an id that no other snapshot has. If it were
refused, a program would commit the same rows on top, or remove files of an attempt that it takes for failed:
Iceberg's Java library sends a commit again where a gateway answers 503 (1.9: at 502 and 504, too).

A program that writes its rows again makes another snapshot. For that its run has a name: the property
``distop.run`` of the snapshot, stored in etcd like those of operations, in the transaction that moves
the head. The second commit of a run gets the answer that it is done: its files belong to no snapshot.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from threading import Lock
from typing import Any

from cachetools import FIFOCache
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import FileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.table import CommitTableResponse, StagedTable, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCreate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.typedef import EMPTY_DICT, Identifier, Properties

from distop.catalog import namespaces
from distop.catalog.errors import for_pyiceberg
from distop.catalog.namespaces import MAX_TRIES, Naming
from distop.catalog.places import Folder, new_location
from distop.catalog.pointers import FOREIGN, Pointer, Pointers
from distop.catalog.publishing import Overtaken, Publishing, Step, marks_moved, undo
from distop.catalog.updates import (
    check_updates,
    format_upgraded,
    is_same,
    of_what_is_there,
    pending_commit,
    refuse_unchecked,
    renumbered,
)
from distop.catalog.view_catalog import ViewCatalog
from distop.errors import CorruptRecord, DistopError, InvalidArgument, RunReused
from distop.lake.cleanup.orphans import Files, files_of_table
from distop.lake.iceberg.metadata_files import in_order
from distop.lake.iceberg.provenance import FOREIGN_RUN, difference_of_rollback, foreign_run
from distop.lake.layout.metadata import read_metadata
from distop.lake.layout.model import file_io
from distop.lake.layout.properties import (
    FOREIGN_FORMATS,
    FORMAT,
    check_may_remove,
    check_properties,
    of_new_table,
)
from distop.lake.storage.allowed import ENDPOINTS, allow
from distop.lake.storage.storage import StorageOptions, storage_of
from distop.metastore.backlog.undoing import effective_operation, rollback_txn
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.etcd.txn import Txn
from distop.metastore.members.installation import CheckedEtcd
from distop.metastore.operations.starting import done_otherwise, forget_requests
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId, check_name
from distop.metastore.records.operation import RequestRecord
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head
from distop.metastore.tables.answers import Note
from distop.proto.identity import default_identity

KEPT = 1000
"""Tables that are remembered."""

Change = tuple[Identifier, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]
"""Of one table: what must hold of it, and what becomes of it."""


def came_before(tables: Sequence[Table | None], changes: Sequence[Change]) -> bool:
    """Whether a request has happened: it adds snapshots, and all of them are in the tables, in the branches
    that it has them in. Then all that it asks for besides has happened, too, in the same transaction."""
    added = 0
    for table, (_, _, updates) in zip(tables, changes, strict=True):
        snapshots = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
        if snapshots and (table is None or not _holds(table.metadata, snapshots, updates)):
            return False
        added += len(snapshots)
    return added > 0


def _holds(base: TableMetadata, snapshots: Iterable[Snapshot], updates: Iterable[TableUpdate]) -> bool:
    added = {snapshot.snapshot_id: snapshot for snapshot in snapshots}
    there = {snapshot.snapshot_id: snapshot for snapshot in base.snapshots if snapshot.snapshot_id in added}
    if len(there) < len(added) or not all(
        is_same(snapshot, there[number]) for number, snapshot in added.items()
    ):
        return False
    moved = [
        update
        for update in updates
        if isinstance(update, SetSnapshotRefUpdate) and update.snapshot_id in added
    ]
    return all(update.snapshot_id in _history(base, update.ref_name) for update in moved)


def _history(base: TableMetadata, ref: str) -> set[int]:
    """The snapshots that a branch is made of; of the main one also what was rolled back since."""
    made_of = {snapshot.snapshot_id for snapshot in ancestors_of(base.snapshot_by_name(ref), base)}
    return made_of | {entry.snapshot_id for entry in base.snapshot_log} if ref == MAIN_BRANCH else made_of


def run_of(updates: Iterable[TableUpdate]) -> str:
    """The run of a commit; empty if it names none. Raises :class:`~distop.errors.InvalidArgument`."""
    given = {foreign_run(update.snapshot) for update in updates if isinstance(update, AddSnapshotUpdate)}
    given -= {""}
    if len(given) > 1:
        raise InvalidArgument("the snapshots of one commit name several runs", details={"field": FOREIGN_RUN})
    return check_name(given.pop(), FOREIGN_RUN) if given else ""


def rollback_share(etcd: SyncEtcd, keys: TableKeys, before: TableMetadata, after: TableMetadata) -> Txn:
    """The part of a commit that moves the main branch to a snapshot that existed before, as a rollback does:
    what is gone from the table counts as applied no more."""
    known = before.snapshot_by_id(after.current_snapshot_id or 0)
    if known is None or after.current_snapshot_id == before.current_snapshot_id:
        return Txn()
    undoes, by = difference_of_rollback(before, known), str(OperationId(keys.name, FOREIGN, 0))
    return etcd.run(lambda client: rollback_txn(client, keys, undoes, by=by, now=time.time()))


def is_done(etcd: SyncEtcd, keys: TableKeys, run: str, metadata: TableMetadata) -> bool:
    """Whether a commit of this run has happened: the table's history shows it, also after etcd was restored
    or the table renamed; where its snapshot has expired, the key does.

    Raises :class:`~distop.errors.RunReused` if it was an operation's, and
    :class:`~distop.errors.RolledBack` if its rows are gone.
    """
    if any(foreign_run(done) == run for done in ancestors_of(metadata.current_snapshot(), metadata)):
        return True
    kv = etcd.get(keys.request(run))
    if not kv.exists:
        return False
    record = decode(kv.value, RequestRecord, kv.key)
    etcd.run(lambda client: effective_operation(client, keys, run, record))
    if record.digest != FOREIGN:
        raise RunReused(f"run {run!r} was used for {record.operation}", details={"field": FOREIGN_RUN})
    return True


def noting(etcd: SyncEtcd, keys: TableKeys, run: str) -> Txn:
    """The writes that note the run, if it is unused. The table may have no leader, so old ones are removed
    here."""
    now = time.time()
    with suppress(DistopError):
        etcd.run(lambda client: forget_requests(client, keys, now))
    return done_otherwise(keys, run, OperationId(keys.name, FOREIGN, 0), FOREIGN, now)


MAX_PAUSE_S = 2.0
"""Longest pause after a race was lost. The first is at most as long as the lost try, each next one twice as
long."""

Present = tuple[Table | None, Pointer]
"""A table, if there is one, and what etcd has of it."""


def retry_lost_commit(
    changes: Sequence[Change],
    present: Callable[[], list[Present]],
    publish: Callable[[list[Present]], list[Table]],
) -> list[Table | None]:
    """The tables after the changes.

    Parameters
    ----------
    present:
        Reads the present state of the tables.
    publish:
        Makes the changes, if the state of the tables is still as given. Raises
        :class:`~distop.catalog.publishing.Overtaken` or ``TableAlreadyExistsError`` if it is not.

    Raises what ``publish`` has raised last.
    """
    for number in range(MAX_TRIES):
        began = time.monotonic()
        value = present()
        if came_before([table for table, _ in value], changes):
            break
        try:
            return [*publish(value)]
        except (Overtaken, TableAlreadyExistsError) as lost:
            if number < MAX_TRIES - 1 and isinstance(lost, Overtaken) and lost.repeatable:
                longest = min((time.monotonic() - began) * 2**number, MAX_PAUSE_S)
                time.sleep(random.uniform(0.0, longest))  # not in step with the others
                continue
            value = present()
            if not came_before([table for table, _ in value], changes):
                raise
            break  # the faster one was the same request, sent twice
    return [table for table, _ in value]


_OPTIONS = {
    "etcd.endpoints": "endpoints",
    "etcd.prefix": "prefix",
    "etcd.user": "user",
    "etcd.password": "password",
    "etcd.password-file": "password_file",
    "etcd.ca-cert": "ca_cert",
    "etcd.cert": "cert",
    "etcd.key": "key",
    "etcd.timeout": "timeout_s",
}

_SCHEME = "etcd://"


def etcd_config(properties: Mapping[str, str]) -> EtcdConfig:
    """The configuration of etcd from a catalog's properties, and from the environment for the rest.

    Raises :class:`~distop.errors.InvalidArgument` for an unknown property ``etcd.*``.
    """
    given = {name: value for name, value in properties.items() if name.startswith("etcd.") and value}
    if unknown := sorted(given.keys() - _OPTIONS.keys()):
        raise InvalidArgument(
            f"unknown property {unknown[0]!r}; known are {', '.join(_OPTIONS)}", details={"field": unknown[0]}
        )
    if uri := properties.get("uri"):
        if given.setdefault("etcd.endpoints", uri) != uri:
            raise InvalidArgument("uri and etcd.endpoints differ", details={"field": "uri"})
        given["etcd.endpoints"] = uri.removeprefix(_SCHEME)
    return EtcdConfig.of({_OPTIONS[name]: str(value) for name, value in given.items()})


@for_pyiceberg
class EtcdCatalog(ViewCatalog):
    """Tables, views and namespaces in etcd.

    Properties: ``etcd.endpoints`` or ``uri`` (``host:port``, several separated by commas), ``etcd.prefix``,
    ``etcd.user``, ``etcd.password``, ``etcd.password-file``, ``etcd.ca-cert``, ``etcd.cert``, ``etcd.key``,
    ``etcd.timeout`` (seconds), which override the environment variables of distop; ``warehouse`` (where new
    tables go that name no location), and those of pyiceberg's ``FileIO``.

    Methods raise pyiceberg's exceptions. If the keys of the installation have another layout than this
    version's, etcd does not answer, an operation is incompatible, or a name is invalid, they raise errors of
    :mod:`distop.errors` that are also pyiceberg's.
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        # The creator of a catalog has the credentials of its process, and chooses their endpoints.
        if "://" in (endpoint := self.properties.get("s3.endpoint", "")):
            allow(ENDPOINTS, [endpoint])
        self._open(CheckedEtcd(etcd_config(self.properties)))

    @classmethod
    def over(cls, etcd: SyncEtcd, name: str, **properties: str) -> EtcdCatalog:
        """A catalog over an existing connection, which it closes."""
        made = cls.__new__(cls)
        super(EtcdCatalog, made).__init__(name, **properties)
        made._open(etcd)
        return made

    def _open(self, etcd: SyncEtcd) -> None:
        self._etcd = etcd
        self._pointers = Pointers(self._etcd, default_identity())
        self._namespaces = namespaces.Namespaces(self._pointers)
        # Held also to read: a cache looks whether it has a key, and then takes it.
        self._remembering = Lock()
        self._storage: FIFOCache[str, StorageOptions] = FIFOCache(KEPT)
        """Storage options of tables that have some, by location."""
        self._recent: FIFOCache[str, Pointer] = FIFOCache(KEPT)
        """Pointers of tables that were loaded, by name."""

    def acting(self, by: str, note: Note | None = None) -> EtcdCatalog:
        """The same catalog for one request; its changes of tables include the note."""
        twin = copy(self)
        twin._pointers = self._pointers.acting(by, note)
        twin._namespaces = namespaces.Namespaces(twin._pointers)
        return twin

    @property
    def etcd(self) -> SyncEtcd:
        """The connection to etcd."""
        return self._etcd

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
        staged = self.staged(identifier, schema, location, partition_spec, sort_order, properties)
        return self._create(identifier, staged)

    def staged(
        self,
        identifier: str | Identifier,
        schema: Any,
        location: str | None = None,
        partition_spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        sort_order: SortOrder = UNSORTED_SORT_ORDER,
        properties: Properties = EMPTY_DICT,
    ) -> StagedTable:
        """A table that may be created; nothing is written yet. Raises as :meth:`create_table`."""
        check_properties(properties, formats=FOREIGN_FORMATS)
        kept = of_new_table(properties)
        if FORMAT in properties:
            kept[FORMAT] = properties[FORMAT]  # pyiceberg takes it from there
        staged = self.stage_new(identifier, schema, location, partition_spec, sort_order, kept)
        self._check_namespace_of(identifier)
        if kind := self._pointers.read(namespaces.table_name(identifier)).kind:
            raise namespaces.already_exists(namespaces.table_name(identifier), kind)
        return staged

    def register_table(
        self, identifier: str | Identifier, metadata_location: str, overwrite: bool = False
    ) -> Table:
        """Register a table that exists as files. Raises as :meth:`create_table`."""
        if overwrite:
            raise NotImplementedError("overwriting a registered table is not supported")
        self._check_namespace_of(identifier)
        io = self.file_io(metadata_location)
        try:
            metadata = read_metadata(io, metadata_location)
        except (CorruptRecord, FileNotFoundError) as error:
            raise InvalidArgument(str(error), details={"field": "metadata-location"}) from error
        full = namespaces.table_identifier(namespaces.table_name(identifier))
        staged = StagedTable(full, metadata, metadata_location, io, self)
        return self._create(identifier, staged, written=True)

    def load_table(self, identifier: str | Identifier) -> Table:
        """The table as it is now. Raises ``NoSuchTableError``."""
        return self._load(identifier)[0]

    def list_tables(self, namespace: str | Identifier) -> list[Identifier]:
        """The tables right in a namespace that can be loaded. Raises ``NoSuchNamespaceError``."""
        return list(self.tables_after(namespace))

    def tables_after(self, namespace: str | Identifier, last: Identifier = ()) -> Iterator[Identifier]:
        """The tables of :meth:`list_tables` behind ``last``, in a stable order; read on demand. Raises
        ``NoSuchNamespaceError``."""
        name = self._existing(namespace)
        wanted = namespaces.namespace_identifier(name)
        tables = self._pointers.tables(
            "" if name == namespaces.DEFAULT else name, namespaces.table_name(last) if last else ""
        )
        names = (table for table in tables if namespaces.table_identifier(table)[:-1] == wanted)
        return (namespaces.table_identifier(table) for table in self._pointers.published(names))

    def drop_table(self, identifier: str | Identifier) -> None:
        """Remove a table, with its watermarks and history; its files stay (``purge_table`` removes them).

        Raises ``NoSuchTableError``, and :class:`~distop.errors.IncompatibleOperation` while an operation
        runs on it.
        """
        Naming(self._pointers).drop(
            namespaces.table_name(identifier), lambda record: Folder(record, self.properties).leave
        )

    def purge_table(self, identifier: str | Identifier) -> None:
        """Drop a table, and remove the files that its metadata names: those in its folder, if that is the
        table's own, and no others.

        Raises as :meth:`drop_table`, and :class:`~distop.errors.PreconditionFailed` if the table's properties
        forbid to remove files.
        """
        table, pointer = self._load(identifier)
        assert pointer.record is not None
        check_may_remove(table.metadata.properties, pointer.record.name)
        folder = Folder(pointer.record, self.properties)
        is_own = folder.is_own()  # a drop removes the owner file
        files = files_of_table(table.metadata, table.metadata_location, table.io) if is_own else Files()
        self.drop_table(identifier)
        folder.remove(files)

    def rename_table(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> Table:
        """Give a table another name; its files stay where they are.

        Raises ``NoSuchTableError``, ``TableAlreadyExistsError``, ``NoSuchNamespaceError``, and
        :class:`~distop.errors.IncompatibleOperation` while an operation runs on it.
        """
        self.rename(from_identifier, to_identifier)
        return self.load_table(to_identifier)

    def rename(self, from_identifier: str | Identifier, to_identifier: str | Identifier) -> None:
        """As :meth:`rename_table`, without loading the table afterwards."""
        old, new = namespaces.table_name(from_identifier), namespaces.table_name(to_identifier)
        self._check_namespace_of(to_identifier)
        Naming(self._pointers).rename(old, new)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Move a table to its next metadata, if the requirements hold and there was no concurrent commit.

        Raises as :meth:`commit`.
        """
        change = (table.name(), requirements, updates)
        with self._remembering:
            pointer = self._recent.get(namespaces.table_name(table.name()))
        if pointer and pointer.head and pointer.head.metadata_location == table.metadata_location:
            # Most often it is still as it was loaded. If not, nothing has happened; nor has anything been
            # learned if there seems to be nothing to do.
            with suppress(CommitFailedException):
                if isinstance(step := self._staged(change, table, pointer), Step):
                    self._publishing().publish([step])
                    return _responses([step.staged])[0]
        return self.commit(*change)

    def commit(
        self,
        identifier: Identifier,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        """Move a table to its next metadata, if the requirements hold and there was no concurrent commit; or
        create it, if they say that there is none.

        Raises
        ------
        CommitFailedException
            A concurrent commit won, nothing has happened: refresh and try again.
        CommitStateUnknownException
            The outcome is unknown; no file was removed.
        NoSuchTableError
            There is no such table, and the requirements do not ask for that.
        """
        return self.commit_all([(identifier, requirements, updates)])[0]

    def commit_all(self, changes: Sequence[Change]) -> list[CommitTableResponse]:
        """As :meth:`commit`, for several tables: all of it happens at once, or nothing. A request that is
        sent again after it was committed gets the answer that it is done.

        Raises, besides, :class:`~distop.errors.ArgumentTooLarge` if they are more than one transaction holds.
        """
        names = [namespaces.table_name(identifier) for identifier, _, _ in changes]
        if len(set(names)) < len(names):
            raise InvalidArgument("a table is there twice", details={"field": "table-changes"})
        done = retry_lost_commit(
            changes,
            lambda: [self._present(change) for change in changes],
            lambda present: self._published_on(changes, present),
        )
        return _responses(done)

    def _published_on(self, changes: Sequence[Change], states: Sequence[Present]) -> list[Table]:
        """The tables after the changes, which are made if the tables are still in these states."""
        done, steps = list[Table](), list[Step]()
        try:
            for change, present in zip(changes, states, strict=True):
                staged = self._staged(change, *present)
                if isinstance(staged, Step):
                    steps.append(staged)
                done.append(staged.staged if isinstance(staged, Step) else staged)
        except BaseException:
            undo(steps)
            raise
        if steps:
            self._publishing().publish(steps)
        return done

    def _present(self, change: Change) -> Present:
        """The present table; ``None`` if the commit creates it."""
        identifier, requirements, _ = change
        try:
            return self._load(identifier)
        except NoSuchTableError:
            if not any(isinstance(requirement, AssertCreate) for requirement in requirements):
                raise
            return None, self._pointers.read(namespaces.table_name(identifier))

    def _staged(self, change: Change, current: Table | None, pointer: Pointer) -> Step | Table:
        """The commit to make; the table itself, if there is nothing to do."""
        identifier, requirements, updates = change
        keys = self._pointers.keyspace.table(namespaces.table_name(identifier))
        run = run_of(updates)
        if run and current is not None and is_done(self._etcd, keys, run, current.metadata):
            return current
        check_updates(updates)
        updates = tuple(format_upgraded(updates))
        base = None if current is None else current.metadata
        besides = marks_moved(self._etcd, pointer.record, base, updates)
        if run:
            besides += noting(self._etcd, keys, run)
        if current is None:
            staged = self.stage_update(None, identifier, requirements, updates)
            self._check_namespace_of(identifier)
            staged.metadata = in_order(staged.metadata)
            return self._publishing().making(identifier, staged, besides=besides)
        assert pointer.record is not None
        refuse_unchecked(pointer.record, current.metadata, updates, current.io)
        pending = pending_commit(current, requirements, updates)
        try:
            updates = renumbered(of_what_is_there(pending.updates, current.metadata), current.metadata)
            staged = self.stage_update(current, identifier, pending.requirements, updates)
            kept = staged.metadata
            check_properties(kept.properties, kept.location, current.metadata.properties)
            if staged.metadata == current.metadata:
                return current
            staged.metadata = in_order(staged.metadata, current.metadata)
            besides += rollback_share(self._etcd, keys, current.metadata, staged.metadata)
            step = self._publishing().moving(current, pointer, staged, besides)
        except BaseException:
            pending.discard()
            raise
        return replace(step, rebases=pending.rebases, discard=pending.discard)

    def metadata_location(self, identifier: str | Identifier) -> str:
        """Where the present metadata of a table is. Raises ``NoSuchTableError``."""
        return self._published(identifier)[1].metadata_location

    def _published(self, identifier: str | Identifier) -> tuple[Pointer, Head]:
        name = namespaces.table_name(identifier)
        pointer = self._pointers.read_briefly(name)
        head = pointer.head
        full = namespaces.table_identifier(name)
        if pointer.record is None:
            raise namespaces.no_such_table(name)
        if pointer.record.format != "iceberg":
            raise NoSuchTableError(f"Table {'.'.join(full)} is no Iceberg table but {pointer.record.format}")
        if head is None:
            raise NoSuchTableError(
                f"Table {'.'.join(full)} exists in distop, but no operation has published anything to it yet"
            )
        storage, location = storage_of(pointer.record), pointer.record.location
        with self._remembering:
            if storage or self._storage.get(location):  # a dropped table's may be known
                self._storage[location] = storage
        return pointer, head

    def _load(self, identifier: str | Identifier) -> tuple[Table, Pointer]:
        pointer, head = self._published(identifier)
        with self._remembering:
            self._recent[namespaces.table_name(identifier)] = pointer
        io = self.file_io(head.metadata_location)
        table = Table(
            identifier=namespaces.table_identifier(namespaces.table_name(identifier)),
            metadata=read_metadata(io, head.metadata_location),
            metadata_location=head.metadata_location,
            io=io,
            catalog=self,
        )
        return table, pointer

    def file_io(self, location: str, properties: Properties = EMPTY_DICT) -> FileIO:
        """See :class:`~distop.lake.pyiceberg_private.StagingCatalog`: with the storage options
        of the table and the properties of this catalog; those of the table are ignored."""
        storage, folder = None, location
        with self._remembering:
            while storage is None and folder:
                folder = folder.rpartition("/")[0]
                storage = self._storage.get(folder)
        return file_io(location, storage, self.properties)

    def _create(self, identifier: str | Identifier, staged: StagedTable, *, written: bool = False) -> Table:
        """Create a table whose metadata is ``staged``."""
        publishing = self._publishing()
        step = publishing.making(identifier, staged, written=written)
        publishing.publish([step])
        return Table(step.identifier, staged.metadata, staged.metadata_location, staged.io, self)

    def _publishing(self) -> Publishing:
        return Publishing(self._pointers, self.properties, self.file_io)

    def location_of_new(self, location: str | None, namespace: str, table: str) -> str:
        """As :class:`~distop.lake.pyiceberg_private.StagingCatalog` says."""
        return new_location(location, namespace, table, self.properties, self._properties_of)

    def _properties_of(self, name: str) -> Properties:
        return self._namespaces.properties(self._there(name))


def _responses(tables: Iterable[Table | None]) -> list[CommitTableResponse]:
    there: list[Any] = [table for table in tables if table is not None]
    named = [{"metadata": table.metadata, "metadata-location": table.metadata_location} for table in there]
    return [CommitTableResponse(**fields) for fields in named]
