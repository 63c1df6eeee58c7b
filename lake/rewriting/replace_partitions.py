"""Takes files out of a table's present content: those of partitions, of an earlier operation, or by path; and
knows which delete files concern a data file (Iceberg specification, "Scan Planning").

Programs other than distop write delete files. pyiceberg's own index knows no equality deletes, and looks at
each data file of a partition with each delete file anew.

All that rewrites a table is built on it: overwriting partitions, replacing what was written before, deleting,
merging and compacting. Manifests that list none of the files stay as they are.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeAlias

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import snapshots as iceberg_snapshots
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import KeyDefaultDict, Record
from pyiceberg.types import PrimitiveType

from distop.commit.contract import ADOPTED_FROM
from distop.errors import CorruptRecord, HeadConflict, PreconditionFailed
from distop.lake.iceberg.append import SnapshotContent, added_counts
from distop.lake.iceberg.metadata_files import TableFile, is_live, removers, writer_of
from distop.lake.iceberg.provenance import BATCHES, INSTEAD_OF, OPERATION
from distop.lake.iceberg.snapshots import Draft, merged
from distop.lake.iceberg.takeover import JobsOutput
from distop.lake.layout.model import Layout, schema_of
from distop.lake.layout.partitioning import is_unpartitioned
from distop.lake.storage.storage import FILES_AT_ONCE
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.record import from_json

Key: TypeAlias = tuple[Any, ...]
"""The partition values of a file."""

REWRITTEN_FILES = 20_000
"""Most files listed in one rewritten manifest."""


def key_of(partition: Record, fields: int) -> Key:
    """Comparable partition values: NaN equals NaN."""
    values = (partition[position] for position in range(fields))
    return tuple("NaN" if isinstance(value, float) and value != value else value for value in values)


def partitions_in(io: FileIO, manifests: Iterable[ManifestFile], spec: PartitionSpec) -> frozenset[Key]:
    """The partitions of the files in some manifests of one partition spec."""

    def keys(manifest: ManifestFile) -> set[Key]:
        try:
            entries = manifest.fetch_manifest_entry(io)
        except FileNotFoundError as error:
            raise CorruptRecord(f"the manifest {manifest.manifest_path} is missing") from error
        return {key_of(entry.data_file.partition, len(spec.fields)) for entry in entries}

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="manifests") as pool:
        return frozenset(key for some in pool.map(keys, manifests) for key in some)


@dataclass(kw_only=True)
class Replaced:
    """What is left of a snapshot without some of its partitions."""

    untouched: list[ManifestFile] = field(default_factory=list)
    rewritten: list[ManifestFile] = field(default_factory=list)
    files: int = 0
    """Data files that the snapshot no longer has."""
    rows: int = 0
    bytes: int = 0

    def counts(self) -> dict[str, str]:
        """For a snapshot's summary."""
        counts = {
            iceberg_snapshots.DELETED_DATA_FILES: self.files,
            iceberg_snapshots.DELETED_RECORDS: self.rows,
            iceberg_snapshots.REMOVED_FILE_SIZE: self.bytes,
        }
        return {name: str(count) for name, count in counts.items() if count}

    def replaced_by(
        self,
        draft: Draft,
        output: JobsOutput,
        added: Sequence[ManifestFile],
        snapshot_id: int,
        facts: Mapping[str, Any],
    ) -> SnapshotContent:
        """The content of a snapshot with the operation's files in place of the removed ones."""
        parent = draft.base.current_snapshot()
        operation = (
            iceberg_snapshots.Operation.OVERWRITE if output.files else iceberg_snapshots.Operation.DELETE
        )
        if output.files and not self.files:
            operation = iceberg_snapshots.Operation.APPEND
        summary = iceberg_snapshots.update_snapshot_summaries(
            iceberg_snapshots.Summary(operation=operation, **added_counts(output), **self.counts()),
            parent.summary if parent else None,
        )
        return SnapshotContent(
            manifests=[*added, *self.rewritten, *merged(draft, self.untouched, snapshot_id)],
            summary=summary,
            facts={ADOPTED_FROM: output.adopt_from, "removedFiles": self.files, **facts},
        )


