"""What is known about some rows, and what it proves: that no row matches a predicate, or that all do.

A file, a row group or a manifest is left out only if it is proven that no row of it matches; a file is
deleted unread only if all rows do. What is not known proves nothing: statistics may leave NaN out, and be
missing for a column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Context, Decimal
from typing import Any, TypeAlias

import pyarrow.parquet as pq
from pyiceberg import transforms
from pyiceberg import types as iceberg
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata

from distop.lake.predicates import binding
from distop.lake.predicates.binding import BoundColumn, Predicate

_UNITS = {"microseconds": 1, "milliseconds": 1000}


def matching_groups(
    predicate: Predicate, footer: pq.FileMetaData, path_of: Callable[[int], str | None]
) -> list[int]:
    """The row groups of a file that may hold a row that matches.

    Parameters
    ----------
    path_of:
        Id of a column -> its dotted path in the file; ``None`` if the file does not have it.
    """
    places: dict[str, int] = {}
    for at in range(footer.num_columns):
        path = footer.schema.column(at).path
        places[path] = -1 if path in places else at

    def of_group(group: pq.RowGroupMetaData) -> Callable[[BoundColumn], ColumnFacts]:
        def content(column: BoundColumn) -> ColumnFacts:
            at = places.get(path_of(column.id) or "", -1)
            return ColumnFacts(nans=column.is_float) if at < 0 else _of_chunk(group.column(at), column)

        return content

    return [
        number
        for number in range(footer.num_row_groups)
        if possible(predicate, of_group(footer.row_group(number)))
    ]


def _of_chunk(chunk: pq.ColumnChunkMetaData, column: BoundColumn) -> ColumnFacts:
    statistics = chunk.statistics if chunk.is_stats_set else None
    if statistics is None:
        return ColumnFacts(nans=column.is_float)
    nulls = statistics.null_count if statistics.has_null_count else None
    none = nulls is not None and nulls == chunk.num_values
    least = greatest = None
    if statistics.has_min_max:
        least, greatest = _bounds(statistics, column)
    # Footers do not count NaN, and leave it out of the bounds.
    return ColumnFacts(least, greatest, nulls=nulls != 0, nans=column.is_float and not none, values=not none)


def _bounds(statistics: Any, column: BoundColumn) -> tuple[Any, Any]:
    """The bounds as values of the column; nothing if the file has another type than the table expects."""
    logical = json.loads(statistics.logical_type.to_json())
    name, physical, kind = logical.get("Type", "None"), statistics.physical_type, column.kind
    factor: int | None = None
    match kind:
        case iceberg.IntegerType() | iceberg.LongType() if name == "None" or logical.get("isSigned"):
            factor = 1
        case iceberg.DateType() if name == "Date":
            factor = 1
        case iceberg.TimestampType() | iceberg.TimestamptzType() if name == "Timestamp":
            factor = _UNITS.get(logical.get("timeUnit", ""))
        case iceberg.DecimalType() if name == "Decimal":
            bounds = statistics.min, statistics.max
            return bounds if all(isinstance(bound, Decimal) for bound in bounds) else (None, None)
        case iceberg.StringType() if name == "String":
            return statistics.min, statistics.max
        case iceberg.BooleanType() if physical == "BOOLEAN":
            return statistics.min, statistics.max
        case _ if column.is_float and physical in ("FLOAT", "DOUBLE"):
            least, greatest = statistics.min, statistics.max
            return (least, greatest) if least == least and greatest == greatest else (None, None)
    if factor is None or physical not in ("INT32", "INT64"):
        return None, None
    return statistics.min_raw * factor, statistics.max_raw * factor


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """What is known about the values of a column in some rows; by default nothing."""

    least: Any = None
    greatest: Any = None
    """Bounds of all values but NaN, themselves included; ``None``: not known."""
    nulls: bool = True
    nans: bool = True
    values: bool = True
    """Whether some rows may have NULL, NaN, or another value."""
    exact: bool = False
    """Whether equal bounds are the value of each row that has one, and bounds prove something about all."""
    admits: Callable[[Any], bool] | None = None
    """Whether a value may be there, by its bucket; ``None``: not known."""

    def narrowed(self, other: ColumnFacts) -> ColumnFacts:
        """What both say together."""
        both = (self, other)
        bounding = [facts for facts in both if facts.is_single] or both
        least = [facts.least for facts in bounding if facts.least is not None]
        greatest = [facts.greatest for facts in bounding if facts.greatest is not None]
        admits = [facts.admits for facts in both if facts.admits is not None]
        return ColumnFacts(
            max(least, default=None),
            min(greatest, default=None),
            self.nulls and other.nulls,
            self.nans and other.nans,
            self.values and other.values,
            # The bounds of one that is not exact may have become those of the whole.
            all(facts.exact for facts in bounding if facts.least is not None or facts.greatest is not None),
            None if not admits else lambda value: all(check(value) for check in admits),
        )

    @property
    def is_single(self) -> bool:
        return self.exact and self.least is not None and bool(self.least == self.greatest)

    def may_be(self, value: Any) -> bool:
        """Whether some row may have a value, which is not NaN."""
        return (
            (self.least is None or bool(self.least <= value))
            and (self.greatest is None or bool(value <= self.greatest))
            and (self.admits is None or self.admits(value))
        )


_NULLS = ColumnFacts(nans=False, values=False)

ContentOf: TypeAlias = Callable[[binding.BoundColumn], ColumnFacts]


def possible(predicate: binding.Predicate, content: ContentOf) -> bool:
    """Whether the predicate may be true of some row."""
    return _judged(predicate.node, content)[0]


def certain(predicate: binding.Predicate, content: ContentOf) -> bool:
    """Whether the predicate is proven to be true of all rows."""
    return _judged(predicate.node, content)[1]


def _judged(node: binding.Node, content: ContentOf) -> tuple[bool, bool]:
    """Whether it may be true of some row, and is true of all."""
    match node:
        case binding.Always(value):
            return value, value
        case binding.And(parts):
            judged = [_judged(part, content) for part in parts]
            return all(some for some, _ in judged), all(every for _, every in judged)
        case binding.Or(parts):
            judged = [_judged(part, content) for part in parts]
            return any(some for some, _ in judged), any(every for _, every in judged)
        case binding.Null(column, negated):
            known = content(column)
            has_value = known.values or known.nans
            return (has_value, not known.nulls) if negated else (known.nulls, not has_value)
    known = content(node.column)
    is_nan = known.nans and node.column.is_float
    some = (known.values and _some(node, known)) or (is_nan and node.holds(math.nan))
    every = (
        not known.nulls and (not known.values or _every(node, known)) and (not is_nan or node.holds(math.nan))
    )
    return some, every


def _some(leaf: binding.Leaf, known: ColumnFacts) -> bool:
    """Whether a value within the bounds may match."""
    if known.is_single:
        return leaf.holds(known.least)
    match leaf:
        case binding.Known(_, value):
            return value
        case binding.BoundComparison(_, "=", value):
            return value == value and known.may_be(value)
        case binding.BoundComparison(_, "<" | "<=", value):
            return known.least is None or leaf.holds(known.least)
        case binding.BoundComparison(_, ">" | ">=", value):
            return value == value if known.greatest is None else leaf.holds(known.greatest)
        case binding.BoundComparison():
            return True
        case binding.Like(_, _, prefix, _, negated):
            return negated or _may_begin(known, prefix)
    return leaf.negated or _may_be_one_of(known, leaf)


def _every(leaf: binding.Leaf, known: ColumnFacts) -> bool:
    """Whether all values within the bounds match."""
    if isinstance(leaf, binding.Known):
        return leaf.value
    if known.is_single:
        return leaf.holds(known.least)
    # Bounds of texts prove nothing about all rows: pyiceberg writes wrong ones for files with texts above
    # 4 KiB, for which Parquet keeps no minimum and maximum.
    bounds = known if known.exact else ColumnFacts(admits=known.admits)
    match leaf:
        case binding.BoundComparison(_, "<" | "<="):
            return bounds.greatest is not None and leaf.holds(bounds.greatest)
        case binding.BoundComparison(_, ">" | ">="):
            return bounds.least is not None and leaf.holds(bounds.least)
        case binding.BoundComparison(_, op, value):
            return op == "!=" and (value != value or not bounds.may_be(value))
        case binding.Like(_, _, prefix, is_prefix, negated):
            if negated:
                return not _may_begin(bounds, prefix)
            least, greatest = bounds.least, bounds.greatest
            return is_prefix and bool(
                least and greatest and least.startswith(prefix) and greatest.startswith(prefix)
            )
    return leaf.negated and not _may_be_one_of(bounds, leaf)


def _may_be_one_of(known: ColumnFacts, leaf: binding.OneOf) -> bool:
    values = leaf.within(known.least, known.greatest)
    return bool(values) if known.admits is None else any(map(known.admits, values))


def _may_begin(known: ColumnFacts, prefix: str) -> bool:
    length = len(prefix)
    return (known.least is None or bool(known.least[:length] <= prefix)) and (
        known.greatest is None or bool(known.greatest[:length] >= prefix)
    )


# -- of Iceberg's metadata ------------------------------------------------------------------------------


class Pruning:
    """What a table's metadata proves about the rows of its files.

    Parameters
    ----------
    predicate:
        Over the metadata's current schema.
    """

    def __init__(self, metadata: TableMetadata, predicate: binding.Predicate) -> None:
        self._specs = metadata.specs()
        self._predicate = predicate

    def manifest(self, manifest: ManifestFile) -> bool:
        """Whether a file of a manifest may hold a row that matches."""
        spec, summaries = self._specs.get(manifest.partition_spec_id), manifest.partitions
        if spec is None or not summaries:
            return True

        def content(column: binding.BoundColumn) -> ColumnFacts:
            facts = ColumnFacts(nans=column.is_float)
            for at, field in _of_column(spec, column):
                if at < len(summaries):
                    facts = facts.narrowed(_of_summary(field.transform, column, summaries[at]))
            return facts

        return possible(self._predicate, content)

    def file(self, file: DataFile) -> bool:
        """Whether a data file may hold a row that matches."""
        return possible(self._predicate, lambda column: self._of_file(file, column))

    def whole(self, file: DataFile) -> bool:
        """Whether all rows of a data file are proven to match."""
        return certain(self._predicate, lambda column: self._of_file(file, column))

    def _of_file(self, file: DataFile, column: binding.BoundColumn) -> ColumnFacts:
        return self._of_partition(file, column).narrowed(_of_statistics(file, column))

    def _of_partition(self, file: DataFile, column: binding.BoundColumn) -> ColumnFacts:
        facts = ColumnFacts(nans=column.is_float)
        spec = self._specs.get(file.spec_id)
        for at, field in () if spec is None else _of_column(spec, column):
            facts = facts.narrowed(_of_partition_value(field.transform, column, file.partition[at]))
        return facts


def _of_column(spec: PartitionSpec, column: binding.BoundColumn) -> Iterable[tuple[int, PartitionField]]:
    return ((at, field) for at, field in enumerate(spec.fields) if field.source_id == column.id)


def _of_statistics(file: DataFile, column: binding.BoundColumn) -> ColumnFacts:
    """By the statistics of a data file (Iceberg spec, ``data_file``)."""
    kind, at = column.kind, column.id
    if file.record_count == 0:
        return ColumnFacts(nulls=False, nans=False, values=False)
    rows = _count(file.value_counts, at)
    nulls, nans = _count(file.null_value_counts, at), _count(file.nan_value_counts, at)
    none = bool(rows) and nulls == rows
    # ORC's writers do not count a field of a NULL struct at all.
    uncounted = rows is not None and rows != file.record_count
    least, greatest = (_bound(bounds, column) for bounds in (file.lower_bounds, file.upper_bounds))
    if _is_nan(least) or _is_nan(greatest):
        least = greatest = None  # such bounds are not reliable
    return ColumnFacts(
        least,
        greatest,
        nulls=nulls != 0 or uncounted,
        nans=column.is_float and nans != 0 and not none,
        values=not none and not (bool(rows) and nans == rows),
        exact=not isinstance(kind, iceberg.StringType | iceberg.BinaryType | iceberg.FixedType),
    )


def _count(counts: Mapping[int, int] | None, at: int) -> int | None:
    """The entry of a column; ``None``: the file has none."""
    return (counts or {}).get(at)


def _bound(bounds: Mapping[int, bytes] | None, column: binding.BoundColumn) -> Any:
    # Java has ordered UUIDs as signed numbers, so their bounds say nothing.
    given = None if isinstance(column.kind, iceberg.UUIDType) else (bounds or {}).get(column.id)
    return None if given is None else _decoded(column.kind, given)


def _decoded(kind: iceberg.IcebergType, given: bytes) -> Any:
    try:
        return binding.plain(from_bytes(kind, given), kind)  # type: ignore[arg-type]
    except Exception:  # of another type, or cut: it says nothing
        return None


def _is_nan(value: Any) -> bool:
    return bool(value != value)


def _of_partition_value(
    transform: transforms.Transform[Any, Any], column: binding.BoundColumn, given: Any
) -> ColumnFacts:
    """By the value of a partition field."""
    if isinstance(transform, transforms.BucketTransform):
        if given is None:
            return _NULLS
        bucket = transform.transform(column.kind)
        return ColumnFacts(nulls=False, nans=column.is_float, admits=lambda value: bucket(value) == given)
    if not isinstance(transform, _ORDERED):
        return ColumnFacts(nans=column.is_float)
    if given is None:
        return _NULLS
    value = binding.plain(given, transform.result_type(column.kind))
    if _is_nan(value):
        return ColumnFacts(nulls=False, values=False)
    least, greatest = _sources(transform, column.kind, value, value)
    return ColumnFacts(least, greatest, nulls=False, nans=False, exact=True)


def _of_summary(
    transform: transforms.Transform[Any, Any], column: binding.BoundColumn, summary: Any
) -> ColumnFacts:
    """By what a manifest says of the values of a partition field; they are bounds of bounds."""
    facts = ColumnFacts(nulls=summary.contains_null is not False, nans=column.is_float)
    if isinstance(transform, transforms.IdentityTransform) and summary.contains_nan is False:
        facts = replace(facts, nans=False)
    if not isinstance(transform, _ORDERED) or isinstance(column.kind, iceberg.UUIDType):
        return (
            facts
            if isinstance(transform, (*_ORDERED, transforms.BucketTransform))
            else ColumnFacts(nans=column.is_float)
        )
    kind = transform.result_type(column.kind)
    bounds = [
        None if given is None else _decoded(kind, given)
        for given in (summary.lower_bound, summary.upper_bound)
    ]
    if any(_is_nan(bound) for bound in bounds):
        return facts
    least, greatest = _sources(transform, column.kind, *bounds)
    return replace(facts, least=least, greatest=greatest)


# -- of partition values --------------------------------------------------------------------------------

_EXACT = Context(prec=80)
_ORDERED = (
    transforms.IdentityTransform,
    transforms.TruncateTransform,
    transforms.YearTransform,
    transforms.MonthTransform,
    transforms.DayTransform,
    transforms.HourTransform,
)
_HOUR = 3_600_000_000


def _sources(transform: Any, kind: iceberg.IcebergType, least: Any, greatest: Any) -> tuple[Any, Any]:
    """Bounds of the values whose transforms lie between two; ``None``: not known."""
    match transform:
        case transforms.IdentityTransform():
            return least, greatest
        case transforms.TruncateTransform():
            return least, None if greatest is None else _last_truncated(kind, greatest, transform.width)
    first, last = None if least is None else _start(transform, kind, least), None
    if greatest is not None and (after := _start(transform, kind, greatest, 1)) is not None:
        last = after - 1
    return first, last


def _last_truncated(kind: iceberg.IcebergType, value: Any, width: int) -> Any:
    """No value that is truncated to this one is greater."""
    match kind:
        case iceberg.IntegerType() | iceberg.LongType():
            return value + width - 1
        case iceberg.DecimalType():
            return _EXACT.add(value, Decimal(width - 1).scaleb(-kind.scale, _EXACT))
    if len(value) < width:
        return value  # it was not truncated
    return _after_prefix(value)


def _after_prefix(prefix: Any) -> Any:
    """A value above all that begin so; ``None``: there is none."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return None
    code = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if 0xD800 <= code < 0xE000 else code)


def _start(transform: Any, kind: iceberg.IcebergType, number: int, later: int = 0) -> int | None:
    """The first day or microsecond of a period; ``later``: of the one after it, by so many.

    Old writers rounded times before 1970 up: what has the number of a period may lie in the one before.
    """
    if number <= 0 and not later:
        number -= 1
    number += later
    if isinstance(transform, transforms.HourTransform):
        return number * _HOUR
    if isinstance(transform, transforms.DayTransform):
        days: int | None = number
    else:
        months = number * 12 if isinstance(transform, transforms.YearTransform) else number
        year, month = 1970 + months // 12, months % 12 + 1
        days = date(year, month, 1).toordinal() - binding.EPOCH if 1 <= year <= 9999 else None
    if days is None or isinstance(kind, iceberg.DateType):
        return days
    return days * binding.DAY
