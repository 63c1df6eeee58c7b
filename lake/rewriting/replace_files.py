"""Replaces files of a table by others that hold the same rows.

The rows stay the same, and incremental readers see nothing new: the snapshot says so (``replace``). It builds
on the table's present content, so concurrent appends stay and concurrent deletes stay deleted: a job that
read a file that is gone, or has other delete files by now, is left out, the others count.

Rows that delete files name are not in the new files. Delete files that concern no data file any more go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, starmap
from typing import Any

import msgspec
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import snapshots as iceberg_snapshots
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, TableUpdate
from pyiceberg.typedef import Record

from distop.commit.contract import ADOPTED_FROM, DROPPED_JOBS, PASSED_OVER, Contribution, FinishContext
from distop.commit.partial import selection
from distop.errors import Conflict, PreconditionFailed
from distop.lake.iceberg.append import IcebergStep, SnapshotContent, added_counts
from distop.lake.iceberg.metadata_files import SHOWN, removers, writer_of
from distop.lake.iceberg.snapshots import Draft, merged
from distop.lake.iceberg.takeover import JobsOutput, output_of_jobs, take_over
from distop.lake.layout.model import Layout, schema_of, schema_with
from distop.lake.rewriting import replace_partitions
from distop.lake.rewriting.replace_partitions import Deletes
from distop.metastore.records.operation import OperationArg
from distop.operations.api import OperationView
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
        return layout.spec, replace_partitions.unpacked_values(layout.spec, layout.schema, partition.values)

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


MISSING = "missing"
"""Field of a job's result: a file that did not exist when the job tried to read it."""
DELETED = "deleted"
"""Field of a job's result: rows of its files that their delete files have removed."""


