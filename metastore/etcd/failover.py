"""The members of etcd for one client: which one is used, how long it may take, and the user's
token.

A failed call goes to another member if that cannot repeat a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio

from distop.errors import EtcdUnavailable, OutcomeUnknown
from distop.metastore.etcd.channels import MemberStubs, authenticate_request, open_channel
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.deadline import deadline
from distop.metastore.etcd.failures import is_transient, says_token_is_old, translated, was_never_sent


class Members:
    """Connections to the members, each made when it is needed; belongs to one event loop."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._stubs: dict[str, MemberStubs] = {}
        self._current = 0
        self._closed = False
        self._token: str | None = None
        self._authenticating = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections; calls in progress fail, and so do later ones."""
        self._closed = True
        standing, self._stubs = list(self._stubs.values()), {}
        for stubs in standing:
            await stubs.channel.close(None)

    @property
    def endpoint(self) -> str:
        """The endpoint of the present member."""
        return self._config.endpoints[self._current]

    def leave(self, endpoint: str) -> None:
        """Use another member from now on, unless ``endpoint`` has been left already.

        Many calls fail together when a member dies; together they move on by one.
        """
        if endpoint == self.endpoint:
            self._current = (self._current + 1) % len(self._config.endpoints)

    def forget_token(self) -> None:
        """Authenticate again before the next call: a restarted etcd does not know earlier tokens."""
        self._token = None

    def stubs(self) -> MemberStubs:
        """The services of the present member."""
        if self._closed:
            raise EtcdUnavailable("the etcd client is closed")
        stubs = self._stubs.get(self.endpoint)
        if stubs is None:
            stubs = self._stubs[self.endpoint] = MemberStubs(open_channel(self._config, self.endpoint))
        return stubs

    async def metadata(self, timeout_s: float) -> list[tuple[str, str]] | None:
        """Metadata of a call: the user's token, if there is one."""
        if not self._config.user:
            return None
        if self._token is None:
            async with asyncio.timeout(timeout_s), self._authenticating:
                # One call authenticates for all that wait: it is expensive for etcd.
                if self._token is None:
                    self._token = await self._authenticated()
        return [("token", self._token)]

    async def _authenticated(self) -> str:
        request = authenticate_request(self._config)
        return str((await self.stubs().auth.Authenticate(request, timeout=self._config.timeout_s)).token)

    async def call(
        self,
        once: Callable[[MemberStubs, Any, float], Awaitable[Any]],
        *,
        writes: bool,
        timeout_s: float | None,
    ) -> Any:
        """Try the members in turn until the deadline; a write only if it was certainly not sent.

        Parameters
        ----------
        once:
            Makes the call, with a member's services, metadata, and seconds.
        """
        loop = asyncio.get_running_loop()
        end = min(loop.time() + (timeout_s or self._config.timeout_s), deadline())
        reauthenticated, pause, untried = False, 0.02, len(self._config.endpoints)
        while True:
            endpoint, left = self.endpoint, end - loop.time()
            # A silent member gets a share of the time, so that the others get theirs.
            share = max(left if writes else left / max(untried, 1), 0.001)
            sent = False
            try:
                metadata = await self.metadata(share)
                sent = True
                return await once(self.stubs(), metadata, share)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling() or not self._closed:
                    raise
                # The task was not cancelled: gRPC cancels the calls of a channel that is closed.
                failure = OutcomeUnknown if writes and sent else EtcdUnavailable
                raise failure("the etcd client was closed") from None
            except (grpc.aio.AioRpcError, TimeoutError) as error:
                if self._config.user and not reauthenticated and says_token_is_old(error):
                    reauthenticated, self._token = True, None
                    continue
                sent = sent and not was_never_sent(error)
                transient = is_transient(error)
                if transient:
                    self.leave(endpoint)
                out_of_time = loop.time() + pause >= end
                if not transient or out_of_time or (writes and sent):
                    raise translated(error, in_doubt=writes and sent, endpoint=endpoint) from error
                untried -= 1
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.5)
