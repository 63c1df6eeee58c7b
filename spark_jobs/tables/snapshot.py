"""Reads a table: the data files of a snapshot, and their rows.

All readers of a table plan the same way::

    snapshot = open_snapshot(head.metadata_location, storage)
    where = "day >= '2013-02-01'"
    for file in snapshot.plan_files(where):
        for batch in snapshot.batches([file], columns=["day", "miles"], where=where):
            ...

Planning needs only the table's metadata and manifests. A filter excludes the files whose partition or
statistics prove that no row matches; the rest may contain rows that do not match.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
)
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from distop.errors import InvalidArgument, PreconditionFailed
from distop.lake.iceberg.content import is_live
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.iceberg.rollback import target_of
from distop.lake.layout.model import file_io, load_metadata
from distop.lake.layout.partitioning import identity_columns
from distop.lake.layout.schemas import check_types, fields_within
from distop.lake.predicates.binding import ALL, Predicate, predicate_of
from distop.lake.predicates.proofs import Pruning, matching_groups
from distop.lake.predicates.rows import chosen
from distop.lake.rewriting.deletes import Deletes
from distop.lake.storage.storage import StorageOptions

if TYPE_CHECKING:
    import pyarrow.parquet as pq

    from distop.lake.index.lookup import PublishedIndex
    from distop.spark_jobs.tables.live_rows import EqualityDeletes


@dataclass(frozen=True)
class PlannedFile:
    """A data file of a snapshot. Picklable."""

    path: str
    """URL, as in the manifest."""
    size: int
    """Bytes."""
    rows: int
    """As written, including rows that delete files remove."""
    data_file: DataFile = field(compare=False, repr=False)
    """Everything else in the manifest: statistics, split offsets."""
    delete_files: tuple[DataFile, ...] = field(default=(), compare=False, repr=False)
    """Its delete files; programs other than distop write such."""
    row_groups: tuple[int, ...] | None = field(default=None, compare=False)
    """Row groups that may contain a requested row, according to an index; ``None``: all."""

    @property
    def spec_id(self) -> int:
        """The partition spec it was written with."""
        return int(self.data_file.spec_id)

    @property
    def partition(self) -> Record:
        """Its partition's values, by that spec."""
        return self.data_file.partition

    @classmethod
    def of(cls, task: FileScanTask) -> PlannedFile:
        """A file as pyiceberg plans it."""
        file = task.file
        deletes = tuple(sorted(task.delete_files, key=lambda each: each.file_path))
        return cls(file.file_path, file.file_size_in_bytes, file.record_count, file, deletes)

    def task(self) -> FileScanTask:
        """The same for pyiceberg."""
        return FileScanTask(self.data_file, set(self.delete_files))


