"""Options of a start: how to run the operation, and its follow-up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distop.client.transport.connection import make_request
from distop.errors import InvalidArgument
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import to_json

LONGEST_DEADLINE_S = 10 * 365 * 86_400


def operation_options(
    *,
    deadline_s: float | None = None,
    max_job_attempts: int | None = None,
    job_backoff_s: float | None = None,
    attempt_timeout_s: float | None = None,
    max_failed_partitions: int = 0,
    retry_for_s: float | None = None,
) -> pb.OperationOptions:
    """How to run an operation; see :meth:`~distop.client.aio.AsyncClient.start`.

    Raises :class:`~distop.errors.InvalidArgument`.
    """
    options = make_request(
        pb.OperationOptions,
        max_job_attempts=max_job_attempts or 0,
        max_failed_partitions=max_failed_partitions,
    )
    durations = {
        "deadline": deadline_s,
        "job_backoff": job_backoff_s,
        "attempt_timeout": attempt_timeout_s,
        "retry_for": retry_for_s,
    }
    for name, seconds in durations.items():
        if seconds is None:
            continue
        if not 0 <= seconds <= LONGEST_DEADLINE_S or (not seconds and name != "retry_for"):
            raise InvalidArgument(
                f"{name} must lie between 0 and {LONGEST_DEADLINE_S:,} seconds",
                details={"field": f"options.{name}"},
            )
        getattr(options, name).FromNanoseconds(math.ceil(seconds * 1e9))
    return options


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowUp:
    """An operation that the finish of another one starts, on the same table, in the same transaction.

    It is planned on the result of that finish. If that fails, the first operation still finishes, and its
    facts say why (``followUpError``); otherwise they name it (``followUp``).
    """

    type: str
    argument: Mapping[str, Any] = field(default_factory=dict)
    object: str = ""
    partitions: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """As the parameters of :func:`operation_options`: ``{"deadline_s": 600}``."""
    then: FollowUp | None = None
    """The follow-up of the follow-up."""

    def to_proto(self) -> pb.FollowUp:
        """As a message. Raises :class:`~distop.errors.InvalidArgument`."""
        return make_request(
            pb.FollowUp,
            type=self.type,
            object=self.object,
            argument_json=to_json(self.argument, "then.argument"),
            partitions=self.partitions,
            options=operation_options(**self.options),
            then=self.then.to_proto() if self.then is not None else None,
        )
