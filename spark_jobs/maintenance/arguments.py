"""The arguments of maintenance, and how they are read."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Literal, TypeVar

import msgspec

from distop.errors import PreconditionFailed
from distop.lake.rules.model import RawRules
from distop.operations import PlanRequest
from distop.operations.arguments import invalid

A = TypeVar("A", bound=msgspec.Struct)

DEFAULT_OLDER_THAN = "3d"
GROUP_BYTES = 1 << 30
"""A larger partition, in bytes, is read by several jobs, unless a uniqueness rule needs all of it."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_AGE = re.compile(r"([0-9]+(?:\.[0-9]*)?)([smhd])")


class RollbackArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The target: one of the two."""

    snapshot: str | int | None = None
    """Id of a snapshot; in JSON a string, since numbers lose their last digits there."""
    as_of: str | None = None
    """The snapshot that was present at this time, such as ``2024-05-01T08:00:00Z``."""
    watermarks: Literal["restore", "keep"] = "restore"
    """``restore``: what the undone snapshots had ingested can be ingested again. ``keep``: watermarks
    stay."""


class ExpireArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which snapshots to expire."""

    older_than: str = DEFAULT_OLDER_THAN
    """Age, such as ``12h`` or ``30d``, or a time, such as ``2024-05-01T08:00:00Z``."""
    keep_last: int = 1
    """This many of the newest of each branch stay, however old they are."""


class OrphansArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which files to remove."""

    older_than: str = DEFAULT_OLDER_THAN
    """Age or time, as for ``expire_snapshots``; at least a day, and at least as long as the slowest program
    other than distop takes from writing a data file to committing it."""
    dry_run: bool = True
    """Only report what would be removed."""


class PublishArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Name of the branch."""

    branch: str
    on_conflict: Literal["refuse", "rebase"] = "refuse"
    """What to do if others have written to the table since the branch began: refuse, or append the rows that
    were appended to the branch to the table."""
    snapshot: str | int | None = None
    """Publish it only if it is at this snapshot, the validated one."""
    alone: bool = False
    """Publish it only if it has one snapshot of its own: none that a rollback has taken out of the table."""


class DropArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Name of the branch."""

    branch: str


class ValidateArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which rows to check, and with which rules."""

    rules: RawRules
    """See :class:`~distop.lake.rules.model.RuleArgument`; text is a ``check``."""
    branch: str | None = None
    """Check this branch (or tag). Without ``branch``, ``snapshot`` or ``as_of``: the table's present snapshot
    at the start."""
    snapshot: str | int | None = None
    """Id of a snapshot; in JSON a string, since numbers lose their last digits there."""
    as_of: str | None = None
    """The snapshot that was present at this time, such as ``2024-05-01T08:00:00Z``."""
    publish: bool = False
    """Publish the branch if no rule is broken: exactly the checked snapshot."""
    on_conflict: Literal["refuse", "rebase"] = "refuse"
    """With ``publish``: what to do if others have written to the table since the branch began."""
    report_only: bool = False
    """Succeed also if rules are broken, and report them."""
    samples: int = 5
    """Sample rows for each rule and job."""
    show: list[str] | None = None
    """Columns of these rows, in addition to those of the rule. Default: those that identify a row or its
    partition, if the table defines them."""
    group_bytes: int = GROUP_BYTES
    """About how many bytes one job reads at most. Uniqueness rules need a whole partition."""


def checked_argument(request: PlanRequest[A], *, partitions: bool = False) -> A:
    """The argument of an operation that is for Iceberg tables only.

    Parameters
    ----------
    partitions:
        Whether some of its partitions may be selected.
    """
    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}, this is for Iceberg tables"
        )
    if request.partitions is not None and not partitions:
        raise invalid("partitions", "this operation makes its own partitions")
    return request.argument


def snapshot_id(given: str | int | None) -> int | None:
    """The id of a snapshot in callers' form."""
    try:
        return None if given is None else int(given)
    except ValueError:
        raise invalid("snapshot", f"{given!r} is not a snapshot id") from None


def older_than_time(text: str) -> float:
    """Seconds since the Unix epoch: of a time, or of an age before now."""
    if age := _AGE.fullmatch(text):
        return max(0.0, time.time() - float(age[1]) * _SECONDS[age[2]])
    return time_of("older_than", text)


def time_of(field: str, text: str) -> float:
    """Seconds since the Unix epoch of a time in callers' form; UTC by default."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise invalid(
            field, f"{text!r} is neither a time such as 2024-05-01T08:00:00Z nor an age such as 12h"
        ) from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
