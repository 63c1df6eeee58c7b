"""Converts messages of the API to dataclasses: field by field, by name."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Self

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

_KINDS: dict[str, Any] = {}
"""Models and enumerations, by their name in the API."""


class Model:
    """The base of the dataclasses for messages; each has the name of its message."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        _KINDS[cls.__name__] = cls

    @classmethod
    def from_proto(cls, message: Any, **given: Any) -> Self:
        """From a message whose fields have the same names, and what is ``given`` besides.

        Unset fields get their default. Repeated fields become tuples, times are in UTC, and a field that ends
        in ``_json`` is parsed.
        """
        kinds = cls, type(message)
        if (reading := _READINGS.get(kinds)) is None:
            reading = _READINGS[kinds] = _reading(cls, message.DESCRIPTOR)
        values = {name: unset() if callable(unset) else unset for name, unset in reading.unset.items()}
        for descriptor, value in message.ListFields():
            if (known := reading.fields.get(descriptor.name)) is not None:
                name, convert = known
                values[name] = convert(value)
        return cls(**values, **given)


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


@dataclass(frozen=True)
class _Reading:
    """How messages of one kind become one model: most have few fields set, and are read often."""

    fields: dict[str, tuple[str, Callable[[Any], Any]]]
    """Of the message, by name: the field of the model, and what makes its value."""
    unset: dict[str, Any]
    """What fields of the model are that the message does not set, or what makes it; without those that get
    their default."""


_READINGS: dict[tuple[type[Model], type[Any]], _Reading] = {}


def _reading(model: type[Any], message: Descriptor) -> _Reading:
    known, reading = message.fields_by_name, _Reading({}, {})
    for field in fields(model):
        if (text := f"{field.name}_json") in known:
            reading.fields[text] = field.name, json.loads
            reading.unset[field.name] = dict
        elif (descriptor := known.get(field.name)) is not None:
            single = _converter(descriptor)
            if descriptor.is_repeated:
                reading.fields[field.name] = field.name, functools.partial(_several, single)
                reading.unset[field.name] = ()
                continue
            reading.fields[field.name] = field.name, single
            if not descriptor.has_presence:
                # Such as a snapshot id: 0 is none.
                nothing = field.default is None
                reading.unset[field.name] = None if nothing else single(descriptor.default_value)
    return reading


def _several(single: Callable[[Any], Any], values: Any) -> tuple[Any, ...]:
    return tuple(map(single, values))


def _converter(descriptor: FieldDescriptor) -> Callable[[Any], Any]:
    """What makes a value of the model from a single one of the message."""
    if (enumeration := descriptor.enum_type) is not None:
        kind, numbers = _KINDS[enumeration.name], enumeration.values_by_number

        def named(value: int) -> Any:
            known = numbers.get(value)
            return kind.from_proto(known.name if known else "")

        return named
    if (message := descriptor.message_type) is None:
        return _as_it_is
    if message.full_name == Timestamp.DESCRIPTOR.full_name:
        return from_timestamp
    return _KINDS[message.name].from_proto  # type: ignore[no-any-return]


def _as_it_is(value: Any) -> Any:
    return value
