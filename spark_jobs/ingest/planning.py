"""Planning an ingest, in three passes that each return a value: the argument, the source, the target.

The argument says what to ingest, and is checked against the table. The source is what is read, in which
splits: of files (:func:`.files.find_source`) or of a topic (:func:`.topic.plan_topic`). The target is which
columns are written, with which types (:func:`.target.target_of`). Together they are the plan, fixed at the
start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from distop.errors import AlreadyIngested, ArgumentTooLarge, CorruptRecord
from distop.lake.iceberg.watermarks import is_after
from distop.lake.layout.model import Layout
from distop.lake.rows import table_layout
from distop.lake.rules.parsing import rules_of
from distop.operations import Plan, PlanRequest, WatermarkMove
from distop.operations.arguments import invalid, parse
from distop.sources.formats.files import marker_versions, while_complete
from distop.sources.formats.reader import check_columns
from distop.sources.kafka.ranges import parse_kafka
from distop.sources.quarantine import Quarantined
from distop.spark_jobs.ingest.argument import (
    DataFrameArgument,
    IngestArgument,
    check_object,
    may_fail_in_part,
    on_conflict,
    parse_argument,
)
from distop.spark_jobs.ingest.files import (
    FilesSource,
    NothingNew,
    check_path_values,
    find_source,
    path_columns_of,
)
from distop.spark_jobs.ingest.plan import IngestPlan, TargetPlan
from distop.spark_jobs.ingest.target import (
    check_mode,
    check_replaced,
    check_target,
    current_snapshot,
    ignored,
    is_ignored,
    layout_for_frame,
    merge_of,
    nothing,
    on_branch,
    target_of,
)
from distop.spark_jobs.ingest.topic import plan_topic
from distop.spark_jobs.ingest.watermarks import has_moved

MAX_MERGED_BYTES = 256 << 20
"""Most bytes of files; each job of a merge has all their rows in memory."""


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
        source = find_source(request, argument, in_part=in_part and not replayed, replayed=replayed)
        if isinstance(source, NothingNew):
            return Plan(argument=nothing(request, argument.branch or "") | {"filesSkipped": source.skipped})
        return _plan_files(request, argument, source, markers, replayed)


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
    source: FilesSource,
    markers: dict[str, str],
    replayed: Quarantined | None,
) -> Plan:
    target = target_of(
        request, argument, source.format, source.sample, direct=source.direct, instants=source.instants
    )
    if argument.mode == "merge":
        _check_size(source.size)
    merge, jobs = merge_of(request, argument, target, len(source.cuts) - 1)
    plan = IngestPlan(
        format=source.format,
        csv=source.csv,
        folder=source.listing.url,
        files=source.entries,
        replay_of="" if replayed is None else replayed.listed.operation,
        quarantined=replayed is not None and not argument.path_list(),
        markers=markers,
        cuts=source.cuts,
        replaces=argument.replaces or "",
        files_skipped=source.skipped,
        files_remaining=source.remaining,
        warnings=source.warnings,
        merge=merge,
        path_columns=path_columns_of(source.sample, target["columns"]),
        **target,
    )
    check_path_values(source.sample, plan)
    if plan.transform is not None:
        return plan.to_plan(dynamic=True, watermarks=source.moves)
    return plan.to_plan(partition_count=jobs, watermarks=source.moves)


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
