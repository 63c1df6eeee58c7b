"""Plans an operation: runs the code of its type in a process that can be ended, with fair turns for tables,
bounded in number and time. A plan that is older than the state to start from is made again."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from distop.coordinator.metrics.counts import Metrics
from distop.coordinator.starting.body import StartBody, check_can_replace
from distop.coordinator.work.processes import Call, Surroundings
from distop.coordinator.work.work import Work
from distop.errors import DeadlineExceeded, PreconditionFailed
from distop.lake.layout.staging import take_folder
from distop.lake.storage.storage import storage_of
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.operations.runs import active_operations
from distop.metastore.operations.starting import TableState
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.names import check_partition
from distop.metastore.records.operation import OperationArg
from distop.metastore.records.watermarks import check_room
from distop.metastore.tables.watermarks import marks_at
from distop.operations.api import DistributedOperation, Plan, PlanRequest, checked, make_plan, stages_files
from distop.process.tracing import Span

T = TypeVar("T")


class Planner:
    """Plans for one coordinator."""

    def __init__(self, work: Work, metrics: Metrics | None = None) -> None:
        self.registry, self.work = work.registry, work
        self._metrics = metrics or Metrics()
        self._planning = 0

    async def plan(
        self,
        kind: DistributedOperation,
        request: PlanRequest,
        deadline_s: float | None = None,
        whose: str = "",
    ) -> Plan:
        """The type's plan for a request, under a uuid. ``whose`` names the plan in reports of slow calls.

        Raises the errors of the type's ``plan``; :class:`~distop.errors.CallTimeout`;
        :class:`~distop.errors.Busy` or :class:`~distop.errors.DeadlineExceeded` under overload.
        """
        plan = await self._run(kind, request, deadline_s, partial(_planned, kind.type, request), whose)
        for partition in plan.partitions or ():
            check_partition(partition)
        check_room(
            {
                source: {at: move.after for at, move in moves.items()}
                for source, moves in plan.watermarks.items()
            }
        )
        return replace(plan, uuid=plan.uuid or uuid.uuid4().hex[:12])

    async def preview(
        self, kind: DistributedOperation, request: PlanRequest, deadline_s: float | None
    ) -> Mapping[str, Any]:
        """The type's preview; raises as :meth:`plan`."""
        return await self._run(kind, request, deadline_s, partial(_previewed, kind.type, request))

    async def holds(
        self,
        kind: DistributedOperation,
        plan: Plan,
        made_on: PlanRequest,
        request: PlanRequest,
        deadline_s: float | None,
        whose: str = "",
    ) -> bool:
        """Whether a plan is valid for another state of its table; raises as :meth:`plan`."""
        if made_on.table != request.table:
            return False
        call = partial(_holds, kind.type, plan, made_on, request)
        return await self._run(kind, request, deadline_s, call, whose)

    async def _run(
        self,
        kind: DistributedOperation,
        request: PlanRequest,
        deadline_s: float | None,
        call: Call[T],
        whose: str = "",
    ) -> T:
        """Run code of the type."""
        self._planning += 1
        self._metrics.planning(self._planning)
        try:
            label = f"planning {kind.type}{whose}"
            return await self.work.user(kind, request.table.name, label, call, deadline_s=deadline_s)
        finally:
            self._planning -= 1
            self._metrics.planning(self._planning)


