"""``OperationService``: start, get, list, watch, cancel, pause. Any coordinator answers any call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from distop.coordinator.api.calls import Context, audited, call_id, in_time, run_of
from distop.coordinator.starting.body import StartBody, operation_arg, seconds
from distop.coordinator.starting.planner import Planning
from distop.coordinator.starting.services import Services
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.views.following import Following, updates
from distop.coordinator.views.listing import list_operations, quarantined_page
from distop.coordinator.views.operations import (
    from_record,
    from_request,
    from_tracked,
    not_found,
    read_operation,
)
from distop.errors import DistopError, OperationNotFound, PreconditionFailed
from distop.lake.storage.storage import storage_of
from distop.lake.storage.traces import read_traces
from distop.metastore.etcd.txn import Get, KeyValue, Put
from distop.metastore.operations import starting
from distop.metastore.operations.ending import request_cancel, request_resolve
from distop.metastore.operations.pausing import pause_operation, resume_operation
from distop.metastore.records import operation as records
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import OperationId, check_name
from distop.metastore.records.record import decode
from distop.metastore.records.table import TableRecord
from distop.metastore.tables.audit import prune_softly
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import to_json
from distop.proto.messages import message_of

log = logging.getLogger(__name__)

DEFAULT_CALL_S = 60.0
"""Default deadline of a call."""

DEFAULT_HEARTBEAT_S = 10.0

SOON_S = 1.0
"""Longest wait here for the end of an operation that is led here, before the caller gets a watch or has to
open one: that costs more than most operations."""


class OperationService(distop_pb2_grpc.OperationServiceServicer):
    """The handlers; they hold no state.

    Parameters
    ----------
    following:
        The operations that are followed for callers.
    stopping:
        Ends the streams: the coordinator need not wait for them when it stops.
    remember_s:
        Seconds for which runs are remembered.
    """

    def __init__(
        self,
        services: Services,
        following: Following,
        stopping: asyncio.Event,
        *,
        remember_s: float = starting.REMEMBER_S,
    ) -> None:
        self._services, self._following, self._stopping = services, following, stopping
        self._remember_s = remember_s
        self._client, self._caches = services.client, services.caches
        self._planner, self._registry = services.planner, services.registry

    # -- start -----------------------------------------------------------------------------------------

    async def StartOperation(self, request: pb.StartOperationRequest, context: Context) -> pb.Operation:
        left_s = min(context.time_remaining() or DEFAULT_CALL_S, DEFAULT_CALL_S)
        # First of all: a call that is sent away must cost as little as possible.
        async with self._services.admission.admitted(request.started_by, request.table, left_s):
            body = await StartBody.of(request, self._planner.work)
            run = run_of(request)
            wanted = body.request(
                run,
                self._registry.get(body.type),
                call=request.call_id if request.run else run,
                again_of=request.again_of,
                keep_s=self._remember_s,
            )
            planning = Planning(
                self._planner, self._client, self._client.keyspace.table(body.table), body, left_s
            )
            return await self._start(wanted, planning, request.started_by)

    async def start_tick(
        self,
        schedule: str,
        body: StartBody,
        run: str,
        call: str,
        started_by: str,
        context: Context,
    ) -> pb.Operation:
        """Start what a schedule starts for a tick, or return what was started for it before."""
        left_s = min(context.time_remaining() or DEFAULT_CALL_S, DEFAULT_CALL_S)
        async with self._services.admission.admitted(started_by, body.table, left_s):
            wanted = body.request(run, self._registry.get(body.type), call=call)
            keys = self._client.keyspace.table(body.table)
            planning = Planning(self._planner, self._client, keys, body, left_s)
            return await self._start(wanted, planning, started_by, schedule)

    async def _start(
        self, wanted: starting.StartRequest, planning: Planning, started_by: str, schedule: str = ""
    ) -> pb.Operation:
        """Start it, or return what this request has started before."""
        body = planning.body
        keys = self._client.keyspace.table(body.table)
        started_at = time.time()

        async def make_arg(now: starting.TableState) -> records.OperationArg:
            return operation_arg(
                planning.kind,
                await planning.on(now),
                now.record,
                body,
                instance=now.next_instance,
                request=wanted,
                before=now.request,
                started_at=started_at,
                started_by=started_by,
                schedule=schedule,
            )

        compatible = partial(self._registry.compatible, planning.kind)
        cache, guess = self._caches.table(keys), None
        if wanted.call == wanted.run:  # nobody else can have used its id
            guess = cache.read(starting.start_reads(keys, wanted), new=keys.request(wanted.run))
        started = await starting.start(
            self._client, keys, wanted, make_arg, compatible=compatible, guess=guess
        )
        operation = started.operation
        if started.arg is None:
            return await self._existing(wanted, started)
        if (on := started.state) is not None:
            kvs = (on.run_ops_kv, on.next_instance_kv, KeyValue.missing(keys.pause), *on.planned_on)
            cache.add(kvs, on.revision)
            cache.apply_ops(started.txn.then, started.revision)
        self._caches.results.started(keys.history_prefix, keys.history(operation), started.revision)
        self._services.metrics.operation_started(body.type)
        with self._services.tracer.inside(started.arg.trace):
            log.info("operation_started", extra={"table": body.table, "operation": str(operation)})
        if self._services.tracer.on:
            self._services.tracer.send(*planning.spans(started.arg))
        tracked = Tracked(
            keys.operation(operation), started.arg, starting.first_state(started.arg), started.revision
        )
        return from_tracked(tracked, started.revision)

    async def PreviewOperation(
        self, request: pb.StartOperationRequest, context: Context
    ) -> pb.OperationPreview:
        body = await StartBody.of(request, self._planner.work)
        keys = self._client.keyspace.table(body.table)
        left_s = min(context.time_remaining() or DEFAULT_CALL_S, DEFAULT_CALL_S)
        planning = Planning(self._planner, self._client, keys, body, left_s)
        wanted = body.request(run_of(request), planning.kind)
        state = await starting.read_table_state(self._client, keys, wanted)
        shown = to_json(await planning.preview(state), "preview")
        return pb.OperationPreview(
            table=body.table, type=body.type, preview_json=shown, revision=state.revision
        )

    async def _existing(self, wanted: starting.StartRequest, started: starting.Started) -> pb.Operation:
        """The operation that a request has started before; it may be remembered longer than the operation."""
        try:
            message = await self._get(started.operation)
        except OperationNotFound:
            if started.request is None or not started.request.outcome:
                raise
            message = from_request(started.request, wanted.run, started.revision)
        message.found = not wanted.call or (
            started.request is not None and started.request.call != wanted.call
        )
        return message

    # -- get, list, cancel -----------------------------------------------------------------------------

    async def GetOperation(self, request: pb.GetOperationRequest, context: Context) -> pb.Operation:
        operation = OperationId.parse(request.name)
        if request.events:
            return await read_operation(self._client, operation, self._caches.leaders, events=True)
        wait_s = min(seconds(request.wait), SOON_S, (context.time_remaining() or DEFAULT_CALL_S) / 2)
        history = self._client.keyspace.table(operation.table).history(operation)
        until = asyncio.get_running_loop().time() + wait_s
        if wait_s > 0.0 and (record := await self._caches.results.within(history, wait_s)) is not None:
            return from_record(operation, record)
        if asyncio.get_running_loop().time() < until:
            # It is not led here.
            with suppress(TimeoutError), self._following.watching(operation, whole=False) as followed:
                async with asyncio.timeout_at(until):
                    while not followed.over and not self._stopping.is_set():
                        await followed.changed.wait()
        return await self._get(operation)

    async def ListTraces(self, request: pb.GetOperationRequest, context: Context) -> pb.ListTracesResponse:
        operation = OperationId.parse(request.name)
        keys = self._client.keyspace.table(operation.table)
        wanted = (keys.table, keys.operation(operation).arg, keys.history(operation))
        read = await self._client.read_at_once([Get(key) for key in wanted])
        table, arg, ended = read.each(wanted)
        if not table.exists or not (arg.exists or ended.exists):
            raise not_found(operation)
        record = decode(table.value, TableRecord, table.key)
        if arg.exists:
            uuid = decode(arg.value, records.OperationArg, arg.key).uuid
        else:
            uuid = decode(ended.value, records.HistoryRecord, ended.key).uuid
        limit_s = min(context.time_remaining() or DEFAULT_CALL_S, DEFAULT_CALL_S)
        given = read_traces, record.location, storage_of(record), operation, uuid
        label = "reading stack traces"
        traces = await self._planner.work.blocking(record.name, label, *given, limit_s=limit_s)
        return pb.ListTracesResponse(traces=[message_of(pb.Trace, trace) for trace in traces])

    async def ListQuarantinedRows(
        self, request: pb.ListQuarantinedRowsRequest, context: Context
    ) -> pb.ListQuarantinedRowsResponse:
        operation = OperationId.parse(request.name)
        keys = self._client.keyspace.table(operation.table)
        read = await self._client.read_at_once([Get(keys.table), Get(keys.history(operation))])
        table, ended = read.single(0, keys.table), read.single(1, keys.history(operation))
        if not table.exists or not ended.exists:
            message = await self._get(operation)  # it runs, or its series goes on, or it never was
            raise PreconditionFailed(
                f"the history has no quarantined rows of {message.name}",
                hint="while it runs its rows are not final: wait for its end",
                details={"operation": message.name},
            )
        record = decode(table.value, TableRecord, table.key)
        folder = decode(ended.value, records.HistoryRecord, ended.key).facts.get("quarantine")
        if not isinstance(folder, str):
            return pb.ListQuarantinedRowsResponse()
        limit_s = min(context.time_remaining() or DEFAULT_CALL_S, DEFAULT_CALL_S)
        look = partial(quarantined_page, request, f"{record.location}/{folder}", storage_of(record))
        return await self._planner.work.blocking(
            record.name, "reading quarantined rows", look, limit_s=limit_s
        )

    async def ListOperations(
        self, request: pb.ListOperationsRequest, context: Context
    ) -> pb.ListOperationsResponse:
        return await list_operations(self._client, request)

    async def CancelOperation(self, request: pb.CancelOperationRequest, context: Context) -> pb.Operation:
        operation, table, who, audit = self._asked(request, "cancel")
        record = records.CancelRecord(**who)
        with suppress(OperationNotFound):  # finished meanwhile, or unknown: the answer below says which
            first = await request_cancel(self._client, table.operation(operation), record, audit)
            log.info("cancel_requested", extra={"operation": str(operation), "first": first})
        return await self._get(operation)

    async def ResolveOperation(self, request: pb.ResolveOperationRequest, context: Context) -> pb.Operation:
        call = check_name(call_id(request), "call_id")
        operation, table, who, audit = self._asked(request, f"resolve-{request.action}", call)
        decision = records.ResolveRecord(action=request.action, **who)
        try:
            await request_resolve(
                self._client, table.operation(operation), decision, request=call, also=(audit,)
            )
        except OperationNotFound:
            raise await self._over(operation) from None
        log.info("resolve_requested", extra={"operation": str(operation), "action": decision.action})
        await prune_softly(self._client, table.audit_prefix)
        return await self._get(operation)

    async def PauseOperation(self, request: pb.PauseOperationRequest, context: Context) -> pb.Operation:
        return await self._hold(request, "pause")

    async def ResumeOperation(self, request: pb.ResumeOperationRequest, context: Context) -> pb.Operation:
        return await self._hold(request, "resume")

    async def _hold(
        self, request: pb.PauseOperationRequest | pb.ResumeOperationRequest, action: str
    ) -> pb.Operation:
        operation, table, who, audit = self._asked(request, action)
        keys = table.operation(operation)
        try:
            if action == "pause":
                first = await pause_operation(self._client, keys, records.PauseRecord(**who), audit)
            else:
                first = await resume_operation(self._client, keys, audit)
            log.info("operation_held", extra={"operation": str(operation), "how": action, "first": first})
        except OperationNotFound:
            raise await self._over(operation) from None
        await prune_softly(self._client, table.audit_prefix)
        return await self._get(operation)

    async def _over(self, operation: OperationId) -> DistopError:
        """Why an operation that does not run cannot be changed: it has ended, or never existed."""
        ended = await self._get(operation)
        was = "was" if ended.state == pb.CANCELLED else "has"
        return PreconditionFailed(
            f"operation {operation} is over: it {was} {pb.OperationState.Name(ended.state).lower()}",
            details={"operation": str(operation)},
        )

    def _asked(
        self, request: Any, action: str, call: str = ""
    ) -> tuple[OperationId, TableKeys, dict[str, Any], Put]:
        """The operation, the keys of its table, the caller and the reason, and the audit entry."""
        operation = OperationId.parse(request.name)
        table = self._client.keyspace.table(operation.table)
        who = {"by": request.requested_by, "reason": request.reason, "at": time.time()}
        audit = audited(table, action, request, str(operation), at=who["at"], call=call)
        return operation, table, who, audit

    async def _get(self, operation: OperationId) -> pb.Operation:
        return await read_operation(self._client, operation, self._caches.leaders)

    # -- watch -----------------------------------------------------------------------------------------

    async def WatchOperation(
        self, request: pb.WatchOperationRequest, context: Context
    ) -> AsyncGenerator[bytes | pb.OperationUpdate, None]:
        operation = OperationId.parse(request.name)
        heartbeat_s = max(seconds(request.heartbeat) or DEFAULT_HEARTBEAT_S, 0.1)
        if request.states_only:
            history = self._client.keyspace.table(operation.table).history(operation)
            soon_s = min(SOON_S, heartbeat_s)
            if (record := await self._caches.results.within(history, soon_s)) is not None:
                message = from_record(operation, record)
                yield pb.OperationUpdate(operation=message, revision=message.revision)
                return
        with self._following.watching(operation, whole=not request.states_only) as followed:
            stream = updates(
                self._client,
                self._caches.leaders,
                followed,
                after=request.after_revision,
                heartbeat_s=heartbeat_s,
                stopping=self._stopping,
                in_time=partial(in_time, context),
            )
            async with aclosing(stream):
                async for update in stream:
                    yield update
