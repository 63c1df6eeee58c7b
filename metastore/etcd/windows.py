"""Reading a long range of keys page by page, at a cost that does not grow with the range.

etcd counts all keys of a range, also when it is asked for a few: a hundred keys of a range of 100,000 cost as
much as a look at each of them. So a range is read through windows, each ending where the keys of one prefix
end. How long that prefix is follows from how many keys the last window had.
"""

from __future__ import annotations

from distop.metastore.records.keyspace import prefix_end

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
    """

    def __init__(self, start: bytes, end: bytes, limit: int) -> None:
        self.start, self._end, self._limit = start, end, limit
        self._depth, self._empty = len(start), 0

    @property
    def stop(self) -> bytes:
        """The end of the window: that of all keys with the first bytes of ``start``, so many of them."""
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
        # The next window may be wider, and by more if nothing at all comes for a while.
        self._empty = 0 if count else self._empty + 1
        self._depth = max(0, min(self._depth, len(stop)) - max(1, self._empty - FEW))
        self.start = stop
        return False


def _in_common(one: bytes, other: bytes) -> int:
    """Bytes with which both begin."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
