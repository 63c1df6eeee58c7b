"""Planning a compaction: which files it rewrites, in which groups and order, and the names of its jobs.

The manifests of the snapshot are read a few at a time, and only the required parts of their entries are kept.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, starmap
from typing import NamedTuple

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table import ManifestGroupPlanner
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from distop.errors import InvalidName, PreconditionFailed
from distop.lake.iceberg.metadata_files import is_live, present_file
from distop.lake.iceberg.takeover import manifests_of
from distop.lake.layout.model import Layout, file_io, schema_of, schema_with
from distop.lake.layout.partitioning import Partitioner, has_doubles, is_rounded, partition_path
from distop.lake.predicates.binding import ALL, Predicate, predicate_of
from distop.lake.predicates.proofs import Pruning
from distop.lake.rewriting.replace_files import (
    RewriteDelete,
    RewriteFile,
    RewriteJob,
    RewritePartition,
    RewritePlan,
    ranges_of,
)
from distop.lake.rewriting.replace_partitions import Deletes, FilePartition, FilePartitions
from distop.lake.storage.storage import storage_of
from distop.lake.writing.sorting import has_order
from distop.lake.writing.writer import table_file_bytes
from distop.operations import Plan, PlanRequest, check_partition
from distop.operations.arguments import invalid
from distop.spark_jobs.compact.argument import MAX_SORT_COLUMNS, CompactArgument, Sizes, sizes_of

_TERM = re.compile(
    r"(?P<column>\"[^\"]+\"|.+?)(?:\s+(?P<direction>asc|desc))?(?:\s+nulls\s+(?P<nulls>first|last))?",
    re.IGNORECASE,
)


def sort_order(terms: Sequence[str] | str, metadata: TableMetadata) -> SortOrder | None:
    """The requested order: one that the table knows, or a new one; ``None`` if none is requested.

    Raises :class:`~distop.errors.InvalidArgument` for a column that does not exist or has no order.
    """
    texts = [text.strip() for text in terms.split(",")] if isinstance(terms, str) else list(terms)
    if not texts:
        return None
    if len(texts) > MAX_SORT_COLUMNS:
        raise invalid("sort_by", f"at most {MAX_SORT_COLUMNS} columns can be used for sorting")
    fields = [_field(text, metadata.schema()) for text in texts]
    if len({field.source_id for field in fields}) < len(fields):
        raise invalid("sort_by", "a column is named twice in --sort-by")
    for known in metadata.sort_orders:
        if known.fields == fields:
            return known
    return SortOrder(*fields, order_id=max((order.order_id for order in metadata.sort_orders), default=0) + 1)


def _field(text: str, schema: Schema) -> SortField:
    match = _TERM.fullmatch(text)
    name = "" if match is None else match["column"].strip('"')
    column = next((column for column in schema.columns if column.name == name), None)
    if match is None or column is None:
        names = ", ".join(column.name for column in schema.columns)
        raise invalid("sort_by", f"{text!r} is not a column of the table; its columns are: {names}")
    if not has_order(column):
        raise invalid("sort_by", f"column {name!r} has the type {column.field_type}, which cannot be sorted")
    descending = (match["direction"] or "asc").lower() == "desc"
    nulls = (match["nulls"] or ("last" if descending else "first")).lower()
    return SortField(
        source_id=column.field_id,
        transform=IdentityTransform(),
        direction=SortDirection.DESC if descending else SortDirection.ASC,
        null_order=NullOrder.NULLS_FIRST if nulls == "first" else NullOrder.NULLS_LAST,
    )


MANIFESTS_AT_A_TIME = 16
MAX_CANDIDATES = 200_000
"""Most small files that are considered; others are left to the next compaction."""
MAX_FILES_PER_JOB = 1000
MAX_PLAN_BYTES = 900_000
"""About the largest plan that one start can hold."""
WHOLE = "all"
"""The path of a table without partitions, as jobs are called."""
FILE_OVERHEAD_BYTES = 27
"""Size of a file's entry in a plan, without its name and its delete files."""
DELETE_OVERHEAD_BYTES, RANGE_BYTES = 40, 16
"""Sizes of a delete file's entry, without its path, and of a range of numbers that refers to some."""


class Candidate(NamedTuple):
    """A file that may be rewritten."""

    sequence: int
    """The grouping order: files added one after the other."""
    path: str
    size: int
    rows: int
    in_order: bool
    """Whether its rows have the requested order."""
    rounded: bool = False
    """Whether it is rewritten in any case, since the table lists it under a rounded partition value."""
    deletes: tuple[tuple[int, int], ...] = ()
    """Ranges of the numbers of its delete files, in the choice; ends excluded."""


