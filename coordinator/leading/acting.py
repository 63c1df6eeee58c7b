"""One action of a leader for an operation: performing it, interrupting it, and handling its failure."""

from __future__ import annotations

import logging
from collections.abc import Callable

from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading.slot import Slot
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.state.actions import Action, Collect, Finish, Resolve, Seal, Wait, decide
from distop.coordinator.state.timeline import sealed as sealed_event
from distop.coordinator.state.tracker import Tracked
from distop.errors import DistopError, LeadershipLost, LeaseLost, OperationPaused
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.members.election import Epoch
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.ending import seal
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import ErrorRecord

log = logging.getLogger(__name__)


class Acting:
    """The actions of one epoch of a table."""

    def __init__(
        self,
        client: EtcdClient,
        keys: TableKeys,
        epoch: Epoch,
        session: LeaseSession,
        completion: Completion,
        metrics: Metrics,
        wall: Callable[[], float],
    ) -> None:
        self._client, self._keys, self._epoch, self._session = client, keys, epoch, session
        self._completion, self._metrics, self._wall = completion, metrics, wall
        self._fields = {"table": keys.name, "epoch": epoch.revision}

    def interrupt(self, slot: Slot) -> None:
        """Interrupt the running call of an operation that is no longer to be published."""
        if isinstance(slot.action, Finish):
            now = decide(slot.tracked, deadline_passed=False)
            if not isinstance(now, Finish | Wait):
                self._completion.outside.interrupt(slot.tracked)

    def reap(self, slot: Slot, now: float) -> None:
        """Handle an action that has ended. Its effects are read from etcd, so only a failure matters here."""
        task, slot.task = slot.task, None
        error = None if task is None or task.cancelled() else task.exception()
        if error is None:
            slot.failures, slot.not_before = 0, 0.0
        elif isinstance(error, LeadershipLost | LeaseLost):
            raise error
        else:
            slot.failures += 1
            pause = self._completion.parking.retry(slot.tracked.arg).pause_s(slot.failures)
            slot.not_before = now + pause
            if isinstance(error, OperationPaused):
                # Nothing has failed: the index of what is paused will show it, unless its entry was removed.
                return
            self._metrics.action_failed(slot.tracked.arg.type, error)
            defect = None if isinstance(error, DistopError) else error
            fields = {"operation": str(slot.tracked.arg.id), "failures": slot.failures, "retry_in_s": pause}
            log.log(
                logging.WARNING if defect is None else logging.ERROR,
                "operation_action_failed",
                extra={**self._fields, **fields, "error": str(error)},
                exc_info=defect,
            )

    async def perform(self, tracked: Tracked, action: Action) -> None:
        """Perform one action. Its effect on ``tracked`` is applied at once, and again by the watch."""
        self._session.check()
        match action:
            case Seal():
                error = None
                if action.code:
                    error = ErrorRecord(code=action.code, message=action.message, at=self._wall())
                happened = sealed_event(self._wall(), action.after, error)
                sealed = await seal(
                    self._client,
                    tracked.keys,
                    self._epoch,
                    before=action.before,
                    after=action.after,
                    error=error,
                    events=tracked.events(happened),
                )
                if sealed.state == action.after:
                    tracked.timeline.add(happened)
                log.info(
                    "operation_sealed",
                    extra={**self._fields, "operation": str(tracked.arg.id), "state": sealed.state.decode()},
                )
                tracked.set_state(sealed.state, sealed.revision)
                tracked.error = error or tracked.error
            case Finish():
                await self._completion.finish(self._keys, tracked, self._epoch, check=self._session.check)
            case Resolve(decision):
                await self._completion.parking.resolve(tracked, self._epoch, decision)
            case Collect():
                await self._completion.collector.collect(self._keys, tracked, self._session.check)
            case Wait():
                return
