"""The rows that the commit benchmark writes: columns of a number in 0, 1, 2, ..., for Spark and for Arrow."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

COLUMNS: dict[str, tuple[str, str]] = {
    "id": ("long", "id"),
    "day": ("date", "date_add(DATE '2024-01-01', CAST(id % 366 AS INT))"),
    "shop": ("int", "CAST(id % 97 AS INT)"),
    "amount": ("double", "(id % 10007) / 7.0D"),
    "kind": ("string", "concat('kind-', CAST(id % 11 AS STRING))"),
    "paid": ("boolean", "id % 3 = 0"),
}
"""Name -> type of the table's column, and Spark's expression for it."""


def rows(start: int, count: int) -> pa.RecordBatch:
    """Rows ``start`` to ``start + count - 1``."""
    ids = np.arange(start, start + count)
    days = (np.datetime64("2024-01-01") + ids % 366).astype("datetime64[D]")
    kinds = [f"kind-{number}" for number in (ids % 11).tolist()]
    arrays = {
        "id": pa.array(ids, pa.int64()),
        "day": pa.array(days),
        "shop": pa.array(ids % 97, pa.int32()),
        "amount": pa.array((ids % 10007) / 7.0),
        "kind": pa.array(kinds),
        "paid": pa.array(ids % 3 == 0),
    }
    return pa.record_batch(arrays)
