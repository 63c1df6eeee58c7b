"""What was seen last of each name, of a limited number of names."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT = 1000
"""Names that are remembered."""


class Recent(Generic[T]):
    """Values by name; may be used from several threads."""

    def __init__(self) -> None:
        self._values: dict[str, T] = {}
        self._lock = Lock()

    def get(self, name: str) -> T | None:
        return self._values.get(name)

    def put(self, name: str, value: T) -> None:
        """Remember a value, and forget the oldest."""
        with self._lock:
            self._values.pop(name, None)
            self._values[name] = value
            if len(self._values) > KEPT:
                del self._values[next(iter(self._values))]
