"""A simulated etcd: the model's store with its past, leases that end by the clock, and watches."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
from aetcd.rpc import kv_pb2, rpc_pb2

from distop.errors import InvalidArgument, LeaseLost
from distop.metastore.etcd.client import RangePage
from distop.metastore.etcd.txn import Compare, DeleteRange, Get, KeyValue, Op, Put, Txn, TxnResult
from explore.store import Store
from simulate.loop import Loop

PROGRESS_S = 600.0
"""Seconds between progress notifications of a quiet watch."""

EXPIRY_S = 0.5
"""How late etcd notices that a lease has ended, at the most."""

Changed = Callable[[str, Store, Store, list[bytes]], None]
"""Called with who has changed the store, what stood before and after, and the keys that have changed."""


class Refused(Exception):
    """etcd refuses a request."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code, self.details = code, details


@dataclass(eq=False)
class Watcher:
    """One watch, on a stream of its own."""

    start: bytes
    end: bytes
    kinds: tuple[bool, bool]
    """Whether it wants puts, and whether it wants deletes."""
    send: Callable[[Any, bool], None]
    """Sends a response; and whether it is of the past, which etcd sends a little later."""
    next: int = 0
    """The first revision of which it was not notified."""
    notified_at: float = 0.0

    def wants(self, key: bytes) -> bool:
        return key == self.start if not self.end else self.start <= key < self.end


@dataclass
class _Lease:
    ttl_s: int
    ends_at: float