class Located:
    """Which of some files the table still has, and the manifests that list them.

    Parameters
    ----------
    live:
        The manifests of the table's present snapshot that list files.
    wanted:
        The paths of the files.
    areas:
        The partitions they are in, by partition spec; see :func:`areas_of`. ``None``: read all manifests.
    deletes_of:
        The paths of the delete files that concern a file.
    """

    def __init__(
        self,
        draft: Draft,
        live: Sequence[ManifestFile],
        wanted: Collection[str],
        areas: Mapping[int, Area] | None,
        deletes_of: Callable[[ManifestEntry], Collection[str]] = lambda _: (),
    ) -> None:
        self._draft = draft
        self._holding: dict[int, list[ManifestFile]] = {}
        """Manifests that list some of the files, by partition spec."""
        self._others: list[ManifestFile] = []
        self.there: dict[str, Collection[str]] = {}
        """The files that the table still has, and the delete files that concern each."""
        self.needed = set[str]()
        """Delete files that concern other files of these manifests."""

        def listed(manifest: ManifestFile) -> tuple[dict[str, Collection[str]], set[str]]:
            deletes, needed = dict[str, Collection[str]](), set[str]()
            area = None if areas is None else areas.get(manifest.partition_spec_id)
            may_hold = areas is None or (area is not None and area.may_hold(manifest))
            if manifest.content == ManifestContent.DATA and may_hold:
                for entry in manifest.fetch_manifest_entry(draft.io):
                    if entry.data_file.file_path in wanted:
                        deletes[entry.data_file.file_path] = deletes_of(entry)
                    else:
                        needed.update(deletes_of(entry))
            return deletes, needed

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="manifests") as pool:
            for manifest, (there, needed) in zip(live, pool.map(listed, live), strict=True):
                if there:
                    self._holding.setdefault(manifest.partition_spec_id, []).append(manifest)
                else:
                    self._others.append(manifest)
                self.there |= there
                self.needed |= needed

    def take_out(self, leaving: Collection[str], snapshot_id: int) -> Replaced:
        """Remove some of the files from the table."""
        replaced = Replaced(untouched=self._others)
        for spec_id, manifests in self._holding.items():
            spec = self._draft.base.specs()[spec_id]
            take_out(
                self._draft,
                spec,
                manifests,
                lambda entry: entry.data_file.file_path in leaving,
                replaced,
                snapshot_id,
            )
        return replaced


def files_changed(
    arg: OperationArg, draft: Draft, since: str | None, purpose: str, hint: str
) -> HeadConflict:
    """The error if others have changed the files that an operation has read of the snapshot ``since``; it
    names the newest snapshot that may have."""
    first = next(iter(removers(draft.file, draft.base.current_snapshot(), since)), None)
    current = "" if first is None else str(first.snapshot_id)
    return HeadConflict(
        f"the files {purpose}, of snapshot {since} of table {arg.table!r}, have changed: snapshot "
        f"{current or 'none'}, written by {writer_of(first)}, has removed them or some of their rows",
        hint=f"{hint}; start the operation again, on the table's present content",
        details={"expected": str(since), "snapshot": current, "by": writer_of(first)},
    )


def replace_partitions(draft: Draft, layout: Layout, keys: Collection[Key], snapshot_id: int) -> Replaced:
    """Remove the files of some partitions from a table.

    Manifests that list none of them stay as they are; the others are rewritten.

    Raises
    ------
    PreconditionFailed
        The table also holds files of another partitioning: their metadata does not say which of their rows
        are in these partitions.
    """
    replaced = Replaced()
    area = Area(layout.spec, draft.base.schema(), keys)
    touched: list[ManifestFile] = []
    for manifest in live_manifests(draft.base.current_snapshot(), draft.io):
        if manifest.content == ManifestContent.DELETES:
            # Deletes name files, or apply to older rows: new files are not concerned.
            replaced.untouched.append(manifest)
            continue
        if manifest.partition_spec_id != layout.spec.spec_id:
            raise PreconditionFailed(
                f"the table at {draft.base.location} holds files of partition spec "
                f"{manifest.partition_spec_id}, the new files have spec {layout.spec.spec_id}",
                hint="overwrite the whole table, or rewrite its older files in the present partitioning",
            )
        (touched if area.may_hold(manifest) else replaced.untouched).append(manifest)
    take_out(draft, layout.spec, touched, area.holds, replaced, snapshot_id)
    return replaced


