"""From "all jobs are done" to "published": the steps of an operation become one transaction.

What runs before the transaction may run again (a crash, a lost race) and is harmless: the user's hook is
told a token, metadata files written for a transaction that lost are unreferenced and removed. What makes the
outcome true is one transaction, fenced by the epoch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

from distop.coordinator.metrics import Metrics
from distop.coordinator.tracker import Tracked
from distop.errors import (
    Conflict,
    DistopError,
    Exhausted,
    InvalidArgument,
    OutcomeUnknown,
    PreconditionFailed,
    UnknownOperationType,
)
from distop.metastore import retention
from distop.metastore.client import EtcdClient
from distop.metastore.crashpoints import reached
from distop.metastore.election import Epoch
from distop.metastore.ending import MAX_KEYS_IN_FINISH, Finish, Finished, collect, finish, seal
from distop.metastore.keyspace import OperationKeys, TableKeys
from distop.metastore.records import (
    ABORTING,
    COMMITTING,
    RUNNING,
    ErrorRecord,
    HistoryRecord,
    JobRecord,
    OperationArg,
    StepRecord,
    TableRecord,
    decode,
)
from distop.metastore.txn import Get, KeyValue, Txn
from distop.metastore.watch import until_absent
from distop.operations.api import DistributedOperation, OperationView
from distop.operations.registry import Registry

if TYPE_CHECKING:
    from distop.commit.step import Contribution, TransactionalStep

log = logging.getLogger(__name__)
T = TypeVar("T")

MAX_REBASES = 100
"""How often a commit that loses to other writers is put on their result, before it backs off."""

MAX_ERROR_LENGTH = 4000
"""Characters kept of an error's text: what a hook says must not make its operation too large to end."""


@dataclass(frozen=True, slots=True)
class _Base:
    """What a finish stands on, read at one revision."""

    table: TableRecord | None
    head: KeyValue
    watermarks: KeyValue
    run_ops: KeyValue


def _is_hooked(kind: DistributedOperation) -> bool:
    return type(kind).complete_operation is not DistributedOperation.complete_operation


