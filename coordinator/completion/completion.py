"""From "all jobs are done" to "published": the steps of an operation become one transaction.

Everything before the transaction may run again (a crash, a lost race) and is harmless: the user's hook gets a
token, and metadata files of a transaction that lost have no references and are removed. One transaction,
fenced by the epoch, makes the outcome true.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from distop.commit.contract import NOT_UNDONE
from distop.coordinator.completion.collector import Collector
from distop.coordinator.completion.external import ExternalSteps
from distop.coordinator.completion.finishing import Finishing
from distop.coordinator.completion.follow_up import FollowUps
from distop.coordinator.completion.outside import Interrupted, Outside, hook
from distop.coordinator.completion.parking import MAX_ERROR_LENGTH, Parking, text_of
from distop.coordinator.completion.publication import (
    Base,
    context_of,
    is_external,
    joined,
    prepare,
    read_base,
    read_view,
)
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.planner import Planner
from distop.coordinator.state.memory import Memory
from distop.coordinator.state.timeline import sealed as sealed_event
from distop.coordinator.state.tracker import Tracked
from distop.coordinator.work.call import Surroundings
from distop.coordinator.work.work import Work
from distop.errors import (
    OF_THE_WORLD,
    Busy,
    Conflict,
    InvalidArgument,
    PreconditionFailed,
    UnknownOperationType,
    ValidationFailed,
    as_distop,
    shortened,
)
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.members.election import Epoch
from distop.metastore.operations.ending import seal
from distop.metastore.operations.starting import FollowUpStart
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    ErrorRecord,
    OperationArg,
    StepRecord,
)
from distop.metastore.records.record import encode_plain
from distop.metastore.records.watermarks import FOLD_BYTES
from distop.metastore.tables.watermarks import make_room
from distop.operations.api import DistributedOperation, OperationView, overrides

if TYPE_CHECKING:
    from distop.commit.contract import Contribution

log = logging.getLogger(__name__)

MAX_NAMED_ERROR = 120
"""Characters of the error of each failed job that a history record names."""

REFUSALS = Conflict, InvalidArgument, PreconditionFailed
"""Errors after which another attempt would fail the same way."""

MAX_REBASES = 100
"""How often a commit that loses to other writers is rebased before it backs off."""


def _is_hooked(kind: DistributedOperation) -> bool:
    return overrides(kind, "complete_operation")


class Completion:
    """Ends operations for the drivers of one coordinator.

    Parameters
    ----------
    work:
        Where code that may hang runs: table metadata, sweeping files, commit steps, and hooks of users.
    """

    def __init__(
        self,
        client: EtcdClient,
        work: Work,
        *,
        metrics: Metrics | None = None,
        memory: Memory | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.parking = Parking(client, work, wall)
        self._client = client
        self._registry = work.registry
        self.outside = Outside(work, self.parking)
        self._wall = wall
        self._follow_ups = FollowUps(client, Planner(work), wall)
        self._external = ExternalSteps(client, self.outside)
        self.collector = Collector(client, work, self.parking, wall)
        self.memory = memory or Memory()
        self._finishing = Finishing(client, work, metrics or Metrics(), self.memory, wall)

    async def finish(
        self,
        keys: TableKeys,
        tracked: Tracked,
        epoch: Epoch,
        *,
        check: Callable[[], None],
    ) -> None:
        """Bring an operation whose outcome is fixed to its end.

        Returns when it has one, is parked, or must be examined again; raises transient errors.

        Parameters
        ----------
        check:
            Raises when this process may no longer act as the leader; also called from other threads.
        """
        ends = self._bury if tracked.state == ABORTING else self._publish
        try:
            await ends(keys, tracked, epoch, check)
        except Interrupted:
            return  # the decision, or the end, is in etcd
        except OF_THE_WORLD:
            raise
        except Exception as error:
            refused = isinstance(error, REFUSALS) and not isinstance(error, UnknownOperationType)
            if refused and tracked.state == COMMITTING:
                await self._refused(tracked, epoch, error)
            else:
                await self.parking.failed(tracked, epoch, error)

    async def _refused(self, tracked: Tracked, epoch: Epoch, error: Exception) -> None:
        """Abort an operation that can never be published, with the reason."""
        message = shortened(str(error), MAX_ERROR_LENGTH)
        facts = error.facts if isinstance(error, ValidationFailed) else {}
        record = ErrorRecord(code=as_distop(error).code, message=message, at=self._wall(), facts=facts)
        happened = sealed_event(record.at, ABORTING, record)
        sealed = await seal(
            self._client,
            tracked.keys,
            epoch,
            before=COMMITTING,
            after=ABORTING,
            error=record,
            events=tracked.events(happened),
        )
        if sealed.state == ABORTING:
            tracked.timeline.add(happened)
        tracked.error = record
        tracked.set_state(sealed.state, sealed.revision)

    async def _bury(self, keys: TableKeys, tracked: Tracked, epoch: Epoch, check: Callable[[], None]) -> None:
        error = tracked.error or ErrorRecord(code="ABORTED", message="aborted")
        outcome = "cancelled" if error.code == "CANCELLED" else "failed"
        undone = self._external.undo(keys, tracked, epoch, check)
        facts = error.facts | await self._tried(tracked, "undoError", undone)
        if "undoError" in facts:
            facts[NOT_UNDONE] = 1  # what its steps have made may be in use: nothing of it is swept
        facts |= await self._tried(tracked, "abortError", self._abort(tracked, epoch, error, check))
        history = self._finishing.history(tracked, outcome, error=error, facts=facts)
        await self._rebased(
            keys, tracked, lambda: self._finishing.send(keys, tracked, epoch, None, history, ())
        )

    async def _rebased(self, keys: TableKeys, tracked: Tracked, send: Callable[[], Awaitable[bool]]) -> None:
        """Send a finish, again while it loses races for the table and nothing about the operation changes."""
        sealed = tracked.state
        for _ in range(MAX_REBASES):
            async with self.memory.table(keys).finish_lock:
                if await send():
                    return
            decided = tracked.cancel_requested or tracked.decision is not None
            if tracked.state != sealed or (sealed == COMMITTING and decided):
                return
        raise Busy(f"{tracked.arg.id} lost {MAX_REBASES} races in a row for table {keys.name!r}")

    async def _tried(
        self, tracked: Tracked, fact: str, attempt: Coroutine[Any, Any, dict[str, Any]]
    ) -> dict[str, Any]:
        """The facts of a part of an abort. One that fails too long, or for good, is left out, and they say
        so: the table must not wait for it for ever."""
        try:
            return await attempt
        except OF_THE_WORLD:
            raise
        except Exception as raised:
            if not (isinstance(raised, REFUSALS) or self.parking.gives_up(tracked)):
                raise
            await self.parking.keep_trace(tracked, raised)
            fields = {"operation": str(tracked.arg.id), "fact": fact, "error": str(raised)}
            log.error("abort_incomplete", extra=fields)
            return {fact: text_of(raised)}

    async def _abort(
        self, tracked: Tracked, epoch: Epoch, error: ErrorRecord, check: Callable[[], None]
    ) -> dict[str, Any]:
        """Notify the type that its operation has failed."""
        kind = self._registry.get(tracked.arg.type)
        if overrides(kind, "abort_operation"):
            view = replace(await read_view(self._client, tracked), error=error)
            reached("abort.before")
            call = partial(hook, "abort_operation", view)
            await self.outside.run(tracked, epoch, "abort_operation", call, check, kind)
            reached("abort.after")
        return {}

    async def _publish(
        self, keys: TableKeys, tracked: Tracked, epoch: Epoch, check: Callable[[], None]
    ) -> None:
        kind = self._registry.get(tracked.arg.type)
        asked = partial(_steps, tracked.arg)
        steps, external = await self.outside.asked(tracked, epoch, "commit_steps", asked, kind)
        # Operations that publish nothing need not read the results of their jobs.
        view = OperationView(arg=tracked.arg, jobs={}, token=str(tracked.arg.id))
        if steps or _is_hooked(kind) or tracked.jobs.failed or tracked.arg.dynamic:
            view = await read_view(self._client, tracked)
        if _is_hooked(kind):
            reached("hook.before")
            call = partial(hook, "complete_operation", view)
            await self.outside.run(tracked, epoch, "complete_operation", call, check, kind)
            reached("hook.after")
        failed: dict[str, Any] = {}
        if tracked.jobs.failed:
            described = partial(_described, tracked.arg, dict(tracked.jobs.failures))
            called = self.outside.run(tracked, epoch, "describing its failed jobs", described, check, kind)
            failed = {"failedPartitions": await called}
        skipped: list[str] = []
        if external:
            done = await self._external.run(keys, tracked, epoch, view, steps, check)
            if done is None:
                await self._finishing.look_again(tracked, tracked.state_revision)
                return
            skipped = done
        facts = failed | ({"skippedSteps": skipped} if skipped else {})
        await self._rebased(keys, tracked, lambda: self._send(keys, tracked, epoch, view, steps, facts))

    async def _send(
        self,
        keys: TableKeys,
        tracked: Tracked,
        epoch: Epoch,
        view: OperationView,
        steps: list[StepRecord],
        facts: dict[str, Any],
    ) -> bool:
        """Prepare the steps on the present base and send the finish; ``False`` if the base has moved."""
        arg = tracked.arg
        contributions: list[Contribution] = []
        run_ops: KeyValue | None = None
        follow_up: FollowUpStart | None = None
        if steps or arg.watermarks or arg.then is not None:
            base = await self._base(keys, arg)
            run_ops = base.run_ops
            if steps or arg.watermarks:
                context, what = context_of(keys, base, view), "preparing the commit"
                contributions = await self.outside.blocking(tracked, epoch, what, prepare, context, steps)
            try:
                prepared = self._follow_ups.prepare(keys, arg, base, joined(contributions))
                if arg.then is not None:
                    prepared = self.outside.followed(tracked, epoch, "planning its follow-up", prepared)
                follow_up, said = await prepared
            except BaseException:
                await self._finishing.discard(keys, contributions)
                raise
            facts = facts | {name: fact for one in contributions for name, fact in one.facts.items()} | said
        history = self._finishing.history(tracked, "success", facts=facts)
        return await self._finishing.send(keys, tracked, epoch, run_ops, history, contributions, follow_up)

    async def _base(self, keys: TableKeys, arg: OperationArg) -> Base:
        """The base of a finish; first makes the room that its watermarks need."""
        base = await read_base(self._client, keys, arg)
        if len(base.watermarks.value) <= FOLD_BYTES:
            return base
        await make_room(self._client, keys, len(encode_plain(arg.watermarks)))
        return await read_base(self._client, keys, arg)


def _steps(arg: OperationArg, surroundings: Surroundings) -> tuple[list[StepRecord], bool]:
    """The commit steps of an operation, and whether any of them is external."""
    steps = list(surroundings.registry.get(arg.type).commit_steps(arg))
    return steps, bool(steps) and is_external(steps)


def _described(arg: OperationArg, failures: dict[str, str], surroundings: Surroundings) -> dict[str, str]:
    """The part of a success about failed jobs within the allowed number; as much as fits the record."""
    kind = surroundings.registry.get(arg.type)
    return {kind.describe_job(arg, job): shortened(why, MAX_NAMED_ERROR) for job, why in failures.items()}
