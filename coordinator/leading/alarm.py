"""An event that is set when something happens, and at the latest at a given time."""

from __future__ import annotations

import asyncio


class Alarm:
    """Belongs to one event loop; has one waiter.

    Setting it for a later time than the one already set costs nothing. That is the common case: most events
    that a leader waits for happen long before any of these times.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Set the event now."""
        self._event.set()

    async def within(self, seconds: float) -> None:
        """Wait for the event, this many seconds at most. It may end earlier, without a reason."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is None or self._timer.when() > at:
            self.cancel()
            self._timer = loop.call_at(at, self._due)
        await self._event.wait()
        self._event.clear()

    def cancel(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._event.set()