class Completion:
    """Ends operations for the drivers of one coordinator.

    Parameters
    ----------
    threads:
        Where blocking work (table metadata, user hooks, sweeping files) runs.
    """

    def __init__(
        self,
        client: EtcdClient,
        registry: Registry,
        threads: Executor,
        *,
        metrics: Metrics | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._registry = registry
        self._threads = threads
        self._metrics = metrics or Metrics()
        self._wall = wall
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def _turn(self, keys: TableKeys) -> asyncio.Lock:
        """Finishes of one table all change ``runOps``: taking turns, they do not make each other lose."""
        return self._turns.setdefault(keys.name, asyncio.Lock())

    async def _blocking(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    # -- finish ----------------------------------------------------------------------------------------

    def publishes(self, arg: OperationArg) -> bool:
        """Whether more than a history entry comes of it: outputs, watermarks, or the effect of a hook."""
        try:
            kind = self._registry.get(arg.type)
        except UnknownOperationType:
            return True  # nobody here can say
        return bool(arg.watermarks) or _is_hooked(kind) or bool(kind.commit_steps(arg))

    async def finish(
        self, keys: TableKeys, tracked: Tracked, epoch: Epoch, *, run_ops: KeyValue | None = None
    ) -> None:
        """Bring an operation whose outcome is fixed to its end.

        Returns when it has one, or must be looked at again.

        Parameters
        ----------
        run_ops:
            The table's ``runOps`` if it is known, perhaps no longer as it is; spares a read.
        """
        if tracked.state == RUNNING and run_ops is not None:
            async with self._turn(keys):
                done = await self._send(keys, tracked, epoch, run_ops, self._history(tracked, "success"), ())
            if done or tracked.state != RUNNING or tracked.cancel_requested:
                return
        if tracked.state == ABORTING:
            await self._bury(keys, tracked, epoch)
        else:
            try:
                await self._publish(keys, tracked, epoch)
            except UnknownOperationType:
                raise  # another coordinator may know it; nothing is wrong with the operation
            except (Conflict, InvalidArgument, PreconditionFailed) as error:
                # Permanent: another attempt would meet the same. The operation is aborted and says why.
                message = str(error)[:MAX_ERROR_LENGTH]
                record = ErrorRecord(code=error.code, message=message, at=self._wall())
                state, revision = await seal(
                    self._client, tracked.keys, epoch, before=COMMITTING, after=ABORTING, error=record
                )
                tracked.error = record
                tracked.set_state(state, revision)

    async def _bury(self, keys: TableKeys, tracked: Tracked, epoch: Epoch) -> None:
        error = tracked.error or ErrorRecord(code="ABORTED", message="aborted")
        outcome = "cancelled" if error.code == "CANCELLED" else "failed"
        history = self._history(tracked, outcome, error=error)
        async with self._turn(keys):
            base = await self._read_base(keys)
            await self._send(keys, tracked, epoch, base.run_ops, history, ())

    async def _publish(self, keys: TableKeys, tracked: Tracked, epoch: Epoch) -> None:
        kind = self._registry.get(tracked.arg.type)
        steps = list(kind.commit_steps(tracked.arg))
        hooked = _is_hooked(kind)
        # Operations that publish nothing need not read what their jobs said.
        view: OperationView | None = None
        if steps or hooked:
            jobs = await self._jobs(tracked.keys)
            view = OperationView(arg=tracked.arg, jobs=jobs, token=f"{tracked.arg.id}/{tracked.arg.uuid}")
        if hooked and view is not None:
            reached("hook.before")
            await self._blocking(kind.complete_operation, view)
            reached("hook.after")
        for _ in range(MAX_REBASES):
            async with self._turn(keys):
                base = await self._read_base(keys)
                contributions: list[Contribution] = []
                if view is not None or tracked.arg.watermarks:
                    contributions = await self._blocking(self._prepare, keys, base, tracked.arg, view, steps)
                facts: dict[str, Any] = {}
                for contribution in contributions:
                    facts.update(contribution.facts)
                history = self._history(tracked, "success", facts=facts)
                if await self._send(keys, tracked, epoch, base.run_ops, history, contributions):
                    return
            if not tracked.state or tracked.cancel_requested:
                return
        raise Exhausted(f"{tracked.arg.id} lost {MAX_REBASES} races in a row for table {keys.name!r}")

    def _prepare(
        self,
        keys: TableKeys,
        base: _Base,
        arg: OperationArg,
        view: OperationView | None,
        steps: list[StepRecord],
    ) -> list[Contribution]:
        """Every step's share of the transaction, on the given base. Blocking; touches no etcd."""
        from distop.commit.bookkeeping import WatermarkStep
        from distop.commit.step import FinishContext, load_step

        if base.table is None:
            raise PreconditionFailed(f"table {keys.name!r} was dropped while {arg.id} was running")
        context = FinishContext(
            table=base.table,
            keys=keys,
            head=base.head,
            watermarks=base.watermarks,
            view=view or OperationView(arg=arg, jobs={}, token=str(arg.id)),
        )
        # The watermark step comes first: when it refuses, no metadata has been written in vain.
        chain: list[TransactionalStep] = [WatermarkStep(), *(load_step(record) for record in steps)]
        prepared: list[Contribution] = []
        try:
            # extend() keeps what was prepared before a step that raises, which a list made first would not.
            prepared.extend(step.prepare(context) for step in chain)
        except BaseException:
            for contribution in prepared:
                contribution.discard()
            raise
        return prepared

    async def _send(
        self,
        keys: TableKeys,
        tracked: Tracked,
        epoch: Epoch,
        run_ops: KeyValue,
        history: HistoryRecord,
        contributions: list[Contribution] | tuple[()],
    ) -> bool:
        """Send the finishing transaction; ``False`` if something it stands on has moved."""
        publication = Txn()
        for contribution in contributions:
            publication += contribution.txn
        plan = Finish(
            sealed=tracked.state,
            run_ops=run_ops,
            history=history,
            publication=publication,
            leave_keys=tracked.arg.stages_files or tracked.total > MAX_KEYS_IN_FINISH,
        )
        fields = {"table": keys.name, "operation": str(tracked.arg.id), "epoch": epoch.revision}
        try:
            became, revision = await finish(self._client, keys, tracked.keys, epoch, plan)
        except OutcomeUnknown:
            # In doubt nothing is removed: the files may be those of a commit that has happened.
            raise
        except DistopError:
            await self._discard(contributions)
            raise
        if became is Finished.DONE:
            log.info("operation_finished", extra={**fields, "outcome": history.outcome})
            self._metrics.operation_finished(tracked, history)
            tracked.set_state(b"", revision)
            tracked.gone = not plan.leave_keys
            if not plan.leave_keys and tracked.arg.instance % retention.EVERY == 0:
                await retention.prune(self._client, keys)
            return True
        self._metrics.finish_lost_race(tracked.arg.type)
        log.info("finish_lost_race", extra=fields)
        await self._discard(contributions)
        cancel = await self._client.get(tracked.keys.cancel)
        state = await self._client.get(tracked.keys.state)
        tracked.cancel_requested = tracked.cancel_requested or cancel.exists
        # Of a state that somebody has removed by hand: it was missing when the transaction was refused.
        tracked.set_state(state.value, state.mod_revision or revision)
        return False

    async def _discard(self, contributions: list[Contribution] | tuple[()]) -> None:
        for contribution in contributions:
            await self._blocking(contribution.discard)

    async def _read_base(self, keys: TableKeys) -> _Base:
        wanted = (keys.table, keys.head, keys.watermarks, keys.run_ops)
        result = await self._client.read_at_once([Get(key) for key in wanted])
        table, head, watermarks, run_ops = (result.one(index, key) for index, key in enumerate(wanted))
        record = decode(table.value, TableRecord, table.key) if table.exists else None
        return _Base(record, head, watermarks, run_ops)

    async def _jobs(self, keys: OperationKeys) -> Mapping[str, JobRecord]:
        listing = await self._client.scan(keys.prefix)
        jobs = {}
        for kv in listing.kvs:
            named = keys.partition_of(kv.key)
            if named is not None and named[1] == "state":
                jobs[named[0]] = decode(kv.value, JobRecord, kv.key)
        return jobs

    def _history(
        self,
        tracked: Tracked,
        outcome: str,
        *,
        facts: dict[str, Any] | None = None,
        error: ErrorRecord | None = None,
    ) -> HistoryRecord:
        arg = tracked.arg
        return HistoryRecord(
            outcome=outcome,
            uuid=arg.uuid,
            request_id=arg.request_id,
            started_at=arg.started_at,
            started_by=arg.started_by,
            finished_at=self._wall(),
            partition_count=tracked.total,
            succeeded=len(tracked.succeeded),
            failed=len(tracked.failed),
            error_code=error.code if error else "",
            error=error.message if error else "",
            facts=facts or {},
        )

    # -- collect ---------------------------------------------------------------------------------------

    async def collect(self, keys: TableKeys, tracked: Tracked) -> None:
        """Sweep the files and remove the keys that a finished operation has left behind."""
        if tracked.arg.stages_files:
            # While its runner's key stands attempts may still be writing; its owner or its lease removes it.
            await until_absent(self._client, tracked.keys.runner)
            await self._sweep(keys, tracked)
        await collect(self._client, keys, tracked.keys)
        tracked.gone = True
        if tracked.arg.instance % retention.EVERY == 0:
            await retention.prune(self._client, keys)

    async def _sweep(self, keys: TableKeys, tracked: Tracked) -> None:
        """Remove staged files that were not published. Without a record of the outcome nothing is removed."""
        from distop.commit.sweep import sweep

        kv = await self._client.get(keys.history(tracked.arg.id))
        if not kv.exists:
            return
        history = decode(kv.value, HistoryRecord, kv.key)
        jobs = await self._jobs(tracked.keys) if history.outcome == "success" else {}
        removed = await self._blocking(sweep, tracked.arg, history, jobs)
        if removed:
            fields = {"table": keys.name, "operation": str(tracked.arg.id), "files": removed}
            log.info("staged_files_swept", extra=fields)
