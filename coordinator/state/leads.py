"""Operations that are led here, in their leader's state, for callers of the same coordinator.

The leader of a table sees every write to its operations. A caller that looks at one of them here need not
follow it a second time. Nothing depends on it: operations that are not led here are followed in etcd.
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
    """Receives the events of one operation."""

    def moved(self) -> None:
        """Its leader is here now, or no longer."""

    def heard(self, key: bytes, ended: JobEnd | None) -> None:
        """One of its keys was written and the write has been applied: a finished job's, or its own."""


class Leads:
    """Belongs to one event loop. Operations go by the roots of their keys."""

    def __init__(self) -> None:
        self._led: dict[bytes, Tracked] = {}
        self._listeners: dict[bytes, list[Listener]] = {}

    def get(self, root: bytes) -> Tracked | None:
        """The operation, if it is led here. It belongs to the leader: read only."""
        return self._led.get(root)

    def lead(self, tracked: Tracked) -> None:
        """All existing keys of the operation have been applied, and new writes will be."""
        self._led[tracked.keys.root] = tracked
        self._moved(tracked.keys.root)

    def leave(self, tracked: Tracked) -> None:
        """The operation is no longer followed by a leader here."""
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
        """From now on the listener gets events."""
        self._listeners.setdefault(root, []).append(listener)

    def forget(self, root: bytes, listener: Listener) -> None:
        """The listener gets no more events."""
        listeners = self._listeners[root]
        listeners.remove(listener)
        if not listeners:
            del self._listeners[root]


@contextmanager
def _leader_goes_on() -> Iterator[None]:
    """Calls listeners: a listener's defect must not end the leader."""
    try:
        yield
    except Exception:
        log.exception("listener_failed")
