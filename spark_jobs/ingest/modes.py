"""The modes of ingest: checks at the start, and the steps that publish."""

from __future__ import annotations

from typing import Literal, Protocol

from distop.metastore.records.operation import OperationArg, StepRecord
from distop.operations.api import PlanRequest
from distop.operations.arguments import invalid
from distop.spark_jobs.ingest.argument import FileMode, IngestArgument


class HasMode(Protocol):
    """An argument with a save mode, such as that of ingest."""

    @property
    def mode(self) -> FileMode:
        """See :class:`IngestArgument`."""

    on_conflict: Literal["rebase", "refuse"] | None


NOTHING = "nothing"
"""Field of the recorded plan of an operation that found nothing new."""
REPORTED = ("warnings", "ignoredColumns", "filesSkipped", "filesRemaining", "replayOf")
"""Fields of the recorded plan that the finished operation reports unchanged."""
DEFAULT_ON_CONFLICT = {
    "append": "rebase",
    "overwrite": "refuse",
    "overwrite_partitions": "refuse",
    "merge": "refuse",
}
"""Rebasing an append onto concurrent changes loses nothing; rebasing a replacement would lose the changes.
The other modes check the table itself."""


def on_conflict(argument: HasMode) -> str:
    """What to do if others write to the table meanwhile; empty for modes without that option.

    Raises :class:`~distop.errors.InvalidArgument` if the mode leaves no choice.
    """
    default = DEFAULT_ON_CONFLICT.get(argument.mode, "")
    if argument.on_conflict is not None and not default:
        raise invalid(
            "on_conflict",
            f"--mode {argument.mode} depends only on whether the table holds data, not on who wrote it",
        )
    return argument.on_conflict or default


def is_ignored(request: PlanRequest, argument: HasMode) -> bool:
    """Whether there is nothing to do, since the mode is ``ignore`` and the table holds data.

    Raises :class:`~distop.errors.TableNotEmpty` if it does and the mode is ``error_if_exists``.
    """
    if argument.mode not in ("error_if_exists", "ignore"):
        return False
    from distop.lake.outputs import output_of

    found = output_of(request.table.format).holds_data(request.table, request.head)
    if found is not None and argument.mode == "error_if_exists":
        raise found
    return found is not None


def check_mode(request: PlanRequest, argument: HasMode) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` unless the table's format supports this mode, and
    :class:`~distop.errors.PreconditionFailed` if its files do not allow it."""
    from distop.lake.outputs import output_of

    output_of(request.table.format).check_mode(request.table, request.head, argument.mode)
    if argument.on_conflict is not None and request.table.format != "iceberg":
        raise invalid("on_conflict", "only Iceberg tables show who else has written to them")


def check_object(request: PlanRequest, argument: IngestArgument) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if it is to run concurrently and may not.

    The order of appends to an Iceberg table does not matter: each builds on what the others have published
    meanwhile.
    """
    if request.object and (
        argument.mode != "append"
        or on_conflict(argument) != "rebase"
        or request.table.format != "iceberg"
        or argument.branch is not None
    ):
        raise invalid(
            "object",
            f"ingest {request.object!r} cannot run concurrently: only appends to an Iceberg table can",
            "leave out --object: it then waits for its turn",
        )


def steps_of(operation: OperationArg) -> list[StepRecord]:
    """The steps that publish an ingest, according to its plan."""
    from distop.lake.layout.staging import format_of
    from distop.lake.outputs import output_of

    return output_of(format_of(operation)).steps(operation)
