"""``ingest``: files or a topic into a table, each row once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distop.lake.layout.staging import RULES
from distop.operations import (
    DistributedOperation,
    Effect,
    JobContext,
    OperationArg,
    Plan,
    PlanRequest,
    Role,
    Scope,
    Staging,
    StepRecord,
)
from distop.operations.arguments import invalid
from distop.sources.formats.files import MAX_PATHS
from distop.spark_jobs.ingest.argument import NOTHING, REPORTED

QUERY_S = 24 * 3600.0
"""Timeout of the query of ``transform``; an operation's own deadline may be shorter."""


class Ingest(DistributedOperation):
    """Reads CSV, JSON lines, Parquet or Avro files, or records of a Kafka topic, and appends their rows to a
    table, or replaces its rows by them.

    The source is fixed when the operation starts: the files and their splits, or the offsets; the columns and
    their types. A file that has changed since fails the operation. See
    :class:`~distop.spark_jobs.ingest.argument.IngestArgument` for the argument.
    """

    type = "ingest"
    scope = Scope.EITHER
    effect = Effect.WRITES
    stages_files = True
    preloads = ("distop.spark_jobs.ingest.planning",)
    can_replace = True
    staging = Staging(publish="publish_branch", drop="drop_branch")

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A field is invalid, or does not fit the files or the table.
        SourceUnreadable, SourceEmpty
            A path cannot be read, or is empty.
        SourceIncomplete
            A marker does not exist, or was written again meanwhile.
        AlreadyIngested
            The watermark of a path already exists.
        TableNotEmpty
            The mode is ``error_if_exists``, and the table holds data.
        ArgumentTooLarge
            There are too many files for one operation.
        """
        from distop.spark_jobs.ingest.planning import plan_ingest

        return plan_ingest(request)

    def plan_holds(self, plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
        """As :func:`~distop.spark_jobs.ingest.planning.plan_holds` decides."""
        from distop.spark_jobs.ingest.planning import plan_holds

        return plan_holds(plan, made_on, request)

    def preview(self, request: PlanRequest) -> Mapping[str, Any]:
        """See :func:`~distop.spark_jobs.ingest.report.preview_ingest`; raises as :meth:`plan`."""
        from distop.spark_jobs.ingest.report import preview_ingest

        return preview_ingest(request)

    def frame(self, session: Any, operation: OperationArg) -> Any:
        """The result of ``transform`` on the files; see :meth:`DistributedOperation.frame`."""
        from distop.spark_jobs.ingest.transform import transformed

        return transformed(session, operation)

    def frame_limit_s(self, operation: OperationArg) -> float | None:
        """Any caller that may start operations can send a query; a DataFrame's program can stop itself."""
        return QUERY_S if operation.argument.get("transform") else None

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """The steps of the table's format and the mode; before them the check of rules, and a report on bad
        rows that refuses too many."""
        if operation.argument.get(NOTHING):
            return [StepRecord(step="ingest.report")]
        # What may refuse comes first: then nothing has been prepared or executed.
        steps = [StepRecord(step="rules.gate")] if operation.argument.get(RULES) else []
        reports = any(operation.argument.get(name) for name in (*REPORTED, "markers"))
        if reports or operation.argument.get("onBadRows") == "quarantine" or "kafka" in operation.argument:
            steps.append(StepRecord(step="ingest.report"))
        from distop.lake.rows import rows_steps

        return [*steps, *rows_steps(operation)]

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
        """The paths and markers of both, if everything else is equal and the mode appends."""
        if first.get("mode", "append") != "append" or "paths" not in first or "paths" not in second:
            return None
        if "replaces" in first or "replaces" in second:
            return None
        if first.get("replay") is not None:
            return None  # the rows of each are ingested once
        if first.get("transform") is not None:
            return None  # the query's result for both may differ from the results for each
        rest, other = ({**argument, "paths": None, "markers": None} for argument in (first, second))
        paths = [*_paths_of(first), *_paths_of(second)]
        if rest != other or len(paths) > MAX_PATHS:
            return None
        markers = [*first.get("markers", ()), *second.get("markers", ())]
        return {**first, "paths": paths} | ({"markers": markers} if markers else {})

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        """Ingest one split, or one partition of a DataFrame.

        Returns
        -------
        The writer's result (``rows``, ``files``, ``bytes``, its manifest), and ``rowsRead`` (before the
        filter), ``badRows``, and, for bad rows that do not fail it, ``quarantine``: their file, below the
        table's location. For a merge ``read``, ``removed``, ``added``, ``changed``, too (see
        :mod:`distop.lake.rewriting.publish`).

        Raises
        ------
        BadRow
            A row cannot be parsed; names file and line.
        SourceIncomplete
            A marker of the source was removed, or written again, since the start.
        JobFailed
            A file has changed since the start, or is invalid.
        """
        from distop.spark_jobs.ingest.job import run_job, run_merge

        return run_merge(job) if job.operation.argument.get("merge") else run_job(job)

    def describe_job(self, operation: OperationArg, partition: str) -> str:
        """The files that it reads, or the offsets."""
        from distop.spark_jobs.ingest.plan import IngestPlan

        return partition if operation.dynamic else IngestPlan.of(operation).describe(partition)


class DataFrameIngest(Ingest):
    """Appends the rows of a DataFrame to a table, or replaces its rows by them.

    Only the program that has the DataFrame can run it: see
    :func:`distop.spark.dataframe.ingest_dataframe`.

    Parameters
    ----------
    frame:
        The DataFrame; without Spark a list of iterables of Arrow record batches. Each attempt reads them from
        the beginning.
    """

    type = "ingest_dataframe"
    scope = Scope.SINGLE
    role = Role.WRITER  # the rows come from the caller's own program
    hosted = True

    def __init__(self, frame: Any = None) -> None:
        self._frame = frame

    def plan(self, request: PlanRequest) -> Plan:
        """As :meth:`Ingest.plan`, for rows of a DataFrame."""
        from distop.spark_jobs.ingest.planning import plan_dataframe

        return plan_dataframe(request)

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
        """Two DataFrames cannot be combined."""

    def frame(self, session: Any, operation: OperationArg) -> Any:
        """The DataFrame of the program that calls."""
        if self._frame is None:
            raise invalid("type", f"{self.type} runs in the program that has the DataFrame, nowhere else")
        return self._frame


def _paths_of(argument: Mapping[str, Any]) -> list[Any]:
    paths = argument.get("paths")
    return list(paths) if isinstance(paths, list) else [paths]
