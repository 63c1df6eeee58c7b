"""Reads a table: the data files of a snapshot, their live rows, and groups of files, one for each job of an
operation that reads a table.

All readers of a table plan the same way::

    snapshot = open_snapshot(head.metadata_location, storage)
    where = "day >= '2013-02-01'"
    for file in snapshot.plan_files(where):
        for batch in snapshot.batches([file], columns=["day", "miles"], where=where):
            ...

Planning needs only the table's metadata and manifests. A filter excludes the files whose partition or
statistics prove that no row matches; the rest may contain rows that do not match.

A snapshot never changes. So it is enough to record its description and that of the table's columns and
partitioning when the operation starts: every job computes the same groups from the snapshot's manifests,
whatever happens to the table meanwhile.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, count
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry, ManifestEntryStatus
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField

from distop.errors import CorruptRecord, InvalidArgument, JobFailed, PreconditionFailed
from distop.lake.iceberg.metadata_files import TableFile, is_live
from distop.lake.iceberg.rollback import target_of
from distop.lake.index.lookup import left_of
from distop.lake.layout.model import check_format, file_io, load_metadata
from distop.lake.layout.partitioning import identity_columns, partition_path
from distop.lake.layout.properties import FORMAT_VERSION
from distop.lake.layout.schemas import check_types, fields_within
from distop.lake.predicates.binding import ALL, Predicate, chosen, predicate_of
from distop.lake.predicates.proofs import Pruning, matching_groups
from distop.lake.pyiceberg_arrow import batches_of, scan_of
from distop.lake.rewriting.replace_partitions import Deletes, equality_fields
from distop.lake.storage.storage import StorageOptions
from distop.operations import OperationArg
from distop.operations.plans import Shared

if TYPE_CHECKING:
    from distop.lake.index.lookup import PublishedIndex


class LiveRows:
    """Reads data files of a table.

    Parameters
    ----------
    columns:
        Columns of the table's present schema to read, in this order.
    deleted:
        The equality deletes of the same table.
    groups_of:
        The row groups to read of a Parquet file, by its footer and its columns. ``None``: all.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        columns: Schema,
        deleted: EqualityDeletes,
        groups_of: Callable[[pq.FileMetaData, Schema], Sequence[int]] | None = None,
    ) -> None:
        self._metadata, self._io, self._columns, self._groups_of = metadata, io, columns, groups_of
        self._scan = scan_of(metadata, io, columns)
        self._deleted = deleted

    def of(self, task: FileScanTask) -> Iterator[pa.RecordBatch]:
        """The rows of one file, streamed."""
        equalities = [f for f in task.delete_files if f.content == DataFileContent.EQUALITY_DELETES]
        if not equalities:
            yield from batches_of(self._scan, self._io, task, self._groups_of)
            return
        deleted = self._deleted.keys_of(equalities)
        names = [column.name for column in self._columns.columns]
        compared = {number for fields, _ in deleted for number in fields}
        missing = sorted(compared.difference(field.field_id for field in self._columns.columns))
        more = (self._metadata.schema().find_field(number) for number in missing)
        # A file need not have the columns of its partition.
        optional = (column.model_copy(update={"required": False}) for column in more)
        columns = Schema(*self._columns.columns, *optional)
        scan = scan_of(self._metadata, self._io, columns)
        others = FileScanTask(task.file, set(task.delete_files).difference(equalities))
        for batch in batches_of(scan, self._io, others, self._groups_of):
            for fields, keys in deleted:
                held = keys.hold([batch[columns.find_column_name(number)] for number in fields])
                batch = batch.filter(pc.invert(held))
            if batch.num_rows:
                yield batch.select(names)


