"""The heap of a process that is all ours."""

from __future__ import annotations

import gc


def settle_heap() -> None:
    """Once it is loaded: do not look for garbage among what never goes, nor after every few hundred marks or
    calls, which leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
