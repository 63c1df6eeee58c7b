"""How to run an operation, and its follow-up: the parts of a request that are stored unchanged."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from distop.errors import InvalidArgument

JOB_BACKOFF_S = 0.1
MAX_JOB_BACKOFF_S = 600.0
"""Longest back-off before the second attempt at a job: it occupies a slot in Spark meanwhile."""

MAX_FOLLOW_UPS = 8
"""How deep follow-ups may be nested."""


class OperationOptions(
    msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True
):
    """How to run an operation."""

    deadline_s: float | None = None
    """Seconds from the start after which it is aborted."""
    max_job_attempts: int = 3
    """Attempts at one job (in place) before it is marked failed."""
    job_backoff_s: float = JOB_BACKOFF_S
    """Seconds before the second attempt at a job; doubled before each further one, up to a bound."""
    attempt_timeout_s: float | None = None
    """Seconds after which an attempt is cancelled, and counts as one that failed."""
    max_failed_partitions: int = 0
    """How many jobs may fail without failing the operation, which then publishes the results of the others;
    -1: any number. One must succeed."""

    def too_many_failed(self, failed: int, total: int) -> bool:
        """Whether this many failed jobs out of ``total`` make the operation fail."""
        allowed = total if self.max_failed_partitions < 0 else self.max_failed_partitions
        return failed > allowed or 0 < total <= failed

    def __post_init__(self) -> None:
        if self.deadline_s is not None and not self.deadline_s > 0:
            raise InvalidArgument(
                "deadline must be positive seconds", details={"field": "options.deadline_s"}
            )
        if self.max_failed_partitions < -1:
            raise InvalidArgument(
                "max_failed_partitions is a number of partitions, or -1 for any number",
                details={"field": "options.max_failed_partitions"},
            )
        if not 1 <= self.max_job_attempts <= 100:
            raise InvalidArgument(
                "max_job_attempts must lie between 1 and 100", details={"field": "options.max_job_attempts"}
            )
        if not 0 < self.job_backoff_s <= MAX_JOB_BACKOFF_S:
            raise InvalidArgument(
                f"job_backoff must be positive seconds, at most {MAX_JOB_BACKOFF_S:g}",
                details={"field": "options.job_backoff_s"},
            )
        if self.attempt_timeout_s is not None and not 0 < self.attempt_timeout_s < math.inf:
            raise InvalidArgument(
                "attempt_timeout must be positive seconds", details={"field": "options.attempt_timeout_s"}
            )


class FollowUp(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """An operation that the finish of another one starts, on the same table, in the same transaction."""

    type: str
    object: str = ""
    argument: dict[str, Any] = {}
    """The argument as the caller sent it: it is planned on the result of the finish."""
    partitions: list[str] = []
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    then: FollowUp | None = None
