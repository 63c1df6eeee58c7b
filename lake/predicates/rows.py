"""Evaluates predicates on rows in memory, for all entry points.

Arrow's own comparisons know no order of NaN, and its lists distinguish both zeros. So columns are brought
into a plain form first, and NaN is compared here.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg

from distop.lake.predicates import binding

Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def truth(predicate: binding.Predicate, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray:
    """Whether a predicate is true of each row: ``true``, ``false``, or NULL where SQL's answer is unknown."""
    batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
    return pa.chunked_array([_truth(predicate.node, batch) for batch in batches], pa.bool_())


def chosen(predicate: binding.Predicate, rows: Rows) -> Rows:
    """The rows for which a predicate is true."""
    return _kept(rows, truth(predicate, rows))


def others(predicate: binding.Predicate, rows: Rows) -> Rows:
    """The other rows: those for which it is false or unknown."""
    return _kept(rows, pc.invert(pc.fill_null(truth(predicate, rows), False)))


def at_least(values: pa.ChunkedArray, others: pa.ChunkedArray) -> pa.ChunkedArray:
    """Whether each value is greater than or equal to the other one, of the same type; NULL is the least."""
    mask = pc.greater_equal(values, others)
    if pa.types.is_floating(values.type):
        mask = pc.or_(mask, pc.is_nan(values))
    return pc.or_(pc.fill_null(mask, False), pc.is_null(others))


def _kept(rows: Any, mask: pa.ChunkedArray) -> Any:
    return rows.filter(mask if isinstance(rows, pa.Table) else mask.chunk(0))


def _truth(node: binding.Node, rows: pa.RecordBatch) -> pa.Array:
    match node:
        case binding.Always(value):
            return pa.repeat(pa.scalar(value), rows.num_rows)
        case binding.And(parts):
            return reduce(pc.and_kleene, (_truth(part, rows) for part in parts))
        case binding.Or(parts):
            return reduce(pc.or_kleene, (_truth(part, rows) for part in parts))
    values = _values(node.column, rows)
    if isinstance(node, binding.Null):
        return pc.is_valid(values) if node.negated else pc.is_null(values)
    # Not every function of Arrow leaves NULL unknown.
    return pc.if_else(pc.is_valid(values), _leaf(node, values), pa.scalar(None, pa.bool_()))


def _leaf(leaf: binding.Leaf, values: pa.Array) -> pa.Array:
    match leaf:
        case binding.Known(_, value):
            return pa.repeat(pa.scalar(value), len(values))
        case binding.BoundComparison():
            return _compared(leaf, values)
        case binding.OneOf():
            mask = pc.is_in(values, pa.array([_scalar(value) for value in leaf.values], values.type))
            if leaf.nan:
                mask = pc.or_(mask, pc.is_nan(values))
        case binding.Like():
            mask = pc.match_substring_regex(values, leaf.regex)
    return pc.invert(mask) if leaf.negated else mask


_FUNCTIONS = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
    "=": pc.equal,
    "!=": pc.not_equal,
}


def _compared(leaf: binding.BoundComparison, values: pa.Array) -> pa.Array:
    if leaf.value != leaf.value:
        is_nan = pc.is_nan(values)
        if leaf.op in ("=", ">="):
            return is_nan
        if leaf.op in ("!=", "<"):
            return pc.invert(is_nan)
        return pa.repeat(pa.scalar(leaf.op == "<="), len(values))
    mask = _FUNCTIONS[leaf.op](values, pa.scalar(_scalar(leaf.value), values.type))
    if leaf.column.is_float and leaf.op in (">", ">="):
        return pc.or_(mask, pc.is_nan(values))
    return mask


def _scalar(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value  # Arrow has no order of booleans


def _values(column: binding.BoundColumn, rows: pa.RecordBatch) -> pa.Array:
    """A column in the plain form; see :data:`~.binding.Plain`."""
    values = rows.column(column.path[0])
    if len(column.path) > 1:
        values = pc.struct_field(values, list(column.path[1:]))
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return _plain(values, column.kind)


def _plain(values: pa.Array, kind: iceberg.IcebergType) -> pa.Array:
    match kind:
        case iceberg.BooleanType():
            return values.cast(pa.bool_()).cast(pa.int8())
        case iceberg.IntegerType() | iceberg.LongType():
            return values.cast(pa.int64())
        case iceberg.FloatType() | iceberg.DoubleType():
            width = pa.float32() if isinstance(kind, iceberg.FloatType) else pa.float64()
            return pc.add(values.cast(width), pa.scalar(0.0, width))  # -0.0 + 0.0 is 0.0
        case iceberg.DecimalType():
            return values.cast(pa.decimal128(38, kind.scale))
        case iceberg.DateType():
            return values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        case iceberg.TimeType():
            return values.cast(pa.time64("us")).cast(pa.int64())
        case iceberg.TimestampType() | iceberg.TimestamptzType():
            zone = values.type.tz if pa.types.is_timestamp(values.type) else None
            return values.cast(pa.timestamp("us", zone)).cast(pa.int64())
        case iceberg.BinaryType() | iceberg.FixedType() | iceberg.UUIDType():
            return values.cast(pa.large_binary())
    return values.cast(pa.large_string())
