"""Planning an ingest, in three passes that each return a value: the argument, the source, the target.

The argument says what to ingest, and is checked against the table. The source is what is read, in which
splits: of files (:func:`.files.find_source`) or of a topic (:func:`plan_topic`). The target is which
columns are written, with which types (:func:`.target.target_of`). Together they are the plan, fixed at the
start.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from pyarrow import types as is_

from distop.errors import AlreadyIngested, ArgumentTooLarge, CorruptRecord
from distop.lake.iceberg.watermarks import is_after
from distop.lake.layout.model import Layout
from distop.lake.rows import table_layout
from distop.lake.rules.parsing import rules_of
from distop.operations import Plan, PlanRequest, WatermarkMove
from distop.operations.arguments import invalid, parse
from distop.sources.formats.files import marker_versions, while_complete
from distop.sources.formats.options import CsvOptions, Format
from distop.sources.formats.reader import check_columns
from distop.sources.formats.types import convertible
from distop.sources.kafka.client import Cluster
from distop.sources.kafka.ranges import KafkaArgument, OffsetRange, held_back, new_ranges, parse_kafka, wrong
from distop.sources.kafka.records import KafkaSample, direct_columns, direct_types
from distop.sources.quarantine import Quarantined
from distop.spark_jobs.ingest.argument import (
    CSV_OPTIONS,
    NAMES_HINT,
    NOTHING,
    DataFrameArgument,
    IngestArgument,
    csv_options,
    may_fail_in_part,
    on_conflict,
    option,
    parse_argument,
)
from distop.spark_jobs.ingest.files import FilesSource, NothingNew, check_path_values, find_source
from distop.spark_jobs.ingest.plan import (
    Extent,
    IngestPlan,
    KafkaSource,
    TargetPlan,
    check_count,
    cut_into_splits,
)
from distop.spark_jobs.ingest.target import (
    check_mode,
    check_replaced,
    check_target,
    current_snapshot,
    is_ignored,
    layout_for_frame,
    merge_of,
    on_branch,
    target_of,
    unchanged,
)
from distop.spark_jobs.ingest.watermarks import has_moved, with_jobs
from distop.spark_jobs.merge import check_merge

LOOK_SECONDS = 6.0
"""Longest examination of a topic; a caller's own deadline is 10 s by default."""

_ONLY_FILES = (
    "paths",
    "format",
    "split_bytes",
    "watermark",
    "multiline",
    "transform",
    "new_only",
    "partition_columns_from_path",
)


def plan_topic(
    request: PlanRequest,
    argument: IngestArgument,
    kafka: KafkaArgument,
    table: Layout | None,
    *,
    in_part: bool,
) -> Plan:
    """What an ingest from a topic reads, fixed at the start.

    Parameters
    ----------
    table:
        The table's layout; ``None``: it has none yet.
    in_part:
        Whether the successful part is published although other jobs fail.

    Raises
    ------
    InvalidArgument, SourceUnreadable, AlreadyIngested, OffsetsLost, KafkaUnavailable, ArgumentTooLarge
    """
    options = _checked_options(request, argument, kafka)
    _check_columns(kafka, table)
    with Cluster(kafka.servers, kafka.config, min(kafka.timeout_s, LOOK_SECONDS)) as cluster:
        topic = cluster.topic(kafka.topic)
        name = argument.source or topic.url
        new = new_ranges(kafka, topic, request.watermarks.get(name, {}), reingest=argument.reingest)
        moves = {name: new.moves}
        held, warnings = held_back(topic)
        if not new.ranges:
            kept = {"url": topic.url, "skipped": new.skipped, "held": held}
            record = unchanged(request, "append", NOTHING, branch=argument.branch or "", kafka=kept)
            return Plan(argument=record | ({"warnings": warnings} if held else {}), watermarks=moves)
        cuts = _cuts(new.ranges, kafka.records_per_job, apart=in_part)
        sample = KafkaSample(
            cluster,
            kafka,
            new.ranges,
            options,
            None if table is None else table.schema,
            declared=argument.schema is not None and argument.columns is None,
        )
        if argument.schema is None and not sample.names:
            reason = f": {sample.unreadable}" if sample.unreadable else ""
            raise invalid(
                "schema",
                f"the new records of {topic.url} show no columns{reason}",
                "say which there are, as in --schema 'id: long'",
            )
        target = target_of(
            request, argument, _WRITTEN[kafka.format], sample, table, direct=direct_columns(kafka)
        )
    merge, jobs = merge_of(request, argument, target, len(cuts) - 1)
    plan = IngestPlan(
        format=f"kafka/{kafka.format}",
        csv=options,
        kafka=KafkaSource(
            url=topic.url,
            servers=kafka.servers,
            topic=kafka.topic,
            topic_id=topic.id,
            ranges=new.ranges,
            value=kafka.format,
            value_column=kafka.value_column,
            metadata={str(label): column for label, column in kafka.metadata.items()},
            skip_gaps=kafka.on_gap == "skip",
            skipped=new.skipped,
            held=held,
            keep_tombstones=kafka.tombstones == "keep",
            timeout_s=kafka.timeout_s,
            config=dict(kafka.config),
        ),
        cuts=cuts,
        merge=merge,
        warnings=warnings,
        **target,
    )
    _check_types(kafka, plan)
    if in_part:
        lengths = {str(part.partition): part.length for part in new.ranges}
        moves = {name: with_jobs(new.moves, lengths, cuts)}
    return plan.to_plan(partition_count=jobs, watermarks=moves)


