"""Watching over runs: whoever works for one is told the moment it is not held any more.

Level-triggered: the present state is read first and again whenever history was lost, so no event whose loss
could leave a task working for nothing. One watch for a run, however many tasks work for it here.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from distop.errors import Compacted, DistopError
from distop.metastore.client import EtcdClient
from distop.metastore.keyspace import prefix_end
from distop.metastore.records import RUNNING
from distop.metastore.runs import RUNNER_GONE, Run
from distop.metastore.settle import settle
from distop.metastore.txn import Get, KeyValue, Txn
from distop.metastore.watch import Event, watch

log = logging.getLogger(__name__)

LOOK_AFTER_S = 0.01
"""A run is looked at only after so long: many operations are over by then and cost no watch at all."""


class RunListener(Protocol):
    """Whoever works for a run. Called on the event loop; must not block."""

    def run_over(self, run: Run, reason: str) -> None:
        """The run is not held any more. Told once; the listener is forgotten with it."""


class ClaimListener(Protocol):
    """Whoever holds claims. Called on the event loop; must not block."""

    def claims_listed(self, run: Run, claims: dict[str, KeyValue], revision: int) -> None:
        """All claims of the run that stand at ``revision``: partition to key (without its value)."""

    def claim_changed(self, run: Run, partition: str, event: Event) -> None:
        """A claim was made, moved to another lease, or deleted."""

    def claims_over(self, run: Run) -> None:
        """The run is not held any more, and none of its claims means anything."""


@dataclass
class _Watched:
    run: Run
    claims: ClaimListener | None
    listeners: list[RunListener] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Oversight:
    """The runs that somebody on this host works for; belongs to one event loop."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._watched: dict[tuple[bytes, int], _Watched] = {}

    def attach(
        self, run: Run, listener: RunListener, *, claims: ClaimListener | None = None, known_at: int = 0
    ) -> None:
        """Tell ``listener`` when the run is over; also if it is already.

        Parameters
        ----------
        claims:
            Whom to tell of the run's claims; for operations whose jobs are claimed.
        known_at:
            A revision at which the run was held, if one is known: spares reading it again.
        """
        key = run.key
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(run, claims)
            watched.task = asyncio.create_task(
                self._oversee(watched, known_at), name=f"oversee-{run.keys.operation}"
            )
        watched.listeners.append(listener)

    def detach(self, run: Run, listener: RunListener) -> None:
        """Tell ``listener`` nothing more of this run."""
        key = run.key
        watched = self._watched.get(key)
        if watched is None or listener not in watched.listeners:
            return
        watched.listeners.remove(listener)
        if not watched.listeners:
            del self._watched[key]
            if watched.task is not None:
                watched.task.cancel()

    async def close(self) -> None:
        """Stop watching; nobody is told anything more."""
        tasks = [watched.task for watched in self._watched.values() if watched.task is not None]
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _oversee(self, watched: _Watched, known_at: int) -> None:
        reason = ""
        await asyncio.sleep(LOOK_AFTER_S)
        while not reason:
            try:
                reason = await self._until_over(watched, known_at)
            except Compacted:
                log.info("oversight_compacted", extra={"operation": str(watched.run.keys.operation)})
            except DistopError as error:
                # settle() has waited long already; the run may be over or not, so go on asking.
                log.warning(
                    "oversight_failed",
                    extra={"operation": str(watched.run.keys.operation), "error": str(error)},
                )
            known_at = 0
        self._watched.pop(watched.run.key, None)
        if watched.claims is not None:
            watched.claims.claims_over(watched.run)
        for listener in watched.listeners:
            listener.run_over(watched.run, reason)

    async def _until_over(self, watched: _Watched, known_at: int) -> str:
        run, keys = watched.run, watched.run.keys
        revision = known_at
        if not revision:
            result = await settle(self._client, Txn(then=(Get(keys.state), Get(keys.runner))))
            if reason := run.why_over(result.one(0, keys.state), result.one(1, keys.runner)):
                return reason
            revision = result.revision
        # ".runner" sorts before ".state", so one range covers both; numbered partitions lie outside of it,
        # and whatever else lies inside is not looked at.
        start, end = keys.runner, keys.state + b"\0"
        if watched.claims is not None:
            # Claimed jobs are few and long. Their claims are read after the state and watched from before
            # it: a change in between is told twice, none is missed.
            standing = await self._client.scan(keys.prefix, keys_only=True)
            watched.claims.claims_listed(run, _claims(run, standing.kvs), standing.revision)
            start, end = keys.prefix, prefix_end(keys.prefix)
        changes = watch(self._client, start, end, from_revision=revision + 1)
        async with aclosing(changes):
            async for batch in changes:
                for event in batch.events:
                    if reason := _why_over(run, event):
                        return reason
                    found = keys.partition_of(event.kv.key) if watched.claims is not None else None
                    if watched.claims is not None and found is not None and found[1] == "claim":
                        watched.claims.claim_changed(run, found[0], event)
        return ""  # a watch ends only by raising


def _why_over(run: Run, event: Event) -> str:
    """What a change says about the run: why it is over, or nothing."""
    keys, deleted = run.keys, event.kind == "delete"
    if event.kv.key == keys.state and (deleted or event.kv.value != RUNNING):
        return "the operation is over" if deleted else f"the operation is {event.kv.value.decode()}"
    if event.kv.key == keys.runner and (deleted or event.kv.create_revision != run.token):
        return RUNNER_GONE
    return ""


def _claims(run: Run, kvs: list[KeyValue]) -> dict[str, KeyValue]:
    found = ((run.keys.partition_of(kv.key), kv) for kv in kvs)
    return {job[0]: kv for job, kv in found if job is not None and job[1] == "claim"}
