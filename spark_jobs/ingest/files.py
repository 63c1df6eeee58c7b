"""The source of an ingest, if that is files: which are read, as what format, in which splits; with columns
that only their folders name, as Hive and Spark lay them out: ``day=2024-01-01/a.parquet``.

The values of such columns are known when an ingest starts. So types are inferred from all of them, and all
are checked then.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import pyarrow as pa

from distop.errors import ArgumentTooLarge
from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import named_columns, named_values
from distop.operations import PlanRequest, WatermarkMove
from distop.operations.arguments import invalid
from distop.sources.formats.bad_rows import Rows, Unconvertible
from distop.sources.formats.conversion import convert
from distop.sources.formats.files import COMPRESSIONS, MAX_FILES, MAX_PATHS, FoundSource, OpenFile, find_files
from distop.sources.formats.inference import CsvSample, JsonSample, Sample, looked_into, take_sample
from distop.sources.formats.options import TYPED, CsvOptions, Format
from distop.sources.formats.parquet import row_group_sizes
from distop.sources.formats.types import convertible
from distop.sources.quarantine import Quarantined
from distop.spark_jobs.ingest.argument import IngestArgument, check_format_options, csv_options
from distop.spark_jobs.ingest.plan import Extent, FileEntry, IngestPlan, check_count, cut_into_splits
from distop.spark_jobs.ingest.watermarks import (
    ChosenFiles,
    by_folder,
    first_files,
    lengths_of_paths,
    new_files,
    watermark_moves,
    with_jobs,
)

R = TypeVar("R", bound=Rows)

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

OPTION = "partition_columns_from_path"
FLAG = "--partition-columns-from-path"


@dataclass(frozen=True)
class PathSample:
    """A :class:`Sample` of the files, with the columns that only their folders name."""

    files: Sample
    values: Mapping[str, Sequence[str | None]]
    """Column -> its different values."""

    @property
    def names(self) -> list[str]:
        return [*self.files.names, *self.values]

    @property
    def all_names(self) -> list[str]:
        return [*self.files.all_names, *self.values]

    @property
    def complete(self) -> bool:
        return self.files.complete

    @property
    def instants(self) -> Mapping[str, pa.DataType]:
        return self.files.instants

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        types = self.files.types([name for name in columns if name not in self.values])
        types |= self._texts.types([name for name in columns if name in self.values])
        return {name: types[name] for name in columns}

    def unfit(self, types: Mapping[str, pa.DataType]) -> list[str]:
        return self.files.unfit({name: dtype for name, dtype in types.items() if name not in self.values})

    @cached_property
    def _texts(self) -> CsvSample:
        """The values as columns of CSV: one rule for the types of texts."""
        heads = []
        for name, values in self.values.items():
            text = io.StringIO(newline="")
            lines = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
            lines.writerows([value] for value in values if value is not None)
            heads.append(([name], text.getvalue().encode()))
        return CsvSample(heads, CsvOptions(multiline=True))


@dataclass(frozen=True)
class Reading:
    """As what the files of an ingest are read."""

    format: Format
    csv: CsvOptions
    files: list[OpenFile]
    sample: Sample
    """The sample of the files, with the columns that their folders name."""
    path_values: Mapping[str, Sequence[str | None]]
    """Column -> its different values, of the columns that only the folders name."""
    direct: list[str]
    """Those of them that are written to the table."""
    warnings: list[str]
    """Signs that the files were misinterpreted."""


@dataclass(frozen=True)
class Splits:
    """In which splits the files of an ingest are read."""

    entries: list[FileEntry]
    cuts: list[int]
    """Where jobs begin, as in :class:`~distop.spark_jobs.ingest.plan.IngestPlan`."""
    moves: dict[str, dict[str, WatermarkMove]]
    """The watermarks that the ingest moves, with the jobs that each depends on if it may fail in part."""


@dataclass(frozen=True)
class FilesSource:
    """The files of an ingest, fixed at its start."""

    chosen: ChosenFiles
    reading: Reading
    splits: Splits

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.chosen.listing.files)


@dataclass(frozen=True)
class NothingNew:
    """All files were ingested before."""

    skipped: int
    """How many there are."""


def find_source(
    request: PlanRequest,
    argument: IngestArgument,
    table: Layout | None,
    *,
    in_part: bool,
    replayed: Quarantined | None,
) -> FilesSource | NothingNew:
    """The source of an ingest from files: which are read, as what, and in which splits.

    Parameters
    ----------
    table:
        The table's layout; ``None``: it has none yet.
    in_part:
        Whether the successful part is published although other jobs fail.
    replayed:
        The quarantined rows that are ingested again. They are the files if the argument names none.

    Raises
    ------
    InvalidArgument, SourceUnreadable, SourceEmpty, AlreadyIngested, ArgumentTooLarge
    """
    kept = None if argument.path_list() else replayed
    if kept is not None:
        listing = kept.source()
    else:
        listing = find_files(argument.path_list(), most=MAX_FILES if argument.new_only else MAX_PATHS)
    chosen = _choose(request, argument, listing, replayed)
    if not chosen.listing.files:
        return NothingNew(chosen.skipped)
    given = request.argument if replayed is None else {}  # a replay has the options of its first ingest
    reading = _read(argument, given, chosen.listing, table, kept)
    return FilesSource(chosen, reading, _split(argument, chosen, reading, in_part=in_part))


def _choose(
    request: PlanRequest, argument: IngestArgument, listing: FoundSource, replayed: Quarantined | None
) -> ChosenFiles:
    """Which of the listed files are read, by the watermarks; none are only with ``new_only``."""
    if argument.new_only:
        chosen = new_files(listing, request.watermarks, argument.source)
    elif replayed is not None:
        chosen = ChosenFiles(listing, replayed.moves(request.watermarks, again=argument.reingest))
    else:
        moves = watermark_moves(
            listing,
            request.watermarks,
            source=argument.source,
            values=argument.watermark,
            reingest=argument.reingest or argument.replaces is not None,
        )
        chosen = ChosenFiles(listing, moves)
    check_count(
        sum(file.size for file in chosen.listing.files),
        argument.split_bytes,
        "bytes",
        field="split_bytes",
        less="name fewer paths in one operation",
    )
    return chosen


def _read(
    argument: IngestArgument,
    given: Mapping[str, Any],
    listing: FoundSource,
    table: Layout | None,
    kept: Quarantined | None,
) -> Reading:
    """As what files are read, shown by a sample of them.

    Parameters
    ----------
    given:
        Fields that must suit the format.
    kept:
        The quarantined rows, if they are the files.
    """
    file_format = _format_of(argument, listing)
    check_format_options(given, file_format)
    tabs = all(_endings(file.path)[0] == ".tsv" for file in listing.files)
    options = csv_options(argument, "\t" if tabs else ",")
    open_file = partial(OpenFile.at, listing.url) if kept is None else kept.open
    files = [open_file(file.path) for file in listing.files]
    sample: Sample
    if kept is not None:
        sample = kept.sample(options, csv=file_format == "csv")
    else:
        sample = take_sample(file_format, files, options, check_newlines=argument.multiline is None)
    warnings = [*_warnings(argument, sample, table), *unread_columns(argument, listing, sample, table)]
    values, direct = path_columns(argument, listing, sample, table)
    if values:
        sample = PathSample(sample, values)
    return Reading(file_format, options, files, sample, values, direct, warnings)


def _split(argument: IngestArgument, chosen: ChosenFiles, reading: Reading, *, in_part: bool) -> Splits:
    """In which splits files are read, and which of them each watermark depends on."""
    listing, moves = chosen.listing, chosen.moves
    extents = _extents(listing, reading, argument.split_bytes)
    cuts = cut_into_splits(extents, argument.split_bytes, first_files(listing) if in_part else ())
    if in_part:
        lengths = lengths_of_paths(listing, extents)
        moves = {source: with_jobs(paths, lengths, cuts) for source, paths in moves.items()}
    if argument.new_only and argument.source is None:
        moves = by_folder(moves)
    entries = [
        FileEntry(file.path, file.size, file.version, None if extent.blocks is None else extent.units)
        for file, extent in zip(listing.files, extents, strict=True)
    ]
    return Splits(entries, cuts, moves)


def path_values(source: FoundSource) -> dict[str, list[str | None]]:
    """Column -> the different values that the folders of the files name.

    Raises :class:`~distop.errors.InvalidArgument` if files differ in the columns.
    """
    files = source.files
    first = named_values(f"{source.url}/{files[0].path}")
    values: dict[str, dict[str | None, None]] = {name: {} for name in first}
    for file in files:
        named = named_values(f"{source.url}/{file.path}")
        if named.keys() != first.keys():
            [name, *_] = sorted(named.keys() ^ first.keys())
            having, lacking = (file, files[0]) if name in named else (files[0], file)
            raise invalid(
                "paths",
                f"the folders of {having.path} name a column {name!r}, and those of {lacking.path} do not",
                "start one operation for each",
                column=name,
            )
        for name, value in named.items():
            values[name][value] = None
    return {name: list(texts) for name, texts in values.items()}


def path_columns(
    argument: IngestArgument, source: FoundSource, sample: Sample, table: Layout | None
) -> tuple[Mapping[str, Sequence[str | None]], list[str]]:
    """If the option says so: the columns that only the folders name, with their values, and which are
    written.

    Raises
    ------
    InvalidArgument
        Without the option: the table has such a column, which would be NULL.
    """
    there = set(sample.all_names)
    if not argument.partition_columns_from_path:
        _refuse_lost(argument, source, there, table)
        return {}, []
    values = {name: texts for name, texts in path_values(source).items() if name not in there}
    known = table.schema.column_names if table is not None and argument.on_new_columns == "ignore" else values
    written = [name for name in values if name in (known if argument.columns is None else argument.columns)]
    return values, written


def _refuse_lost(
    argument: IngestArgument, source: FoundSource, there: set[str], table: Layout | None
) -> None:
    if table is None or argument.columns is not None or argument.transform is not None:
        return
    lost = set(table.schema.column_names) - there
    for file in source.files if lost else ():
        for name in named_columns(f"{source.url}/{file.path}"):
            if name in lost:
                raise invalid(
                    OPTION,
                    f"the folders of {file.path} name {name!r}, a column of the table that the files do not "
                    "have: it would be NULL",
                    f"{FLAG} takes it from there; or name the columns to write with --column",
                    column=name,
                )


def unread_columns(
    argument: IngestArgument, source: FoundSource, sample: Sample, table: Layout | None
) -> list[str]:
    """A warning if the columns of the table are those of the files, and their folders name more."""
    if argument.partition_columns_from_path or argument.columns is not None or table is not None:
        return []
    named = set(named_columns(f"{source.url}/{source.files[0].path}")).difference(sample.all_names)
    return [f"the folders name {', '.join(sorted(named))}: {FLAG} makes columns of these"] if named else []


def check_path_values(values: Mapping[str, Sequence[str | None]], plan: IngestPlan) -> None:
    """Check that all values fit the types of their columns.

    Parameters
    ----------
    values:
        Column -> the different values that the folders name.

    Raises
    ------
    InvalidArgument
        Names the column and the value; or nothing is left to read from the files.
    """
    if plan.path_columns and not plan.wanted.schema.names:
        raise invalid(
            "columns", "only folders name these columns, and files have rows", "name one of the files"
        )
    for name in plan.path_columns:
        dtype = plan.source_columns.field(name).type
        if not convertible(pa.large_string(), dtype):
            raise invalid(OPTION, f"column {name!r}: the name of a folder cannot be a {dtype}", column=name)
        try:
            _typed(values[name], dtype, name)
        except Unconvertible as error:
            raise invalid(
                OPTION,
                f"a value in the names of folders does not fit: {error}",
                "give the column another type with --schema, or leave it out of --column",
                column=name,
            ) from None


def constants(
    convert_rows: Callable[[R], pa.Table], values: Mapping[str, str | None], schema: pa.Schema
) -> Callable[[R], pa.Table]:
    """Converts the rows of one file, and adds the values of its path.

    Parameters
    ----------
    schema:
        The columns of the source; those of ``values`` are constant, the others are of ``convert_rows``.
    """
    texts = {name: _typed([text], schema.field(name).type, name)[0] for name, text in values.items()}

    def converted(rows: R) -> pa.Table:
        table = convert_rows(rows)
        columns = [
            pa.repeat(texts[name], table.num_rows) if name in texts else table.column(name)
            for name in schema.names
        ]
        return pa.table(columns, schema=schema)

    return converted


def _typed(texts: Iterable[str | None], dtype: pa.DataType, column: str) -> pa.ChunkedArray:
    return convert(pa.chunked_array([pa.array(list(texts), pa.large_string())]), dtype, column)


def _warnings(argument: IngestArgument, sample: Sample, table: Layout | None) -> list[str]:
    """Signs that the files were misinterpreted.

    Raises :class:`~distop.errors.InvalidArgument` if they are certainly not UTF-8 and no row may be bad.
    """
    if not isinstance(sample, CsvSample | JsonSample):
        return []
    encoding = sample.foreign_encoding
    if encoding and argument.on_bad_rows == "fail":
        field, hint = "encoding", "give it, for example --encoding windows-1252"
        if isinstance(sample, JsonSample):
            field, hint = "paths", "convert them, for example with iconv -f windows-1252 -t utf-8"
        raise invalid(field, f"the files are not UTF-8, but {encoding}", hint)
    given = {*(argument.schema or ()), *(table.schema.column_names if table is not None else ())}
    wanted = sample.names if argument.columns is None else argument.columns
    suspicions = sample.suspicions([name for name in wanted if name and name not in given])
    return [f"the files are not UTF-8, but {encoding}", *suspicions] if encoding else suspicions


def _endings(path: str) -> tuple[str, str]:
    """``(".csv", ".gz")`` of ``a/b.csv.gz``; in lower case, either may be empty."""
    name = path.rpartition("/")[2].lower()
    stem, dot, last = name.rpartition(".")
    if dot + last not in COMPRESSIONS:
        return (dot + last if stem else ""), ""
    inner, inner_dot, inner_last = stem.rpartition(".")
    return (inner_dot + inner_last if inner else ""), dot + last


def _format_of(argument: IngestArgument, source: FoundSource) -> Format:
    if argument.format is not None:
        return argument.format
    formats: dict[Format, str] = {}
    for file in source.files:
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


def _extents(source: FoundSource, reading: Reading, split_bytes: int) -> list[Extent]:
    """How each file may be split."""
    whole = [Extent(file.size, (file.size,)) for file in source.files]
    if reading.format == "parquet":
        return _parquet_extents(whole, reading.files, split_bytes)
    if reading.format == "csv" and (reading.csv.multiline or reading.csv.encoding):
        return whole
    return [
        extent if _endings(file.path)[1] else Extent(file.size)
        for file, extent in zip(source.files, whole, strict=True)
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
                hint="name fewer paths in one operation, or raise --split-bytes",
                details={"field": "paths"},
            )
        sizes = looked_into(files[index], row_group_sizes)
        return Extent(whole[index].size, sizes) if len(sizes) > 1 else whole[index]

    with ThreadPoolExecutor(FOOTER_READERS, thread_name_prefix="footers") as pool:
        return list(pool.map(extent, range(len(whole))))