class EqualityDeletes:
    """The equality deletes of a table, read once: many data files have the same ones."""

    def __init__(self, metadata: TableMetadata, io: FileIO) -> None:
        self._metadata, self._io = metadata, io
        self._rows: dict[str, pa.Table] = {}
        """The rows of each delete file, by its path."""
        self._last = frozenset[str](), list[tuple[list[int], _Keys]]()
        """Paths, and what is deleted by them."""

    def keys_of(self, files: Iterable[DataFile]) -> list[tuple[list[int], _Keys]]:
        """The keys that some delete files name, by the ids of the columns that they are of."""
        by_path = {file.file_path: file for file in files}
        if self._last[0] != by_path.keys():
            self._last = frozenset(by_path), self._keys(by_path.values())
        return self._last[1]

    def _keys(self, files: Iterable[DataFile]) -> list[tuple[list[int], _Keys]]:
        schema = self._metadata.schema()
        by_fields: dict[tuple[int, ...], list[pa.Table]] = defaultdict(list)
        for file in files:
            fields = equality_fields(file, schema)
            if fields is None:  # plans refuse it
                raise CorruptRecord(f"{file.file_path} compares columns that the table does not have")
            if file.file_path not in self._rows:
                self._rows[file.file_path] = self._read(file, fields)
            by_fields[tuple(fields)].append(self._rows[file.file_path])
        return [(list(fields), _Keys(pa.concat_tables(rows))) for fields, rows in by_fields.items()]

    def _read(self, file: DataFile, fields: Iterable[int]) -> pa.Table:
        columns = Schema(*map(self._metadata.schema().find_field, fields))
        return scan_of(self._metadata, self._io, columns).to_table([FileScanTask(file)])


