"""The updates of a watched operation: its newest state, whenever there is a newer one.

An update is made and encoded once for all watchers. A slow reader gets the newest one when it is ready, and
never those it has missed, so nothing is buffered for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, nullcontext, suppress

from distop.coordinator.state.leads import Leads
from distop.coordinator.views.followed import FIRST_LOOK_S, Followed
from distop.coordinator.views.operations import ENDED_STATES, read_operation
from distop.errors import Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.proto import distop_pb2 as pb


async def updates(
    client: EtcdClient,
    leads: Leads,
    followed: Followed,
    *,
    after: int,
    heartbeat_s: float,
    stopping: asyncio.Event,
    in_time: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> AsyncGenerator[bytes | pb.OperationUpdate, None]:
    """Updates of an operation to its end, as messages or encoded. Revisions only grow.

    Parameters
    ----------
    after:
        Changes up to this revision are not repeated, except for the end.
    in_time:
        Within it the first read ends before the caller's deadline.

    Raises
    ------
    OperationNotFound
        There is no such operation.
    Unavailable
        It cannot be read, or this coordinator is about to end; another one continues from the last seen
        revision.
    """
    loop = asyncio.get_running_loop()
    with suppress(TimeoutError):
        # Reads must be newer than the following's first read. A large operation is not waited for.
        async with asyncio.timeout(FIRST_LOOK_S):
            await followed.listed.wait()
    version = followed.version
    if followed.error is not None:
        raise followed.error
    # The counts include jobs that finished before; naming them all would grow without bound.
    with in_time():
        operation = await read_operation(client, followed.operation, leads)
    if operation.state in ENDED_STATES or operation.revision > after:
        yield pb.OperationUpdate(operation=operation, revision=operation.revision)
    if operation.state in ENDED_STATES:
        return
    sent = max(after, operation.revision)
    due = loop.time() + heartbeat_s
    while True:
        if stopping.is_set():
            raise Unavailable("this coordinator is shutting down", hint="ask another one")
        if followed.error is not None:
            raise followed.error
        if followed.over:
            if followed.last is not None:
                yield followed.last
            return
        if followed.version != version:
            version = followed.version
            update = followed.update()
            if update is None or update[1] <= sent:
                continue
        elif loop.time() < due:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await followed.news.wait()
            continue
        else:
            update = await followed.still()
            if update is None:  # it is still being read
                operation = await read_operation(client, followed.operation, leads)
                update = pb.OperationUpdate(operation=operation).SerializeToString(), operation.revision
        sent = max(sent, update[1])
        yield _as_of(update, sent)
        due = loop.time() + heartbeat_s


def _as_of(update: tuple[bytes, int], revision: int) -> bytes:
    """An encoded update with this revision.

    Protobuf encoding: the last occurrence of a repeated scalar field counts, and messages are
    merged.
    """
    encoded, said = update
    if said == revision:
        return encoded
    says = pb.OperationUpdate(operation=pb.Operation(revision=revision), revision=revision)
    return encoded + says.SerializeToString()
