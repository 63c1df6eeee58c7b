"""Thread-safe conversion of JSON and plain values to types.

msgspec prepares a type when it is used for the first time. A second thread that uses it meanwhile finds it
half prepared, and the process crashes (msgspec 0.22: a segmentation fault). So each type is prepared before
its first use, one at a time: by :func:`convert` and :func:`from_json`, which replace msgspec's
own.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_ready: set[Any] = set()
_one_at_a_time = threading.Lock()


def ready(kind: type[T]) -> type[T]:
    """The same type, prepared for decoders in any thread."""
    if kind not in _ready:
        with _one_at_a_time:
            msgspec.msgpack.Decoder(kind)
            _ready.add(kind)
    return kind


def convert(value: object, kind: type[T]) -> T:
    """Plain values, lists and dictionaries as a ``kind``; ``msgspec.ValidationError`` if they do not fit."""
    return msgspec.convert(value, ready(kind))


def from_json(data: bytes | str, kind: type[T]) -> T:
    """A ``kind`` from JSON; raises ``msgspec.ValidationError`` or ``msgspec.DecodeError``."""
    return msgspec.json.decode(data, type=ready(kind))
