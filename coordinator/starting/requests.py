"""What callers send, as plain values: protobuf can hold more than makes sense."""

from __future__ import annotations

from typing import Any

from google.protobuf import duration_pb2, json_format, struct_pb2

from distop.errors import InvalidArgument


def seconds(duration: duration_pb2.Duration) -> float:
    """A duration in seconds. On the wire it may lie far outside of what protobuf's own helpers take."""
    return float(duration.seconds) + duration.nanos / 1e9


def plain(message: struct_pb2.Struct, field: str) -> dict[str, Any]:
    """A struct as JSON, whole numbers as integers again: protobuf's Struct knows doubles only.

    Raises :class:`~distop.errors.InvalidArgument` that names ``field`` when it is no JSON.
    """
    try:
        value: dict[str, Any] = _integral(json_format.MessageToDict(message))
    except (json_format.Error, ValueError) as error:
        raise InvalidArgument(f"{field} is no JSON: {error}", details={"field": field}) from error
    return value


def _integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) <= 1 << 53:
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_integral(item) for item in value]
    return value
