"""The rows that the jobs of an operation write to its table: for its plan, its jobs and its commit.

Types use :meth:`distop.Plan.rows` and ``job.writer()``; services derive the rest from them here: one object
for each table format.

An operation type asks the :class:`FormatOutput` of its table when it plans, when a job writes, and for its
commit steps. Code outside these objects does not depend on the format.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from distop.errors import InvalidArgument, PreconditionFailed, TableNotEmpty
from distop.lake.delta.commit import delta_table, refuse_unwritable
from distop.lake.delta.output import MAX_INLINE_JOBS, DeltaFileList, check_layout, layout_of, refuse_data
from distop.lake.iceberg.metadata_files import TableFile, data_at, not_empty, other_partitioning
from distop.lake.layout.model import DEFAULT_PROPERTIES, Layout
from distop.lake.layout.partitioning import check_folders, never_empty
from distop.lake.layout.schemas import parse_schema
from distop.lake.layout.staging import DELTA, FILES, ICEBERG, OUTPUT, ROWS, data_folder, format_of
from distop.lake.plain.publish import PlainFileList, refuse_files
from distop.lake.storage.storage import storage_of
from distop.lake.writing.file_lists import FileList, IcebergFileList
from distop.lake.writing.writer import StagedWriter
from distop.metastore.records.operation import OperationArg, StepRecord
from distop.metastore.records.table import Head, TableRecord
from distop.operations.api import Plan, PlanRequest, extended
from distop.operations.job import JobContext, staging_folder

EVERY_MODE = frozenset({"append", "overwrite", "overwrite_partitions", "error_if_exists", "ignore"})


class FormatOutput(ABC):
    """What tables of one format can do and how they are written. Stateless."""

    format: ClassVar[str]
    modes: ClassVar[frozenset[str]] = EVERY_MODE
    """Save modes that operations on such a table can have."""
    widens: ClassVar[bool] = False
    """Whether the type of a column may become a wider one while the files stay as they are."""

    @abstractmethod
    def layout(self, table: TableRecord, head: Head | None) -> Layout | None:
        """The columns of the table, if published data fixed them."""

    def check(self, layout: Layout) -> None:  # noqa: B027 - a default, not a gap
        """Raise :class:`~distop.errors.InvalidArgument` if tables of the format cannot have this layout."""

    def check_mode(self, table: TableRecord, head: Head | None, mode: str) -> None:
        """Check that an operation on the table can have this save mode.

        Raises
        ------
        InvalidArgument
            Tables of the format do not support it.
        PreconditionFailed
            The table does not allow it.
        """
        if mode not in self.modes:
            raise InvalidArgument(
                f"tables of the format {self.format} support {', '.join(sorted(self.modes))}",
                details={"field": "mode"},
            )

    @abstractmethod
    def holds_data(self, table: TableRecord, head: Head | None) -> Exception | None:
        """``None`` if the table has no data; otherwise the error that names its content."""

    def never_empty(self, layout: Layout) -> list[str]:
        """Columns in which an empty text would become NULL: rows that have one are bad."""
        return never_empty(layout.schema, layout.spec)

    @abstractmethod
    def file_list(self, layout: Layout, arg: OperationArg) -> FileList:
        """An empty list for the files of one attempt."""

    @abstractmethod
    def steps(self, arg: OperationArg) -> list[StepRecord]:
        """The commit steps of an operation whose argument records ``mode`` and ``layout``."""

    def lists_in_records(self, arg: OperationArg) -> bool:
        """Whether a job's record may hold the list of its files."""
        return True

    def writer(self, layout: Layout, job: JobContext) -> StagedWriter:
        """A writer for the rows of one attempt at a job."""

        def path_for(suffix: str, folder: str) -> str:
            return job.staging_path(suffix, folder=folder)

        return StagedWriter(
            layout,
            path_for,
            storage=job.operation.storage,
            files=self.file_list(layout, job.operation),
            data_folder=data_folder(self.format),
            inline=self.lists_in_records(job.operation),
        )


