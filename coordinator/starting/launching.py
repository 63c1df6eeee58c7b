"""Starts operations under the epoch of the table's leader: for batches and schedules.

The batch or schedule changes in the transaction that starts the operation, which also compares it: so it
starts once, whatever process dies, is suspended or loses a reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any

from distop.coordinator.starting.body import StartBody, operation_arg
from distop.coordinator.starting.planner import Planning
from distop.coordinator.starting.services import Services, Term
from distop.coordinator.work import work
from distop.errors import ArgumentTooLarge, LeadershipLost, RunReused
from distop.metastore.etcd.txn import MAX_REQUEST_BYTES, Get, KeyValue, Txn
from distop.metastore.etcd.update import settle
from distop.metastore.operations import starting
from distop.metastore.records.operation import OperationArg
from distop.operations.api import DistributedOperation, Plan
from distop.process.loop import cancel_all

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often a slow plan is checked for still being needed."""

AGAIN_S = 5.0
"""How long after a lost start its plan serves the next attempt, which follows at once. If it comes later, the
table was paused meanwhile: files may have come that the plan does not know."""


class Launched(Enum):
    """The result of an attempt to start an operation."""

    STARTED = "started"
    IN_THE_WAY = "another operation is in the way"
    LOST = "something it depends on has changed, or it was started before"


class Launcher:
    """Starts operations in one term of a table's leader.

    Parameters
    ----------
    before, after:
        Called before the transaction that starts an operation is sent, and with each reply: crash points.
    """

    def __init__(
        self, services: Services, term: Term, *, before: Callable[[], None], after: Callable[[], None]
    ) -> None:
        self._services, self._term = services, term
        self._client, self._keys = services.client, term.keys
        self._before, self._after = before, after
        self._planning: tuple[tuple[str, str, str], float, Planning] | None = None
        """The last lost start: its request, object and body, and when it was lost."""

    async def launch(
        self,
        kind: DistributedOperation,
        body: StartBody,
        unique: str,
        share: Callable[[OperationArg], Txn],
        depends_on: Sequence[KeyValue],
        *,
        run: str = "",
        started_by: str,
        batches: Sequence[str] = (),
        unordered: str = "",
        schedule: str = "",
    ) -> Launched:
        """Plan and start an operation.

        Parameters
        ----------
        unique:
            Id of this call; and of the request, if that has no other.
        share:
            What the batch or schedule contributes to the transaction that starts the operation.
        depends_on:
            The keys that ``share`` compares. A slow plan is abandoned when one of them has changed, or the
            table was paused.
        run:
            Id of the request, if callers may use it, too.
        batches, unordered, schedule:
            What it is started for: batches of the backlog, an unordered batch, or a schedule.

        Raises
        ------
        RunReused
            A caller has started it before, under ``run``.
        """
        keys = self._keys
        # Kept only for the next attempt at a lost start: its time limit continues meanwhile.
        kept, self._planning = self._planning, None
        batch = [*batches, unordered][0]
        whose = f"schedule {schedule!r}" if schedule else f"batch {batch!r}" if batch else "the backlog"
        request = body.request(run or unique, kind, call=unique)
        state = await starting.read_table_state(self._client, keys, request)
        if (known := starting.answered_before(state, request)) is not None:
            if request.run == unique:
                return Launched.LOST
            raise RunReused(f"{known} was started for it before")
        registry, run_ops = self._services.registry, state.run_ops_kv.value
        if other := starting.operation_in_the_way(
            run_ops, request, lambda name: registry.compatible(kind, name)
        ):
            log.info("launch_waits", extra={"table": keys.name, "of": whose, "operation": str(other)})
            return Launched.IN_THE_WAY
        state = await starting.with_rows_to_replace(self._client, keys, request, state)
        planned, loop = (unique, body.object, body.digest), asyncio.get_running_loop()
        if kept is not None and kept[0] == planned and loop.time() - kept[1] < AGAIN_S:
            planning = kept[2]
        else:
            planning = Planning(self._services.planner, self._client, keys, body, whose=f" for {whose}")
        plan = await self._unless_changed(planning.on(state), depends_on)
        if plan is None:
            return Launched.LOST
        arg = operation_arg(
            kind,
            plan,
            state.record,
            body,
            instance=state.next_instance,
            request=request,
            before=state.request,
            started_at=self._services.wall(),
            started_by=started_by,
            batches=batches,
            unordered=unordered,
            schedule=schedule,
        )
        self._term.check()
        txn = share(arg) + starting.start_txn(keys, state, arg)
        if txn.size() > MAX_REQUEST_BYTES:
            raise ArgumentTooLarge(
                f"the plan of {whose} takes {txn.size():,} bytes, etcd allows {MAX_REQUEST_BYTES:,}"
            )
        self._before()
        if not await self.settled(txn, self._after):
            self._planning = planned, loop.time(), planning
            return Launched.LOST
        tracer = self._services.tracer
        with tracer.inside(arg.trace):
            log.info("launched", extra={"table": keys.name, "of": whose, "operation": str(arg.id)})
        if tracer.on:
            tracer.send(*planning.spans(arg))
        return Launched.STARTED

    def forget(self) -> None:
        """The table is paused: what starts afterwards is planned anew."""
        self._planning = None

    async def _unless_changed(
        self, planning: Coroutine[Any, Any, Plan], depends_on: Sequence[KeyValue]
    ) -> Plan | None:
        pause = self._keys.pause
        task = asyncio.create_task(planning)
        try:
            await asyncio.wait({task}, timeout=work.LONG_S)
            while not task.done():
                read = await self._client.read_at_once([Get(pause), *(Get(kv.key) for kv in depends_on)])
                current = (read.single(index, kv.key) for index, kv in enumerate(depends_on, 1))
                if read.got(0) or any(now != kv for now, kv in zip(current, depends_on, strict=True)):
                    return None
                await asyncio.wait({task}, timeout=LOOK_S)
            return task.result()
        finally:
            await cancel_all(task)

    async def settled(self, txn: Txn, replied: Callable[[], None]) -> bool:
        """Send a transaction under the epoch; return whether it happened, according to the last answer.

        A repetition after a lost reply is refused, and the next look shows its effect. Raises
        :class:`~distop.errors.LeadershipLost` if it was refused because the epoch is over.
        """
        epoch = self._term.epoch
        fenced = Txn((epoch.held(),), (), (Get(epoch.key),)) + txn
        result = await settle(self._client, fenced, replied=replied)
        if not result.succeeded and result.single(0, epoch.key).create_revision != epoch.revision:
            raise LeadershipLost(f"table {self._keys.name!r}: epoch {epoch.revision} is over")
        return result.succeeded
