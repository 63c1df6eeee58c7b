"""Fields of nested types, by name: what a source has and a table does not. Paths are those of Iceberg:
``a.b``, ``a.element.b`` within lists, ``a.value.b`` within maps."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyarrow import types as is_


def new_fields(given: pa.DataType, present: pa.DataType, path: str) -> list[str]:
    """The paths of the fields of ``given`` that ``present`` does not have, within a column ``path``."""
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
        found = {field.name: field.type for field in given}
        fields = [
            field.with_type(grown(field.type, found.pop(field.name))) if field.name in found else field
            for field in present
        ]
        return pa.struct([*fields, *(pa.field(name, dtype) for name, dtype in found.items())])
    if is_.is_map(given) and is_.is_map(present):
        item = present.item_field.with_type(grown(present.item_type, given.item_type))
        return pa.map_(present.key_field, item)
    if _is_list(given) and _is_list(present):
        element = present.value_field.with_type(grown(present.value_type, given.value_type))
        return pa.large_list(element) if is_.is_large_list(present) else pa.list_(element)
    return present


def _is_list(dtype: pa.DataType) -> bool:
    return bool(is_.is_list(dtype) or is_.is_large_list(dtype) or is_.is_fixed_size_list(dtype))
