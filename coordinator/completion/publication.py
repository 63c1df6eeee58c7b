"""What an operation publishes: its part of the finishing transaction, and the steps outside of it.

There are two kinds of commit step. *Transactional* ones are prepared on a base and become part of the
finishing transaction. *External* ones are computed once, logged as a whole, and then executed; an abort
undoes them. The next leader of the table finds the log and continues, verifying each step before it executes
the step again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from typing import Any

import msgspec

from distop.commit import contract
from distop.commit.execution import StepFailed, Undone, describe, execute, undo
from distop.coordinator.completion.attempts import Interrupted, Outside
from distop.coordinator.starting.services import Term
from distop.coordinator.state.tracker import Tracked, event
from distop.coordinator.work.processes import Surroundings
from distop.errors import CallTimeout, CorruptRecord, Crashed, InvalidArgument, PreconditionFailed
from distop.lake.iceberg.watermarks import WatermarkStep
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, KeyValue, Txn
from distop.metastore.operations.steplog import CommitStepStore
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.operation import (
    COMMITTING,
    CommitSequence,
    JobRecord,
    OperationArg,
    OperationEvent,
    RunRecord,
    StepRecord,
)
from distop.metastore.records.record import decode
from distop.metastore.records.table import TableRecord
from distop.metastore.records.watermarks import Fetch
from distop.metastore.tables.watermarks import ChunkReader
from distop.operations.api import OperationView


@dataclass(frozen=True, slots=True)
class Base:
    """The base of a finish, read at one revision."""

    table: KeyValue
    head: KeyValue
    watermarks: KeyValue
    run_ops: KeyValue
    index: KeyValue
    """The published pointer of the operation's object; missing for operations without one."""
    record: TableRecord | None
    """What ``table`` says; ``None`` if it is gone."""
    chunks: Fetch | None
    """Reads the watermarks that are not in ``watermarks``; ``None`` if the table is gone."""


async def read_base(client: EtcdClient, keys: TableKeys, arg: OperationArg) -> Base:
    """Read the base of a finish, at one revision."""
    wanted = [keys.table, keys.head, keys.watermarks, keys.run_ops]
    if arg.object:
        wanted.append(keys.index(arg.object))
    result = await client.read_at_once([Get(key) for key in wanted])
    table, head, watermarks, run_ops, *rest = result.each(wanted)
    record = decode(table.value, TableRecord, table.key) if table.exists else None
    chunks = ChunkReader(client, record, result.revision) if record is not None else None
    index = rest[0] if rest else KeyValue.missing(b"")
    return Base(table, head, watermarks, run_ops, index, record, chunks)


async def read_jobs(client: EtcdClient, keys: OperationKeys) -> Mapping[str, JobRecord]:
    """Partition -> the result of its job."""
    return _jobs_among((await client.scan(keys.prefix)).kvs, keys)


def _jobs_among(kvs: Iterable[KeyValue], keys: OperationKeys) -> Mapping[str, JobRecord]:
    jobs = {}
    for kv in kvs:
        named = keys.partition_of(kv.key)
        if named is not None and named[1] == "state":
            jobs[named[0]] = decode(kv.value, JobRecord, kv.key)
    return jobs


def check_run(arg: OperationArg, jobs: Mapping[str, JobRecord], run: RunRecord) -> None:
    """Raise :class:`~distop.errors.CorruptRecord` unless these are the results of the sealed run.

    The seal guarantees it; nothing else would detect a violation.
    """
    others = sum(job.run != run.token for job in jobs.values())
    if run.count != len(jobs) or others:
        raise CorruptRecord(
            f"{arg.id} has {len(jobs)} results, {others} of other runs; run {run.token} has {run.count}",
            hint="nothing was published: distop cluster doctor, and then distop operation resolve",
        )


