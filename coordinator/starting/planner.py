"""Planning an operation: the code of its type, in a thread, bounded in number and time. A plan that is older
than the state it is to start from is made again."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeVar

from distop.commit.files.storage import storage_of
from distop.commit.layout.owner import take_folder
from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.body import StartBody
from distop.errors import Busy, DeadlineExceeded, PreconditionFailed
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.active import active_operations
from distop.metastore.operations.starting import TableState
from distop.metastore.records.keyspace import TableKeys, check_partition
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.registry import Registry

T = TypeVar("T")

MAX_PLANNING = 64
"""Starts that may be planned or wait for it at one time; more are refused, to be tried again."""


class Planner:
    """Plans for one coordinator.

    Parameters
    ----------
    threads:
        Where types look at what users point at, and may hang.
    """

    def __init__(self, registry: Registry, threads: Executor, metrics: Metrics | None = None) -> None:
        self.registry = registry
        self._threads = threads
        self._metrics = metrics or Metrics()
        self._planning = 0

    async def plan(self, kind: DistributedOperation, request: PlanRequest, limit_s: float) -> Plan:
        """What the type makes of a request, under a uuid.

        Raises whatever ``plan`` of the type raises;
        :class:`~distop.errors.Busy` or :class:`~distop.errors.DeadlineExceeded` in time of need.
        """
        plan = await self._run(kind, limit_s, lambda: _planned(kind, request))
        for partition in plan.partitions or ():
            check_partition(partition)
        return replace(plan, uuid=plan.uuid or uuid.uuid4().hex[:12])

    async def preview(
        self, kind: DistributedOperation, request: PlanRequest, limit_s: float
    ) -> Mapping[str, Any]:
        """What the type says it would do; raises as :meth:`plan`."""
        return await self._run(kind, limit_s, lambda: kind.preview(request))

    async def holds(
        self,
        kind: DistributedOperation,
        plan: Plan,
        made_on: PlanRequest,
        request: PlanRequest,
        limit_s: float,
    ) -> bool:
        """Whether a plan may be started on another state of its table; raises as :meth:`plan`."""
        if made_on.table != request.table:
            return False
        return await self._run(kind, limit_s, lambda: kind.plan_holds(plan, made_on, request))

    async def _run(self, kind: DistributedOperation, limit_s: float, call: Callable[[], T]) -> T:
        """Run code of the type in a thread."""
        if self._planning >= MAX_PLANNING:
            raise Busy(f"{MAX_PLANNING} operations are being planned already")
        self._planning += 1
        self._metrics.planning(self._planning)
        try:
            # Not wait_for: it swallows a cancellation that comes along with the result (Python up to 3.11).
            async with asyncio.timeout(limit_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            raise DeadlineExceeded(f"planning {kind.type} took longer than {limit_s:.0f} s") from None
        finally:
            self._planning -= 1
            self._metrics.planning(self._planning)


class Planning:
    """The plan of one start, as its table moves.

    Parameters
    ----------
    limit_s:
        How long planning may take altogether.
    """

    def __init__(
        self, planner: Planner, client: EtcdClient, keys: TableKeys, body: StartBody, limit_s: float
    ) -> None:
        self._planner, self._client, self._keys, self._body = planner, client, keys, body
        self.kind = planner.registry.get(body.type)
        self._limit_s = limit_s
        self._until = asyncio.get_running_loop().time() + limit_s
        self._made: tuple[Plan, PlanRequest] | None = None
        self._stands_on: tuple[KeyValue, ...] = ()

    async def on(self, state: TableState) -> Plan:
        """The plan for a table as it stands: the one that was made before, where that still holds.

        Raises as :meth:`Planner.plan`.
        """
        if self._made is not None and state.planned_on == self._stands_on:
            return self._made[0]
        request = await self._request(state)
        left_s = self._until - asyncio.get_running_loop().time()
        if left_s <= 0.0:
            raise DeadlineExceeded(
                f"table {self._keys.name!r} has changed before {self.kind.type} was planned, again and again "
                f"for {self._limit_s:.0f} s"
            )
        if self._made is None or not await self._planner.holds(self.kind, *self._made, request, left_s):
            self._made = await self._planner.plan(self.kind, request, left_s), request
        self._stands_on = state.planned_on
        return self._made[0]

    async def preview(self, state: TableState) -> Mapping[str, Any]:
        """What the operation would do to a table as it stands; raises as :meth:`Planner.plan`."""
        return await self._planner.preview(self.kind, await self._request(state), self._limit_s)

    async def _request(self, state: TableState) -> PlanRequest:
        seen = await active_operations(self._client, self._keys) if self.kind.sees_active else ()
        return PlanRequest(
            table=state.record,
            head=state.head,
            watermarks=state.watermarks,
            argument=self._body.argument,
            partitions=self._body.partitions or None,
            options=self._body.options,
            active=seen,
            object=self._body.object,
            index=state.index,
        )


def _planned(kind: DistributedOperation, request: PlanRequest) -> Plan:
    """Blocking. Before the first files of a table are written, its folder is made its own."""
    plan, table = kind.plan(request), request.table
    if kind.stages_files and request.head is None:
        try:
            take_folder(table.location, table.uuid, storage_of(table))
        except OSError as error:
            raise PreconditionFailed(
                f"this coordinator cannot write to {table.location}: {error}", details={"table": table.name}
            ) from error
    return plan
