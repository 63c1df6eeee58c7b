"""When the batches that have failed are tried again, or those whose sources are incomplete."""

from collections.abc import Callable, Iterable

from distop.coordinator.backlog.policy import Waiting

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 15.0
"""Back-off before a failed batch is retried, doubled each time."""

LONGEST_SOURCE_PAUSE_S = 5.0
"""The same for a batch whose source is incomplete: about how often a landing folder is polled."""


class Pauses:
    """The back-offs in one term of a table's leader; events do not end them.

    A batch is known by its revision: once it was written again, its back-off begins anew.

    Parameters
    ----------
    clock:
        Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._due: dict[int, float] = {}
        """When failed batches are retried, by their revision."""
        self._incomplete: dict[int, float] = {}
        """Since when batches wait for their sources, by their revision."""
        self._kept: set[int] = set()
        """Revisions of the failed batches in the part of the backlog that was read, until all of it was."""

    def keep(self, part: Iterable[Waiting], *, more: bool = False) -> None:
        """Forget batches that were taken away: those in no part of the backlog, once no ``more`` follow."""
        self._kept.update(waiting.kv.mod_revision for waiting in part if has_failed(waiting))
        if not more:
            for begun in (self._due, self._incomplete):
                for revision in begun.keys() - self._kept:
                    del begun[revision]
            self._kept.clear()

    def left(self, waiting: Waiting) -> float:
        """Seconds until the next attempt at a batch; 0: now."""
        now = self._clock()
        if not has_failed(waiting):
            return 0.0
        pause = min(FIRST_PAUSE_S * 2.0 ** min(waiting.record.attempts, 10), LONGEST_PAUSE_S)
        return max(0.0, self._due.setdefault(waiting.kv.mod_revision, now + pause) - now)

    def for_source(self, waiting: Waiting) -> float:
        """Begin the pause, in seconds, of a batch that still waits for its source: the longer it has waited,
        the longer. Nothing announces what it waits for."""
        revision, now = waiting.kv.mod_revision, self._clock()
        waited_s = now - self._incomplete.setdefault(revision, now)
        pause = min(max(FIRST_PAUSE_S, waited_s), LONGEST_SOURCE_PAUSE_S)
        self._due[revision] = now + pause
        return pause

    def over(self, waiting: Waiting) -> None:
        """Forget a batch: it was started, or its failure is recorded."""
        self._due.pop(waiting.kv.mod_revision, None)
        self._incomplete.pop(waiting.kv.mod_revision, None)


def has_failed(waiting: Waiting) -> bool:
    """Whether an attempt at it has failed, or its source was incomplete: others have no back-off."""
    return bool(waiting.record.attempts or waiting.record.code)
