"""A lease that is kept alive, and whether it is still certainly held.

The local deadline is essential: a process that was paused cannot know what happened meanwhile, but it knows
that its last *acknowledged* renewal was sent more than a TTL ago. From then on, and a margin earlier, it must
not act. Writes do not depend on it (they carry a fence); it keeps a stale leader from doing useless or
harmful things outside etcd.

A separate thread renews it, so that a busy process does not lose it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

import grpc

from distop.errors import DistopError, LeaseLost
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.clocks import boot_clock
from distop.metastore.members.renewal import Renewal

__all__ = ["LeaseSession", "boot_clock"]

log = logging.getLogger(__name__)


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
        interval = self.ttl_s / 3
        try:
            while self.alive:
                sent, pause = self._clock(), min(0.1, interval)
                try:
                    ttl = renewal.renew(interval)
                except (grpc.RpcError, DistopError) as error:
                    if not self._closing:
                        fields = {"lease": self.lease_id, "error": str(error)}
                        log.warning("lease_renewal_failed", extra=fields)
                else:
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
