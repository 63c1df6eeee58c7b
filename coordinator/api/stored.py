"""What calls about a table's published state begin with: its record and head, and a look into its storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from distop.errors import PreconditionFailed, TableNotFound
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
"""Of the time that the caller waits: the rest is for telling him."""


class StoredCalls:
    """Handlers that read what is published in a table.

    Parameters
    ----------
    threads:
        Where metadata of tables is read.
    """

    def __init__(self, client: EtcdClient, threads: Executor) -> None:
        self._client = client
        self._threads = threads

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
        """What is read from a table's storage.

        Raises :class:`~distop.errors.PreconditionFailed` if it does not answer, while the caller still waits;
        the thread goes on.
        """
        limit_s = min(STORAGE_S, _PART * (deadline() - asyncio.get_running_loop().time()))
        try:
            async with asyncio.timeout(limit_s):
                return await self._in_thread(read)
        except TimeoutError:
            raise PreconditionFailed(
                f"the storage of table {table.name!r} has not answered for {max(limit_s, 0):.1f} s",
                hint=f"see whether {table.location} can be reached from the coordinators",
                details={"table": table.name},
            ) from None
        except OSError as error:
            raise PreconditionFailed(
                f"the storage of table {table.name!r} cannot be read: {error}", details={"table": table.name}
            ) from error

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, read)
