"""Reading a long range of keys page by page, at a cost that does not grow with the range.

etcd counts all keys of a range, whatever the limit: a hundred keys of a range of 100,000 cost as much as
reading all of them. So a range is read through windows, each ending where the keys of one prefix end. The
length of that prefix follows from the number of keys in the last window.
"""

from __future__ import annotations

from distop.metastore.records.components import prefix_end

WIDE = 4
"""A window with more pages of keys than this is followed by a narrower one."""

FEW = 3
"""After more empty windows than this, the next ones grow faster."""

MOST_CACHED = 10_000
"""Ranges whose first window is cached."""


class Windows:
    """The position of the next page: from :attr:`start` to (without) :attr:`stop`.

    The first window is the whole range if ``start`` is its prefix; if ``start`` lies within (a listing
    continues there), the first window is narrow.

    Parameters
    ----------
    limit:
        Keys of a page.
    first:
        The end of the first window; empty: computed.
    """

    def __init__(self, start: bytes, end: bytes, limit: int, first: bytes = b"") -> None:
        self.start, self._end, self._limit = start, end, limit
        self._depth, self._empty = len(start), 0
        self._first = first if start < first < end else b""

    @property
    def stop(self) -> bytes:
        """The end of the window: after all keys with this many first bytes of ``start``."""
        if self._first:
            return self._first
        prefix = self.start[: self._depth].rstrip(b"\xff")
        return min(prefix_end(prefix), self._end) if prefix else self._end

    def read(self, keys: list[bytes], *, more: bool, count: int) -> bool:
        """Record a page of the window, which has ``count`` keys; return whether it was the range's last."""
        if more:
            self.start = keys[-1] + b"\0"
            if count > WIDE * self._limit:
                # The common prefix of all keys of a page does not distinguish any.
                self._depth = _in_common(keys[0], keys[-1]) + 1
            self._empty = 0
            return False
        if (stop := self.stop) == self._end:
            return True
        if self._first:
            self.start, self._depth, self._first = stop, len(stop), b""
            return False
        # The next window may be wider, and by more if several are empty.
        self._empty = 0 if count else self._empty + 1
        self._depth = max(0, min(self._depth, len(stop)) - max(1, self._empty - FEW))
        self.start = stop
        return False


class Beginnings:
    """Cached ends of windows over the first keys of long ranges.

    Finding such a window makes etcd count the whole range; so it is cached until it has hardly any keys left.
    """

    def __init__(self) -> None:
        self._ends: dict[bytes, bytes] = {}

    def of(self, start: bytes) -> bytes:
        """The end of the window that begins with ``start``; empty: unknown."""
        return self._ends.get(start, b"")

    def note(self, start: bytes, end: bytes) -> None:
        """Set its end; empty: it is no longer useful."""
        self._ends.pop(start, None)
        if end:
            self._ends[start] = end
            if len(self._ends) > MOST_CACHED:
                del self._ends[next(iter(self._ends))]


def _in_common(one: bytes, other: bytes) -> int:
    """The common prefix."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
