"""Applies unordered batches: each by an operation of its own, as soon as nothing incompatible runs.

As for ordered ones, etcd stores which are in progress and how often a batch has failed.
"""

from __future__ import annotations

import logging
from hashlib import sha256

import msgspec

from distop.coordinator.backlog.pauses import FIRST_PAUSE_S, Pauses
from distop.coordinator.backlog.policy import Backlog, BatchFailure, Waiting
from distop.coordinator.starting.body import StartBody, check_scope
from distop.coordinator.starting.launching import Launched, Launcher
from distop.coordinator.starting.services import Services, Term
from distop.errors import OF_THE_WORLD, InvalidArgument, defect_of, shortened
from distop.metastore.backlog import batches
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import DeleteRange, Get, KeyValue, Put, Txn, absent, unchanged
from distop.metastore.operations.starting import digest_of
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import HistoryRecord, OperationArg
from distop.metastore.records.record import decode, encode

log = logging.getLogger(__name__)

MAX_RUNNING = 100
"""Batches of a table that are applied concurrently."""

MAX_OBJECT_BYTES = 400
"""Longest name of a batch that is also used as the object of its operation."""


class UnorderedBatches:
    """Starts the unordered batches of one table in one term of its leader."""

    def __init__(self, services: Services, term: Term, launcher: Launcher) -> None:
        self._services, self._launcher = services, launcher
        self._client, self._keys = services.client, term.keys
        self._pauses = Pauses(services.clock)

    async def look(self, backlog: Backlog) -> float | None:
        """Start what can start; return the seconds until the next look, 0 to wait for events, ``None``: no
        batch can start in the present state."""
        self._pauses.keep(backlog.unordered, more=backlog.more)
        if backlog.holds_unordered or not backlog.unordered:
            return None
        running = self._keys.unordered(batches.RUNNING)
        page = await self._client.get_range(
            running, prefix_end(running), keys_only=True, limit=MAX_RUNNING + 1
        )
        free, pauses = MAX_RUNNING - len(page.kvs), [0.0]
        for waiting in backlog.unordered[: max(0, free)]:
            if left := self._pauses.left(waiting):
                pauses.append(left)
                continue
            try:
                started = await self._start(waiting)
            except OF_THE_WORLD:
                raise
            except Exception as error:
                pauses.append(await self._failed(waiting, error))
                continue
            if started is not Launched.IN_THE_WAY:
                self._pauses.over(waiting)
                pauses.append(FIRST_PAUSE_S)  # for the batches after the examined ones
        return min((pause for pause in pauses if pause), default=0.0)

    async def _start(self, waiting: Waiting) -> Launched:
        record, name = waiting.record, waiting.name
        kind = self._services.registry.get(record.type)
        short = len(name.encode()) <= MAX_OBJECT_BYTES
        of_batch = f"batch:{name if short else sha256(name.encode()).hexdigest()[:32]}"

        def share(arg: OperationArg) -> Txn:
            taken = self._keys.unordered(batches.RUNNING, name)
            running = msgspec.structs.replace(record, operation=str(arg.id))
            return Txn(
                (unchanged(waiting.kv), absent(taken)),
                (DeleteRange(waiting.kv.key), Put(taken, encode(running))),
            )

        for obj in (of_batch, ""):
            body = StartBody(
                table=self._keys.name,
                type=kind.type,
                object=obj,
                argument=record.argument,
                options=record.options,
                digest=digest_of([kind.type, obj, record.argument, name]),
            )
            try:
                check_scope(kind, obj)
                return await self._launcher.launch(
                    kind,
                    body,
                    f"unordered.{waiting.kv.mod_revision}",
                    share,
                    [waiting.kv],
                    started_by=record.queued_by,
                    unordered=name,
                )
            except InvalidArgument as error:
                if not obj or error.details.get("field") != "object":
                    raise
                # One at a time, then: this type takes no objects, or this argument does not allow it.
        raise AssertionError("it is started, or raises why not")

    async def _failed(self, waiting: Waiting, error: Exception) -> float:
        """A batch whose operation could not be started; return the seconds until the next look."""
        failure = BatchFailure.of(error)
        message = shortened(failure.message, batches.MAX_ERROR_LENGTH)
        if failure.waits and (waiting.record.code, waiting.record.error) == (failure.code, message):
            return self._pauses.for_source(waiting)
        self._pauses.over(waiting)
        ordering_kv = await self._client.get(self._keys.ordering)
        txn = after_failure(
            self._keys, ordering_kv, waiting.kv, waiting.name, waiting.record, failure, self._services.wall()
        )
        reached("batch.note.before")
        await self._launcher.settled(txn, lambda: reached("batch.note.after"))
        fields: dict[str, object] = {"table": self._keys.name, "batch": waiting.name}
        fields |= {"error": failure.message, "attempts": failure.attempts(waiting.record)}
        log.warning("batch_not_started", extra=fields, exc_info=defect_of(error))
        return FIRST_PAUSE_S


def after_failure(
    keys: TableKeys,
    ordering_kv: KeyValue,
    at: KeyValue,
    batch: str,
    record: batches.BatchRecord,
    failure: BatchFailure,
    now: float,
) -> Txn:
    """Count one more failed attempt at the batch with this key: it waits for the next attempt, or for a
    decision."""
    message, attempts = shortened(failure.message, batches.MAX_ERROR_LENGTH), failure.attempts(record)
    left = msgspec.structs.replace(record, operation="", attempts=attempts, code=failure.code, error=message)
    looked_at = Txn((), (Put(keys.backlog_index, b"{}"),))
    if not failure.is_final(attempts, batches.ordering_of(ordering_kv).max_attempts):
        waits = Put(keys.unordered(batches.WAITING, batch), encode(left))
        moved = () if at.key == waits.key else (DeleteRange(at.key),)
        return looked_at + Txn((unchanged(at),), (*moved, waits))
    block = batches.BatchBlock(
        batch=batch, code=failure.code, error=message, operation=record.operation, at=now
    )
    return looked_at + batches.gave_up(keys, ordering_kv, at, batch, left, block)


async def share_of_unordered(
    client: EtcdClient,
    keys: TableKeys,
    arg: OperationArg,
    *,
    failure: BatchFailure | None,
    now: float,
    result: HistoryRecord | None,
) -> Txn:
    """The finishing transaction's part for the unordered batch that the operation applies."""
    key = keys.unordered(batches.RUNNING, arg.unordered)
    read = await client.read_at_once([Get(keys.ordering), Get(key)])
    ordering_kv, kv = read.single(0, keys.ordering), read.single(1, key)
    record = decode(kv.value, batches.BatchRecord, kv.key) if kv.exists else None
    if record is None or record.operation != str(arg.id):
        return Txn((unchanged(kv),))  # it was removed by hand
    if failure is not None:
        return after_failure(keys, ordering_kv, kv, arg.unordered, record, failure, now)
    done = encode(batches.AppliedRecord.of(arg.id, record, now, result, plan=arg.argument))
    ops = (DeleteRange(key), Put(keys.unordered(batches.DONE, arg.unordered), done))
    return Txn((unchanged(kv),), (*ops, Put(keys.backlog_index, b"{}")))
