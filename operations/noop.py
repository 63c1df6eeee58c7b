"""``noop``: jobs that do nothing. For probes, benchmarks and trying things out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from distop.errors import JobFailed
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.arguments import invalid
from distop.operations.job import JobContext

MAX_PARTITIONS = 1_000_000


class NoopArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The argument of ``noop``."""

    partitions: int = 1
    """Number of jobs, 0 to a million."""
    fail: list[str] = []
    """Partitions whose job fails."""

    def __post_init__(self) -> None:
        if not 0 <= self.partitions <= MAX_PARTITIONS:
            raise invalid("partitions", f"partitions must lie between 0 and {MAX_PARTITIONS}")


class Noop(DistributedOperation[NoopArgument]):
    """Does nothing, in the requested number of jobs."""

    type = "noop"
    small_jobs = True
    only_computes = True

    def plan(self, request: PlanRequest[NoopArgument]) -> Plan:
        if request.partitions is not None:
            return Plan(partitions=list(request.partitions))
        return Plan(partition_count=request.argument.partitions)

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
        """The jobs of both; not when some are to fail, since those are named by number."""
        if first.get("fail") or second.get("fail"):
            return None
        return {"partitions": int(first.get("partitions", 1)) + int(second.get("partitions", 1))}

    def run_job(self, job: JobContext[NoopArgument]) -> Mapping[str, Any] | None:
        if job.partition in job.argument.fail:
            raise JobFailed(f"job {job.partition} was asked to fail")
        return None
