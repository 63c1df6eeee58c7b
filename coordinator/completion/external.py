"""The external steps of an operation: logged as a whole, executed after that, taken back by an abort.

The coordinator that leads the table next finds the log and goes on with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from distop.commit.steps.facts import NOT_UNDONE
from distop.coordinator.completion.parking import text_of
from distop.coordinator.completion.publication import (
    context_of,
    read_base,
    read_view,
    step_context,
    work_out,
)
from distop.coordinator.state.tracker import Tracked
from distop.errors import OF_THE_WORLD
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.election import Epoch
from distop.metastore.operations.steplog import CommitStepStore
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import StepRecord
from distop.operations.api import OperationView

log = logging.getLogger(__name__)
T = TypeVar("T")


class ExternalSteps:
    """Runs them for the drivers of one coordinator, in ``threads``."""

    def __init__(self, client: EtcdClient, threads: Executor) -> None:
        self._client, self._threads, self._store = client, threads, CommitStepStore()

    async def _blocking(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def run(
        self,
        keys: TableKeys,
        tracked: Tracked,
        epoch: Epoch,
        view: OperationView,
        steps: list[StepRecord],
        check: Callable[[], None],
    ) -> list[str] | None:
        """Execute them; the names of those that were skipped, as somebody has decided.

        ``None`` if a cancellation came before their log was durable: nothing was executed then.
        """
        from distop.commit.steps.execution import execute

        sequence = await self._store.load(self._client, tracked.keys)
        if sequence is None:
            context = context_of(keys, await read_base(self._client, keys, tracked.arg), view)
            planned = await self._blocking(partial(work_out, context, steps))
            sequence = await self._store.write(self._client, tracked.keys, epoch, planned)
        if sequence is None:
            return None
        outside = step_context(keys, await read_base(self._client, keys, tracked.arg), view)
        skip = frozenset(tracked.completion.skipped)
        await self._blocking(partial(execute, sequence, outside, check=check, skip=skip))
        return [sequence.steps[index].step for index in tracked.completion.skipped]

    async def undo(self, keys: TableKeys, tracked: Tracked, check: Callable[[], None]) -> dict[str, Any]:
        """Take back what logged steps did, where that is possible; facts that say what was not."""
        from distop.commit.steps.execution import undo

        try:
            sequence = await self._store.load(self._client, tracked.keys)
            if sequence is None:
                return {}
            view = await read_view(self._client, tracked)
            context = step_context(keys, await read_base(self._client, keys, tracked.arg), view)
            came = await self._blocking(partial(undo, sequence, context, check=check))
        except OF_THE_WORLD:
            raise
        except Exception as error:
            # Such as a log that this version cannot read. The table must not wait for it for ever.
            log.error("steps_not_undone", extra={"operation": str(tracked.arg.id), "error": str(error)})
            return {"undoError": text_of(error)}
        return {"stepsUndone": came.undone, NOT_UNDONE: len(came.left)}
