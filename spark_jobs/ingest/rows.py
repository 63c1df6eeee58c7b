"""From the columns of a source to those of the table, with handling of rows that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import pyarrow as pa
from pyiceberg.schema import Schema

from distop.lake.outputs import output_of
from distop.lake.predicates.binding import ALL, Predicate, predicate_of
from distop.lake.predicates.rows import chosen
from distop.lake.writing.casts import check_never_empty
from distop.sources.formats.bad_rows import (
    BadRowPolicy,
    RowPosition,
    Rows,
    Unconvertible,
    convert_good_rows,
)
from distop.sources.formats.conversion import writable
from distop.sources.formats.types import from_epoch
from distop.spark_jobs.ingest.plan import IngestPlan

R = TypeVar("R", bound=Rows)


@dataclass(frozen=True, slots=True)
class Converted:
    """Rows in the table's schema.

    Parameters
    ----------
    read:
        How many there were before the filter.
    source:
        Their origin: the URL of a file, or of a topic.
    """

    read: int
    table: pa.Table
    source: str = ""


@dataclass(frozen=True, slots=True)
class Conversion:
    """Converts the rows that were read.

    Parameters
    ----------
    schema:
        Schema of the resulting rows.
    targets:
        The columns of the source to write.
    filter:
        Only rows for which this is true.
    never_empty:
        Columns in which an empty text is no value.
    epoch_units:
        Columns whose numbers count from 1970, and their units.
    """

    schema: pa.Schema
    targets: list[str]
    filter: Predicate = ALL
    never_empty: Sequence[str] = ()
    epoch_units: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def to_table(cls, plan: IngestPlan) -> Self:
        """Rows of the table."""
        where = ALL
        if plan.filter is not None:
            where = predicate_of(plan.filter, Schema.model_validate(plan.columns))
        layout = plan.table_layout
        never_empty = output_of(plan.output).never_empty(layout)
        return cls(layout.arrow_schema, plan.targets, where, never_empty, plan.epoch_units)

    def of(self, source: pa.Table) -> Converted:
        """These rows. Raises :class:`~distop.sources.formats.bad_rows.Unconvertible`."""
        return Converted(source.num_rows, self.written(self.kept(source), self.schema))

    def kept(self, source: pa.Table) -> pa.Table:
        """Those that pass the filter."""
        return source if self.filter == ALL else chosen(self.filter, source)

    def written(self, kept: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows that are kept, as rows of a table."""
        rows = kept.select(self.targets)
        for at, name in enumerate(rows.column_names):
            if unit := self.epoch_units.get(name):
                moments = from_epoch(rows.column(name), unit, schema.field(name).type, name)
                rows = rows.set_column(at, name, moments)
        rows = writable(rows, schema)
        try:
            check_never_empty(rows, self.never_empty)
        except pa.ArrowInvalid as error:
            raise Unconvertible(str(error)) from None
        return rows


class GoodRows:
    """Converts blocks of raw rows; the policy handles bad ones.

    Parameters
    ----------
    look:
        Called now and then; raises if the rows are no longer needed.
    """

    def __init__(self, conversion: Conversion, policy: BadRowPolicy, look: Callable[[], None]) -> None:
        self._conversion = conversion
        self._policy = policy
        self._look = look

    def of(
        self, block: R, source: str, convert: Callable[[R], pa.Table], place: Callable[[R], RowPosition]
    ) -> Converted:
        """The good rows of a block.

        Parameters
        ----------
        source:
            Their origin.
        convert:
            Raw rows to the columns of the source.
        place:
            The position of the first of some rows.

        Raises
        ------
        BadRow, Cancelled
        """

        def whole(rows: R) -> Converted:
            return replace(self._conversion.of(convert(rows)), source=source)

        def reject(rows: R, reason: str) -> None:
            # One at a time, since these take long if many rows are bad.
            self._look()
            self._policy.reject(place(rows), reason, rows.kept())

        parts = list(convert_good_rows(block, whole, reject))
        if len(parts) == 1:
            return parts[0]
        tables = [part.table for part in parts] or [self._conversion.schema.empty_table()]
        return Converted(sum(part.read for part in parts), pa.concat_tables(tables).combine_chunks(), source)
