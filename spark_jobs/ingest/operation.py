"""``ingest``: files or a topic into a table, each row once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from distop.commit.layout.staging import RULES
from distop.errors import ArgumentTooLarge
from distop.metastore.records.model import OperationArg, StepRecord
from distop.operations.api import DistributedOperation, Plan, PlanRequest, Scope
from distop.operations.job import JobContext
from distop.operations.side_by_side import beside
from distop.spark_jobs.formats.csv_options import CsvOptions
from distop.spark_jobs.formats.files import COMPRESSIONS, MAX_PATHS, FoundSource, OpenFile, find_files
from distop.spark_jobs.ingest.argument import (
    Format,
    IngestArgument,
    check_format_options,
    invalid,
    parse_argument,
)
from distop.spark_jobs.ingest.modes import check_object, is_ignored, steps_of
from distop.spark_jobs.ingest.partial import first_files, lengths_of_paths, may_fail_in_part, with_jobs
from distop.spark_jobs.ingest.plan import FileEntry, IngestPlan
from distop.spark_jobs.ingest.splits import Extent, check_count, cut
from distop.spark_jobs.ingest.target import NOTHING, check_target, ignored, layout_of_table, target_of
from distop.spark_jobs.kafka.argument import parse_kafka

FOOTER_READERS = 8
"""Footers of large Parquet files read at a time."""
FOOTER_SECONDS = 20.0
"""Longest time that reading them may take."""

_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
}


class Ingest(DistributedOperation):
    """Reads CSV, JSON lines or Parquet files, or records of a Kafka topic, and appends their rows to a table,
    or replaces its rows by them.

    What is read is fixed when the operation starts: the files and where they are cut, or the offsets; the
    columns and their types. A file that has changed since fails the operation. See
    :class:`~distop.spark_jobs.ingest.argument.IngestArgument` for the argument.
    """

    type = "ingest"
    scope = Scope.EITHER
    compatible_types = beside("ingest")
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        """See :meth:`DistributedOperation.plan`.

        Raises
        ------
        InvalidArgument
            A field is malformed, or does not fit the files or the table.
        SourceUnreadable, SourceEmpty
            A path cannot be read, or nothing is there.
        AlreadyIngested
            The watermark of a path stands already.
        TableNotEmpty
            The mode is ``error_if_exists``, and the table holds data.
        ArgumentTooLarge
            There are too many files for one operation.
        """
        from distop.spark_jobs.formats.inference import take_sample
        from distop.spark_jobs.ingest.watermarks import watermark_moves
        from distop.spark_jobs.maintenance.branches import on_branch

        if request.partitions is not None:
            raise invalid("partitions", "ingest makes its own partitions", "choose what to ingest with paths")
        argument = parse_argument(request.argument)
        check_target(request, argument)
        check_object(request, argument)
        request = on_branch(request, argument)
        in_part = may_fail_in_part(argument, request.options)
        if is_ignored(request, argument):
            return Plan(argument=ignored(request))
        if argument.kafka is not None:
            from distop.spark_jobs.kafka.plan import plan_kafka

            return plan_kafka(request, argument, parse_kafka(argument.kafka), in_part=in_part)
        found = find_files(argument.path_list())
        moves = watermark_moves(
            found,
            request.watermarks,
            source=argument.source,
            values=argument.watermark,
            reingest=argument.reingest,
        )
        size = sum(file.size for file in found.files)
        check_count(
            size, argument.split_bytes, "bytes", field="split_bytes", less="name fewer paths in one operation"
        )
        file_format = _format_of(argument, found)
        check_format_options(request.argument, file_format)
        options = _csv_options(argument, found)
        files = [OpenFile.at(found.url, file.path) for file in found.files]
        table = layout_of_table(request)
        sample = take_sample(file_format, files, options, check_newlines=argument.multiline is None)
        target = target_of(request, argument, file_format, sample, table=table)
        extents = _extents(found, files, file_format, options, argument.split_bytes)
        cuts = cut(extents, argument.split_bytes, first_files(found) if in_part else ())
        if in_part:
            lengths = lengths_of_paths(found, extents)
            moves = {source: with_jobs(paths, lengths, cuts) for source, paths in moves.items()}
        plan = IngestPlan(
            format=file_format,
            csv=options,
            folder=found.url,
            files=[
                FileEntry(file.path, file.size, file.version, None if extent.blocks is None else extent.units)
                for file, extent in zip(found.files, extents, strict=True)
            ],
            cuts=cuts,
            **target,
        )
        if plan.transform is not None:
            return Plan(argument=plan.to_argument(), dynamic=True, watermarks=moves)
        return Plan(argument=plan.to_argument(), partition_count=len(plan.cuts) - 1, watermarks=moves)

    def frame(self, session: Any, operation: OperationArg) -> Any:
        """What ``transform`` makes of the files; see :meth:`DistributedOperation.frame`."""
        from distop.spark_jobs.ingest.transform import transformed

        return transformed(session, operation)

    def commit_steps(self, operation: OperationArg) -> Sequence[StepRecord]:
        """As the table's format and the mode have it; the verdict on rules that rows had to keep before them,
        and a report on what was read besides rows behind."""
        if operation.argument.get(NOTHING):
            return [StepRecord(step="ingest.report")]
        steps = list(steps_of(operation))
        if operation.argument.get(RULES):
            # First: what it refuses has been neither prepared nor executed.
            steps.insert(0, StepRecord(step="rules.verdict"))
        if operation.argument.get("onBadRows") == "quarantine" or "kafka" in operation.argument:
            steps.append(StepRecord(step="ingest.report"))
        return steps

    def combine(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any] | None:
        """The paths of both, if nothing else tells them apart and appending is what they do."""
        if first.get("mode", "append") != "append" or "paths" not in first or "paths" not in second:
            return None
        if first.get("transform") is not None:
            return None  # what a query makes of both need not be what it makes of each
        rest, other = ({**one, "paths": None} for one in (first, second))
        paths = [*_paths_of(first), *_paths_of(second)]
        return {**first, "paths": paths} if rest == other and len(paths) <= MAX_PATHS else None

    def start_or_resume_job(self, job: JobContext) -> Mapping[str, Any]:
        """Ingest one split, or one partition of a DataFrame.

        Returns
        -------
        The writer's result (``rows``, ``files``, ``bytes``, its manifest), and ``rowsRead`` (before the
        filter), ``badRows``, and, if there are any that were not to fail it, ``quarantine``: the file they
        are in, below the table's location.

        Raises
        ------
        BadRow
            A row cannot be read; names file and line.
        JobFailed
            A file has changed since the start, or is not what it should be.
        """
        if job.operation.dynamic:
            from distop.spark_jobs.ingest.frame_job import write_rows

            return write_rows(job)
        from distop.spark_jobs.ingest.job import run_job

        return run_job(job)

    def cancel_job_and_cleanup(self, job: JobContext) -> None:
        """Remove the attempt's files."""
        from distop.commit.cleanup.sweep import remove_attempt

        remove_attempt(job.operation, job.partition, job.attempt)


