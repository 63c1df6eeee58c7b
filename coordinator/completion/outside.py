"""Runs the calls of a completion that may hang (hooks, external steps, storage); ends and reports them.

A call that takes long is recorded with the operation, so that users see what it waits for. A call whose
outcome is no longer needed, since the operation was cancelled or aborted, is ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from distop.coordinator.completion.parking import Parking
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.call import Call, Surroundings
from distop.coordinator.work.work import LONG_S, Work, is_own
from distop.errors import DistopError, LeadershipLost
from distop.metastore.members.election import Epoch
from distop.operations.api import DistributedOperation, OperationView

log = logging.getLogger(__name__)
T = TypeVar("T")

TELL_S = LONG_S
"""Seconds after which a running call is recorded."""


class Interrupted(BaseException):
    """The outcome of a call is no longer needed. Not an ``Exception``: nothing has failed."""


class Outside:
    """Calls for the drivers of one coordinator."""

    def __init__(self, work: Work, parking: Parking) -> None:
        self._work, self._parking = work, parking
        self._calls: dict[bytes, asyncio.Task[object]] = {}

    async def run(
        self,
        tracked: Tracked,
        epoch: Epoch,
        what: str,
        call: Call[T],
        check: Callable[[], None],
        kind: DistributedOperation | None = None,
    ) -> T:
        """Run a call of an operation; raises the call's errors, and as :meth:`Work.user`.

        Raises :class:`Interrupted` if :meth:`interrupt` has ended it.
        """
        named = f"{what} of {tracked.arg.id}"
        calling = self._work.user(kind, tracked.arg.table, named, call, check=check)
        return await self.followed(tracked, epoch, what, calling)

    async def asked(
        self, tracked: Tracked, epoch: Epoch, method: str, call: Call[T], kind: DistributedOperation
    ) -> T:
        """Run a call of a method that reads nothing; raises as :meth:`run`, and as :meth:`Work.asked`."""
        asking = self._work.asked(kind, tracked.arg.table, method, call)
        return await (asking if is_own(kind, method) else self.followed(tracked, epoch, method, asking))

    async def blocking(
        self, tracked: Tracked, epoch: Epoch, what: str, call: Callable[..., T], *args: Any
    ) -> T:
        """Run blocking code of distop for an operation; raises as :meth:`run`, and as :meth:`Work.blocking`:
        an interrupted call continues in its thread, and its result is dropped."""
        named = f"{what} of {tracked.arg.id}"
        calling = self._work.blocking(tracked.arg.table, named, call, *args)
        return await self.followed(tracked, epoch, what, calling)

    async def followed(self, tracked: Tracked, epoch: Epoch, what: str, call: Coroutine[Any, Any, T]) -> T:
        """Run a call for an operation; records that it takes long, and :meth:`interrupt` can end it."""
        calling = asyncio.create_task(call)
        self._calls[tracked.keys.root] = calling
        try:
            done, _ = await asyncio.wait({calling}, timeout=TELL_S)
            if not done:
                await self._tell(tracked, epoch, what)
                await asyncio.wait({calling})
                await self._tell(tracked, epoch, "")
            if calling.cancelled():
                raise Interrupted
            return calling.result()
        finally:
            self._calls.pop(tracked.keys.root, None)
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)

    async def _tell(self, tracked: Tracked, epoch: Epoch, what: str) -> None:
        try:
            await self._parking.runs_long(tracked, epoch, what)
        except LeadershipLost:
            raise
        except DistopError as error:  # the call itself goes on
            log.warning("call_not_told_of", extra={"operation": str(tracked.arg.id), "error": str(error)})

    def interrupt(self, tracked: Tracked) -> None:
        """End the running call of an operation, if there is one."""
        if (calling := self._calls.get(tracked.keys.root)) is not None:
            calling.cancel()


def hook(name: str, view: OperationView, surroundings: Surroundings) -> None:
    """Where hooks run."""
    getattr(surroundings.registry.get(view.arg.type), name)(view)
