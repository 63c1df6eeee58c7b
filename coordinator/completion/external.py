"""The external steps of an operation: logged as a whole, then executed; an abort undoes them.

The next leader of the table finds the log and continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from distop.commit.contract import NOT_UNDONE
from distop.coordinator.completion.outside import Outside
from distop.coordinator.completion.publication import (
    context_of,
    read_base,
    read_view,
    step_context,
    work_out,
)
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.call import Surroundings
from distop.errors import CallTimeout, Crashed
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.election import Epoch
from distop.metastore.operations.steplog import CommitStepStore
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import StepRecord
from distop.operations.api import OperationView

if TYPE_CHECKING:
    from distop.commit.contract import StepContext
    from distop.commit.execution import Undone
    from distop.metastore.records.operation import CommitSequence


PARTS = 16
"""Into how many parts a sequence is divided to find the step that its process dies of."""


class ExternalSteps:
    """Runs them for the drivers of one coordinator."""

    def __init__(self, client: EtcdClient, outside: Outside) -> None:
        self._client, self._outside, self._store = client, outside, CommitStepStore()

    async def run(
        self,
        keys: TableKeys,
        tracked: Tracked,
        epoch: Epoch,
        view: OperationView,
        steps: list[StepRecord],
        check: Callable[[], None],
    ) -> list[str] | None:
        """Execute them; return the names of those that an operator decided to skip.

        ``None`` if a cancellation came before their log was durable: nothing was executed then.
        """
        from distop.commit.execution import StepFailed

        sequence = await self._store.load(self._client, tracked.keys)
        if sequence is None:
            context = context_of(keys, await read_base(self._client, keys, tracked.arg), view)
            what = "working out the commit steps"
            planned = await self._outside.blocking(tracked, epoch, what, work_out, context, steps)
            sequence = await self._store.write(self._client, tracked.keys, epoch, planned)
        if sequence is None:
            return None
        seen = step_context(keys, await read_base(self._client, keys, tracked.arg), view)
        skipped = tracked.completion.skipped

        async def execute_some(indexes: Sequence[int]) -> None:
            """A process that dies or hangs cannot say of which step: they are executed again in parts, until
            one is left. What is done is found done."""
            what = "executing the commit steps"
            if len(indexes) == 1:
                what = f"executing commit step {indexes[0]} ({sequence.steps[indexes[0]].step})"
            call = partial(_execute, sequence, seen, frozenset(skipped), indexes)
            try:
                await self._outside.run(tracked, epoch, what, call, check)
            except (Crashed, CallTimeout) as error:
                if len(indexes) == 1:
                    raise StepFailed.of(indexes[0], sequence.steps[indexes[0]], error) from error
                size = max(1, len(indexes) // PARTS)
                for start in range(0, len(indexes), size):
                    await execute_some(indexes[start : start + size])

        await execute_some(range(len(sequence)))
        return [sequence.steps[index].step for index in skipped]

    async def undo(
        self, keys: TableKeys, tracked: Tracked, epoch: Epoch, check: Callable[[], None]
    ) -> dict[str, Any]:
        """Undo logged steps where possible; return facts about those that could not be undone."""
        sequence = await self._store.load(self._client, tracked.keys)
        if sequence is None:
            return {}
        view = await read_view(self._client, tracked)
        context = step_context(keys, await read_base(self._client, keys, tracked.arg), view)
        call = partial(_undo, sequence, context)
        came = await self._outside.run(tracked, epoch, "taking the commit steps back", call, check)
        return {"stepsUndone": came.undone, NOT_UNDONE: len(came.left)}


# -- where steps run ---------------------------------------------------------------------------------


def _execute(
    sequence: CommitSequence,
    context: StepContext,
    skip: frozenset[int],
    only: Sequence[int],
    surroundings: Surroundings,
) -> None:
    from distop.commit.execution import execute

    execute(sequence, context, check=surroundings.check, skip=skip, only=only)


def _undo(sequence: CommitSequence, context: StepContext, surroundings: Surroundings) -> Undone:
    from distop.commit.execution import undo

    return undo(sequence, context, check=surroundings.check)
