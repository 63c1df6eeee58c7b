"""Ingesting into Delta tables: how jobs list their files, and the commit step that publishes them.

Jobs write Parquet at its final place; readers of a Delta table ignore files that its log does not name. One
external step commits all of them as one version. Its application transaction makes it idempotent (see
:mod:`distop.lake.delta.commit`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import IdentityTransform

from distop.commit.contract import IGNORED, FinishContext, StepPlan
from distop.errors import CorruptRecord, InvalidArgument, PreconditionFailed, TableNotEmpty, Unavailable
from distop.lake.delta.commit import (
    DeltaArgument,
    DeltaFile,
    delta_library,
    delta_table,
    refuse_unwritable,
    types_of,
)
from distop.lake.layout.evolution import evolution_of
from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import check_folders
from distop.lake.layout.staging import PRIVATE
from distop.lake.storage.storage import StorageOptions
from distop.lake.writing.file_lists import PrivateFileList, WrittenFile
from distop.metastore.records.operation import JobRecord, StepRecord
from distop.metastore.records.record import convert
from distop.operations.job import staging_folder

MAX_INLINE_JOBS = 500
"""Larger operations put no list in jobs' records: all lists would be in one step, which etcd limits."""
MAX_STAT_CHARACTERS = 32
"""Longer texts have no statistics: they would have to be truncated."""

_COUNTED = (iceberg.IntegerType, iceberg.LongType, iceberg.StringType, iceberg.DateType)
# Parquet's statistics of floats omit NaN, which readers of Delta order above all other values.
_UNKNOWN = (iceberg.TimeType, iceberg.UUIDType, iceberg.FixedType)

EMPTY_ONLY = ("error_if_exists", "ignore")


class DeltaFileList(PrivateFileList):
    """Files of a Delta table. Written as one :class:`DeltaFile` per line, the format that the step reads."""

    suffix: ClassVar[str] = ".delta.jsonl"

    def __init__(self, layout: Layout, data_folder: str, *, now: float | None = None) -> None:
        super().__init__(layout)
        self._data_folder = data_folder
        self._names = [field.name for field in layout.spec.fields]
        kinds = {column.name: column.field_type for column in layout.schema.columns}
        self._counted = {name for name in self._schema.names if isinstance(kinds[name], _COUNTED)}
        self._modified = int((time.time() if now is None else now) * 1000)

    def add(self, file: WrittenFile) -> None:
        self._files.append(
            DeltaFile(
                path=f"{self._data_folder}/{file.path.rpartition('/')[2]}",
                size=file.size,
                modified=self._modified,
                partition=dict(zip(self._names, self._values.texts(file.key), strict=True)),
                stats=_statistics(file.footer, self._counted),
            )
        )

    def write(self, io: FileIO, path: str) -> dict[str, Any]:
        content = b"".join(msgspec.json.encode(file) + b"\n" for file in self._files)
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(content)
        return {"manifest": path.rpartition("/")[2]}


def _statistics(footer: pq.FileMetaData, counted_columns: set[str]) -> dict[str, Any]:
    """Statistics as in the Delta protocol ("Per-file Statistics"): unknown ones are omitted."""
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    unknown: set[str] = set()
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for index in range(row_group.num_columns):
            column = row_group.column(index)
            name, measured = column.path_in_schema, column.statistics
            if name not in counted_columns or measured is None or not measured.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + measured.null_count
            if measured.has_min_max:
                least[name] = min(measured.min, least.get(name, measured.min))
                most[name] = max(measured.max, most.get(name, measured.max))
            elif column.num_values != measured.null_count:
                unknown.add(name)
    for name in [*least]:
        if any(isinstance(end[name], str) and len(end[name]) > MAX_STAT_CHARACTERS for end in (least, most)):
            unknown.add(name)

    def known(values: dict[str, Any]) -> dict[str, Any]:
        return {name: _text(value) for name, value in values.items() if name not in unknown}

    statistics = {"minValues": known(least), "maxValues": known(most), "nullCount": known(nulls)}
    return {"numRecords": footer.num_rows, **{name: values for name, values in statistics.items() if values}}


def _text(value: Any) -> Any:
    return value if isinstance(value, int | str) else str(value)


