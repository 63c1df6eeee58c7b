"""The client for blocking code: pyiceberg, scripts, tests."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from distop.errors import OutcomeUnknown
from distop.metastore.etcd.client import EtcdClient, Listing, RangePage
from distop.metastore.etcd.config import EtcdConfig, within
from distop.metastore.etcd.txn import KeyValue, Txn, TxnResult
from distop.process.threads import LoopThread, cancel_others

T = TypeVar("T")

DEADLINES = 12
"""Longest wait of a caller, in deadlines of one request: most calls are several."""


class SyncEtcd:
    """A blocking wrapper of :class:`EtcdClient`; may be used from several threads.

    The real client runs on an event loop in a thread of its own, which ends with this. Errors and deadlines
    are the client's.
    """

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self.keyspace = config.keyspace
        self._thread = LoopThread("distop-etcd")
        self._client: EtcdClient = self._run(self._connect)
        self._thread.belongs_to(self, partial(_shut_down, self._client))

    async def _connect(self) -> EtcdClient:
        return EtcdClient(self.config)

    def run(self, call: Callable[[EtcdClient], Coroutine[Any, Any, T]]) -> T:
        """Run any coroutine of the client: ``etcd.run(lambda client: client.get(key))``.

        Raises :class:`~distop.errors.OutcomeUnknown` if it takes longer than :data:`DEADLINES` deadlines of a
        request, or if this is closed meanwhile.
        """
        return self._run(lambda: call(self._client))

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        limit = DEADLINES * self.config.timeout_s

        async def bounded() -> T:
            with within(limit):
                return await call()

        future = self._thread.submit(bounded)
        done, _ = concurrent.futures.wait((future,), limit + self.config.timeout_s)
        if not done:
            future.cancel()
            raise OutcomeUnknown(f"a call to etcd has not ended within {limit:g} s")
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise OutcomeUnknown("the connection to etcd was closed during the call") from None

    def get(self, key: bytes, *, revision: int = 0) -> KeyValue:
        """As :meth:`EtcdClient.get` does."""
        return self.run(lambda client: client.get(key, revision=revision))

    def get_range(
        self, start: bytes, end: bytes, *, revision: int = 0, keys_only: bool = False, limit: int = 0
    ) -> RangePage:
        """As :meth:`EtcdClient.get_range` does."""
        return self.run(
            lambda client: client.get_range(start, end, revision=revision, keys_only=keys_only, limit=limit)
        )

    def scan(self, prefix: bytes, *, revision: int = 0, keys_only: bool = False) -> Listing:
        """As :meth:`EtcdClient.scan` does."""
        return self.run(lambda client: client.scan(prefix, revision=revision, keys_only=keys_only))

    def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        """As :meth:`EtcdClient.txn` does."""
        return self.run(lambda client: client.txn(txn, timeout_s=timeout_s))

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        """As :meth:`EtcdClient.put` does."""
        return self.run(lambda client: client.put(key, value, lease=lease))

    def delete(self, key: bytes, end: bytes = b"") -> int:
        """As :meth:`EtcdClient.delete` does."""
        return self.run(lambda client: client.delete(key, end))

    def close(self) -> None:
        """Close the connection and end the thread. Calls in progress in other threads end with an error."""
        self._thread.close()

    def __enter__(self) -> SyncEtcd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _shut_down(client: EtcdClient) -> None:
    await cancel_others()
    await client.close()