@dataclass
class Choice:
    """What is rewritten."""

    groups: dict[FilePartition, list[list[Candidate]]] = field(default_factory=dict)
    """Partition -> what its jobs read."""
    paths: dict[FilePartition, str] = field(default_factory=dict)
    """Partition -> its path, for all partitions considered; of an earlier partitioning: after its number."""
    deletes: list[DataFile] = field(default_factory=list)
    """All delete files of the snapshot."""
    needless: list[int] = field(default_factory=list)
    """The numbers of those that concern no file at all."""
    passed_over: dict[str, int] = field(default_factory=lambda: defaultdict(int))


class Chooser:
    """Examines one table.

    Parameters
    ----------
    order_id:
        Id of the requested sort order; ``None`` if any will do.
    where:
        Only files that may hold rows for which it is true.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        io: FileIO,
        sizes: Sizes,
        *,
        min_files: int,
        order_id: int | None = None,
        where: Predicate = ALL,
    ) -> None:
        self._metadata, self._io, self._sizes = metadata, io, sizes
        self._min_files, self._order_id = min_files, order_id
        self._planner = ManifestGroupPlanner(metadata, io, options={"include_empty_files": "true"})
        self._pruning = Pruning(metadata, where)
        self._all = where == ALL
        self._places = FilePartitions(metadata)
        self._spec, self._schema = metadata.spec(), metadata.schema()
        self._doubles = has_doubles(self._spec, self._schema)
        self._choice = Choice()
        self._needed = set[int]()
        """Numbers of delete files that concern some file."""

    def choose(self, partitions: Collection[str] | None = None) -> Choice:
        """The files to rewrite; only in some partitions, if their paths are given."""
        live = [
            manifest
            for manifest in manifests_of(self._metadata.current_snapshot(), self._io)
            if is_live(manifest)
        ]
        self._deletes = Deletes(self._metadata, self._io, live)
        self._choice.deletes = self._deletes.in_order()
        self._numbers = {file.file_path: number for number, file in enumerate(self._choice.deletes)}
        of_partition = self._candidates(live)
        for partition, candidates in of_partition.items():
            if partitions is not None and self._choice.paths[partition] not in partitions:
                continue
            enough = len(candidates) >= self._min_files or any(candidate.rounded for candidate in candidates)
            if not (enough or self._is_earlier(partition)):
                candidates = [candidate for candidate in candidates if candidate.deletes]
            if bins := self._bins(sorted(candidates), partition):
                self._choice.groups[partition] = bins
        if partitions is None and self._all:
            self._choice.needless = sorted(set(self._numbers.values()) - self._needed)
        return self._choice

    def _candidates(self, live: Sequence[ManifestFile]) -> dict[FilePartition, list[Candidate]]:
        typed = [
            manifest
            for manifest in live
            if manifest.content == ManifestContent.DATA and self._is_typed(manifest)
        ]
        data = filter(self._pruning.manifest, typed)
        candidates: dict[FilePartition, list[Candidate]] = defaultdict(list)
        count = 0
        while some := list(islice(data, MANIFESTS_AT_A_TIME)):
            for entries in self._planner.plan_manifest_entries(some):
                for entry in entries:
                    if not self._pruning.file(entry.data_file):
                        continue
                    partition, deletes = self._partition_of(entry), self._deletes_of(entry)
                    rounded = self._is_rounded(entry, partition)
                    at_any_size = bool(deletes) or rounded or self._is_earlier(partition)
                    if not self._is_candidate(entry, at_any_size=at_any_size):
                        continue
                    if count >= MAX_CANDIDATES:
                        self._choice.passed_over["later"] += 1
                        continue
                    count += 1
                    candidates[partition].append(self._candidate(entry, rounded, deletes))
        return candidates

    def _deletes_of(self, entry: ManifestEntry) -> tuple[tuple[int, int], ...]:
        numbers = {self._numbers[file.file_path] for file in self._deletes.concerning(entry)}
        self._needed |= numbers
        return tuple(ranges_of(sorted(numbers)))

    def _is_typed(self, manifest: ManifestFile) -> bool:
        """Whether the types of its partition values are known: others may have removed that schema."""
        if schema_with(self._metadata, self._metadata.specs()[manifest.partition_spec_id]) is not None:
            return True
        count = (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
        self._choice.passed_over["earlierPartitioning"] += count
        for entry in manifest.fetch_manifest_entry(self._io) if self._deletes.entries else ():
            self._deletes_of(entry)
        return False

    def _is_earlier(self, partition: FilePartition) -> bool:
        """Whether it is of an earlier partitioning: all its files are rewritten into the present one."""
        return partition[0] != self._metadata.default_spec_id

    def _is_rounded(self, entry: ManifestEntry, partition: FilePartition) -> bool:
        may_be_rounded = self._doubles and not self._is_earlier(partition)
        return may_be_rounded and is_rounded(entry.data_file, self._spec, self._schema)

    def _partition_of(self, entry: ManifestEntry) -> FilePartition:
        partition = self._places.of(entry.data_file)
        if partition not in self._choice.paths:
            spec = self._metadata.specs()[partition[0]]
            record, schema = entry.data_file.partition, schema_of(self._metadata, spec)
            path = partition_path(spec, schema, record)
            earlier = f"spec-{spec.spec_id}/{path or WHOLE}" if self._is_earlier(partition) else path
            self._choice.paths[partition] = earlier
        return partition

    def _is_candidate(self, entry: ManifestEntry, *, at_any_size: bool) -> bool:
        file = entry.data_file
        if file.file_size_in_bytes >= self._sizes.smaller_than and not at_any_size:
            return False
        if file.file_format != FileFormat.PARQUET or file.key_metadata is not None:
            self._choice.passed_over["otherFormats"] += 1
            return False
        try:
            self._deletes.applied_to(entry)
        except PreconditionFailed:
            self._choice.passed_over["deletes"] += 1
            return False
        return True

    def _candidate(
        self, entry: ManifestEntry, rounded: bool, deletes: tuple[tuple[int, int], ...]
    ) -> Candidate:
        file = entry.data_file
        in_order = self._order_id is None or file.sort_order_id == self._order_id
        size, rows = file.file_size_in_bytes, file.record_count
        return Candidate(entry.sequence_number or 0, file.file_path, size, rows, in_order, rounded, deletes)

    def _bins(self, candidates: Iterable[Candidate], partition: FilePartition) -> list[list[Candidate]]:
        """Groups of files, in order; only groups that rewriting would change."""
        bins: list[list[Candidate]] = []
        size = 0
        for candidate in candidates:
            full = size + candidate.size > self._sizes.job
            if not bins or full or len(bins[-1]) >= MAX_FILES_PER_JOB:
                bins.append([])
                size = 0
            bins[-1].append(candidate)
            size += candidate.size
        return [group for group in bins if self._is_earlier(partition) or self._is_worth_it(group)]

    def _is_worth_it(self, together: Sequence[Candidate]) -> bool:
        comes_out = file_count(sum(file.size for file in together), self._sizes.target_file)
        is_right = all(file.in_order and not file.rounded and not file.deletes for file in together)
        return len(together) > comes_out or not is_right


def file_count(size: int, target: int) -> int:
    """The number of files of about the target size for this many bytes."""
    return max(1, round(size / target))


def plan_of(choice: Choice, metadata: TableMetadata, **fixed: object) -> RewritePlan:
    """The plan for the chosen files: as many as one start can hold, partitions with many files first."""
    present, specs = metadata.default_spec_id, metadata.specs()
    earlier = [specs[spec_id] for spec_id in sorted({spec_id for spec_id, _ in choice.groups} - {present})]
    layouts = [Layout(schema_of(metadata, spec), spec, {}).to_json() for spec in earlier]
    folders: dict[str, int] = {}
    deletes = set[int]()
    partitions: list[RewritePartition] = []
    taken: list[tuple[int, list[Candidate]]] = []
    """The files of each job, after the number of their partition."""
    recorded = Layout.of(metadata).to_json()
    room = MAX_PLAN_BYTES - len(msgspec.json.encode([recorded, layouts]))
    passed_over = dict(choice.passed_over)
    by_files = sorted(
        choice.groups,
        key=lambda partition: (-sum(map(len, choice.groups[partition])), choice.paths[partition]),
    )
    for spec_id, values in by_files:
        other = None if spec_id == present else spec_id
        partition = RewritePartition(choice.paths[spec_id, values], list(values), other)
        jobs = len(taken)
        for together in choice.groups[spec_id, values]:
            new, more = _named_first(together, folders, deletes)
            needed = _room_for(together, new, (choice.deletes[number] for number in more))
            if needed + len(partition.path) + 100 > room:
                passed_over["later"] = passed_over.get("later", 0) + len(together)
                continue
            room -= needed + len(partition.path) + 100
            folders |= new
            deletes |= more
            taken.append((len(partitions), together))
        if len(taken) > jobs:
            partitions.append(partition)
    for number in choice.needless:
        if (room := room - _room_for((), {}, [choice.deletes[number]])) < 0:
            break
        deletes.add(number)
    numbers = sorted(deletes)
    return RewritePlan(
        layout=recorded,
        earlier=layouts,
        folders=list(folders),
        deletes=[_delete(choice.deletes[number]) for number in numbers],
        partitions=partitions,
        jobs=[
            RewriteJob(partition, list(_files(together, folders, numbers))) for partition, together in taken
        ],
        passed_over=passed_over,
        **fixed,  # type: ignore[arg-type]
    )


def _named_first(
    together: Sequence[Candidate], folders: dict[str, int], deletes: set[int]
) -> tuple[dict[str, int], set[int]]:
    """The folders and the delete files of some files that a plan does not name yet."""
    new: dict[str, int] = {}
    for folder in (file.path.rpartition("/")[0] for file in together):
        if folder not in folders:
            new.setdefault(folder, len(folders) + len(new))
    ranges = {number for file in together for number in file.deletes}
    return new, set().union(*starmap(range, ranges)) - deletes


def _room_for(together: Sequence[Candidate], folders: Iterable[str], deletes: Iterable[DataFile]) -> int:
    """About how many bytes of a plan some files take, with the folders and the delete files that it must name
    for them."""
    needed = sum(len(folder.encode()) + 4 for folder in folders)
    needed += sum(len(file.file_path.encode()) + DELETE_OVERHEAD_BYTES for file in deletes)
    for candidate in together:
        name = candidate.path.rpartition("/")[2]
        needed += len(name.encode()) + FILE_OVERHEAD_BYTES + RANGE_BYTES * len(candidate.deletes)
    return needed


def _files(
    together: Sequence[Candidate], folders: dict[str, int], deletes: Sequence[int]
) -> Iterator[RewriteFile]:
    """The files as a plan names them; ``deletes``: the numbers that its delete files have in the choice."""
    for file in together:
        folder, _, name = file.path.rpartition("/")
        # All numbers of a range are among them.
        begins = ((bisect_left(deletes, begin), end - begin) for begin, end in file.deletes)
        ranges = [(begin, begin + count) for begin, count in begins]
        yield RewriteFile(folders[folder], name, file.size, file.rows, ranges)


def _delete(file: DataFile) -> RewriteDelete:
    return RewriteDelete(file.file_path, str(file.file_format.value), list(file.equality_ids or ()))


MAX_NAMED = 5
"""Partitions that an error lists as examples."""


def plan_compaction(request: PlanRequest, argument: CompactArgument) -> Plan:
    """The plan of :class:`.operation.Compact`: which files each job rewrites."""
    if request.head is None:
        return Plan(argument=msgspec.to_builtins(RewritePlan(layout={})))
    plan = _rewrite_plan(request, argument)
    # Release 0.2.0 would bring back rows that delete files remove, and write by another spec.
    layout = 3 if plan.deletes or plan.earlier else 1
    return Plan(argument=msgspec.to_builtins(plan), partitions=_names(plan), layout=layout)


def _rewrite_plan(request: PlanRequest, argument: CompactArgument) -> RewritePlan:
    file = present_file(request)
    assert file is not None
    metadata = file.metadata
    layout = Layout.of(metadata)
    Partitioner(layout.schema, layout.spec)  # raises if it cannot split rows as the table does
    sizes = sizes_of(argument, table_file_bytes(layout))
    order = sort_order(argument.sort_by, metadata)
    chooser = Chooser(
        metadata,
        file_io(metadata.location, storage_of(request.table)),
        sizes,
        min_files=argument.min_files,
        order_id=None if order is None else order.order_id,
        where=ALL if argument.filter is None else predicate_of(argument.filter, layout.schema),
    )
    choice = chooser.choose(request.partitions)
    unknown = set(request.partitions or ()) - set(choice.paths.values())
    if unknown:
        raise invalid(
            "partitions",
            f"the table has no files in partition {min(unknown)!r}",
            f"it has {', '.join(sorted(choice.paths.values())[:MAX_NAMED])}",
        )
    return plan_of(
        choice,
        metadata,
        snapshot_id=None if metadata.current_snapshot_id is None else str(metadata.current_snapshot_id),
        target_file_bytes=sizes.target_file,
        sort_order=None if order is None else msgspec.json.decode(order.model_dump_json()),
    )


def _names(plan: RewritePlan) -> list[str]:
    """A name for each job: its partition, with a number if that has several. NULL and the text ``null`` have
    the same path."""
    counted: Counter[str] = Counter()
    names = []
    for position, job in enumerate(plan.jobs):
        path = plan.partitions[job.partition].path or WHOLE
        counted[path] += 1
        number = counted[path]
        name = path if number == 1 else f"{path}#{number}"
        try:
            names.append(check_partition(name))
        except InvalidName:
            names.append(str(position))
    return names
