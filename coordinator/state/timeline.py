"""What has happened to an operation. Pure: no I/O, no clock of its own.

The keys of an operation say most of it anyway, with times. What later values of them hide (earlier executors,
leaders and failures) its leader remembers, and writes with transactions that it sends in any case.
"""

from __future__ import annotations

from collections.abc import Iterable

from distop.errors import shortened
from distop.metastore.records.operation import (
    CompletionRecord,
    ErrorRecord,
    Event,
    EventsRecord,
)
from distop.metastore.records.record import encode

MAX_EVENTS, MAX_BYTES = 64, 4096
FIRST = 16
"""Of too many events the first ones, this many, and the last ones are kept."""
_MAX_TEXT, _MAX_NAME = 200, 100

TAKEN, WAITS_AGAIN = "taken", "waits again"


def event(at: float, what: str, by: str = "", about: str = "") -> Event:
    """One event, at some seconds since the Unix epoch; long texts are cut."""
    return Event(at=round(at, 3), what=what, by=shortened(by, _MAX_NAME), about=shortened(about, _MAX_TEXT))


class Timeline:
    """The events of one operation, as far as they are known. One that is added twice counts once."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._left_out = 0
        self._led = False
        self.unsaid = False
        """Something has happened that the keys of the operation will not say for long."""

    def add(self, one: Event) -> None:
        if one in self._events:
            return
        taken_before = any(other.what in (TAKEN, WAITS_AGAIN) for other in self._events)
        self.unsaid |= one.what == WAITS_AGAIN or (one.what == TAKEN and taken_before)
        self._events.append(one)
        if len(self._events) > MAX_EVENTS:
            del self._events[FIRST]
            self._left_out += 1

    def lead(self, one: Event) -> None:
        """This process leads from now on, and so knows what is written."""
        self._led = True
        self.add(one)

    def restore(self, record: EventsRecord) -> None:
        """Put what an earlier leader has written before what is known."""
        if not self._led:
            own, self._events, self._left_out = self._events, list(record.events), record.left_out
            for one in own:
                self.add(one)

    def record(self, more: Iterable[Event] = ()) -> EventsRecord:
        """All of them with some more, by their times: at most ``MAX_EVENTS`` and ``MAX_BYTES``."""
        events = sorted([*self._events, *(one for one in more if one not in self._events)], key=_at)
        left_out = self._left_out
        while True:
            record = EventsRecord(events=events, left_out=left_out)
            if len(events) <= MAX_EVENTS and len(encode(record)) <= MAX_BYTES:
                return record
            del events[min(FIRST, len(events) // 2)]
            left_out += 1


def _at(one: Event) -> float:
    return one.at


def sealed(at: float, state: bytes, error: ErrorRecord | None) -> Event:
    """The outcome of the jobs is fixed: ``committing``, or ``aborting`` with its reason."""
    why = f": {error.code}: {error.message}" if error is not None else ""
    return event(at, "sealed", about=state.decode() + why)


def completion_failed(record: CompletionRecord) -> Event:
    """An attempt at ending the operation has failed."""
    step = f"{record.step}: " if record.step else ""
    about = f"attempt {record.attempts}: {step}{record.error_code}: {record.error}"
    return event(record.at, "parked" if record.parked else "completion failed", about=about)
