"""Splitting rows by partition value, a batch at a time, and the names of partition folders.

Folders are named as Hive and Spark do: ``day=2013-01-01/kind=a%2Fb``. The rules are those of Spark's
``ExternalCatalogUtils``: which characters are escaped, and how NULL is written.

The transforms are those of the Iceberg specification ("Partition Transforms"), computed on whole columns:
dates and integers with numpy, the rest once per distinct value.

pyiceberg's compiled decoder reads doubles in manifests as 32-bit floats. A program that writes such entries
again stores the rounded values, as earlier versions of distop did when they merged manifests, and filters by
the right value then pass over the file. The bounds of the column in the same entry are bytes, which nobody
rounds: in a partition by the column both are the value of all its rows.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import quote_plus, unquote
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import transforms
from pyiceberg import types as iceberg
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Accessor, Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from distop.errors import BadRow, InvalidArgument


def has_doubles(spec: PartitionSpec, schema: Schema) -> bool:
    """Whether files of a partition spec may be listed under rounded values."""
    return bool(_doubles(spec, schema))


def is_rounded(file: DataFile, spec: PartitionSpec, schema: Schema) -> bool:
    """Whether the bounds of a file prove that it is listed under a rounded value.

    Parameters
    ----------
    spec, schema:
        The partition spec of the file, and a schema that has its columns.
    """
    for position, column in _doubles(spec, schema):
        listed, exact = file.partition[position], _only_value(file, column)
        if listed is None or exact is None or listed == exact:
            continue
        with np.errstate(over="ignore"):
            if listed == float(np.float32(exact)):
                return True
    return False


def _doubles(spec: PartitionSpec, schema: Schema) -> list[tuple[int, int]]:
    """Position in the partition and id of each column of doubles that it is by."""
    known = identity_columns(spec) & schema.field_ids
    return [
        (position, term.source_id)
        for position, term in enumerate(spec.fields)
        if term.source_id in known and isinstance(schema.find_type(term.source_id), iceberg.DoubleType)
    ]


def _only_value(file: DataFile, column: int) -> float | None:
    least, greatest = ((bounds or {}).get(column) for bounds in (file.lower_bounds, file.upper_bounds))
    # Four bytes are of the time when the column was a float.
    if least is None or least != greatest or len(least) != 8:
        return None
    value: float = struct.unpack("<d", least)[0]
    return value


PartitionKey: TypeAlias = tuple[Any, ...]
"""One value per partition field, as Iceberg stores it: days for a date, microseconds for a timestamp."""

Ints: TypeAlias = npt.NDArray[np.int64]

_TIME_UNITS: dict[type[transforms.Transform[Any, Any]], str] = {
    transforms.YearTransform: "Y",
    transforms.MonthTransform: "M",
    transforms.DayTransform: "D",
    transforms.HourTransform: "h",
}
# Hashed as 64-bit integers, for any integer type (specification, appendix B).
_HASHED_AS_LONG = (
    iceberg.IntegerType,
    iceberg.LongType,
    iceberg.DateType,
    iceberg.TimeType,
    iceberg.TimestampType,
    iceberg.TimestamptzType,
)
_NAN = float("nan")


class _Alone(float):
    """A number that equals no other one: rows get the value of their partition, by the name of a folder or by
    Iceberg's readers, and both zeros are one key otherwise."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


_MINUS_ZERO = _Alone(-0.0)


