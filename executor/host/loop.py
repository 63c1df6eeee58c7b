"""The event loop of this package's processes, and their heap."""

from __future__ import annotations

import asyncio
import gc


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one: it makes small messages half as expensive."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def settle_heap() -> None:
    """For a process that is all ours, once it is loaded: do not look for garbage among what never goes, nor
    after every few hundred marks, which leave no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
