"""The frozen plan of an ingest: everything a job needs to know, as stored in the operation's argument.

It is made once, when the operation starts, and not again: jobs of a later version, or of another runner,
split the files as the first one did and read the columns as the first one did.

All files form one line, measured in *units*: bytes if a file can be split at any byte, row groups if it can
be split between them, one unit if it is read as a whole. A split is a range of that line, so N splits need N
+ 1 numbers, and the recorded plan of an operation stays small.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from distop.errors import ArgumentTooLarge
from distop.lake.layout.evolution import Evolution
from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import named_values
from distop.lake.rules.model import RuleSet
from distop.operations import OperationArg, Plan
from distop.operations.plans import Shared, plan_of
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.reader import ReadColumns
from distop.sources.kafka.ranges import OffsetRange
from distop.spark_jobs.ingest.argument import option
from distop.spark_jobs.merge import MergePlan

MAX_SPLITS = 100_000
"""Most jobs of one operation."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of one file, and where it may be split.

    Parameters
    ----------
    size:
        Bytes to read, more than 0.
    blocks:
        Sizes in bytes of the blocks between which it can be split, summing to about ``size``; ``None`` if it
        can be split at any byte; a single block if it is read as a whole.
    """

    size: int
    blocks: tuple[int, ...] | None = None

    @property
    def units(self) -> int:
        return self.size if self.blocks is None else len(self.blocks)


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one file: units ``start`` to ``end`` (exclusive) of the file at ``file``."""

    file: int
    start: int
    end: int


def cut_into_splits(extents: Iterable[Extent], split_bytes: int, apart: Collection[int] = ()) -> list[int]:
    """The starts of the splits on the line of units, and the end of the last one.

    A file larger than ``split_bytes`` gets splits of its own, of nearly equal size; smaller ones are packed,
    whole and in order, up to ``split_bytes``. The same input gives the same cuts.

    Parameters
    ----------
    apart:
        Indices of extents that start a new split, whatever precedes them.
    """
    cuts = [0]
    position = 0
    packed = 0
    for index, extent in enumerate(extents):
        if packed and (index in apart or packed + extent.size > split_bytes):
            cuts.append(position)
            packed = 0
        if extent.size > split_bytes:
            cuts.extend(position + units for units in _inner_cuts(extent, split_bytes))
            position += extent.units
            cuts.append(position)
        else:
            position += extent.units
            packed += extent.size
    if cuts[-1] != position:
        cuts.append(position)
    return cuts


def jobs_reading(lengths: Mapping[str, int], cuts: Sequence[int]) -> dict[str, list[tuple[int, int]]]:
    """The splits that read some of each range of the line, as ranges.

    Parameters
    ----------
    lengths:
        Name of a range -> its units; they follow each other and are the whole line.
    """
    ends = accumulate(lengths.values())
    return {
        name: [(bisect_right(cuts, end - length) - 1, bisect_left(cuts, end))]
        for (name, length), end in zip(lengths.items(), ends, strict=True)
    }


def check_count(total: int, per_split: int, unit: str, *, field: str, less: str) -> None:
    """Refuse more than :data:`MAX_SPLITS` splits in advance.

    Parameters
    ----------
    total, per_split:
        The total size, and the size for one job, in ``unit``.
    field, less:
        What to raise, and what to do instead.

    Raises
    ------
    ArgumentTooLarge
    """
    if total // per_split > MAX_SPLITS:
        raise ArgumentTooLarge(
            f"there would be {total // per_split} splits of {per_split} {unit}, "
            f"at most {MAX_SPLITS} are possible",
            hint=f"raise {option(field)}, or {less}",
            details={"field": field},
        )


