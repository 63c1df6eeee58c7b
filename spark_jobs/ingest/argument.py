"""The argument of ``ingest``, and what its mode means: checks at the start, and the steps that publish."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from distop.lake.layout.properties import MAX_COLUMN_NAME, MAX_COLUMNS
from distop.lake.rules.model import ChecksArgument
from distop.operations import OperationOptions
from distop.operations.arguments import invalid, parse
from distop.sources.formats.options import CsvOptions, Format, known_encoding

Mode: TypeAlias = Literal["append", "overwrite", "overwrite_partitions", "error_if_exists", "ignore"]
FileMode: TypeAlias = Mode | Literal["merge"]

OnNewColumns: TypeAlias = Literal["fail", "add", "ignore"]
OnWiderTypes: TypeAlias = Literal["fail", "widen"]
EpochUnit: TypeAlias = Literal["days", "s", "ms", "us", "ns"]

DEFAULT_SPLIT_BYTES = 256 << 20
MIN_SPLIT_BYTES = 1 << 10
MAX_SPLIT_BYTES = 1 << 40
MAX_FILTER_CHARACTERS = 4096
MAX_TRANSFORM_CHARACTERS = 100_000
DEFAULT_NULL_VALUES = ("", "NULL", "null")

NAMES_HINT = "name the columns: --header id,name"
"""For files, and records, that do not name them."""

CSV_OPTIONS = frozenset(
    {
        "header",
        "delimiter",
        "quote",
        "escape",
        "null_values",
        "encoding",
        "multiline",
        "decimal_point",
        "thousands",
        "date_format",
        "timestamp_format",
        "timezone",
    }
)
"""Fields for CSV only; with another format they are refused."""


_OPTIONS = {
    "paths": "PATH",
    "replay": "a replay",
    "kafka": "--kafka-topic",
    "columns": "--column",
    "epoch_units": "--epoch-unit",
    "keys": "--key",
    "markers": "--marker",
    "null_values": "--null-value",
}
"""How a command line names fields that it calls otherwise."""


def option(field: str) -> str:
    """How a command line gives a field of the argument, for messages; one of a topic is ``kafka.NAME``."""
    return _OPTIONS.get(field) or "--" + field.replace(".", "-").replace("_", "-")


class IngestArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to ingest, and how."""

    paths: str | list[str] = []
    """Files, folders (read recursively) and globs: absolute local paths or URLs that fsspec knows. Inside
    folders, names that begin with ``_`` or ``.`` and empty files are skipped."""
    markers: list[str] = []
    """Files that exist once those of ``paths`` are complete, such as the ``_SUCCESS`` of a landing folder:
    absolute local paths or URLs. Without one of them nothing is read; if one is removed or written again
    before all is read, nothing is published."""
    replay: str | None = None
    """Rows that an operation has put into quarantine, by the folder that its fact ``quarantine`` names. They
    are ingested once: their own text in place of ``paths``, or files of ``paths`` in which they were put
    right. They are read as they were the first time, except for what this argument says."""
    kafka: dict[str, Any] | None = None
    """A Kafka topic in place of ``paths``; see :class:`~distop.sources.kafka.ranges.KafkaArgument`."""
    format: Format | None = None
    """Default: from the file names (``.csv``, ``.tsv``, ``.jsonl``, ``.ndjson``, ``.json``, ``.parquet``,
    ``.avro``; text formats also followed by ``.gz``, ``.bz2``, ``.xz``, ``.zst`` or ``.lz4``)."""

    header: bool | list[str] = True
    """CSV. ``true``: the first line of every file names its columns, in any order. A list: the names of the
    columns, for files without such a line."""
    delimiter: str | None = None
    """CSV. One character; default ``,`` (a tab if every file is called ``.tsv``)."""
    quote: str = '"'
    """CSV. One character, doubled inside a quoted value; empty: nothing is quoted."""
    escape: str = ""
    """CSV. One character that, within quotes, precedes a quote or itself where that belongs to
    the value; empty: there is none."""
    null_values: list[str] = msgspec.field(default_factory=lambda: list(DEFAULT_NULL_VALUES))
    """CSV. Texts that mean NULL, in columns of every type. A quoted value is never NULL: ``""`` is the empty
    string."""
    encoding: str = "utf-8"
    """CSV. The encoding of the text, such as ``windows-1252`` or ``utf-16``. A file that is not UTF-8 is not
    split."""
    decimal_point: Literal[".", ","] = "."
    """CSV. The decimal separator of numbers."""
    thousands: str = ""
    """CSV. The separator between groups of three digits of numbers; empty: there is none."""
    date_format: str = ""
    """CSV. How dates are written, in the letters of ``strptime``, such as ``%d.%m.%Y``; empty: ISO-8601."""
    timestamp_format: str = ""
    """CSV. The same for timestamps, such as ``%d/%m/%Y %I:%M:%S %p``."""
    timezone: str = ""
    """CSV. Where times without a zone belong in ``timestamptz`` columns, such as ``Europe/Berlin``; empty:
    UTC."""
    multiline: bool | None = None
    """CSV. ``true``: quoted values may contain newlines, and a file is never split. ``false``: they do not.
    Default: as ``false``, and refused at the start if the first lines show otherwise."""

    schema: dict[str, str] | None = None
    """Columns of the source and their Iceberg types, such as ``{"day": "date", "fare": "decimal(9,2)"}``.
    Default: the types of the table's columns, or, if it has none yet, those inferred from a sample of the
    files."""
    epoch_units: dict[str, EpochUnit] = {}
    """Columns whose numbers count from the beginning of 1970 (UTC) -> their units: ``{"ts_ms": "ms"}``. They
    become dates (``days``), or times; new columns become ``timestamptz``."""
    columns: list[str] | None = None
    """Which columns to write to the table; default: those of ``schema`` and of the table, or else all."""
    partition_columns_from_path: bool = False
    """Take columns that the files do not have from the names of their folders, as Hive and Spark write them:
    ``day=2024-01-01/a.parquet`` has the column ``day``. All files must name the same ones. Without it, files
    without a column of the table that their folders name are refused."""
    on_new_columns: OnNewColumns = "fail"
    """What to do with columns (keys, in JSON) that neither ``schema`` nor the table has, if the table has
    columns: refuse the operation, add them to the table, or ignore them. With ``columns`` given, others are
    always ignored."""
    on_wider_types: OnWiderTypes = "fail"
    """What to do with values that exceed a column's type (an int column, and a value beyond 32 bits): refuse
    the operation, or widen the column. Columns in ``schema`` have the type given
    there."""
    transform: str | None = None
    """A Spark SQL query whose rows are written to the table, such as ``SELECT day, sum(fare) AS fares FROM
    source GROUP BY day``; ``source`` is the content of the files. Default: their rows as they are."""
    filter: str | None = None
    """Only rows with this condition, such as ``distance > 100 and origin == 'JFK'``. It may use all columns
    of the source, also those that are not written."""
    on_bad_rows: Literal["fail", "quarantine"] = "fail"
    """What to do with a row that cannot be parsed: the operation fails and reports its position, or the row
    goes to a quarantine file and the others to the table."""
    max_bad_rows: int | None = None
    """With ``quarantine``: the operation fails, and publishes nothing, if more rows are bad."""
    max_bad_share: float | None = None
    """The same for the share of the bad rows among all, from 0 to 1. Default: it fails if all rows are bad;
    with 1 it does not."""

    checks: ChecksArgument | None = None
    """Rules that all rows must keep, or nothing is published. Those of the table apply as well."""

    split_bytes: int = DEFAULT_SPLIT_BYTES
    """About how many bytes one job reads."""
    mode: FileMode = "append"
    """``overwrite`` replaces all rows of the table; ``overwrite_partitions`` those of the partitions of the
    new rows. ``error_if_exists`` and ``ignore`` append to a table without data; they refuse, or leave
    unchanged, any other. ``merge`` replaces the rows that have the ``keys`` of new ones, and adds the others;
    of several new rows with the same key the last one counts, by ``order_by``, or else by the names of files
    and the order of their rows."""
    keys: list[str] = []
    """For ``merge``: the key columns."""
    order_by: str | None = None
    """For ``merge``: a column of the table that says how new a row is, such as ``updated_at``. Of several new
    rows with the same key the one with the greatest value counts, and it neither replaces nor deletes a row
    of the table with a greater one."""
    delete_where: str | None = None
    """For ``merge``: new rows with this condition, such as ``op == 'D'``, delete those with their keys, and
    are not added. It may use all columns of the source, as the next two may; one that the table lacks is not
    added to it."""
    update_where: str | None = None
    """For ``merge``: only new rows with this condition replace others. Default: all."""
    insert_where: str | None = None
    """For ``merge``: only new rows with this condition are added. Default: all."""
    on_conflict: Literal["rebase", "refuse"] | None = None
    """What to do if others write to the table meanwhile: build on their changes, or fail. Default: ``rebase``
    for ``append``, ``refuse`` for the modes that overwrite."""

    branch: str | None = None
    """Write to this branch of an Iceberg table: readers of the table see nothing before the branch is
    published. A new branch begins at the table's present snapshot."""

    source: str | None = None
    """Name for the watermarks; default: the URL of the folder that contains all ``paths``."""
    watermark: dict[str, str] | None = None
    """Path relative to the source's folder -> its new watermark; default: the modification time of its newest
    file."""
    new_only: bool = False
    """Ingest the files of ``paths`` that were not ingested before; each then has a watermark of its own."""
    reingest: bool = False
    """Ingest also what was ingested before, according to the watermarks."""
    replaces: str | None = None
    """An earlier ingest that has appended rows to the Iceberg table, such as ``t/ingest/7``: its rows leave
    the table in the same transaction. Refused if their files were rewritten since, as by a compaction.
    Includes ``reingest``."""

    def path_list(self) -> list[str]:
        return [self.paths] if isinstance(self.paths, str) else self.paths