@dataclass
class Etcd:
    """See the module. ``handle`` is called when a request arrives, and answers at once."""

    loop: Loop
    chance: random.Random
    changed: Changed
    store: Store = field(default_factory=Store)
    watchers: list[Watcher] = field(default_factory=list)
    down: bool = False
    """It does nothing, and no lease ends meanwhile."""

    def __post_init__(self) -> None:
        self._past = [self.store]
        """What stood at each revision that is not compacted."""
        self._leases: dict[int, _Lease] = {}
        self._granted = 0
        self.loop.call_later(PROGRESS_S, self._progress, context=self.loop.world)

    # -- requests --------------------------------------------------------------------------------------

    def handle(self, who: str, method: str, request: Any) -> Any:
        """The response; raises :class:`Refused`."""
        try:
            return getattr(self, f"_{method}")(who, request)
        except LeaseLost:
            raise Refused(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found") from None
        except InvalidArgument:
            text = "etcdserver: duplicate key given in txn request"
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, text) from None

    def _Range(self, who: str, request: Any) -> Any:
        get = _get_of(request)
        newest = request.sort_target == rpc_pb2.RangeRequest.MOD and request.sort_order != 0
        backwards = request.sort_target == rpc_pb2.RangeRequest.KEY and request.sort_order == 2
        page = self.at(get.revision).page(get, newest_first=newest, backwards=backwards)
        return _range_message(page, self.store.revision)

    def _Txn(self, who: str, request: Any) -> Any:
        return _txn_message(self.write(who, _txn_of(request)))

    def _LeaseGrant(self, who: str, request: Any) -> Any:
        self._granted += 1
        lease = 0x7000 + self._granted
        self._leases[lease] = _Lease(request.TTL, self.loop.time() + request.TTL)
        self._put_up(self.store.grant(lease))
        self._look_at(lease)
        return rpc_pb2.LeaseGrantResponse(ID=lease, TTL=request.TTL)

    def _LeaseRevoke(self, who: str, request: Any) -> Any:
        if request.ID not in self._leases:
            raise LeaseLost
        self._end(request.ID, who)
        return rpc_pb2.LeaseRevokeResponse()

    def _LeaseKeepAlive(self, who: str, request: Any) -> Any:
        lease = self._leases.get(request.ID)
        if lease is None:
            return rpc_pb2.LeaseKeepAliveResponse(ID=request.ID, TTL=0)
        lease.ends_at = self.loop.time() + lease.ttl_s
        return rpc_pb2.LeaseKeepAliveResponse(ID=request.ID, TTL=lease.ttl_s)

    def _LeaseTimeToLive(self, who: str, request: Any) -> Any:
        lease = self._leases.get(request.ID)
        if lease is None:
            return rpc_pb2.LeaseTimeToLiveResponse(ID=request.ID, TTL=-1)
        left = round(lease.ends_at - self.loop.time())
        response = rpc_pb2.LeaseTimeToLiveResponse(ID=request.ID, TTL=left, grantedTTL=lease.ttl_s)
        if request.keys:
            response.keys.extend(
                key for key, entry in self.store.entries.items() if entry.lease == request.ID
            )
        return response

    def _Compact(self, who: str, request: Any) -> Any:
        self.compact(request.revision)
        return rpc_pb2.CompactionResponse()

    def _Status(self, who: str, request: Any) -> Any:
        return rpc_pb2.StatusResponse(version="3.5.16")

    # -- the store and its past ------------------------------------------------------------------------

    def at(self, revision: int) -> Store:
        """What stood at a revision; 0: what stands."""
        if not revision:
            return self.store
        if revision > self.store.revision:
            text = "etcdserver: mvcc: required revision is a future revision"
            raise Refused(grpc.StatusCode.OUT_OF_RANGE, text)
        if revision < self._past[0].revision:
            text = "etcdserver: mvcc: required revision has been compacted"
            raise Refused(grpc.StatusCode.OUT_OF_RANGE, text)
        return self._past[revision - self._past[0].revision]

    def write(self, who: str, txn: Txn) -> TxnResult:
        """Apply a transaction."""
        after, result = self.store.apply(txn, self.at)
        if after is not self.store:
            self._changed_to(after, who)
        return result

    def compact(self, revision: int) -> None:
        """Forget what stood before a revision."""
        first = self._past[0].revision
        if first < revision <= self.store.revision:
            del self._past[: revision - first]

    def _put_up(self, store: Store) -> None:
        """A store with other leases: no revision."""
        self.store = self._past[-1] = store

    def _changed_to(self, after: Store, who: str) -> None:
        before, self.store = self.store, after
        self._past.append(after)
        keys = changed_keys(before, after)
        self.changed(who, before, after, keys)
        for watcher in self.watchers:
            if watcher.next == before.revision + 1:
                self._notify(watcher, before, after, keys, past=False)

    # -- leases ----------------------------------------------------------------------------------------

    def restarted(self) -> None:
        """It is there again, and has given every lease its whole time."""
        self.down = False
        for lease, granted in self._leases.items():
            granted.ends_at = self.loop.time() + granted.ttl_s
            self._look_at(lease)

    def _look_at(self, lease: int) -> None:
        at = self._leases[lease].ends_at + self.chance.uniform(0.0, EXPIRY_S)
        self.loop.call_at(at, self._perhaps_over, lease, context=self.loop.world)

    def _perhaps_over(self, lease: int) -> None:
        granted = self._leases.get(lease)
        if granted is None or self.down:
            return
        if granted.ends_at <= self.loop.time():
            self._end(lease, "etcd")
        else:
            self._look_at(lease)

    def _end(self, lease: int, who: str) -> None:
        del self._leases[lease]
        after = self.store.expire(lease)
        if after.revision == self.store.revision:
            self._put_up(after)
        else:
            self._changed_to(after, who)

    # -- watches ---------------------------------------------------------------------------------------

    def watch(self, watcher: Watcher, start_revision: int) -> None:
        """Begin a watch: what it missed comes first."""
        watcher.send(_response(self.store.revision, created=True), False)
        watcher.notified_at = self.loop.time()
        if start_revision and start_revision < self._past[0].revision + 1:
            oldest = self._past[0].revision
            response = _response(self.store.revision, canceled=True, compact_revision=oldest)
            watcher.send(response, True)
            return
        self.watchers.append(watcher)
        watcher.next = start_revision or self.store.revision + 1
        while watcher.next <= self.store.revision:
            before, after = self.at(watcher.next - 1), self.at(watcher.next)
            self._notify(watcher, before, after, changed_keys(before, after), past=True)

    def unwatch(self, watcher: Watcher) -> None:
        if watcher in self.watchers:
            self.watchers.remove(watcher)

    def _notify(
        self, watcher: Watcher, before: Store, after: Store, keys: list[bytes], *, past: bool
    ) -> None:
        watcher.next = after.revision + 1
        events = [
            _event(after, key)
            for key in keys
            if watcher.wants(key) and watcher.kinds[0 if after.get(key).exists else 1]
        ]
        if events:
            watcher.notified_at = self.loop.time()
            watcher.send(_response(after.revision, events=events), past)

    def _progress(self) -> None:
        for watcher in self.watchers:
            if not self.down and self.loop.time() - watcher.notified_at >= PROGRESS_S:
                watcher.notified_at = self.loop.time()
                watcher.send(_response(self.store.revision), False)
        self.loop.call_later(PROGRESS_S, self._progress, context=self.loop.world)


