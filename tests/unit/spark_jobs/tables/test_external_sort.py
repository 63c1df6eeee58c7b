"""Sorting with bounded memory: any sizes of runs, the order of Iceberg."""

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distop.lake.writing.sorting import Key, sort_rows

SCHEMA = pa.schema([("a", pa.float64()), ("b", pa.string()), ("n", pa.int64())])


def batches(count: int, size: int, seed: int = 1) -> list[pa.RecordBatch]:
    """Rows with many equal values, NULL and NaN; ``n`` numbers them."""
    rng = random.Random(seed)
    some = [None, math.nan, -math.inf, math.inf, 0.0, 1.5, -2.0, 7.0]
    texts = [None, "", "a", "b", "日本"]
    return [
        pa.record_batch(
            {
                "a": [rng.choice(some) for _ in range(size)],
                "b": [rng.choice(texts) for _ in range(size)],
                "n": list(range(first * size, (first + 1) * size)),
            },
            schema=SCHEMA,
        )
        for first in range(count)
    ]


def rank(value: Any, *, descending: bool, nulls_first: bool) -> tuple[Any, ...]:
    """Where Iceberg puts a number: NaN is the largest, NULL as the sort order says."""
    if value is None:
        return (0 if nulls_first else 2,)
    number = (1, 0.0) if math.isnan(value) else (0, value)
    return (1, *((-part for part in number) if descending else number))


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("nulls_first", [False, True])
@pytest.mark.parametrize("run_bytes", [1, 2_000, 1 << 30])
def test_rows_come_in_order_once(tmp_path: Path, descending: bool, nulls_first: bool, run_bytes: int) -> None:
    """Spilled after every batch (and merged in rounds), now and then, or never."""
    key = Key("a", descending=descending, nulls_first=nulls_first)
    given = batches(30, 17)
    sizes = {"run_bytes": run_bytes, "batch_bytes": 100, "fan_in": 3}
    found = pa.Table.from_batches(sort_rows(given, [key, Key("n", descending=True)], tmp_path, **sizes))
    assert sorted(found["n"].to_pylist()) == list(range(30 * 17))
    told = list(zip(found["a"].to_pylist(), found["n"].to_pylist(), strict=True))
    assert told == sorted(
        told, key=lambda row: (rank(row[0], descending=descending, nulls_first=nulls_first), -row[1])
    )
    assert list(tmp_path.iterdir()) == []


def test_a_very_long_run_is_merged_with_short_ones(tmp_path: Path) -> None:
    """All of one run comes before all of another."""
    given = [pa.record_batch({"n": list(range(start, start + 50))}) for start in (900, 0, 500, 100)]
    given.append(pa.record_batch({"n": list(range(1000, 3000))}))
    found = sort_rows(given, [Key("n")], tmp_path, run_bytes=1, batch_bytes=64)
    numbers = [n for batch in found for n in batch["n"].to_pylist()]
    assert numbers == sorted(
        [*range(900, 950), *range(50), *range(500, 550), *range(100, 150), *range(1000, 3000)]
    )


def test_no_rows_are_sorted_to_no_rows(tmp_path: Path) -> None:
    assert list(sort_rows([], [Key("n")], tmp_path)) == []


@pytest.mark.parametrize("run_bytes", [0, 1, 1 << 20])
def test_a_batch_may_be_empty(tmp_path: Path, run_bytes: int) -> None:
    """Before, between and after others."""
    given = [pa.record_batch({"n": pa.array(numbers, pa.int64())}) for numbers in ([], [3, 1], [], [2], [])]
    found = sort_rows(given, [Key("n")], tmp_path, run_bytes=run_bytes)
    assert [n for batch in found for n in batch["n"].to_pylist()] == [1, 2, 3]


def test_a_sort_stopped_early_leaves_no_open_file(tmp_path: Path) -> None:
    """A job that is cancelled; the runs of a merge go with it."""
    rows = sort_rows(batches(10, 20), [Key("b")], tmp_path, run_bytes=1, batch_bytes=64)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