class _Keys:
    """A set of keys of some columns. A key becomes a number, column by column, by its place among those of
    the set."""

    def __init__(self, rows: pa.Table) -> None:
        self._places: list[tuple[pa.Array, pa.Array]] = []
        """Of each column, the values of keys, and what :func:`_paired` makes of them and of those before."""
        known = None
        for column in map(_plain, rows.columns):
            values = pc.unique(column)
            pairs = _paired(known, column, values)
            self._places.append((values, pc.unique(pairs)))
            known = _codes(pairs, pc.unique(pairs))

    def hold(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Whether the key of each row is in the set."""
        known = None
        for column, (values, pairs) in zip(map(_plain, columns), self._places, strict=True):
            known = _codes(_paired(known, column.cast(values.type), values), pairs)
        return pc.is_valid(known)


def _paired(known: pa.Array | None, column: pa.Array, values: pa.Array) -> pa.Array:
    """One number for the place of a key so far and that of its next value; NULL if there is none."""
    codes = _codes(column, values)
    return codes if known is None else pc.add(pc.multiply(known, len(values)), codes)


def _codes(column: pa.Array, values: pa.Array) -> pa.Array:
    return pc.index_in(column, value_set=values).cast(pa.int64())


def _plain(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return whole.storage if isinstance(whole, pa.ExtensionArray) else whole


@dataclass(frozen=True)
class PlannedFile:
    """A data file of a snapshot. Picklable."""

    path: str
    """URL, as in the manifest."""
    size: int
    """Bytes of the file."""
    rows: int
    """As written, including rows that delete files remove."""
    data_file: DataFile = field(compare=False, repr=False)
    """Everything else in the manifest: statistics, split offsets."""
    delete_files: tuple[DataFile, ...] = field(default=(), compare=False, repr=False)
    """Its delete files; programs other than distop write such."""

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
        """The file and its delete files as pyiceberg describes what is read."""
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
        data = [
            manifest
            for manifest in manifests
            if manifest.content == ManifestContent.DATA and pruning.manifest(manifest)
        ]
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
        root, paths = self.metadata.location.rstrip("/"), [file.path for file in files]
        partitioned: dict[int, set[str]] = defaultdict(set)
        for file in files:
            for column in identity_columns(self.metadata.specs()[file.spec_id]):
                partitioned[column].add(file.path)
        left = left_of(self.indexes, self.io, root, self.schema, predicate, paths, partitioned)
        if left is None:
            return files
        return [file for file in files if file.path in left]

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
        columns_of = {name: name if name in known else name.partition(".")[0] for name in columns}
        missing = [name for name, column in columns_of.items() if column not in known]
        if missing:
            raise InvalidArgument(
                f"the table has no column {missing[0]!r}; it has {', '.join(known)}",
                details={"field": "columns"},
            )
        names = dict.fromkeys(columns_of.values())
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
                if (matching := chosen(predicate, batch)).num_rows:
                    yield matching.select(names)

    @cached_property
    def _equality_deletes(self) -> EqualityDeletes:
        """Jobs ask for the rows of one file after the other."""

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
    snapshot = _opened(metadata_location, dict(storage or {}), snapshot_id, as_of_ms, branch)
    return replace(snapshot, indexes=tuple(indexes))


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
    snapshot = metadata.snapshot_by_name(branch)
    if snapshot is None:
        raise PreconditionFailed(
            f"the table at {metadata.location} has no branch {branch!r}", details={"field": "branch"}
        )
    return _at(metadata, snapshot, storage)


def _check_defaults(columns: Iterable[NestedField]) -> None:
    """Rows of files without a column have its default (Iceberg specification, "Default values"). None is to
    have another value than the one that was written down."""
    for column in columns:
        given = column.initial_default
        try:
            written = (
                None if given is None else pa.scalar(given, schema_to_pyarrow(column.field_type)).as_py()
            )
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise _bad_default(column, str(error)) from None
        if isinstance(given, float) and isinstance(written, float) and math.isinf(written):
            raise _bad_default(column, "it is too large")
        _check_defaults(fields_within(column.field_type))


def _bad_default(column: NestedField, reason: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"column {column.name!r} has the default value {column.initial_default!r}, which is no "
        f"{column.field_type}: {reason}",
        hint="drop the column with the program that added it",
        details={"column": column.name},
    )


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


MAX_NAME_CHARACTERS = 200
"""Longest name of a group, which becomes part of a key."""
WHOLE = "all"
"""The group of a table without partitions."""

_NULL, _NOT_NULL = "=null", "=%6Eull"
"""How a name ends for NULL, and for the text ``null``."""

TABLE, SNAPSHOT, GROUP_BYTES = "metadata", "snapshot", "groupBytes"
"""Fields of an operation's argument."""


@dataclass(frozen=True)
class SnapshotGroups:
    """The files of a snapshot, by the job that reads them."""

    snapshot: TableSnapshot
    groups: dict[str, list[PlannedFile]]
    """Name of a group -> its files, sorted by path."""
    partitions: dict[str, list[str]]
    """Name of a partition -> the names of its groups."""

    @classmethod
    def of(cls, snapshot: TableSnapshot, group_bytes: int) -> SnapshotGroups:
        """Plan the groups.

        Parameters
        ----------
        group_bytes:
            A larger partition, in bytes, is split into several groups of whole files; 0: never.
        """
        partitions: dict[str, list[str]] = {}
        groups: dict[str, list[PlannedFile]] = {}
        by_partition = _by_partition(snapshot, snapshot.plan_files())
        for partition in sorted(by_partition):
            # Another partition may have such a name.
            more = (name for number in count(1) if (name := f"{partition}~{number}") not in by_partition)
            pieces = dict(
                zip(chain([partition], more), _cut(by_partition[partition], group_bytes), strict=False)
            )
            partitions[partition] = list(pieces)
            groups |= pieces
        return cls(snapshot, groups, partitions)

    @classmethod
    def of_operation(cls, operation: OperationArg) -> SnapshotGroups:
        """The groups of an operation. Jobs of one operation in one process share them.

        Raises :class:`~distop.errors.CorruptRecord` if its argument has none.
        """
        return _shared(operation)

    def chosen(self, partitions: Sequence[str] | None) -> list[str]:
        """The names of the groups of these partitions, or of all.

        Raises :class:`~distop.errors.InvalidArgument` for an unknown partition.
        """
        if partitions is None:
            return list(self.groups)
        known = list(self.partitions)
        if unknown := sorted(set(partitions) - set(known)):
            raise InvalidArgument(
                f"the snapshot has no partition {unknown[0]!r}",
                hint=f"it has {', '.join(known[:5])}{', ...' if len(known) > 5 else ''}",
                details={"field": "partitions"},
            )
        return [group for name in dict.fromkeys(partitions) for group in self.partitions[name]]

    def group(self, name: str) -> list[PlannedFile]:
        """The files of a group; raises :class:`~distop.errors.JobFailed` for an unknown name."""
        if name not in self.groups:
            raise JobFailed(
                f"the snapshot has no group of files {name!r}: another version has made this plan"
            )
        return self.groups[name]

    def rows(
        self, files: Iterable[PlannedFile], columns: Sequence[str]
    ) -> Iterator[tuple[PlannedFile, pa.Table]]:
        """The rows of some files in blocks, each with its file.

        Raises :class:`~distop.errors.JobFailed` if a file is missing.
        """
        for file in files:
            try:
                for batch in self.snapshot.batches([file], columns=columns):
                    yield file, pa.Table.from_batches([batch])
            except FileNotFoundError as error:
                raise JobFailed(
                    f"{file.path} is missing, but the snapshot names it",
                    hint="was the snapshot expired, or the file removed by another program?",
                    details={"file": file.path},
                ) from error


def _recorded(operation: OperationArg) -> SnapshotGroups:
    argument = operation.argument
    try:
        metadata = TableMetadataUtil.parse_raw(msgspec.json.encode(argument[TABLE]).decode())
        snapshot = Snapshot.model_validate_json(msgspec.json.encode(argument[SNAPSHOT]))
        group_bytes = int(argument.get(GROUP_BYTES, 0))
    except (KeyError, ValueError) as error:
        raise CorruptRecord(f"the argument of {operation.id} names no snapshot: {error}") from error
    return SnapshotGroups.of(TableSnapshot(metadata, snapshot, operation.storage), group_bytes)


_shared = Shared(_recorded)


def recorded(snapshot: TableSnapshot, group_bytes: int = 0) -> dict[str, Any]:
    """The part of an operation's argument that :meth:`SnapshotGroups.of_operation` reads.

    Raises :class:`~distop.errors.PreconditionFailed` for a table of a format that cannot be written down.
    """
    assert snapshot.snapshot is not None
    if snapshot.metadata.format_version > FORMAT_VERSION:
        check_format(snapshot.metadata)
    # Its readers need no snapshots of the metadata.
    metadata = snapshot.metadata.model_copy(update={"current_snapshot_id": None})
    return {
        TABLE: msgspec.json.decode(metadata.model_dump_json()),
        SNAPSHOT: msgspec.json.decode(snapshot.snapshot.model_dump_json()),
        GROUP_BYTES: group_bytes,
    }


def _by_partition(snapshot: TableSnapshot, files: Sequence[PlannedFile]) -> dict[str, list[PlannedFile]]:
    metadata = snapshot.metadata
    specs = metadata.specs()
    several = len({file.spec_id for file in files}) > 1
    partitions: dict[str, list[PlannedFile]] = {}
    for file in files:
        spec = specs[file.spec_id]
        name = _name(spec, file.partition, metadata.schema()) if spec.fields else WHOLE
        # Different specs of a table may write different partitions in the same way.
        partitions.setdefault(_short(f"spec-{spec.spec_id}/{name}" if several else name), []).append(file)
    return partitions


def _name(spec: PartitionSpec, values: Record, schema: Schema) -> str:
    """Iceberg's name of a partition, but a value that it would write as NULL is encoded."""
    terms = partition_path(spec, schema, values).split("/")
    for position, term in enumerate(terms):
        if values[position] is not None and term.endswith(_NULL):
            terms[position] = term.removesuffix(_NULL) + _NOT_NULL
    return "/".join(terms)


def _cut(files: Sequence[PlannedFile], group_bytes: int) -> Iterator[list[PlannedFile]]:
    together: list[PlannedFile] = []
    size = 0
    for file in files:
        if together and group_bytes and size + file.size > group_bytes:
            yield together
            together, size = [], 0
        together.append(file)
        size += file.size
    yield together


def _short(name: str) -> str:
    if len(name) <= MAX_NAME_CHARACTERS:
        return name
    return f"{name[: MAX_NAME_CHARACTERS - 13]}~{hashlib.sha256(name.encode()).hexdigest()[:12]}"
