"""The event loop of this package's processes."""

from __future__ import annotations

import asyncio


def event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one: it makes small messages half as expensive."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
