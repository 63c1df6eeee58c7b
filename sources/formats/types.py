"""Types of columns: what a source's types become in a table, and which conversions are lossless."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyarrow import types as is_

from distop.lake.layout.properties import MAX_NESTING
from distop.lake.writing.casts import with_room
from distop.sources.formats.times import UTC


class UnrepresentableType(Exception):
    """A type that no Iceberg table supports, or that a text format cannot represent. The text names it."""


def is_uuid(dtype: pa.DataType) -> bool:
    """Whether this is Arrow's type of UUIDs."""
    return isinstance(dtype, pa.UuidType)


def table_type(dtype: pa.DataType, depth: int = 0) -> pa.DataType:
    """The type for ``dtype`` in an Iceberg table: the narrowest that holds all its values.

    Nanoseconds are the exception: they become microseconds, and a value with a remainder is a bad row.

    Raises
    ------
    UnsupportedType
    """
    if depth > MAX_NESTING:
        raise UnrepresentableType(f"values are nested deeper than {MAX_NESTING} levels")
    if is_.is_dictionary(dtype):
        return table_type(dtype.value_type, depth + 1)
    if is_.is_null(dtype) or is_.is_string(dtype) or is_.is_large_string(dtype) or is_.is_string_view(dtype):
        return pa.large_string()
    if is_.is_uint64(dtype):
        return pa.decimal128(20, 0)
    if is_.is_integer(dtype):
        fits_int = dtype.bit_width < 32 or (dtype.bit_width == 32 and is_.is_signed_integer(dtype))
        return pa.int32() if fits_int else pa.int64()
    if is_.is_floating(dtype):
        return pa.float64() if is_.is_float64(dtype) else pa.float32()
    if is_.is_date(dtype):
        return pa.date32()
    if is_.is_time(dtype):
        return pa.time64("us")
    if is_.is_timestamp(dtype):
        return pa.timestamp("us", tz=UTC if dtype.tz else None)
    if is_.is_decimal(dtype) and dtype.precision <= 38 and dtype.scale >= 0:
        return pa.decimal128(dtype.precision, dtype.scale)
    if is_.is_binary(dtype) or is_.is_large_binary(dtype) or is_.is_binary_view(dtype):
        return pa.large_binary()
    if is_.is_boolean(dtype) or is_.is_fixed_size_binary(dtype) or is_uuid(dtype):
        return dtype
    return _nested(dtype, lambda inner: table_type(inner, depth + 1))


def text_type(dtype: pa.DataType) -> pa.DataType:
    """The type for reading a CSV file, so that :func:`convert` can make ``dtype`` of it: text where Arrow's
    parser would change values, or refuse some that convert does not.

    Raises
    ------
    UnsupportedType
        The type cannot be written in CSV.
    """
    if is_.is_timestamp(dtype) or is_.is_time(dtype) or is_.is_floating(dtype) or is_.is_decimal(dtype):
        return pa.large_string()
    if is_.is_nested(dtype) or family(dtype) == "bytes":
        raise UnrepresentableType(f"CSV cannot hold values of type {dtype}")
    return dtype


def json_type(dtype: pa.DataType) -> pa.DataType:
    """The type for reading JSON, so that :func:`convert` can make ``dtype`` of it.

    Raises
    ------
    UnsupportedType
        The type cannot be written in JSON.
    """
    if is_.is_temporal(dtype):
        return pa.large_string()
    if is_.is_map(dtype) or family(dtype) == "bytes":
        raise UnrepresentableType(f"JSON cannot hold values of type {dtype}")
    if is_.is_float32(dtype):
        return pa.float64()  # Arrow's parser would make numbers infinite that are too large
    if is_.is_decimal(dtype):
        return with_room(dtype)
    if is_.is_list(dtype) or is_.is_large_list(dtype):
        return pa.list_(json_type(dtype.value_type))
    return _nested(dtype, json_type) if is_.is_struct(dtype) else dtype