def added_by(file: TableFile, operation: str) -> iceberg_snapshots.Snapshot:
    """The snapshot of the table's history with the files that an operation has added.

    Raises :class:`~distop.errors.PreconditionFailed` if there is none, or it did more than add them.
    """
    details = {"field": "replaces", "operation": operation}
    snapshot = file.metadata.current_snapshot()
    while snapshot is not None:
        here, parent = snapshot, snapshot.parent_snapshot_id
        snapshot = None if parent is None else file.snapshot(parent)
        summary = here.summary
        if summary is None or summary.additional_properties.get(OPERATION) != operation:
            continue
        if (
            summary.operation != iceberg_snapshots.Operation.APPEND
            and INSTEAD_OF not in summary.additional_properties
        ):
            break
        together = from_json(summary.additional_properties.get(BATCHES, "[]").encode(), list[str])
        if len(together) > 1:
            raise PreconditionFailed(
                f"{operation} has applied several batches together: the rows of one cannot be taken out",
                hint="to replace them, overwrite their partitions: --mode overwrite_partitions",
                details=details,
            )
        return here
    else:
        raise PreconditionFailed(
            f"the history of the table does not hold {operation}: it published nothing, was rolled back, or "
            "its snapshot has expired",
            hint="to replace what it wrote, overwrite its partitions: --mode overwrite_partitions",
            details=details,
        )
    raise PreconditionFailed(
        f"{operation} did more than add rows: what it wrote cannot be taken out again",
        hint="roll the table back, or name another run",
        details=details,
    )


def take_out_added(draft: Draft, earlier: iceberg_snapshots.Snapshot, snapshot_id: int) -> Replaced:
    """Remove the files that a snapshot has added from a table.

    Raises :class:`~distop.errors.PreconditionFailed` if some of them are gone: their rows may be in others.
    """
    replaced, by_spec = Replaced(), dict[int, list[ManifestFile]]()
    number = earlier.sequence_number or 0
    for manifest in live_manifests(draft.base.current_snapshot(), draft.io):
        may_hold = (manifest.min_sequence_number or 0) <= number <= (manifest.sequence_number or number)
        if manifest.content == ManifestContent.DATA and may_hold:
            by_spec.setdefault(manifest.partition_spec_id, []).append(manifest)
        else:
            replaced.untouched.append(manifest)
    for spec_id, manifests in by_spec.items():
        spec = draft.base.specs()[spec_id]
        take_out(
            draft, spec, manifests, lambda e: e.snapshot_id == earlier.snapshot_id, replaced, snapshot_id
        )
    added = earlier.summary.additional_properties if earlier.summary else {}
    files, rows = (
        int(added.get(name, 0))
        for name in (iceberg_snapshots.ADDED_DATA_FILES, iceberg_snapshots.ADDED_RECORDS)
    )
    if (replaced.files, replaced.rows) != (files, rows):
        raise PreconditionFailed(
            f"of the {files} files of snapshot {earlier.snapshot_id} {replaced.files} are left in the table: "
            "rows of the others are in files of a compaction, or were deleted",
            hint="to replace what it wrote, overwrite its partitions: --mode overwrite_partitions",
            details={"field": "replaces", "snapshot": str(earlier.snapshot_id)},
        )
    return replaced


