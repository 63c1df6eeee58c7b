"""Those who read a table's rows, and values in one form, whatever type a reader has for them."""

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_
from pyiceberg.table import Table

from distop.spark_jobs.tables import open_snapshot
from truth.values import ZONE

PYICEBERG, PYARROW, DUCKDB, JOBS = "pyiceberg", "pyarrow", "DuckDB", "jobs"
PLAIN = (PYICEBERG, PYARROW, DUCKDB, JOBS)
"""The readers that need no Spark."""
READ, SOURCE, SPARK = "read()", 'format("distop")', "Spark"
READERS = (*PLAIN, READ, SOURCE, SPARK)
UNREADABLE = frozenset({("uuid", SPARK)})
"""Types that a reader does not have, by its own words."""

Reader = Callable[[Table, str], pa.Table]
"""The rows of a table for which a filter of ids is true."""


def rows_of(table: pa.Table, wanted: pa.DataType) -> dict[int, Any]:
    """The values by the ids of their rows. Raises ``ValueError`` if a row is there twice."""
    values = values_of(table.column("v"), wanted)
    rows = dict(zip(table.column("id").to_pylist(), values, strict=True))
    if len(rows) != len(values):
        raise ValueError("a row is there twice")
    return rows


def values_of(column: pa.ChunkedArray, wanted: pa.DataType) -> list[Any]:
    """The values of a column as :mod:`truth.values` has them.

    Raises ``TypeError`` if its type has no such values.
    """
    values = column.combine_chunks()
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    actual = values.type
    if is_.is_timestamp(wanted) and is_.is_timestamp(actual) and bool(wanted.tz) == bool(actual.tz):
        return _listed(values.cast(pa.timestamp("us", actual.tz)).view(pa.int64()))
    if is_.is_time(wanted) and is_.is_time(actual):
        return _listed(values.cast(pa.time64("us")).view(pa.int64()))
    if is_.is_date(wanted) and is_.is_date(actual):
        return _listed(values.cast(pa.date32()).view(pa.int32()))
    if is_.is_string(wanted) and _is_text(actual):
        return _listed(values.cast(pa.large_string()).view(pa.large_binary()))
    if isinstance(wanted, pa.UuidType) and _is_text(actual):
        return [None if text is None else uuid.UUID(text).bytes for text in values.to_pylist()]
    if not is_.is_temporal(wanted) and _stored_alike(wanted, actual):
        return _listed(values)
    raise TypeError(f"the column has the type {column.type} instead of {wanted}")


def _listed(values: pa.Array) -> list[Any]:
    listed: list[Any] = values.to_pylist()
    return listed


def _is_text(actual: pa.DataType) -> bool:
    return any(test(actual) for test in (is_.is_string, is_.is_large_string, is_.is_string_view))


def _is_bytes(actual: pa.DataType) -> bool:
    tests = (is_.is_binary, is_.is_large_binary, is_.is_binary_view, is_.is_fixed_size_binary)
    return any(test(actual) for test in tests)


def _stored_alike(wanted: pa.DataType, actual: pa.DataType) -> bool:
    if is_.is_list(wanted) or is_.is_struct(wanted) or is_.is_map(wanted):
        inner = zip(_inner(wanted), _inner(actual), strict=False)
        return wanted.num_fields == actual.num_fields and all(_stored_alike(*pair) for pair in inner)
    if isinstance(wanted, pa.UuidType) or _is_bytes(wanted):
        return _is_bytes(actual)
    return bool(wanted.equals(actual)) or (_is_text(wanted) and _is_text(actual))


def _inner(nested: pa.DataType) -> list[pa.DataType]:
    return [nested.field(number).type for number in range(nested.num_fields)]


# -- readers without Spark ---------------------------------------------------------------------------


def paths_of(table: Table, where: str) -> list[str]:
    """The data files that hold such rows: each holds the rows of one way in."""
    files = (task.file.file_path for task in table.scan(row_filter=where).plan_files())
    return [path.removeprefix("file://") for path in files]


def with_pyiceberg(table: Table, where: str) -> pa.Table:
    return table.scan(row_filter=where).to_arrow()


def with_pyarrow(table: Table, where: str) -> pa.Table:
    files = [pq.ParquetFile(path).read() for path in paths_of(table, where)]
    # Without the metadata of columns, which differs between their writers.
    return pa.concat_tables(
        [pa.table(file.columns, names=file.column_names) for file in files], promote_options="permissive"
    )


def with_duckdb(table: Table, where: str) -> pa.Table:
    with duckdb.connect() as connection:
        connection.execute(f"SET TimeZone = '{ZONE}'")
        relation = connection.sql("SELECT * FROM read_parquet(?)", params=[paths_of(table, where)])
        rows: pa.Table = relation.to_arrow_table()
    return rows


def with_jobs(table: Table, where: str) -> pa.Table:
    """As the jobs of a merge, a delete or a compaction read."""
    snapshot = open_snapshot(table.metadata_location)
    return pa.Table.from_batches(snapshot.batches(snapshot.plan_files(where), where=where))


WITHOUT_SPARK: Mapping[str, Reader] = {
    PYICEBERG: with_pyiceberg,
    PYARROW: with_pyarrow,
    DUCKDB: with_duckdb,
    JOBS: with_jobs,
}