@dataclass(frozen=True)
class TableSnapshot:
    """A snapshot of a table, for planning and reading. Picklable.

    Raises
    ------
    PreconditionFailed
        The default value of a column (of format 3) is no value of its type.
    UnsupportedType
        A column that the snapshot was written with has a type that distop does not read.
    """

    metadata: TableMetadata
    """Metadata of the table. Its current schema is used to read the snapshot."""
    snapshot: Snapshot | None
    """``None`` for a table without any publication: it has no files."""
    storage: StorageOptions = field(default_factory=dict)
    indexes: tuple[PublishedIndex, ...] = ()
    """Indexes of the table, of any age: planning excludes files by them."""

    def __post_init__(self) -> None:
        check_types(self.schema, self.metadata.location)
        _check_defaults(self.schema.fields)

    @property
    def id(self) -> int | None:
        return None if self.snapshot is None else self.snapshot.snapshot_id

    @property
    def schema(self) -> Schema:
        """The columns of the rows."""
        return self.metadata.schema()

    @cached_property
    def io(self) -> FileIO:
        return file_io(self.metadata.location, self.storage)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    # -- planning --------------------------------------------------------------------------------------

    def plan_files(
        self, where: str | Predicate | None = None, *, use_indexes: bool = True
    ) -> list[PlannedFile]:
        """The files that may hold rows for which ``where`` is true, sorted by path.

        Parameters
        ----------
        where:
            A filter, as text or bound to the columns (:mod:`distop.lake.predicates`); ``None``: all rows.
        use_indexes:
            Whether to use the table's indexes, if the filter names values of their columns.

        Raises
        ------
        InvalidArgument
            The filter cannot be parsed, or does not fit the columns.
        PreconditionFailed
            Rows were deleted in a way that distop cannot read.
        """
        if self.snapshot is None:
            return []
        predicate = self.predicate(where)
        pruning = Pruning(self.metadata, predicate)
        manifests = [manifest for manifest in self.snapshot.manifests(self.io) if is_live(manifest)]
        deletes = Deletes(self.metadata, self.io, manifests)
        data = [one for one in manifests if one.content == ManifestContent.DATA and pruning.manifest(one)]
        # Not plan_files(): it finds no deletes of NaN, and has proofs of its own.
        planner = ManifestGroupPlanner(self.metadata, self.io)
        entries = chain.from_iterable(planner.plan_manifest_entries(data))
        tasks = (
            FileScanTask(entry.data_file, deletes.applied_to(entry))
            for entry in entries
            if pruning.file(entry.data_file)
        )
        files = sorted(map(PlannedFile.of, tasks), key=lambda file: file.path)
        return self._narrowed(files, predicate) if self.indexes and use_indexes else files

    def _narrowed(self, files: list[PlannedFile], predicate: Predicate) -> list[PlannedFile]:
        """The files that an index does not rule out."""
        from distop.lake.index.lookup import left_of

        root, paths = self.metadata.location.rstrip("/"), [file.path for file in files]
        partitioned: dict[int, set[str]] = defaultdict(set)
        for file in files:
            for column in identity_columns(self.metadata.specs()[file.spec_id]):
                partitioned[column].add(file.path)
        left = left_of(self.indexes, self.io, root, self.schema, predicate, paths, partitioned)
        if left is None:
            return files
        return [_within(file, left[file.path]) for file in files if file.path in left]

    def plan_added(self) -> list[PlannedFile]:
        """The files that this very snapshot has added."""
        snapshot = self.snapshot

        def added(entry: ManifestEntry) -> bool:
            return entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == self.id

        if snapshot is None:
            return []
        manifests = [
            manifest
            for manifest in snapshot.manifests(self.io)
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == self.id
        ]
        tasks = ManifestGroupPlanner(self.metadata, self.io).plan_files(
            manifests, manifest_entry_filter=added
        )
        return sorted(map(PlannedFile.of, tasks), key=lambda file: file.path)

    def predicate(self, where: str | Predicate | None) -> Predicate:
        """A filter bound to the columns; raises as :meth:`plan_files`."""
        if where is None:
            return ALL
        return predicate_of(where, self.schema) if isinstance(where, str) else where

    def projection(self, columns: Sequence[str] | None) -> Schema:
        """The schema of some columns, in this order; of all by default.

        Raises :class:`~distop.errors.InvalidArgument` for an unknown column.
        """
        if columns is None:
            return self.schema
        known = {column.name: column for column in self.schema.columns}
        # Names may contain dots, and lead to what is within a column.
        found = {name: name if name in known else name.partition(".")[0] for name in columns}
        missing = [name for name, column in found.items() if column not in known]
        if missing:
            raise InvalidArgument(
                f"the table has no column {missing[0]!r}; it has {', '.join(known)}",
                details={"field": "columns"},
            )
        names = dict.fromkeys(found.values())
        return Schema(*(known[name] for name in names), schema_id=self.schema.schema_id)

    # -- rows ------------------------------------------------------------------------------------------

    def batches(
        self,
        files: Iterable[PlannedFile],
        *,
        columns: Sequence[str] | None = None,
        where: str | Predicate | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of some files in this snapshot's schema, file by file.

        Columns are found by field id, so renamed and added ones are right in files of any age; rows in delete
        files are excluded. Memory is bounded by some batches, and the equality deletes of the files.

        Parameters
        ----------
        where:
            Only rows for which it is true.
        """

        from distop.spark_jobs.tables.live_rows import LiveRows

        projected, predicate = self.projection(columns), self.predicate(where)
        if predicate == ALL:
            rows = LiveRows(self.metadata, self.io, self._found_in_files(projected), self._equality_deletes)
            for file in files:
                yield from rows.of(file.task())
            return

        def groups_of(footer: pq.FileMetaData, columns: Schema) -> list[int]:
            return matching_groups(predicate, footer, columns.find_column_name)

        names = [column.name for column in projected.columns]
        read = self.projection([*names, *predicate.columns])
        rows = LiveRows(self.metadata, self.io, self._found_in_files(read), self._equality_deletes, groups_of)
        for file in files:
            for batch in rows.of(file.task()):
                if (found := chosen(predicate, batch)).num_rows:
                    yield found.select(names)

    @cached_property
    def _equality_deletes(self) -> EqualityDeletes:
        """Jobs ask for the rows of one file after the other."""
        from distop.spark_jobs.tables.live_rows import EqualityDeletes

        return EqualityDeletes(self.metadata, self.io)

    def _found_in_files(self, columns: Schema) -> Schema:
        """The same columns, but those of a partition are not required: pyiceberg refuses a file without a
        required one, although it takes the value from the partition."""
        known = frozenset[int]().union(*map(identity_columns, self.metadata.partition_specs))
        fields = (
            column.model_copy(update={"required": False}) if column.field_id in known else column
            for column in columns.columns
        )
        return Schema(*fields, schema_id=columns.schema_id)


def open_snapshot(
    metadata_location: str,
    storage: StorageOptions | None = None,
    *,
    snapshot_id: int | None = None,
    as_of_ms: int | None = None,
    branch: str | None = None,
    indexes: Iterable[PublishedIndex] = (),
) -> TableSnapshot:
    """A snapshot of the table with this metadata file: the present one, or the named one.

    Parameters
    ----------
    as_of_ms:
        The snapshot that was present at this time, in milliseconds since the Unix epoch.
    branch:
        The snapshot that a branch or a tag names.
    indexes:
        The table's indexes: from the client (:meth:`~distop.client.Client.indexes`), or from etcd
        (:func:`distop.metastore.tables.registry.read_indexes`).

    Raises
    ------
    PreconditionFailed
        There is no such snapshot (any more).
    CorruptRecord
        The metadata file is missing or damaged.
    UnsupportedType
        A column has a type that distop does not read.
    """
    found = _opened(metadata_location, dict(storage or {}), snapshot_id, as_of_ms, branch)
    return replace(found, indexes=tuple(indexes))


def _opened(
    metadata_location: str,
    storage: StorageOptions,
    snapshot_id: int | None,
    as_of_ms: int | None,
    branch: str | None,
) -> TableSnapshot:
    if sum(given is not None for given in (snapshot_id, as_of_ms, branch)) > 1:
        raise InvalidArgument(
            "name the snapshot once: by id, by time or by branch",
            details={"field": "snapshot"},
        )
    if as_of_ms is not None:
        metadata = load_metadata(metadata_location, storage=storage)
        return _at(metadata, target_of(metadata, snapshot_id=None, as_of_ms=as_of_ms), storage)
    also = [] if snapshot_id is None else [snapshot_id]
    metadata = TableFile.read(metadata_location, storage=storage, also=also).metadata
    if snapshot_id is not None:
        return _at(metadata, target_of(metadata, snapshot_id=snapshot_id, as_of_ms=None), storage)
    if branch is None:
        # The present schema: it may be newer than the snapshot.
        return TableSnapshot(_slim(metadata), metadata.current_snapshot(), storage)
    found = metadata.snapshot_by_name(branch)
    if found is None:
        raise PreconditionFailed(
            f"the table at {metadata.location} has no branch {branch!r}", details={"field": "branch"}
        )
    return _at(metadata, found, storage)


def _check_defaults(columns: Iterable[NestedField]) -> None:
    """Rows of files without a column have its default (Iceberg specification, "Default values"). None is to
    have another value than the one that was written down."""
    for column in columns:
        given = column.initial_default
        try:
            found = None if given is None else pa.scalar(given, schema_to_pyarrow(column.field_type)).as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _bad_default(column, str(error)) from None
        if isinstance(given, float) and isinstance(found, float) and math.isinf(found):
            raise _bad_default(column, "it is too large")
        _check_defaults(fields_within(column.field_type))


def _bad_default(column: NestedField, reason: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"column {column.name!r} has the default value {column.initial_default!r}, which is no "
        f"{column.field_type}: {reason}",
        hint="drop the column with the program that added it",
        details={"column": column.name},
    )


def _within(file: PlannedFile, groups: frozenset[int] | None) -> PlannedFile:
    # Delete files count rows from the beginning of the file.
    if groups is None or file.delete_files:
        return file
    return replace(file, row_groups=tuple(sorted(groups)))


def snapshot_of(
    metadata: TableMetadata, snapshot: Snapshot, storage: StorageOptions | None = None
) -> TableSnapshot:
    """A snapshot of given metadata, with the table's present schema."""
    return TableSnapshot(_slim(metadata), snapshot, dict(storage or {}))


def _at(metadata: TableMetadata, snapshot: Snapshot, storage: StorageOptions) -> TableSnapshot:
    """A snapshot with the schema it was written with."""
    ids = {schema.schema_id for schema in metadata.schemas}
    schema_id = snapshot.schema_id if snapshot.schema_id in ids else metadata.current_schema_id
    return TableSnapshot(_slim(metadata, current_schema_id=schema_id), snapshot, storage)


def _slim(metadata: TableMetadata, **update: Any) -> TableMetadata:
    """The metadata needed for reading: it is sent to tasks, and past snapshots are many."""
    past: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
    return metadata.model_copy(update={**past, **update})