def _nested(dtype: pa.DataType, inner: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    if is_.is_struct(dtype) and not dtype.num_fields:
        raise UnrepresentableType("objects without any key cannot be stored")
    if is_.is_struct(dtype):
        return pa.struct([field.with_type(inner(field.type)).remove_metadata() for field in dtype])
    if is_.is_map(dtype):
        return pa.map_(inner(dtype.key_type), inner(dtype.item_type))
    if is_.is_list(dtype) or is_.is_large_list(dtype) or is_.is_fixed_size_list(dtype):
        return pa.large_list(inner(dtype.value_type))
    raise UnrepresentableType(f"values of type {name_of(dtype)} are not supported in Iceberg tables")


def name_of(dtype: pa.DataType) -> str:
    """A type in a message; one that Arrow does not have by the name that its format gives it."""
    return str(dtype.type_name if isinstance(dtype, pa.OpaqueType) else dtype)


def convertible(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether :func:`.conversion.convert` goes from ``source`` to ``target`` without silent loss.

    A conversion that may fail for single values is allowed: such a value is a bad row. Fields of structs go
    by name, as columns do: ``source`` may lack optional ones, which are then NULL. What it has in addition
    (:func:`new_fields`) is left out.
    """
    if is_.is_dictionary(source):
        return convertible(source.value_type, target)
    if source.equals(target) or is_.is_null(source):
        return True
    kind = family(source)
    if family(target) not in _CONVERSIONS[kind]:
        return False
    if kind == "float":
        return bool(is_.is_integer(target) or target.bit_width >= source.bit_width)
    if kind == "timestamp":
        return bool(target.tz or not source.tz)
    if kind == "list":
        return convertible(source.value_type, target.value_type)
    if kind == "map":
        keys = convertible(source.key_type, target.key_type)
        return keys and convertible(source.item_type, target.item_type)
    if kind == "struct":
        given = {field.name: field.type for field in source}
        return (
            len(given) == source.num_fields
            and any(field.name in given for field in target)
            and all(
                convertible(given[field.name], field.type) if field.name in given else field.nullable
                for field in target
            )
        )
    return kind != "bytes" or bool(table_type(source).equals(target))


def new_fields(given: pa.DataType, present: pa.DataType, path: str) -> list[str]:
    """The paths of the fields of ``given`` that ``present`` does not have, within a column ``path``. They are
    those of Iceberg: ``a.b``, ``a.element.b`` within lists, ``a.value.b`` within maps."""
    return list(_new_fields(given, present, path))


def _new_fields(given: pa.DataType, present: pa.DataType, path: str) -> Iterator[str]:
    if is_.is_struct(given) and is_.is_struct(present):
        for field in given:
            at = present.get_field_index(field.name)
            if at < 0:
                yield f"{path}.{field.name}"
            else:
                yield from _new_fields(field.type, present.field(at).type, f"{path}.{field.name}")
    elif is_.is_map(given) and is_.is_map(present):
        yield from _new_fields(given.key_type, present.key_type, f"{path}.key")
        yield from _new_fields(given.item_type, present.item_type, f"{path}.value")
    elif _is_list(given) and _is_list(present):
        yield from _new_fields(given.value_type, present.value_type, f"{path}.element")


def grown(present: pa.DataType, given: pa.DataType) -> pa.DataType:
    """``present`` with the fields that only ``given`` has: optional, behind the others. Keys of maps stay as
    they are (Iceberg's specification, "Schema Evolution"). Both have types in the form of a table."""
    if is_.is_struct(given) and is_.is_struct(present):
        types = {field.name: field.type for field in given}
        fields = [
            field.with_type(grown(field.type, types.pop(field.name))) if field.name in types else field
            for field in present
        ]
        return pa.struct([*fields, *(pa.field(name, dtype) for name, dtype in types.items())])
    if is_.is_map(given) and is_.is_map(present):
        item = present.item_field.with_type(grown(present.item_type, given.item_type))
        return pa.map_(present.key_field, item)
    if _is_list(given) and _is_list(present):
        element = present.value_field.with_type(grown(present.value_type, given.value_type))
        return pa.large_list(element) if is_.is_large_list(present) else pa.list_(element)
    return present


def _is_list(dtype: pa.DataType) -> bool:
    return bool(is_.is_list(dtype) or is_.is_large_list(dtype) or is_.is_fixed_size_list(dtype))


def is_number(dtype: pa.DataType) -> bool:
    """Whether values of a type are numbers."""
    return family(dtype) in ("integer", "float", "decimal")


def may_become(present: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column of one type may become one of the other, with its existing files."""
    if is_.is_decimal(present) and is_.is_decimal(wanted):
        return bool(present.scale == wanted.scale and present.precision < wanted.precision)
    return (present, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))


_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (is_.is_string, is_.is_large_string, is_.is_string_view),
    "integer": (is_.is_integer,),
    "float": (is_.is_floating,),
    "decimal": (is_.is_decimal,),
    "boolean": (is_.is_boolean,),
    "timestamp": (is_.is_timestamp,),
    "date": (is_.is_date,),
    "time": (is_.is_time,),
    "list": (is_.is_list, is_.is_large_list, is_.is_fixed_size_list),
    "map": (is_.is_map,),
    "struct": (is_.is_struct,),
    "bytes": (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary, is_uuid),
}
_CONVERSIONS: dict[str, frozenset[str]] = {
    **{family: frozenset({family}) for family in _FAMILIES},
    "text": frozenset({"text", "integer", "float", "decimal", "boolean", "timestamp", "date", "time"}),
    "integer": frozenset({"integer", "float", "decimal", "text"}),
    "float": frozenset({"float", "integer"}),
    "date": frozenset({"date", "timestamp"}),
    "other": frozenset(),
}


def family(dtype: pa.DataType) -> str:
    """The group of types with the same conversions that it belongs to, such as ``text`` or ``list``."""
    return next((name for name, tests in _FAMILIES.items() if any(test(dtype) for test in tests)), "other")
