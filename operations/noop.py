"""``noop``: jobs that do nothing. For probes, benchmarks and trying things out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from distop.errors import InvalidArgument, JobFailed
from distop.metastore.records.record import convert
from distop.operations.api import DistributedOperation, Plan, PlanRequest
from distop.operations.job import JobContext

MAX_PARTITIONS = 1_000_000


class NoopArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The argument of ``noop``."""

    partitions: int = 1
    """Number of jobs, 0 to a million."""
    fail: list[str] = []
    """Partitions whose job fails."""


class Noop(DistributedOperation):
    """Does nothing, in the requested number of jobs."""

    type = "noop"
    small_jobs = True
    only_computes = True

    def plan(self, request: PlanRequest) -> Plan:
        try:
            argument = convert(dict(request.argument), NoopArgument)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"argument of noop: {error}", details={"field": "argument"}) from error
        if not 0 <= argument.partitions <= MAX_PARTITIONS:
            raise InvalidArgument(
                f"partitions must lie between 0 and {MAX_PARTITIONS}", details={"field": "partitions"}
            )
        chosen = None if request.partitions is None else list(request.partitions)
        count = argument.partitions if chosen is None else len(chosen)
        return Plan(argument={"fail": argument.fail}, partition_count=count, partitions=chosen)

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
        """The jobs of both; not when some are to fail, since those are named by number."""
        if first.get("fail") or second.get("fail"):
            return None
        return {"partitions": int(first.get("partitions", 1)) + int(second.get("partitions", 1))}

    def run_job(self, job: JobContext) -> Mapping[str, Any] | None:
        if job.partition in job.operation.argument["fail"]:
            raise JobFailed(f"job {job.partition} was asked to fail")
        return None
