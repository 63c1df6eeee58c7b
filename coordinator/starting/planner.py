"""Planning an operation: the code of its type, in a thread, bounded in number and time."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import Executor
from dataclasses import replace

from distop.coordinator.metrics.counts import Metrics
from distop.errors import Busy, DeadlineExceeded
from distop.metastore.records.keyspace import check_partition
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.registry import Registry

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
        if self._planning >= MAX_PLANNING:
            raise Busy(f"{MAX_PLANNING} operations are being planned already")
        self._planning += 1
        self._metrics.planning(self._planning)
        try:
            # Not wait_for: it swallows a cancellation that comes along with the result (Python up to 3.11).
            async with asyncio.timeout(limit_s):
                plan = await asyncio.get_running_loop().run_in_executor(self._threads, kind.plan, request)
        except TimeoutError:
            raise DeadlineExceeded(f"planning {kind.type} took longer than {limit_s:.0f} s") from None
        finally:
            self._planning -= 1
            self._metrics.planning(self._planning)
        for partition in plan.partitions or ():
            check_partition(partition)
        return replace(plan, uuid=plan.uuid or uuid.uuid4().hex[:12])
