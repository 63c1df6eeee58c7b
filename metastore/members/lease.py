"""A lease that is kept alive, whether it is still certainly held, and the leadership of tables under it.

The local deadline is essential: a process that was paused cannot know what happened meanwhile, but it knows
that its last *acknowledged* renewal was sent more than a TTL ago. From then on, and a margin earlier, it must
not act. Writes do not depend on it (they carry a fence); it keeps a stale leader from doing useless or
harmful things outside etcd.

A separate thread renews it, over separate connections, however busy its process is. It uses gRPC without an
event loop: all loops of a process share one queue of events, so a busy one would delay this one. Only its
thread opens and closes its channels: gRPC ends the process when one thread prepares a call on a channel that
another has closed.

Leadership has the names of etcd's own ``concurrency`` package; two things differ. The fence is public: an
:class:`Epoch` is a compare for the caller's own transaction, not a boolean. And there is no queue of waiters:
the member that should lead (see the coordinator's placement) tries, and tries again when the key is gone, so
no member can hold a leadership that it got when its session was already dead (etcd issue 19597).
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from aetcd.rpc import rpc_pb2, rpc_pb2_grpc

from distop.errors import DistopError, LeaseLost
from distop.metastore.crashpoints import reached
from distop.metastore.etcd import txn as etcd
from distop.metastore.etcd.channels import (
    authenticate_request,
    open_blocking_channel,
    says_token_is_old,
    translated,
)
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.update import settle
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.record import encode
from distop.process.loop import boot_clock


@dataclass(frozen=True, slots=True)
class Epoch:
    """One leadership: the leader's key, and the revision that created it. Epochs of a table only grow."""

    key: bytes
    revision: int

    @property
    def lane(self) -> bytes:
        """The prefix of all keys of the table: see :class:`~distop.metastore.etcd.txn.Txn`."""
        return self.key.rpartition(b".")[0] + b"."

    def held(self) -> etcd.Compare:
        """The fence: holds in etcd exactly as long as this leadership does."""
        return etcd.created_at(self.key, self.revision)


async def campaign(
    client: EtcdClient, keys: TableKeys, session: LeaseSession, leader: LeaderRecord
) -> Epoch | None:
    """Try to become the leader of a table; ``None`` if another member is.

    The key is bound to the session's lease, which identifies its owner: a repetition after a lost reply
    recognises its own key. Campaigns for many tables share requests.
    """
    # The key goes with the lease, and never comes back with the same create revision: nor can a write of this
    # epoch happen after that, however long its request was on its way.
    txn = etcd.Txn(
        (etcd.absent(keys.coordinator),),
        (etcd.Put(keys.coordinator, encode(leader), session.lease_id),),
        (etcd.Get(keys.coordinator),),
        lane=keys.prefix,
    )

    def alive(_: bool) -> etcd.Txn:
        session.check()
        return txn

    reached("lead.before")
    result = await settle(client, alive, replied=lambda: reached("lead.after"))
    if result.succeeded:
        return Epoch(keys.coordinator, result.revision)
    existing = result.single(0, keys.coordinator)
    return Epoch(keys.coordinator, existing.create_revision) if existing.lease == session.lease_id else None


async def resign(client: EtcdClient, epoch: Epoch) -> None:
    """Resign a leadership; does nothing if it is already lost.

    Raises :class:`~distop.errors.Unavailable` when the key may still exist. Then it must be retried: no other
    member can lead before.
    """
    reached("resign.before")
    txn = etcd.Txn((epoch.held(),), (etcd.DeleteRange(epoch.key),), lane=epoch.lane)
    await settle(client, txn, replied=lambda: reached("resign.after"))


log = logging.getLogger(__name__)

_IDLE_S = 60.0
"""Longest pause during which its connection stays open, in seconds."""

_CLOSING_S = 2.0
"""Longest wait for the thread to end."""


class Renewal:
    """A thread that keeps one lease alive.

    Parameters
    ----------
    keep:
        Its main function: called once, may call :meth:`renew` and :meth:`pause` until that says to stop.
    """

    def __init__(self, config: EtcdConfig, lease: int, keep: Callable[[Renewal], None]) -> None:
        self._config, self._lease = config, lease
        self._stop = threading.Event()
        self._channel: grpc.Channel | None = None
        self._running: Any = None
        self._token = ""
        self._current = 0
        self._thread = threading.Thread(target=self._run, args=(keep,), name=f"lease-{lease:x}", daemon=True)
        self._thread.start()

    def _run(self, keep: Callable[[Renewal], None]) -> None:
        try:
            keep(self)
        finally:
            self._leave()

    def pause(self, seconds: float) -> bool:
        """Wait for this long, without a connection if that is long; return whether to continue."""
        if seconds > _IDLE_S:
            self._leave()
        return not self._stop.wait(max(0.0, seconds))

    def renew(self, timeout_s: float) -> int:
        """Seconds that the lease lives from now on; 0 if it has expired.

        Raises a :class:`~distop.errors.DistopError` when the member did not answer; the next call goes to the
        next member.
        """
        share, endpoint = timeout_s / len(self._config.endpoints), self._config.endpoints[self._current]
        try:
            if self._channel is None:
                self._channel = open_blocking_channel(self._config, endpoint)
            request = iter([rpc_pb2.LeaseKeepAliveRequest(ID=self._lease)])
            stub = rpc_pb2_grpc.LeaseStub(self._channel)
            call = self._begun(stub.LeaseKeepAlive(request, metadata=self._metadata(share), timeout=share))
            try:
                return int(next(call).TTL)
            finally:
                call.cancel()
        except StopIteration:
            return 0
        except grpc.RpcError as error:
            failure: Any = error  # it is also the call, which grpc.RpcError does not show
            if says_token_is_old(failure):
                self._token = ""
            else:
                self._leave()
                self._current = (self._current + 1) % len(self._config.endpoints)
            raise translated(failure, in_doubt=False, endpoint=endpoint) from None
        finally:
            self._running = None  # a call that outlives Python's shutdown can hang it

    def _metadata(self, timeout_s: float) -> list[tuple[str, str]] | None:
        if not self._config.user:
            return None
        if not self._token:
            stub = rpc_pb2_grpc.AuthStub(self._channel)
            request = authenticate_request(self._config)
            call = self._begun(stub.Authenticate.future(request, timeout=timeout_s))
            if call.code() is not grpc.StatusCode.OK:
                raise call
            self._token = str(call.result().token)
        return [("token", self._token)]

    def _begun(self, call: Any) -> Any:
        """The call, which :meth:`close` cancels; or this object, if it is already closed."""
        self._running = call
        if self._stop.is_set():
            call.cancel()
        return call

    def _leave(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()

    def close(self) -> None:
        """Stop; a renewal in progress is cancelled."""
        self._stop.set()
        if (call := self._running) is not None:
            call.cancel()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)


