"""Operations that are led here, as their leader knows them, for callers of the same coordinator.

The leader of a table hears of everything that is written to its operations. Whoever looks at one of them here
need not follow it a second time. Nothing depends on it: what is not led here is followed in etcd.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeAlias

from distop.coordinator.state.tracker import Tracked
from distop.metastore.records.operation import JobRecord

log = logging.getLogger(__name__)

JobEnd: TypeAlias = tuple[str, JobRecord]
"""A partition and the result of its job."""


class Listener(Protocol):
    """Wants to know what happens to one operation."""

    def moved(self) -> None:
        """Its leader is here now, or not any more."""

    def heard(self, key: bytes, ended: JobEnd | None) -> None:
        """One of its keys was written, and this has been applied: of a job that has ended, or its own."""


class Leads:
    """Belongs to one event loop. Operations go by the roots of their keys."""

    def __init__(self) -> None:
        self._led: dict[bytes, Tracked] = {}
        self._listeners: dict[bytes, list[Listener]] = {}

    def get(self, root: bytes) -> Tracked | None:
        """The operation, if it is led here. It is the leader's: only to be looked at."""
        return self._led.get(root)

    def lead(self, tracked: Tracked) -> None:
        """All that stands of the operation has been applied, and what is written will be."""
        self._led[tracked.keys.root] = tracked
        self._moved(tracked.keys.root)

    def leave(self, tracked: Tracked) -> None:
        """The operation is not followed by a leader here any more."""
        if self._led.pop(tracked.keys.root, None) is not None:
            self._moved(tracked.keys.root)

    def _moved(self, root: bytes) -> None:
        for listener in self._listeners.get(root, ()):
            with _leader_goes_on():
                listener.moved()

    def heard(self, root: bytes, key: bytes, ended: JobEnd | None) -> None:
        """A key of an operation that is led here was written."""
        for listener in self._listeners.get(root, ()):
            with _leader_goes_on():
                listener.heard(key, ended)

    def listen(self, root: bytes, listener: Listener) -> None:
        """From here on the listener is told."""
        self._listeners.setdefault(root, []).append(listener)

    def forget(self, root: bytes, listener: Listener) -> None:
        """The listener wants to hear nothing more."""
        listeners = self._listeners[root]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[root]


@contextmanager
def _leader_goes_on() -> Iterator[None]:
    """It calls those who look on: a defect of theirs is not to end it."""
    try:
        yield
    except Exception:
        log.exception("listener_failed")