def identity_columns(spec: PartitionSpec) -> frozenset[int]:
    """Ids of the columns whose values are those of the partition: files need not have them (Iceberg
    specification, "Column Projection")."""
    return frozenset(
        term.source_id for term in spec.fields if isinstance(term.transform, transforms.IdentityTransform)
    )


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Whether its files are of no partition: it has no field, or only void ones, which stand for the removed
    ones of a table that had format 1 (Iceberg specification, "Partition Evolution")."""
    return all(isinstance(term.transform, transforms.VoidTransform) for term in spec.fields)


def partition_path(spec: PartitionSpec, schema: Schema, values: Record) -> str:
    """Iceberg's name of a partition, ``kind=a/day=2013-01-01``; with plain numbers for dates that Python does
    not have. Empty in a table without partitions."""
    try:
        return spec.partition_to_path(values, schema)
    except OverflowError:
        texts = ("null" if values[at] is None else str(values[at]) for at in range(len(spec.fields)))
        named = zip((field.name for field in spec.fields), texts, strict=True)
        return "/".join(f"{quote_plus(name, safe='')}={quote_plus(text, safe='')}" for name, text in named)


class Partitioner:
    """Splits batches of one schema by the values of one partition spec.

    Raises :class:`~distop.errors.InvalidArgument` for an unknown transform.
    """

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self._columns: list[tuple[str, Accessor, Callable[[Any], Any]]] = []
        for field in spec.fields:
            accessor = schema.accessor_for_field(field.source_id)
            kind = schema.find_field(field.source_id).field_type
            name = schema.find_column_name(field.source_id) or field.name
            self._columns.append((name, accessor, transform_function(field.transform, kind)))

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
        """The batch's rows by partition, in order; each part owns its memory, or is the whole batch.

        Raises :class:`~distop.errors.BadRow` if the partition of a value is beyond the type of its column.
        """
        if batch.num_rows == 0:
            return
        if not self._columns:
            yield (), batch
            return
        values = [_partitions(batch, *column) for column in self._columns]
        codes, groups = _group_codes(values)
        if groups == 1:
            yield _key_at(values, 0), batch
            return
        # 16-bit keys are sorted in linear time.
        order = np.argsort(codes.astype(np.uint16) if groups <= 0xFFFF else codes, kind="stable")
        ends = np.cumsum(np.bincount(codes, minlength=groups))
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            rows = order[start:end]
            yield _key_at(values, int(rows[0])), batch.take(pa.array(rows))


def _reach(batch: pa.RecordBatch, accessor: Accessor) -> Any:
    array, inner = batch.column(accessor.position), accessor.inner
    while inner is not None:
        array, inner = pc.struct_field(array, [inner.position]), inner.inner
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _partitions(batch: pa.RecordBatch, name: str, accessor: Accessor, transform: Callable[[Any], Any]) -> Any:
    try:
        return transform(_reach(batch, accessor))
    except OverflowError as error:
        raise BadRow(
            f"column {name!r}: {error}", hint="partition the table by other terms, or leave such rows out"
        ) from None


def _group_codes(values: list[Any]) -> tuple[Ints, int]:
    """The group number of each row, and the number of groups."""
    codes: Ints | None = None
    groups = 1
    for array in values:
        encoded = array.dictionary_encode(null_encoding="encode")
        column = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if codes is None:
            codes, groups = column, len(encoded.dictionary)
        else:
            # Dense again after every column, so the product cannot overflow.
            distinct, codes = np.unique(codes * len(encoded.dictionary) + column, return_inverse=True)
            groups = len(distinct)
    if codes is None:
        raise ValueError("a table without partition fields has no groups")
    return codes, groups


def _key_at(values: list[Any], row: int) -> PartitionKey:
    return tuple(
        _distinct_bits(value) if isinstance(value, float) else value
        for value in (array[row].as_py() for array in values)
    )


def _distinct_bits(value: float) -> float:
    # NaN equals nothing, not even itself, unless it is the same object.
    if value != value:
        return _NAN
    return _MINUS_ZERO if value == 0 and math.copysign(1, value) < 0 else value


# -- transforms --------------------------------------------------------------------------------------


def transform_function(
    transform: transforms.Transform[Any, Any], kind: iceberg.IcebergType
) -> Callable[[Any], Any]:
    """A function from a column to its partition values, both ``pyarrow.Array``; nulls stay nulls.

    It raises ``OverflowError`` if a value is truncated to one that its type does not have.
    """
    match transform:
        case transforms.IdentityTransform():
            return lambda array: _stored(array, kind)
        case transforms.VoidTransform():
            return lambda array: pa.nulls(len(array), pa.int32())
        case (
            transforms.YearTransform()
            | transforms.MonthTransform()
            | transforms.DayTransform()
            | transforms.HourTransform()
        ):
            unit = _TIME_UNITS[type(transform)]
            return lambda array: _since_epoch(array, kind, unit)
        case transforms.BucketTransform() if isinstance(kind, _HASHED_AS_LONG):
            return lambda array: _mapped(array, lambda ints: _bucket(ints, transform.num_buckets), pa.int32())
        case transforms.TruncateTransform() if isinstance(kind, iceberg.IntegerType | iceberg.LongType):
            least = -(1 << (31 if isinstance(kind, iceberg.IntegerType) else 63))
            return lambda array: _mapped(
                array, lambda ints: _truncated(ints, transform.width, least), array.type
            )
        case transforms.TruncateTransform() if isinstance(kind, iceberg.StringType):
            return lambda array: pc.utf8_slice_codeunits(array, 0, transform.width)
        case transforms.TruncateTransform() if isinstance(kind, iceberg.BinaryType):
            return lambda array: pc.binary_slice(array, 0, transform.width)
        case transforms.TruncateTransform() if isinstance(kind, iceberg.DecimalType):
            return lambda array: _per_distinct_value(
                array, lambda value: _truncated_decimal(value, transform, kind), array.type
            )
        case transforms.BucketTransform():
            hashed = transform.transform(kind)
            return lambda array: _per_distinct_value(array, hashed, pa.int32())
    raise InvalidArgument(
        f"the table is partitioned by {transform!r}, which this version cannot write",
        details={"field": "partition_by"},
    )


def _ints(array: Any) -> Ints:
    """The integers of a date, time, timestamp or integer column; 0 for NULL."""
    if pa.types.is_date32(array.type):
        array = array.cast(pa.int32())
    ints: Ints = array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return ints


def _mapped(array: Any, function: Callable[[Ints], Ints], result: Any) -> Any:
    ints = function(_ints(array))
    nulls = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    return pa.array(ints, mask=nulls).cast(result)


def _truncated(values: Ints, width: int, least: int) -> Ints:
    """The multiples of a width at or below integers, of a type whose least one is ``least``."""
    rest = values % width
    # The other way round it would overflow.
    beyond = values < least + rest
    if beyond.any():
        raise OverflowError(_beyond(values[beyond][0], width))
    return values - rest


def _truncated_decimal(
    value: Decimal | None, transform: transforms.TruncateTransform[Any], kind: iceberg.DecimalType
) -> Any:
    number = transform.transform(kind)(value)
    if number is not None and len(number.as_tuple().digits) > kind.precision:
        raise OverflowError(_beyond(value, transform.width))
    return number


def _beyond(value: Any, width: int) -> str:
    return f"{value} has no partition: its type has no value for what truncate[{width}] makes of it"


def _stored(array: Any, kind: iceberg.IcebergType) -> Any:
    if isinstance(kind, iceberg.DateType):
        return array.cast(pa.int32())
    if isinstance(kind, iceberg.TimeType | iceberg.TimestampType | iceberg.TimestamptzType):
        return array.cast(pa.int64())
    return array


def _since_epoch(array: Any, kind: iceberg.IcebergType, unit: str) -> Any:
    ticks = "datetime64[D]" if isinstance(kind, iceberg.DateType) else "datetime64[us]"
    # numpy rounds down, also before 1970, as the specification requires.
    return _mapped(
        array, lambda ints: ints.view(ticks).astype(f"datetime64[{unit}]").view(np.int64), pa.int32()
    )


def _per_distinct_value(array: Any, function: Callable[[Any], Any], result: Any) -> Any:
    encoded = array.dictionary_encode()
    results = pa.array([function(value) for value in encoded.dictionary.to_pylist()], result)
    return results.take(encoded.indices)


def _bucket(values: Ints, buckets: int) -> Ints:
    return ((_murmur3(values) & np.uint32(0x7FFFFFFF)) % np.uint32(buckets)).astype(np.int64)


def _murmur3(values: Ints) -> npt.NDArray[np.uint32]:
    """murmur3_x86_32 with seed 0 of each integer's eight little-endian bytes."""
    words = values.astype("<i8").view("<u4").reshape(-1, 2)
    result = np.zeros(len(values), np.uint32)
    for word in (words[:, 0], words[:, 1]):
        mixed = _rotated(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        result = _rotated(result ^ mixed, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    result ^= np.uint32(8)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        result = (result ^ (result >> np.uint32(shift))) * np.uint32(factor)
    return result ^ (result >> np.uint32(16))


def _rotated(words: npt.NDArray[np.uint32], by: int) -> npt.NDArray[np.uint32]:
    return (words << np.uint32(by)) | (words >> np.uint32(32 - by))


NULL = "__HIVE_DEFAULT_PARTITION__"
"""Means NULL. Spark and Hive read no other text as NULL, and no folder as the empty text."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}


def escaped(text: str) -> str:
    """A name or a value as part of a folder's name."""
    return "".join(f"%{ord(letter):02X}" if letter in _ESCAPED else letter for letter in text)


def named_columns(path: str) -> list[str]:
    """The columns whose values the folders of a path name; parameter as of :func:`named_values`."""
    return list(dict.fromkeys(unquote(name) for name, _ in _named(path)))


def named_values(path: str) -> dict[str, str | None]:
    """The values that the folders of a path name, ``None`` for NULL; reverses :meth:`PartitionValues.folder`.

    Parameters
    ----------
    path:
        Of a file, or a URL; its last part is not a folder.

    Raises
    ------
    InvalidArgument
        It names two values for a column, or what is not UTF-8.
    """
    values: dict[str, str | None] = {}
    for quoted, text in _named(path):
        name = unquote(quoted)
        try:
            value = None if text == NULL else unquote(text, errors="strict")
        except UnicodeDecodeError:
            raise _misnamed(path, f"a value for {name!r} that is not UTF-8", name) from None
        if values.setdefault(name, value) != value:
            raise _misnamed(path, f"two values for {name!r}", name)
    return values


def _named(path: str) -> Iterator[tuple[str, str]]:
    """Names and values as they are quoted."""
    for folder in path.split("/")[:-1]:
        name, _, text = folder.partition("=")
        if name and text:
            yield name, text


def _misnamed(path: str, named: str, column: str) -> InvalidArgument:
    return InvalidArgument(
        f"the folders of {path} name {named}", details={"field": "paths", "column": column}
    )


class PartitionValues:
    """Writes the partition values of one table as text."""

    def __init__(self, schema: Schema, spec: PartitionSpec) -> None:
        self._fields = [
            (field.name, field.transform, schema.find_field(field.source_id).field_type)
            for field in spec.fields
        ]

    def texts(self, key: PartitionKey) -> list[str | None]:
        """The values, one for each partition field, as Spark writes them; ``None`` for NULL."""
        return [self._text(index, value) for index, value in enumerate(key)]

    def _text(self, index: int, value: object) -> str | None:
        _, transform, kind = self._fields[index]
        if value is None:
            return None
        text = str(transform.to_human_string(kind, value))
        if isinstance(transform, IdentityTransform):
            if isinstance(kind, iceberg.UUIDType):
                return str(UUID(bytes=value) if isinstance(value, bytes) else value)
            if isinstance(kind, iceberg.BooleanType):
                return text.lower()
            if isinstance(kind, iceberg.TimestampType | iceberg.TimestamptzType):
                return text.removesuffix("+00:00").replace("T", " ")
        return text

    def folder(self, key: PartitionKey) -> str:
        """The folder below the table's location; empty if the table is not partitioned."""
        named = zip(self._fields, self.texts(key), strict=True)
        return "/".join(f"{escaped(field[0])}={escaped(text) if text else NULL}" for field, text in named)


def columns_in_files(schema: Schema, spec: PartitionSpec) -> list[str]:
    """The columns stored in the files: those that are not partition folders."""
    in_path = _columns_in_path(schema, spec)
    return [column.name for column in schema.columns if column not in in_path]


def never_empty(schema: Schema, spec: PartitionSpec) -> list[str]:
    """The columns of texts that are only in a folder's name, or a table's log: an empty one is NULL there."""
    in_path = _columns_in_path(schema, spec)
    return [column.name for column in in_path if isinstance(column.field_type, iceberg.StringType)]


def check_folders(schema: Schema, spec: PartitionSpec) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if partitions cannot be folders: no column is left for
    the files, or values are bytes, which have no text that all readers agree on."""
    if not columns_in_files(schema, spec):
        raise InvalidArgument(
            "all columns are partition columns, and the files would have none",
            details={"field": "partition_by"},
        )
    for field, kind in zip(spec.fields, spec.partition_type(schema).fields, strict=True):
        if isinstance(kind.field_type, iceberg.BinaryType | iceberg.FixedType):
            raise InvalidArgument(
                f"partition {field.name!r} has values of type {kind.field_type}, which cannot name a folder",
                hint="partition by another column, or by bucket[N] of this one where the format allows it",
                details={"field": "partition_by"},
            )


def _columns_in_path(schema: Schema, spec: PartitionSpec) -> list[iceberg.NestedField]:
    ids = identity_columns(spec)
    return [column for column in schema.columns if column.field_id in ids]
