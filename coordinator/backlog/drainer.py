"""Applies the backlog of a table: one batch after the other, in order, each by an operation.

The part of a table's leader that starts operations. The batch in progress, the last applied batch and the
block are stored in etcd; a drainer keeps no state that its successor would miss.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from distop import errors
from distop.coordinator.backlog import policy
from distop.coordinator.backlog.pauses import FIRST_PAUSE_S, LONGEST_PAUSE_S, Pauses
from distop.coordinator.backlog.reading import Reader
from distop.coordinator.backlog.unordered import UnorderedBatches
from distop.coordinator.starting.body import StartBody
from distop.coordinator.starting.launching import Launched, Launcher
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.work.processes import Surroundings
from distop.metastore.backlog.batches import (
    MAX_ERROR_LENGTH,
    BatchBlock,
    BatchRecord,
    OrderingRecord,
    StagedBatch,
)
from distop.metastore.backlog.undoing import put_back
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.txn import DeleteRange, Put, Txn, absent, unchanged
from distop.metastore.operations.starting import digest_of
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg, OperationOptions
from distop.metastore.records.record import decode, encode
from distop.operations.api import DistributedOperation, Staging
from distop.process.loop import log_failure

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 30.0
"""How often a drainer looks without an event: no event may announce what it waits for."""

_AFTER = "distop backlog set TABLE --validation after"


class Drainer:
    """Drains one table in one term of its leader.

    Parameters
    ----------
    rested:
        Called when there is nothing left to do for now.
    """

    def __init__(self, services: Services, term: Term, *, rested: Callable[[], None]) -> None:
        self._services, self._term, self._rested = services, term, rested
        self._client, self._keys = services.client, term.keys
        self._launcher = Launcher(
            services,
            term,
            before=lambda: reached("batch.start.before"),
            after=lambda: reached("batch.start.after"),
        )
        self._unordered = UnorderedBatches(services, term, self._launcher)
        self.reader = Reader(services.client, term.keys)
        self._changed = asyncio.Event()
        self._again_s = FIRST_PAUSE_S
        """How long to wait for an event while unordered batches are left that the last look has not seen."""
        self._pauses = Pauses(services.clock)
        self._flying = False
        """Batches were being applied at the last look."""
        self.resting = False
        """Nothing is left to do for now, and etcd has been updated accordingly."""

    def begin(self, revision: int, *, work: bool) -> None:
        """A watch shows what comes after this revision. ``work``: whether the index had an entry then.

        Without the entry nothing waits that the watch would not show: a leader removes it when it can do no
        more, unless something changes meanwhile, and every change that lets a batch go on restores it.
        """
        self.reader.begin(revision)
        if work:
            self.notify()
        else:
            self.resting = not self._changed.is_set()

    def notify(self) -> None:
        """Something has changed that may let a batch go on."""
        self.resting, self._again_s = False, FIRST_PAUSE_S
        self._changed.set()

    def arrived(self, key: bytes) -> None:
        """A batch has come, or has changed: nothing to do while others are being applied."""
        self.reader.came(key)
        self.resting = False
        if not self._flying:
            self._changed.set()

    async def run(self) -> None:
        """Drain until cancelled; raises when the epoch is over."""
        failures, pause = 0, 0.0
        while True:
            try:
                # While a batch waits, a decision may concern another one.
                async with asyncio.timeout(pause or (self._again_s if self.reader.more else LOOK_AGAIN_S)):
                    await self._changed.wait()
            except TimeoutError:
                if not pause:
                    self._again_s = min(2.0 * self._again_s, LOOK_AGAIN_S)
            self._changed.clear()
            self._term.check()
            try:
                pause, failures = await self._look(), 0
            except (errors.LeadershipLost, errors.LeaseLost):
                raise
            except Exception as error:
                # No etcd, or no thread to plan: not the batch's fault.
                log_failure(log, "backlog_waits", error, table=self._keys.name)
                # Whatever comes meanwhile would meet the same.
                await asyncio.sleep(
                    min(FIRST_PAUSE_S * 2.0**failures, LONGEST_PAUSE_S) * random.uniform(0.5, 1.0)
                )
                failures, pause = min(failures + 1, 10), 0.0
                self._changed.set()

    async def _look(self) -> float:
        """Do the next thing; return the seconds until the next look, 0 to wait for events."""
        backlog = await self.reader.read()
        if backlog.paused:
            self._launcher.forget()
        self._flying = bool(backlog.ordering.running)
        unordered = await self._unordered.look(backlog)
        ordered = await self._look_at_first(backlog, rests=unordered is None)
        return min((pause for pause in (ordered, unordered) if pause), default=0.0)

    async def _look_at_first(self, backlog: policy.Backlog, *, rests: bool) -> float:
        match policy.decide(backlog):
            case policy.InFlight(operation):
                await self._check_flight(backlog, operation)
                return 0.0
            case policy.Stop(first, code, error):
                await self._note(backlog, first, first.record, code, error)
                return 0.0
            case policy.PutBack():
                reached("batch.back.before")
                txn = await put_back(self._client, self._keys, backlog.ordering_kv)
                await self._launcher.settled(txn, lambda: reached("batch.back.after"))
                self._changed.set()
                return 0.0
            case policy.Drop(staged):
                return await self._drop(backlog, staged)
            case policy.Publish(staged):
                kv = await self._client.get(self._keys.backlog(staged.batch))
                if not kv.exists:  # its key was removed by hand
                    await self._put(backlog, backlog.ordering.unstaged())
                    return 0.0
                record = decode(kv.value, BatchRecord, kv.key)
                return await self._in_time(backlog, [policy.Waiting(name=staged.batch, record=record, kv=kv)])
            case policy.Rest():
                self._pauses.keep(backlog.heads[:1])
                if rests and not backlog.unreadable:
                    await self._rest(backlog)
                return 0.0
            case policy.Apply(batches):
                return await self._in_time(backlog, batches)

    async def _in_time(self, backlog: policy.Backlog, batches: Sequence[policy.Waiting]) -> float:
        """Apply the batches, unless they have failed and their back-off is not over."""
        self._pauses.keep(batches[:1])
        return self._pauses.left(batches[0]) or await self._apply(backlog, batches)

    async def _check_flight(self, backlog: policy.Backlog, name: str) -> None:
        """Free the batches of an operation whose keys were removed by hand, so that it never ends."""
        operation = OperationId.parse(name)
        state = self._keys.operation(operation).state
        if (await self._client.get(state)).exists:
            return
        free = backlog.ordering.freed()
        taken = [waiting for waiting in backlog.heads if waiting.record.operation == name]
        compares = (absent(state), unchanged(backlog.ordering_kv))
        txn = Txn(
            (*compares, *(unchanged(waiting.kv) for waiting in taken)),
            (Put(self._keys.ordering, encode(free)), *(waiting.freed() for waiting in taken)),
        )
        # Refused: it has just finished; the next look shows that.
        reached("batch.free.before")
        await self._launcher.settled(txn, lambda: reached("batch.free.after"))
        self._changed.set()

    async def _rest(self, backlog: policy.Backlog) -> None:
        """Record in etcd that a leader need not look, unless something has changed since this look."""
        index = backlog.index_kv
        if index.exists:
            txn = Txn((unchanged(index),), (DeleteRange(index.key),))
            reached("batch.rest.before")
            if not await self._launcher.settled(txn, lambda: reached("batch.rest.after")):
                self._changed.set()
                return
        self.resting = not self._changed.is_set()
        self._rested()

    # -- applying --------------------------------------------------------------------------------------

    async def _apply(self, backlog: policy.Backlog, batches: Sequence[policy.Waiting]) -> float:
        first, staged = batches[0], backlog.ordering.staged
        try:
            if staged is not None:
                # Nothing but what was looked at, on what the table holds now.
                exactly = {"branch": staged.branch, "snapshot": staged.snapshot, "alone": True}
                kind = self._services.registry.get(self._staging(staged.type).publish)
                return await self._start(backlog, kind, batches, exactly | {"on_conflict": "rebase"}, staged)
            kind = self._services.registry.get(first.record.type)
            batches, argument = await self._combined(kind, batches)
            if backlog.ordering.validation and backlog.ordering.before:
                staged = self._new_branch(first, backlog.ordering_kv.mod_revision)
                argument["branch"] = staged.branch
            return await self._start(backlog, kind, batches, argument, staged)
        except errors.OF_THE_WORLD:
            raise
        except Exception as error:
            if len(batches) > 1:
                return await self._part(batches, error)
            return await self._failed(backlog, first, error)

    async def _combined(
        self, kind: DistributedOperation, batches: Sequence[policy.Waiting]
    ) -> tuple[Sequence[policy.Waiting], dict[str, Any]]:
        """As many of the batches as the type can apply together, and the argument for them."""
        arguments = [waiting.record.argument for waiting in batches]
        if len(batches) == 1:
            return batches, dict(arguments[0])
        call = partial(_combine, kind.type, arguments)
        count, argument = await self._services.planning.asked(kind, self._keys.name, "combine", call)
        return batches[:count], argument

    async def _start(
        self,
        backlog: policy.Backlog,
        kind: DistributedOperation,
        batches: Sequence[policy.Waiting],
        argument: dict[str, Any],
        staged: StagedBatch | None,
    ) -> float:
        """Start the operation that applies these batches, or stages or publishes one."""
        keys, first = self._keys, batches[0]
        names = [waiting.name for waiting in batches]
        depends_on = [backlog.ordering_kv, *(waiting.kv for waiting in batches)]

        def share(arg: OperationArg) -> Txn:
            operation = str(arg.id)
            ordering = msgspec.structs.replace(backlog.ordering, running=operation, staged=staged)
            own = (
                Put(keys.ordering, encode(ordering)),
                *(
                    Put(waiting.kv.key, encode(msgspec.structs.replace(waiting.record, operation=operation)))
                    for waiting in batches
                ),
            )
            return Txn(tuple(map(unchanged, depends_on)), own)

        launched = await self._launcher.launch(
            kind,
            StartBody(
                table=keys.name,
                type=kind.type,
                argument=argument,
                options=first.record.options,
                digest=digest_of([kind.type, argument, names]),
            ),
            # The same as long as the batch and the table's ordering are unchanged: a repeated start after a
            # crash or a lost reply finds the same operation.
            f"batch.{first.kv.mod_revision}.{backlog.ordering_kv.mod_revision}",
            share,
            depends_on,
            started_by=first.record.queued_by,
            batches=names,
        )
        if launched is Launched.STARTED:
            self._flying = True
            self._pauses.over(first)
        # The operation in the way ends, and its end brings the next look.
        return FIRST_PAUSE_S * random.uniform(0.1, 1.0) if launched is Launched.LOST else 0.0

    async def _drop(self, backlog: policy.Backlog, staged: StagedBatch) -> float:
        """Start the operation that drops a branch; it is not tried again if somebody cancels it."""
        rest = msgspec.structs.replace(backlog.ordering, dropping=None)
        ordering_kv, argument = backlog.ordering_kv, {"branch": staged.branch}
        share = Txn((unchanged(ordering_kv),), (Put(self._keys.ordering, encode(rest)),))
        try:
            kind = self._services.registry.get(self._staging(staged.type).drop)
            body = StartBody(
                table=self._keys.name,
                type=kind.type,
                argument=argument,
                options=OperationOptions(),
                digest=digest_of([kind.type, argument]),
            )
            unique = f"drop.{ordering_kv.mod_revision}"
            launched = await self._launcher.launch(
                kind, body, unique, lambda _: share, [ordering_kv], started_by="backlog"
            )
        except errors.OF_THE_WORLD:
            raise
        except Exception as error:
            # Nothing was staged on it, or somebody has dropped it.
            fields = {"table": self._keys.name, "branch": staged.branch, "error": str(error)}
            log.info("branch_not_dropped", extra=fields, exc_info=errors.defect_of(error))
            await self._put(backlog, rest)
            return 0.0
        if launched is Launched.STARTED:
            self._changed.set()
        return FIRST_PAUSE_S if launched is Launched.LOST else 0.0

    def _staging(self, type_name: str) -> Staging:
        """The types that publish and drop what this one has staged."""
        staging = self._services.registry.get(type_name).staging
        if staging is None:
            raise errors.InvalidArgument(
                f"a batch of the type {type_name} cannot be written to a branch, so nobody can look at it "
                "before it is published",
                hint=f"skip it, or let approvals come after publication: {_AFTER}",
                details={"field": "type"},
            )
        return staging

    def _new_branch(self, first: policy.Waiting, revision: int) -> StagedBatch:
        """Where a batch is staged.

        Parameters
        ----------
        revision:
            That of the table's ordering: each staging changes it, so its branch has a new name.
        """
        self._staging(first.record.type)
        if first.record.argument.get("branch") is not None:
            raise errors.InvalidArgument(
                "the batch names a branch, but the table has its batches on branches of their own",
                hint=f"publish it without, or let approvals come after publication: {_AFTER}",
                details={"field": "branch"},
            )
        readable = re.sub(r"[^A-Za-z0-9_.-]", "-", first.name)[:80]
        return StagedBatch(batch=first.name, branch=f"batch-{readable}-{revision}", type=first.record.type)

    async def _put(self, backlog: policy.Backlog, ordering: OrderingRecord) -> None:
        """Record another ordering; if it has changed since, the next look decides."""
        txn = Txn((unchanged(backlog.ordering_kv),), (Put(self._keys.ordering, encode(ordering)),))
        reached("batch.note.before")
        await self._launcher.settled(txn, lambda: reached("batch.note.after"))
        self._changed.set()

    async def _failed(self, backlog: policy.Backlog, first: policy.Waiting, error: Exception) -> float:
        """A batch whose operation could not be started: the failure is counted, or the batch blocks the
        table."""
        failure = policy.BatchFailure.of(error)
        message = errors.shortened(failure.message, MAX_ERROR_LENGTH)
        attempts = failure.attempts(first.record)
        record = msgspec.structs.replace(first.record, attempts=attempts, code=failure.code, error=message)
        if record == first.record:
            return self._pauses.for_source(first)
        self._pauses.over(first)
        spent = failure.is_final(attempts, backlog.ordering.max_attempts)
        code = failure.code if spent else ""
        await self._note(backlog, first, record, code, message, defect=errors.defect_of(error))
        return 0.0

    async def _note(
        self,
        backlog: policy.Backlog,
        first: policy.Waiting,
        record: BatchRecord,
        code: str,
        error: str,
        defect: BaseException | None = None,
    ) -> None:
        """Record the state of a batch that was not started; with a code: it blocks the table."""
        puts: tuple[Put, ...] = (Put(first.kv.key, encode(record)),)
        if code:
            block = BatchBlock(batch=first.name, code=code, error=error, at=self._services.wall())
            blocked = msgspec.structs.replace(backlog.ordering, blocked=block)
            puts += (Put(self._keys.ordering, encode(blocked)),)
        txn = Txn((unchanged(backlog.ordering_kv), unchanged(first.kv)), puts)
        reached("batch.note.before")
        await self._launcher.settled(txn, lambda: reached("batch.note.after"))
        fields = {"table": self._keys.name, "batch": first.name, "attempts": record.attempts, "error": error}
        log.warning("batch_not_started", extra={**fields, "blocked": bool(code)}, exc_info=defect)
        self._changed.set()

    async def _part(self, batches: Sequence[policy.Waiting], error: Exception) -> float:
        """Batches that cannot be applied together are applied one by one, to find the faulty one."""
        alone = [
            Put(waiting.kv.key, encode(msgspec.structs.replace(waiting.record, alone=True)))
            for waiting in batches
        ]
        txn = Txn(tuple(unchanged(waiting.kv) for waiting in batches), tuple(alone))
        reached("batch.part.before")
        await self._launcher.settled(txn, lambda: reached("batch.part.after"))
        names = [waiting.name for waiting in batches]
        log.info("batches_parted", extra={"table": self._keys.name, "batches": names, "error": str(error)})
        self._changed.set()
        return 0.0


def _combine(
    name: str, arguments: Sequence[Mapping[str, Any]], surroundings: Surroundings
) -> tuple[int, dict[str, Any]]:
    kind, argument = surroundings.registry.get(name), dict(arguments[0])
    for count, other in enumerate(arguments[1:], 1):
        both = kind.combine(argument, other)
        if both is None:
            return count, argument
        argument = both
    return len(arguments), argument
