"""The frozen plan of a rewrite: which files each job reads, so that the commit can replace exactly these."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain, starmap
from typing import Any, TypeAlias

import msgspec
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.typedef import KeyDefaultDict, Record
from pyiceberg.types import PrimitiveType

from distop.lake.layout.model import Layout, schema_of
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import Shared, plan_of


class RewriteFile(msgspec.Struct, array_like=True, frozen=True):
    """One file: ``[number of its folder, name, bytes, rows, ranges of the numbers of its delete files]``."""

    folder: int
    name: str
    size: int
    rows: int
    """As written, including rows that delete files remove."""
    deletes: list[tuple[int, int]] = []
    """Numbers of its delete files, as ranges whose ends are excluded."""

    @property
    def delete_numbers(self) -> Iterator[int]:
        return chain.from_iterable(starmap(range, self.deletes))


class RewriteDelete(msgspec.Struct, array_like=True, frozen=True):
    """One delete file: ``[path, format, ids of the columns that it compares]``."""

    path: str
    format: str
    fields: list[int]
    """Empty: it names rows by their positions."""


class RewriteJob(msgspec.Struct, array_like=True, frozen=True):
    """One job: ``[number of its partition, files]``."""

    partition: int
    files: list[RewriteFile]


class RewritePartition(msgspec.Struct, array_like=True, frozen=True):
    """One partition: ``[its path, its values, its partition spec]``."""

    path: str
    """The readable path: ``kind=a/day=2013-01-01``; empty in a table without partitions."""
    values: list[str | None]
    """As :func:`packed_values` returns them."""
    spec_id: int | None = None
    """The partition spec of its files, if that is an earlier one of the table."""


class RewritePlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """The plan of a compaction, as it is recorded."""

    layout: dict[str, Any]
    """The table's; see :meth:`distop.lake.layout.model.Layout.to_json`."""
    earlier: list[dict[str, Any]] = []
    """A layout for each earlier partition spec of files to rewrite, with a schema that has its columns."""
    snapshot_id: str | None = None
    """The snapshot with the files. A string, since JSON readers' numbers are too small for it."""
    folders: list[str] = []
    partitions: list[RewritePartition] = []
    jobs: list[RewriteJob] = []
    deletes: list[RewriteDelete] = []
    """Delete files that the jobs apply, and those that concern no file of the snapshot. The commit removes
    those that concern no file of the table then."""
    target_file_bytes: int = 0
    sort_order: dict[str, Any] | None = None
    """An Iceberg sort order with its id; the commit adds it to the table."""
    passed_over: dict[str, int] = {}
    """Why files that qualify are not rewritten, and how many."""

    @classmethod
    def of(cls, operation: OperationArg) -> RewritePlan:
        """The plan of an operation; jobs of one operation in one process share it.

        Raises :class:`~distop.errors.CorruptRecord`.
        """
        return _shared(operation)

    @cached_property
    def table_layout(self) -> Layout:
        return Layout.from_json(self.layout)

    @cached_property
    def layouts(self) -> dict[int, Layout]:
        """The layouts of the files to rewrite, by the id of their partition spec."""
        earlier = [Layout.from_json(layout) for layout in self.earlier]
        return {layout.spec.spec_id: layout for layout in (*earlier, self.table_layout)}

    def values(self, partition: RewritePartition) -> tuple[PartitionSpec, Record]:
        """The partition spec of a partition, and its values."""
        spec_id = self.table_layout.spec.spec_id if partition.spec_id is None else partition.spec_id
        layout = self.layouts[spec_id]
        return layout.spec, unpacked_values(layout.spec, layout.schema, partition.values)

    @property
    def order(self) -> SortOrder | None:
        return None if self.sort_order is None else SortOrder.model_validate(self.sort_order)

    def by_name(self, operation: OperationArg) -> dict[str, RewriteJob]:
        """The jobs by their names in the operation."""
        return dict(zip(operation.partition_names(), self.jobs, strict=True))

    def paths(self, job: RewriteJob) -> Iterator[str]:
        """Where the files of a job are."""
        return (f"{self.folders[file.folder]}/{file.name}" for file in job.files)

    def deletes_of(self, file: RewriteFile) -> set[str]:
        """The paths of a file's delete files."""
        return {self.deletes[number].path for number in file.delete_numbers}


_shared = Shared(lambda operation: plan_of(operation, RewritePlan, "plan of a rewrite"))


def ranges_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Rising numbers as ranges, ends excluded."""
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        begin, end = ranges.pop() if ranges else (number, number)
        if number > end:
            ranges.append((begin, end))
            begin = number
        ranges.append((begin, number + 1))
    return ranges


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