def take_out_all(draft: Draft, snapshot_id: int) -> tuple[Replaced, int]:
    """Remove all files from a table. The second value is the number of delete files among them."""
    replaced, by_spec, delete_files = Replaced(), dict[int, list[ManifestFile]](), 0
    for manifest in live_manifests(draft.base.current_snapshot(), draft.io):
        if manifest.content == ManifestContent.DATA:
            by_spec.setdefault(manifest.partition_spec_id, []).append(manifest)
        else:
            delete_files += (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
    for spec_id, manifests in by_spec.items():
        take_out(draft, draft.base.specs()[spec_id], manifests, lambda _: True, replaced, snapshot_id)
    return replaced, delete_files


def take_out(
    draft: Draft,
    spec: PartitionSpec,
    manifests: Iterable[ManifestFile],
    leaves: Callable[[ManifestEntry], bool],
    replaced: Replaced,
    snapshot_id: int,
    content: ManifestContent = ManifestContent.DATA,
) -> None:
    """Remove files from manifests of one partition spec and content, and add the rest to ``replaced``."""
    builder = draft.new_manifest(spec.spec_id, snapshot_id, content)
    for manifest, entries in _read(draft.io, manifests):
        leaving = [leaves(entry) for entry in entries]
        if not any(leaving):
            replaced.untouched.append(manifest)
            continue
        for entry, is_leaving in zip(entries, leaving, strict=True):
            if not is_leaving:
                builder.keep(entry)
                continue
            builder.remove(entry)
            replaced.files += 1
            replaced.rows += entry.data_file.record_count
            replaced.bytes += entry.data_file.file_size_in_bytes
        if sum(builder.files.values()) >= REWRITTEN_FILES:
            replaced.rewritten.append(builder.write(draft.io, draft.new_manifest_path()))
            builder = draft.new_manifest(spec.spec_id, snapshot_id, content)
    if not builder.empty:
        replaced.rewritten.append(builder.write(draft.io, draft.new_manifest_path()))


def changed_since(
    draft: Draft, layout: Layout, keys: Collection[Key], then: iceberg_snapshots.Snapshot | None
) -> int | None:
    """Whether some partitions differ from those in an earlier snapshot.

    Returns
    -------
    The id of a snapshot that changed them (the present one, if only missing files show it); ``None`` if they
    are unchanged.
    """
    now = draft.base.current_snapshot()
    area = Area(layout.spec, draft.base.schema(), keys)
    before = {manifest.manifest_path: manifest for manifest in live_manifests(then, draft.io)}
    after = {manifest.manifest_path: manifest for manifest in live_manifests(now, draft.io)}
    # Manifests never change, so manifests in both are equal.
    old = dict(area.files(draft.io, (before[path] for path in before.keys() - after.keys())))
    new = dict(area.files(draft.io, (after[path] for path in after.keys() - before.keys())))
    for path in sorted(new.keys() - old.keys()):
        return new[path]
    return now.snapshot_id if now is not None and old.keys() - new.keys() else None


class Area:
    """Some partitions of one partition spec."""

    def __init__(self, spec: PartitionSpec, schema: Schema, keys: Collection[Key]) -> None:
        self._spec = spec
        self._keys = keys
        kinds = (column.field_type for column in spec.partition_type(schema).fields)
        self._kinds = [kind for kind in kinds if isinstance(kind, PrimitiveType)]

    def holds(self, entry: ManifestEntry) -> bool:
        return key_of(entry.data_file.partition, len(self._kinds)) in self._keys

    def may_hold(self, manifest: ManifestFile) -> bool:
        """Whether a manifest of this spec may list a file in it, by its value ranges."""
        if manifest.partitions is None or len(manifest.partitions) != len(self._kinds):
            return True
        ranges = [
            (
                summary,
                None if summary.lower_bound is None else from_bytes(kind, summary.lower_bound),
                None if summary.upper_bound is None else from_bytes(kind, summary.upper_bound),
            )
            for kind, summary in zip(self._kinds, manifest.partitions, strict=True)
        ]

        def inside(value: Any, position: int) -> bool:
            summary, low, high = ranges[position]
            if value is None:
                return bool(summary.contains_null)
            if value == "NaN" and summary.contains_nan is not False:
                return True
            try:
                return low is not None and high is not None and bool(low <= value <= high)
            except TypeError:
                return True

        return any(all(inside(value, position) for position, value in enumerate(key)) for key in self._keys)

    def files(self, io: FileIO, manifests: Iterable[ManifestFile]) -> Iterator[tuple[str, int]]:
        """Paths of its files, delete files included, and the snapshots that added them.

        Files of another partitioning may concern it, and count.
        """
        for manifest in manifests:
            has_spec = manifest.partition_spec_id == self._spec.spec_id
            if has_spec and not self.may_hold(manifest):
                continue
            for entry in manifest.fetch_manifest_entry(io):
                if not has_spec or self.holds(entry):
                    yield entry.data_file.file_path, entry.snapshot_id or 0


def areas_of(metadata: TableMetadata, places: Iterable[FilePartition]) -> dict[int, Area]:
    """The areas that some partitions are, by partition spec; those of a spec that the table no longer has are
    left out: it has no such file."""
    specs, values_of = metadata.specs(), dict[int, set[tuple[str | None, ...]]]()
    for spec_id, values in places:
        if spec_id in specs:
            values_of.setdefault(spec_id, set()).add(values)
    areas = {}
    for spec_id, several in values_of.items():
        spec = specs[spec_id]
        schema = schema_of(metadata, spec)
        records = (unpacked_values(spec, schema, values) for values in several)
        areas[spec_id] = Area(spec, schema, {key_of(record, len(spec.fields)) for record in records})
    return areas


FilePartition: TypeAlias = tuple[int, tuple[str | None, ...]]
"""A partition: the id of its spec, and its packed values."""


class FilePartitions:
    """The partition of a file, by the spec that it was written with."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._specs = metadata.specs()
        self._schemas: dict[int, Schema] = KeyDefaultDict(
            lambda spec_id: schema_of(metadata, self._specs[spec_id])
        )

    def of(self, file: DataFile) -> FilePartition:
        """Raises :class:`~distop.errors.PreconditionFailed` if the types of its values are not known."""
        spec_id = file.spec_id
        return spec_id, packed_values(self._specs[spec_id], self._schemas[spec_id], file.partition)


def packed_values(spec: PartitionSpec, schema: Schema, partition: Record) -> tuple[str | None, ...]:
    """The values of a partition as text: base 64 of the Iceberg specification's binary values.

    A value has the same text for all readers' types (a date as a date, or as a number of days).
    """
    return tuple(
        None if partition[position] is None else b64encode(to_bytes(kind, partition[position])).decode()
        for position, kind in enumerate(_kinds(spec, schema))
    )


def unpacked_values(spec: PartitionSpec, schema: Schema, values: Sequence[str | None]) -> Record:
    """The inverse of :func:`packed_values`."""
    kinds = _kinds(spec, schema)
    plain = (
        None if value is None else from_bytes(kind, b64decode(value))
        for kind, value in zip(kinds, values, strict=True)
    )
    return Record(*plain)


def _kinds(spec: PartitionSpec, schema: Schema) -> list[PrimitiveType]:
    kinds = (field.field_type for field in spec.partition_type(schema).fields)
    return [kind for kind in kinds if isinstance(kind, PrimitiveType)]


def _read(
    io: FileIO, manifests: Iterable[ManifestFile]
) -> Iterator[tuple[ManifestFile, list[ManifestEntry]]]:
    """Manifests and their entries, a few at a time."""
    rest = iter(manifests)
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="manifests") as pool:
        while some := list(islice(rest, FILES_AT_ONCE)):
            yield from zip(
                some, pool.map(lambda manifest: manifest.fetch_manifest_entry(io), some), strict=True
            )


def live_manifests(snapshot: iceberg_snapshots.Snapshot | None, io: FileIO) -> list[ManifestFile]:
    """The manifests of a snapshot that list files of its content."""
    return [m for m in snapshot.manifests(io) if is_live(m)] if snapshot is not None else []


_PATH = 2147483546
"""The id of the column of position deletes that names the data file."""

_READABLE = {
    DataFileContent.POSITION_DELETES: (FileFormat.PARQUET, FileFormat.ORC, FileFormat.PUFFIN),
    DataFileContent.EQUALITY_DELETES: (FileFormat.PARQUET,),
}


class Deletes:
    """The delete files of a snapshot.

    All of them are read. Their statistics say which rows they name, but not what else is in the files of
    those rows.

    Parameters
    ----------
    manifests:
        The live manifests of the snapshot; those that list data files are skipped.
    """

    def __init__(self, metadata: TableMetadata, io: FileIO, manifests: Sequence[ManifestFile]) -> None:
        self.entries = [
            entry
            for manifest in manifests
            if manifest.content == ManifestContent.DELETES
            for entry in manifest.fetch_manifest_entry(io)
        ]
        self.paths = frozenset(entry.data_file.file_path for entry in self.entries)
        self._specs = metadata.specs()
        of_file: dict[bytes, list[ManifestEntry]] = defaultdict(list)
        positions: dict[tuple[int, Key], list[ManifestEntry]] = defaultdict(list)
        equalities: dict[tuple[int, Key] | None, list[ManifestEntry]] = defaultdict(list)
        for entry in self.entries:
            file = entry.data_file
            partition = _partition_of(file)
            if file.content == DataFileContent.EQUALITY_DELETES:
                equalities[None if self.is_everywhere(entry) else partition].append(entry)
            elif (only := _only_of(file)) is not None:
                of_file[only].append(entry)
            else:
                positions[partition].append(entry)
        self._of_file, self._positions, self._equalities = (
            {key: _ByAge(entries) for key, entries in groups.items()}
            for groups in (of_file, positions, equalities)
        )
        reasons = {file.file_path: _unreadable(file, metadata.schema()) for file in self.in_order()}
        self._unreadable = {path: reason for path, reason in reasons.items() if reason}

    def in_order(self) -> list[DataFile]:
        """All of them: those that concern the same files one after the other, the oldest first, so that those
        of a file are few ranges."""
        groups = chain(self._of_file.values(), self._positions.values(), self._equalities.values())
        files = chain.from_iterable(group.files for group in groups)
        return list({file.file_path: file for file in files}.values())  # one file may hold several

    def is_everywhere(self, entry: ManifestEntry) -> bool:
        """Whether a delete file concerns files of any partition."""
        file = entry.data_file
        by_value = file.content == DataFileContent.EQUALITY_DELETES
        return by_value and is_unpartitioned(self._specs[file.spec_id])

    def concerning(self, entry: ManifestEntry) -> list[DataFile]:
        """Those that may name rows of a data file."""
        if not self.entries:
            return []
        file, age, path = entry.data_file, _age(entry), entry.data_file.file_path.encode()
        partition = _partition_of(file)
        positions = [
            *self._of_file.get(path, _NONE).since(age),
            *(file for file in self._positions.get(partition, _NONE).since(age) if _may_name(file, path)),
        ]
        equalities = (self._equalities.get(key, _NONE).since(age + 1) for key in (None, partition))
        return [*positions, *chain.from_iterable(equalities)]

    def applied_to(self, entry: ManifestEntry) -> set[DataFile]:
        """The same, to be applied when the data file is read.

        Raises :class:`~distop.errors.PreconditionFailed` if one of them cannot be.
        """
        deletes = self.concerning(entry)
        for file in deletes if self._unreadable else ():
            if reason := self._unreadable.get(file.file_path):
                raise PreconditionFailed(
                    f"rows of {entry.data_file.file_path} are deleted by {file.file_path}, which cannot be "
                    f"read here: {reason}",
                    hint="rewrite the data file with the program that wrote the delete file",
                )
        return set(deletes)


class _ByAge:
    """Delete files, the oldest first: those that concern a data file are the ones at the end."""

    def __init__(self, entries: Iterable[ManifestEntry]) -> None:
        ordered = sorted(entries, key=lambda entry: (_age(entry), entry.data_file.file_path))
        self.files = [entry.data_file for entry in ordered]
        self._ages = [_age(entry) for entry in ordered]

    def since(self, age: int) -> list[DataFile]:
        """The delete files of this sequence number and newer."""
        return self.files[bisect_left(self._ages, age) :]


_NONE = _ByAge(())


def equality_fields(file: DataFile, schema: Schema) -> list[int] | None:
    """The ids of the columns that an equality delete compares; ``None`` if they are not all plain columns of
    the schema."""
    plain = {column.field_id for column in schema.columns if isinstance(column.field_type, PrimitiveType)}
    wanted = sorted(file.equality_ids or ())
    return wanted if wanted and plain.issuperset(wanted) else None


def _unreadable(file: DataFile, schema: Schema) -> str:
    """Why a delete file cannot be applied; empty: it can."""
    if file.key_metadata is not None:
        return "it is encrypted"
    if file.file_format not in _READABLE[file.content]:
        return f"it is a file of the format {file.file_format}"
    if file.content == DataFileContent.EQUALITY_DELETES and equality_fields(file, schema) is None:
        return "it compares columns that the table has dropped, or that are within others"
    return ""


def _partition_of(file: DataFile) -> tuple[int, Key]:
    return file.spec_id, key_of(file.partition, len(file.partition))


def _only_of(file: DataFile) -> bytes | None:
    least, greatest = _bounds(file)
    return least if least is not None and least == greatest else None


def _may_name(file: DataFile, path: bytes) -> bool:
    least, greatest = _bounds(file)
    return (least is None or least <= path) and (greatest is None or path <= greatest)


def _bounds(file: DataFile) -> tuple[bytes | None, bytes | None]:
    return (file.lower_bounds or {}).get(_PATH), (file.upper_bounds or {}).get(_PATH)


def _age(entry: ManifestEntry) -> int:
    return entry.sequence_number or 0
