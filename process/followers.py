"""Tasks that run for as long as their process: one that fails is started again, and ends nobody else."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from distop.errors import DistopError

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Back-off before it is started again, doubled each time until it has run for the longest."""


async def kept_running(name: str, follower: Callable[[], Awaitable[None]]) -> None:
    """Run a follower until cancelled, and end then, even if it fails at that moment. It must begin from the
    present state: nothing is kept from before.

    An error of etcd is logged as a warning, a defect as an error with its trace.
    """
    pause, clock = FIRST_PAUSE_S, asyncio.get_running_loop().time
    while True:
        began = clock()
        # In a task of its own, so that a cancellation ends this one whatever the follower makes of it. Before
        # Python 3.13 a TaskGroup whose task fails at that moment swallows it, and raises the error instead.
        [error] = await asyncio.gather(follower(), return_exceptions=True)
        if error is not None:
            defect = None if isinstance(error, DistopError) else error
            level = logging.WARNING if defect is None else logging.ERROR
            log.log(level, "follower_failed", extra={"follower": name, "error": str(error)}, exc_info=defect)
        if clock() - began > LONGEST_PAUSE_S:
            pause = FIRST_PAUSE_S
        await asyncio.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE_S)