def _endings(path: str) -> tuple[str, str]:
    """``(".csv", ".gz")`` of ``a/b.csv.gz``; in lower case, either may be empty."""
    name = path.rpartition("/")[2].lower()
    stem, dot, last = name.rpartition(".")
    if dot + last not in COMPRESSIONS:
        return (dot + last if stem else ""), ""
    inner, inner_dot, inner_last = stem.rpartition(".")
    return (inner_dot + inner_last if inner else ""), dot + last


def _format_of(argument: IngestArgument, found: FoundSource) -> Format:
    if argument.format is not None:
        return argument.format
    formats: dict[Format, str] = {}
    for file in found.files:
        ending, compression = _endings(file.path)
        file_format = _FORMATS.get(ending)
        if file_format is None or (compression and file_format == "parquet"):
            raise invalid("format", f"the name of {file.path} does not tell its format", "say it with format")
        formats.setdefault(file_format, file.path)
    if len(formats) > 1:
        examples = " and ".join(f"{path} ({name})" for name, path in formats.items())
        raise invalid(
            "format", f"the files are of several formats: {examples}", "start one operation for each"
        )
    return next(iter(formats))


def _csv_options(argument: IngestArgument, found: FoundSource) -> CsvOptions:
    tabs = all(_endings(file.path)[0] == ".tsv" for file in found.files)
    return CsvOptions(
        header=argument.header,
        delimiter=argument.delimiter or ("\t" if tabs else ","),
        quote=argument.quote,
        null_values=argument.null_values,
        multiline=bool(argument.multiline),
    )


def _extents(
    found: FoundSource, files: list[OpenFile], file_format: Format, options: CsvOptions, split_bytes: int
) -> list[Extent]:
    """How each file may be cut."""
    whole = [Extent(file.size, (file.size,)) for file in found.files]
    if file_format == "parquet":
        return _parquet_extents(whole, files, split_bytes)
    if file_format == "csv" and options.multiline:
        return whole
    return [
        extent if _endings(file.path)[1] else Extent(file.size)
        for file, extent in zip(found.files, whole, strict=True)
    ]


def _parquet_extents(whole: list[Extent], files: list[OpenFile], split_bytes: int) -> list[Extent]:
    """Only files too large for one split are worth a look at their row groups."""
    from concurrent.futures import ThreadPoolExecutor

    from distop.spark_jobs.formats.inference import looked_into
    from distop.spark_jobs.formats.parquet import row_group_sizes

    deadline = time.monotonic() + FOOTER_SECONDS

    def extent(index: int) -> Extent:
        if whole[index].size <= split_bytes:
            return whole[index]
        if time.monotonic() > deadline:
            raise ArgumentTooLarge(
                f"reading the footers of {len(files)} Parquet files takes longer than {FOOTER_SECONDS:.0f} s",
                hint="name fewer paths in one operation, or raise split_bytes",
                details={"field": "paths"},
            )
        sizes = looked_into(files[index], row_group_sizes)
        return Extent(whole[index].size, sizes) if len(sizes) > 1 else whole[index]

    with ThreadPoolExecutor(FOOTER_READERS, thread_name_prefix="footers") as pool:
        return list(pool.map(extent, range(len(whole))))


def _paths_of(argument: Mapping[str, Any]) -> list[Any]:
    paths = argument.get("paths")
    return list(paths) if isinstance(paths, list) else [paths]
