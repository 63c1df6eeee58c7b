"""Time and chance of the simulation, in place of those of the machine.

Must be installed before any module of distop is imported: some remember ``time.time`` as a default argument.
Outside of a simulation everything stays as it was.
"""

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EPOCH = 1_800_000_000.0
"""Seconds since the Unix epoch when a simulation begins."""

_clock: Callable[[], float] | None = None
_chance: random.Random | None = None


def install() -> None:
    """Replace what programs ask for the time, and for random bytes."""
    wall, monotonic, of_clock, urandom = time.time, time.monotonic, time.clock_gettime, os.urandom

    def random_bytes(size: int) -> bytes:
        return urandom(size) if _chance is None else _chance.randbytes(size)

    time.time = lambda: wall() if _clock is None else EPOCH + _clock()
    time.monotonic = lambda: monotonic() if _clock is None else _clock()
    time.clock_gettime = lambda which: of_clock(which) if _clock is None else _clock()
    os.urandom = random_bytes
    random._urandom = random_bytes  # type: ignore[attr-defined]  # what ``secrets`` uses
    random.Random = _Random  # type: ignore[misc, assignment]


class _Random(random.Random):
    """Seeded by the simulation where a program gives no seed."""

    def __init__(self, seed: int | float | str | bytes | bytearray | None = None) -> None:
        super().__init__(_chance.getrandbits(64) if seed is None and _chance is not None else seed)


@contextmanager
def simulated(seed: int, clock: Callable[[], float]) -> Iterator[None]:
    """Time by this clock, and chance by this seed."""
    global _clock, _chance
    _clock, _chance = clock, random.Random(seed)
    random.seed(seed)
    try:
        yield
    finally:
        _clock = _chance = None


def now() -> float:
    """Seconds since the Unix epoch, as the processes of the simulation see it."""
    return time.time()
