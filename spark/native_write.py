"""Writes a DataFrame to a table with Spark's own Parquet writer: no row passes through Python.

Spark writes to a folder of this write, and its commit protocol decides there which attempts of its tasks
count: with version 1 of the file committer, files appear in the folder when the whole job commits. The files
that exist when Spark reports the end of the job are published, described by their footers; files that a stale
task adds later are not. As a check, the number of rows in the footers is compared with
Spark's count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_
from pyiceberg import types as iceberg
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import DayTransform, IdentityTransform, MonthTransform, YearTransform
from pyspark.sql import Observation
from pyspark.sql import functions as f

from distop.errors import BadRow, CorruptRecord, PreconditionFailed
from distop.lake.iceberg.takeover import PreparedTask, folder_of
from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import Partitioner, PartitionKey
from distop.lake.storage.storage import entries
from distop.lake.writing.file_lists import IcebergFileList, WrittenFile
from distop.sources.formats.reader import fitting
from distop.sources.formats.types import table_type
from distop.spark import publication as publishing
from distop.spark.source import spark_columns
from distop.spark.target import WriteOptions, WriteTarget, connect, open_target
from distop.spark_jobs.spark_types import allow_times, arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FOOTER_READERS = 16
FIELD_ID = "parquet.field.id"
"""Column metadata that makes Spark write Iceberg's field ids into its files."""
STEM = "part"
"""Prefix of the names of all Spark files."""
LIST = "files"
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
_IN_PARTITION = "__distop_partition_"
_NANS = "NaN in "
_BAD = "bad in "
MICROS = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The years 1 to 9999 in UTC, in microseconds since 1970."""


def write_frame(frame: DataFrame, options: WriteOptions) -> publishing.WriteOutcome:
    """Write and publish; raises as :func:`distop.spark.api.write`."""
    with connect(options) as client:
        target = open_target(client, options, frame.schema)
        check_native(target.layout, arrow_schema(frame.schema))
        publication = publishing.Publication(
            target=target,
            run=options.run or target.write,
            mode=options.mode,
            on_conflict=options.on_conflict,
        )
        try:
            rows, without_nan = _write_files(frame, target)
            tasks = describe(target, rows, without_nan)
        except BaseException:
            publishing.give_up(client, publication, publishing.Deadline(publishing.GIVE_UP_S))
            raise
        return publishing.publish(client, publication, tasks, publishing.Deadline(options.commit_timeout_s))


def check_native(layout: Layout, rows: pa.Schema) -> None:
    """Refuse a table whose files Spark cannot write itself, and rows that its casts could change."""
    for given in rows:
        wanted = layout.arrow_schema.field(given.name).type
        if not widens(table_type(given.type), wanted):
            raise _not_native(f"column {given.name!r}: {given.type} cannot become {wanted} without loss")
    for column in layout.schema.columns:
        kind = column.field_type
        if not kind.is_primitive or isinstance(kind, iceberg.FixedType | iceberg.UUIDType):
            raise _not_native(f"column {column.name!r} has the type {kind}")
    for term in layout.spec.fields:
        kind = layout.schema.find_type(term.source_id)
        of_date = isinstance(term.transform, YearTransform | MonthTransform | DayTransform)
        by_column = isinstance(term.transform, IdentityTransform) and not isinstance(kind, iceberg.TimeType)
        if not by_column and not (of_date and isinstance(kind, iceberg.DateType)):
            raise _not_native(f"it is partitioned by {term.transform}({term.name})")


def widens(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether every value has an equal one in the other type. Spark's casts lose data silently."""
    if is_.is_decimal(given) and is_.is_decimal(wanted):
        return bool(wanted.scale == given.scale and wanted.precision >= given.precision)
    for kind in (is_.is_integer, is_.is_floating):
        if kind(given) and kind(wanted):
            return bool(wanted.bit_width >= given.bit_width)
    return bool(given.equals(wanted))


def _not_native(why: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"Spark cannot write the files of this table: {why}",
        hint='write to it with df.write.format("distop")',
    )


# -- Spark -------------------------------------------------------------------------------------------


