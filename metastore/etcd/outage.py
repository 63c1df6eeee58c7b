"""An outage of etcd in the log of a process: its beginning, each minute of it, and its end."""

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)
log.addHandler(logging.NullHandler())  # without a log, as in a command, the error of the call says it

NOTICED_AFTER_S = 1.0
"""Seconds of failures without any answer that make an outage: another member is found earlier."""
EVERY_S = 60.0
"""Seconds between two lines of an outage."""


class Outage:
    """Whether anything was answered lately; notified of each call by any thread.

    What retries by itself logs its own failures for debugging only: many do so at the same time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._answered_at = self._logged_at = 0.0
        self._since: float | None = None
        self._is_logged = False

    def answered(self) -> None:
        """A call, or a watch, was answered."""
        self._answered_at = self._clock()
        if self._since is not None:
            self._end()

    def _end(self) -> None:
        with self._lock:
            since, self._since = self._since, None
            is_logged, self._is_logged = self._is_logged, False
        if since is not None and is_logged:
            log.warning("etcd_answers_again", extra={"after_s": round(self._answered_at - since, 1)})

    def failed(self, error: str, *, sent_at: float | None = None) -> None:
        """A call was not answered, or a watch broke. ``sent_at``: when the call was made, by the clock."""
        with self._lock:
            now = self._clock()
            if self._since is None:
                self._since = now if sent_at is None else max(sent_at, self._answered_at)
            due = self._logged_at + EVERY_S if self._is_logged else self._since + NOTICED_AFTER_S
            if now >= due:
                self._is_logged, self._logged_at = True, now
                fields = {"for_s": round(now - self._since, 1), "error": error}
                log.warning("etcd_does_not_answer", extra=fields)
