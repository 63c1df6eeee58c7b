"""From the columns of a source to those of the table, and what becomes of rows that do not go there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyiceberg.schema import Schema

from distop.operations.job import JobContext
from distop.spark_jobs.formats.bad_rows import BadRowPolicy, RowPlace, Rows, Unconvertible, convert_good_rows
from distop.spark_jobs.formats.types import convert
from distop.spark_jobs.ingest.plan import IngestPlan
from distop.spark_jobs.tables.filters import arrow_filter, parse_filter

R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, slots=True)
class Converted:
    """Rows as the table takes them.

    Parameters
    ----------
    read:
        How many there were before the filter.
    source:
        Where they are from: the URL of a file, or of a topic.
    """

    read: int
    table: pa.Table
    source: str = ""


class Conversion(Protocol):
    """What becomes of the rows that were read."""

    def none(self) -> pa.Table:
        """No rows."""

    def of(self, source: pa.Table) -> Converted:
        """These rows. Raises :class:`~distop.spark_jobs.formats.bad_rows.Unconvertible`."""


class TableRows:
    """From the columns of a source to those of the table: filter, projection, types."""

    def __init__(self, plan: IngestPlan) -> None:
        self._plan = plan
        self._schema: pa.Schema = plan.table_layout.arrow_schema
        self._targets = frozenset(plan.targets)

    @cached_property
    def _filter(self) -> Any:
        if self._plan.filter is None:
            return None
        return arrow_filter(parse_filter(self._plan.filter), Schema.model_validate(self._plan.columns))

    def none(self) -> pa.Table:
        """No rows."""
        return self._schema.empty_table()

    def of(self, source: pa.Table) -> Converted:
        """Rows for the table.

        Raises
        ------
        Unconvertible
            A value does not fit its column, or is missing where the table requires one.
        """
        kept = source if self._filter is None else source.filter(self._filter)
        columns = [self._column(kept, field) for field in self._schema]
        return Converted(source.num_rows, pa.table(columns, schema=self._schema))

    def _column(self, rows: pa.Table, field: pa.Field) -> pa.ChunkedArray | pa.Array:
        if field.name not in self._targets:
            return pa.nulls(rows.num_rows, field.type)
        values = convert(rows.column(field.name), field.type, field.name)
        if not field.nullable and values.null_count:
            raise Unconvertible(f"column {field.name!r} is required and has no value")
        return values


class GoodRows:
    """Converts blocks of raw rows; what is bad goes where the policy says."""

    def __init__(
        self, plan: IngestPlan, policy: BadRowPolicy, job: JobContext, conversion: Conversion | None = None
    ) -> None:
        self._policy = policy
        self._job = job
        self._conversion = conversion or TableRows(plan)

    def of(
        self, block: R, source: str, convert: Callable[[R], pa.Table], place: Callable[[R], RowPlace]
    ) -> Converted:
        """The good rows of a block.

        Parameters
        ----------
        source:
            Where they are from.
        convert:
            Raw rows to the columns of the source.
        place:
            Where the first of some rows stands.

        Raises
        ------
        BadRow, Cancelled
        """

        def whole(rows: R) -> Converted:
            return replace(self._conversion.of(convert(rows)), source=source)

        def reject(rows: R, reason: str) -> None:
            # One at a time, these take long where many are bad.
            self._job.raise_if_cancelled()
            self._policy.reject(place(rows), reason, rows.raw())

        parts = list(convert_good_rows(block, whole, reject))
        if len(parts) == 1:
            return parts[0]
        tables = [part.table for part in parts] or [self._conversion.none()]
        return Converted(sum(part.read for part in parts), pa.concat_tables(tables).combine_chunks(), source)
