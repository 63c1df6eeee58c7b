"""Following a stream, over failures of coordinators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from operator import attrgetter
from typing import Any

from distop.client.models.diagnosis import Diagnosis, Finding
from distop.client.models.operation import OperationUpdate
from distop.client.transport.connection import Connection, pause_s, transient
from distop.errors import DistopError, Unavailable
from distop.proto import distop_pb2 as pb

HEARTBEAT_S = 2.0
"""Interval of a coordinator's heartbeats; 2.5 intervals without one count as silence."""

DIAGNOSIS_SILENCE_S = 15.0
"""Seconds without a heartbeat after which the next coordinator is asked for a diagnosis."""


async def resumed(
    connection: Connection, method: str, request: Callable[[], Any], *, silence_s: float
) -> AsyncGenerator[Any, None]:
    """The messages of a stream, and of its successors; the consumer closes it after the last message.

    Parameters
    ----------
    request:
        Makes the request of each stream: how to continue after a broken or silent one.

    Raises
    ------
    Unavailable
        No coordinator sent anything within the connection's timeout, counted from the first failure: before
        it, a stream may be quiet, and its consumer busy, for longer than that.
    """
    loop, failures, failing_since = asyncio.get_running_loop(), 0, 0.0
    while True:
        broken: DistopError = Unavailable(f"{connection.address} ended the stream")
        try:
            stream = connection.stream(attrgetter(method), request(), silence_s=silence_s)
            async with aclosing(stream) as messages:
                async for message in messages:
                    failures = 0
                    yield message
            connection.turn()
        except DistopError as error:
            if not transient(error):
                raise
            broken = error
        if not failures:
            failing_since = loop.time()
        failures += 1
        pause = max(pause_s(failures), broken.retry_after_s)
        if connection.gives_up(loop.time() + pause - failing_since, connection.timeout_s):
            raise broken
        await asyncio.sleep(pause)


async def follow(
    connection: Connection,
    name: str,
    *,
    after_revision: int = 0,
    states_only: bool = False,
    heartbeat_s: float = HEARTBEAT_S,
) -> AsyncGenerator[OperationUpdate, None]:
    """The changes of an operation, each once, up to its end.

    Raises
    ------
    OperationNotFound
        There is no such operation.
    Unavailable
        See :func:`resumed`.
    """
    seen = after_revision or -1

    def request() -> pb.WatchOperationRequest:
        wanted = pb.WatchOperationRequest(name=name, after_revision=max(seen, 0), states_only=states_only)
        wanted.heartbeat.FromNanoseconds(int(heartbeat_s * 1e9))
        return wanted

    stream = resumed(connection, "WatchOperation", request, silence_s=2.5 * heartbeat_s)
    async with aclosing(stream) as messages:
        async for message in messages:
            update = OperationUpdate.from_proto(message)
            # A heartbeat repeats the last update; the end is shown at any revision.
            if update.revision > seen or update.operation.done:
                seen = max(seen, update.revision)
                yield update
            if update.operation.done:
                return


async def diagnose(connection: Connection, request: pb.DiagnoseRequest) -> Diagnosis:
    """Ask a coordinator; when its stream breaks another one starts again, which is harmless.

    A finding that an earlier one has repaired is not found again, so it is kept from the broken stream.
    """
    fixed: dict[tuple[str, str, str, str], Finding] = {}
    findings: list[Finding] = []

    def begin() -> pb.DiagnoseRequest:
        for one in findings:
            if one.fixed:
                fixed[one.code, one.table, one.operation, one.sentence] = one
        findings.clear()
        return request

    stream = resumed(connection, "Diagnose", begin, silence_s=DIAGNOSIS_SILENCE_S)
    async with aclosing(stream) as messages:
        async for message in messages:
            findings += [Finding.from_proto(finding) for finding in message.findings]
            if message.done:
                found = (*fixed.values(), *findings)
                return Diagnosis(findings=found, tables=message.tables, operations=message.operations)
    raise AssertionError("unreachable: streams follow each other until one is done")
