"""From "all jobs are done" to "published": the steps of an operation become one transaction.

Everything before the transaction may run again (a crash, a lost race) and is harmless: the user's hook gets a
token, and metadata files of a transaction that lost have no references and are removed. One transaction,
fenced by the epoch, makes the outcome true. If it is refused, it is prepared again on what has changed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from distop import errors
from distop.commit.contract import NOT_UNDONE
from distop.coordinator.backlog.applying import share_of
from distop.coordinator.backlog.policy import failure_of
from distop.coordinator.completion import attempts, publication
from distop.coordinator.completion.follow_up import FollowUps
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.state.tracker import LED, TAKEN, WAITS_AGAIN, Tracked, event
from distop.coordinator.state.tracker import sealed as sealed_event
from distop.coordinator.work.processes import Surroundings
from distop.lake.layout.staging import ROWS
from distop.metastore.backlog.undoing import rollback_txn
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import Get, KeyValue
from distop.metastore.etcd.watch import until_absent
from distop.metastore.operations import ending
from distop.metastore.operations.retention import continued, prune_after
from distop.metastore.operations.starting import FollowUpStart
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    ErrorRecord,
    HistoryRecord,
    JobRecord,
    OperationArg,
    OperationEvent,
    StepRecord,
)
from distop.metastore.records.record import decode, encode_plain
from distop.metastore.records.watermarks import FOLD_BYTES
from distop.metastore.tables.watermarks import make_room
from distop.operations.api import DistributedOperation, OperationView, facts_of, overrides, reports_facts
from distop.process.tracing import Span

if TYPE_CHECKING:
    from distop.commit.contract import Contribution, StepTime


class Collector:
    """Collects for the drivers of one coordinator."""

    def __init__(self, services: Services, parking: attempts.Parking) -> None:
        self._client, self._work, self._wall = services.client, services.publishing, services.wall
        self._parking = parking

    async def collect(self, term: Term, tracked: Tracked) -> None:
        """Sweep the files and remove the keys of a finished operation."""
        if tracked.arg.stages_files:
            # While its runner's key exists attempts may still be writing; its owner or its lease removes it.
            await until_absent(self._client, tracked.keys.runner)
            await self._sweep(term, tracked)
        await ending.collect(self._client, term.keys, tracked.keys)
        tracked.gone = True
        await prune_after(self._client, term.keys, tracked.arg.id, now=self._wall())

    async def _sweep(self, term: Term, tracked: Tracked) -> None:
        """Remove staged files that were not published. Without a record of the outcome nothing is removed:
        nor with one of another operation of this name, whose table was made after this one's was gone."""
        from distop.lake.cleanup.staged import sweep

        keys = term.keys
        kv = await self._client.get(keys.history(tracked.arg.id))
        if not kv.exists:
            return
        history = decode(kv.value, HistoryRecord, kv.key)
        if history.uuid != tracked.arg.uuid:
            return
        jobs = await publication.read_jobs(self._client, tracked.keys) if history.outcome == "success" else {}
        label = f"sweeping the files of {tracked.arg.id}"
        removed = await self._work.blocking(keys.name, label, sweep, tracked.arg, history, jobs)
        if removed:
            fields = {"table": keys.name, "operation": str(tracked.arg.id), "files": removed}
            log.info("staged_files_swept", extra=fields)
        await self._sweep_elsewhere(term, tracked, history, jobs)

    async def _sweep_elsewhere(
        self, term: Term, tracked: Tracked, history: HistoryRecord, jobs: Mapping[str, JobRecord]
    ) -> None:
        """Have the type remove files of attempts that do not count from places of its own.

        Raises its error: it is called again, with the pauses of its type's retries and without an end, since
        without the keys of the operation nobody would know what to remove.
        """
        from distop.lake.cleanup.staged import all_known

        arg, error = tracked.arg, None
        if history.outcome != "success":
            error = ErrorRecord(code=history.error_code, message=history.error, at=history.finished_at)
        elif not all_known(arg, history, jobs):
            return  # a collector that swept everything is already removing the records
        try:
            kind = self._work.registry.get(arg.type)
            if not overrides(kind, "cleanup") or history.facts.get(NOT_UNDONE):
                return
            view = OperationView(arg=arg, jobs=jobs, token=publication.token_of(arg), error=error)
            label, call = f"cleanup of {arg.id}", partial(attempts.hook, "cleanup", view)
            await self._work.user(kind, arg.table, label, call, check=term.check)
        except errors.OF_THE_WORLD:
            raise
        except Exception as raised:
            await self._parking.keep_trace(tracked, raised)
            raise


