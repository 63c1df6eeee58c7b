"""The policy as this coordinator knows it: it watches the record, and re-reads it periodically."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing
from functools import partial

from distop.coordinator.access.policy import ALL, changed
from distop.errors import CorruptRecord, DistopError, Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.watch import watch
from distop.metastore.members.installation import GrantRecord, PolicyRecord, change_policy, read_policy
from distop.metastore.tables.audit import audit_put
from distop.process.followers import kept_running

log = logging.getLogger(__name__)

REREAD_S = 1.0
"""Interval between reads, in case the watch is silent."""

STALE_S = 5.0
"""A policy that was read longer ago, as by a suspended process, is read again before use."""


BRIEFLY_S = 0.5
"""How long a call waits for that."""


class Policies:
    """The current policy; belongs to one event loop.

    Parameters
    ----------
    admins:
        Subjects that may do everything, if there is no policy: a new one begins with them.
    """

    def __init__(self, client: EtcdClient, admins: Sequence[str] = ()) -> None:
        self._client = client
        self._admins = tuple(admins)
        self._policy: PolicyRecord | None = None
        self._known = False
        self._broken: CorruptRecord | None = None
        self._read_at = self._tried_at = float("-inf")

    @property
    def standing(self) -> PolicyRecord | None:
        """The policy that was read last; another object once it has changed."""
        return self._policy

    async def present(self) -> PolicyRecord | None:
        """The policy; ``None``: there is none, and every caller may do everything.

        Raises :class:`~distop.errors.DistopError` when it is unknown: then no caller may do anything.
        """
        now = time.monotonic()
        if not self._known:
            await self.read()
        elif now - max(self._read_at + STALE_S, self._tried_at + REREAD_S) > 0:
            # Without etcd the last one read applies: then nothing can be done or seen anyway.
            self._tried_at = now
            with contextlib.suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(BRIEFLY_S):
                    await self.read()
        if self._broken is not None:
            raise self._broken
        return self._policy

    async def read(self) -> None:
        """Read it; create one if there is none and admins are configured."""
        began = time.monotonic()
        try:
            policy = await read_policy(self._client)
        except CorruptRecord as error:
            self._broken = error
            raise
        if policy is None and self._admins:
            policy = await self._begin()
        if began >= self._read_at:  # of two concurrent reads the later one counts
            self._read_at, self._known, self._broken = began, True, None
            if policy != self._policy:
                self._policy = policy

    async def run(self) -> None:
        """Watch it, until cancelled."""
        woken = asyncio.Event()
        hearing = asyncio.create_task(kept_running("policy", partial(self._hear, woken)), name="policy")
        try:
            while True:
                woken.clear()
                try:
                    await self.read()
                except DistopError as error:
                    log.warning("policy_not_read", extra={"code": error.code, "error": str(error)})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REREAD_S):
                        await woken.wait()
        finally:
            hearing.cancel()

    async def _hear(self, woken: asyncio.Event) -> None:
        async with aclosing(watch(self._client, self._client.keyspace.policy)) as changes:
            async for _ in changes:
                woken.set()

    async def _begin(self) -> PolicyRecord | None:
        grants = [GrantRecord(who=who, role="admin", tables=[ALL]) for who in self._admins]
        space, names = self._client.keyspace, ", ".join(self._admins)
        audit = audit_put(
            space, "grant", by="--admin", target=names, at=time.time(), reason="the first policy"
        )

        def begin(standing: PolicyRecord | None) -> PolicyRecord | None:
            return changed(None, add=grants) if standing is None else standing

        policy = await change_policy(self._client, begin, uuid.uuid4().hex, audit)
        log.info("policy_begun", extra={"admins": names})
        return policy