class DeltaPublish(StepPlan):
    """One commit of all that the jobs have written. Argument: ``mode``, as of ingest, and ``ignored``: the
    start decided that nothing is to be done."""

    def expand(self, context: FinishContext) -> Sequence[StepRecord]:
        """See :class:`StepPlan`.

        Raises
        ------
        TableNotEmpty
            The mode allows an empty table only, and it has files by now.
        CorruptRecord
            A job's report is not a list of files.
        """
        arg, mode = context.view.arg, str(self.argument.get("mode", "append"))
        facts = context.selection.counted()
        if self.argument.get(IGNORED) or (not facts["files"] and mode != "overwrite"):
            return []
        layout = Layout.from_json(arg.argument["layout"])
        files: list[DeltaFile] = []
        lists: list[str] = []
        for partition, job in context.selection.jobs.items():
            if job.result.get("files"):
                _take(job, files, lists, f"{partition} of {arg.id}")
        expected = None
        if mode in EMPTY_ONLY:
            table = delta_table(arg.location, arg.storage)
            refuse_data(arg.table, table)
            expected = -1 if table is None else table.version()
        added = set(evolution_of(arg).added)
        commit = DeltaArgument(
            table=arg.location,
            schema=delta_schema(layout),
            mode="overwrite" if mode == "overwrite" else "append",
            adds=[column.name for column in layout.schema.columns if column.field_id in added],
            partition_by=[field.name for field in layout.spec.fields],
            files=files,
            lists=lists,
            folder=staging_folder(arg, PRIVATE),
            expected_version=expected,
        )
        return [commit.record()]

    def facts(self, context: FinishContext) -> dict[str, Any]:
        return {**context.selection.counted(), **({IGNORED: True} if self.argument.get(IGNORED) else {})}


def _take(job: JobRecord, files: list[DeltaFile], lists: list[str], of: str) -> None:
    try:
        if "listed" in job.result:
            listed = convert(job.result["listed"], list[DeltaFile])
            if len(listed) != int(job.result["files"]):
                raise ValueError(f"it lists {len(listed)} files instead of {job.result['files']}")
            files += listed
        else:
            lists.append(str(job.result["manifest"]))
    except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
        raise CorruptRecord(f"job {of} reports something that is not a list of files: {error!r}") from error


# -- tables ------------------------------------------------------------------------------------------


def refuse_data(name: str, table: Any) -> None:
    """Raise :class:`~distop.errors.TableNotEmpty` if the table has files."""
    if table is not None and table.file_uris():
        raise TableNotEmpty(
            f"table {name!r} already holds data: version {table.version()}",
            hint="append to it, or overwrite what is there",
            details={"table": name, "version": str(table.version())},
        )


def layout_of(table: Any, properties: dict[str, Any] | None = None) -> Layout:
    """The columns and the partitioning of a Delta table.

    Raises :class:`~distop.errors.PreconditionFailed` if distop cannot write rows as the table needs them.
    """
    refuse_unwritable(table)
    schema = table.schema()
    layout = Layout.create(pa.schema(schema.to_arrow()), table.metadata().partition_columns, properties or {})
    written = types_of(_in_delta(layout))
    for name, kind in types_of(schema).items():
        if written[name] != kind:
            raise PreconditionFailed(
                f"the Delta table at {table.table_uri} has the type {kind} for column {name!r}, which distop "
                f"does not write: it has {written[name]} in place of it",
                hint="write to it with Spark or delta-rs",
                details={"field": "table", "column": name},
            )
    return layout


def delta_schema(layout: Layout) -> str:
    """Delta's JSON of a schema."""
    text: str = _in_delta(layout).to_json()
    return text


def add_columns(location: str, added: Layout, storage: StorageOptions | None = None) -> None:
    """Make a version of a table that adds these columns.

    Raises :class:`~distop.errors.Unavailable` if others commit to the table all the time.
    """
    table = delta_table(location, storage)
    try:
        table.alter.add_columns(list(_in_delta(added).fields))
    except delta_library().exceptions.CommitFailedError as error:
        raise Unavailable(f"{location} changes all the time: {error}") from error


def _in_delta(layout: Layout) -> Any:
    return delta_library().Schema.from_arrow(schema_to_pyarrow(layout.schema, include_field_ids=False))


def check_layout(layout: Layout) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if Delta does not support this layout."""
    for field in layout.spec.fields:
        if not isinstance(field.transform, IdentityTransform):
            raise InvalidArgument(
                f"Delta tables are partitioned by columns alone, not by {field.transform}",
                details={"field": "partition_by"},
            )
    for column in layout.schema.columns:
        if isinstance(column.field_type, _UNKNOWN):
            raise InvalidArgument(
                f"column {column.name!r}: Delta has no type {column.field_type}", details={"field": "schema"}
            )
    check_folders(layout.schema, layout.spec)
    try:
        delta_schema(layout)
    except (PreconditionFailed, InvalidArgument):
        raise
    except Exception as error:
        why = str(error).partition("\n")[0]
        raise InvalidArgument(f"Delta cannot have this schema: {why}", details={"field": "schema"}) from error