class IcebergReplace(IcebergStep):
    """Replaces the files that the jobs have read by those that they have written.

    The operation's argument is a :class:`~distop.lake.rewriting.replace_files.RewritePlan`.
    """

    def prepare(self, context: FinishContext) -> Contribution:
        """See :class:`IcebergStep`.

        Raises
        ------
        HeadConflict
            Concurrent operations removed a file, or rows of it, of every job: nothing is left to publish.
        PreconditionFailed
            The new files do not hold as many rows as the old ones.
        """
        self._view = context.view
        if not (self._plan.jobs or self._plan.deletes):
            return Contribution(
                facts=_counts(JobsOutput(manifests=[]), replace_partitions.Replaced()) | self._notes
            )
        return super().prepare(context)

    @cached_property
    def _plan(self) -> RewritePlan:
        return RewritePlan.of(self._view.arg)

    @property
    def _notes(self) -> dict[str, Any]:
        return {PASSED_OVER: self._plan.passed_over} if self._plan.passed_over else {}

    def change(
        self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int
    ) -> SnapshotContent | None:
        """Replaces the files of each job by what it wrote, if none of them has changed since."""
        jobs = self._plan.by_name(self._view.arg)
        done = {name: job for name, job in jobs.items() if self._view.jobs[name].state == "success"}
        sources = _UnchangedSources(draft, self._plan, done)
        intact = {name: job for name, job in done.items() if sources.has(job)}
        if done and not intact:
            raise replace_partitions.files_changed(
                self._view.arg,
                draft,
                self._plan.snapshot_id,
                f"that {self._view.arg.id} has rewritten",
                "nothing is lost",
            )
        leaving = {path for job in intact.values() for path in self._plan.paths(job)}
        replaced = sources.located.take_out(leaving, snapshot_id)
        view = replace(self._view, jobs={name: self._view.jobs[name] for name in intact})
        output = output_of_jobs(view.arg, selection(view.arg, view.jobs))
        deleted = self._check_rows(view, intact, replaced, output)
        needless = sources.needless(leaving)
        if not (intact or needless):
            return None
        kept = _without(draft, replaced.untouched, needless, snapshot_id)
        added = take_over(draft, layout, output, snapshot_id)
        facts = _counts(output, replaced) | self._notes
        if self._plan.deletes:
            facts |= {"deletedRows": deleted, "deleteFiles": len(needless)}
        facts |= {
            ADOPTED_FROM: output.adopt_from,
            "partitions": len({job.partition for job in intact.values()}),
        }
        if len(intact) < len(done):
            facts |= self._dropped_jobs(draft, jobs, done.keys() - intact.keys())
        return SnapshotContent(
            manifests=[*added, *replaced.rewritten, *merged(draft, kept, snapshot_id)],
            summary=_summary(draft, output, replaced, needless),
            facts=facts,
            updates=self._order_updates(draft),
        )

    def _check_rows(
        self,
        view: OperationView,
        jobs: Mapping[str, RewriteJob],
        replaced: replace_partitions.Replaced,
        output: JobsOutput,
    ) -> int:
        """Never publish a result that loses or duplicates a row. Returns how many were deleted before."""
        deleted = 0
        for name, job in jobs.items():
            missing = view.jobs[name].result.get(MISSING)
            if missing is not None:
                raise PreconditionFailed(
                    f"{missing} does not exist, and table {view.arg.table!r} refers to it",
                    hint="distop cluster doctor --deep names all such files",
                )
            before, after = sum(file.rows for file in job.files), int(view.jobs[name].result["rows"])
            gone = int(view.jobs[name].result.get(DELETED, 0))
            may_go = sum(file.rows for file in job.files if file.deletes)
            is_old = may_go and DELETED not in view.jobs[name].result  # such an executor knows no deletes
            if before != after + gone or gone > may_go or is_old:
                raise PreconditionFailed(
                    f"job {name} of {view.arg.id} has read files of {before} rows and written {after}; "
                    f"{gone} were deleted before"
                )
            deleted += gone
        if output.rows + deleted != replaced.rows:
            raise PreconditionFailed(
                f"{view.arg.id} has written {output.rows} rows in place of {replaced.rows}; {deleted} were "
                "deleted before"
            )
        return deleted

    def _order_updates(self, draft: Draft) -> list[TableUpdate]:
        """Make the sort order of the new files known to the table."""
        order = self._plan.order
        if order is None:
            return []
        known = {order.order_id: order for order in draft.base.sort_orders}
        if order.order_id not in known:
            fields: dict[str, Any] = {"sort-order": order}
            return [AddSortOrderUpdate(**fields)]
        if known[order.order_id] != order:
            raise Conflict(
                f"table {self._view.arg.table!r} meanwhile has another sort order {order.order_id}",
                hint="start the operation again",
            )
        return []

    # -- what others have removed ----------------------------------------------------------------------

    def _dropped_jobs(
        self, draft: Draft, jobs: Mapping[str, RewriteJob], dropped: set[str]
    ) -> dict[str, Any]:
        places = [number for number, name in enumerate(jobs) if name in dropped]
        touched = sorted({self._plan.partitions[jobs[name].partition].path for name in dropped})
        snapshots = [
            {"snapshot": str(snapshot.snapshot_id), "by": writer_of(snapshot)}
            for snapshot in removers(draft.file, draft.base.current_snapshot(), self._plan.snapshot_id)
        ]
        return {
            DROPPED_JOBS: ranges_of(places),
            "droppedPartitions": touched[:SHOWN],
            "conflicts": snapshots,
        }


