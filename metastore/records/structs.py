"""Types of msgspec that threads may use at the same time.

msgspec learns what a type holds when it is used for the first time. A second thread that uses it meanwhile
finds what is only half there, and the process ends (msgspec 0.22: a segmentation fault). So each type is made
ready before its first use, one at a time.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

_ready: set[Any] = set()
_one_at_a_time = threading.Lock()


def ready(kind: type[T]) -> type[T]:
    """The same type, which may be decoded and converted to in any thread from now on."""
    if kind not in _ready:
        with _one_at_a_time:
            msgspec.msgpack.Decoder(kind)
            _ready.add(kind)
    return kind
