"""JSON and times, to and from protobuf."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.timestamp_pb2 import Timestamp

from distop.errors import InvalidArgument

MAX_DEPTH = 30
"""Deepest nesting of an argument: three messages a level, and protobuf refuses more than a hundred."""

_EXACT = 2**53
"""Numbers travel as doubles, which hold every integer up to here."""


def to_struct(value: Mapping[str, Any], field: str) -> Struct:
    """A JSON object for the wire.

    Raises
    ------
    InvalidArgument
        Something in it is not JSON, is too deep, or is an integer that a double cannot hold. The path of the
        culprit is in ``details["field"]``.
    """
    return _struct(value, field, 0)


def from_struct(struct: Struct) -> dict[str, Any]:
    """The inverse of :func:`to_struct`; whole numbers come back as ``int``, keys are sorted."""
    return {key: _plain(value) for key, value in sorted(struct.fields.items())}


def from_timestamp(stamp: Timestamp) -> datetime | None:
    """In UTC; ``None`` if unset."""
    return stamp.ToDatetime(UTC) if stamp.seconds or stamp.nanos else None


def to_timestamp(moment: datetime | None) -> Timestamp | None:
    """The inverse of :func:`from_timestamp`."""
    if moment is None:
        return None
    stamp = Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def _struct(value: Mapping[str, Any], path: str, depth: int) -> Struct:
    if depth >= MAX_DEPTH:
        raise _refused(path, f"is nested more than {MAX_DEPTH} deep")
    fields = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _refused(path, f"has the key {key!r}, which is no string")
        fields[_text(key, path)] = _value(item, f"{path}.{key}", depth + 1)
    return Struct(fields=fields)


def _value(value: Any, path: str, depth: int) -> Value:
    match value:
        case None:
            return Value(null_value=0)  # type: ignore[arg-type]  # the only member of its enum
        case bool():
            return Value(bool_value=value)
        case int():
            if abs(value) > _EXACT:
                raise _refused(
                    path, "is an integer beyond 2^53, which JSON numbers cannot hold; send a string"
                )
            return Value(number_value=value)
        case float():
            if not math.isfinite(value):
                raise _refused(path, f"is {value}, which JSON does not know")
            return Value(number_value=value)
        case str():
            return Value(string_value=_text(value, path))
        case Mapping():
            return Value(struct_value=_struct(value, path, depth))
        case list() | tuple():
            if depth >= MAX_DEPTH:
                raise _refused(path, f"is nested more than {MAX_DEPTH} deep")
            items = [_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
            return Value(list_value=ListValue(values=items))
    raise _refused(path, f"is a {type(value).__name__}, which is not JSON")


def _text(value: str, path: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refused(path, "is not valid unicode") from None
    return value


def _refused(path: str, why: str) -> InvalidArgument:
    return InvalidArgument(f"{path} {why}", details={"field": path})


def _plain(value: Value) -> Any:
    match value.WhichOneof("kind"):
        case "number_value":
            number = value.number_value
            return int(number) if number.is_integer() else number
        case "struct_value":
            return from_struct(value.struct_value)
        case "list_value":
            return [_plain(item) for item in value.list_value.values]
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
    return None
