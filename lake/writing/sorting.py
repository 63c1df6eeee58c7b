"""Sorts rows as an Iceberg sort order has them: in memory, and more of them than fit into it.

Then sorted runs are written to the host's own disk, and merged a batch at a time.

Runs are merged on whole columns: the rows read of all runs are sorted at once, and those before the last row
read of each run are returned, since the rest of a run comes after the last row read of it.

DuckDB 2.0 does not replace it: it runs out of memory with 2 GB of rows of 20 KB, even with a limit of 1 GB.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import FixedType, NestedField, PrimitiveType, UUIDType

RUN_BYTES = 128 << 20
"""Rows that are sorted in memory at one time."""
BATCH_BYTES = 1 << 20
"""Rows of one run that are in memory while runs are merged."""
FAN_IN = 64
"""Runs merged at a time; more are merged in several rounds."""

_RUN = "\x00run"


def sort_rows(
    batches: Iterable[pa.RecordBatch],
    keys: Sequence[Key],
    scratch: Path,
    *,
    run_bytes: int = RUN_BYTES,
    batch_bytes: int = BATCH_BYTES,
    fan_in: int = FAN_IN,
) -> Iterator[pa.RecordBatch]:
    """The same rows in order.

    Parameters
    ----------
    batches:
        Batches of one schema.
    scratch:
        A folder for the runs. Rows that do not fit into ``run_bytes`` are written there, once or more often.
    """
    runs: list[Path] = []
    waiting: list[pa.RecordBatch] = []
    size = written = 0

    def spill(rows: Iterable[pa.RecordBatch]) -> Path:
        nonlocal written
        path = scratch / f"run-{written}.arrow"
        written += 1
        _write(path, rows)
        return path

    for batch in batches:
        if not batch.num_rows:  # a run without rows would have no file
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= run_bytes:
            runs.append(spill(_cut(_sorted(waiting, keys), batch_bytes)))
            waiting, size = [], 0
    if not runs:
        if waiting:
            yield from _cut(_sorted(waiting, keys), batch_bytes)
        return
    if waiting:
        runs.append(spill(_cut(_sorted(waiting, keys), batch_bytes)))
    while len(runs) > fan_in:
        first, runs = runs[:fan_in], runs[fan_in:]
        runs.append(spill(_merged(first, keys, batch_bytes)))
    yield from _merged(runs, keys, batch_bytes)


def _sorted(batches: Sequence[pa.RecordBatch], keys: Sequence[Key]) -> pa.Table:
    rows = pa.Table.from_batches(batches)
    return rows.take(positions(rows, keys))


def _cut(rows: pa.Table, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    count = max(1, rows.num_rows * batch_bytes // max(1, rows.nbytes))
    yield from rows.combine_chunks().to_batches(max_chunksize=count)


def _write(path: Path, rows: Iterable[pa.RecordBatch]) -> None:
    writer = None
    try:
        for batch in rows:
            if writer is None:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                writer = pa.ipc.new_stream(str(path), batch.schema, options=options)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()


def _merged(runs: Sequence[Path], keys: Sequence[Key], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """The rows of sorted runs in order; deletes the runs."""
    files = [pa.OSFile(str(path), "rb") for path in runs]
    try:
        readers = dict(enumerate(pa.ipc.open_stream(file) for file in files))
        batch_rows = dict.fromkeys(readers, 1)
        pending: list[pa.Table] = []
        left = np.zeros(len(runs), np.int64)
        while True:
            # Who has less than a batch gets one more, so that about a batch of each goes out at a time.
            for run in [run for run in readers if left[run] < batch_rows[run]]:
                batch = next(iter(readers[run]), None)
                if batch is None:
                    del readers[run]
                    continue
                batch_rows[run] = batch.num_rows
                rows = pa.Table.from_batches([batch])
                pending.append(rows.append_column(_RUN, pa.array(np.full(len(rows), run, np.int32))))
            if not pending:
                return
            held = pa.concat_tables(pending)
            held = held.take(positions(held, keys))
            of_run = held.column(_RUN).to_numpy()
            certain = min((_last(of_run, run) for run in readers), default=len(of_run) - 1) + 1
            yield from _cut(held.slice(0, certain).drop_columns([_RUN]), batch_bytes)
            left = np.bincount(of_run[certain:], minlength=len(runs))
            pending = [held.slice(certain)] if certain < len(of_run) else []
    finally:
        for file in files:
            file.close()
        for path in runs:
            path.unlink(missing_ok=True)


def _last(runs: Any, run: int) -> int:
    """Where the last row of a run stands."""
    return int(np.flatnonzero(runs == run)[-1])


class Key:
    """One column to sort by, as an Iceberg sort order has it.

    Parameters
    ----------
    descending, nulls_first:
        NaN is the largest number, and ``nulls_first`` places NULL, in both directions.
    """

    def __init__(self, column: str, *, descending: bool = False, nulls_first: bool = True) -> None:
        self.column = column
        self.descending = descending
        self.nulls_first = nulls_first

    def arrays(self, rows: pa.Table) -> list[tuple[Any, str]]:
        """Columns that Arrow can sort in its own way, with the direction of each."""
        values = rows.column(self.column)
        direction = "descending" if self.descending else "ascending"
        parts = []
        if values.null_count:
            parts.append(
                (pc.is_null(values).cast(pa.int8()), "descending" if self.nulls_first else "ascending")
            )
        if pa.types.is_floating(values.type):
            # Arrow puts NaN at the end in both directions.
            parts.append((pc.is_nan(values).fill_null(False).cast(pa.int8()), direction))
        return [*parts, (values, direction)]


def positions(rows: pa.Table, keys: Sequence[Key]) -> Any:
    """The positions of the rows that come first, second, ...; equal ones in any order."""
    arrays = [part for key in keys for part in key.arrays(rows)]
    names = [str(number) for number in range(len(arrays))]
    sorting = pa.table([array for array, _ in arrays], names=names)
    return pc.sort_indices(
        sorting, sort_keys=[(name, order) for name, (_, order) in zip(names, arrays, strict=True)]
    )


def has_order(column: NestedField) -> bool:
    """Whether rows can be sorted by a column."""
    kind = column.field_type
    return isinstance(kind, PrimitiveType) and not isinstance(kind, UUIDType | FixedType)


def keys_of(order: SortOrder, schema: Schema) -> list[Key] | None:
    """Sort keys for rows of a schema in that order; ``None`` if rows cannot be sorted so: by nested columns,
    by types without an order here, by transforms."""
    columns = {column.field_id: column for column in schema.columns}
    keys = []
    for field in order.fields:
        column = columns.get(field.source_id)
        if column is None or not has_order(column) or not isinstance(field.transform, IdentityTransform):
            return None
        keys.append(
            Key(
                column.name,
                descending=field.direction == SortDirection.DESC,
                nulls_first=field.null_order == NullOrder.NULLS_FIRST,
            )
        )
    return keys
