"""What one build of an index is to do: fixed when it starts, the same for every job, runner and leader.

The plan does not list the data files: there may be a hundred thousand, and etcd holds it. It names the list
of manifests of one snapshot, which never changes, and where the sorted file names are cut. A process that
needs the files works them out from that, and finds the same ones.
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

from distop.commit.files.storage import FILES_AT_ONCE
from distop.commit.index.lookup import load_manifest
from distop.commit.index.manifest import IndexManifest
from distop.commit.layout.model import file_io
from distop.errors import CorruptRecord
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
    """The argument of ``build_index``, as it is recorded."""

    column: str
    field_id: int
    type: str
    """Of the column, as Iceberg writes it."""
    names: list[str] = []
    """What the column may be called in files that have no field ids."""
    encoding: str
    snapshot_id: str
    """Text: JSON elsewhere would take the last digits of a number."""
    sequence_number: int = 0
    manifest_list: str
    """Of that snapshot."""
    replaces: str = ""
    """The manifest of the index that stands when this one starts; empty: there is none."""
    base: str = ""
    """The same if its parts are kept; empty: all files are indexed anew."""
    cuts: list[int]
    """Where the sorted list of files to be indexed is cut: job ``n`` has those from ``cuts[n]`` on."""
    rebuilt: list[int] = []
    """Places of the parts of ``base`` that are not kept: their files are indexed again."""
    layout: dict[str, Any] = {}
    """Only ``properties``: how the table's files are reached."""

    def to_argument(self) -> dict[str, Any]:
        """As it stands in the operation's argument."""
        argument: dict[str, Any] = msgspec.to_builtins(self)
        return argument

    @classmethod
    def of(cls, arg: OperationArg) -> IndexPlan:
        """Raises :class:`~distop.errors.CorruptRecord`."""
        return plan_of(arg, cls, "plan of an index")

    @property
    def slices(self) -> int:
        """How many jobs index files."""
        return len(self.cuts) - 1

    def iceberg_type(self) -> IcebergType:
        """The column's type."""
        return parse_type(self.type)


def parse_type(text: str) -> IcebergType:
    """A primitive type by the name that Iceberg gives it."""
    try:
        found: IcebergType = TypeAdapter(PrimitiveType).validate_python(text)
        return found
    except (ValidationError, ValueError) as error:
        raise CorruptRecord(f"{text!r} is no type of a column") from error


class Build:
    """A build of an index and the files that it is about."""

    def __init__(self, arg: OperationArg) -> None:
        self.arg = arg
        self.plan = IndexPlan.of(arg)
        self.root = arg.location.rstrip("/")
        self.io: FileIO = file_io(arg.location, arg.storage)

    @cached_property
    def base(self) -> IndexManifest | None:
        """The index that is continued, with the parts that are kept.

        Raises :class:`~distop.errors.CorruptRecord` if it cannot be read any more.
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
        """The files that jobs index, in their order."""
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
        return sorted(_read(io, manifest_list), key=lambda file: file.path)
    except FileNotFoundError as error:
        raise CorruptRecord(
            f"the snapshot that is being indexed is gone: {error}",
            hint="was it expired by another program? cancel the operation and start it again",
        ) from error


def _read(io: FileIO, manifest_list: str) -> Iterator[DataFileSeen]:
    def listed(manifest: ManifestFile) -> list[DataFileSeen]:
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        return [_seen(entry.data_file) for entry in entries]

    manifests = [
        manifest
        for manifest in read_manifest_list(io.new_input(manifest_list))
        # Rows that were deleted only make an answer larger than it need be.
        if manifest.content == ManifestContent.DATA
    ]
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="index-files") as pool:
        for files in pool.map(listed, manifests):
            yield from files


def _seen(file: DataFile) -> DataFileSeen:
    return DataFileSeen(file.file_path, str(file.file_format.value), file.record_count)
