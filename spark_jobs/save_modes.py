"""What a mode of ingest means for an Iceberg table: checks at the start, and the step that publishes."""

from __future__ import annotations

from typing import Any

from distop.metastore.records import OperationArg, StepRecord
from distop.operations.api import PlanRequest
from distop.spark_jobs.ingest_argument import IngestArgument, invalid

_STEPS = {
    "append": "iceberg.append",
    "overwrite": "iceberg.overwrite",
    "overwrite_partitions": "iceberg.overwrite_partitions",
    "error_if_exists": "iceberg.append_if_empty",
    "ignore": "iceberg.append_or_ignore",
}

DEFAULT_ON_CONFLICT = {"append": "rebase", "overwrite": "refuse", "overwrite_partitions": "refuse"}
"""An append loses nothing by being put on top of what others have written; what replaces rows would lose
theirs. The other modes look at the table itself."""


def on_conflict(argument: IngestArgument) -> str:
    """What is to happen when others write to the table meanwhile; empty for modes that do not ask.

    Raises :class:`~distop.errors.InvalidArgument` if the mode leaves nothing to choose.
    """
    default = DEFAULT_ON_CONFLICT.get(argument.mode, "")
    if argument.on_conflict is not None and not default:
        raise invalid(
            "on_conflict", f"mode {argument.mode} goes by whether the table holds data, not by who wrote it"
        )
    return argument.on_conflict or default


def is_ignored(request: PlanRequest, argument: IngestArgument) -> bool:
    """Whether there is nothing to do, since the mode is ``ignore`` and the table holds data.

    Raises :class:`~distop.errors.TableNotEmpty` if it does and the mode is ``error_if_exists``.
    """
    if argument.mode not in ("error_if_exists", "ignore") or request.table.format != "iceberg":
        return False
    from distop.commit.content import data_at, not_empty
    from distop.commit.storage import storage_of

    found = data_at(request.head, request.table.options.get("properties"), storage_of(request.table))
    if found is not None and argument.mode == "error_if_exists":
        raise not_empty(request.table.name, found)
    return found is not None


def steps_of(operation: OperationArg) -> list[StepRecord]:
    """The step that publishes an ingest into an Iceberg table, as its plan says."""
    plan = operation.argument
    mode = str(plan.get("mode"))
    argument: dict[str, Any] = {}
    if (plan.get("onConflict") or DEFAULT_ON_CONFLICT.get(mode)) == "refuse":
        argument["expectedSnapshotId"] = plan.get("expectedSnapshotId")
    return [StepRecord(step=_STEPS[mode], argument=argument)]
