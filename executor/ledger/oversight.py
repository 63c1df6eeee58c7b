"""Watches runs: code that works for a run is notified at once when it is no longer held.

Level-triggered: the present state is read first, and again whenever history was lost, so no lost event can
leave a task working in vain. One watch per run, for any number of tasks here.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Protocol

from distop.errors import Compacted
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, Txn
from distop.metastore.etcd.update import PATIENCE_S, settle
from distop.metastore.etcd.watch import KeyEvent, follow, watch
from distop.metastore.operations.pausing import PauseIndex
from distop.metastore.operations.runs import PAUSED, RUNNER_GONE, Run, why_over
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import RUNNING
from distop.process.loop import cancel_all, kept_running, log_failure

log = logging.getLogger(__name__)

LOOK_AFTER_S = 0.25
"""Delay before a run is watched: many operations are over by then and cost no watch at all."""

_RETRY_S = 0.5


class RunListener(Protocol):
    """A worker for a run. Called on the event loop; must not block."""

    def run_over(self, run: Run, reason: str) -> None:
        """The run is no longer held. Called once; the listener is then removed."""


class ClaimListener(Protocol):
    """A holder of claims. Called on the event loop; must not block."""

    def claims_listed(self, run: Run, claims: dict[str, KeyValue], revision: int) -> None:
        """All claims of the run at ``revision``: partition to key (without its value)."""

    def claim_changed(self, run: Run, partition: str, event: KeyEvent) -> None:
        """A claim was made, moved to another lease, or deleted."""

    def claims_over(self, run: Run) -> None:
        """The run is no longer held, and none of its claims counts."""


@dataclass
class _Watched:
    run: Run
    claims: ClaimListener | None
    listeners: list[RunListener] = field(default_factory=list)
    begins: asyncio.TimerHandle | None = None
    """When it is to be looked at."""
    task: asyncio.Task[None] | None = None
    held_at: int = 0
    """A revision at which it was not paused; 0: unknown yet."""

    def stop(self) -> None:
        """Look at it no more."""
        if self.begins is not None:
            self.begins.cancel()
        if self.task is not None:
            self.task.cancel()


class Oversight:
    """The runs with work on this host; belongs to one event loop."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._watched: dict[tuple[bytes, int], _Watched] = {}
        self._pauses = PauseIndex(client.keyspace)
        self._following: asyncio.Task[None] | None = None

    def attach(
        self, run: Run, listener: RunListener, *, claims: ClaimListener | None = None, known_at: int = 0
    ) -> None:
        """Notify ``listener`` when the run is over; at once if it already is.

        Parameters
        ----------
        claims:
            Receives events of the run's claims; for operations whose jobs are claimed.
        known_at:
            A revision at which the run was held, if one is known: spares reading it again.
        """
        key = run.key
        watched = self._watched.get(key)
        if watched is None:
            watched = self._watched[key] = _Watched(run, claims, held_at=known_at)
            watched.begins = asyncio.get_running_loop().call_later(
                LOOK_AFTER_S, self._begin, watched, known_at
            )
            if self._following is None:
                # One watch for all runs, since one pause may hold very many.
                self._following = asyncio.create_task(
                    kept_running("pauses", self._follow_pauses), name="oversee-pauses"
                )
        watched.listeners.append(listener)

    def detach(self, run: Run, listener: RunListener) -> None:
        """Send ``listener`` no more events of this run."""
        key = run.key
        watched = self._watched.get(key)
        if watched is None or listener not in watched.listeners:
            return
        watched.listeners.remove(listener)
        if not watched.listeners:
            del self._watched[key]
            watched.stop()

    async def close(self) -> None:
        """Stop watching; listeners get no more events."""
        tasks = [watched.task for watched in self._watched.values()]
        for watched in self._watched.values():
            watched.stop()
        self._watched.clear()
        await cancel_all(self._following, *tasks)

    def _begin(self, watched: _Watched, known_at: int) -> None:
        watched.task = asyncio.create_task(
            self._oversee(watched, known_at), name=f"oversee-{watched.run.keys.operation}"
        )

    async def _oversee(self, watched: _Watched, known_at: int) -> None:
        reason = ""
        while not reason:
            try:
                reason = await self._until_over(watched, known_at)
            except Compacted:
                log.info("oversight_compacted", extra={"operation": str(watched.run.keys.operation)})
            except Exception as error:
                # The run may be over or not, so keep asking.
                log_failure(log, "oversight_failed", error, operation=str(watched.run.keys.operation))
                await asyncio.sleep(_RETRY_S)
            known_at = 0
        self._notify(watched, reason)

    def _notify(self, watched: _Watched, reason: str) -> None:
        if self._watched.pop(watched.run.key, None) is not watched:
            return
        # A paused run is still held: what its attempts have done by their end counts, if their claims stand.
        if watched.claims is not None and reason != PAUSED:
            watched.claims.claims_over(watched.run)
        for listener in watched.listeners:
            listener.run_over(watched.run, reason)

    async def _follow_pauses(self) -> None:
        async with aclosing(follow(self._client, self._client.keyspace.paused)) as changes:
            async for change in changes:
                self._pauses.apply(change)
                for watched in [w for w in self._watched.values() if self._is_paused(w)]:
                    watched.stop()
                    self._notify(watched, PAUSED)

    def _is_paused(self, watched: _Watched) -> bool:
        """Whether it was paused since it was known not to be: the index may lag behind what was read."""
        return 0 < watched.held_at < self._pauses.since(watched.run.keys.operation)

    async def _until_over(self, watched: _Watched, known_at: int) -> str:
        run, keys = watched.run, watched.run.keys
        revision = known_at
        if not revision:
            # Most runs that are examined at all are over by now: one read shows it.
            state = (await settle(self._client, Txn(then=(Get(keys.state),)), patience_s=PATIENCE_S)).single(
                0, keys.state
            )
            if state.value != RUNNING:
                return run.why_over(state, state)
            reason, revision = await why_over(self._client, run)
            if reason:
                return reason
        watched.held_at = revision
        if self._is_paused(watched):
            return PAUSED
        # ".runner" sorts before ".state", so one range covers both; numbered partitions lie outside of it,
        # and other keys inside are ignored.
        start, end = keys.runner, keys.state + b"\0"
        if watched.claims is not None:
            # Claimed jobs are few and long. Their claims are read after the state and watched from before
            # it: a change in between is reported twice, none is missed.
            existing = await self._client.scan(keys.prefix, keys_only=True)
            watched.claims.claims_listed(run, _claims(run, existing.kvs), existing.revision)
            start, end = keys.prefix, prefix_end(keys.prefix)
        changes = watch(self._client, start, end, from_revision=revision + 1)
        async with aclosing(changes):
            async for batch in changes:
                for event in batch.events:
                    if reason := _over_by(run, event):
                        return reason
                    job = keys.partition_of(event.kv.key) if watched.claims is not None else None
                    if watched.claims is not None and job is not None and job[1] == "claim":
                        watched.claims.claim_changed(run, job[0], event)
        return ""  # a watch ends only by raising


def _over_by(run: Run, event: KeyEvent) -> str:
    """What a change says about the run: why it is over, or nothing."""
    keys, deleted = run.keys, event.is_delete
    if event.kv.key == keys.state and (deleted or event.kv.value != RUNNING):
        return (
            "the operation is over"
            if deleted
            else f"the operation is {event.kv.value.decode(errors='backslashreplace')}"
        )
    if event.kv.key == keys.runner and (deleted or event.kv.create_revision != run.token):
        return RUNNER_GONE
    return ""


def _claims(run: Run, kvs: list[KeyValue]) -> dict[str, KeyValue]:
    jobs = ((run.keys.partition_of(kv.key), kv) for kv in kvs)
    return {job[0]: kv for job, kv in jobs if job is not None and job[1] == "claim"}
