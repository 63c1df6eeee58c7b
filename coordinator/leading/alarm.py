"""An event that is set when something happens, or once a time has come."""

from __future__ import annotations

import asyncio


class Alarm:
    """Belongs to one event loop; one waits for it.

    To set it for the time that is due next costs nothing as long as an earlier one stands: most of what a
    leader waits for comes long before any of these.
    """

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def ring(self) -> None:
        """Something has happened."""
        self._event.set()

    async def within(self, seconds: float) -> None:
        """Until it rings: so many seconds from now at the latest, and perhaps for nothing."""
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        if self._timer is None or self._timer.when() > at:
            self.cancel()
            self._timer = loop.call_at(at, self._due)
        await self._event.wait()
        self._event.clear()

    def cancel(self) -> None:
        """Nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _due(self) -> None:
        self._timer = None
        self._event.set()