log = logging.getLogger(__name__)


class Finishing:
    """Sends the finishing transactions of one coordinator."""

    def __init__(self, services: Services) -> None:
        self._client, self._work, self._wall = services.client, services.publishing, services.wall
        self._metrics, self._caches, self._tracer = services.metrics, services.caches, services.tracer

    async def send(
        self,
        term: Term,
        tracked: Tracked,
        run_ops: KeyValue | None,
        history: HistoryRecord,
        contributions: list[Contribution] | tuple[()],
        follow_up: FollowUpStart | None = None,
    ) -> bool:
        """Send the finishing transaction; ``False`` if something that it compares has changed.

        ``run_ops``: as read with what else the finish depends on; ``None``: nothing else was read.
        """
        keys, cache = term.keys, self._caches.table(term.keys)
        failure = None if history.outcome == "success" else failure_of(tracked.error, tracked.jobs.failures)
        if failure is not None and history.facts.get(NOT_UNDONE):
            left = "some commit steps remain in effect: skip its batches if their rows are in the table"
            message = f"{left}; {failure.message}"
            failure = replace(failure, message=message, passes=False, in_doubt=True)
        leave_keys = tracked.arg.stages_files or tracked.total > ending.MAX_KEYS_IN_FINISH
        operation, began = tracked.keys.operation, time.time()
        fields = {**term.fields, "operation": str(operation)}
        try:
            share = await share_of(
                self._client, keys, tracked.arg, failure=failure, now=self._wall(), result=history
            )
            for undoes in (
                contribution.undoes for contribution in contributions if contribution.undoes is not None
            ):
                share += await rollback_txn(self._client, keys, undoes, by=str(operation), now=self._wall())
            if tracked.arg.series and failure is None:
                history, line = await continued(self._client, keys, tracked.arg, history)
                share += line
            plan = ending.FinishParts(
                sealed=tracked.state,
                run_ops=run_ops or cache.get(keys.run_ops) or await self._client.get(keys.run_ops),
                history=history,
                arg=tracked.arg,
                publication=share + publication.joined(contributions),
                follow_up=follow_up,
                leave_keys=leave_keys,
            )
            txn = ending.finish_txn(keys, tracked.keys, term.epoch, plan)
            became, revision = await ending.finish(self._client, keys, tracked.keys, term.epoch, txn)
        except errors.OutcomeUnknown:
            # In doubt nothing is removed: a commit may have published the files.
            raise
        except errors.DistopError:
            await self.discard(keys, contributions)
            raise
        if became in (ending.Finished.DONE, ending.Finished.BEFORE):
            if became is ending.Finished.DONE:
                cache.apply_ops(txn.then, revision)
            else:
                cache.clear()
            log.info("operation_finished", extra={**fields, "outcome": history.outcome})
            self._metrics.operation_finished(tracked, history)
            if self._tracer.on and await self._is_own(keys, tracked, became):
                self._tracer.send(*last_spans(tracked, history, began, follow_up))
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
        if became is ending.Finished.MOVED:
            await self.discard(keys, contributions)
        await self.look_again(tracked, revision)
        return False

    async def _is_own(self, keys: TableKeys, tracked: Tracked, became: ending.Finished) -> bool:
        """Whether the finish was this leader's, perhaps by a transaction whose reply was lost: then the
        record has the beginning of this leadership, which no other leader knows."""
        if became is ending.Finished.DONE:
            return True
        try:
            kv = await self._client.get(keys.history(tracked.keys.operation))
            ended = decode(kv.value, HistoryRecord, kv.key).events if kv.exists else []
        except errors.DistopError:
            return (
                False  # the operation has ended: a trace without its root is no reason to do anything again
            )
        own, recorded = (
            [happened for happened in events if happened.what == LED]
            for events in (tracked.all_events().events, ended)
        )
        return bool(own) and own[-1:] == recorded[-1:]

    async def discard(self, keys: TableKeys, contributions: list[Contribution] | tuple[()]) -> None:
        """Remove the files of a commit that certainly has not happened."""
        for contribution in contributions:
            await self._work.blocking(keys.name, "removing what a lost race has left", contribution.discard)

    async def look_again(self, tracked: Tracked, revision: int) -> None:
        """What a transaction about an operation was refused for, before the watch shows it."""
        wanted = (tracked.keys.cancel, tracked.keys.resolve, tracked.keys.state)
        read = await self._client.read_at_once([Get(key) for key in wanted])
        *requests, state = read.each(wanted)
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
        happened: Sequence[OperationEvent] = (),
    ) -> HistoryRecord:
        """What is remembered of an operation that ends now. ``happened``: events of this attempt, which are
        true only if it succeeds."""
        arg, events = tracked.arg, tracked.all_events(*happened)
        return HistoryRecord(
            outcome=outcome,
            uuid=arg.uuid,
            run=arg.run,
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
            batches=arg.applies,
            facts=facts or {},
            events=events.events,
            events_left_out=events.left_out,
            job_outcomes=tracked.jobs.outcomes(),
        )


