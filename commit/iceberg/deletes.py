"""Files of deleted rows, and which data files they concern (Iceberg spec, scan planning).

pyiceberg's own index knows no equality deletes, and looks at each data file of a partition with each delete
file anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pyiceberg.manifest import DataFile, DataFileContent, ManifestEntry
from pyiceberg.partitioning import PartitionSpec

from distop.commit.iceberg.replace_partitions import Key, key_of

_PATH = 2147483546
"""The id of the column of position deletes that names the data file."""


class DeleteFiles:
    """Those of a snapshot, or some of them."""

    def __init__(self, entries: Iterable[ManifestEntry], specs: dict[int, PartitionSpec]) -> None:
        self._of_file: dict[bytes, list[ManifestEntry]] = defaultdict(list)
        self._positions: dict[tuple[int, Key], list[ManifestEntry]] = defaultdict(list)
        self._equalities: dict[tuple[int, Key] | None, list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            file = entry.data_file
            place = _place(file)
            if file.content == DataFileContent.EQUALITY_DELETES:
                everywhere = not specs[file.spec_id].fields
                self._equalities[None if everywhere else place].append(entry)
            elif (only := _only_of(file)) is not None:
                self._of_file[only].append(entry)
            else:
                self._positions[place].append(entry)

    def concerning(self, entry: ManifestEntry) -> list[DataFile]:
        """Those that may name rows of a data file."""
        file, age, path = entry.data_file, entry.sequence_number or 0, entry.data_file.file_path.encode()
        place = _place(file)
        positions = (*self._of_file.get(path, ()), *self._positions.get(place, ()))
        equalities = (*self._equalities.get(None, ()), *self._equalities.get(place, ()))
        return [
            *(one.data_file for one in positions if _age(one) >= age and _may_name(one.data_file, path)),
            *(one.data_file for one in equalities if _age(one) > age),
        ]


def _place(file: DataFile) -> tuple[int, Key]:
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