async def read_view(client: EtcdClient, tracked: Tracked) -> OperationView:
    """A sealed operation with the results of its jobs, for its type and its commit steps.

    Raises :class:`Interrupted` if its state is another one now: after a finish whose replies were all lost
    there are no results any more.
    """
    keys = await client.scan(tracked.keys.prefix)
    state = next((kv.value for kv in keys.kvs if kv.key == tracked.keys.state), b"")
    if state != tracked.state:
        tracked.set_state(state, keys.revision)
        raise Interrupted
    jobs = _jobs_among(keys.kvs, tracked.keys)
    if tracked.arg.dynamic and tracked.state == COMMITTING:
        check_run(tracked.arg, jobs, tracked.run)
    return OperationView(arg=tracked.arg, jobs=jobs, token=token_of(tracked.arg))


def token_of(arg: OperationArg) -> str:
    """The token that hooks and steps of an operation get."""
    return f"{arg.id}/{arg.uuid}"


def context_of(keys: TableKeys, base: Base, view: OperationView) -> contract.FinishContext:
    """The context of transactional steps."""
    record = base.record
    if record is None:
        raise PreconditionFailed(f"table {keys.name!r} was dropped while {view.arg.id} was running")
    return contract.FinishContext(
        table=record,
        keys=keys,
        head=base.head,
        watermarks=base.watermarks,
        view=view,
        index=base.index,
        chunks=base.chunks,
    )


def step_context(keys: TableKeys, base: Base, view: OperationView) -> contract.StepContext:
    """The context of external steps."""
    return contract.StepContext(table=context_of(keys, base, view).table, arg=view.arg, token=view.token)


def joined(contributions: Iterable[contract.Contribution]) -> Txn:
    """All contributions merged into one."""
    together = Txn()
    for contribution in contributions:
        together += contribution.txn
    return together


def prepare(
    context: contract.FinishContext, steps: list[StepRecord], took: list[contract.StepTime] | None = None
) -> list[contract.Contribution]:
    """Every transactional step's contribution, on the given base; ``took`` gets their times. Blocking; does
    not access etcd."""
    # The watermark step comes first: if it refuses, no metadata has been written in vain.
    prepared: list[contract.Contribution] = []
    try:
        prepared.append(WatermarkStep().prepare(context))
        for record in steps:
            step = contract.default_registry().kind(record.step)(record.argument)
            if isinstance(step, contract.TransactionalStep):
                began = time.time()
                prepared.append(step.prepare(context))
                if took is not None:
                    took.append(contract.StepTime(record.step, began, time.time()))
            elif isinstance(step, contract.StepPlan):
                prepared.append(contract.Contribution(facts=step.facts(context)))
    except BaseException:
        for contribution in prepared:
            contribution.discard()
        raise
    return prepared


def is_external(steps: list[StepRecord]) -> bool:
    """Whether any of these steps acts outside of the finishing transaction."""
    return any(
        not issubclass(contract.default_registry().kind(record.step), contract.TransactionalStep)
        for record in steps
    )


def work_out(context: contract.FinishContext, steps: list[StepRecord]) -> CommitSequence:
    """The external steps of an operation, for the log. Blocking.

    The transactional ones are prepared as a check: what they refuse for good must be refused before anything
    is executed.
    """
    for contribution in prepare(context, steps):
        contribution.discard()
    records: list[StepRecord] = []
    for record in steps:
        kind = contract.default_registry().kind(record.step)
        if issubclass(kind, contract.StepPlan):
            expanded = kind(record.argument).expand(context)
            for step in expanded:
                if not issubclass(contract.default_registry().kind(step.step), contract.ExternalStep):
                    raise InvalidArgument(f"{record.step!r} expands to {step.step!r}, which is not external")
                # A plan's own stages begin at the stage of the plan.
                records.append(msgspec.structs.replace(step, stage=record.stage + step.stage))
        elif issubclass(kind, contract.ExternalStep):
            records.append(record)
    arg = context.view.arg
    return CommitSequence.of(str(arg.id), arg.uuid, records)


PARTS = 16
"""Into how many parts a sequence is divided to find the step that its process dies of."""


