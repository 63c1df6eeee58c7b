"""The delete files of a snapshot, and which data files they concern (Iceberg specification, "Scan Planning").

Programs other than distop write them. pyiceberg's own index knows no equality deletes, and looks at each data
file of a partition with each delete file anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain

from pyiceberg.io import FileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import PrimitiveType

from distop.errors import PreconditionFailed
from distop.lake.layout.partitioning import is_unpartitioned
from distop.lake.rewriting.replace_partitions import Key, key_of

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