class DataFrameArgument(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The argument of ``ingest_dataframe``."""

    columns: dict[str, Any]
    """The Iceberg schema of the DataFrame's rows."""
    mode: Mode = "append"
    on_conflict: Literal["rebase", "refuse"] | None = None
    on_new_columns: Literal["fail", "add"] = "fail"
    on_wider_types: OnWiderTypes = "fail"
    checks: ChecksArgument | None = None
    source: str = ""
    watermark: dict[str, str] = {}
    """Of ``source``: partition -> how far the rows go. Rows up to an existing watermark are refused."""


def parse_argument(raw: Mapping[str, Any]) -> IngestArgument:
    """Check what can be checked without reading files or the table.

    Raises
    ------
    InvalidArgument
        ``details["field"]`` names the field.
    """
    argument = parse(dict(raw), IngestArgument, "ingest")
    _check_source(argument)
    _check_csv(argument)
    _check_columns(argument)
    _check_transform(argument)
    _check_merge(argument)
    _check_bad_rows(argument)
    if not MIN_SPLIT_BYTES <= argument.split_bytes <= MAX_SPLIT_BYTES:
        raise invalid(
            "split_bytes", f"--split-bytes must lie between {MIN_SPLIT_BYTES} and {MAX_SPLIT_BYTES}"
        )
    return argument


def check_format_options(raw: Mapping[str, Any], file_format: Format) -> None:
    """Refuse options of CSV that were given for another format."""
    misplaced = sorted(CSV_OPTIONS.intersection(raw)) if file_format != "csv" else []
    if misplaced:
        raise invalid(misplaced[0], f"{option(misplaced[0])} is for csv, but the files are {file_format}")


def _check_source(argument: IngestArgument) -> None:
    paths = argument.path_list()
    if argument.kafka is not None:
        if paths:
            raise invalid("paths", "both paths and a topic are given", "start one operation for each")
    elif argument.replay is not None and not paths:
        pass  # the rows themselves are the source
    elif not paths or not all(paths):
        raise invalid("paths", "paths is empty" if not paths else "a path is empty")
    if argument.markers and argument.kafka is not None:
        raise invalid("markers", "a topic has no markers")
    if argument.source is not None and not argument.source.strip():
        raise invalid("source", "--source is empty")
    if argument.new_only:
        _check_new_only(argument)
    if argument.replaces is not None:
        _check_replaces(argument)
    if argument.replay is not None:
        _check_replay(argument)
    for partition, value in (argument.watermark or {}).items():
        if not value:
            raise invalid("watermark", f"the watermark of {partition!r} is empty")


def _check_replaces(argument: IngestArgument) -> None:
    for field, given in (
        ("mode", argument.mode != "append"),
        ("new_only", argument.new_only),
        ("kafka", argument.kafka is not None),
    ):
        if given:
            raise invalid(
                field,
                f"--replaces does not go with {option(field)}",
                "with --mode overwrite_partitions it is not needed",
            )


def _check_new_only(argument: IngestArgument) -> None:
    for field, given, reason in (
        ("reingest", argument.reingest, "takes what was ingested before, too"),
        ("watermark", argument.watermark is not None, "has no meaning where each file has its own"),
        ("kafka", argument.kafka is not None, "always goes on where its watermarks stand"),
        (
            "mode",
            argument.mode not in ("append", "overwrite_partitions", "merge"),
            "says what else the table holds",
        ),
    ):
        if given:
            raise invalid("new_only", f"--new-only does not go with {option(field)}, which {reason}")


def _check_replay(argument: IngestArgument) -> None:
    from_path = argument.partition_columns_from_path and not argument.path_list()
    for field, given, reason in (
        ("kafka", argument.kafka is not None, "has other rows"),
        ("new_only", argument.new_only, "is for files"),
        ("source", argument.source is not None, "names watermarks, and a replay has its own"),
        ("watermark", argument.watermark is not None, "is one, and a replay has its own"),
        ("mode", argument.mode != "append", "would replace rows: they are added"),
        ("transform", argument.transform is not None, "is over files"),
        ("replaces", argument.replaces is not None, "takes rows away: they are added"),
        ("partition_columns_from_path", from_path, "is for files"),
    ):
        if given:
            raise invalid(field, f"a replay does not go with {option(field)}, which {reason}")


def csv_options(argument: IngestArgument, default_delimiter: str) -> CsvOptions:
    """How CSV is read. Raises :class:`~distop.errors.InvalidArgument` if a character has two meanings."""
    delimiter = argument.delimiter or default_delimiter
    _check_delimiter(argument, delimiter)
    return CsvOptions(
        header=argument.header,
        delimiter=delimiter,
        quote=argument.quote,
        null_values=argument.null_values,
        multiline=bool(argument.multiline),
        decimal_point=argument.decimal_point,
        escape=argument.escape if argument.escape != argument.quote else "",
        thousands=argument.thousands,
        date_format=argument.date_format,
        timestamp_format=argument.timestamp_format,
        timezone=argument.timezone,
        encoding=known_encoding(argument.encoding),
    )


def _check_delimiter(argument: IngestArgument, delimiter: str) -> None:
    for field in ("quote", "decimal_point", "escape"):
        if getattr(argument, field) == delimiter:
            raise invalid(
                field, f"{option(field)} and the delimiter are the same character", "give --delimiter"
            )


def _check_csv(argument: IngestArgument) -> None:
    for field, text, allow_empty in (
        ("delimiter", argument.delimiter, False),
        ("quote", argument.quote, True),
        ("escape", argument.escape, True),
    ):
        if text is None or (allow_empty and not text):
            continue
        if len(text) != 1 or not text.isascii() or text in "\r\n\0":
            raise invalid(field, f"{option(field)} must be one ASCII character, not {text!r}")
    if argument.delimiter is not None:
        _check_delimiter(argument, argument.delimiter)
    _check_values(argument)
    if argument.header is False:
        raise invalid("header", "the files are said to have no header", NAMES_HINT)
    if isinstance(argument.header, list):
        _check_names("header", argument.header)


def _check_values(argument: IngestArgument) -> None:
    sign = argument.thousands
    if sign and (len(sign) != 1 or sign.isalnum() or sign in f"+-\r\n\0{argument.decimal_point}"):
        raise invalid(
            "thousands",
            f"--thousands cannot be {sign!r}",
            "name one sign, other than the decimal point",
        )
    for field, hint, check in (
        ("encoding", "name one such as windows-1252 or utf-16", known_encoding),
        ("date_format", "write it such as %d.%m.%Y", partial(_check_format, is_date=True)),
        ("timestamp_format", "write it such as %d.%m.%Y %H:%M", partial(_check_format, is_date=False)),
        ("timezone", "name one such as Europe/Berlin", _check_zone),
    ):
        try:
            if text := getattr(argument, field):
                check(text)
        except ValueError as error:
            raise invalid(field, f"{option(field)}: {error}", hint) from None


def _check_format(text: str, *, is_date: bool) -> None:
    from distop.sources.formats.types import TimeFormat  # loads pyarrow

    TimeFormat(text, is_date=is_date)


def _check_zone(zone: str) -> None:
    from distop.sources.formats.types import check_zone  # loads pyarrow

    check_zone(zone)


def _check_columns(argument: IngestArgument) -> None:
    if argument.columns is not None:
        _check_names("columns", argument.columns)
    if argument.schema is not None:
        _check_names("schema", list(argument.schema))
    if argument.filter is not None and len(argument.filter) > MAX_FILTER_CHARACTERS:
        raise invalid("filter", f"--filter is longer than {MAX_FILTER_CHARACTERS} characters")


def _check_transform(argument: IngestArgument) -> None:
    if argument.transform is None:
        return
    if not argument.transform.strip():
        raise invalid("transform", "--transform is empty")
    if len(argument.transform) > MAX_TRANSFORM_CHARACTERS:
        raise invalid("transform", f"--transform is longer than {MAX_TRANSFORM_CHARACTERS:,} characters")
    for field, given, instead in (
        ("filter", argument.filter, "write it as WHERE"),
        ("columns", argument.columns, "select them"),
        ("epoch_units", argument.epoch_units or None, "convert them, for example with timestamp_millis"),
        ("on_new_columns", _unless(argument.on_new_columns, "add"), "alter the table first"),
        ("on_wider_types", _unless(argument.on_wider_types, "widen"), "alter the table first"),
    ):
        if given is not None:
            raise invalid(field, f"with a query, {option(field)} has no meaning of its own", instead)
    if argument.kafka is not None:
        raise invalid("transform", "a query is over files", "ingest the topic, and query the table")
    if argument.on_bad_rows != "fail":
        raise invalid("on_bad_rows", "with a query, a row that cannot be parsed fails the operation")


def _check_bad_rows(argument: IngestArgument) -> None:
    for field, given, most in (
        ("max_bad_rows", argument.max_bad_rows, float("inf")),
        ("max_bad_share", argument.max_bad_share, 1),
    ):
        if given is None:
            continue
        if argument.on_bad_rows != "quarantine":
            raise invalid(
                field, f"{option(field)} belongs to --on-bad-rows quarantine: otherwise any bad row fails it"
            )
        if not 0 <= given <= most:
            raise invalid(
                field, f"{option(field)} must be {'a number from 0 to 1' if most == 1 else 'at least 0'}"
            )


CONDITIONS = ("delete_where", "update_where", "insert_where")
"""Fields of a merge, each a predicate on its rows."""


def conditions_of(argument: IngestArgument) -> dict[str, str]:
    """Field -> its predicate, of the conditions that are given."""
    given = {name: getattr(argument, name) for name in CONDITIONS}
    return {name: text for name, text in given.items() if text is not None}


def _check_merge(argument: IngestArgument) -> None:
    if argument.mode != "merge":
        for field in ("keys", "order_by", *CONDITIONS):
            if getattr(argument, field):
                raise invalid(
                    field, f"{option(field)} belongs to --mode merge, but the mode is {argument.mode}"
                )
        return
    _check_names("keys", argument.keys)
    for field, text in conditions_of(argument).items():
        if not text.strip() or len(text) > MAX_FILTER_CHARACTERS:
            raise invalid(
                field, f"{option(field)} is empty, or longer than {MAX_FILTER_CHARACTERS} characters"
            )
    for field, given, instead in (
        (
            "transform",
            argument.transform is not None,
            "ingest the query's rows into a table of the format files, and merge its folder",
        ),
        ("on_bad_rows", argument.on_bad_rows != "fail", "rows that cannot be parsed fail the operation"),
        ("on_new_columns", argument.on_new_columns == "add", "alter the table first"),
        ("on_wider_types", argument.on_wider_types == "widen", "alter the table first"),
        ("on_conflict", argument.on_conflict == "rebase", "it looks at the rows that the table has"),
    ):
        if given:
            raise invalid(field, f"{option(field)} does not go with --mode merge", instead)


def _unless(given: str, refused: str) -> str | None:
    return given if given == refused else None


def _check_names(field: str, names: list[str]) -> None:
    if not names or not all(names):
        raise invalid(
            field, f"{option(field)} is empty" if not names else f"{option(field)} holds an empty name"
        )
    if len(names) > MAX_COLUMNS:
        raise invalid(field, f"{option(field)} has {len(names):,} columns, at most {MAX_COLUMNS:,} are read")
    if (longest := max(names, key=len)) and len(longest) > MAX_COLUMN_NAME:
        raise invalid(
            field,
            f"{option(field)} has a column {longest[:50]!r}... with a name of {len(longest):,} characters, "
            f"at most {MAX_COLUMN_NAME:,} are read",
        )
    if len(set(names)) != len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise invalid(field, f"{option(field)} names {twice!r} twice")


class HasMode(Protocol):
    """An argument with a save mode, such as that of ingest."""

    @property
    def mode(self) -> FileMode:
        """The save mode: see :class:`IngestArgument`."""

    on_conflict: Literal["rebase", "refuse"] | None


NOTHING = "nothing"
"""Field of the recorded plan of an operation that found nothing new."""
REPORTED = ("warnings", "ignoredColumns", "filesSkipped", "filesRemaining", "replayOf")
"""Fields of the recorded plan that the finished operation reports unchanged."""
DEFAULT_ON_CONFLICT = {
    "append": "rebase",
    "overwrite": "refuse",
    "overwrite_partitions": "refuse",
    "merge": "refuse",
}
"""Rebasing an append onto concurrent changes loses nothing; rebasing a replacement would lose the changes.
The other modes check the table itself."""


def on_conflict(argument: HasMode) -> str:
    """What to do if others write to the table meanwhile; empty for modes without that option.

    Raises :class:`~distop.errors.InvalidArgument` if the mode leaves no choice.
    """
    default = DEFAULT_ON_CONFLICT.get(argument.mode, "")
    if argument.on_conflict is not None and not default:
        raise invalid(
            "on_conflict",
            f"--mode {argument.mode} depends only on whether the table holds data, not on who wrote it",
        )
    return argument.on_conflict or default


def may_fail_in_part(argument: IngestArgument, options: OperationOptions) -> bool:
    """Whether the successful part is published although other jobs fail.

    Raises :class:`~distop.errors.InvalidArgument` for modes that would replace rows by a part of the new
    ones.
    """
    if options.max_failed_partitions == 0:
        return False
    if argument.mode in ("overwrite", "overwrite_partitions", "merge"):
        raise invalid(
            "mode",
            f"--mode {argument.mode} replaces rows, and failed jobs would leave gaps in their place",
            "leave out --max-failed, or append",
        )
    return True
