"""The client for code that blocks: pyiceberg, scripts, tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from distop.metastore.etcd.client import EtcdClient, RangePage, Snapshot
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import KeyValue, Txn, TxnResult

T = TypeVar("T")


class SyncEtcd:
    """A blocking face of :class:`EtcdClient`; may be used from several threads.

    The real client runs on an event loop in a thread of its own. Errors and deadlines are the client's.
    """

    def __init__(self, config: EtcdConfig) -> None:
        self.config = config
        self.keyspace = config.keyspace
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="distop-etcd", daemon=True)
        self._thread.start()
        self._client: EtcdClient = self._run(self._connect)

    async def _connect(self) -> EtcdClient:
        return EtcdClient(self.config)

    def run(self, call: Callable[[EtcdClient], Coroutine[Any, Any, T]]) -> T:
        """Run any coroutine of the client to its end: ``etcd.run(lambda client: client.get(key))``."""
        return self._run(lambda: call(self._client))

    def _run(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def get(self, key: bytes, *, revision: int = 0) -> KeyValue:
        """See :meth:`EtcdClient.get`."""
        return self.run(lambda client: client.get(key, revision=revision))

    def get_range(
        self, start: bytes, end: bytes, *, revision: int = 0, keys_only: bool = False, limit: int = 0
    ) -> RangePage:
        """See :meth:`EtcdClient.get_range`."""
        return self.run(
            lambda client: client.get_range(start, end, revision=revision, keys_only=keys_only, limit=limit)
        )

    def scan(self, prefix: bytes, *, revision: int = 0, keys_only: bool = False) -> Snapshot:
        """See :meth:`EtcdClient.scan`."""
        return self.run(lambda client: client.scan(prefix, revision=revision, keys_only=keys_only))

    def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        """See :meth:`EtcdClient.txn`."""
        return self.run(lambda client: client.txn(txn, timeout_s=timeout_s))

    def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        """See :meth:`EtcdClient.put`."""
        return self.run(lambda client: client.put(key, value, lease=lease))

    def delete(self, key: bytes, end: bytes = b"") -> int:
        """See :meth:`EtcdClient.delete`."""
        return self.run(lambda client: client.delete(key, end))

    def close(self) -> None:
        """Close the connection and end the thread."""
        if self._thread.is_alive():
            self._run(self._client.close)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> SyncEtcd:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
