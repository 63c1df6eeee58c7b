"""The asynchronous client."""

from __future__ import annotations

from typing import Self

from distop.client.access import AccessCalls
from distop.client.backfill import BackfillCalls
from distop.client.cluster import ClusterCalls
from distop.client.connection import Connection, default_address, parse_addresses
from distop.client.credentials import Credentials
from distop.client.handles import OperationCalls
from distop.client.quarantine import QuarantineCalls
from distop.client.schedules import ScheduleCalls
from distop.client.starting import IngestCalls, MaintenanceCalls
from distop.client.tables import TableCalls, TablesCalls
from distop.proto.identity import default_identity


class AsyncTableHandle(TableCalls, MaintenanceCalls, BackfillCalls, ScheduleCalls, QuarantineCalls):
    """One table, by its name: its definition, content, snapshots and branches, watermarks, backlog, schedules
    and quarantine. Nothing is called to make one."""


class AsyncClient(IngestCalls, OperationCalls, TablesCalls, ClusterCalls, AccessCalls):
    """Starts operations, and gives handles of operations and tables. Belongs to one event loop.

    Any coordinator answers any call. If one does not answer, the call is repeated on the next: every call is
    idempotent, the start of an operation because the id of its call is made here, before the first attempt.

    All methods raise :class:`~distop.errors.DistopError`: the service's error, or
    :class:`~distop.errors.Unavailable` or :class:`~distop.errors.DeadlineExceeded` without an answer within
    the deadline.

    Parameters
    ----------
    address:
        ``host:port`` of a coordinator, or of several: ``"a:7070,b:7070"``. Default: ``DISTOP_ADDRESS`` of the
        environment, else 127.0.0.1:7070.
    timeout_s:
        Deadline of one call in seconds, over all attempts and coordinators.
    connect_timeout_s:
        Seconds until a client that has asked each coordinator, and not yet reached any, gives up a call.
        Equal to ``timeout_s``, it waits for a service that is being started.
    identity:
        The name shown for starts and cancellations, unless the service has a verified one.
        Default: ``user@host``.
    credentials:
        A token or certificates. Default: from the environment, see :meth:`Credentials.from_env`.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 2.0,
        identity: str = "",
        credentials: Credentials | None = None,
    ) -> None:
        connection = Connection(
            parse_addresses(default_address() if address is None else address),
            timeout_s=timeout_s,
            connect_timeout_s=connect_timeout_s,
            identity=identity or default_identity(),
            credentials=credentials if credentials is not None else Credentials.from_env(),
        )
        super().__init__(connection)

    @property
    def identity(self) -> str:
        """The name that it states as its caller's."""
        return self._connection.identity

    def table(self, name: str) -> AsyncTableHandle:
        """The handle of a table."""
        return AsyncTableHandle(self._connection, name)

    async def close(self) -> None:
        """Close the channels."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
