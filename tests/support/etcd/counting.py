"""A client of etcd that counts its requests."""

from __future__ import annotations

from typing import Any

from distop.metastore.etcd.client import EtcdClient


class Counting(EtcdClient):
    """Counts its requests."""

    requests = 0

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        self.requests += 1
        return await super()._call(*args, **kwargs)
