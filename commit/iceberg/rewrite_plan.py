"""The frozen plan of a rewrite: which files each job reads, so that the commit can replace exactly these."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortOrder
from pyiceberg.typedef import Record
from pyiceberg.types import PrimitiveType

from distop.commit.layout.model import Layout
from distop.metastore.records.operation import OperationArg
from distop.operations.plans import Shared, plan_of


class RewriteFile(msgspec.Struct, array_like=True, frozen=True):
    """One file: ``[number of its folder, name, bytes, rows]``."""

    folder: int
    name: str
    size: int
    rows: int


class RewriteJob(msgspec.Struct, array_like=True, frozen=True):
    """One job: ``[number of its partition, files]``."""

    partition: int
    files: list[RewriteFile]


class RewritePartition(msgspec.Struct, array_like=True, frozen=True):
    """One partition: ``[its path, its values]``."""

    path: str
    """The readable path: ``kind=a/day=2013-01-01``; empty in a table without partitions."""
    values: list[str | None]
    """See :func:`packed_values`."""


class RewritePlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """See the module."""

    layout: dict[str, Any]
    """The table's; see :meth:`distop.commit.layout.model.Layout.to_json`."""
    snapshot_id: str | None = None
    """The snapshot with the files. A string, since JSON readers' numbers are too small for it."""
    folders: list[str] = []
    partitions: list[RewritePartition] = []
    jobs: list[RewriteJob] = []
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

    @property
    def table_layout(self) -> Layout:
        return Layout.from_json(self.layout)

    @property
    def order(self) -> SortOrder | None:
        return None if self.sort_order is None else SortOrder.model_validate(self.sort_order)

    def by_name(self, operation: OperationArg) -> dict[str, RewriteJob]:
        """The jobs by their names in the operation."""
        return dict(zip(operation.partition_names(), self.jobs, strict=True))

    def paths(self, job: RewriteJob) -> Iterator[str]:
        """Where the files of a job are."""
        return (f"{self.folders[file.folder]}/{file.name}" for file in job.files)


_shared = Shared(lambda operation: plan_of(operation, RewritePlan, "plan of a rewrite"))


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
