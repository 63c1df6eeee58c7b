"""A client of etcd that counts its requests, the watches it opens, and the keys that ranges go over."""

from typing import Any

from aetcd.rpc import rpc_pb2

from distop.metastore.etcd.client import EtcdClient


class Counting(EtcdClient):
    """A client that counts its requests, its watches, and the keys of the ranges it reads.

    The keys are those of the whole range, which etcd counts for each read, whatever limit it has.
    """

    requests = 0
    watches = 0
    keys = 0
    in_txns = 0
    """The part of :attr:`keys` that transactions read: these block other requests."""

    async def _call(self, *args: Any, **kwargs: Any) -> Any:
        self.requests += 1
        reply = await super()._call(*args, **kwargs)
        keys = _keys(reply)
        self.keys += keys
        self.in_txns += keys if isinstance(reply, rpc_pb2.TxnResponse) else 0
        return reply

    async def open_watch(self, request: Any) -> Any:
        self.watches += 1
        return await super().open_watch(request)


def _keys(reply: Any) -> int:
    """Keys of the ranges of a reply; those of a transaction say how many, too."""
    if isinstance(reply, rpc_pb2.RangeResponse):
        return int(reply.count)
    if isinstance(reply, rpc_pb2.TxnResponse):
        parts = (getattr(part, part.WhichOneof("response")) for part in reply.responses)
        return sum(map(_keys, parts))
    return 0
