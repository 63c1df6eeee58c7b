"""Sorts more rows than fit into memory: sorted runs on the host's own disk, merged a batch at a time.

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

from distop.lake.writing.sorting import Key, positions

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