class IcebergOutput(FormatOutput):
    """Files stay where they are written; a snapshot makes them part of the table."""

    format = ICEBERG
    modes = EVERY_MODE | {"merge"}
    widens = True
    _STEPS: ClassVar[dict[str, str]] = {
        "append": "iceberg.append",
        "overwrite": "iceberg.overwrite",
        "overwrite_partitions": "iceberg.overwrite_partitions",
        "merge": "iceberg.merge",
        "error_if_exists": "iceberg.append_if_empty",
        "ignore": "iceberg.append_or_ignore",
    }

    def layout(self, table: TableRecord, head: Head | None) -> Layout | None:
        if head is None:
            return None
        return Layout.of(TableFile.read(head.metadata_location, storage=storage_of(table)).metadata)

    def check_mode(self, table: TableRecord, head: Head | None, mode: str) -> None:
        super().check_mode(table, head, mode)
        if mode != "overwrite_partitions" or head is None:
            return
        if other_partitioning(head, storage_of(table)):
            raise PreconditionFailed(
                f"table {table.name!r} holds files of an earlier partitioning: it is unknown which of "
                "their rows are in a partition of the present one",
                hint="compact rewrites them in the present one; or overwrite the whole table",
                details={"field": "mode"},
            )

    def holds_data(self, table: TableRecord, head: Head | None) -> Exception | None:
        snapshot = data_at(head, storage_of(table))
        return None if snapshot is None else not_empty(table.name, snapshot)

    def never_empty(self, layout: Layout) -> list[str]:
        return []

    def file_list(self, layout: Layout, arg: OperationArg) -> FileList:
        return IcebergFileList(layout)

    def steps(self, arg: OperationArg) -> list[StepRecord]:
        """With ``onConflict = refuse`` the head must still be at ``expectedSnapshotId``."""
        plan, mode = arg.argument, str(arg.argument.get("mode"))
        if replaces := plan.get("replaces"):
            return [StepRecord(step="iceberg.append_instead", argument={"operation": replaces})]
        expected = {"expectedSnapshotId": plan.get("expectedSnapshotId")}
        # Plans of an earlier version do not have this field.
        refuses = (plan.get("onConflict") or ("refuse" if mode.startswith("overwrite") else "")) == "refuse"
        return [StepRecord(step=self._STEPS[mode], argument=expected if refuses else {})]


class FilesOutput(FormatOutput):
    """Files are staged and then moved into a plain tree of folders."""

    format = FILES

    def layout(self, table: TableRecord, head: Head | None) -> Layout | None:
        return Layout.from_json(head.layout) if head is not None and head.layout else None

    def check(self, layout: Layout) -> None:
        check_folders(layout.schema, layout.spec)

    def holds_data(self, table: TableRecord, head: Head | None) -> Exception | None:
        return _refusal(lambda: refuse_files(table.name, table.location, storage_of(table)))

    def file_list(self, layout: Layout, arg: OperationArg) -> FileList:
        return PlainFileList(layout)

    def steps(self, arg: OperationArg) -> list[StepRecord]:
        if arg.argument.get("ignored"):
            return [StepRecord(step="files.publish", argument={"mode": "ignore", "ignored": True})]
        mode = {"mode": arg.argument.get("mode")}
        return [StepRecord(step="files.publish", argument=mode), StepRecord(step="files.head")]


class DeltaOutput(FormatOutput):
    """Files stay where they are written; one external step commits them to the table's own log."""

    format = DELTA
    modes = EVERY_MODE - {"overwrite_partitions"}

    def layout(self, table: TableRecord, head: Head | None) -> Layout | None:
        delta = delta_table(table.location, storage_of(table))
        return None if delta is None else layout_of(delta, table.options.get("properties"))

    def check_mode(self, table: TableRecord, head: Head | None, mode: str) -> None:
        super().check_mode(table, head, mode)
        delta = delta_table(table.location, storage_of(table)) if mode == "overwrite" else None
        if delta is not None:
            refuse_unwritable(delta, mode)

    def check(self, layout: Layout) -> None:
        check_layout(layout)

    def holds_data(self, table: TableRecord, head: Head | None) -> Exception | None:
        return _refusal(lambda: refuse_data(table.name, delta_table(table.location, storage_of(table))))

    def lists_in_records(self, arg: OperationArg) -> bool:
        return not arg.dynamic and arg.partition_count <= MAX_INLINE_JOBS

    def file_list(self, layout: Layout, arg: OperationArg) -> FileList:
        folder = staging_folder(arg, data_folder(DELTA)).removeprefix(arg.location).lstrip("/")
        return DeltaFileList(layout, folder)

    def steps(self, arg: OperationArg) -> list[StepRecord]:
        if arg.argument.get("ignored"):
            return [StepRecord(step="delta.publish", argument={"mode": "ignore", "ignored": True})]
        return [StepRecord(step="delta.publish", argument={"mode": arg.argument.get("mode")})]