_WRITTEN: dict[str, Format] = {"json": "jsonl", "csv": "csv", "raw": "jsonl"}
# The format whose rules decide which types a value can have; a raw value is a column of its own.


def _checked_options(request: PlanRequest, argument: IngestArgument, kafka: KafkaArgument) -> CsvOptions:
    refused = [*_ONLY_FILES, *(sorted(CSV_OPTIONS) if kafka.format != "csv" else ())]
    for field in refused:
        if field in request.argument:
            raise invalid(field, f"{option(field)} does not go with a topic of the format {kafka.format}")
    if kafka.format == "csv" and not isinstance(argument.header, list):
        raise invalid("header", "a record is one line without names", NAMES_HINT)
    return csv_options(argument, ",")


def _check_columns(kafka: KafkaArgument, table: Layout | None) -> None:
    names = [] if table is None else [field.name for field in table.schema.columns]
    for column in direct_columns(kafka) if table is not None else ():
        if column not in names:
            field = "metadata" if column in kafka.metadata.values() else "value_column"
            raise wrong(field, f"the table has no column {column!r}", f"it has {', '.join(names)}")


def _check_types(kafka: KafkaArgument, plan: IngestPlan) -> None:
    natural = direct_types(kafka)
    for field in plan.source_columns:
        given = natural.get(field.name, field.type)
        is_text = is_.is_large_binary(given) and (
            is_.is_string(field.type) or is_.is_large_string(field.type)
        )
        if not is_text and not convertible(given, field.type):
            raise invalid("schema", f"column {field.name!r}: {given} cannot become {field.type}")


def _cuts(ranges: Sequence[OffsetRange], records_per_job: int, *, apart: bool) -> list[int]:
    check_count(
        sum(part.length for part in ranges),
        records_per_job,
        "records",
        field="kafka.records_per_job",
        less="take less at a time with kafka.max_records_per_partition",
    )
    # A failed job withholds only the partitions that it reads.
    alone: Collection[int] = range(len(ranges)) if apart else ()
    return cut_into_splits([Extent(part.length) for part in ranges], records_per_job, alone)


MAX_MERGED_BYTES = 256 << 20
"""Most bytes of files; each job of a merge has all their rows in memory."""


def plan_ingest(request: PlanRequest) -> Plan:
    """What an ingest does; raises as ``Ingest.plan``."""
    checked = _checked(request)
    if isinstance(checked, Plan):
        return checked
    request, argument = checked.request, checked.argument
    if argument.kafka is not None:
        kafka = parse_kafka(argument.kafka)
        return plan_topic(request, argument, kafka, checked.table, in_part=checked.in_part)
    markers = marker_versions(argument.markers)
    with while_complete(markers):
        in_part, replayed = checked.in_part and not checked.replayed, checked.replayed
        source = find_source(request, argument, checked.table, in_part=in_part, replayed=replayed)
        if isinstance(source, NothingNew):
            branch, skipped = argument.branch or "", source.skipped
            return Plan(argument=unchanged(request, "append", NOTHING, branch=branch, filesSkipped=skipped))
        return _plan_files(checked, source, markers)


