"""``ingest_dataframe``: the rows of a DataFrame that only the caller's program has into a table, each
once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from distop.commit.iceberg.watermarks import is_after
from distop.errors import AlreadyIngested
from distop.metastore.records.keyspace import OperationId
from distop.metastore.records.model import OperationArg, WatermarkMove, Watermarks
from distop.metastore.records.structs import ready
from distop.operations.api import Plan, PlanRequest, Scope
from distop.operations.arguments import invalid
from distop.operations.side_by_side import beside
from distop.spark_jobs.ingest.argument import Mode
from distop.spark_jobs.ingest.modes import check_mode, is_ignored, on_conflict
from distop.spark_jobs.ingest.operation import Ingest
from distop.spark_jobs.ingest.target import current_snapshot, ignored, layout_of_table
from distop.spark_jobs.rules.model import AuditArgument

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

    from distop.metastore.etcd.config import EtcdConfig

LOOK_EVERY_S = 2.0
"""How often it is looked whether this program still runs the operation."""


class DataFrameArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The argument of ``ingest_dataframe``."""

    columns: dict[str, Any]
    """The Iceberg schema of the DataFrame's rows."""
    mode: Mode = "append"
    on_conflict: Literal["rebase", "refuse"] | None = None
    audit: AuditArgument | None = None
    source: str = ""
    watermark: dict[str, str] = {}
    """Of ``source``: partition -> how far the rows go. Rows up to a watermark that stands are refused."""


class DataFrameIngest(Ingest):
    """Appends the rows of a DataFrame to a table, or replaces its rows by them.

    Only the program that has the DataFrame can run it: see :func:`ingest_dataframe`.
    """

    type = "ingest_dataframe"
    scope = Scope.SINGLE
    compatible_types = beside("ingest_dataframe")
    hosted = True

    def __init__(self, frame: DataFrame | Sequence[Iterable[RecordBatch]] | None = None) -> None:
        self._frame = frame

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`Ingest.plan`."""
        from distop.commit.layout.model import Layout
        from distop.commit.outputs import output_of
        from distop.commit.rows import new_layout
        from distop.spark_jobs.ingest.frame_job import FramePlan, check_columns
        from distop.spark_jobs.rules.gate import rules_of

        try:
            argument = msgspec.convert(dict(request.argument), ready(DataFrameArgument))
            recorded = {"schema": argument.columns, "spec": {"spec-id": 0, "fields": []}, "properties": {}}
            given = Layout.from_json(recorded)
        except msgspec.ValidationError as error:
            raise invalid("argument", f"argument of {self.type}: {error}") from None
        if request.partitions is not None:
            raise invalid("partitions", "the partitions are those of the DataFrame")
        check_mode(request, argument)
        conflicts = on_conflict(argument)
        if is_ignored(request, argument):
            return Plan(argument=ignored(request))
        moves = _moves(argument, request.watermarks)
        layout = layout_of_table(request) or new_layout(request.table, given.schema)
        output_of(request.table.format).check(layout)
        check_columns(given.arrow_schema, layout.arrow_schema)
        plan = FramePlan(
            layout=layout.to_json(),
            mode=argument.mode,
            output=request.table.format,
            rules=rules_of(request.table.options, argument.audit, layout),
            on_conflict=conflicts,
            expected_snapshot_id=current_snapshot(request),
        )
        return Plan(argument=msgspec.to_builtins(plan), dynamic=True, watermarks=moves)

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
        """Two DataFrames are not one."""

    def frame(self, session: Any, operation: OperationArg) -> Any:
        """The caller's."""
        if self._frame is None:
            raise invalid("type", f"{self.type} runs in the program that has the DataFrame, nowhere else")
        return self._frame