class Planning:
    """The plan of one start, while its table changes.

    Parameters
    ----------
    deadline_s:
        Seconds in which the caller needs it, with all repetitions; ``None``: whenever it comes.
    whose:
        For messages, such as `` for batch 17``.
    """

    def __init__(
        self,
        planner: Planner,
        client: EtcdClient,
        keys: TableKeys,
        body: StartBody,
        deadline_s: float | None = None,
        whose: str = "",
    ) -> None:
        self._whose = whose
        self._planner, self._client, self._keys, self.body = planner, client, keys, body
        self.kind = planner.registry.get(body.type)
        self._deadline_s = deadline_s
        self._until = asyncio.get_running_loop().time() + (deadline_s or 0.0)
        self._made: tuple[Plan, PlanRequest] | None = None
        self._planned_on: tuple[KeyValue, ...] = ()
        self._instead_of = ""
        self._took = 0.0, 0.0

    async def on(self, state: TableState) -> Plan:
        """The plan for the given state of the table: the earlier one, where it is still valid.

        Raises as :meth:`Planner.plan`.
        """
        if state.instead_of != self._instead_of:
            self._made, self._instead_of = None, state.instead_of  # it would take other rows out
        if self._made is not None and self.is_for(state):
            return self._made[0]
        request = await self._request(state)
        left_s = None
        if self._deadline_s is not None:
            left_s = self._until - asyncio.get_running_loop().time()
            if left_s <= 0.0:
                raise DeadlineExceeded(
                    f"table {self._keys.name!r} has changed before {self.kind.type} was planned, again and "
                    f"again for {self._deadline_s:.0f} s"
                )
        planner, limits, began = self._planner, (left_s, self._whose), time.time()
        if self._made is None or not await planner.holds(self.kind, *self._made, request, *limits):
            self._made = await planner.plan(self.kind, request, *limits), request
        self._planned_on = state.planned_on
        self._took = began, time.time()
        return self._made[0]

    def spans(self, arg: OperationArg) -> tuple[Span, Span]:
        """The spans of the operation's start, which has just happened, and of its plan."""
        began, ended = self._took
        start = Span(arg.trace, "start", "start", arg.started_at, time.time())
        plan = {"jobs": arg.partition_count, "dynamic": arg.dynamic}
        return start, Span(arg.trace, "plan", "plan", began, ended, attributes=plan)

    def is_for(self, state: TableState) -> bool:
        """Whether there is a plan for exactly this state."""
        return self._made is not None and state.planned_on == self._planned_on

    async def preview(self, state: TableState) -> Mapping[str, Any]:
        """The preview for the given state of the table; raises as :meth:`Planner.plan`."""
        return await self._planner.preview(self.kind, await self._request(state), self._deadline_s)

    async def _request(self, state: TableState) -> PlanRequest:
        check_can_replace(self.kind, state.instead_of)
        active = await active_operations(self._client, self._keys) if self.kind.sees_active else ()
        return PlanRequest(
            table=state.record,
            head=state.head,
            watermarks=marks_at(self._client, state.record, state.recent_watermarks, state.revision),
            argument=instead(self.body.argument, state.instead_of),
            partitions=self.body.partitions or None,
            options=self.body.options,
            active=active,
            object=self.body.object,
            index=state.index,
        )


def instead(argument: dict[str, Any], operation: str) -> dict[str, Any]:
    """The argument of an operation that replaces the rows of an earlier one; without one: as it is.

    A mode that overwrites replaces them anyway.
    """
    overwrites = str(argument.get("mode", "")).startswith("overwrite")
    return {**argument, "replaces": operation} if operation and not overwrites else argument


# -- where types plan --------------------------------------------------------------------------------


def _planned(name: str, request: PlanRequest, surroundings: Surroundings) -> Plan:
    """Before the first files of a table are written, its folder becomes its own; later only if its creator
    may have died before."""
    kind, table = surroundings.registry.get(name), request.table
    plan = make_plan(kind, request)
    if plan.output is not None:
        from distop.lake.rows import with_rows

        plan = with_rows(plan, request)
    if stages_files(kind, plan) and (request.head is None or table.found_empty):
        try:
            take_folder(table.location, table.uuid, storage_of(table), found_empty=table.found_empty)
        except OSError as error:
            raise PreconditionFailed(
                f"this coordinator cannot write to {table.location}: {error}", details={"table": table.name}
            ) from error
    return plan


def _previewed(name: str, request: PlanRequest, surroundings: Surroundings) -> Mapping[str, Any]:
    kind = surroundings.registry.get(name)
    return kind.preview(checked(kind, request))


def _holds(
    name: str, plan: Plan, made_on: PlanRequest, request: PlanRequest, surroundings: Surroundings
) -> bool:
    kind = surroundings.registry.get(name)
    return kind.plan_holds(plan, checked(kind, made_on), checked(kind, request))
