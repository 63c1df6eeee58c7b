"""Reading a long range of keys page by page, at a cost that does not grow with the range.

etcd counts all keys of a range, also when it is asked for a few: a hundred keys of a range of 100,000 cost as
much as a look at each of them. So a range is read through windows, each ending where the keys of one prefix
end. How long that prefix is follows from how many keys the last window had.
"""

from __future__ import annotations

from distop.metastore.records.components import prefix_end

WIDE = 4
"""A window with more than so many pages of keys is followed by a narrower one."""

FEW = 3
"""After more empty windows than that, the next ones grow faster."""


class Windows:
    """Where the next page is to be read: from :attr:`start` to (without) :attr:`stop`.

    The first window is the whole range if ``start`` is the prefix of it all; if it lies within (a listing
    goes on there), the window begins narrow.

    Parameters
    ----------
    limit:
        Keys of a page.
    first:
        Where the first window ends; empty: where it would without that.
    """

    def __init__(self, start: bytes, end: bytes, limit: int, first: bytes = b"") -> None:
        self.start, self._end, self._limit = start, end, limit
        self._depth, self._empty = len(start), 0
        self._first = first if start < first < end else b""

    @property
    def stop(self) -> bytes:
        """The end of the window: that of all keys with the first bytes of ``start``, so many of them."""
        if self._first:
            return self._first
        prefix = self.start[: self._depth].rstrip(b"\xff")
        return min(prefix_end(prefix), self._end) if prefix else self._end

    def read(self, keys: list[bytes], *, more: bool, count: int) -> bool:
        """Take note of a page of the window, which has ``count`` keys; whether it was the range's last."""
        if more:
            self.start = keys[-1] + b"\0"
            if count > WIDE * self._limit:
                # What all keys of a page have in common tells nothing apart.
                self._depth = _in_common(keys[0], keys[-1]) + 1
            self._empty = 0
            return False
        if (stop := self.stop) == self._end:
            return True
        if self._first:
            self.start, self._depth, self._first = stop, len(stop), b""
            return False
        # The next window may be wider, and by more if nothing at all comes for a while.
        self._empty = 0 if count else self._empty + 1
        self._depth = max(0, min(self._depth, len(stop)) - max(1, self._empty - FEW))
        self.start = stop
        return False


class Beginnings:
    """Where windows over the first keys of long ranges end, as they were when somebody looked.

    To find such a window, etcd goes over the whole range; so it is kept until it has hardly any keys left.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._ends: dict[bytes, bytes] = {}

    def of(self, start: bytes) -> bytes:
        """Where the window that begins with ``start`` ends; empty: none is known."""
        return self._ends.get(start, b"")

    def note(self, start: bytes, end: bytes) -> None:
        """It ends there; empty: it is of no use any more."""
        self._ends.pop(start, None)
        if end:
            self._ends[start] = end
            if len(self._ends) > self._most:
                del self._ends[next(iter(self._ends))]


def _in_common(one: bytes, other: bytes) -> int:
    """Bytes with which both begin."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
