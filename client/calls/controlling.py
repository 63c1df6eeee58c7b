"""Calls of those who run the service: hold, let go, decide, and see who did what."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, Literal

from distop.client.models.cluster import Member
from distop.client.models.control import AuditEntry
from distop.client.models.operation import Operation
from distop.client.models.table import Table
from distop.client.transport.connection import Connection
from distop.client.transport.requests import PAGE_SIZE, make_request
from distop.errors import DistopError, TableNotFound
from distop.proto import distop_pb2 as pb


class ControlCalls:
    """The part of :class:`~distop.client.aio.AsyncClient` that controls what others have started."""

    identity: str
    _connection: Connection

    async def pause(self, name: str, reason: str = "") -> Operation:
        """Hold an operation: no new jobs, nothing published.

        What is done stays done, and its deadline goes on counting. Pausing what is paused changes nothing;
        ``pause`` of the answer says who holds it.
        """
        request = make_request(pb.PauseOperationRequest, name=name, reason=reason, requested_by=self.identity)
        return Operation.from_proto(
            await self._connection.call(lambda service: service.operations.PauseOperation, request)
        )

    async def resume(self, name: str, reason: str = "") -> Operation:
        """Let an operation go on. Its table may still hold it: see ``pause`` of the answer."""
        request = make_request(
            pb.ResumeOperationRequest, name=name, reason=reason, requested_by=self.identity
        )
        return Operation.from_proto(
            await self._connection.call(lambda service: service.operations.ResumeOperation, request)
        )

    async def pause_table(self, name: str, reason: str = "") -> Table:
        """Hold a table: it starts nothing, and its running operations are held as by :meth:`pause`."""
        request = make_request(pb.PauseTableRequest, name=name, reason=reason, requested_by=self.identity)
        return Table.from_proto(
            await self._connection.call(lambda service: service.tables.PauseTable, request)
        )

    async def resume_table(self, name: str, reason: str = "") -> Table:
        """Let a table go on. Operations that were paused themselves stay so."""
        request = make_request(pb.ResumeTableRequest, name=name, reason=reason, requested_by=self.identity)
        return Table.from_proto(
            await self._connection.call(lambda service: service.tables.ResumeTable, request)
        )

    async def drop_table(self, name: str, reason: str = "", *, purge: bool = False) -> None:
        """Forget a table with its watermarks, history and backlog. Safe to repeat after an outage.

        Parameters
        ----------
        purge:
            Remove its files, too: everything below its location.

        Raises
        ------
        IncompatibleOperation
            Operations run on it.
        """
        request = make_request(
            pb.DropTableRequest, name=name, purge=purge, reason=reason, requested_by=self.identity
        )
        failures: list[DistopError] = []
        try:
            await self._connection.call(lambda service: service.tables.DropTable, request, failures=failures)
        except TableNotFound:
            if not failures:  # else an earlier attempt has dropped it, and its reply was lost
                raise

    async def audit(self, table: str = "", *, page_size: int = PAGE_SIZE) -> AsyncGenerator[AuditEntry, None]:
        """Who did what and when, the newest first: of one table, or what concerns the installation."""
        request = make_request(pb.ListAuditRequest, table=table, page_size=page_size)
        async with aclosing(self._pages(lambda service: service.cluster.ListAudit, request)) as pages:
            async for page in pages:
                for message in page.entries:
                    yield AuditEntry.from_proto(message)

    async def resolve(
        self, name: str, action: Literal["retry", "skip", "abort"], reason: str = ""
    ) -> Operation:
        """Decide about a parked operation.

        Parameters
        ----------
        action:
            ``retry``: try again, counting anew. ``skip``: leave the commit step out that fails.
            ``abort``: give the operation up; what its steps did so far is taken back where possible.

        Raises
        ------
        PreconditionFailed
            It is not parked (``NOT_PARKED``), or what failed cannot be skipped (``NOT_SKIPPABLE``).
        """
        request = make_request(
            pb.ResolveOperationRequest, name=name, action=action, reason=reason, requested_by=self.identity
        )
        return Operation.from_proto(
            await self._connection.call(lambda service: service.operations.ResolveOperation, request)
        )

    async def drain(self, member: str, reason: str = "", *, undo: bool = False) -> Member:
        """Let a coordinator give its tables up and get none; it still answers calls.

        Parameters
        ----------
        member:
            Its id, or its address.
        undo:
            Let it lead again.

        Raises
        ------
        PreconditionFailed
            It is the last coordinator that is not draining.
        """
        request = make_request(
            pb.DrainCoordinatorRequest, member=member, reason=reason, undo=undo, requested_by=self.identity
        )
        return Member.from_proto(
            await self._connection.call(lambda service: service.cluster.DrainCoordinator, request)
        )

    async def _pages(
        self, rpc: Callable[[Any], Callable[..., Any]], request: Any
    ) -> AsyncGenerator[Any, None]:
        while True:
            page = await self._connection.call(rpc, request)
            yield page
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token
