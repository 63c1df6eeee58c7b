"""The asynchronous client."""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar

from google.protobuf.message import Message

from distop.client.calls.controlling import ControlCalls
from distop.client.calls.follow import follow
from distop.client.calls.indexing import IndexCalls
from distop.client.models.backlog import BacklogCalls
from distop.client.models.cluster import Leader, Member
from distop.client.models.diagnosis import Diagnosis, diagnose
from distop.client.models.follow_up import FollowUp, operation_options
from distop.client.models.operation import Operation, OperationState, OperationUpdate
from distop.client.models.table import Explanation, Table, Watermarks, watermarks_from_proto
from distop.client.transport.connection import DEFAULT_ADDRESS, Connection, parse_addresses
from distop.client.transport.convert import to_struct
from distop.client.transport.requests import PAGE_SIZE, make_request
from distop.errors import DeadlineExceeded, DistopError, InvalidArgument, TableExists
from distop.proto import distop_pb2 as pb

M = TypeVar("M", bound=Message)


def default_identity() -> str:
    """``user@host`` of this process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


class AsyncClient(ControlCalls, BacklogCalls, IndexCalls):
    """Starts, follows and cancels operations; makes and shows tables. Belongs to one event loop.

    Any coordinator answers any call. When one does not, the call is repeated on the next: every call is safe
    to repeat, the start of an operation because its request id is made here, before the first attempt.

    All methods raise :class:`~distop.errors.DistopError`: what the service answered, or
    :class:`~distop.errors.Unavailable` or :class:`~distop.errors.DeadlineExceeded` when it did not within the
    deadline.

    Parameters
    ----------
    address:
        ``host:port`` of a coordinator, or of several: ``"a:7070,b:7070"``.
    timeout_s:
        Deadline of one call in seconds, over all attempts and coordinators.
    connect_timeout_s:
        Seconds after which a client that has not yet reached any coordinator gives a call up. Equal to
        ``timeout_s``, it waits for a service that is being started.
    identity:
        Who is shown as having started or cancelled something. Default: ``user@host``.
    new_request_id:
        Makes request ids; unique ones.
    """

    def __init__(
        self,
        address: str = DEFAULT_ADDRESS,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 2.0,
        identity: str = "",
        new_request_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self.identity = identity or default_identity()
        self._new_request_id = new_request_id
        self._connection = Connection(
            parse_addresses(address), timeout_s=timeout_s, connect_timeout_s=connect_timeout_s
        )

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
        then: FollowUp | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Operation:
        """Start an operation; return it as it stands then.

        Parameters
        ----------
        argument:
            JSON that the type understands. Whole numbers beyond 2^53 must be strings.
        object:
            For types with one operation per object: an index, a query.
        partitions:
            A subset, for types whose partitions have names. Empty: all.
        deadline_s:
            Seconds from the start after which it is aborted.
        max_job_attempts:
            How often a job is tried before it is marked failed.
        job_backoff_s:
            Seconds before the second attempt at a job; doubled before each further one, up to 30 s.
        attempt_timeout_s:
            Seconds after which an attempt is cancelled, and counts as one that failed.
        max_failed_partitions:
            How many jobs may fail without failing the operation, which then publishes what the others made;
            -1: any number. One must succeed.
        then:
            What its finish starts in the same transaction, if it succeeds.
        request_id:
            Pass the same one to repeat a start from another process: the first answer comes again.
        timeout_s:
            Deadline of this call; planning a large source takes the service a while.
        """
        if isinstance(partitions, str):
            raise InvalidArgument("partitions is one string, not several", details={"field": "partitions"})
        options = operation_options(
            deadline_s=deadline_s,
            max_job_attempts=max_job_attempts,
            job_backoff_s=job_backoff_s,
            attempt_timeout_s=attempt_timeout_s,
            max_failed_partitions=max_failed_partitions,
        )
        request = make_request(
            pb.StartOperationRequest,
            table=table,
            type=type,
            object=object,
            argument=to_struct(argument or {}, "argument"),
            partitions=partitions,
            options=options,
            request_id=request_id or self._new_request_id(),
            started_by=self.identity,
            then=then.to_proto() if then is not None else None,
        )
        reply = await self._connection.call(
            lambda service: service.operations.StartOperation, request, timeout_s=timeout_s
        )
        return Operation.from_proto(reply)

    async def get(self, name: str) -> Operation:
        """An operation as it stands; finished ones too, while their history is kept."""
        request = make_request(pb.GetOperationRequest, name=name)
        return Operation.from_proto(
            await self._connection.call(lambda service: service.operations.GetOperation, request)
        )

    async def list(
        self,
        table: str = "",
        *,
        type: str = "",
        states: Sequence[OperationState] = (),
        page_size: int = PAGE_SIZE,
    ) -> AsyncGenerator[Operation, None]:
        """Running and finished operations, of one table or of all, newest first within a table.

        Pages are fetched as they are needed, all at one revision.
        """
        request = make_request(
            pb.ListOperationsRequest,
            table=table,
            type=type,
            states=[state.to_proto() for state in states],
            page_size=page_size,
        )
        async with aclosing(self._pages(lambda service: service.operations.ListOperations, request)) as pages:
            async for page in pages:
                for message in page.operations:
                    yield Operation.from_proto(message)

    async def watch(self, name: str, *, after_revision: int = 0) -> AsyncGenerator[OperationUpdate, None]:
        """Follow an operation: its present state, then every change up to its end.

        Goes on by itself over broken streams and lost coordinators, and shows no change twice. Gives up when
        no coordinator has shown a sign of life for ``timeout_s``.

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
        """Wait for the end of an operation; see :meth:`Operation.raise_for_outcome` for its outcome.

        Parameters
        ----------
        timeout_s:
            Seconds; ``None`` waits as long as the service answers. The operation goes on when it has passed.
        """
        last = "unknown"
        try:
            updates = follow(
                self._connection, make_request(pb.WatchOperationRequest, name=name).name, states_only=True
            )
            async with asyncio.timeout(timeout_s), aclosing(updates):
                async for update in updates:
                    last = "parked" if update.operation.parked else update.operation.state.value
                    if update.operation.done:
                        return update.operation
        except TimeoutError:
            raise DeadlineExceeded(
                f"{name} is not over after {timeout_s:g} s, it is {last}",
                hint="decide about it: distop resolve" if last == "parked" else "wait longer, or cancel it",
                details={"operation": name},
            ) from None
        raise AssertionError("unreachable: a watch ends with the end of its operation")

    async def cancel(self, name: str, reason: str = "") -> Operation:
        """Ask for an operation to be cancelled; it is over when its state says so."""
        request = make_request(
            pb.CancelOperationRequest, name=name, reason=reason, requested_by=self.identity
        )
        return Operation.from_proto(
            await self._connection.call(lambda service: service.operations.CancelOperation, request)
        )

    async def create_table(
        self, name: str, location: str, *, format: str = "iceberg", options: Mapping[str, Any] | None = None
    ) -> Table:
        """Make a table.

        Parameters
        ----------
        location:
            URL of the folder for its files, on any fsspec file system.
        options:
            Of the format; for Iceberg ``schema``, ``partitionBy`` and ``properties``. ``storage``: options of
            fsspec for the file system it lives on.
        """
        request = make_request(
            pb.CreateTableRequest,
            name=name,
            location=location,
            format=format,
            options=to_struct(options or {}, "options"),
            created_by=self.identity,
        )
        failures: list[DistopError] = []
        try:
            reply = await self._connection.call(
                lambda service: service.tables.CreateTable, request, failures=failures
            )
        except TableExists:
            # The reply of an earlier attempt may have been lost: is it the table we asked for?
            if failures and _same(table := await self.get_table(name), request):
                return table
            raise
        return Table.from_proto(reply)

    async def get_table(self, name: str) -> Table:
        """A table as it stands."""
        request = make_request(pb.GetTableRequest, name=name)
        return Table.from_proto(await self._connection.call(lambda service: service.tables.GetTable, request))

    async def explain(self, name: str) -> Explanation:
        """Why a table moves, or does not: one sentence."""
        request = make_request(pb.GetTableRequest, name=name)
        return Explanation.from_proto(
            await self._connection.call(lambda service: service.tables.ExplainTable, request)
        )

    async def list_tables(self, *, page_size: int = PAGE_SIZE) -> AsyncGenerator[Table, None]:
        """All tables, by name."""
        request = make_request(pb.ListTablesRequest, page_size=page_size)
        async with aclosing(self._pages(lambda service: service.tables.ListTables, request)) as pages:
            async for page in pages:
                for message in page.tables:
                    yield Table.from_proto(message)

    async def watermarks(self, table: str, source: str = "") -> Watermarks:
        """How far each source of a table has been ingested: source -> partition -> value."""
        request = make_request(pb.GetWatermarksRequest, table=table, source=source)
        return watermarks_from_proto(
            await self._connection.call(lambda service: service.tables.GetWatermarks, request)
        )

    async def members(self) -> Sequence[Member]:
        """The live coordinators and executors."""
        reply = await self._connection.call(
            lambda service: service.cluster.ListMembers, pb.ListMembersRequest()
        )
        return [Member.from_proto(member) for member in reply.members]

    async def leaders(self) -> Sequence[Leader]:
        """Who drives which table at present. Idle tables have no leader."""
        reply = await self._connection.call(
            lambda service: service.cluster.ListLeaders, pb.ListLeadersRequest()
        )
        return [Leader.from_proto(leader) for leader in reply.leaders]

    async def diagnose(
        self, table: str = "", *, deep: bool = False, fix: bool = False, patience_s: float = 10.0
    ) -> Diagnosis:
        """Look for what should not be, in one table or in the whole installation.

        Parameters
        ----------
        deep:
            Also read the manifests of tables, and see whether their files exist.
        fix:
            Put right what is safe to put right.
        patience_s:
            Seconds that a table may be without a leader, or an operation without a runner.
        """
        request = make_request(pb.DiagnoseRequest, table=table, deep=deep, fix=fix)
        request.patience.FromNanoseconds(int(patience_s * 1e9))
        return await diagnose(self._connection, request)

    async def close(self) -> None:
        """Close the channels."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _same(table: Table, request: pb.CreateTableRequest) -> bool:
    """Whether this is the table that was asked for; the service writes local paths as ``file://`` URLs."""

    def place(location: str) -> str:
        return location.removeprefix("file://").rstrip("/")

    return (place(table.location), table.format, table.created_by) == (
        place(request.location),
        request.format,
        request.created_by,
    )
