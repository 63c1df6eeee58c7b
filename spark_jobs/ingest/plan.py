"""The frozen plan of an ingest: everything a job needs to know, as stored in the operation's argument.

It is made once, when the operation starts, and not again: jobs of a later version, or of another runner,
split the files as the first one did and read the columns as the first one did.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema

from distop.errors import ArgumentTooLarge
from distop.lake.layout.evolution import Evolution
from distop.lake.layout.hive import named_values
from distop.lake.layout.model import Layout
from distop.metastore.records.operation import OperationArg
from distop.operations.api import Plan
from distop.operations.plans import Shared, plan_of
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.reader import Wanted
from distop.sources.kafka.offsets import OffsetRange
from distop.spark_jobs.ingest.splits import Line, Piece
from distop.spark_jobs.merge.plan import MergePlan
from distop.spark_jobs.rules.model import RuleSet

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
    """How many units it has, see ``splits``; ``None``: its bytes."""

    @property
    def length(self) -> int:
        """Units of the file."""
        return self.size if self.units is None else self.units


class KafkaSource(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What to read of a topic; see :class:`~distop.sources.kafka.argument.KafkaArgument`."""

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
    """See the module."""

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
            hint = "name fewer paths in one operation, or raise --arg split_bytes"
            if self.kafka is not None:
                field, parts, hint = "kafka", "ranges", "raise kafka.records_per_job, or take less at a time"
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
    def wanted(self) -> Wanted:
        """What is read of each file or record."""
        adds = self.on_new_columns == "add"
        in_files = pa.schema([one for one in self.source_columns if one.name not in self.path_columns])
        return Wanted(in_files, strict=self.on_new_columns != "ignore", partly=adds)

    def path_values(self, file: FileEntry) -> dict[str, str | None]:
        """The values of ``path_columns`` for a file; ``None``: NULL."""
        named = named_values(f"{self.folder}/{file.path}") if self.path_columns else {}
        return {name: named[name] for name in self.path_columns}


_shared = Shared(lambda operation: plan_of(operation, IngestPlan, "plan of an ingest"))
