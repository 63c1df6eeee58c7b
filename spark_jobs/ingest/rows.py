"""From the columns of a source to those of the table, and what becomes of rows that do not go there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import pyarrow as pa
from pyiceberg.schema import Schema

from distop.spark_jobs.formats.bad_rows import BadRowPolicy, RowPlace, Rows, convert_good_rows
from distop.spark_jobs.formats.conversion import converted
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


@dataclass(frozen=True, slots=True)
class Conversion:
    """What becomes of the rows that were read.

    Parameters
    ----------
    schema:
        Of the rows that come out.
    targets:
        The columns of the source that go there.
    filter:
        Only rows for which this Arrow expression holds.
    """

    schema: pa.Schema
    targets: list[str]
    filter: Any = None

    @classmethod
    def to_table(cls, plan: IngestPlan) -> Self:
        """Rows of the table."""
        chosen = None
        if plan.filter is not None:
            chosen = arrow_filter(parse_filter(plan.filter), Schema.model_validate(plan.columns))
        return cls(plan.table_layout.arrow_schema, plan.targets, chosen)

    def of(self, source: pa.Table) -> Converted:
        """These rows. Raises :class:`~distop.spark_jobs.formats.bad_rows.Unconvertible`."""
        kept = source if self.filter is None else source.filter(self.filter)
        return Converted(source.num_rows, converted(kept.select(self.targets), self.schema))


class GoodRows:
    """Converts blocks of raw rows; what is bad goes where the policy says.

    Parameters
    ----------
    look:
        Called now and then; raises if the rows are not wanted any more.
    """

    def __init__(self, conversion: Conversion, policy: BadRowPolicy, look: Callable[[], None]) -> None:
        self._conversion = conversion
        self._policy = policy
        self._look = look

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
            self._look()
            self._policy.reject(place(rows), reason, rows.raw())

        parts = list(convert_good_rows(block, whole, reject))
        if len(parts) == 1:
            return parts[0]
        tables = [part.table for part in parts] or [self._conversion.schema.empty_table()]
        return Converted(sum(part.read for part in parts), pa.concat_tables(tables).combine_chunks(), source)
