"""Failed attempts at completing operations: counted, the last one parks, a decision resumes.

The count and its times are in etcd: a policy (:class:`~distop.operations.Retry`) is obeyed across leaders.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from distop.coordinator.state.timeline import completion_failed
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.work import Work
from distop.errors import Busy, CallTimeout, PermanentStepError, as_distop, shortened
from distop.lake.storage.traces import keep_trace
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.election import Epoch
from distop.metastore.operations.parking import apply_resolve, note_failure
from distop.metastore.records.operation import (
    COMMITTING,
    CompletionRecord,
    OperationArg,
    ResolveRecord,
    Retry,
)
from distop.operations.api import DistributedOperation

log = logging.getLogger(__name__)

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
        Where stack traces are written; knows the types.
    """

    def __init__(self, client: EtcdClient, work: Work, wall: Callable[[], float] = time.time) -> None:
        self._client, self._work, self._wall = client, work, wall

    def retry(self, arg: OperationArg) -> Retry:
        """How long an operation is tried again."""
        of_type = DistributedOperation.retry
        with suppress(Exception):  # its type cannot be loaded here, perhaps by the next leader
            of_type = self._work.registry.get(arg.type).retry
        return arg.options.retry(of_type)

    async def failed(self, tracked: Tracked, epoch: Epoch, error: Exception) -> None:
        """Count a failed attempt at ending an operation.

        Raises the error, and so the next attempt waits for its back-off. Unless there is none: the operation
        is parked, or its state has changed meanwhile.
        """
        from distop.commit.execution import StepFailed, is_skippable

        sealed, step = tracked.state, error if isinstance(error, StepFailed) else None
        publishes = sealed == COMMITTING
        cause = step.cause if step is not None and step.cause is not None else error
        known = as_distop(cause)
        await self.keep_trace(tracked, cause)
        counted, is_last = self._counted(tracked)
        record = msgspec.structs.replace(
            counted,
            step="" if publishes else ABORT_OPERATION,
            error_code=known.code,
            error=shortened(str(known), MAX_ERROR_LENGTH),
            parked=publishes and (is_last or isinstance(cause, PermanentStepError)),
        )
        if step is not None:
            found = step.record
            record = msgspec.structs.replace(
                record, step=found.step, index=step.index, skippable=is_skippable(found)
            )
        noted = await self._note(tracked, epoch, record)
        if noted and record.parked:
            fields = {"operation": str(tracked.arg.id), "attempts": record.attempts, "step": record.step}
            log.error("operation_parked", extra={**fields, "error": record.error})
        elif tracked.state == sealed:
            raise error

    def gives_up(self, tracked: Tracked) -> bool:
        """Whether the attempt at the abort of an operation that has just failed is the last one."""
        return self._counted(tracked)[1]

    def _counted(self, tracked: Tracked) -> tuple[CompletionRecord, bool]:
        """The record with one more failed attempt, and whether that was the last one.

        The time for which the attempt was planned decides: one that nobody could make in time, since all
        hosts slept or were dead, is followed by another one.
        """
        before, retry, now = tracked.completion, self.retry(tracked.arg), self._wall()
        if tracked.state != COMMITTING and before.step != ABORT_OPERATION:
            before = CompletionRecord(skipped=before.skipped)  # the failures at publishing
        attempts, since = before.attempts + 1, before.since or now
        record = CompletionRecord(
            attempts=attempts,
            at=now,
            since=since,
            next_at=now + retry.pause_s(attempts),
            until=since + retry.for_s,
            skipped=before.skipped,
        )
        return record, (before.next_at or now) >= record.until

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
        events = tracked.events(*([completion_failed(record)] if record.attempts else []))
        revision, state = await note_failure(self._client, tracked.keys, epoch, record, tracked.state, events)
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
            events=tracked.events(),
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