def changed_keys(before: Store, after: Store) -> list[bytes]:
    """What one transaction has put or deleted, in key order."""
    old, new = before.entries, after.entries
    keys = [key for key, entry in new.items() if old.get(key) is not entry]
    if len(new) - len(keys) != len(old) - sum(key in old for key in keys):
        keys += old.keys() - new.keys()
    return sorted(keys)


def _response(revision: int, **fields: Any) -> Any:
    return rpc_pb2.WatchResponse(header=rpc_pb2.ResponseHeader(revision=revision), **fields)


def _event(after: Store, key: bytes) -> kv_pb2.Event:
    kv = after.get(key)
    if kv.exists:
        return kv_pb2.Event(type=kv_pb2.Event.PUT, kv=_key_value(kv))
    return kv_pb2.Event(type=kv_pb2.Event.DELETE, kv=kv_pb2.KeyValue(key=key, mod_revision=after.revision))


# -- messages, and the values that they stand for ----------------------------------------------------

_TARGETS: dict[int, Any] = {
    rpc_pb2.Compare.MOD: ("mod", "mod_revision"),
    rpc_pb2.Compare.CREATE: ("create", "create_revision"),
    rpc_pb2.Compare.VALUE: ("value", "value"),
}


def _txn_of(message: Any) -> Txn:
    compares = []
    for compare in message.compare:
        target, name = _TARGETS[compare.target]
        compares.append(Compare(compare.key, target, getattr(compare, name), compare.range_end))
    return Txn(tuple(compares), tuple(_ops(message.success)), tuple(_ops(message.failure)))


def _ops(messages: Any) -> Iterator[Op]:
    for message in messages:
        kind = message.WhichOneof("request")
        request = getattr(message, kind)
        if kind == "request_put":
            yield Put(request.key, request.value, request.lease)
        elif kind == "request_txn":
            yield _txn_of(request)
        elif kind == "request_range":
            yield _get_of(request)
        else:
            yield DeleteRange(request.key, request.range_end)


def _get_of(message: Any) -> Get:
    return Get(message.key, message.range_end, message.keys_only, message.limit, message.revision)


def _key_value(kv: KeyValue) -> kv_pb2.KeyValue:
    return kv_pb2.KeyValue(
        key=kv.key,
        value=kv.value,
        mod_revision=kv.mod_revision,
        create_revision=kv.create_revision,
        lease=kv.lease,
    )


def _range_message(page: RangePage, revision: int) -> Any:
    return rpc_pb2.RangeResponse(
        header=rpc_pb2.ResponseHeader(revision=revision),
        kvs=map(_key_value, page.kvs),
        more=page.more,
        count=page.count,
    )


def _txn_message(result: TxnResult) -> Any:
    message = rpc_pb2.TxnResponse(
        header=rpc_pb2.ResponseHeader(revision=result.revision), succeeded=result.succeeded
    )
    for each, count in zip(result.results, result.counts, strict=True):
        response = message.responses.add()
        if isinstance(each, TxnResult):
            response.response_txn.CopyFrom(_txn_message(each))
        elif isinstance(each, int):
            response.response_delete_range.deleted = each
        elif each is None:
            response.response_put.SetInParent()
        else:
            page = RangePage(each, result.revision, more=len(each) < count, count=count)
            response.response_range.CopyFrom(_range_message(page, result.revision))
    return message
