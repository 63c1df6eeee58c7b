"""The argument of ``build_index``."""

from __future__ import annotations

import msgspec

from distop.errors import InvalidName, PreconditionFailed
from distop.operations import PlanRequest, check_object
from distop.operations.arguments import invalid

FILES_PER_JOB = 256
"""Default number of data files per job."""
MOST_FILES_PER_JOB = 1000

_MARKED = "column="
"""Prefix of objects for columns whose names are not valid objects."""


class BuildIndexArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The argument of ``build_index``."""

    column: str
    """The column. It must be of a primitive type, and not within a struct."""
    full: bool = False
    """Index all files again, instead of only those that the index does not cover yet."""
    files_per_job: int = FILES_PER_JOB
    """Most data files that one job indexes."""

    def __post_init__(self) -> None:
        if not 1 <= self.files_per_job <= MOST_FILES_PER_JOB:
            raise invalid("files_per_job", f"--arg files_per_job must lie between 1 and {MOST_FILES_PER_JOB}")


def object_of_column(column: str) -> str:
    """The object for a column: its name, if that is a valid object."""
    try:
        return check_object(column) if not column.startswith(_MARKED) else _MARKED + column
    except InvalidName:
        return _MARKED + column


def check_request(request: PlanRequest[BuildIndexArgument]) -> None:
    """Raises :class:`~distop.errors.InvalidArgument`, and :class:`~distop.errors.PreconditionFailed` for a
    table of another format."""
    if request.table.format != "iceberg":
        raise PreconditionFailed(
            f"table {request.table.name!r} has format {request.table.format}, indexes are for Iceberg tables"
        )
    if request.partitions is not None:
        raise invalid("partitions", "build_index makes its own partitions")
    column = request.argument.column
    wanted = object_of_column(column)
    if request.object != wanted:
        raise invalid("object", f"the index of column {column!r} is object {wanted!r}")