def _nobody(deadline: float) -> None:
    pass


class LeaseSession:
    """One lease from grant to end; one incarnation of a process.

    Parameters
    ----------
    ttl_s:
        Seconds after the last renewal at which etcd drops the lease's keys; at least 2.
    clock:
        Seconds, monotonic.
    renewed:
        Called with the new :attr:`deadline`, by the thread that renews it.

    ``lost`` is set once, when the lease has ended for any reason. A new session is a new identity.
    ``trips`` are the durations of the last three renewals, in seconds.
    """

    def __init__(
        self,
        client: EtcdClient,
        ttl_s: int,
        *,
        clock: Callable[[], float] = boot_clock,
        renewed: Callable[[float], None] = _nobody,
    ) -> None:
        self.client = client
        self.ttl_s = ttl_s
        self.lease_id = 0
        self.lost = asyncio.Event()
        self.deadline = 0.0
        """Until when, by the clock, it is certainly valid without another renewal."""
        self.trips: tuple[float, ...] = ()
        self._clock = clock
        self._renewed = renewed
        self._margin_s = max(0.2, ttl_s * 0.1)
        self._closing = False
        self._over = False
        self._renewal: Renewal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.get_ident()

    @property
    def alive(self) -> bool:
        """Whether the lease is certainly still valid in etcd, by this process's own clock.

        Once it was found invalid, it stays so: the process has stopped acting, and nothing would make it
        start again if a renewal in progress succeeded after all.
        """
        if self.lease_id and self._clock() >= self.deadline:
            self.lose()
        return self.lease_id != 0 and not self._over

    def lose(self) -> None:
        """Stop acting under it, as when it has expired. Final; called from any thread."""
        self._over = True
        if threading.get_ident() == self._thread:
            self.lost.set()
        elif self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended: no task waits there
                self._loop.call_soon_threadsafe(self.lost.set)

    def check(self) -> None:
        """Raise :class:`~distop.errors.LeaseLost` unless :attr:`alive`."""
        if not self.alive:
            raise LeaseLost()

    async def start(self) -> LeaseSession:
        """Grant the lease and begin to renew it."""
        sent = self._clock()
        reached("lease.grant.before")
        lease = await self.client.lease_grant(self.ttl_s)
        reached("lease.grant.after")
        self.lease_id = lease
        self._holds_until(sent + self.ttl_s - self._margin_s)
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._renewal = Renewal(self.client.config, self.lease_id, self._keep_alive)
        return self

    async def close(self, *, revoke: bool = True) -> None:
        """Stop renewing; ``revoke`` drops the lease's keys at once (best effort: else they expire)."""
        self._closing = True
        self.lose()
        if self._renewal is not None:
            self._renewal.close()
            self._renewal = None
        if revoke and self.lease_id:
            try:
                reached("lease.revoke.before")
                await self.client.lease_revoke(self.lease_id)
                reached("lease.revoke.after")
            except DistopError as error:
                log.info("lease_revoke_failed", extra={"lease": self.lease_id, "error": str(error)})

    async def __aenter__(self) -> LeaseSession:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _holds_until(self, deadline: float) -> None:
        self.deadline = deadline
        self._renewed(deadline)

    def _keep_alive(self, renewal: Renewal) -> None:
        """Runs in the renewing thread."""
        interval, outage = self.ttl_s / 3, self.client.members.outage
        try:
            while self.alive:
                sent, pause = self._clock(), min(0.1, interval)
                try:
                    ttl = renewal.renew(interval)
                except DistopError as error:
                    if not self._closing:
                        outage.failed(error.message)
                else:
                    outage.answered()
                    if ttl <= 0 or not self.alive:
                        return
                    self.trips = (*self.trips[-2:], self._clock() - sent)
                    self._holds_until(sent + min(ttl, self.ttl_s) - self._margin_s)
                    # Until the next renewal is due, but without missing the deadline.
                    pause = min(interval, self.deadline - self._clock())
                if not renewal.pause(pause):
                    return
        finally:
            if not self._closing:
                log.warning("lease_lost", extra={"lease": self.lease_id})
            self.lose()