def _refusal(look: Callable[[], None]) -> TableNotEmpty | None:
    try:
        look()
    except TableNotEmpty as error:
        return error
    return None


_KINDS: dict[str, Callable[[], FormatOutput]] = {
    ICEBERG: IcebergOutput,
    FILES: FilesOutput,
    DELTA: DeltaOutput,
}


def output_of(table_format: str) -> FormatOutput:
    """The output for a format.

    Raises :class:`~distop.errors.InvalidArgument` for an unknown format.
    """
    if table_format not in _KINDS:
        raise InvalidArgument(
            f"this version cannot write to tables of the format {table_format!r}", details={"field": "format"}
        )
    return _KINDS[table_format]()


def with_rows(plan: Plan, request: PlanRequest) -> Plan:
    """A plan with rows of its jobs, ready to be recorded; raises as :func:`rows_plan`."""
    if plan.output is None:
        return plan
    recorded = {ROWS: True, **rows_plan(request, plan.output.schema, mode=plan.output.mode)}
    # Without the schema: the coordinator, which gets the plan, need not load pyarrow for it.
    output = replace(plan.output, schema=None)
    return replace(plan, argument=extended(plan.argument, recorded), output=output)


def rows_plan(request: PlanRequest, schema: Any, *, mode: str = "append") -> dict[str, Any]:
    """The part of a plan's argument that describes the rows of its jobs.

    Parameters
    ----------
    schema:
        ``pyarrow.Schema`` of the rows. If the table has columns, it keeps them, and rows must match them.
    mode:
        ``append``, ``overwrite``, ``overwrite_partitions``. Overwriting is refused at the end if another
        writer has changed an Iceberg table meanwhile.

    Raises
    ------
    InvalidArgument
        A table of this format cannot have these columns or partitions, or does not support the mode.
    PreconditionFailed
        The table does not allow the mode, or to write to it.
    """
    output = output_of(request.table.format)
    output.check_mode(request.table, request.head, mode)
    layout = table_layout(request) or new_layout(request.table, schema)
    output.check(layout)
    snapshot = None if request.head is None else request.head.snapshot_id
    return {
        "mode": mode,
        OUTPUT: output.format,
        "layout": layout.to_json(),
        "expectedSnapshotId": None if snapshot is None else str(snapshot),
    }


def rows_writer(job: JobContext) -> StagedWriter:
    """Takes the rows of one attempt, as a context manager. They are invisible before the operation ends."""
    layout = Layout.from_json(job.operation.argument["layout"])
    return output_of(format_of(job.operation)).writer(layout, job)


def rows_steps(operation: OperationArg) -> list[StepRecord]:
    """The steps that publish the rows of all jobs."""
    return output_of(format_of(operation)).steps(operation)


def table_layout(request: PlanRequest) -> Layout | None:
    """The table's layout, if it has one: published, or given when it was created."""
    published = output_of(request.table.format).layout(request.table, request.head)
    schema = request.table.options.get("schema")
    if published is not None or schema is None:
        return published
    return new_layout(request.table, parse_schema(schema))


def new_layout(table: TableRecord, schema: Any) -> Layout:
    """The layout that a table gets with its first rows, as its options have it."""
    options = table.options
    properties = {**DEFAULT_PROPERTIES, **(options.get("properties") or {})}
    return Layout.create(schema, options.get("partitionBy", ()), properties)
