"""The first part of calls about a table's published state: its record and head, and a read of its storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from distop.coordinator.work.work import LIMIT_S, Work
from distop.errors import CallTimeout, PreconditionFailed, TableNotFound
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.deadline import deadline
from distop.metastore.etcd.txn import Get
from distop.metastore.records.names import check_table_name
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord

T = TypeVar("T")

STORAGE_S = 5.0
"""Longest wait for a table's storage."""

_PART = 0.7
"""Share of the caller's deadline: the rest is for the error."""


class StoredCalls:
    """Handlers that read what is published in a table.

    Parameters
    ----------
    work:
        Where metadata of tables is read: a hanging storage of one table does not block others.
    """

    def __init__(self, client: EtcdClient, work: Work) -> None:
        self._client = client
        self._work = work

    async def _published(self, name: str) -> tuple[TableRecord, Head | None]:
        """Record and head of a table. Raises :class:`~distop.errors.TableNotFound`."""
        keys = self._client.keyspace.table(check_table_name(name))
        result = await self._client.read_at_once([Get(keys.table), Get(keys.head)])
        table, head = result.one(0, keys.table), result.one(1, keys.head)
        if not table.exists:
            raise TableNotFound(f"table {keys.name!r} does not exist", details={"table": keys.name})
        published = decode(head.value, Head, head.key) if head.exists else None
        return decode(table.value, TableRecord, table.key), published

    async def _from_storage(self, table: TableRecord, read: Callable[[], T]) -> T:
        """Read from a table's storage.

        Raises, before the caller's deadline, :class:`~distop.errors.PreconditionFailed` if it does not
        answer; the thread continues. :class:`~distop.errors.Busy` if its turn has not come, since others
        hang.
        """
        limit_s = min(STORAGE_S, _PART * _left_s())
        what = f"a look into the storage of table {table.name!r}"
        try:
            return await self._work.blocking(table.name, what, read, limit_s=limit_s)
        except CallTimeout:
            raise PreconditionFailed(
                f"the storage of table {table.name!r} has not answered for {max(limit_s, 0):.1f} s",
                hint=f"check that the coordinators can reach {table.location}",
                details={"table": table.name},
            ) from None
        except OSError as error:
            raise PreconditionFailed(
                f"the storage of table {table.name!r} cannot be read: {error}", details={"table": table.name}
            ) from error

    async def _in_thread(self, table: str, what: str, call: Callable[..., T], *args: object) -> T:
        """Run blocking code for a table, until the caller's deadline."""
        return await self._work.blocking(table, what, call, *args, limit_s=min(LIMIT_S, _left_s()))


def _left_s() -> float:
    """Seconds until the caller's deadline."""
    return deadline() - asyncio.get_running_loop().time()