@dataclass(frozen=True)
class _Checked:
    """What to ingest, checked against the table."""

    request: PlanRequest
    """On the branch, if the ingest writes to one."""
    argument: IngestArgument
    table: Layout | None
    """The table's layout; ``None``: it has none yet."""
    in_part: bool
    """Whether the successful part is published although other jobs fail."""
    replayed: Quarantined | None
    """The quarantined rows that are ingested again."""


def _checked(request: PlanRequest) -> _Checked | Plan:
    """The argument of an ingest, as far as it can be checked before the source is read; or its plan, if there
    is nothing to do."""
    if request.partitions is not None:
        raise invalid("partitions", "ingest makes its own partitions", "choose what to ingest by its paths")
    replayed = None
    if (folder := request.argument.get("replay")) is not None:
        replayed = Quarantined.of(request.table, folder)
        request = replace(request, argument={**_as_before(replayed, request), **request.argument})
    argument = parse_argument(request.argument)
    check_target(request, argument)
    if argument.branch is not None:
        request = on_branch(request, argument.branch, argument.mode)
    if argument.replaces is not None:
        check_replaced(request, argument.replaces)
    in_part = may_fail_in_part(argument, request.options)
    if is_ignored(request, argument):
        return Plan(argument=unchanged(request, "ignore", "ignored"))
    table = table_layout(request)
    if argument.mode == "merge" and table is not None:
        check_merge(argument.keys, argument.order_by, table.schema)
    return _Checked(request, argument, table, in_part, replayed)


def _as_before(replayed: Quarantined, request: PlanRequest) -> dict[str, Any]:
    """The fields with which its rows are read as they were; for other files only those that suit them."""
    before = replayed.listed.argument
    if not request.argument.get("paths"):
        replayed.check_text()
        return before
    return {name: value for name, value in before.items() if name != "format"}


def _plan_files(checked: _Checked, source: FilesSource, markers: dict[str, str]) -> Plan:
    request, argument, replayed = checked.request, checked.argument, checked.replayed
    chosen, reading, splits = source.chosen, source.reading, source.splits
    target = target_of(
        request, argument, reading.format, reading.sample, checked.table, direct=reading.direct
    )
    if argument.mode == "merge":
        _check_size(source.size)
    merge, jobs = merge_of(request, argument, target, len(splits.cuts) - 1)
    read = {column["name"] for column in target["columns"]["fields"]}
    plan = IngestPlan(
        format=reading.format,
        csv=reading.csv,
        folder=chosen.listing.url,
        files=splits.entries,
        replay_of="" if replayed is None else replayed.listed.operation,
        quarantined=replayed is not None and not argument.path_list(),
        markers=markers,
        cuts=splits.cuts,
        replaces=argument.replaces or "",
        files_skipped=chosen.skipped,
        files_remaining=chosen.remaining,
        warnings=reading.warnings,
        merge=merge,
        path_columns=[name for name in reading.path_values if name in read],
        **target,
    )
    check_path_values(reading.path_values, plan)
    if plan.transform is not None:
        return plan.to_plan(dynamic=True, watermarks=splits.moves)
    return plan.to_plan(partition_count=jobs, watermarks=splits.moves)


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
        return Plan(argument=unchanged(request, "ignore", "ignored"))
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
    argument: DataFrameArgument, watermarks: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, WatermarkMove]]:
    if bool(argument.source) != bool(argument.watermark):
        raise invalid("watermark", "a watermark has a source, and a source a watermark")
    present, moves = watermarks.get(argument.source, {}), {}
    for partition, after in argument.watermark.items():
        before = present.get(partition)
        if before is not None and not is_after(after, before):
            raise AlreadyIngested(
                f"{argument.source!r}/{partition!r} was ingested already, up to {before!r}",
                details={"field": "watermark", "partition": partition, "watermark": before},
            )
        moves[partition] = WatermarkMove(before=before, after=after)
    return {argument.source: moves} if moves else {}
