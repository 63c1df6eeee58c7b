"""The policy as this coordinator knows it: it follows the record, and reads it again now and then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import aclosing

from distop.coordinator.access.policy import ALL, changed
from distop.errors import CorruptRecord, DistopError, Unavailable
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.watch import watch
from distop.metastore.members.policy import change_policy, read_policy
from distop.metastore.records.policy import GrantRecord, PolicyRecord
from distop.metastore.tables.audit import audit_put

log = logging.getLogger(__name__)

REREAD_S = 1.0
"""Between two reads, should the watch be silent for whatever reason."""

STALE_S = 5.0
"""A policy that was read longer ago than that, as by a process that was stopped, is read again before use."""


BRIEFLY_S = 0.5
"""How long a call waits for that."""


class Policies:
    """The policy that stands; of one event loop.

    Parameters
    ----------
    admins:
        Who may do everything, should there be no policy: then one begins with them.
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
        """The policy as it was last read; another object once it has changed."""
        return self._policy

    async def present(self) -> PolicyRecord | None:
        """The policy; ``None``: there is none, and everybody may do everything.

        Raises :class:`~distop.errors.DistopError` when it is not known: then nobody may do anything.
        """
        now = time.monotonic()
        if not self._known:
            await self.read()
        elif now - max(self._read_at + STALE_S, self._tried_at + REREAD_S) > 0:
            # Without etcd the one that was read last holds: then nothing can be done or seen anyhow.
            self._tried_at = now
            with contextlib.suppress(TimeoutError, Unavailable):
                async with asyncio.timeout(BRIEFLY_S):
                    await self.read()
        if self._broken is not None:
            raise self._broken
        return self._policy

    async def read(self) -> None:
        """Read it, and begin one if there is none and somebody is to be its admin."""
        began = time.monotonic()
        try:
            policy = await read_policy(self._client)
        except CorruptRecord as error:
            self._broken = error
            raise
        if policy is None and self._admins:
            policy = await self._begin()
        if began >= self._read_at:  # of two reads under way, the one that began later counts
            self._read_at, self._known, self._broken = began, True, None
            if policy != self._policy:
                self._policy = policy

    async def run(self) -> None:
        """Follow it, until cancelled."""
        woken = asyncio.Event()
        hearing = asyncio.create_task(self._hear(woken), name="policy")
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
        while True:
            try:
                async with aclosing(watch(self._client, self._client.keyspace.policy)) as changes:
                    async for _ in changes:
                        woken.set()
            except DistopError as error:
                log.info("policy_watch_ended", extra={"code": error.code, "error": str(error)})
                await asyncio.sleep(REREAD_S)

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
