"""The rows of a batch, one for each key, and the table's rows that they affect. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from distop.errors import JobFailed
from distop.lake.predicates.rows import at_least
from distop.lake.writing.sorting import Key, positions

MAX_BYTES = 1 << 30
"""Most bytes of a batch in memory: each running job has one."""

BLOCK_ROWS = 1 << 16
"""Rows that are written at a time."""

DELETE, UPDATE, INSERT = "\0delete", "\0update", "\0insert"
"""Columns after those of the table: the effect of a row on those with its key, or on a table without one."""

_OURS, _THEIRS = "\0ours", "\0theirs"

Places: TypeAlias = NDArray[np.int64]


class Batch:
    """See the module.

    Parameters
    ----------
    tables:
        All rows in their order, with the columns ``DELETE``, ``UPDATE`` and ``INSERT``.
    keys:
        Key columns; equal in all of them means the same key.
    order_by:
        Of the rows of a key, the one with the greatest value of this column counts, and of several such the
        last one. It changes no row of the table with a greater value. NULL is less than all values. Empty:
        the last row of a key counts.

    Raises
    ------
    JobFailed
        A row has no key, or there are too many rows.
    """

    def __init__(
        self, tables: Iterable[pa.Table], schema: pa.Schema, keys: Sequence[str], order_by: str = ""
    ) -> None:
        self._names, self._order_by = list(keys), order_by
        kept, size = [], 0
        self.read = 0
        """Number of rows before one of each key was chosen."""
        for table in tables:
            self.read += table.num_rows
            size += table.nbytes
            if size > MAX_BYTES:
                raise JobFailed(
                    f"the rows to be merged take more than {MAX_BYTES >> 20:,} MiB of memory",
                    hint="merge fewer files at a time, or set kafka.max_records_per_partition",
                )
            kept.append(table)
        rows = pa.concat_tables([schema.empty_table(), *kept]).combine_chunks()
        for name in keys:
            if missing := rows[name].null_count:
                raise JobFailed(
                    f"{missing:,} rows have no value in column {name!r}, which is a key",
                    hint="exclude them: --filter '... is not null'",
                )
        rows = rows.take(np.sort(self._newest(rows)))
        deletes, updates, inserts = (
            rows[name].to_numpy(zero_copy_only=False).astype(bool) for name in (DELETE, UPDATE, INSERT)
        )
        self._deletes, self._changes = deletes, deletes | updates
        self._new = inserts & ~deletes
        self._keys = _numbered(rows.select(self._names), _OURS)
        self.keys = rows.select(self._names).schema
        self.compared = rows.select([*self._names, order_by] if order_by else self._names).schema
        """The columns that decide which rows of a table are changed."""
        self._rows = rows.drop_columns([DELETE, UPDATE, INSERT])

    def changes(self, rows: pa.Table) -> tuple[Places, Places]:
        """Which of these rows of a table are deleted, in order; and which of the batch replace them, some
        perhaps several times.

        Parameters
        ----------
        rows:
            The columns of ``compared``.
        """
        theirs, ours = self._pairs(rows)
        go = self._changes[ours]
        if self._order_by:
            order = rows[self._order_by].cast(self.compared.field(self._order_by).type)
            go = go & at_least(self._rows[self._order_by].take(ours), order.take(theirs)).to_numpy()
        theirs, ours = theirs[go], ours[go]
        return theirs, ours[~self._deletes[ours]]

    def rows(self, places: Places) -> Iterator[pa.Table]:
        """Some of the rows, in the table's schema, this many at a time."""
        for first in range(0, len(places), BLOCK_ROWS):
            yield self._rows.take(places[first : first + BLOCK_ROWS])

    def bounds(self) -> dict[str, tuple[Any, Any]]:
        """The least and the greatest value of each key column; none without rows."""
        found = {name: pc.min_max(self._keys[name]).as_py() for name in self._names if len(self._keys)}
        return {name: (bounds["min"], bounds["max"]) for name, bounds in found.items()}

    def without(self, held: Iterable[pa.Table]) -> Places:
        """Which rows are added to a table with exactly these keys."""
        new = self._new.copy()
        for keys in held:
            _, ours = self._pairs(keys)
            new[ours] = False
            if not new.any():
                break
        return np.flatnonzero(new)

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def _newest(self, rows: pa.Table) -> Places:
        """One row of each key."""
        keys, order = rows.select(self._names), None
        if self._order_by:
            numbered = _numbered(rows.select([self._order_by]), _OURS)
            order = positions(numbered, [Key(self._order_by), Key(_OURS)]).to_numpy()
            keys = keys.take(order)
        last = _numbered(keys, _OURS).group_by(self._names, use_threads=False).aggregate([(_OURS, "max")])
        places: Places = last[f"{_OURS}_max"].to_numpy()
        return places if order is None else order[places]

    def _pairs(self, keys: pa.Table) -> tuple[Places, Places]:
        """Equal keys: position in the table's rows, and in these; in the order of the table's."""
        cast = keys.select(self._names).cast(self.keys)
        found = _numbered(cast, _THEIRS).join(self._keys, keys=self._names, join_type="inner")
        theirs, ours = found[_THEIRS].to_numpy(), found[_OURS].to_numpy()
        order = np.argsort(theirs)
        return theirs[order], ours[order]


def _numbered(keys: pa.Table, name: str) -> pa.Table:
    return keys.append_column(name, pa.array(np.arange(keys.num_rows, dtype=np.int64)))
