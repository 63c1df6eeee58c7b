"""The options of an ingest, by subject; each makes the fields of its argument that were given.

Every field has an option: its own name with dashes, in the singular where it may be repeated. Those of a
topic begin with ``--kafka``. A parameter has the name of its field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

from distop.cli.options.bundles import Bundle
from distop.cli.options.parsing import (
    absolute,
    parse_object,
    parse_properties,
    parse_rules,
    parse_types,
    split_list,
)
from distop.cli.options.session import complete_branch, complete_operation, complete_source
from distop.cli.output.exits import UsageFault
from distop.errors import InvalidArgument

Texts = list[str] | None


class _Fields:
    """The options of one subject."""

    def argument(self) -> dict[str, Any]:
        """The fields of the argument that were given."""
        return self.given()

    def given(self, **made: Any) -> dict[str, Any]:
        """The fields that have a value, ``made`` in place of those of these names."""
        fields = vars(self) | made
        return {name: value for name, value in fields.items() if value is not None and value != []}


@dataclass
class ReadingFields(_Fields):
    """How files are read, and what is made of their rows."""

    format: Annotated[
        Literal["csv", "jsonl", "parquet", "avro"] | None, typer.Option(help="Default: by file name.")
    ] = None
    schema: Annotated[
        Texts,
        typer.Option(
            metavar="COLUMNS",
            help="Types of columns: 'id: long, at: timestamp', or @FILE with JSON. "
            "Default: the table's, else inferred.",
        ),
    ] = None
    columns: Annotated[
        Texts,
        typer.Option("--column", metavar="NAME", help="Write this column, and not all of them. Repeatable."),
    ] = None
    filter: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Only rows for which it is true.")
    ] = None
    transform: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Write the rows of this query over the table source, the files."),
    ] = None
    epoch_units: Annotated[
        Texts,
        typer.Option(
            "--epoch-unit",
            metavar="COLUMN=UNIT",
            help="Its numbers count days, s, ms, us or ns from the beginning of 1970. Repeatable.",
        ),
    ] = None
    partition_columns_from_path: Annotated[
        bool | None,
        typer.Option(
            "--partition-columns-from-path", help="Take columns from folders such as day=2024-01-01, too."
        ),
    ] = None
    on_new_columns: Annotated[
        Literal["fail", "add", "ignore"] | None,
        typer.Option(help="For columns that the table does not have. Default: fail."),
    ] = None
    on_wider_types: Annotated[
        Literal["fail", "widen"] | None,
        typer.Option(help="For values beyond the type of a column. Default: fail."),
    ] = None
    on_bad_rows: Annotated[
        Literal["fail", "quarantine"] | None,
        typer.Option(help="For rows that cannot be parsed or do not fit. Default: fail."),
    ] = None
    max_bad_rows: Annotated[
        int | None, typer.Option(metavar="COUNT", help="With quarantine: fail if more rows are bad.")
    ] = None
    max_bad_share: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="With quarantine: fail if a greater share of the rows is bad, 0 to 1. Default: if all are.",
        ),
    ] = None
    split_bytes: Annotated[
        int | None, typer.Option(metavar="BYTES", help="About how much one job reads. Default: 256 MiB.")
    ] = None

    def argument(self) -> dict[str, Any]:
        return self.given(
            schema=parse_types(self.schema) if self.schema else None,
            epoch_units=parse_properties(self.epoch_units) if self.epoch_units else None,
        )


@dataclass
class CsvFields(_Fields):
    """How CSV is written."""

    header: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="The columns, id,at, if no line of the files names them."),
    ] = None
    delimiter: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="Default: a comma; a tab for .tsv.")
    ] = None
    quote: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="Default: '\"'. Empty: nothing is quoted.")
    ] = None
    escape: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="Before a quote within quotes. Default: none.")
    ] = None
    null_values: Annotated[
        Texts,
        typer.Option(
            "--null-value", metavar="TEXT", help="Means NULL, in addition to an empty value. Repeatable."
        ),
    ] = None
    empty_is_null: Annotated[
        bool,
        typer.Option(
            "--empty-is-null/--empty-is-text",
            help="With text: only values of --null-value mean NULL.",
        ),
    ] = True
    encoding: Annotated[
        str | None, typer.Option(metavar="NAME", help="Such as windows-1252. Default: utf-8.")
    ] = None
    decimal_point: Annotated[Literal[".", ","] | None, typer.Option(help="Default: a point.")] = None
    thousands: Annotated[
        str | None, typer.Option(metavar="CHARACTER", help="Between groups of three digits. Default: none.")
    ] = None
    date_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Such as %d.%m.%Y. Default: ISO-8601.")
    ] = None
    timestamp_format: Annotated[
        str | None, typer.Option(metavar="FORMAT", help="Such as %d.%m.%Y %H:%M. Default: ISO-8601.")
    ] = None
    timezone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="Of times without a zone, such as Europe/Berlin. Default: UTC."),
    ] = None
    multiline: Annotated[
        bool | None,
        typer.Option(
            "--multiline/--no-multiline",
            help="Quoted values may hold newlines, or do not. Default: refused if the first lines do.",
        ),
    ] = None

    def argument(self) -> dict[str, Any]:
        fields = self.given(header=split_list(self.header) if self.header else None, empty_is_null=None)
        if self.null_values or not self.empty_is_null:
            fields["null_values"] = [""] * self.empty_is_null + (self.null_values or [])
        return fields


@dataclass
class WritingFields(_Fields):
    """What becomes of the rows that the table has."""

    mode: Annotated[
        Literal["append", "overwrite", "overwrite_partitions", "error_if_exists", "ignore", "merge"] | None,
        typer.Option(help="Default: append."),
    ] = None
    keys: Annotated[
        Texts, typer.Option("--key", metavar="COLUMN", help="With --mode merge: key column. Repeatable.")
    ] = None
    order_by: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="With --mode merge: rows with a greater value are newer."),
    ] = None
    delete_where: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="With --mode merge: new rows that delete their match."),
    ] = None
    update_where: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help="With --mode merge: only these replace their match."),
    ] = None
    insert_where: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="With --mode merge: only these are added.")
    ] = None
    replaces: Annotated[
        str | None,
        typer.Option(
            metavar="OPERATION",
            help="Take away the rows that this ingest has added.",
            autocompletion=complete_operation,
        ),
    ] = None
    branch: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Write to this branch, to publish it later.",
            autocompletion=complete_branch,
        ),
    ] = None
    on_conflict: Annotated[
        Literal["rebase", "refuse"] | None,
        typer.Option(help="If others write meanwhile. Default: rebase to append, refuse to overwrite."),
    ] = None


@dataclass
class ProgressFields(_Fields):
    """What is new, and complete."""

    new_only: Annotated[
        bool | None, typer.Option("--new-only", help="Ingest only files that were not ingested before.")
    ] = None
    reingest: Annotated[
        bool | None,
        typer.Option("--reingest", help="Ingest again what was ingested before; may duplicate rows."),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of the watermarks. Default: the folder of all paths.",
            autocompletion=complete_source,
        ),
    ] = None
    watermark: Annotated[
        Texts,
        typer.Option(
            metavar="PATH=VALUE",
            help="How far this path of the source is ingested then. Default: its newest time. Repeatable.",
        ),
    ] = None
    markers: Annotated[
        Texts,
        typer.Option(
            "--marker", metavar="PATH", help="Read nothing without this file, such as _SUCCESS. Repeatable."
        ),
    ] = None

    def argument(self) -> dict[str, Any]:
        return self.given(
            watermark=parse_properties(self.watermark) if self.watermark else None,
            markers=[absolute(path) for path in self.markers or ()],
        )


def rules(
    rule: Annotated[
        Texts, typer.Option(metavar="CONDITION|JSON", help="An SQL condition, or a rule as JSON. Repeatable.")
    ] = None,
    not_null: Annotated[
        Texts, typer.Option(metavar="COLUMN", help="The column must not be NULL. Repeatable.")
    ] = None,
    unique: Annotated[
        Texts, typer.Option(metavar="COLUMN,...", help="Must be unique within each partition. Repeatable.")
    ] = None,
) -> list[Any]:
    """Rules that rows must keep."""
    return parse_rules(rule or (), not_null or (), unique or ())


@dataclass
class KafkaFields(_Fields):
    """A topic of Kafka."""

    kafka_topic: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Ingest this topic, in place of files."),
    ] = None
    kafka_servers: Annotated[
        str | None, typer.Option(metavar="HOST:PORT,...", help="Where its brokers are.")
    ] = None
    kafka_format: Annotated[
        Literal["json", "csv", "raw"] | None,
        typer.Option(help="Of a record's value. Default: json."),
    ] = None
    kafka_from: Annotated[
        Texts,
        typer.Option(
            metavar="earliest|PARTITION=OFFSET",
            help="Where to begin; the second is repeatable. Default: at the watermarks.",
        ),
    ] = None
    kafka_to: Annotated[
        Texts,
        typer.Option(
            metavar="PARTITION=OFFSET",
            help="The first offset that is not read. Repeatable. Default: the end of the topic.",
        ),
    ] = None
    kafka_max_records_per_partition: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="Most that one operation reads."),
    ] = None
    kafka_records_per_job: Annotated[
        int | None,
        typer.Option(metavar="COUNT", help="About how many one job reads."),
    ] = None
    kafka_on_gap: Annotated[
        Literal["fail", "skip"] | None,
        typer.Option(help="If records are no longer in the topic. Default: fail."),
    ] = None
    kafka_tombstones: Annotated[
        Literal["skip", "keep"] | None,
        typer.Option(help="Records without a value. Default: skip."),
    ] = None
    kafka_metadata: Annotated[
        Texts,
        typer.Option(
            metavar="PART=COLUMN",
            help="Write key, partition, offset, timestamp or headers to this column, too. Repeatable.",
        ),
    ] = None
    kafka_value_column: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of raw values. Default: value."),
    ] = None
    kafka_timeout_s: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long to wait for brokers. Default: 30."),
    ] = None
    kafka_config: Annotated[
        Texts,
        typer.Option(
            metavar="NAME=VALUE",
            help="Setting of the client; the value env:NAME or file:PATH names a secret. Repeatable.",
        ),
    ] = None

    def argument(self) -> dict[str, Any]:
        config = parse_properties(self.kafka_config or ())
        earliest = self.kafka_from == ["earliest"]
        fields = self.given(
            kafka_from="earliest" if earliest else _offsets("kafka.from", self.kafka_from),
            kafka_to=_offsets("kafka.to", self.kafka_to),
            kafka_metadata=parse_properties(self.kafka_metadata) if self.kafka_metadata else None,
            kafka_config={name: _setting(value) for name, value in config.items()} or None,
        )
        if fields and not (self.kafka_topic and self.kafka_servers):
            raise InvalidArgument(
                "a topic is named by --kafka-topic and --kafka-servers", details={"field": "kafka.topic"}
            )
        topic = {name.removeprefix("kafka_"): value for name, value in fields.items()}
        return {"kafka": topic} if topic else {}


def _offsets(field: str, items: Texts) -> dict[str, int] | None:
    try:
        return {partition: int(offset) for partition, offset in parse_properties(items or ()).items()} or None
    except ValueError:
        raise InvalidArgument("an offset is not a number", details={"field": field}) from None


def _setting(text: str) -> str | dict[str, str]:
    kind, colon, name = text.partition(":")
    return {kind: name} if colon and kind in ("env", "file") else text


Reading = Annotated[ReadingFields, Bundle(ReadingFields, panel="Reading")]
Csv = Annotated[CsvFields, Bundle(CsvFields, panel="CSV")]
Writing = Annotated[WritingFields, Bundle(WritingFields, panel="Writing")]
Progress = Annotated[ProgressFields, Bundle(ProgressFields, panel="What is new")]
Rules = Annotated[list[Any], Bundle(rules, panel="Rules")]
Kafka = Annotated[KafkaFields, Bundle(KafkaFields, panel="Kafka")]


def ingest_fields(
    reading: Reading,
    csv: Csv,
    writing: Writing,
    progress: Progress,
    rules: Rules,
    kafka: Kafka,
    paths: Annotated[Texts, typer.Argument(metavar="PATH", help="Files, folders, globs or URLs.")] = None,
    checks: Annotated[
        str | None,
        typer.Option(metavar="FILE|-|JSON", help="Rules for all rows, in place of --rule and so on."),
    ] = None,
) -> dict[str, Any]:
    """All fields of the argument that were given."""
    fields: dict[str, Any] = {"paths": [absolute(path) for path in paths]} if paths else {}
    for subject in (reading, csv, writing, progress, kafka):
        fields |= subject.argument()
    if rules and checks is not None:
        raise UsageFault("--checks holds all rules, and goes with none of --rule, --not-null and --unique")
    if rules:
        fields["checks"] = {"rules": rules}
    elif checks is not None:
        fields["checks"] = parse_object(checks, "checks")
    return fields


def with_source(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, if they say what is read."""
    if not fields.keys() & {"paths", "kafka"}:
        raise UsageFault("name files to ingest, or a topic with --kafka-topic")
    return fields


IngestFields = Annotated[dict[str, Any], Bundle(ingest_fields)]
