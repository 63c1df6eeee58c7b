"""Attempts at completing operations that failed: counted, the last one parks, a decision un-parks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from distop.coordinator.state.tracker import Tracked
from distop.errors import DistopError
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.election import Epoch
from distop.metastore.operations.parking import apply_resolve, note_failure
from distop.metastore.records.operation import CompletionRecord, ResolveRecord

log = logging.getLogger(__name__)

MAX_COMMIT_ATTEMPTS = 5
"""Failed attempts at completing an operation after which it is parked, by default."""

MAX_ERROR_LENGTH = 4000
"""Characters kept of an error's text: what a hook says must not make its operation too large to end."""


class Parking:
    """Counts for the drivers of one coordinator.

    Parameters
    ----------
    max_attempts:
        Failed attempts at completing an operation after which it is parked.
    """

    def __init__(
        self,
        client: EtcdClient,
        *,
        max_attempts: int = MAX_COMMIT_ATTEMPTS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._max_attempts = max_attempts
        self._wall = wall

    async def failed(self, tracked: Tracked, epoch: Epoch, error: Exception) -> None:
        """Count a failed attempt. Raises the error, unless it was the last: then the operation is parked."""
        from distop.commit.steps.execution import StepFailed, is_skippable

        step = error if isinstance(error, StepFailed) else None
        cause = step.cause if step is not None else error
        attempts = tracked.completion.attempts + 1
        record = CompletionRecord(
            attempts=attempts,
            step=step.record.step if step is not None else "",
            index=step.index if step is not None else None,
            skippable=step is not None and is_skippable(step.record),
            error_code=cause.code if isinstance(cause, DistopError) else type(cause).__name__,
            error=str(cause)[:MAX_ERROR_LENGTH],
            at=self._wall(),
            parked=attempts >= self._max_attempts or (step is not None and step.permanent),
            skipped=tracked.completion.skipped,
        )
        revision = await note_failure(self._client, tracked.keys, epoch, record)
        if revision is None:
            return
        tracked.set_completion(record, revision)
        if not record.parked:
            raise error
        fields = {"operation": str(tracked.arg.id), "attempts": attempts, "step": record.step}
        log.error("operation_parked", extra={**fields, "error": record.error})

    async def resolve(self, tracked: Tracked, epoch: Epoch, decision: ResolveRecord) -> None:
        """Act on what somebody has decided about a parked operation."""
        acted = await apply_resolve(
            self._client, tracked.keys, epoch, tracked.completion, decision, now=self._wall()
        )
        tracked.decision = None
        if acted is None:
            return  # by an earlier copy of this transaction: what it wrote is on its way here
        state, record, error, revision = acted
        log.info(
            "operation_resolved",
            extra={"operation": str(tracked.arg.id), "action": decision.action, "by": decision.by},
        )
        tracked.set_completion(record or CompletionRecord(), revision)
        tracked.error = error or tracked.error
        tracked.set_state(state, revision)
