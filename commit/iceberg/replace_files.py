"""Replaces files of a table by others that hold the same rows.

The rows stay the same, and incremental readers see nothing new: the snapshot says so (``replace``). It builds
on the table's present content, so concurrent appends stay and concurrent deletes stay deleted: a job that
read a file that is gone is left out, the others count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary, update_snapshot_summaries
from pyiceberg.table.update import AddSortOrderUpdate, TableUpdate

from distop.commit.files.storage import FILES_AT_ONCE
from distop.commit.iceberg.append import Change, IcebergStep, added_counts
from distop.commit.iceberg.content import SHOWN, is_live, removers, writer_of
from distop.commit.iceberg.merging import merged
from distop.commit.iceberg.replace_partitions import Replaced, areas_of, take_out
from distop.commit.iceberg.rewrite_plan import (
    Place,
    Places,
    RewriteJob,
    RewritePartition,
    RewritePlan,
    packed_values,
)
from distop.commit.iceberg.snapshots import Draft
from distop.commit.iceberg.takeover import JobsOutput, manifests_of, output_of_jobs, take_over
from distop.commit.layout.model import Layout, schema_of, schema_with
from distop.commit.steps.contract import Contribution, FinishContext
from distop.commit.steps.facts import ADOPTED_FROM, DROPPED_JOBS
from distop.errors import Conflict, HeadConflict, PreconditionFailed
from distop.operations.api import OperationView

MISSING = "missing"
"""Field of a job's result: a file that did not exist when the job tried to read it."""


