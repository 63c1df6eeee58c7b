"""The common part of all calls."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from operator import attrgetter
from typing import Any

from distop.client.connection import Connection, make_request
from distop.proto import distop_pb2 as pb

PAGE_SIZE = 200


def new_call_id() -> str:
    """Identifies one call, also when it is repeated."""
    return str(uuid.uuid4())


class Calls:
    """Calls by method name. The request of ``GetTable`` is a ``GetTableRequest``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def _call(self, method: str, *, of: str = "", **fields: Any) -> Any:
        """The reply of a call. ``of``: the method that defines the request type, if it is another one."""
        request = make_request(getattr(pb, f"{of or method}Request"), **fields)
        return await self._connection.call(attrgetter(method), request)

    async def _control(self, method: str, **fields: Any) -> Any:
        """The reply of a call that records its caller."""
        return await self._call(method, requested_by=self._connection.identity, **fields)

    async def _once(self, method: str, **fields: Any) -> Any:
        """As :meth:`_control`, for a call that is repeated with one id, and executed once."""
        return await self._control(method, call_id=new_call_id(), **fields)

    async def _listed(self, method: str, field: str, **fields: Any) -> AsyncGenerator[Any, None]:
        """The items that a call lists in ``field``. Pages are fetched on demand, all at one revision."""
        request = make_request(getattr(pb, f"{method}Request"), **fields)
        while True:
            page = await self._connection.call(attrgetter(method), request)
            for message in getattr(page, field):
                yield message
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token


class NamedCalls(Calls):
    """Calls on what has a name: a table, an operation."""

    def __init__(self, connection: Connection, name: str) -> None:
        super().__init__(connection)
        self._name = name

    @property
    def name(self) -> str:
        """The name, which a handle is made from."""
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"


async def models(messages: AsyncGenerator[Any, None], kind: Any) -> AsyncGenerator[Any, None]:
    """The messages as their dataclass."""
    async with aclosing(messages):
        async for message in messages:
            yield kind.from_proto(message)