def _write_files(frame: DataFrame, target: WriteTarget) -> tuple[int, list[str]]:
    """Run Spark's write; return its count of rows, and the columns of floats without NaN. Raises
    :class:`BadRow`."""
    layout = target.layout
    types = spark_columns(layout.schema)
    allow_times(frame.sparkSession, types)
    columns = []
    for column in layout.schema.columns:
        given = f.col(f"`{column.name}`") if column.name in frame.columns else f.lit(None)
        given = given.cast(types[column.name].dataType)
        columns.append(given.alias(column.name, metadata={FIELD_ID: column.field_id}))
    places = [
        _partition_value(term.transform, layout.schema.find_field(term.source_id)).alias(
            f"{_IN_PARTITION}{number}"
        )
        for number, term in enumerate(layout.spec.fields)
    ]
    counted = Observation()
    faults = list(_faults(layout.schema))
    floats = [
        column.name
        for column in layout.schema.columns
        if isinstance(column.field_type, iceberg.FloatType | iceberg.DoubleType)
    ]
    selected = frame.select(*columns, *places).observe(
        counted,
        f.count(f.lit(1)).alias("rows"),
        *(f.count_if(is_bad).alias(f"{_BAD}{name}") for name, is_bad in faults),
        *(f.count_if(f.isnan(f.col(f"`{name}`"))).alias(f"{_NANS}{name}") for name in floats),
    )
    writer = (
        selected.write.mode("error")
        .option("mapreduce.fileoutputcommitter.algorithm.version", "1")
        .option("compression", "zstd")
    )
    if places:
        writer = writer.partitionBy(*(f"{_IN_PARTITION}{number}" for number in range(len(places))))
    folder = f"{target.location}/data/{folder_of(target.write)}"
    with _micros(frame, layout):
        writer.parquet(folder)
    counts = counted.get
    for name, is_bad in faults:
        if counts[f"{_BAD}{name}"]:
            # The files have the value, which is refused as if it had come in another way.
            written = frame.sparkSession.read.schema(selected.schema).parquet(folder)
            bad = written.where(is_bad).limit(1).select(f"`{name}`").toArrow()
            fitting(bad, pa.schema([layout.arrow_schema.field(name)]))
            raise BadRow(f"column {name!r}: readers of the table do not have one of the values")
    return int(counts["rows"]), [name for name in floats if not counts[f"{_NANS}{name}"]]


def _faults(schema: Schema) -> Iterator[tuple[str, Column]]:
    """Columns, and a condition for a bad row: Spark has values that readers of a table do not have."""
    for column in schema.columns:
        value, is_bad = f.col(f"`{column.name}`"), None
        match column.field_type:
            case iceberg.StringType():
                is_bad = ~f.is_valid_utf8(value)
            case iceberg.DateType() | iceberg.TimestampType():
                is_bad = ~f.year(value).between(1, 9999)
            case iceberg.TimestamptzType():
                # Its year depends on the session's time zone.
                is_bad = ~f.unix_micros(value).between(*MICROS)
        if column.required:
            is_bad = value.isNull() if is_bad is None else value.isNull() | is_bad
        if is_bad is not None:
            yield column.name, is_bad


def _partition_value(transform: Any, source: iceberg.NestedField) -> Column:
    """Values that distinguish a row's partition, for the names of Spark's folders. The footers say which
    partition it is."""
    column = f.col(f"`{source.name}`")
    match transform, source.field_type:
        case YearTransform(), _:
            return f.year(column)
        case MonthTransform(), _:
            return f.year(column) * 12 + f.month(column)
        case _, iceberg.StringType() | iceberg.BinaryType():
            # An empty text and NULL would share a folder, and long texts are no names.
            return f.sha2(column, 256)
        case _, iceberg.TimestamptzType():
            # In the session's time zone an hour comes twice when summer time ends.
            return f.unix_micros(column)
    return column


@contextmanager
def _micros(frame: DataFrame, layout: Layout) -> Iterator[None]:
    """Timestamps in Iceberg's type; Spark's default is a type of its own."""
    kinds = (column.field_type for column in layout.schema.columns)
    settings = frame.sparkSession.conf
    before = settings.get(_TIMESTAMPS, None)
    if before == "TIMESTAMP_MICROS" or not any(
        isinstance(kind, iceberg.TimestampType | iceberg.TimestamptzType) for kind in kinds
    ):
        yield
        return
    settings.set(_TIMESTAMPS, "TIMESTAMP_MICROS")
    try:
        yield
    finally:
        if before is None:
            settings.unset(_TIMESTAMPS)
        else:
            settings.set(_TIMESTAMPS, before)


# -- the files ---------------------------------------------------------------------------------------