class IcebergReplace(IcebergStep):
    """Replaces the files that the jobs have read by those that they have written.

    The operation's argument is a :class:`~distop.commit.iceberg.rewrite_plan.RewritePlan`.
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
        if not self._plan.jobs:
            return Contribution(facts=_counts(JobsOutput(manifests=[]), Replaced()) | self._told)
        return super().prepare(context)

    @cached_property
    def _plan(self) -> RewritePlan:
        return RewritePlan.of(self._view.arg)

    @property
    def _told(self) -> dict[str, Any]:
        return {"passedOver": self._plan.passed_over} if self._plan.passed_over else {}

    def change(self, draft: Draft, layout: Layout, output: JobsOutput, snapshot_id: int) -> Change | None:
        """See :class:`IcebergStep`."""
        jobs = self._plan.by_name(self._view.arg)
        done = {name: job for name, job in jobs.items() if self._view.jobs[name].state == "success"}
        found = _Found(draft, self._plan, done)
        intact = {name: job for name, job in done.items() if found.has(job)}
        if not intact:
            raise self._nothing_left(draft)
        replaced = Replaced(untouched=found.others)
        leaving = {path for job in intact.values() for path in self._plan.paths(job)}
        for spec_id, manifests in found.holding.items():
            spec = draft.base.specs()[spec_id]
            take_out(
                draft, spec, manifests, lambda e: e.data_file.file_path in leaving, replaced, snapshot_id
            )
        view = replace(self._view, jobs={name: self._view.jobs[name] for name in intact})
        output = output_of_jobs(view)
        self._check_rows(view, intact, replaced, output)
        added = take_over(draft, layout, output, snapshot_id)
        facts = _counts(output, replaced) | self._told
        facts |= {
            ADOPTED_FROM: output.adopt_from,
            "partitions": len({job.partition for job in intact.values()}),
        }
        if len(intact) < len(done):
            facts |= self._dropped(draft, jobs, done.keys() - intact.keys())
        return Change(
            manifests=[*added, *replaced.rewritten, *merged(draft, replaced.untouched, snapshot_id)],
            summary=_summary(draft, output, replaced),
            facts=facts,
            updates=self._order_updates(draft),
        )

    def _check_rows(
        self, view: OperationView, jobs: Mapping[str, RewriteJob], replaced: Replaced, output: JobsOutput
    ) -> None:
        """Never publish a result that loses or duplicates a row."""
        for name, job in jobs.items():
            missing = view.jobs[name].result.get(MISSING)
            if missing is not None:
                raise PreconditionFailed(
                    f"{missing} does not exist, and table {view.arg.table!r} refers to it",
                    hint="distop doctor --deep names all such files",
                )
            before, after = sum(file.rows for file in job.files), int(view.jobs[name].result["rows"])
            if before != after:
                raise PreconditionFailed(
                    f"job {name} of {view.arg.id} has read files of {before} rows and written {after}"
                )
        if output.rows != replaced.rows:
            raise PreconditionFailed(
                f"{view.arg.id} has written {output.rows} rows in place of {replaced.rows}"
            )

    def _order_updates(self, draft: Draft) -> list[TableUpdate]:
        """Make the sort order of the new files known to the table."""
        order = self._plan.order
        if order is None:
            return []
        known = {one.order_id: one for one in draft.base.sort_orders}
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

    def _dropped(self, draft: Draft, jobs: Mapping[str, RewriteJob], dropped: set[str]) -> dict[str, Any]:
        places = [place for place, name in enumerate(jobs) if name in dropped]
        touched = sorted({self._plan.partitions[jobs[name].partition].path for name in dropped})
        snapshots = [
            {"snapshot": str(snapshot.snapshot_id), "by": writer_of(snapshot)}
            for snapshot in removers(draft.file, draft.base.current_snapshot(), self._plan.snapshot_id)
        ]
        return {DROPPED_JOBS: _ranges(places), "droppedPartitions": touched[:SHOWN], "conflicts": snapshots}

    def _nothing_left(self, draft: Draft) -> HeadConflict:
        first = next(iter(removers(draft.file, draft.base.current_snapshot(), self._plan.snapshot_id)), None)
        arg, found = self._view.arg, "" if first is None else str(first.snapshot_id)
        removed = "the table has no snapshot"
        if first is not None:
            removed = f"snapshot {found}, written by {writer_of(first)}, removed them or some of their rows"
        return HeadConflict(
            f"the files that {arg.id} has rewritten, of snapshot {self._plan.snapshot_id} of table "
            f"{arg.table!r}, are no longer in it: {removed}",
            hint="nothing is lost; start the operation again to rewrite what the table holds now",
            details={
                "expected": str(self._plan.snapshot_id),
                "snapshot": found,
                "by": writer_of(first),
            },
        )


class _Found:
    """The files read that are unchanged in the table."""

    def __init__(self, draft: Draft, plan: RewritePlan, jobs: Mapping[str, RewriteJob]) -> None:
        self._plan = plan
        self._wanted = {path for job in jobs.values() for path in plan.paths(job)}
        self._there: set[str] = set()
        self.holding: dict[int, list[ManifestFile]] = {}
        """Manifests that list some of the files, by partition spec."""
        self.others: list[ManifestFile] = []
        self._places = [self._place(draft.base, partition) for partition in plan.partitions]
        areas = areas_of(draft.base, filter(None, self._places))
        live = [
            manifest
            for manifest in manifests_of(draft.base.current_snapshot(), draft.io)
            if is_live(manifest)
        ]
        self._deleted = DeletedFrom.of(draft.io, live, draft.base)

        def listed(manifest: ManifestFile) -> set[str]:
            area = areas.get(manifest.partition_spec_id)
            if manifest.content != ManifestContent.DATA or area is None or not area.may_hold(manifest):
                return set()
            paths = (entry.data_file.file_path for entry in manifest.fetch_manifest_entry(draft.io))
            return self._wanted.intersection(paths)

        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="manifests") as pool:
            for manifest, paths in zip(live, pool.map(listed, live), strict=True):
                if paths:
                    self.holding.setdefault(manifest.partition_spec_id, []).append(manifest)
                else:
                    self.others.append(manifest)
                self._there |= paths

    def _place(self, base: TableMetadata, partition: RewritePartition) -> Place | None:
        """A partition by the table's present types: its column may have been widened since. ``None``: the
        table no longer has its partition spec."""
        spec, record = self._plan.values(partition)
        if spec.spec_id not in base.specs():
            return None
        return spec.spec_id, packed_values(spec, schema_of(base, spec), record)

    def has(self, job: RewriteJob) -> bool:
        """Whether all files of a job still exist, and no row of its partition was deleted."""
        place = self._places[job.partition]
        if place is None or self._deleted.concern(place):
            return False
        return all(path in self._there for path in self._plan.paths(job))


@dataclass(frozen=True)
class DeletedFrom:
    """The partitions that row deletes apply to."""

    places: frozenset[Place]

    @classmethod
    def of(cls, io: FileIO, manifests: Sequence[ManifestFile], metadata: TableMetadata) -> DeletedFrom:
        """By all live manifests of a snapshot; those that list data files are skipped."""
        places, specs = Places(metadata), metadata.specs()
        typed = {spec_id for spec_id, spec in specs.items() if schema_with(metadata, spec) is not None}
        found: set[Place] = set()
        for manifest in manifests:
            if manifest.content != ManifestContent.DELETES:
                continue
            if manifest.partition_spec_id not in typed:
                found.add((manifest.partition_spec_id, ()))
                continue
            found |= {places.of(entry.data_file) for entry in manifest.fetch_manifest_entry(io)}
        return cls(frozenset(found))

    def concern(self, place: Place) -> bool:
        """Whether rows of a partition may be deleted; deletes of another partition spec may name any."""
        return place in self.places or any(spec_id != place[0] for spec_id, _ in self.places)


def _ranges(places: list[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for place in places:
        if ranges and ranges[-1][1] == place:
            ranges[-1][1] += 1
        else:
            ranges.append([place, place + 1])
    return ranges


def _counts(output: JobsOutput, replaced: Replaced) -> dict[str, Any]:
    return {
        "rows": output.rows,
        "filesBefore": replaced.files,
        "filesAfter": output.files,
        "bytesBefore": replaced.bytes,
        "bytesAfter": output.bytes,
        "partitions": 0,
    }


def _summary(draft: Draft, output: JobsOutput, replaced: Replaced) -> Summary:
    parent = draft.base.current_snapshot()
    # pyiceberg computes the totals only for its own operations, and a replacement is not one.
    counted = update_snapshot_summaries(
        Summary(operation=Operation.OVERWRITE, **added_counts(output), **replaced.counts()),
        parent.summary if parent else None,
    )
    return Summary(operation=Operation.REPLACE, **counted.additional_properties)
