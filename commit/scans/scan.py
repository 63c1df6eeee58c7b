"""What a scan of a table reads: the manifests of one snapshot, or those that appends after a snapshot added.

A snapshot never changes. So a scan is known by its snapshots, its filter and its columns, whoever plans which
part of it, and when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.visitors import (
    ResidualEvaluator,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
    residual_evaluator_of,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import KeyDefaultDict, Record

from distop.commit.iceberg.content import is_live
from distop.commit.pyiceberg_private import live_entries, possible
from distop.commit.scans.predicates import Filter, read_filter
from distop.errors import InvalidArgument

READERS = 8
"""Manifests that are read at a time."""
MAX_SNAPSHOTS = 500
"""Appends that one scan of what was added goes through."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What is asked for, by whoever asks.

    Parameters
    ----------
    snapshot_id:
        The snapshot whose rows are asked for, or the last one whose appends are; ``None``: the present one.
    after:
        The snapshot after which appends are asked for; ``None``: all rows of the snapshot.
    schema_id:
        Of the columns that the filter names; ``None``: those of the table.
    filter:
        See :func:`~distop.commit.scans.predicates.read_filter`.
    """

    snapshot_id: int | None = None
    after: int | None = None
    schema_id: int | None = None
    filter: Any = None
    case_sensitive: bool = True


class Scan:
    """One scan. For one thread.

    Raises :class:`~distop.errors.InvalidArgument` if a snapshot or the columns are not there (any more), the
    filter does not fit them, or there is too much between two snapshots.
    """

    def __init__(self, metadata: TableMetadata, io: FileIO, wanted: Wanted) -> None:
        if metadata.format_version > 2:
            raise NotImplementedError("scans of tables of format 3 are planned by the engine")
        self.metadata, self.io = metadata, io
        self.schema = _schema_of(metadata, wanted.schema_id)
        self.filter: Filter = read_filter(wanted.filter, self.schema, case_sensitive=wanted.case_sensitive)
        self.snapshot = _snapshot_of(metadata, wanted.snapshot_id)
        self._appends: list[Snapshot] | None = None
        if wanted.after is not None and self.snapshot is not None:
            self._appends = _appends_of(metadata, wanted.after, self.snapshot)
        self._added_by = frozenset(one.snapshot_id for one in self._appends or ())
        # By partition spec.
        self._projected: dict[int, BooleanExpression] = KeyDefaultDict(self._projected_on)
        self._of_manifests: dict[int, Callable[[ManifestFile], bool]] = KeyDefaultDict(self._manifest_check)
        self._of_partitions: dict[int, Callable[[Record], bool]] = KeyDefaultDict(self._partition_check)
        self._residuals: dict[int, ResidualEvaluator] = KeyDefaultDict(self._residual)
        self._possible = possible(self.schema, self.filter.expression)

    @cached_property
    def data(self) -> list[ManifestFile]:
        """All manifests of data files, in an order that stays."""
        return [one for one in self._manifests if one.content == ManifestContent.DATA]

    @cached_property
    def deletes(self) -> list[ManifestFile]:
        """Those of delete files that may concern rows that are asked for."""
        return [
            one for one in self._manifests if one.content == ManifestContent.DELETES and self.concerns(one)
        ]

    @cached_property
    def _manifests(self) -> list[ManifestFile]:
        if self.snapshot is None:
            return []
        if self._appends is None:
            return [one for one in self.snapshot.manifests(self.io) if is_live(one)]
        with ThreadPoolExecutor(READERS, thread_name_prefix="manifest-lists") as pool:
            lists = pool.map(lambda one: one.manifests(self.io), self._appends)
            found = (manifest for manifests in lists for manifest in manifests)
            own = {one.manifest_path: one for one in found if one.added_snapshot_id in self._added_by}
        return [one for one in own.values() if one.content == ManifestContent.DATA]

    def concerns(self, manifest: ManifestFile) -> bool:
        """Whether files of a manifest may hold rows that are asked for, by what it tells of partitions."""
        return self._of_manifests[manifest.partition_spec_id](manifest)

    def entries(self, manifests: list[ManifestFile]) -> Iterator[Iterable[ManifestEntry]]:
        """The live entries of each of some manifests; of a single one, which may list very many, as they are
        asked for."""
        if len(manifests) < 2:
            yield from (live_entries(one, self.io) for one in manifests)
            return
        with ThreadPoolExecutor(READERS, thread_name_prefix="manifests") as pool:
            yield from pool.map(lambda one: one.fetch_manifest_entry(self.io), manifests)

    def in_partitions(self, entry: ManifestEntry) -> bool:
        """Whether the partition of a file may hold rows that are asked for."""
        return self._of_partitions[entry.data_file.spec_id](entry.data_file.partition)

    def may_match(self, entry: ManifestEntry) -> bool:
        """Whether a data file may hold rows that are asked for, by its partition and statistics."""
        if self._appends is not None and not (
            entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in self._added_by
        ):
            return False
        return self.in_partitions(entry) and self._possible(entry.data_file)

    def is_all_of(self, entry: ManifestEntry) -> bool:
        """Whether the filter is true of every row of a data file, by its partition."""
        try:
            left = self._residuals[entry.data_file.spec_id].residual_for(entry.data_file.partition)
        except TypeError:
            return False  # pyiceberg compares NULL with a number
        return self.filter.whole and left == AlwaysTrue()

    def _projected_on(self, spec_id: int) -> BooleanExpression:
        return inclusive_projection(self.schema, self._spec(spec_id))(self.filter.expression)

    def _manifest_check(self, spec_id: int) -> Callable[[ManifestFile], bool]:
        return manifest_evaluator(self._spec(spec_id), self.schema, self._projected[spec_id])

    def _partition_check(self, spec_id: int) -> Callable[[Record], bool]:
        values = Schema(*self._spec(spec_id).partition_type(self.schema).fields)
        return expression_evaluator(values, self._projected[spec_id], case_sensitive=True)

    def _residual(self, spec_id: int) -> ResidualEvaluator:
        return residual_evaluator_of(self._spec(spec_id), self.filter.expression, True, self.schema)

    def _spec(self, spec_id: int) -> PartitionSpec:
        return self.metadata.specs()[spec_id]


def _schema_of(metadata: TableMetadata, schema_id: int | None) -> Schema:
    if schema_id is None:
        return metadata.schema()
    for schema in metadata.schemas:
        if schema.schema_id == schema_id:
            return schema
    raise InvalidArgument(f"the table has no schema {schema_id} (any more)", details={"field": "schema"})


def _snapshot_of(metadata: TableMetadata, snapshot_id: int | None) -> Snapshot | None:
    if snapshot_id is None:
        return metadata.current_snapshot()
    found = metadata.snapshot_by_id(snapshot_id)
    if found is None:
        raise InvalidArgument(
            f"the table has no snapshot {snapshot_id} (any more)", details={"field": "snapshot-id"}
        )
    return found


def _appends_of(metadata: TableMetadata, after: int, last: Snapshot) -> list[Snapshot]:
    """Those that appended, from the last one back to the one behind the first, which may be gone."""
    known = {one.snapshot_id: one for one in metadata.snapshots}
    between, at = list[Snapshot](), last.snapshot_id
    while at != after and len(between) <= MAX_SNAPSHOTS:
        if (one := known.get(at)) is None or (parent := one.parent_snapshot_id) is None:
            raise InvalidArgument(
                f"snapshot {after} comes before none that leads to {last.snapshot_id}",
                details={"field": "start-snapshot-id"},
            )
        between.append(one)
        at = parent
    if len(between) > MAX_SNAPSHOTS:
        raise InvalidArgument(
            f"more than {MAX_SNAPSHOTS} snapshots are between the two",
            hint="ask for fewer at a time",
            details={"field": "end-snapshot-id"},
        )
    return [one for one in between if one.summary and one.summary.operation is Operation.APPEND]
