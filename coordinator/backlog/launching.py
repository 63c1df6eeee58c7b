"""Starting the operation that applies batches, under the epoch of the table's leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from enum import Enum
from typing import Any

from distop.coordinator.starting.body import StartBody, operation_arg
from distop.coordinator.starting.planner import Planner, Planning
from distop.coordinator.work import work
from distop.errors import ArgumentTooLarge, LeadershipLost
from distop.metastore.crashpoints import reached
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import MAX_REQUEST_BYTES, Get, KeyValue, Txn
from distop.metastore.etcd.update import settle
from distop.metastore.members.election import Epoch
from distop.metastore.operations.starting import (
    answered_before,
    operation_in_the_way,
    read_table_state,
    start_txn,
)
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.operation import OperationArg
from distop.operations.api import DistributedOperation, Plan

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often it is looked whether a plan that takes long is still of use."""

PLANNING_S = 300.0
"""Longest time that planning a batch may take."""


class Launched(Enum):
    """What became of an attempt to start an operation."""

    STARTED = "started"
    IN_THE_WAY = "another operation is in the way"
    LOST = "something it stands on has moved, or it was started before"


class Launcher:
    """Starts operations for one epoch of a table.

    Parameters
    ----------
    check:
        Raises when this process may no longer act as the leader.
    """

    def __init__(
        self,
        client: EtcdClient,
        keys: TableKeys,
        epoch: Epoch,
        planner: Planner,
        *,
        check: Callable[[], None],
        wall: Callable[[], float],
    ) -> None:
        self._client, self._keys, self._epoch, self._planner = client, keys, epoch, planner
        self._check, self._wall = check, wall
        self._planning: tuple[tuple[str, str], Planning] | None = None
        """Of batches that could not be started on what their plan was made on, by request and object."""

    async def launch(
        self,
        kind: DistributedOperation,
        body: StartBody,
        unique: str,
        share: Callable[[OperationArg], Txn],
        stands_on: Sequence[KeyValue],
        *,
        started_by: str,
        batches: Sequence[str] = (),
        unordered: str = "",
    ) -> Launched:
        """Plan and start the operation that applies batches.

        Parameters
        ----------
        unique:
            Id of the request.
        share:
            What the batches have in the transaction that starts it.
        stands_on:
            What that compares. A plan that takes long is given up when one of it has changed, or somebody has
            paused the table.
        batches, unordered:
            Those of the backlog, or the one without an order.
        """
        keys, names = self._keys, list(batches) or [unordered]
        request = body.request(unique, kind, call=unique)
        state = await read_table_state(self._client, keys, request)
        if answered_before(state, request) is not None:
            return Launched.LOST
        registry, run_ops = self._planner.registry, state.run_ops_kv.value
        if other := operation_in_the_way(run_ops, request, lambda name: registry.compatible(kind, name)):
            log.info("batch_waits", extra={"table": keys.name, "batch": names[0], "operation": str(other)})
            return Launched.IN_THE_WAY
        planned, whose = (unique, body.object), f" for batch {names[0]}"
        if self._planning is None or self._planning[0] != planned:
            self._planning = planned, Planning(self._planner, self._client, keys, body, PLANNING_S, whose)
        plan = await self._unless_changed(self._planning[1].on(state), stands_on)
        if plan is None:
            return Launched.LOST
        arg = operation_arg(
            kind,
            plan,
            state.record,
            body,
            instance=state.next_instance,
            request=request,
            started_at=self._wall(),
            started_by=started_by,
            batches=batches,
            unordered=unordered,
        )
        self._check()
        txn = share(arg) + start_txn(keys, state, arg)
        if txn.size() > MAX_REQUEST_BYTES:
            raise ArgumentTooLarge(
                f"the plan of batch {names[0]!r} takes {txn.size():,} bytes, etcd holds {MAX_REQUEST_BYTES:,}"
            )
        reached("batch.start.before")
        if not await self.settled(txn, lambda: reached("batch.start.after")):
            return Launched.LOST
        self._planning = None
        log.info("batches_taken", extra={"table": keys.name, "batches": names})
        return Launched.STARTED

    async def _unless_changed(
        self, planning: Coroutine[Any, Any, Plan], stands_on: Sequence[KeyValue]
    ) -> Plan | None:
        pause = self._keys.pause
        task = asyncio.create_task(planning)
        try:
            await asyncio.wait({task}, timeout=work.LONG_S)
            while not task.done():
                read = await self._client.read_at_once([Get(pause), *(Get(kv.key) for kv in stands_on)])
                standing = (read.one(index, kv.key) for index, kv in enumerate(stands_on, 1))
                if read.got(0) or any(now != kv for now, kv in zip(standing, stands_on, strict=True)):
                    return None
                await asyncio.wait({task}, timeout=LOOK_S)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def settled(self, txn: Txn, replied: Callable[[], None]) -> bool:
        """Send a transaction under the epoch; whether it happened, as far as the last answer says.

        One whose reply was lost is refused when it is sent again, and the next look tells what it did. Raises
        :class:`~distop.errors.LeadershipLost` if it was refused because the epoch is over.
        """
        epoch = self._epoch
        fenced = Txn((epoch.held(),), (), (Get(epoch.key),)) + txn
        result = await settle(self._client, fenced, replied=replied)
        if not result.succeeded and result.one(0, epoch.key).create_revision != epoch.revision:
            raise LeadershipLost(f"table {self._keys.name!r}: epoch {epoch.revision} is over")
        return result.succeeded
