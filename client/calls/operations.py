"""Calls on operations: start, show, follow, pause, cancel, resolve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Literal

from distop.client.calls.base import PAGE_SIZE, Calls, models, new_request_id
from distop.client.calls.following import follow
from distop.client.models.follow_up import FollowUp, operation_options
from distop.client.models.operation import Operation, OperationState, OperationUpdate, Trace
from distop.client.transport.connection import make_request
from distop.errors import (
    DeadlineExceeded,
    IncompatibleOperation,
    InvalidArgument,
    OperationNotFound,
    RolledBack,
)
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json, to_json

_SOON_NS = 1_000_000_000
"""How long a call waits for the end of an operation, before a stream follows it."""


class OperationCalls(Calls):
    """The part of :class:`~distop.client.aio.AsyncClient` for operations."""

    async def start(
        self,
        table: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        *,
        object: str = "",
        partitions: Sequence[str] = (),
        deadline_s: float | None = None,
        max_job_attempts: int | None = None,
        job_backoff_s: float | None = None,
        attempt_timeout_s: float | None = None,
        max_failed_partitions: int = 0,
        retry_for_s: float | None = None,
        then: FollowUp | None = None,
        request_id: str | None = None,
        once: bool = False,
        again: bool = False,
        queue: bool = False,
        timeout_s: float | None = None,
    ) -> Operation:
        """Start an operation; return it.

        Parameters
        ----------
        argument:
            JSON for the type. Integers of up to 64 bits are exact.
        object:
            For types with one operation per object, such as an index.
        partitions:
            A subset, for types whose partitions have names. Empty: all.
        deadline_s:
            Seconds from the start after which it is aborted.
        max_job_attempts:
            Attempts at a job before it is marked failed.
        job_backoff_s:
            Back-off in seconds before the second attempt at a job; doubled before each further one, up to 30
            s.
        attempt_timeout_s:
            Timeout of an attempt in seconds; it then counts as failed.
        max_failed_partitions:
            How many jobs may fail without failing the operation, which then publishes the results of the
            others; -1: any number. One must succeed.
        retry_for_s:
            Seconds for which its completion is tried again while it fails, before it is parked; 0: not at
            all. Default: as its type says.
        then:
            An operation that its finish starts in the same transaction, if it succeeds.
        request_id:
            Pass the same id to repeat a start from another process: the first answer comes again, as
            ``found``. If that operation has failed or was cancelled, another one is started: ``retry_of``.
        once:
            Not even then: the operation stays the answer to ``request_id`` whatever its outcome, also for
            calls that do not say so.
        again:
            If ``request_id`` was used before, and its operation has succeeded, run it anew: the rows of that
            operation leave the table in the same transaction. What came later stays. For ingests that append
            or overwrite.
        queue:
            Wait while incompatible operations of the table run, instead of being refused. Only this call
            waits: the service does not know it, and of several waiting calls any may be the next.
        timeout_s:
            Deadline of this call, without the wait for other operations; planning a large source takes the
            service a while.

        Raises
        ------
        OperationParked
            With ``queue``: the incompatible operation waits for a decision.
        RolledBack
            The rows of the request's operation were rolled back; with ``again`` it is run anew.
        """
        if isinstance(partitions, str):
            raise InvalidArgument("partitions is one string, not several", details={"field": "partitions"})
        options = operation_options(
            deadline_s=deadline_s,
            max_job_attempts=max_job_attempts,
            job_backoff_s=job_backoff_s,
            attempt_timeout_s=attempt_timeout_s,
            max_failed_partitions=max_failed_partitions,
            retry_for_s=retry_for_s,
        )
        call_id = new_request_id()
        request = make_request(
            pb.StartOperationRequest,
            table=table,
            type=type,
            object=object,
            argument_json=to_json(argument or {}, "argument"),
            partitions=partitions,
            options=options,
            request_id=request_id or call_id,
            call_id="" if once else call_id,
            started_by=self.identity,
            then=then.to_proto() if then is not None else None,
        )
        while True:
            try:
                reply = await self._connection.call(
                    lambda service: service.StartOperation,
                    request,
                    timeout_s=timeout_s,
                    pace=self._connection.starts,
                )
                started = Operation.from_proto(reply)
                # The service compares the name: a late copy of this call runs nothing anew.
                if not (again and started.found and started.state is OperationState.SUCCEEDED):
                    return started
                again, request.again_of = False, started.name
            except RolledBack as error:
                if not again or "operation" not in error.details:
                    raise
                again, request.again_of = False, error.details["operation"]
            except IncompatibleOperation as error:
                if not queue or "operation" not in error.details:
                    raise
                with suppress(OperationNotFound):  # its history is gone: it has ended
                    await self.wait(error.details["operation"])

    async def preview(
        self,
        table: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        *,
        object: str = "",
        partitions: Sequence[str] = (),
        max_failed_partitions: int = 0,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """The preview of :meth:`start`, made by the type; raises the same errors, and starts nothing."""
        request = make_request(
            pb.StartOperationRequest,
            table=table,
            type=type,
            object=object,
            argument_json=to_json(argument or {}, "argument"),
            partitions=partitions,
            options=operation_options(max_failed_partitions=max_failed_partitions),
        )
        reply = await self._connection.call(
            lambda service: service.PreviewOperation, request, timeout_s=timeout_s
        )
        return from_json(reply.preview_json, "preview")

    async def get(self, name: str, *, events: bool = False) -> Operation:
        """An operation; finished ones too, while their history is stored. ``events``: with what has happened
        to it."""
        return Operation.from_proto(await self._call("GetOperation", name=name, events=events))

    async def traces(self, name: str) -> Sequence[Trace]:
        """Stack traces of user code in it, the earliest first; the last ones are stored."""
        reply = await self._call("ListTraces", of="GetOperation", name=name)
        return [Trace.from_proto(trace) for trace in reply.traces]

    def list(
        self,
        table: str = "",
        *,
        type: str = "",
        states: Sequence[OperationState] = (),
        since: datetime | None = None,
        page_size: int = PAGE_SIZE,
    ) -> AsyncGenerator[Operation, None]:
        """Running and finished operations, of one table or of all, newest first within a table.

        Pages are fetched on demand, all at one revision.

        Parameters
        ----------
        since:
            Only those that run, or have ended since. Those of all tables are then sorted by time, newest
            first.
        """
        found = self._listed(
            "ListOperations",
            "operations",
            table=table,
            type=type,
            states=[state.name for state in states if state is not OperationState.UNKNOWN],
            since=since,
            page_size=page_size,
        )
        return models(found, Operation)

    async def watch(self, name: str, *, after_revision: int = 0) -> AsyncGenerator[OperationUpdate, None]:
        """Follow an operation: its present state, then the newest one after each change, up to its end.

        Resumes after broken streams and lost coordinators, and repeats no change. Gives up when
        for ``timeout_s`` after a failure no coordinator has sent a heartbeat.

        Parameters
        ----------
        after_revision:
            Begin with the changes after this revision: the ``revision`` of an earlier update.
        """
        make_request(pb.WatchOperationRequest, name=name, after_revision=after_revision)
        async with aclosing(follow(self._connection, name, after_revision=after_revision)) as updates:
            async for update in updates:
                yield update

    async def wait(self, name: str, timeout_s: float | None = None) -> Operation:
        """Wait for the end of an operation; :meth:`Operation.raise_for_outcome` raises for a failure.

        Parameters
        ----------
        timeout_s:
            Seconds; ``None`` waits as long as the service answers. The operation goes on afterwards.

        Raises
        ------
        OperationParked
            It needs a decision to end: see :meth:`resolve`.
        """
        last = "unknown"
        wanted = make_request(pb.GetOperationRequest, name=name)
        wanted.wait.FromNanoseconds(_SOON_NS)
        try:
            async with asyncio.timeout(timeout_s):
                # Most end soon, and a call costs half as much as a stream.
                reply = await self._connection.call(lambda service: service.GetOperation, wanted)
                operation = Operation.from_proto(reply)
                if operation.done:
                    return operation
                last = operation.state.value
                async with aclosing(follow(self._connection, wanted.name, states_only=True)) as updates:
                    async for update in updates:
                        last = update.operation.state.value
                        if update.operation.parked:
                            update.operation.raise_for_outcome()
                        if update.operation.done:
                            return update.operation
        except TimeoutError:
            raise DeadlineExceeded(
                f"{name} has not ended after {timeout_s:g} s, it is {last}",
                hint="wait longer, or cancel it",
                details={"operation": name},
            ) from None
        raise AssertionError("unreachable: a watch ends with the end of its operation")

    async def cancel(self, name: str, reason: str = "") -> Operation:
        """Request the cancellation of an operation; its state shows when it has ended."""
        return Operation.from_proto(await self._control("CancelOperation", name=name, reason=reason))

    async def resolve(
        self, name: str, action: Literal["retry", "skip", "abort"], reason: str = ""
    ) -> Operation:
        """Decide about an operation whose completion fails, whether it is parked or still tried again.

        Parameters
        ----------
        action:
            ``retry``: try again at once, and count anew. ``skip``: skip the failing commit step. ``abort``:
            abort the operation, and undo its steps where possible.

        Raises
        ------
        PreconditionFailed
            Its completion has not failed (``NOT_PARKED``), or cannot be skipped (``NOT_SKIPPABLE``).
        """
        reply = await self._once("ResolveOperation", name=name, action=action, reason=reason)
        return Operation.from_proto(reply)

    async def pause(self, name: str, reason: str = "") -> Operation:
        """Pause an operation: no new jobs, nothing published.

        Finished work stays, and its deadline keeps counting. Idempotent; ``pause`` of the answer says who
        paused it.
        """
        return Operation.from_proto(await self._control("PauseOperation", name=name, reason=reason))

    async def resume(self, name: str, reason: str = "") -> Operation:
        """Resume an operation. Its table may still be paused: see ``pause`` of the answer."""
        return Operation.from_proto(await self._control("ResumeOperation", name=name, reason=reason))
