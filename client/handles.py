"""The handle of an operation: wait for it, follow it, decide about it; and the calls that start and list
operations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Literal, Unpack

from distop.client.calls import PAGE_SIZE, Calls, NamedCalls, models, new_call_id
from distop.client.connection import Connection, make_request, resumed
from distop.client.operations import (
    Event,
    Operation,
    OperationState,
    OperationUpdate,
    StartOptions,
    Trace,
    operation_options,
    run_options,
)
from distop.client.quarantine import QuarantinedRow, replay_of
from distop.errors import (
    DeadlineExceeded,
    IncompatibleOperation,
    InvalidArgument,
    OperationNotFound,
    PreconditionFailed,
    RolledBack,
)
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json, to_json

HEARTBEAT_S = 2.0
"""Interval of a coordinator's heartbeats; 2.5 intervals without one count as silence."""


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
    last_revision = after_revision or -1

    def request() -> pb.WatchOperationRequest:
        wanted = pb.WatchOperationRequest(
            name=name, after_revision=max(last_revision, 0), states_only=states_only
        )
        wanted.heartbeat.FromNanoseconds(int(heartbeat_s * 1e9))
        return wanted

    stream = resumed(connection, "WatchOperation", request, silence_s=2.5 * heartbeat_s)
    async with aclosing(stream) as messages:
        async for message in messages:
            update = OperationUpdate.from_proto(message)
            # A heartbeat repeats the last update; the end is shown at any revision.
            if update.revision > last_revision or update.operation.done:
                last_revision = max(last_revision, update.revision)
                yield update
            if update.operation.done:
                return


_SOON_NS = 1_000_000_000
"""How long a call waits for the end of an operation, before a stream follows it."""


