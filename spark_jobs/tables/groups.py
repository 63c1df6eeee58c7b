"""The data files of one snapshot in groups: one for each job of an operation that reads a table.

A snapshot never changes. So it is enough to record its description and that of the table's columns and
partitioning when the operation starts: every job computes the same groups from the snapshot's manifests,
whatever happens to the table meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from distop.errors import CorruptRecord, JobFailed
from distop.lake.layout.model import check_format
from distop.lake.layout.partitioning import partition_path
from distop.lake.layout.properties import FORMAT_VERSION
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import Shared
from distop.spark_jobs.tables.snapshot import PlannedFile, TableSnapshot

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
