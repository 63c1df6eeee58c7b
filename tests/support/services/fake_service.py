"""A service without etcd behind it: real gRPC servers over one shared memory, with faults on demand."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from distop.errors import DistopError, OperationNotFound, TableExists, TableNotFound, Unavailable
from distop.errors.wire import abort
from distop.proto import distop_pb2 as pb
from distop.proto import distop_pb2_grpc
from distop.proto.json_text import from_json

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")
FINAL = (pb.SUCCEEDED, pb.FAILED, pb.CANCELLED)


@dataclass
class World:
    """What all fake coordinators know."""

    operations: dict[str, pb.Operation] = field(default_factory=dict)
    tables: dict[str, pb.Table] = field(default_factory=dict)
    contents: dict[str, pb.TableContent] = field(default_factory=dict)
    snapshots: list[pb.Snapshot] = field(default_factory=list)
    watermarks: list[pb.Watermark] = field(default_factory=list)
    schedules: list[pb.Schedule] = field(default_factory=list)
    members: list[pb.Member] = field(default_factory=list)
    leaders: list[pb.Leader] = field(default_factory=list)
    indexes: list[pb.Index] = field(default_factory=list)
    audit: list[pb.AuditEntry] = field(default_factory=list)
    updates: dict[str, list[pb.OperationUpdate]] = field(default_factory=dict)
    """What a watch of an operation sends; the last one may be final."""
    preview: str = "{}"
    explanation: pb.Explanation = field(default_factory=pb.Explanation)
    once_explained: list[tuple[str, pb.OperationUpdate]] = field(default_factory=list)
    """How operations go on once somebody has asked again why they do not."""

    def add(self, operation: pb.Operation, *updates: pb.OperationUpdate) -> pb.Operation:
        """An operation, and how it goes on: each update one revision after the one before."""
        operation.revision = operation.revision or 100
        self.operations[operation.name] = operation
        history = [pb.OperationUpdate(operation=operation, revision=operation.revision), *updates]
        for index, update in enumerate(history):
            update.revision = update.operation.revision = operation.revision + index
        self.updates[operation.name] = history
        return operation


@dataclass
class FakeService(
    distop_pb2_grpc.OperationServiceServicer,
    distop_pb2_grpc.TableServiceServicer,
    distop_pb2_grpc.ScheduleServiceServicer,
    distop_pb2_grpc.BacklogServiceServicer,
    distop_pb2_grpc.ClusterServiceServicer,
    distop_pb2_grpc.IndexServiceServicer,
):
    """One coordinator. Faults are spent in order, one to a call."""

    world: World = field(default_factory=World)
    refuse: list[DistopError] = field(default_factory=list)
    """Raised before anything is done."""
    lose_replies: int = 0
    """So many calls are carried out and then end as if the connection had broken."""
    break_streams_after: list[int] = field(default_factory=list)
    """How many messages each of the next watch streams sends before it breaks."""
    hang: bool = False
    """Accept calls and streams and never answer."""
    calls: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))

    async def StartOperation(self, request: pb.StartOperationRequest, context: Context) -> pb.Operation:
        await self._enter("start", request, context)
        for operation in self.world.operations.values():
            if operation.run == request.run:
                await self._leave(context)
                return operation
        argument = from_json(request.argument_json, "argument")
        instance = 1 + len(self.world.operations)
        operation = pb.Operation(
            name=f"{request.table}/{request.type}/{instance}",
            table=request.table,
            type=request.type,
            object=request.object,
            instance=instance,
            state=pb.RUNNING,
            run=request.run,
            started_by=request.started_by,
            jobs=pb.JobCounts(total=argument.get("partitions", 1)),
        )
        operation.started_at.FromSeconds(1_700_000_000)
        end = pb.Operation()
        end.CopyFrom(operation)
        failed = bool(argument.get("fail"))
        end.state = pb.FAILED if failed else pb.SUCCEEDED
        end.finished_at.FromSeconds(1_700_000_002)
        if failed:
            end.error.code, end.error.message = "JOB_FAILED", "job 0 was asked to fail"
        end.jobs.failed = int(failed)
        end.jobs.succeeded = end.jobs.total - end.jobs.failed
        jobs = [
            pb.JobUpdate(partition=str(i), state="failed" if failed and i == 0 else "success")
            for i in range(end.jobs.total)
        ]
        self.world.add(operation, pb.OperationUpdate(operation=end, jobs=jobs))
        await self._leave(context)
        return operation

    async def PreviewOperation(self, request: Any, context: Context) -> pb.OperationPreview:
        await self._enter("preview", request, context)
        await self._leave(context)
        return pb.OperationPreview(preview_json=self.world.preview)

    async def GetOperation(self, request: pb.GetOperationRequest, context: Context) -> pb.Operation:
        await self._enter("get", request, context)
        return await self._operation(request.name, context)

    async def ListOperations(self, request: Any, context: Context) -> pb.ListOperationsResponse:
        await self._enter("list", request, context)
        matching = [
            operation
            for operation in self.world.operations.values()
            if request.table in ("", operation.table)
            and request.type in ("", operation.type)
            and (not request.states or operation.state in request.states)
        ]
        page, further = _page(request, matching)
        return pb.ListOperationsResponse(operations=page, next_page_token=further)

    async def WatchOperation(self, request: Any, context: Context) -> AsyncIterator[pb.OperationUpdate]:
        await self._enter("watch", request, context)
        await self._operation(request.name, context)
        limit = self.break_streams_after.pop(0) if self.break_streams_after else None
        sent = 0
        for update in self.world.updates[request.name]:
            if update.revision > request.after_revision or update.operation.state in FINAL:
                if sent == limit:
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke")
                yield update
                sent += 1
        if sent == limit:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the stream broke")
        while update.operation.state not in FINAL:
            await asyncio.sleep(0.01)
            for later in self.world.updates[request.name]:
                if later.revision > update.revision:
                    update = later
                    yield update

    async def CancelOperation(self, request: pb.CancelOperationRequest, context: Context) -> pb.Operation:
        await self._enter("cancel", request, context)
        operation = await self._operation(request.name, context)
        operation.cancel_requested = True
        if operation.state == pb.RUNNING:
            end = pb.Operation()
            end.CopyFrom(operation)
            end.state = pb.CANCELLED
            self.world.add(operation, pb.OperationUpdate(operation=end))
        return operation

    async def ResolveOperation(self, request: pb.ResolveOperationRequest, context: Context) -> pb.Operation:
        await self._enter("resolve", request, context)
        await self._leave(context)
        return await self._operation(request.name, context)

    async def PauseOperation(self, request: pb.PauseOperationRequest, context: Context) -> pb.Operation:
        await self._enter("pause", request, context)
        operation = await self._operation(request.name, context)
        hold = pb.Pause(by=request.requested_by, reason=request.reason, scope="operation")
        operation.pause.CopyFrom(hold)
        entry = pb.AuditEntry(action="pause", target=request.name, by=hold.by, reason=hold.reason)
        self.world.audit.append(entry)
        return operation

    async def ResumeOperation(self, request: pb.ResumeOperationRequest, context: Context) -> pb.Operation:
        await self._enter("resume", request, context)
        operation = await self._operation(request.name, context)
        operation.ClearField("pause")
        return operation

    async def EnqueueBatch(
        self, request: pb.EnqueueBatchRequest, context: Context
    ) -> pb.EnqueueBatchResponse:
        await self._enter("enqueue", request, context)
        return pb.EnqueueBatchResponse(became="queued")

    async def PauseTable(self, request: pb.PauseTableRequest, context: Context) -> pb.Table:
        await self._enter("pause_table", request, context)
        table = self.world.tables[request.name]
        table.pause.CopyFrom(pb.Pause(by=request.requested_by, reason=request.reason, scope="table"))
        return table

    async def ResumeTable(self, request: pb.ResumeTableRequest, context: Context) -> pb.Table:
        await self._enter("resume_table", request, context)
        table = self.world.tables[request.name]
        table.ClearField("pause")
        return table

    async def DrainCoordinator(self, request: pb.DrainCoordinatorRequest, context: Context) -> pb.Member:
        await self._enter("drain", request, context)
        member = next(each for each in self.world.members if each.id == request.member)
        member.draining = not request.undo
        return member

    async def DropTable(self, request: pb.DropTableRequest, context: Context) -> pb.DropTableResponse:
        await self._enter("drop_table", request, context)
        table = await self._table(request.name, context, request.uuid)
        del self.world.tables[request.name]
        await self._leave(context)
        return pb.DropTableResponse(location=table.location, purged=request.purge)

    async def ListAudit(self, request: pb.ListAuditRequest, context: Context) -> pb.ListAuditResponse:
        await self._enter("audit", request, context)
        page, further = _page(request, self.world.audit[::-1])
        return pb.ListAuditResponse(entries=page, next_page_token=further)

    async def CreateTable(self, request: pb.CreateTableRequest, context: Context) -> pb.Table:
        await self._enter("create_table", request, context)
        if request.name in self.world.tables:
            if request in self.calls["create_table"][:-1]:
                return self.world.tables[request.name]
            await abort(context, TableExists(f"table {request.name!r} exists already"))
        table = pb.Table(
            name=request.name,
            location=request.location,
            format=request.format,
            options_json=request.options_json,
            created_by=request.created_by,
        )
        table.created_at.FromSeconds(1_700_000_000)
        self.world.tables[request.name] = table
        await self._leave(context)
        return table

    async def AlterTable(self, request: pb.AlterTableRequest, context: Context) -> pb.Table:
        await self._enter("alter_table", request, context)
        await self._leave(context)
        return self.world.tables[request.name]

    async def GetTable(self, request: pb.GetTableRequest, context: Context) -> pb.Table:
        await self._enter("get_table", request, context)
        return await self._table(request.name, context)

    async def ListTables(self, request: pb.ListTablesRequest, context: Context) -> pb.ListTablesResponse:
        await self._enter("list_tables", request, context)
        page, further = _page(request, list(self.world.tables.values()))
        return pb.ListTablesResponse(tables=page, next_page_token=further)

    async def ExplainTable(self, request: pb.GetTableRequest, context: Context) -> pb.Explanation:
        await self._enter("explain", request, context)
        if len(self.calls["explain"]) > 1:
            for name, update in self.world.once_explained:
                self.world.updates[name].append(update)
            self.world.once_explained.clear()
        return self.world.explanation

    async def DescribeTable(self, request: pb.GetTableRequest, context: Context) -> pb.TableContent:
        await self._enter("describe_table", request, context)
        return self.world.contents.get(request.name, pb.TableContent(table=request.name))

    async def ListSnapshots(self, request: Any, context: Context) -> pb.ListSnapshotsResponse:
        await self._enter("snapshots", request, context)
        return pb.ListSnapshotsResponse(snapshots=self.world.snapshots)

    async def ListSchedules(self, request: Any, context: Context) -> pb.ListSchedulesResponse:
        await self._enter("schedules", request, context)
        return pb.ListSchedulesResponse(schedules=self.world.schedules)

    async def GetWatermarks(self, request: Any, context: Context) -> pb.GetWatermarksResponse:
        await self._enter("watermarks", request, context)
        rows = [row for row in self.world.watermarks if request.source in ("", row.source)]
        return pb.GetWatermarksResponse(watermarks=rows, revision=100)

    async def ListIndexes(self, request: pb.ListIndexesRequest, context: Context) -> pb.ListIndexesResponse:
        await self._enter("indexes", request, context)
        return pb.ListIndexesResponse(indexes=self.world.indexes)

    async def ListMembers(self, request: pb.ListMembersRequest, context: Context) -> pb.ListMembersResponse:
        await self._enter("members", request, context)
        return pb.ListMembersResponse(members=self.world.members)

    async def ListLeaders(self, request: pb.ListLeadersRequest, context: Context) -> pb.ListLeadersResponse:
        await self._enter("leaders", request, context)
        return pb.ListLeadersResponse(leaders=self.world.leaders)

    async def _operation(self, name: str, context: Context) -> pb.Operation:
        if name not in self.world.operations:
            await abort(context, OperationNotFound(f"operation {name!r} does not exist"))
        return self.world.operations[name]

    async def _table(self, name: str, context: Context, uuid: str = "") -> pb.Table:
        table = self.world.tables.get(name)
        if table is None or uuid not in ("", table.uuid):
            await abort(context, TableNotFound(f"table {name!r} does not exist", details={"table": name}))
            raise AssertionError("unreachable")
        return table

    async def _enter(self, call: str, request: Any, context: Context) -> None:
        self.calls[call].append(request)
        if self.hang:
            await asyncio.Event().wait()
        if self.refuse:
            await abort(context, self.refuse.pop(0))

    async def _leave(self, context: Context) -> None:
        if self.lose_replies:
            self.lose_replies -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")


def _page(request: Any, items: list[T]) -> tuple[list[T], str]:
    """The requested page, and the token of the next one."""
    first = int(request.page_token or 0)
    last = first + (request.page_size or 100)
    return items[first:last], str(last) if last < len(items) else ""


@asynccontextmanager
async def serving(service: FakeService, port: int = 0) -> AsyncIterator[str]:
    """Its address while it runs, on the loop of the caller."""
    server = grpc.aio.server()
    distop_pb2_grpc.add_OperationServiceServicer_to_server(service, server)
    distop_pb2_grpc.add_TableServiceServicer_to_server(service, server)
    distop_pb2_grpc.add_IndexServiceServicer_to_server(service, server)
    distop_pb2_grpc.add_ClusterServiceServicer_to_server(service, server)
    distop_pb2_grpc.add_ScheduleServiceServicer_to_server(service, server)
    distop_pb2_grpc.add_BacklogServiceServicer_to_server(service, server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@contextmanager
def serving_in_thread(service: FakeService) -> Iterator[str]:
    """The same for tests that have no loop."""
    started, ended = threading.Event(), asyncio.Event()
    address: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with serving(service) as served:
            address.append(served)
            started.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    if not started.wait(10):
        raise Unavailable("the fake service did not start")
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
