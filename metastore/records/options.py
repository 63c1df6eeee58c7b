"""How to run an operation, and its follow-up: the parts of a request that are stored unchanged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from distop.errors import InvalidArgument

JOB_BACKOFF_S = 0.1
MAX_JOB_BACKOFF_S = 600.0
"""Longest back-off before the second attempt at a job: it occupies a slot in Spark meanwhile."""

MAX_FOLLOW_UPS = 8
"""How deep follow-ups may be nested."""

FIRST_PAUSE_S = 0.05
MAX_RETRY_FOR_S = 10 * 365 * 86_400
MAX_RETRY_PAUSE_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How long the completion of an operation is tried again while it fails. Pauses between two attempts
    begin with 0.1 s, and double."""

    for_s: float = 1800.0
    """Seconds from the first failure; the last attempt is the first one after that. 0: there is but one."""
    longest_pause_s: float = 30.0

    def pause_s(self, failures: int) -> float:
        """Seconds from the last of so many failures to the next attempt."""
        return min(FIRST_PAUSE_S * 2.0 ** min(failures, 20), self.longest_pause_s)

    def __post_init__(self) -> None:
        if not 0 <= self.for_s <= MAX_RETRY_FOR_S:
            raise InvalidArgument(
                f"retry_for must lie between 0 and {MAX_RETRY_FOR_S:,} seconds",
                details={"field": "options.retry_for_s"},
            )
        if not 1 <= self.longest_pause_s <= MAX_RETRY_PAUSE_S:
            raise InvalidArgument(f"longest_pause_s must lie between 1 and {MAX_RETRY_PAUSE_S:g} seconds")


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
    retry_for_s: float | None = None
    """As :attr:`Retry.for_s`; ``None``: as the type of the operation says."""

    def retry(self, of_type: Retry) -> Retry:
        """The policy of an operation whose type has this one."""
        return of_type if self.retry_for_s is None else replace(of_type, for_s=self.retry_for_s)

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
        self.retry(Retry())


class FollowUp(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    """An operation that the finish of another one starts, on the same table, in the same transaction."""

    type: str
    object: str = ""
    argument: dict[str, Any] = {}
    """The argument as the caller sent it: it is planned on the result of the finish."""
    partitions: list[str] = []
    options: OperationOptions = msgspec.field(default_factory=OperationOptions)
    then: FollowUp | None = None
