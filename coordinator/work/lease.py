"""Until when the coordinator may act, for the processes that work for it: two numbers in shared memory."""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Callable

from distop.errors import LeaseLost
from distop.metastore.members.clocks import boot_clock

_HELD = struct.Struct("=qd")


class SharedLease:
    """The lease that is held, and the local deadline of it.

    Parameters
    ----------
    file:
        Descriptor of the memory, of a process that was given it; ``None`` makes it.
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
        """The lease that is held, or was held last; 0 before the first."""
        return int(_HELD.unpack_from(self._memory)[0])

    def check_of(self, lease: int, alive: Callable[[], None]) -> Callable[[], None]:
        """Raises :class:`~distop.errors.LeaseLost` once that lease is not held any more."""

        def check() -> None:
            held, until = _HELD.unpack_from(self._memory)
            if held != lease or (lease and boot_clock() >= until):
                raise LeaseLost
            alive()

        return check

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self.file)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("distop-lease")
    with tempfile.TemporaryFile() as made:
        return os.dup(made.fileno())
