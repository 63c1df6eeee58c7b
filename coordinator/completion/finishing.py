"""The finishing transaction of an operation, and what to do if it is refused."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from distop.commit.contract import NOT_UNDONE
from distop.coordinator.backlog.applying import share_of
from distop.coordinator.backlog.policy import failure_of
from distop.coordinator.completion.publication import joined
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.state.memory import Memory
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.work import Work
from distop.errors import DistopError, OutcomeUnknown
from distop.metastore.backlog.undoing import undoing
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue
from distop.metastore.members.election import Epoch
from distop.metastore.operations.ending import MAX_KEYS_IN_FINISH, Finished, FinishParts, finish, finish_txn
from distop.metastore.operations.retention import continued, prune_after
from distop.metastore.operations.starting import FollowUpStart
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import ErrorRecord, HistoryRecord

if TYPE_CHECKING:
    from distop.commit.contract import Contribution

log = logging.getLogger(__name__)


class Finishing:
    """Sends the finishing transactions of one coordinator."""

    def __init__(
        self, client: EtcdClient, work: Work, metrics: Metrics, memory: Memory, wall: Callable[[], float]
    ) -> None:
        self._client, self._work, self._metrics = client, work, metrics
        self._memory, self._wall = memory, wall

    async def send(
        self,
        keys: TableKeys,
        tracked: Tracked,
        epoch: Epoch,
        run_ops: KeyValue | None,
        history: HistoryRecord,
        contributions: list[Contribution] | tuple[()],
        follow_up: FollowUpStart | None = None,
    ) -> bool:
        """Send the finishing transaction; ``False`` if something that it compares has changed.

        ``run_ops``: as read with what else the finish depends on; ``None``: nothing else was read.
        """
        cache = self._memory.table(keys)
        failure = None if history.outcome == "success" else failure_of(tracked.error, tracked.jobs.failures)
        if failure is not None and history.facts.get(NOT_UNDONE):
            left = "some commit steps remain in effect: skip its batches if their rows are in the table"
            message = f"{left}; {failure.message}"
            failure = replace(failure, message=message, passes=False, in_doubt=True)
        leave_keys = tracked.arg.stages_files or tracked.total > MAX_KEYS_IN_FINISH
        operation = tracked.keys.operation
        fields = {"table": keys.name, "operation": str(operation), "epoch": epoch.revision}
        try:
            share = await share_of(
                self._client, keys, tracked.arg, failure=failure, now=self._wall(), result=history
            )
            for undoes in (one.undoes for one in contributions if one.undoes is not None):
                share += await undoing(self._client, keys, undoes, by=str(operation), now=self._wall())
            if tracked.arg.series and failure is None:
                history, line = await continued(self._client, keys, tracked.arg, history)
                share += line
            plan = FinishParts(
                sealed=tracked.state,
                run_ops=run_ops or cache.get(keys.run_ops) or await self._client.get(keys.run_ops),
                history=history,
                arg=tracked.arg,
                publication=share + joined(contributions),
                follow_up=follow_up,
                leave_keys=leave_keys,
            )
            txn = finish_txn(keys, tracked.keys, epoch, plan)
            became, revision = await finish(self._client, keys, tracked.keys, epoch, txn)
        except OutcomeUnknown:
            # In doubt nothing is removed: a commit may have published the files.
            raise
        except DistopError:
            await self.discard(keys, contributions)
            raise
        if became is not Finished.MOVED:
            if became is Finished.DONE:
                cache.apply_ops(txn.then, revision)
            else:
                cache.clear()
            log.info("operation_finished", extra={**fields, "outcome": history.outcome})
            self._metrics.operation_finished(tracked, history)
            if follow_up is not None:
                self._metrics.operation_started(follow_up.arg.type)
                log.info("operation_started", extra={**fields, "operation": str(follow_up.arg.id)})
            tracked.set_state(b"", revision)
            tracked.gone = not leave_keys
            if not leave_keys:
                await prune_after(self._client, keys, operation, now=self._wall())
            return True
        cache.clear()
        self._metrics.finish_lost_race(tracked.arg.type)
        log.info("finish_lost_race", extra=fields)
        await self.discard(keys, contributions)
        await self.look_again(tracked, revision)
        return False

    async def discard(self, keys: TableKeys, contributions: list[Contribution] | tuple[()]) -> None:
        """Remove the files of a commit that certainly has not happened."""
        for contribution in contributions:
            await self._work.blocking(keys.name, "removing what a lost race has left", contribution.discard)

    async def look_again(self, tracked: Tracked, revision: int) -> None:
        """What a transaction about an operation was refused for, before the watch shows it."""
        wanted = (tracked.keys.cancel, tracked.keys.resolve, tracked.keys.state)
        read = await self._client.read_at_once([Get(key) for key in wanted])
        *requests, state = (read.one(index, key) for index, key in enumerate(wanted))
        for request in requests:
            if request.exists:
                tracked.apply_put(request)
        # Of a state that was removed by hand: it was missing when the transaction was refused.
        tracked.set_state(state.value, state.mod_revision or revision)

    def history(
        self,
        tracked: Tracked,
        outcome: str,
        *,
        facts: dict[str, Any] | None = None,
        error: ErrorRecord | None = None,
    ) -> HistoryRecord:
        """What is remembered of an operation that ends now."""
        arg, events = tracked.arg, tracked.all_events()
        return HistoryRecord(
            outcome=outcome,
            uuid=arg.uuid,
            request_id=arg.request_id,
            started_at=arg.started_at,
            started_by=arg.started_by,
            finished_at=self._wall(),
            partition_count=tracked.total,
            succeeded=tracked.jobs.succeeded,
            failed=tracked.jobs.failed,
            error_code=error.code if error else "",
            error=error.message if error else "",
            retry_of=arg.retry_of,
            follows=arg.follows,
            argument=arg.asked,
            facts=facts or {},
            events=events.events,
            events_left_out=events.left_out,
        )
