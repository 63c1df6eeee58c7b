"""Writes the rows of a DataFrame in the caller's program to a table, each once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from distop.executor.launch.settings import refuse_unchecked
from distop.executor.runner.service import run_hosted
from distop.lake.layout.model import Layout
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.sources.formats.reader import columns_for
from distop.spark_jobs.ingest.argument import Mode, OnWiderTypes
from distop.spark_jobs.ingest.operation import DataFrameIngest
from distop.spark_jobs.spark_types import arrow_schema

LOOK_EVERY_S = 2.0
"""Interval of checks whether this program still runs the operation."""


def ingest_dataframe(
    spark: SparkSession,
    frame: DataFrame,
    *,
    table: str,
    client: Any,
    run: str | None = None,
    mode: Mode = "append",
    on_conflict: Literal["rebase", "refuse"] | None = None,
    on_new_columns: Literal["fail", "add"] = "fail",
    on_wider_types: OnWiderTypes = "fail",
    source: str = "",
    watermark: Mapping[str, str] | None = None,
    checks: Mapping[str, Any] | None = None,
    deadline_s: float | None = None,
    max_job_attempts: int | None = None,
    etcd: EtcdConfig | None = None,
) -> Any:
    """Write the rows of a DataFrame to a table, each once; returns when that is done.

    The operation is started like any other, and this program runs it. If the program dies, another one (or
    the same, restarted) continues it by making this call with the same ``run``, on a DataFrame with
    the same rows: it may be partitioned differently, since it is computed from the beginning. If the
    operation is over by then, nothing is computed.

    Parameters
    ----------
    table:
        Its columns are matched by name; those that the DataFrame lacks become NULL. A table without columns
        gets those of the DataFrame.
    client:
        A ``distop.client.Client`` of the service.
    run:
        The name of a run of the caller's program; it identifies repeated calls.
    mode, on_conflict, on_new_columns, on_wider_types, checks:
        As of ``ingest``.
    source, watermark:
        How far the rows go, as ``{"partition": "value"}`` of a source. It moves with the rows, and rows up to
        an existing watermark are refused.
    deadline_s:
        Seconds from the start after which the operation is aborted.
    max_job_attempts:
        Attempts at computing the DataFrame before the operation fails.
    etcd:
        How to reach etcd; by default as the environment says (``DISTOP_ETCD``).

    Returns
    -------
    The operation at its end.

    Raises
    ------
    InvalidArgument
        The rows do not fit the table.
    ShufflesUnchecked, SparkTooOld
        The session cannot be used for it. Nothing was started.
    OperationFailed, OperationCancelled
        The operation ended that way.
    AlreadyIngested
        The watermark shows it.
    LauncherBroken
        The Spark session was stopped. The next call continues the operation.
    """
    refuse_unchecked(frame.sparkSession)
    argument: dict[str, Any] = {"columns": columns_of(arrow_schema(frame.schema)), "mode": mode}
    argument |= {"on_new_columns": on_new_columns, "on_wider_types": on_wider_types}
    given = {"on_conflict": on_conflict, "source": source, "watermark": watermark, "checks": checks}
    argument.update({name: value for name, value in given.items() if value})
    started = client.start(
        table,
        DataFrameIngest.type,
        argument,
        run=run,
        deadline_s=deadline_s,
        max_job_attempts=max_job_attempts,
    )
    operation = started.started
    if not operation.done:
        operation = run_hosted(
            OperationId.parse(operation.name),
            DataFrameIngest(frame),
            lambda: started.wait(timeout_s=LOOK_EVERY_S),
            session=spark,
            etcd=etcd or EtcdConfig.from_env(),
        )
    return operation.raise_for_outcome()


def columns_of(rows: pa.Schema) -> dict[str, Any]:
    """The Iceberg schema of rows, as JSON."""
    columns: dict[str, Any] = Layout.create(columns_for(rows)).to_json()["schema"]
    return columns
