"""Tables and DataFrames, for programs that have a Spark session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distop.errors import PreconditionFailed
from distop.executor.launch.settings import refuse_old
from distop.spark.target import ReadOptions, connect, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from distop.client import Operation


def register(session: SparkSession) -> None:
    """Register ``format("distop")`` in a session.

    Raises :class:`~distop.executor.launch.settings.SparkTooOld`.
    """
    refuse_old()
    from distop.spark.source import register as make_known

    make_known(session)


def read(
    session: SparkSession,
    table: str,
    *,
    coordinator: str = "",
    snapshot_id: int | None = None,
    as_of: str = "",
    branch: str | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    use_indexes: bool = True,
) -> DataFrame:
    """A snapshot of a table: ``spark.read.format("distop")`` as a function.

    Parameters
    ----------
    coordinator:
        ``host:port`` of a coordinator, or several; default: ``DISTOP_ADDRESS``, or 127.0.0.1:7070.
    as_of:
        The snapshot that was present at this time, such as ``2024-05-01T08:00:00Z``.
    filter:
        Only rows for which this is true; skips files that contain none by their partition or statistics.
    use_indexes:
        Whether to use the table's indexes as well to find files with such rows.

    Raises
    ------
    TableNotFound
        There is no such table.
    PreconditionFailed
        There is no such snapshot.
    InvalidArgument
        The filter or a column does not fit the table.
    """
    given = {
        "table": table,
        "coordinator": coordinator,
        "snapshotId": "" if snapshot_id is None else str(snapshot_id),
        "asOf": as_of,
        "useIndexes": "" if use_indexes else "false",
        "columns": ",".join(columns or ()),
    }
    if columns is not None and not columns:
        raise PreconditionFailed("no column is requested")
    chosen = {name: value for name, value in given.items() if value}
    # Also if they are empty: then they are refused.
    chosen |= {name: value for name, value in (("branch", branch), ("filter", filter)) if value is not None}
    register(session)
    _check(read_options(chosen))
    return session.read.format("distop").options(**chosen).load()


def _check(options: ReadOptions) -> None:
    """Raise here what Spark would wrap into errors of its own."""
    from distop.spark.source import find_snapshot

    with connect(options) as client:
        snapshot = find_snapshot(client, options)
    snapshot.projection(options.columns)
    snapshot.predicate(options.filter)


def write(
    frame: DataFrame,
    table: str,
    *,
    mode: str = "append",
    coordinator: str = "",
    run: str = "",
    **options: str,
) -> Operation | None:
    """Write a DataFrame into a table through Spark's native Parquet writer, exactly once.

    Faster than ``df.write.format("distop")``, since no row passes through Python. For tables with plain
    columns that are not partitioned, or by columns themselves or by year, month or day of dates.

    Parameters
    ----------
    mode:
        ``append``, ``overwrite``, ``overwrite_partitions``, ``error_if_exists`` or ``ignore``.
    coordinator:
        As for :func:`read`.
    run:
        The name of a run of the caller's program. Of all writes with the same one, one is published.
    options:
        Further options of ``format("distop")``: ``create``, ``location``, ``onConflict``, ...

    Returns
    -------
    The operation that published it: this one, or an earlier one of the same run.

    Raises
    ------
    PreconditionFailed
        Spark cannot write the files of such a table itself.
    """
    from distop.spark.native_write import write_frame

    given = {**options, "table": table, "mode": mode, "coordinator": coordinator, "run": run}
    chosen = write_options({name: value for name, value in given.items() if value}, overwrite=False)
    return write_frame(frame, chosen).operation