def _moves(argument: DataFrameArgument, standing: Watermarks) -> dict[str, dict[str, WatermarkMove]]:
    if bool(argument.source) != bool(argument.watermark):
        raise invalid("watermark", "a watermark has a source, and a source a watermark")
    present, moves = standing.get(argument.source, {}), {}
    for partition, after in argument.watermark.items():
        before = present.get(partition)
        if before is not None and not is_after(after, before):
            raise AlreadyIngested(
                f"{argument.source!r}/{partition!r} was ingested already, up to {before!r}",
                details={"field": "watermark", "partition": partition, "watermark": before},
            )
        moves[partition] = WatermarkMove(before=before, after=after)
    return {argument.source: moves} if moves else {}


# -- in the caller's program -------------------------------------------------------------------------


def ingest_dataframe(
    spark: SparkSession,
    frame: DataFrame,
    *,
    table: str,
    client: Any,
    request_id: str | None = None,
    mode: Mode = "append",
    on_conflict: Literal["rebase", "refuse"] | None = None,
    source: str = "",
    watermark: Mapping[str, str] | None = None,
    audit: Mapping[str, Any] | None = None,
    deadline_s: float | None = None,
    max_job_attempts: int | None = None,
    etcd: EtcdConfig | None = None,
) -> Any:
    """Put the rows of a DataFrame into a table, each once; returns when that has happened.

    The operation is started like any other, and this program runs it. Should the program die, another one (or
    the same, started again) goes on when it makes this call with the same ``request_id``, on a DataFrame of
    the same rows: it may be cut in another way, since it is computed from the beginning. If the operation is
    over by then, nothing is computed.

    Parameters
    ----------
    table:
        Its columns are found by name; those that the DataFrame lacks become NULL. A table without columns
        gets those of the DataFrame.
    client:
        A ``distop.client.Client`` of the service.
    request_id:
        What a repeated call is recognised by.
    mode, on_conflict, audit:
        As of ``ingest``.
    source, watermark:
        How far the rows go, as ``{"partition": "value"}`` of a source. It moves with the rows, and rows up to
        a watermark that stands are refused.
    deadline_s:
        Seconds from the start after which the operation is aborted.
    max_job_attempts:
        How often the DataFrame is computed before the operation fails.
    etcd:
        How to reach etcd; by default as the environment says (``DISTOP_ETCD``).

    Returns
    -------
    The operation as it has ended.

    Raises
    ------
    InvalidArgument
        The rows do not fit the table.
    OperationFailed, OperationCancelled
        So it has ended.
    AlreadyIngested
        A watermark says so.
    LauncherBroken
        The Spark session was stopped. The operation goes on with the next call.
    """
    from distop.executor.runner import run_hosted
    from distop.metastore.etcd.config import EtcdConfig
    from distop.spark_jobs.ingest.transform import arrow_schema

    argument: dict[str, Any] = {"columns": columns_of(arrow_schema(frame.schema)), "mode": mode}
    given = {"on_conflict": on_conflict, "source": source, "watermark": watermark, "audit": audit}
    argument.update({name: value for name, value in given.items() if value})
    operation = client.start(
        table,
        DataFrameIngest.type,
        argument,
        request_id=request_id,
        deadline_s=deadline_s,
        max_job_attempts=max_job_attempts,
    )
    if not operation.done:
        operation = run_hosted(
            OperationId.parse(operation.name),
            DataFrameIngest(frame),
            lambda: client.wait(operation.name, timeout_s=LOOK_EVERY_S),
            session=spark,
            etcd=etcd or EtcdConfig.from_env(),
        )
    return operation.raise_for_outcome()


def columns_of(schema: Any) -> dict[str, Any]:
    """The Iceberg schema of rows, as JSON. ``schema``: that of Arrow."""
    import pyarrow as pa

    from distop.commit.layout.model import Layout
    from distop.spark_jobs.formats.types import UnsupportedType, table_type

    try:
        fields = [pa.field(field.name, table_type(field.type)) for field in schema]
    except UnsupportedType as error:
        raise invalid("schema", str(error), "cast the column to another type") from None
    columns: dict[str, Any] = Layout.create(pa.schema(fields)).to_json()["schema"]
    return columns
