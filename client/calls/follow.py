"""Following an operation to its end, whatever happens to the coordinators on the way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from distop.client.models.operation import OperationUpdate
from distop.client.transport.connection import FIRST_PAUSE_S, LONGEST_PAUSE_S, Connection, transient
from distop.errors import DistopError, Unavailable
from distop.proto import distop_pb2 as pb

HEARTBEAT_S = 2.0
"""How often a coordinator shows that it is alive while nothing changes; 2.5 times as long is silence."""


async def follow(
    connection: Connection,
    name: str,
    *,
    after_revision: int = 0,
    states_only: bool = False,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncGenerator[OperationUpdate, None]:
    """The changes of an operation, each once, up to its end.

    When a stream breaks or falls silent, the next coordinator is asked to go on after the last revision seen.

    Raises
    ------
    OperationNotFound
        There is no such operation.
    Unavailable
        No coordinator showed any sign of life for the connection's timeout.
    """
    seen = after_revision or -1
    failures = 0
    alive_at = asyncio.get_running_loop().time()
    while True:
        request = pb.WatchOperationRequest(name=name, after_revision=max(seen, 0), states_only=states_only)
        request.heartbeat.FromNanoseconds(int(heartbeat_s * 1e9))
        stream = connection.stream(
            lambda service: service.operations.WatchOperation, request, silence_s=2.5 * heartbeat_s
        )
        broken: DistopError = Unavailable(f"{connection.address} ended the stream")
        try:
            async with aclosing(stream) as messages:
                async for message in messages:
                    failures, alive_at = 0, asyncio.get_running_loop().time()
                    update = OperationUpdate.from_proto(message)
                    # A heartbeat repeats what was seen; the end is shown whatever its revision.
                    if update.revision > seen or update.operation.done:
                        seen = max(seen, update.revision)
                        yield update
                    if update.operation.done:
                        return
            connection.turn()
        except DistopError as error:
            if not transient(error):
                raise
            broken = error
        failures += 1
        pause = min(FIRST_PAUSE_S * 2 ** min(failures, 10), LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
        if connection.gives_up(asyncio.get_running_loop().time() + pause - alive_at, connection.timeout_s):
            raise broken
        await asyncio.sleep(pause)
