"""Attempts at completing operations: their calls that may hang, and what happens when one fails.

A call that takes long (a hook, an external step, storage) is recorded with the operation, so that users see
what it waits for. A call whose outcome is no longer needed, since the operation was cancelled or aborted, is
ended.

Failed attempts are counted, the last one parks, and a decision resumes. The count and its times are in etcd:
a policy (:class:`~distop.operations.Retry`) is obeyed across leaders.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from distop import errors
from distop.commit.execution import StepFailed, is_skippable
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.state.tracker import Tracked, completion_failed
from distop.coordinator.work.processes import Call, Surroundings
from distop.coordinator.work.work import LONG_S, Work, is_own
from distop.lake.storage.traces import keep_trace
from distop.metastore.operations.ending import apply_resolve, note_failure
from distop.metastore.records import operation as records
from distop.operations.api import DistributedOperation, OperationView
from distop.process.loop import cancel_all
from distop.process.tracing import Span, Tracer

if TYPE_CHECKING:
    from distop.commit.contract import StepTime

log = logging.getLogger(__name__)

AFTER_FAILURE = "after_failure"
"""Replaces the commit step in the record of a failed abort."""
TRACE_S = 5.0
"""Longest wait for storing the stack trace of a failure."""

MAX_ERROR_LENGTH = 4000
"""Characters kept of an error's text: a long error of a hook must not make the record too large."""


def text_of(error: Exception) -> str:
    """``CODE: message`` of an error, for the facts of an operation."""
    known = errors.as_distop(error)
    return errors.shortened(f"{known.code}: {known}", MAX_ERROR_LENGTH)


