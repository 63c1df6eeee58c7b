"""Failed attempts at completing operations: counted, the last one parks, a decision resumes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from distop.commit.files.traces import keep_trace
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.work import Work
from distop.errors import Busy, CallTimeout, as_distop, shortened
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.election import Epoch
from distop.metastore.operations.parking import apply_resolve, note_failure
from distop.metastore.records.operation import COMMITTING, CompletionRecord, ResolveRecord

log = logging.getLogger(__name__)

MAX_COMMIT_ATTEMPTS = 5
"""Default number of failed attempts at completing an operation before it is parked."""

ABORT_OPERATION = "abort_operation"
"""Replaces the commit step in the record of a failed abort."""
TRACE_S = 5.0
"""Longest wait for storing the stack trace of a failure."""

MAX_ERROR_LENGTH = 4000
"""Characters kept of an error's text: a long error of a hook must not make the record too large."""


def text_of(error: Exception) -> str:
    """``CODE: message`` of an error, for the facts of an operation."""
    known = as_distop(error)
    return shortened(f"{known.code}: {known}", MAX_ERROR_LENGTH)


class Parking:
    """Counts for the drivers of one coordinator.

    Parameters
    ----------
    work:
        Where stack traces are written.
    max_attempts:
        Failed attempts at completing an operation before it is parked.
    """

    def __init__(
        self,
        client: EtcdClient,
        work: Work,
        *,
        max_attempts: int = MAX_COMMIT_ATTEMPTS,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._work = client, work
        self._max_attempts = max_attempts
        self._wall = wall

    async def failed(self, tracked: Tracked, epoch: Epoch, error: Exception) -> None:
        """Count a failed attempt at ending an operation.

        Raises the error, and so the next attempt waits for its back-off. Unless there is none: the operation
        is parked, or its state has changed meanwhile.
        """
        from distop.commit.steps.execution import StepFailed, is_skippable

        sealed, step = tracked.state, error if isinstance(error, StepFailed) else None
        attempts, publishes = self._attempts(tracked) + 1, sealed == COMMITTING
        cause = step.cause if step is not None and step.cause is not None else error
        known = as_distop(cause)
        record = CompletionRecord(
            attempts=attempts,
            step="" if publishes else ABORT_OPERATION,
            error_code=known.code,
            error=shortened(str(known), MAX_ERROR_LENGTH),
            at=self._wall(),
            parked=publishes and (attempts >= self._max_attempts or (step is not None and step.permanent)),
            skipped=tracked.completion.skipped,
        )
        if step is not None:
            found = step.record
            record = msgspec.structs.replace(
                record, step=found.step, index=step.index, skippable=is_skippable(found)
            )
        await self.keep_trace(tracked, cause)
        noted = await self._note(tracked, epoch, record)
        if noted and record.parked:
            fields = {"operation": str(tracked.arg.id), "attempts": attempts, "step": record.step}
            log.error("operation_parked", extra={**fields, "error": record.error})
        elif tracked.state == sealed:
            raise error

    def gives_up(self, tracked: Tracked) -> bool:
        """Whether the attempt at the abort of an operation that has just failed is the last one."""
        return self._attempts(tracked) + 1 >= self._max_attempts

    @staticmethod
    def _attempts(tracked: Tracked) -> int:
        """Failed attempts so far: those at the abort do not count those at publishing."""
        before = tracked.completion
        return before.attempts if tracked.state == COMMITTING or before.step == ABORT_OPERATION else 0

    async def runs_long(self, tracked: Tracked, epoch: Epoch, what: str) -> None:
        """Record what the completion of an operation waits for; empty: for nothing any more."""
        since = self._wall() if what else 0.0
        record = msgspec.structs.replace(tracked.completion, running=what, running_since=since)
        await self._note(tracked, epoch, record)

    async def keep_trace(self, tracked: Tracked, error: Exception) -> None:
        """Store the stack trace of user code, for ``distop logs``."""
        arg, what = tracked.arg, "keeping a stack trace"
        with suppress(CallTimeout, Busy):  # of a hanging storage: the failure is counted anyway
            await self._work.blocking(arg.table, what, keep_trace, arg, error, limit_s=TRACE_S)

    async def _note(self, tracked: Tracked, epoch: Epoch, record: CompletionRecord) -> bool:
        """Record how an attempt has failed; ``False`` if the operation's state has changed meanwhile."""
        revision, state = await note_failure(self._client, tracked.keys, epoch, record, tracked.state)
        if state is None:
            tracked.set_completion(record, revision)
        else:  # perhaps ended: after a finish whose replies were all lost only this shows it
            tracked.set_state(state, revision)
        return state is None

    async def resolve(self, tracked: Tracked, epoch: Epoch, decision: ResolveRecord) -> None:
        """Act on the decision about a parked operation."""
        acted = await apply_resolve(
            self._client,
            tracked.keys,
            epoch,
            tracked.completion,
            decision,
            decided=tracked.decision_revision,
            now=self._wall(),
        )
        tracked.decision = None
        if acted is None:
            return  # an earlier copy of this transaction did it, or it is cancelled: the watch will show it
        state, record, error, revision = acted
        log.info(
            "operation_resolved",
            extra={"operation": str(tracked.arg.id), "action": decision.action, "by": decision.by},
        )
        tracked.set_completion(record or CompletionRecord(), revision)
        tracked.error = error or tracked.error
        tracked.set_state(state, revision)