class AsyncOperationHandle(NamedCalls):
    """One operation, by its name: to wait for it, follow it, and decide about it. Nothing is called to make
    one."""

    def __init__(self, connection: Connection, name: str, started: Operation | None = None) -> None:
        super().__init__(connection, name)
        self._started = started

    @classmethod
    def of_reply(cls, connection: Connection, reply: pb.Operation) -> AsyncOperationHandle:
        """That of an operation that a call has started."""
        started = Operation.from_proto(reply)
        return cls(connection, started.name, started)

    @property
    def started(self) -> Operation:
        """The operation as the call that started it got it: ``found``, if an earlier call of the same run had
        started it, ``retry_of``.

        Raises
        ------
        PreconditionFailed
            The handle was made by name.
        """
        if self._started is None:
            raise PreconditionFailed(f"{self.name} was not started by this handle", hint="call get()")
        return self._started

    async def get(self, *, events: bool = False) -> Operation:
        """The operation at present; after its end too, while its history is stored. ``events``: with what has
        happened to it."""
        return Operation.from_proto(await self._call("GetOperation", name=self.name, events=events))

    async def events(self) -> Sequence[Event]:
        """What has happened to it, in the order of the times."""
        return (await self.get(events=True)).events

    async def logs(self) -> Sequence[Trace]:
        """Stack traces of user code in it, and what jobs printed and logged, the earliest first; of some jobs
        (ten that failed, ten others) the last ones are stored."""
        reply = await self._call("ListTraces", of="GetOperation", name=self.name)
        return [Trace.from_proto(trace) for trace in reply.traces]

    async def watch(self, *, after_revision: int = 0) -> AsyncGenerator[OperationUpdate, None]:
        """Follow an operation: its present state, then the newest one after each change, up to its end.

        Resumes after broken streams and lost coordinators, and repeats no change. Gives up when
        for ``timeout_s`` after a failure no coordinator has sent a heartbeat.

        Parameters
        ----------
        after_revision:
            Begin with the changes after this revision: the ``revision`` of an earlier update.
        """
        make_request(pb.WatchOperationRequest, name=self.name, after_revision=after_revision)
        async with aclosing(follow(self._connection, self.name, after_revision=after_revision)) as updates:
            async for update in updates:
                yield update

    async def wait(self, timeout_s: float | None = None) -> Operation:
        """Wait for its end, whatever the outcome: :meth:`result` raises for a failure.

        Parameters
        ----------
        timeout_s:
            Seconds; ``None`` waits as long as the service answers. The operation goes on afterwards.

        Raises
        ------
        OperationParked
            It needs a decision to end: see :meth:`retry`, :meth:`skip` and :meth:`abort`.
        """
        last = "unknown"
        wanted = make_request(pb.GetOperationRequest, name=self.name)
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
                f"{self.name} has not ended after {timeout_s:g} s, it is {last}",
                hint="wait longer, or cancel it",
                details={"operation": self.name},
            ) from None
        raise AssertionError("unreachable: a watch ends with the end of its operation")

    async def result(self, timeout_s: float | None = None) -> Operation:
        """Wait for its success; raises as :meth:`wait` and :meth:`Operation.raise_for_outcome` do."""
        return (await self.wait(timeout_s)).raise_for_outcome()

    async def cancel(self, reason: str = "") -> Operation:
        """Request the cancellation of an operation; its state shows when it has ended."""
        return Operation.from_proto(await self._control("CancelOperation", name=self.name, reason=reason))

    async def retry(self, reason: str = "") -> Operation:
        """Try its completion again at once, and count anew, whether it is parked or still tried again.

        Raises
        ------
        PreconditionFailed
            Its completion has not failed (``NOT_PARKED``).
        """
        return await self._resolve("retry", reason)

    async def skip(self, reason: str = "") -> Operation:
        """Skip the commit step that fails.

        Raises
        ------
        PreconditionFailed
            Its completion has not failed (``NOT_PARKED``), or the step cannot be skipped
            (``NOT_SKIPPABLE``).
        """
        return await self._resolve("skip", reason)

    async def abort(self, reason: str = "") -> Operation:
        """Abort it, since its completion fails, and undo its steps where possible; raises as :meth:`retry`
        does."""
        return await self._resolve("abort", reason)

    async def _resolve(self, action: Literal["retry", "skip", "abort"], reason: str) -> Operation:
        reply = await self._once("ResolveOperation", name=self.name, action=action, reason=reason)
        return Operation.from_proto(reply)

    async def pause(self, reason: str = "") -> Operation:
        """Pause an operation: no new jobs, nothing published.

        Finished work stays, and its deadline keeps counting. Idempotent; ``pause`` of the answer says who
        paused it.
        """
        return Operation.from_proto(await self._control("PauseOperation", name=self.name, reason=reason))

    async def resume(self, reason: str = "") -> Operation:
        """Resume an operation. Its table may still be paused: see ``pause`` of the answer."""
        return Operation.from_proto(await self._control("ResumeOperation", name=self.name, reason=reason))

    async def quarantined_rows(self, *, page_size: int = PAGE_SIZE) -> AsyncGenerator[QuarantinedRow, None]:
        """The rows that it has put into quarantine, job by job. Pages are fetched on demand.

        Raises
        ------
        PreconditionFailed
            It runs; or an earlier release has written its rows.
        """
        listed = self._listed("ListQuarantinedRows", "rows", name=self.name, page_size=page_size)
        async with aclosing(models(listed, QuarantinedRow)) as rows:
            async for row in rows:
                yield row

    async def replay(
        self,
        argument: Mapping[str, Any] | None = None,
        *,
        digest: str = "",
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Ingest its quarantined rows, once: a repeated call returns the first operation.

        Parameters
        ----------
        argument:
            What is other than the first time, of the argument of ingest. With ``paths``: the rows, put right.
        digest:
            Of the content of ``paths``: other content is another replay.
        options:
            See :class:`StartOptions`; with ``again`` also after a rollback that took the rows out.

        Raises
        ------
        AlreadyIngested
            They were replayed by another call.
        PreconditionFailed
            It has no quarantined rows.
        """
        operation = await self.get()
        given, run = replay_of(operation, argument or {}, digest)
        options["run"] = options.get("run") or run
        return await start(self._connection, operation.table, "ingest", given, options)


async def start(
    connection: Connection, table: str, type: str, argument: Mapping[str, Any], options: StartOptions
) -> AsyncOperationHandle:
    """Start an operation: see :meth:`OperationCalls.start`."""
    if unknown := sorted(set(options) - StartOptions.__optional_keys__):
        raise TypeError(f"a start has no option {', '.join(unknown)}; see distop.client.StartOptions")
    partitions, then = options.get("partitions", ()), options.get("then")
    again, queue = options.get("again", False), options.get("queue", False)
    if isinstance(partitions, str):
        raise InvalidArgument("partitions is one string, not several", details={"field": "partitions"})
    call_id = new_call_id()
    request = make_request(
        pb.StartOperationRequest,
        table=table,
        type=type,
        object=options.get("object", ""),
        argument_json=to_json(argument, "argument"),
        partitions=partitions,
        options=operation_options(**run_options(options)),
        run=options.get("run") or call_id,
        call_id="" if options.get("once") else call_id,
        started_by=connection.identity,
        then=then.to_proto() if then is not None else None,
    )
    while True:
        try:
            reply = await connection.call(
                lambda service: service.StartOperation,
                request,
                timeout_s=options.get("timeout_s"),
                pace=connection.starts,
            )
            handle = AsyncOperationHandle.of_reply(connection, reply)
            started = handle.started
            # The service compares the name: a late copy of this call runs nothing anew.
            if not (again and started.found and started.state is OperationState.SUCCEEDED):
                return handle
            again, request.again_of = False, started.name
        except RolledBack as error:
            if not again or "operation" not in error.details:
                raise
            again, request.again_of = False, error.details["operation"]
        except IncompatibleOperation as error:
            if not queue or "operation" not in error.details:
                raise
            with suppress(OperationNotFound):  # its history is gone: it has ended
                await AsyncOperationHandle(connection, error.details["operation"]).wait()


class OperationCalls(Calls):
    """The calls that start and list operations."""

    async def start(
        self,
        table: str,
        type: str,
        argument: Mapping[str, Any] | None = None,
        **options: Unpack[StartOptions],
    ) -> AsyncOperationHandle:
        """Start an operation of any type; return its handle.

        Parameters
        ----------
        argument:
            JSON for the type. Integers of up to 64 bits are exact.
        options:
            See :class:`StartOptions`.

        Raises
        ------
        IncompatibleOperation, TablePaused
            Another operation of the table, or its pause, is in the way. Nothing was started.
        OperationParked
            With ``queue``: the incompatible operation waits for a decision.
        RunReused
            ``run`` was used for another argument.
        RolledBack
            The rows of the operation of ``run`` were rolled back; with ``again`` it is run anew.
        """
        return await start(self._connection, table, type, argument or {}, options)

    def operation(self, name: str) -> AsyncOperationHandle:
        """The handle of an operation: ``"flights/ingest/17"``."""
        return AsyncOperationHandle(self._connection, name)

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
        """What :meth:`start` would do; raises the same errors, and starts nothing.

        Returns
        -------
        Names and values, made by the type. Of every type ``jobs``, how many; of an ingest also ``columns``,
        ``rows`` (some of the first), ``files``, ``bytes`` and ``warnings``.
        """
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

    def operations(
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
        listed = self._listed(
            "ListOperations",
            "operations",
            table=table,
            type=type,
            states=[state.name for state in states if state is not OperationState.UNKNOWN],
            since=since,
            page_size=page_size,
        )
        return models(listed, Operation)