def _inner_cuts(extent: Extent, split_bytes: int) -> Iterator[int]:
    """Where one large file is split, in its own units, without its beginning and end."""
    if extent.blocks is None:
        count = -(-extent.size // split_bytes)
        yield from (extent.size * number // count for number in range(1, count))
        return
    taken = 0
    for index, block in enumerate(extent.blocks):
        if taken and taken + block > split_bytes:
            yield index
            taken = 0
        taken += block


class Line:
    """The line of units of all files, to look up the content of a split.

    Parameters
    ----------
    units:
        Units of each file, in order.
    """

    def __init__(self, units: Iterable[int]) -> None:
        self._ends = list(accumulate(units))

    def pieces(self, cuts: Sequence[int], split: int) -> list[Piece]:
        """The ranges of files in split number ``split``."""
        start, end = cuts[split], cuts[split + 1]
        pieces = []
        file = bisect_right(self._ends, start)
        while start < end:
            begin = self._ends[file - 1] if file else 0
            stop = min(end, self._ends[file])
            pieces.append(Piece(file, start - begin, stop - begin))
            start = stop
            file += 1
        return pieces


MAX_PLAN_BYTES = 1_000_000
"""Longest plan, as JSON. etcd accepts values of 1.5 MiB, and an operation's record holds more than the
plan."""


MAX_DESCRIBED = 3
"""Most files in the description of a job."""

_NEW = frozenset(
    {"markers", "replaces", "pathColumns", "epochUnits", "maxBadRows", "maxBadShare", "replayOf"}
)
_NEW_OF_CSV = frozenset({"escape", "thousands", "dateFormat", "timestampFormat", "timezone", "encoding"})
"""Fields that release 0.2.0 does not know."""


class FileEntry(msgspec.Struct, array_like=True, frozen=True):
    """One file: ``[path below the source's folder, bytes, version, units]``."""

    path: str
    size: int
    version: int | str
    """See ``SourceFile``; a job reads the file only if this is unchanged."""
    units: int | None = None
    """How many units it has, see :class:`Extent`; ``None``: its bytes."""

    @property
    def length(self) -> int:
        """Units of the file."""
        return self.size if self.units is None else self.units


class KafkaSource(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What to read of a topic; see :class:`~distop.sources.kafka.ranges.KafkaArgument`."""

    url: str
    """Names the topic and its cluster, for people."""
    servers: str
    topic: str
    topic_id: str = ""
    """The topic's own id at the start; empty if the brokers know none."""
    ranges: list[OffsetRange]
    value: str
    """The format of the values."""
    value_column: str = "value"
    metadata: dict[str, str] = {}
    skip_gaps: bool = False
    skipped: int = 0
    """How many offsets were missing at the start."""
    held: int = 0
    """How many offsets open transactions held back at the start."""
    keep_tombstones: bool = False
    timeout_s: float = 30.0
    config: dict[str, Any] = {}
    """As given: secrets are references."""


class TargetPlan(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """The target of an ingest; the whole plan of one whose rows are those of a DataFrame."""

    layout: dict[str, Any]
    """The table's; see :meth:`distop.lake.layout.model.Layout.to_json`."""
    mode: str
    output: str = "iceberg"
    """The table's format."""
    evolution: Evolution | None = None
    """The differences of the layout to the table."""
    rules: RuleSet | None = None
    """The rules for the rows."""
    on_conflict: str = ""
    expected_snapshot_id: str | None = None
    """The snapshot at the start, to compare if ``on_conflict`` is ``refuse``. A string, since JSON readers'
    numbers are too small for it."""

    @classmethod
    def of(cls, operation: OperationArg) -> TargetPlan:
        """The plan of an operation. Raises :class:`~distop.errors.CorruptRecord`."""
        return plan_of(operation, TargetPlan, "plan of an ingest")

    @cached_property
    def table_layout(self) -> Layout:
        return Layout.from_json(self.layout)


class IngestPlan(TargetPlan, kw_only=True):
    """The frozen plan of an ingest from files or from a topic, as a job reads it."""

    format: str
    csv: CsvOptions = msgspec.field(default_factory=CsvOptions)
    folder: str = ""
    """URL of the folder that contains all files."""
    files: list[FileEntry] = []
    replaces: str = ""
    """The earlier operation whose rows leave the table."""
    replay_of: str = ""
    """The operation whose quarantined rows these are."""
    quarantined: bool = False
    """Whether the files are those of the quarantine, in the table's own folder."""
    markers: dict[str, str] = {}
    """Files that mark the source as complete, and their versions before its files were listed."""
    kafka: KafkaSource | None = None
    """In place of files."""
    cuts: list[int]
    """The starts of splits on the line of all files' units (or offsets), and the end of the last one."""
    columns: dict[str, Any]
    """The Iceberg schema of the columns to read from the files, or from their paths."""
    path_columns: list[str] = []
    """Those of them that the folders of the files name."""
    on_new_columns: str
    filter: str | None = None
    transform: str | None = None
    """The query that makes the table's rows from the files' rows. The plan is then dynamic."""
    targets: list[str]
    """Which of ``columns`` are written to the table. The table's other columns become NULL."""
    epoch_units: dict[str, str] = {}
    """Columns whose numbers count from 1970, and their units."""
    on_bad_rows: str
    max_bad_rows: int | None = None
    max_bad_share: float | None = None
    merge: MergePlan | None = None
    """How the rows are merged with those of the table, if they are not simply added."""
    branch: str = ""
    """The branch to write to; empty: the table itself."""
    files_skipped: int = 0
    """How many files were ingested before, for an ingest of new files."""
    files_remaining: int = 0
    """How many new files it leaves to the next one."""
    warnings: list[str] = []
    """Signs that the files were misinterpreted."""
    ignored_columns: list[str] = []
    """New columns and nested fields of the sample that are not written."""

    def to_plan(self, **fields: Any) -> Plan:
        """The plan of the operation, with further fields of it.

        Raises
        ------
        ArgumentTooLarge
        """
        size = len(msgspec.json.encode(self))
        if size > MAX_PLAN_BYTES:
            field, parts = "paths", "files"
            hint = "name fewer paths in one operation, or raise --split-bytes"
            if self.kafka is not None:
                field, parts, hint = (
                    "kafka",
                    "ranges",
                    "raise --kafka-records-per-job, or take less at a time",
                )
            raise ArgumentTooLarge(
                f"the plan of {len(self._parts)} {parts} in {len(self.cuts) - 1} splits takes {size} bytes, "
                f"at most {MAX_PLAN_BYTES} are allowed",
                hint=hint,
                details={"field": field},
            )
        argument: dict[str, Any] = msgspec.to_builtins(self)
        is_new = (
            self.format == "avro"
            or argument.keys() & _NEW
            or argument.get("csv", {}).keys() & _NEW_OF_CSV
            or (self.merge is not None and (self.merge.order_by or self.kafka is not None))
        )
        return Plan(argument=argument, layout=3 if is_new else 1, **fields)

    @classmethod
    def of(cls, operation: OperationArg) -> IngestPlan:
        """The plan of an operation. Jobs of one operation in one process share it.

        Raises
        ------
        CorruptRecord
        """
        return _shared(operation)

    def pieces(self, partition: str) -> list[Piece]:
        """What the job of a partition reads."""
        return self._line.pieces(self.cuts, int(partition))

    def describe(self, partition: str) -> str:
        """What the job of a partition reads, for people; each description is different."""
        if self.merge is not None:
            return f"part {int(partition) + 1} of the table and of its new keys"
        pieces = self.pieces(partition)
        named = ", ".join(map(self._described, pieces[:MAX_DESCRIBED]))
        more = len(pieces) - MAX_DESCRIBED
        return f"{named} and {more:,} more" if more > 0 else named

    def _described(self, piece: Piece) -> str:
        part = self._parts[piece.file]
        if isinstance(part, FileEntry):
            name, begin = part.path, 0
        else:
            name, begin = f"partition {part.partition}", part.start
        if piece.end - piece.start == part.length:
            return name
        return f"{name} from {begin + piece.start} to {begin + piece.end}"

    @cached_property
    def _line(self) -> Line:
        return Line(part.length for part in self._parts)

    @property
    def _parts(self) -> Sequence[FileEntry | OffsetRange]:
        return self.files if self.kafka is None else self.kafka.ranges

    @cached_property
    def source_columns(self) -> pa.Schema:
        """Arrow's view of ``columns``: names and types, all nullable."""
        schema = schema_to_pyarrow(Schema.model_validate(self.columns), include_field_ids=False)
        return pa.schema([pa.field(field.name, field.type) for field in schema])

    @property
    def wanted(self) -> ReadColumns:
        """What is read of each file or record."""
        adds = self.on_new_columns == "add"
        in_files = pa.schema(
            [column for column in self.source_columns if column.name not in self.path_columns]
        )
        return ReadColumns(in_files, strict=self.on_new_columns != "ignore", partly=adds)

    def path_values(self, file: FileEntry) -> dict[str, str | None]:
        """The values of ``path_columns`` for a file; ``None``: NULL."""
        named = named_values(f"{self.folder}/{file.path}") if self.path_columns else {}
        return {name: named[name] for name in self.path_columns}


_shared = Shared(lambda operation: plan_of(operation, IngestPlan, "plan of an ingest"))
