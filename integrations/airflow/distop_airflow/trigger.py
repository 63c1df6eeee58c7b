"""What waits for operations and watermarks in Airflow's triggerer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from distop.client import Operation, Watermarks
from distop.errors import DistopError
from distop.proto.messages import plain
from distop_airflow.hook import DistopHook

ENDED_BY_AIRFLOW = "its task was killed, cleared or marked"
"""The reason of a cancellation that Airflow has caused. A task that goes on nevertheless starts its operation
anew: the kill was meant for an earlier try of it."""

SHORTEST_WAIT_S = 5.0
"""Seconds before a task is resumed. Airflow's scheduler first has to see that the process which deferred it
has ended: a task that runs again before that it takes as killed, and tries once more."""


def outcome_of(operation: Operation) -> dict[str, Any]:
    """The end of an operation, as JSON: ``operation``, its name, and ``facts`` or ``error``."""
    try:
        operation.raise_for_outcome()
    except DistopError as error:
        return {"operation": operation.name, "error": error.fields()}
    return {"operation": operation.name, "facts": plain(operation.facts)}


def reached(marks: Watermarks, source: str, partition: str, at_least: str) -> str | None:
    """The value of a watermark that is at a value or beyond it; ``None``: not yet.

    ``at_least``: in the order of watermarks; empty for any value.
    """
    from distop.lake.iceberg.watermarks import is_after  # loads what only this needs

    value = marks.get(source, {}).get(partition)
    return None if value is None or (at_least and is_after(at_least, value)) else value


class OperationTrigger(BaseTrigger):
    """Waits for the end of an operation; the event is :func:`outcome_of` it.

    A triggerer that dies, stops or hands over leaves the operation running: the next one waits for it.
    """

    def __init__(self, distop_conn_id: str, operation: str) -> None:
        super().__init__()
        self._connection, self._operation = distop_conn_id, operation

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Its class and arguments."""
        arguments = {"distop_conn_id": self._connection, "operation": self._operation}
        return f"{__name__}.{type(self).__name__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait. An error that ends the wait is an event, too."""
        try:
            async with await DistopHook(self._connection).aget_conn() as client:
                ended = asyncio.ensure_future(client.operation(self._operation).wait())
                shortest = asyncio.ensure_future(asyncio.sleep(SHORTEST_WAIT_S))
                try:
                    # Not awaited itself: gRPC would replace the cancellation by which Airflow reports a kill.
                    await asyncio.wait([ended, shortest])
                finally:
                    ended.cancel()
                    shortest.cancel()
                event = outcome_of(await ended)
        except DistopError as error:
            event = {"operation": self._operation, "error": error.fields()}
        yield TriggerEvent(event)

    async def on_kill(self) -> None:
        """Cancel the operation, since a user has ended the task.

        Airflow also calls this in a triggerer that was away for so long that another one has taken its
        triggers over. That is no loss of rows: a task that is notified of this cancellation starts anew.
        """
        async with await DistopHook(self._connection).aget_conn() as client:
            await client.operation(self._operation).cancel(ENDED_BY_AIRFLOW)


class WatermarkTrigger(BaseTrigger):
    """Waits until a watermark of a table is there, and at a value or beyond it."""

    def __init__(
        self, distop_conn_id: str, table: str, source: str, partition: str, at_least: str, every_s: float
    ) -> None:
        super().__init__()
        self._arguments = {
            "distop_conn_id": distop_conn_id,
            "table": table,
            "source": source,
            "partition": partition,
            "at_least": at_least,
            "every_s": every_s,
        }

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Its class and arguments."""
        return f"{__name__}.{type(self).__name__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look at intervals. An error that does not pass by itself is an event, too."""
        asked = self._arguments
        try:
            async with await DistopHook(asked["distop_conn_id"]).aget_conn() as client:
                table = client.table(asked["table"])
                while True:
                    try:
                        marks = await table.watermarks(asked["source"])
                        value = reached(marks, asked["source"], asked["partition"], asked["at_least"])
                    except DistopError as error:
                        if not error.retryable:
                            raise
                        self.log.warning("%s: looking again in %s s", error, asked["every_s"])
                        value = None
                    if value is not None:
                        break
                    await asyncio.sleep(asked["every_s"])
                event = {"value": value}
        except DistopError as error:
            event = {"error": error.fields()}
        yield TriggerEvent(event)