class Parking:
    """Counts the failed attempts at the completions of one coordinator."""

    def __init__(self, services: Services) -> None:
        self._client, self._work, self._wall = services.client, services.publishing, services.wall

    def retry(self, arg: records.OperationArg) -> records.Retry:
        """How long an operation is tried again."""
        of_type = DistributedOperation.retry
        with suppress(Exception):  # its type cannot be loaded here, perhaps by the next leader
            of_type = self._work.registry.get(arg.type).retry
        return arg.options.retry(of_type)

    async def failed(self, term: Term, tracked: Tracked, error: Exception) -> None:
        """Count a failed attempt at ending an operation.

        Raises the error, and so the next attempt waits for its back-off. Unless there is none: the operation
        is parked, or its state has changed meanwhile.
        """
        sealed, step = tracked.state, error if isinstance(error, StepFailed) else None
        publishes = sealed == records.COMMITTING
        cause = step.cause if step is not None and step.cause is not None else error
        known = errors.as_distop(cause)
        await self.keep_trace(tracked, cause)
        counted, is_last = self._counted(tracked)
        record = msgspec.structs.replace(
            counted,
            step="" if publishes else AFTER_FAILURE,
            error_code=known.code,
            error=errors.shortened(str(known), MAX_ERROR_LENGTH),
            parked=publishes and (is_last or isinstance(cause, errors.PermanentStepError)),
        )
        if step is not None:
            logged = step.record
            record = msgspec.structs.replace(
                record, step=logged.step, index=step.index, skippable=is_skippable(logged)
            )
        noted = await self._note(term, tracked, record)
        if noted and record.parked:
            fields = {"operation": str(tracked.arg.id), "attempts": record.attempts, "step": record.step}
            log.error("operation_parked", extra={**fields, "error": record.error})
        elif tracked.state == sealed:
            raise error

    def gives_up(self, tracked: Tracked) -> bool:
        """Whether the attempt at the abort of an operation that has just failed is the last one."""
        return self._counted(tracked)[1]

    def _counted(self, tracked: Tracked) -> tuple[records.CompletionRecord, bool]:
        """The record with one more failed attempt, and whether that was the last one.

        The time for which the attempt was planned decides: one that nobody could make in time, since all
        hosts slept or were dead, is followed by another one.
        """
        before, retry, now = tracked.completion, self.retry(tracked.arg), self._wall()
        if tracked.state != records.COMMITTING and before.step != AFTER_FAILURE:
            before = records.CompletionRecord(skipped=before.skipped)  # the failures at publishing
        attempts, since = before.attempts + 1, before.since or now
        record = records.CompletionRecord(
            attempts=attempts,
            at=now,
            since=since,
            next_at=now + retry.pause_s(attempts),
            until=since + retry.for_s,
            skipped=before.skipped,
        )
        return record, (before.next_at or now) >= record.until

    async def runs_long(self, term: Term, tracked: Tracked, label: str) -> None:
        """Record what the completion of an operation waits for; empty: for nothing any more."""
        since = self._wall() if label else 0.0
        record = msgspec.structs.replace(tracked.completion, running=label, running_since=since)
        await self._note(term, tracked, record)

    async def keep_trace(self, tracked: Tracked, error: Exception) -> None:
        """Store the stack trace of user code, for ``distop operation logs``."""
        arg, label = tracked.arg, "keeping a stack trace"
        with suppress(errors.CallTimeout, errors.Busy):  # of a hanging storage: the failure is counted anyway
            await self._work.blocking(arg.table, label, keep_trace, arg, error, limit_s=TRACE_S)

    async def _note(self, term: Term, tracked: Tracked, record: records.CompletionRecord) -> bool:
        """Record how an attempt has failed; ``False`` if the operation's state has changed meanwhile."""
        events = tracked.events(*([completion_failed(record)] if record.attempts else []))
        revision, state = await note_failure(
            self._client, tracked.keys, term.epoch, record, tracked.state, events
        )
        if state is None:
            tracked.set_completion(record, revision)
        else:  # perhaps ended: after a finish whose replies were all lost only this shows it
            tracked.set_state(state, revision)
        return state is None

    async def resolve(self, term: Term, tracked: Tracked, decision: records.ResolveRecord) -> None:
        """Act on the decision about a parked operation."""
        acted = await apply_resolve(
            self._client,
            tracked.keys,
            term.epoch,
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
        tracked.set_completion(record or records.CompletionRecord(), revision)
        tracked.error = error or tracked.error
        tracked.set_state(state, revision)


T = TypeVar("T")

NOTE_AFTER_S = LONG_S
"""Seconds after which a running call is recorded."""


class Interrupted(BaseException):
    """The outcome of a call is no longer needed. Not an ``Exception``: nothing has failed."""


class Outside:
    """Calls for the drivers of one coordinator."""

    def __init__(self, work: Work, parking: Parking, tracer: Tracer) -> None:
        self._work, self._parking, self.tracer = work, parking, tracer
        self._calls: dict[bytes, asyncio.Task[object]] = {}

    async def run(
        self,
        term: Term,
        tracked: Tracked,
        label: str,
        call: Call[T],
        kind: DistributedOperation | None = None,
    ) -> T:
        """Run a call of an operation; raises the call's errors, and as :meth:`Work.user`.

        Raises :class:`Interrupted` if :meth:`interrupt` has ended it.
        """
        named = f"{label} of {tracked.arg.id}"
        calling = self._work.user(kind, tracked.arg.table, named, call, check=term.check)
        return await self.followed(term, tracked, label, calling)

    async def asked(
        self, term: Term, tracked: Tracked, method: str, call: Call[T], kind: DistributedOperation
    ) -> T:
        """Run a call of a method that reads nothing; raises as :meth:`run`, and as :meth:`Work.asked`."""
        asking = self._work.asked(kind, tracked.arg.table, method, call)
        return await (asking if is_own(kind, method) else self.followed(term, tracked, method, asking))

    async def blocking(
        self, term: Term, tracked: Tracked, label: str, call: Callable[..., T], *args: Any
    ) -> T:
        """Run blocking code of distop for an operation; raises as :meth:`run`, and as :meth:`Work.blocking`:
        an interrupted call continues in its thread, and its result is dropped."""
        named = f"{label} of {tracked.arg.id}"
        calling = self._work.blocking(tracked.arg.table, named, call, *args)
        return await self.followed(term, tracked, label, calling)

    async def followed(self, term: Term, tracked: Tracked, label: str, call: Coroutine[Any, Any, T]) -> T:
        """Run a call for an operation; records that it takes long, and :meth:`interrupt` can end it."""
        calling, began, error = asyncio.create_task(call), time.time(), ""
        self._calls[tracked.keys.root] = calling
        try:
            done, _ = await asyncio.wait({calling}, timeout=NOTE_AFTER_S)
            if not done:
                await self._note_long(term, tracked, label)
                await asyncio.wait({calling})
                await self._note_long(term, tracked, "")
            if calling.cancelled():
                raise Interrupted
            return calling.result()
        except Exception as raised:
            error = text_of(raised)
            raise
        finally:
            self.send(term, tracked, label, began, time.time(), error=error)
            self._calls.pop(tracked.keys.root, None)
            await cancel_all(calling)

    def send(
        self,
        term: Term,
        tracked: Tracked,
        name: str,
        began: float,
        ended: float,
        *,
        number: int = 0,
        error: str = "",
    ) -> None:
        """Send the span of a part of the completion; ``number`` tells apart what begins at the same time."""
        if self.tracer.on:
            part = f"{name}/{term.epoch.revision}/{began}/{number}"  # each attempt has its own
            self.tracer.send(Span(tracked.arg.trace, part, name, began, ended, error=error))

    def send_steps(self, term: Term, tracked: Tracked, took: Sequence[StepTime]) -> None:
        """Send the spans of commit steps."""
        for number, step in enumerate(took):
            self.send(term, tracked, f"step {step.name}", step.began, step.ended, number=number)

    async def _note_long(self, term: Term, tracked: Tracked, label: str) -> None:
        try:
            await self._parking.runs_long(term, tracked, label)
        except errors.LeadershipLost:
            raise
        except errors.DistopError as error:  # the call itself goes on
            log.warning("call_not_told_of", extra={"operation": str(tracked.arg.id), "error": str(error)})

    def interrupt(self, tracked: Tracked) -> None:
        """End the running call of an operation, if there is one."""
        if (calling := self._calls.get(tracked.keys.root)) is not None:
            calling.cancel()


def hook(name: str, view: OperationView, surroundings: Surroundings) -> None:
    """Where hooks run."""
    kind = surroundings.registry.get(view.arg.type)
    getattr(kind, name)(replace(view, argument_type=kind.argument_type))
