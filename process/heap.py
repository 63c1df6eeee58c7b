"""Garbage collection in a process that distop owns."""

from __future__ import annotations

import gc


def settle_heap() -> None:
    """Call once everything is loaded: exclude loaded objects from garbage collection, and collect less often
    than after a few hundred marks or calls, which leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
