"""Columns that only the folders of files name, as Hive and Spark lay them out: ``day=2024-01-01/a.parquet``.

The values are known when an ingest starts. So types are inferred from all of them, and all are checked then.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import pyarrow as pa

from distop.lake.layout.hive import named_columns, named_values
from distop.lake.layout.model import Layout
from distop.operations.arguments import invalid
from distop.sources.formats.bad_rows import Rows, Unconvertible
from distop.sources.formats.files import FoundSource
from distop.sources.formats.inference import CsvSample, Sample
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.types import convert, convertible
from distop.spark_jobs.ingest.argument import IngestArgument
from distop.spark_jobs.ingest.plan import IngestPlan

R = TypeVar("R", bound=Rows)

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

    def types(self, columns: Sequence[str]) -> dict[str, pa.DataType]:
        found = self.files.types([name for name in columns if name not in self.values])
        found |= self._texts.types([name for name in columns if name in self.values])
        return {name: found[name] for name in columns}

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


def path_values(found: FoundSource) -> dict[str, list[str | None]]:
    """Column -> the different values that the folders of the files name.

    Raises :class:`~distop.errors.InvalidArgument` if files differ in the columns.
    """
    files = found.files
    first = named_values(f"{found.url}/{files[0].path}")
    values: dict[str, dict[str | None, None]] = {name: {} for name in first}
    for file in files:
        named = named_values(f"{found.url}/{file.path}")
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


def with_path_columns(
    argument: IngestArgument, found: FoundSource, sample: Sample, table: Layout | None
) -> tuple[Sample, list[str]]:
    """If the option says so: the sample with the columns that only the folders name, and which of those are
    written.

    Raises
    ------
    InvalidArgument
        Without the option: the table has such a column, which would be NULL.
    """
    there = set(sample.all_names)
    if not argument.partition_columns_from_path:
        _refuse_lost(argument, found, there, table)
        return sample, []
    values = {name: texts for name, texts in path_values(found).items() if name not in there}
    known = table.schema.column_names if table is not None and argument.on_new_columns == "ignore" else values
    written = [name for name in values if name in (known if argument.columns is None else argument.columns)]
    return PathSample(sample, values), written


def _refuse_lost(argument: IngestArgument, found: FoundSource, there: set[str], table: Layout | None) -> None:
    if table is None or argument.columns is not None or argument.transform is not None:
        return
    lost = set(table.schema.column_names) - there
    for file in found.files if lost else ():
        for name in named_columns(f"{found.url}/{file.path}"):
            if name in lost:
                raise invalid(
                    OPTION,
                    f"the folders of {file.path} name {name!r}, a column of the table that the files do not "
                    "have: it would be NULL",
                    f"{FLAG} takes it from there; or name the columns to write with --arg columns",
                    column=name,
                )


def unread_columns(
    argument: IngestArgument, found: FoundSource, sample: Sample, table: Layout | None
) -> list[str]:
    """A warning if the columns of the table are those of the files, and their folders name more."""
    if argument.partition_columns_from_path or argument.columns is not None or table is not None:
        return []
    named = set(named_columns(f"{found.url}/{found.files[0].path}")).difference(sample.all_names)
    return [f"the folders name {', '.join(sorted(named))}: {FLAG} makes columns of these"] if named else []


def path_columns_of(sample: Sample, columns: Mapping[str, Any]) -> list[str]:
    """Those of the columns to read, as an Iceberg schema, that only the folders name."""
    read = {column["name"] for column in columns["fields"]}
    return [name for name in sample.values if name in read] if isinstance(sample, PathSample) else []


def check_path_values(sample: Sample, plan: IngestPlan) -> None:
    """Check that all values fit the types of their columns.

    Raises
    ------
    InvalidArgument
        Names the column and the value; or nothing is left to read from the files.
    """
    if not isinstance(sample, PathSample) or not plan.path_columns:
        return
    if not plan.wanted.schema.names:
        raise invalid(
            "columns", "only folders name these columns, and files have rows", "name one of the files"
        )
    for name in plan.path_columns:
        dtype = plan.source_columns.field(name).type
        if not convertible(pa.large_string(), dtype):
            raise invalid(OPTION, f"column {name!r}: the name of a folder cannot be a {dtype}", column=name)
        try:
            _typed(sample.values[name], dtype, name)
        except Unconvertible as error:
            raise invalid(
                OPTION,
                f"a value in the names of folders does not fit: {error}",
                "give the column another type with --schema, or leave it out of --arg columns",
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
        found = convert_rows(rows)
        columns = [
            pa.repeat(texts[name], found.num_rows) if name in texts else found.column(name)
            for name in schema.names
        ]
        return pa.table(columns, schema=schema)

    return converted


def _typed(texts: Iterable[str | None], dtype: pa.DataType, column: str) -> pa.ChunkedArray:
    return convert(pa.chunked_array([pa.array(list(texts), pa.large_string())]), dtype, column)