def describe(target: WriteTarget, rows: int, without_nan: Sequence[str]) -> list[PreparedTask]:
    """List the files that Spark has written, as one task's.

    Parameters
    ----------
    rows:
        How many there are.
    without_nan:
        The columns of floats without NaN. Footers do not count NaN: of the other columns the files
        get no minimum and maximum.

    Raises
    ------
    CorruptRecord
        They are not the expected files, or do not hold this many rows: another writer interfered.
    """
    layout, io = target.layout, target.io()
    files = IcebergFileList(replace(layout, sort_order=UNSORTED_SORT_ORDER))  # Spark has not sorted them
    nans = dict.fromkeys(without_nan, 0)
    paths = sorted(_data_files(target))
    written = size = 0
    with ThreadPoolExecutor(FOOTER_READERS, thread_name_prefix="footers") as pool:
        footers = pool.map(lambda path: _footer(io, path), paths)
        for path, (footer, length) in zip(paths, footers, strict=True):
            if not footer.num_rows:
                continue
            _check_footer(layout, path, footer)
            files.add(WrittenFile(path, partition_of(io, layout, path, footer), length, footer, nans))
            written, size = written + footer.num_rows, size + length
    if written != rows:
        raise CorruptRecord(
            f"Spark has counted {rows} rows, and its files in {folder_of(target.write)} hold {written}",
            hint="is another commit protocol configured? write with format('distop')",
        )
    result: dict[str, Any] = {"rows": written, "files": len(paths), "bytes": size}
    if not files.empty:
        manifest = target.path(STEM, f"-{LIST}.avro", "metadata")
        result |= {**files.write(io, manifest)}
    return [PreparedTask(stem=STEM, result=result)] if written else []


def _data_files(target: WriteTarget) -> Iterator[str]:
    """All data files, in partition folders, too; without temporary ones."""
    folders = [f"{target.location}/data/{folder_of(target.write)}"]
    while folders:
        folder = folders.pop()
        for name, is_folder, _ in entries(folder, target.storage):
            if is_folder and not name.startswith((".", "_temporary")):
                folders.append(f"{folder}/{name}")
            elif name.startswith(STEM) and name.endswith(".parquet"):
                yield f"{folder}/{name}"


def _footer(io: FileIO, path: str) -> tuple[pq.FileMetaData, int]:
    file = io.new_input(path)
    with file.open() as stream:
        return pq.read_metadata(stream), len(file)


def _check_footer(layout: Layout, path: str, footer: pq.FileMetaData) -> None:
    schema = pyarrow_to_schema(footer.schema.to_arrow_schema())
    for column in layout.schema.columns:
        written_column = schema.find_field(column.field_id)
        if written_column.name != column.name or written_column.field_type != column.field_type:
            raise CorruptRecord(
                f"{path} has {written_column.name} {written_column.field_type} where the table has "
                f"{column.name} {column.field_type}"
            )


def partition_of(io: FileIO, layout: Layout, path: str, footer: pq.FileMetaData) -> PartitionKey:
    """The partition of a file, from the least and the greatest value of its columns, which must agree.

    This works only for transforms that keep the order of values. Columns of floats are read: a footer leaves
    NaN out, and does not say which zero a zero is.
    """
    ends: dict[str, tuple[Any, Any]] = {}
    for name in {str(layout.schema.find_column_name(term.source_id)) for term in layout.spec.fields}:
        if is_.is_floating(layout.arrow_schema.field(name).type):
            with io.new_input(path).open() as stream:
                values = pq.read_table(stream, columns=[name])[name].unique().to_pylist()
            ends[name] = values[0], values[-1]
        else:
            ends[name] = _ends(path, name, footer)
    if not ends:
        return ()
    schema = layout.arrow_schema
    columns = [pa.array(ends.get(field.name, (None, None)), field.type) for field in schema]
    rows = pa.record_batch(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))
    keys = [key for key, _ in Partitioner(layout.schema, layout.spec).split(rows)]
    if len(keys) != 1:
        raise _mixed(path, ", ".join(sorted(ends)))
    return keys[0]


def _ends(path: str, name: str, footer: pq.FileMetaData) -> tuple[Any, Any]:
    """The least and the greatest value of a column; NULL if all are."""
    position = footer.schema.names.index(name)
    values: list[Any] = []
    nulls = 0
    for group in map(footer.row_group, range(footer.num_row_groups)):
        known = group.column(position).statistics
        if known is not None and known.null_count == group.num_rows:
            nulls += 1
        elif known is None or known.null_count or not known.has_min_max:
            raise _mixed(path, name)
        else:
            values += [known.min, known.max]
    if values and nulls:
        raise _mixed(path, name)
    return (min(values), max(values)) if values else (None, None)


def _mixed(path: str, column: str) -> CorruptRecord:
    return CorruptRecord(f"the footer of {path} does not show its partition by {column}")