class _UnchangedSources:
    """The files read that are unchanged in the table, and the delete files that may go."""

    def __init__(self, draft: Draft, plan: RewritePlan, jobs: Mapping[str, RewriteJob]) -> None:
        self._plan = plan
        wanted = {path for job in jobs.values() for path in plan.paths(job)}
        live = replace_partitions.live_manifests(draft.base.current_snapshot(), draft.io)
        self._deletes = Deletes(draft.base, draft.io, live)
        paths = {file.path for file in plan.deletes}
        self._may_go = [
            entry
            for entry in self._deletes.entries
            if entry.data_file.file_path in paths and _can_go(draft, entry)
        ]
        places = [self._partition_now(draft.base, partition) for partition in plan.partitions]
        of_deletes = replace_partitions.FilePartitions(draft.base)
        places += [of_deletes.of(entry.data_file) for entry in self._may_go]
        everywhere = any(map(self._deletes.is_everywhere, self._may_go))
        areas = None if everywhere else replace_partitions.areas_of(draft.base, filter(None, places))
        self.located = replace_partitions.Located(draft, live, wanted, areas, self._deletes_of)

    def _partition_now(
        self, base: TableMetadata, partition: RewritePartition
    ) -> replace_partitions.FilePartition | None:
        """A partition by the table's present types: its column may have been widened since. ``None``: the
        table no longer has its partition spec."""
        spec, record = self._plan.values(partition)
        if spec.spec_id not in base.specs():
            return None
        return spec.spec_id, replace_partitions.packed_values(spec, schema_of(base, spec), record)

    def has(self, job: RewriteJob) -> bool:
        """Whether all files of a job still exist, and no other rows of them are deleted by now."""
        return all(
            self.located.there.get(path) == self._plan.deletes_of(file)
            for path, file in zip(self._plan.paths(job), job.files, strict=True)
        )

    def needless(self, leaving: Collection[str]) -> list[ManifestEntry]:
        """The plan's delete files that concern no file, once these are gone."""
        needed = set(self.located.needed)
        for path in self.located.there.keys() - leaving:
            needed.update(self.located.there[path])
        return [entry for entry in self._may_go if entry.data_file.file_path not in needed]

    def _deletes_of(self, entry: ManifestEntry) -> set[str]:
        return {file.file_path for file in self._deletes.concerning(entry)}


def _can_go(draft: Draft, entry: ManifestEntry) -> bool:
    """Whether the manifest that lists a file can be written again: its partition's types are known."""
    return schema_with(draft.base, draft.base.specs()[entry.data_file.spec_id]) is not None


def _without(
    draft: Draft, manifests: Sequence[ManifestFile], needless: Sequence[ManifestEntry], snapshot_id: int
) -> list[ManifestFile]:
    """The manifests without some delete files."""
    paths = {entry.data_file.file_path for entry in needless}
    specs = {entry.data_file.spec_id for entry in needless}
    left = replace_partitions.Replaced()
    listing: dict[int, list[ManifestFile]] = {spec_id: [] for spec_id in specs}
    for manifest in manifests:
        concerned = manifest.content == ManifestContent.DELETES and manifest.partition_spec_id in specs
        (listing[manifest.partition_spec_id] if concerned else left.untouched).append(manifest)
    for spec_id, some in listing.items():
        replace_partitions.take_out(
            draft,
            draft.base.specs()[spec_id],
            some,
            lambda entry: entry.data_file.file_path in paths,
            left,
            snapshot_id,
            ManifestContent.DELETES,
        )
    return [*left.untouched, *left.rewritten]


def _counts(output: JobsOutput, replaced: replace_partitions.Replaced) -> dict[str, Any]:
    return {
        "rows": output.rows,
        "filesBefore": replaced.files,
        "filesAfter": output.files,
        "bytesBefore": replaced.bytes,
        "bytesAfter": output.bytes,
        "partitions": 0,
    }


def _summary(
    draft: Draft, output: JobsOutput, replaced: replace_partitions.Replaced, needless: Iterable[ManifestEntry]
) -> iceberg_snapshots.Summary:
    parent = draft.base.current_snapshot()
    removed = Counter({name: int(count) for name, count in replaced.counts().items()})
    for file in (entry.data_file for entry in needless):
        removed[iceberg_snapshots.REMOVED_DELETE_FILES] += 1
        removed[iceberg_snapshots.REMOVED_FILE_SIZE] += file.file_size_in_bytes
        by_value = file.content == DataFileContent.EQUALITY_DELETES
        removed[
            iceberg_snapshots.REMOVED_EQUALITY_DELETES
            if by_value
            else iceberg_snapshots.REMOVED_POSITION_DELETES
        ] += file.record_count
    counts = {name: str(count) for name, count in removed.items()}
    # pyiceberg computes the totals only for its own operations, and a replacement is not one.
    counted = iceberg_snapshots.update_snapshot_summaries(
        iceberg_snapshots.Summary(
            operation=iceberg_snapshots.Operation.OVERWRITE, **added_counts(output), **counts
        ),
        parent.summary if parent else None,
    )
    return iceberg_snapshots.Summary(
        operation=iceberg_snapshots.Operation.REPLACE, **counted.additional_properties
    )
