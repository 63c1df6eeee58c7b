"""What one build of an index does: fixed when it starts, the same for every job, runner and leader.

The plan does not list the data files: there may be a hundred thousand, and etcd stores the plan. It names the
manifest list of one snapshot, which never changes, and where the sorted file names are split. A process that
needs the files computes them from that, with the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile, read_manifest_list
from pyiceberg.types import IcebergType, PrimitiveType

from distop.errors import CorruptRecord
from distop.lake.index.lookup import load_manifest
from distop.lake.index.manifest import IndexManifest
from distop.lake.layout.model import file_io
from distop.lake.storage.storage import FILES_AT_ONCE
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import plan_of


@dataclass(frozen=True, slots=True)
class DataFileSeen:
    """A data file of a snapshot."""

    path: str
    format: str
    """``PARQUET``, ``ORC`` or ``AVRO``."""
    rows: int


class IndexPlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """The argument of ``build_index``."""

    column: str
    field_id: int
    type: str
    """Type of the column, as Iceberg writes it."""
    names: list[str] = []
    """Names of the column in files without field ids."""
    encoding: str
    snapshot_id: str
    """Text: other JSON readers would lose the last digits of a number."""
    sequence_number: int = 0
    manifest_list: str
    """Manifest list of that snapshot."""
    replaces: str = ""
    """The manifest of the present index when this build starts; empty: there is none."""
    base: str = ""
    """The same if its parts are kept; empty: all files are indexed again."""
    cuts: list[int]
    """Where the sorted list of files to index is split: job ``n`` has those from ``cuts[n]`` on."""
    rebuilt: list[int] = []
    """Positions of the parts of ``base`` that are not kept: their files are indexed again."""
    layout: dict[str, Any] = {}
    """Only ``properties``: how to reach the table's files."""

    def to_argument(self) -> dict[str, Any]:
        """The plan in the form of the operation's argument."""
        argument: dict[str, Any] = msgspec.to_builtins(self)
        return argument

    @classmethod
    def of(cls, arg: OperationArg) -> IndexPlan:
        """The plan of an operation that builds an index. Raises :class:`~distop.errors.CorruptRecord`."""
        return plan_of(arg, cls, "plan of an index")

    @property
    def slices(self) -> int:
        """The number of jobs that index files."""
        return len(self.cuts) - 1

    def iceberg_type(self) -> IcebergType:
        """The column's type."""
        return parse_type(self.type)


def parse_type(text: str) -> IcebergType:
    """A primitive type by its Iceberg name."""
    try:
        parsed: IcebergType = TypeAdapter(PrimitiveType).validate_python(text)
        return parsed
    except (ValidationError, ValueError) as error:
        raise CorruptRecord(f"{text!r} is not a column type") from error


class Build:
    """A build of an index and its files."""

    def __init__(self, arg: OperationArg) -> None:
        self.arg = arg
        self.plan = IndexPlan.of(arg)
        self.root = arg.location.rstrip("/")
        self.io: FileIO = file_io(arg.location, arg.storage)

    @cached_property
    def base(self) -> IndexManifest | None:
        """The index to continue, with the retained parts.

        Raises :class:`~distop.errors.CorruptRecord` if it can no longer be read.
        """
        if not self.plan.base:
            return None
        manifest = load_manifest(self.io, self.plan.base, self.root)
        if manifest is None:
            raise CorruptRecord(
                f"the index that {self.arg.id} continues cannot be read: {self.plan.base}",
                hint="cancel it, and start it again with full: true",
            )
        return manifest.without(self.plan.rebuilt)

    @cached_property
    def present(self) -> list[DataFileSeen]:
        """All data files of the snapshot, by name."""
        return snapshot_files(self.io, self.plan.manifest_list)

    @cached_property
    def to_index(self) -> list[DataFileSeen]:
        """The files that jobs index, in order."""
        return not_covered(self.present, self.base)

    def slice(self, number: int) -> list[DataFileSeen]:
        """The files of one job."""
        start, end = self.plan.cuts[number : number + 2]
        return self.to_index[start:end]


def not_covered(files: Sequence[DataFileSeen], base: IndexManifest | None) -> list[DataFileSeen]:
    """Files that an index does not cover."""
    return [file for file in files if base is None or file.path not in base.part_of]


# -- the files of a snapshot -------------------------------------------------------------------------


def snapshot_files(io: FileIO, manifest_list: str) -> list[DataFileSeen]:
    """All data files of a snapshot, by name.

    Raises :class:`~distop.errors.CorruptRecord` if the snapshot was expired meanwhile.
    """
    try:
        return sorted(_files_in(io, manifest_list), key=lambda file: file.path)
    except FileNotFoundError as error:
        raise CorruptRecord(
            f"the snapshot that is being indexed is gone: {error}",
            hint="was it expired by another program? cancel the operation and start it again",
        ) from error


def _files_in(io: FileIO, manifest_list: str) -> Iterator[DataFileSeen]:
    def listed(manifest: ManifestFile) -> list[DataFileSeen]:
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        return [_described(entry.data_file) for entry in entries]

    manifests = [
        manifest
        for manifest in read_manifest_list(io.new_input(manifest_list))
        # Deleted rows only make an answer larger than necessary.
        if manifest.content == ManifestContent.DATA
    ]
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="index-files") as pool:
        for files in pool.map(listed, manifests):
            yield from files


def _described(file: DataFile) -> DataFileSeen:
    return DataFileSeen(file.file_path, str(file.file_format.value), file.record_count)