MAX_TIMES = 100
"""External steps, the slowest, that each have a span in the trace of their operation."""

LISTED_STEPS = 10
"""External steps that each have an event when they are done; of more there is one for each kind."""


class ExternalSteps:
    """Runs them for the drivers of one coordinator."""

    def __init__(self, client: EtcdClient, outside: Outside) -> None:
        self._client, self._outside, self._store = client, outside, CommitStepStore()

    async def run(
        self,
        term: Term,
        tracked: Tracked,
        view: OperationView,
        steps: list[StepRecord],
    ) -> list[str] | None:
        """Execute them; return the names of those that an operator decided to skip.

        ``None`` if a cancellation came before their log was durable: nothing was executed then.
        """
        keys, sequence = term.keys, await self._store.load(self._client, tracked.keys)
        if sequence is None:
            context = context_of(keys, await read_base(self._client, keys, tracked.arg), view)
            label = "working out the commit steps"
            planned = await self._outside.blocking(term, tracked, label, work_out, context, steps)
            sequence = await self._store.write(self._client, tracked.keys, term.epoch, planned)
        if sequence is None:
            return None
        present = step_context(keys, await read_base(self._client, keys, tracked.arg), view)
        skipped = tracked.completion.skipped

        async def execute_some(indexes: Sequence[int]) -> None:
            """A process that dies or hangs cannot say of which step: they are executed again in parts, until
            one is left. What is done is found done."""
            label = "executing the commit steps"
            if len(indexes) == 1:
                label = f"executing commit step {indexes[0]} ({sequence.steps[indexes[0]].step})"
            call = partial(_execute, sequence, present, frozenset(skipped), indexes)
            try:
                done, took = await self._outside.run(term, tracked, label, call)
                self._outside.send_steps(term, tracked, took)
            except (Crashed, CallTimeout) as error:
                if len(indexes) == 1:
                    raise StepFailed.of(indexes[0], sequence.steps[indexes[0]], error) from error
                size = max(1, len(indexes) // PARTS)
                for start in range(0, len(indexes), size):
                    await execute_some(indexes[start : start + size])
            else:
                for happened in done:
                    tracked.timeline.add(happened)

        await execute_some(range(len(sequence)))
        return [sequence.steps[index].step for index in skipped]

    async def undo(self, term: Term, tracked: Tracked) -> dict[str, Any]:
        """Undo logged steps where possible; return facts about those that could not be undone."""
        sequence = await self._store.load(self._client, tracked.keys)
        if sequence is None:
            return {}
        view = await read_view(self._client, tracked)
        context = step_context(term.keys, await read_base(self._client, term.keys, tracked.arg), view)
        call = partial(_undo, sequence, context)
        came = await self._outside.run(term, tracked, "taking the commit steps back", call)
        return {"stepsUndone": came.undone, contract.NOT_UNDONE: len(came.left)}


# -- where steps run ---------------------------------------------------------------------------------


def _execute(
    sequence: CommitSequence,
    context: contract.StepContext,
    skip: frozenset[int],
    only: Sequence[int],
    surroundings: Surroundings,
) -> tuple[list[OperationEvent], list[contract.StepTime]]:
    took: list[contract.StepTime] = []
    done = execute(sequence, context, check=surroundings.check, skip=skip, only=only, took=took)
    slowest = nlargest(MAX_TIMES, took, key=lambda step: step.ended - step.began)
    if len(done) <= LISTED_STEPS:
        events = [event(at, "step done", about=describe(sequence.steps[index])) for index, at in done.items()]
        return events, slowest
    last, count = dict[str, float](), Counter[str]()
    for index, at in done.items():
        name = sequence.steps[index].step
        last[name], count[name] = max(at, last.get(name, at)), count[name] + 1
    return [event(at, "steps done", about=f"{count[name]:,} of {name}") for name, at in last.items()], slowest


def _undo(sequence: CommitSequence, context: contract.StepContext, surroundings: Surroundings) -> Undone:
    return undo(sequence, context, check=surroundings.check)
