"""Converts messages of the API to dataclasses: field by field, by name."""

from __future__ import annotations

import json
from dataclasses import MISSING, Field, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Self

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

_KINDS: dict[str, Any] = {}
"""Models and enumerations, by their name in the API."""


class Model:
    """The base of the dataclasses for messages; each has the name of its message."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        _KINDS[cls.__name__] = cls

    @classmethod
    def from_proto(cls, message: Any) -> Self:
        """From a message whose fields have the same names; unset fields get their default.

        Repeated fields become tuples, times are in UTC, and a field that ends in ``_json`` is parsed.
        """
        found = ((field, _value(message, field)) for field in fields(cls))  # type: ignore[arg-type]
        return cls(**{field.name: value for field, value in found if value is not MISSING})


class ModelEnum(Enum):
    """The base of the enumerations of the API. Each has ``UNKNOWN``, for values of a newer server."""

    def __init_subclass__(cls) -> None:
        _KINDS[cls.__name__] = cls

    @classmethod
    def from_proto(cls, name: str) -> Self:
        """From the name of a value."""
        return cls.__members__.get(name, cls.__members__["UNKNOWN"])


def from_timestamp(stamp: Timestamp) -> datetime | None:
    """In UTC; ``None`` if unset."""
    return stamp.ToDatetime(UTC) if stamp.seconds or stamp.nanos else None


def _value(message: Any, field: Field[Any]) -> Any:
    known = message.DESCRIPTOR.fields_by_name
    text = f"{field.name}_json"
    if text in known:
        return json.loads(getattr(message, text) or "{}")
    descriptor = known.get(field.name)
    if descriptor is None or (descriptor.has_presence and not message.HasField(field.name)):
        return MISSING
    value = getattr(message, field.name)
    if descriptor.is_repeated:
        return tuple(_single(descriptor, item) for item in value)
    if field.default is None and not value and not descriptor.has_presence:
        return None  # such as a snapshot id: 0 is none
    return _single(descriptor, value)


def _single(descriptor: FieldDescriptor, value: Any) -> Any:
    if descriptor.enum_type is not None:
        known = descriptor.enum_type.values_by_number.get(value)
        return _KINDS[descriptor.enum_type.name].from_proto(known.name if known else "")
    if isinstance(value, Timestamp):
        return from_timestamp(value)
    if descriptor.message_type is not None:
        return _KINDS[descriptor.message_type.name].from_proto(value)
    return value
