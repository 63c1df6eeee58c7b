"""Messages of the API: made of records, and as JSON.

JSON has one shape, whether the command line prints it or a coordinator's page serves it. Names are those of
the API, in ``snake_case``; times are ISO 8601 in UTC; states are lower case. Ids are text, and so is every
integer that a double cannot hold: readers such as jq and JavaScript would change its last digits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, TypeVar, overload

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from distop.proto.json_text import from_json

M = TypeVar("M", bound=Message)

_EXACT = 2**53
"""Integers up to here are exact as doubles."""


def message_of(kind: type[M], record: object, /, **fields: Any) -> M:
    """A message of a record: the fields of it that have the same names, and what ``fields`` say besides, or
    instead.

    Times are seconds since the epoch on both sides; 0 and ``None`` leave one unset. Fields that are messages
    themselves are only set by ``fields``.
    """
    kinds = kind, type(record)
    if (known := _SHARED.get(kinds)) is None:
        known = _SHARED[kinds] = _shared(*kinds)
    times, shared = known
    values = {name: getattr(record, name) for name in shared if name not in fields} | fields
    for name in times & values.keys():
        values[name] = timestamp(values[name])
    return kind(**values)


_SHARED: dict[tuple[type[Any], type[Any]], tuple[frozenset[str], tuple[str, ...]]] = {}


def _shared(kind: type[Message], record: type[Any]) -> tuple[frozenset[str], tuple[str, ...]]:
    """The fields of a message that are times, and those that are fields of the record, too."""
    described = kind.DESCRIPTOR.fields
    times = frozenset(field.name for field in described if _is_time(field))
    names = getattr(record, "__struct_fields__", ()) or getattr(record, "__dataclass_fields__", ())
    simple = (field.name for field in described if field.message_type is None or field.name in times)
    return times, tuple(name for name in simple if name in names)


def _is_time(field: Any) -> bool:
    message = field.message_type
    return message is not None and message.full_name == Timestamp.DESCRIPTOR.full_name


def timestamp(seconds: float | None) -> Timestamp | None:
    """Seconds since the epoch as a protobuf timestamp; ``None`` for 0, which means "never"."""
    if not seconds:
        return None
    whole = int(seconds)
    return Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9))


@overload
def plain(value: Message) -> dict[str, Any]: ...
@overload
def plain(value: Any, name: str = "") -> Any: ...
def plain(value: Any, name: str = "") -> Any:
    """A message of the API, a dataclass in its place, or anything made of them, as JSON.

    Parameters
    ----------
    name:
        Of the field that holds the value.
    """
    match value:
        case Enum():
            return value.value
        case Timestamp():
            return plain(value.ToDatetime(UTC)) if value.seconds or value.nanos else None
        case Message():
            return {_name(field): _field(value, field) for field in value.DESCRIPTOR.fields}
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case int() if not isinstance(value, bool):
            return str(value) if _is_id(name) or abs(value) > _EXACT else value
        case Mapping():
            return {str(key): plain(item, str(key)) for key, item in value.items()}
        case list() | tuple():
            return [plain(item, name) for item in value]
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name), field.name) for field in fields(value)}
    return value


def _is_id(name: str) -> bool:
    return name == "id" or name.endswith(("_id", "Id"))


def _name(field: Any) -> str:
    return str(field.name).removesuffix("_json")


def _field(message: Message, field: Any) -> Any:
    value = getattr(message, field.name)
    if field.name.endswith("_json"):
        return plain(from_json(value, field.name))
    if field.is_repeated:
        return [_single(field, item) for item in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    if value == 0 and _is_id(field.name) and field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return None  # such as a snapshot id: 0 is none
    return _single(field, value)


def _single(field: FieldDescriptor, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return known.name.lower() if known is not None and value else "unknown"
    return plain(value, field.name)
