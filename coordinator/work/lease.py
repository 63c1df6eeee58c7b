"""Until when the coordinator may act, for its worker processes: two numbers in shared memory."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Callable

from distop.errors import LeaseLost
from distop.process.clock import boot_clock

_HELD = struct.Struct("=qd")


class SharedLease:
    """The current lease, and its local deadline.

    Parameters
    ----------
    file:
        Descriptor of the memory, in a worker process; ``None`` creates it.
    """

    def __init__(self, file: int | None = None) -> None:
        if file is None:
            file = _anonymous_file()
            os.ftruncate(file, mmap.PAGESIZE)
        self.file = file
        self._memory = mmap.mmap(file, mmap.PAGESIZE)

    def holds(self, lease: int, until: float) -> None:
        """It is held until then, by :func:`boot_clock`."""
        _HELD.pack_into(self._memory, 0, lease, until)

    @property
    def lease(self) -> int:
        """The current lease, or the last one; 0 before the first."""
        return int(_HELD.unpack_from(self._memory)[0])

    def check_of(self, lease: int, alive: Callable[[], None]) -> Callable[[], None]:
        """Raises :class:`~distop.errors.LeaseLost` once that lease is no longer held."""

        def check() -> None:
            held, until = _HELD.unpack_from(self._memory)
            if held != lease or (lease and boot_clock() >= until):
                raise LeaseLost
            alive()

        return check

    def close(self) -> None:
        """Release the memory."""
        self._memory.close()
        os.close(self.file)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("distop-lease")
    with tempfile.TemporaryFile() as made:
        return os.dup(made.fileno())
