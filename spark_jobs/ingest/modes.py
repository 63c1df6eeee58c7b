"""What a mode of ingest means: checks at the start, and the steps that publish."""

from __future__ import annotations

from typing import Literal, Protocol

from distop.errors import PreconditionFailed
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.operations.api import PlanRequest
from distop.operations.arguments import invalid
from distop.spark_jobs.ingest.argument import FileMode, IngestArgument


class HasMode(Protocol):
    """An argument that says how to save, as that of ingest does."""

    @property
    def mode(self) -> FileMode:
        """See :class:`IngestArgument`."""

    on_conflict: Literal["rebase", "refuse"] | None


NOTHING = "nothing"
"""Field of the recorded plan of an operation that found nothing new."""
TOLD = ("warnings", "filesSkipped")
"""Fields of the recorded plan that the finished operation tells as they are."""
DEFAULT_ON_CONFLICT = {
    "append": "rebase",
    "overwrite": "refuse",
    "overwrite_partitions": "refuse",
    "merge": "refuse",
}
"""An append loses nothing by being put on top of what others have written; what replaces rows would lose
theirs. The other modes look at the table itself."""


def on_conflict(argument: HasMode) -> str:
    """What is to happen when others write to the table meanwhile; empty for modes that do not ask.

    Raises :class:`~distop.errors.InvalidArgument` if the mode leaves nothing to choose.
    """
    default = DEFAULT_ON_CONFLICT.get(argument.mode, "")
    if argument.on_conflict is not None and not default:
        raise invalid(
            "on_conflict", f"mode {argument.mode} goes by whether the table holds data, not by who wrote it"
        )
    return argument.on_conflict or default


def is_ignored(request: PlanRequest, argument: HasMode) -> bool:
    """Whether there is nothing to do, since the mode is ``ignore`` and the table holds data.

    Raises :class:`~distop.errors.TableNotEmpty` if it does and the mode is ``error_if_exists``.
    """
    if argument.mode not in ("error_if_exists", "ignore"):
        return False
    from distop.commit.outputs import output_of

    found = output_of(request.table.format).holds_data(request.table, request.head)
    if found is not None and argument.mode == "error_if_exists":
        raise found
    return found is not None


def check_mode(request: PlanRequest, argument: HasMode) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` unless the table's format has this mode, and
    :class:`~distop.errors.PreconditionFailed` if its files do not allow it."""
    from distop.commit.outputs import output_of

    modes = output_of(request.table.format).modes
    if argument.mode not in modes:
        raise invalid("mode", f"tables of the format {request.table.format} know {', '.join(sorted(modes))}")
    if argument.mode == "overwrite_partitions" and request.table.format == "iceberg":
        _check_partitioning(request)
    if argument.on_conflict is not None and request.table.format != "iceberg":
        raise invalid("on_conflict", "only Iceberg tables tell who else has written to them")


def _check_partitioning(request: PlanRequest) -> None:
    from distop.commit.files.storage import storage_of
    from distop.commit.iceberg.content import other_partitioning

    if request.head is not None and other_partitioning(request.head, storage_of(request.table)):
        raise PreconditionFailed(
            f"table {request.table.name!r} holds files of an earlier partitioning: which of their rows are "
            "in a partition of the present one nobody can tell",
            hint="overwrite the whole table",
            details={"field": "mode"},
        )


def check_object(request: PlanRequest, argument: IngestArgument) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` unless it may run beside others, if it is to.

    Of operations that append to an Iceberg table the order does not matter: each is put on top of what the
    others have published meanwhile.
    """
    if request.object and (
        argument.mode != "append"
        or on_conflict(argument) != "rebase"
        or request.table.format != "iceberg"
        or argument.branch is not None
    ):
        raise invalid(
            "object",
            f"ingest {request.object!r} cannot run beside others: only appends to an Iceberg table can",
            "leave the object out: it then waits for its turn",
        )


def steps_of(operation: OperationArg) -> list[StepRecord]:
    """The steps that publish an ingest, as its plan says."""
    from distop.commit.layout.staging import format_of
    from distop.commit.outputs import output_of

    return output_of(format_of(operation)).steps(operation)
