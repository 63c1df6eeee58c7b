"""Planning an ingest: what is read, split into which jobs, into which columns. Fixed at the start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from distop.errors import AlreadyIngested, ArgumentTooLarge, CorruptRecord
from distop.lake.iceberg.watermarks import is_after
from distop.lake.layout.model import Layout
from distop.lake.rows import table_layout
from distop.metastore.records.operation import WatermarkMove
from distop.operations.api import Plan, PlanRequest
from distop.operations.arguments import invalid, parse
from distop.sources.formats.conversion import check_columns
from distop.sources.formats.files import (
    COMPRESSIONS,
    MAX_FILES,
    MAX_PATHS,
    FoundSource,
    OpenFile,
    find_files,
    marker_versions,
    while_complete,
)
from distop.sources.formats.inference import (
    CsvSample,
    JsonSample,
    Sample,
    TypedSample,
    looked_into,
    take_sample,
)
from distop.sources.formats.options import TYPED, CsvOptions, Format
from distop.sources.formats.parquet import row_group_sizes
from distop.sources.kafka.ranges import parse_kafka
from distop.sources.quarantine import Quarantined
from distop.spark_jobs.ingest.argument import (
    DataFrameArgument,
    IngestArgument,
    check_format_options,
    check_mode,
    check_object,
    csv_options,
    is_ignored,
    on_conflict,
    parse_argument,
)
from distop.spark_jobs.ingest.path_columns import (
    check_path_values,
    path_columns_of,
    unread_columns,
    with_path_columns,
)
from distop.spark_jobs.ingest.plan import Extent, FileEntry, IngestPlan, TargetPlan, check_count, cut
from distop.spark_jobs.ingest.target import (
    check_replaced,
    check_target,
    current_snapshot,
    ignored,
    layout_for_frame,
    merge_of,
    nothing,
    on_branch,
    target_of,
)
from distop.spark_jobs.ingest.topic_planning import plan_topic
from distop.spark_jobs.ingest.watermarks import (
    by_folder,
    first_files,
    has_moved,
    lengths_of_paths,
    may_fail_in_part,
    new_files,
    watermark_moves,
    with_jobs,
)
from distop.spark_jobs.rules.gate import rules_of

MAX_MERGED_BYTES = 256 << 20
"""Most bytes of files; each job of a merge has all their rows in memory."""

FOOTER_READERS = 8
"""Footers of large Parquet files read concurrently."""
FOOTER_SECONDS = 20.0
"""Longest time for reading them."""

_FORMATS: dict[str, Format] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".avro": "avro",
}


def plan_ingest(request: PlanRequest) -> Plan:
    """What an ingest does; raises as ``Ingest.plan``."""
    if request.partitions is not None:
        raise invalid("partitions", "ingest makes its own partitions", "choose what to ingest by its paths")
    replayed = None
    if (folder := request.argument.get("replay")) is not None:
        replayed = Quarantined.of(request.table, folder)
        request = replace(request, argument={**_as_before(replayed, request), **request.argument})
    argument = parse_argument(request.argument)
    check_target(request, argument)
    check_object(request, argument)
    request = on_branch(request, argument)
    if argument.replaces is not None:
        check_replaced(request, argument.replaces)
    in_part = may_fail_in_part(argument, request.options)
    if is_ignored(request, argument):
        return Plan(argument=ignored(request))
    if argument.kafka is not None:
        return plan_topic(request, argument, parse_kafka(argument.kafka), in_part=in_part)
    markers = marker_versions(argument.markers)
    with while_complete(markers):
        return _plan_files(request, argument, markers, in_part=in_part and not replayed, replayed=replayed)


def _as_before(replayed: Quarantined, request: PlanRequest) -> dict[str, Any]:
    """The fields with which its rows are read as they were; for other files only those that suit them."""
    before = replayed.listed.argument
    if not request.argument.get("paths"):
        replayed.check_text()
        return before
    return {name: value for name, value in before.items() if name != "format"}


def _plan_files(
    request: PlanRequest,
    argument: IngestArgument,
    markers: dict[str, str],
    *,
    in_part: bool,
    replayed: Quarantined | None,
) -> Plan:
    kept = None if argument.path_list() else replayed
    if kept is not None:
        found = kept.found()
    else:
        found = find_files(argument.path_list(), most=MAX_FILES if argument.new_only else MAX_PATHS)
    skipped = remaining = 0
    if argument.new_only:
        new = new_files(found, request.watermarks, argument.source)
        found, moves, skipped, remaining = new.found, new.moves, new.skipped, new.remaining
        if not found.files:
            unchanged = nothing(request, table_layout(request), argument.branch or "")
            return Plan(argument=unchanged | {"filesSkipped": skipped})
    elif replayed is not None:
        moves = replayed.moves(request.watermarks, again=argument.reingest)
    else:
        moves = watermark_moves(
            found,
            request.watermarks,
            source=argument.source,
            values=argument.watermark,
            reingest=argument.reingest or argument.replaces is not None,
        )
    size = sum(file.size for file in found.files)
    check_count(
        size, argument.split_bytes, "bytes", field="split_bytes", less="name fewer paths in one operation"
    )
    file_format = _format_of(argument, found)
    if replayed is None:
        check_format_options(request.argument, file_format)
    options = _csv_options(argument, found)
    open_file = partial(OpenFile.at, found.url) if kept is None else kept.open
    files = [open_file(file.path) for file in found.files]
    table = table_layout(request)
    sample: Sample
    if kept is not None:
        sample = kept.sample(options, csv=file_format == "csv")
    else:
        sample = take_sample(file_format, files, options, check_newlines=argument.multiline is None)
    warnings = [*_warnings(argument, sample, table), *unread_columns(argument, found, sample, table)]
    whole, from_path = with_path_columns(argument, found, sample, table)
    instants = sample.instants if isinstance(sample, TypedSample) else None
    target = target_of(
        request, argument, file_format, whole, table=table, direct=from_path, instants=instants
    )
    extents = _extents(found, files, file_format, options, argument.split_bytes)
    cuts = cut(extents, argument.split_bytes, first_files(found) if in_part else ())
    if in_part:
        lengths = lengths_of_paths(found, extents)
        moves = {source: with_jobs(paths, lengths, cuts) for source, paths in moves.items()}
    if argument.new_only and argument.source is None:
        moves = by_folder(moves)
    merge, jobs = None, len(cuts) - 1
    if argument.mode == "merge":
        _check_size(size)
        merge, jobs = merge_of(request, argument, target)
    plan = IngestPlan(
        format=file_format,
        csv=options,
        folder=found.url,
        files=[
            FileEntry(file.path, file.size, file.version, None if extent.blocks is None else extent.units)
            for file, extent in zip(found.files, extents, strict=True)
        ],
        replay_of="" if replayed is None else replayed.listed.operation,
        quarantined=kept is not None,
        markers=markers,
        cuts=cuts,
        replaces=argument.replaces or "",
        files_skipped=skipped,
        files_remaining=remaining,
        warnings=warnings,
        merge=merge,
        path_columns=path_columns_of(whole, target["columns"]),
        **target,
    )
    check_path_values(whole, plan)
    if plan.transform is not None:
        return plan.to_plan(dynamic=True, watermarks=moves)
    return plan.to_plan(partition_count=jobs, watermarks=moves)


def _check_size(size: int) -> None:
    if size > MAX_MERGED_BYTES:
        raise ArgumentTooLarge(
            f"the files have {size:,} bytes, but at most {MAX_MERGED_BYTES:,} can be merged at a time",
            hint="merge fewer files at a time, one operation after the other",
            details={"field": "paths"},
        )


def plan_holds(plan: Plan, made_on: PlanRequest, request: PlanRequest) -> bool:
    """Whether rows may still be added as planned: concurrent changes do not matter, unless they changed the
    columns, or ingested from the same source."""
    argument = plan.argument
    if argument.get("mode") != "append" or argument.get("onConflict") != "rebase" or argument.get("branch"):
        return False
    if has_moved(plan.watermarks, made_on.watermarks, request.watermarks):
        return False
    layout = table_layout(request)
    return layout is not None and layout.to_json() == argument["layout"]


def _warnings(argument: IngestArgument, sample: Sample, table: Layout | None) -> list[str]:
    """Signs that the files were misinterpreted.

    Raises :class:`~distop.errors.InvalidArgument` if they are certainly not UTF-8 and no row may be bad.
    """
    if not isinstance(sample, CsvSample | JsonSample):
        return []
    encoding = sample.foreign_encoding
    if encoding and argument.on_bad_rows == "fail":
        field, hint = "encoding", "give it, for example --arg encoding=windows-1252"
        if isinstance(sample, JsonSample):
            field, hint = "paths", "convert them, for example with iconv -f windows-1252 -t utf-8"
        raise invalid(field, f"the files are not UTF-8, but {encoding}", hint)
    given = {*(argument.schema or ()), *(table.schema.column_names if table is not None else ())}
    wanted = sample.names if argument.columns is None else argument.columns
    found = sample.suspicions([name for name in wanted if name and name not in given])
    return [f"the files are not UTF-8, but {encoding}", *found] if encoding else found


def plan_dataframe(request: PlanRequest) -> Plan:
    """What an ingest of a DataFrame does; raises as ``Ingest.plan``."""
    argument = parse(request.argument, DataFrameArgument, "ingest_dataframe")
    try:
        recorded = {"schema": argument.columns, "spec": {"spec-id": 0, "fields": []}, "properties": {}}
        given = Layout.from_json(recorded)
    except CorruptRecord as error:
        raise invalid("columns", str(error)) from None
    if request.partitions is not None:
        raise invalid("partitions", "the partitions are those of the DataFrame")
    check_mode(request, argument)
    conflicts = on_conflict(argument)
    if is_ignored(request, argument):
        return Plan(argument=ignored(request))
    moves = _moves_of_frame(argument, request.watermarks)
    layout, evolution = layout_for_frame(request, argument, given.schema)
    check_columns(given.arrow_schema, layout.arrow_schema)
    plan = TargetPlan(
        layout=layout.to_json(),
        evolution=evolution,
        mode=argument.mode,
        output=request.table.format,
        rules=rules_of(request.table.options, argument.checks, layout),
        on_conflict=conflicts,
        expected_snapshot_id=current_snapshot(request),
    )
    return Plan(argument=msgspec.to_builtins(plan), dynamic=True, watermarks=moves)


def _moves_of_frame(
    argument: DataFrameArgument, standing: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, WatermarkMove]]:
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
        if file_format is None or (compression and file_format in TYPED):
            raise invalid("format", f"the name of {file.path} does not show its format", "give --format")
        formats.setdefault(file_format, file.path)
    if len(formats) > 1:
        examples = " and ".join(f"{path} ({name})" for name, path in formats.items())
        raise invalid(
            "format", f"the files are of several formats: {examples}", "start one operation for each"
        )
    return next(iter(formats))


def _csv_options(argument: IngestArgument, found: FoundSource) -> CsvOptions:
    tabs = all(_endings(file.path)[0] == ".tsv" for file in found.files)
    return csv_options(argument, "\t" if tabs else ",")


def _extents(
    found: FoundSource, files: list[OpenFile], file_format: Format, options: CsvOptions, split_bytes: int
) -> list[Extent]:
    """How each file may be split."""
    whole = [Extent(file.size, (file.size,)) for file in found.files]
    if file_format == "parquet":
        return _parquet_extents(whole, files, split_bytes)
    if file_format == "csv" and (options.multiline or options.encoding):
        return whole
    return [
        extent if _endings(file.path)[1] else Extent(file.size)
        for file, extent in zip(found.files, whole, strict=True)
    ]


def _parquet_extents(whole: list[Extent], files: list[OpenFile], split_bytes: int) -> list[Extent]:
    """Read the row groups only of files that are too large for one split."""
    deadline = time.monotonic() + FOOTER_SECONDS

    def extent(index: int) -> Extent:
        if whole[index].size <= split_bytes:
            return whole[index]
        if time.monotonic() > deadline:
            raise ArgumentTooLarge(
                f"reading the footers of {len(files)} Parquet files takes longer than {FOOTER_SECONDS:.0f} s",
                hint="name fewer paths in one operation, or raise --arg split_bytes",
                details={"field": "paths"},
            )
        sizes = looked_into(files[index], row_group_sizes)
        return Extent(whole[index].size, sizes) if len(sizes) > 1 else whole[index]

    with ThreadPoolExecutor(FOOTER_READERS, thread_name_prefix="footers") as pool:
        return list(pool.map(extent, range(len(whole))))
