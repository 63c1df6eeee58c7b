"""Planning an ingest from Kafka: which offsets, split into which jobs, into which columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from pyarrow import types as is_

from distop.lake.rows import table_layout
from distop.operations import Plan, PlanRequest
from distop.operations.arguments import invalid
from distop.sources.formats.options import CsvOptions, Format
from distop.sources.formats.types import convertible
from distop.sources.kafka.client import Cluster
from distop.sources.kafka.ranges import KafkaArgument, OffsetRange, held_back, new_ranges, wrong
from distop.sources.kafka.records import KafkaSample, direct_columns, direct_types
from distop.spark_jobs.ingest.argument import CSV_OPTIONS, NAMES_HINT, IngestArgument, csv_options, option
from distop.spark_jobs.ingest.plan import Extent, IngestPlan, KafkaSource, check_count, cut_into_splits
from distop.spark_jobs.ingest.target import merge_of, nothing, target_of
from distop.spark_jobs.ingest.watermarks import with_jobs

if TYPE_CHECKING:
    from distop.lake.layout.model import Layout

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
    request: PlanRequest, argument: IngestArgument, kafka: KafkaArgument, *, in_part: bool
) -> Plan:
    """What an ingest from a topic reads, fixed at the start.

    Parameters
    ----------
    in_part:
        Whether the successful part is published although other jobs fail.

    Raises
    ------
    InvalidArgument, SourceUnreadable, AlreadyIngested, OffsetsLost, KafkaUnavailable, ArgumentTooLarge
    """
    options = _checked_options(request, argument, kafka)
    table = table_layout(request)
    _check_columns(kafka, table)
    with Cluster(kafka.servers, kafka.config, min(kafka.timeout_s, LOOK_SECONDS)) as cluster:
        topic = cluster.topic(kafka.topic)
        name = argument.source or topic.url
        new = new_ranges(kafka, topic, request.watermarks.get(name, {}), reingest=argument.reingest)
        moves = {name: new.moves}
        held, warnings = held_back(topic)
        if not new.ranges:
            record = nothing(request, argument.branch or "") | {
                "kafka": {"url": topic.url, "skipped": new.skipped, "held": held}
            }
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
        target = target_of(request, argument, _WRITTEN[kafka.format], sample, direct=direct_columns(kafka))
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