def last_spans(
    tracked: Tracked, history: HistoryRecord, began: float, follow_up: FollowUpStart | None
) -> list[Span]:
    """The spans that the leader sends whose transaction has finished an operation: of the finish, of runs
    whose executor was lost, of all of it, and of the start of what follows it."""
    trace, now = tracked.arg.trace, time.time()
    spans = [Span(trace, "finish", "finish", began, now)]
    taken: OperationEvent | None = None
    for happened in history.events:
        if happened.what == WAITS_AGAIN and happened.about == "lost" and taken is not None:
            part, lost = f"lost/{taken.by}/{taken.at}", {"executor": taken.by}
            error = "LEASE_LOST: the executor has ended without releasing the operation"
            spans.append(Span(trace, part, "run", taken.at, happened.at, attributes=lost, error=error))
        taken = happened if happened.what == TAKEN else taken
    attributes = {
        "operation": str(tracked.arg.id),
        "table": tracked.arg.table,
        "type": tracked.arg.type,
        "outcome": history.outcome,
        "started_by": history.started_by,
        "jobs": history.partition_count,
        "failed_jobs": history.failed,
        "rows": history.count("rows"),
        "follows": history.follows,
    }
    error = f"{history.error_code}: {history.error}" if history.error_code else ""
    events = [(each.at, each.what, {"by": each.by, "about": each.about}) for each in history.events]
    root = trace, "", tracked.arg.type, history.started_at, now
    spans.append(Span(*root, attributes=attributes, error=error, events=events))
    if follow_up is not None:
        arg = follow_up.arg
        spans.append(Span(arg.trace, "start", "start", arg.started_at, now))
    return spans


MAX_NAMED_ERROR = 120
"""Characters of the error of each failed job that a history record names."""

REFUSALS = errors.Conflict, errors.InvalidArgument, errors.PreconditionFailed
"""Errors after which another attempt would fail the same way."""

MAX_REBASES = 100
"""How often a commit that loses to other writers is rebased before it backs off."""


def _is_hooked(kind: DistributedOperation) -> bool:
    return overrides(kind, "before_publish")


class Completion:
    """Ends operations for the drivers of one coordinator."""

    def __init__(self, services: Services) -> None:
        self._client, self._registry, self._wall = services.client, services.registry, services.wall
        self._caches = services.caches
        self.parking = attempts.Parking(services)
        self.outside = attempts.Outside(services.publishing, self.parking, services.tracer)
        self.collector = Collector(services, self.parking)
        self._follow_ups = FollowUps(services)
        self._external = publication.ExternalSteps(services.client, self.outside)
        self._finishing = Finishing(services)

    async def finish(self, term: Term, tracked: Tracked) -> None:
        """Bring an operation whose outcome is fixed to its end.

        Returns when it has one, is parked, or must be examined again; raises transient errors.
        """
        ends = self._finish_aborted if tracked.state == ABORTING else self._publish
        try:
            await ends(term, tracked)
        except attempts.Interrupted:
            return  # the decision, or the end, is in etcd
        except errors.OF_THE_WORLD:
            raise
        except Exception as error:
            refused = isinstance(error, REFUSALS) and not isinstance(error, errors.UnknownOperationType)
            if refused and tracked.state == COMMITTING:
                await self._refused(term, tracked, error)
            else:
                await self.parking.failed(term, tracked, error)

    async def _refused(self, term: Term, tracked: Tracked, error: Exception) -> None:
        """Abort an operation that can never be published, with the reason."""
        message = errors.shortened(str(error), attempts.MAX_ERROR_LENGTH)
        facts = error.facts if isinstance(error, errors.ValidationFailed) else {}
        record = ErrorRecord(code=errors.as_distop(error).code, message=message, at=self._wall(), facts=facts)
        happened = sealed_event(record.at, ABORTING, record)
        sealed = await ending.seal(
            self._client,
            tracked.keys,
            term.epoch,
            before=COMMITTING,
            after=ABORTING,
            error=record,
            events=tracked.events(happened),
        )
        if sealed.state == ABORTING:
            tracked.timeline.add(happened)
        tracked.error = record
        tracked.set_state(sealed.state, sealed.revision)

    async def _finish_aborted(self, term: Term, tracked: Tracked) -> None:
        error = tracked.error or ErrorRecord(code="ABORTED", message="aborted")
        outcome = "cancelled" if error.code == "CANCELLED" else "failed"
        undone = self._external.undo(term, tracked)
        facts = error.facts | await self._tried(tracked, "undoError", undone)
        if "undoError" in facts:
            facts[NOT_UNDONE] = 1  # what its steps have made may be in use: nothing of it is swept
        facts = await self._tried(tracked, "abortError", self._abort(term, tracked, error)) | facts
        history = self._finishing.history(tracked, outcome, error=error, facts=facts)
        await self._rebase(term, tracked, lambda: self._finishing.send(term, tracked, None, history, ()))

    async def _rebase(self, term: Term, tracked: Tracked, send: Callable[[], Awaitable[bool]]) -> None:
        """Send a finish, again while it loses races for the table and nothing about the operation changes."""
        sealed = tracked.state
        for _ in range(MAX_REBASES):
            async with self._caches.table(term.keys).finish_lock:
                if await send():
                    return
            decided = tracked.cancel_requested or tracked.decision is not None
            if tracked.state != sealed or (sealed == COMMITTING and decided):
                return
        raise errors.Busy(f"{tracked.arg.id} lost {MAX_REBASES} races in a row for table {term.keys.name!r}")

    async def _tried(
        self, tracked: Tracked, fact: str, attempt: Coroutine[Any, Any, dict[str, Any]]
    ) -> dict[str, Any]:
        """The facts of a part of an abort. One that fails too long, or for good, is left out, and they say
        so: the table must not wait for it for ever."""
        try:
            return await attempt
        except errors.OF_THE_WORLD:
            raise
        except Exception as raised:
            if not (isinstance(raised, REFUSALS) or self.parking.gives_up(tracked)):
                raise
            await self.parking.keep_trace(tracked, raised)
            fields = {"operation": str(tracked.arg.id), "fact": fact, "error": str(raised)}
            log.error("abort_incomplete", extra=fields)
            return {fact: attempts.text_of(raised)}

    async def _abort(self, term: Term, tracked: Tracked, error: ErrorRecord) -> dict[str, Any]:
        """Notify the type that its operation has failed."""
        kind = self._registry.get(tracked.arg.type)
        if overrides(kind, "after_failure"):
            view = replace(await publication.read_view(self._client, tracked), error=error)
            reached("abort.before")
            call = partial(attempts.hook, "after_failure", view)
            await self.outside.run(term, tracked, "after_failure", call, kind)
            reached("abort.after")
        if not reports_facts(kind):
            return {}
        view = replace(await publication.read_view(self._client, tracked), error=error)
        return await self._reported(term, tracked, view, kind)

    async def _reported(
        self, term: Term, tracked: Tracked, view: OperationView, kind: DistributedOperation
    ) -> dict[str, Any]:
        """The facts of the type's own. An error leaves them out, and the facts say so: it is no reason to
        keep an operation from its end."""
        try:
            return await self.outside.run(term, tracked, "facts", partial(_facts, view), kind)
        except errors.OF_THE_WORLD:
            raise
        except Exception as error:
            await self.parking.keep_trace(tracked, error)
            return {"factsError": attempts.text_of(error)}

    async def _publish(self, term: Term, tracked: Tracked) -> None:
        kind = self._registry.get(tracked.arg.type)
        asked = partial(_steps, tracked.arg)
        steps, external = await self.outside.asked(term, tracked, "commit_steps", asked, kind)
        if tracked.arg.argument.get(ROWS):
            label = "naming the steps for its rows"
            of_rows = await self.outside.blocking(term, tracked, label, _steps_for_rows, tracked.arg)
            steps, external = [*steps, *of_rows[0]], external or of_rows[1]
        # Operations that publish nothing need not read the results of their jobs.
        view = OperationView(arg=tracked.arg, jobs={}, token=str(tracked.arg.id))
        reports = reports_facts(kind)
        if steps or _is_hooked(kind) or reports or tracked.jobs.failed or tracked.arg.dynamic:
            view = await publication.read_view(self._client, tracked)
        if _is_hooked(kind):
            reached("hook.before")
            call = partial(attempts.hook, "before_publish", view)
            await self.outside.run(term, tracked, "before_publish", call, kind)
            reached("hook.after")
        reported = await self._reported(term, tracked, view, kind) if reports else {}
        failed: dict[str, Any] = {}
        if tracked.jobs.failed:
            described = partial(_described, tracked.arg, dict(tracked.jobs.failures))
            called = self.outside.run(term, tracked, "describing its failed jobs", described, kind)
            failed = {"failedPartitions": await called}
        skipped: list[str] = []
        if external:
            done = await self._external.run(term, tracked, view, steps)
            if done is None:
                await self._finishing.look_again(tracked, tracked.state_revision)
                return
            skipped = done
        facts = reported | failed | ({"skippedSteps": skipped} if skipped else {})
        await self._rebase(term, tracked, lambda: self._send(term, tracked, view, steps, facts))

    async def _send(
        self,
        term: Term,
        tracked: Tracked,
        view: OperationView,
        steps: list[StepRecord],
        facts: dict[str, Any],
    ) -> bool:
        """Prepare the steps on the present base and send the finish; ``False`` if the base has moved."""
        keys, arg = term.keys, tracked.arg
        contributions: list[Contribution] = []
        run_ops: KeyValue | None = None
        follow_up: FollowUpStart | None = None
        happened: list[OperationEvent] = []
        if steps or arg.watermarks or arg.then is not None:
            base = await self._base(keys, arg)
            run_ops = base.run_ops
            if steps or arg.watermarks:
                context, label = publication.context_of(keys, base, view), "preparing the commit"
                took: list[StepTime] = []
                contributions = await self.outside.blocking(
                    term, tracked, label, publication.prepare, context, steps, took
                )
                self.outside.send_steps(term, tracked, took)
                names = ", ".join(dict.fromkeys(step.step for step in steps)) or "watermarks"
                happened.append(event(self._wall(), "commit prepared", about=names))
            try:
                prepared = self._follow_ups.prepare(keys, arg, base, publication.joined(contributions))
                if arg.then is not None:
                    prepared = self.outside.followed(term, tracked, "planning its follow-up", prepared)
                follow_up, launch_facts = await prepared
            except BaseException:
                await self._finishing.discard(keys, contributions)
                raise
            facts = (
                facts
                | {name: fact for contribution in contributions for name, fact in contribution.facts.items()}
                | launch_facts
            )
        history = self._finishing.history(tracked, "success", facts=facts, happened=happened)
        return await self._finishing.send(term, tracked, run_ops, history, contributions, follow_up)

    async def _base(self, keys: TableKeys, arg: OperationArg) -> publication.Base:
        """The base of a finish; first makes the room that its watermarks need."""
        base = await publication.read_base(self._client, keys, arg)
        if len(base.watermarks.value) <= FOLD_BYTES:
            return base
        await make_room(self._client, keys, len(encode_plain(arg.watermarks)))
        return await publication.read_base(self._client, keys, arg)


def _steps(arg: OperationArg, surroundings: Surroundings) -> tuple[list[StepRecord], bool]:
    """The commit steps of an operation, and whether any of them is external."""
    steps = list(surroundings.registry.get(arg.type).commit_steps(arg))
    return steps, bool(steps) and publication.is_external(steps)


def _facts(view: OperationView, surroundings: Surroundings) -> dict[str, Any]:
    kind = surroundings.registry.get(view.arg.type)
    return facts_of(kind, replace(view, argument_type=kind.argument_type))


def _steps_for_rows(arg: OperationArg) -> tuple[list[StepRecord], bool]:
    """The same for the rows of its jobs."""
    from distop.lake.rows import rows_steps

    steps = rows_steps(arg)
    return steps, publication.is_external(steps)


def _described(arg: OperationArg, failures: dict[str, str], surroundings: Surroundings) -> dict[str, str]:
    """The part of a success about failed jobs within the allowed number; as much as fits the record."""
    kind = surroundings.registry.get(arg.type)
    return {
        kind.describe_job(arg, job): errors.shortened(why, MAX_NAMED_ERROR) for job, why in failures.items()
    }
