"""Which columns of a Parquet file get a dictionary, decided by a trial with the file's first rows.

A dictionary of values that rarely repeat costs more than it saves: it holds all of them, and each row has an
index as well, which does not compress. Parquet's writers notice only when the dictionary exceeds its limit.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

MIN_ROWS = 1_000
"""With fewer rows every column gets a dictionary."""
SAMPLE_ROWS = 1 << 16
"""How many of a file's first rows are tried."""
TOLERANCE = 1.05
"""A dictionary may be larger by this factor: readers that look for a value can skip row groups by it."""


def encodings_for(rows: pa.Table, options: Mapping[str, Any]) -> dict[str, Any]:
    """Further arguments for pyarrow's Parquet writer for a file that begins with these rows.

    Integers and times without a dictionary are delta-encoded.
    """
    if rows.num_rows < MIN_ROWS:
        return {}
    sample = rows.slice(0, SAMPLE_ROWS)
    differences = dict(_differences(sample.schema))
    with_dictionary = _leaf_sizes(sample, options)
    without = _leaf_sizes(sample, {**options, "use_dictionary": False, "column_encoding": differences})
    better = [leaf for leaf, size in with_dictionary.items() if size <= without[leaf] * TOLERANCE]
    chosen = {leaf: encoding for leaf, encoding in differences.items() if leaf not in better}
    return {"use_dictionary": better, "column_encoding": chosen or None}


def _differences(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    for column in schema:
        if pa.types.is_integer(column.type) or pa.types.is_temporal(column.type):
            yield column.name, "DELTA_BINARY_PACKED"


def _leaf_sizes(rows: pa.Table, options: Mapping[str, Any]) -> dict[str, int]:
    """Size of each column in bytes; of a nested one, of each leaf."""
    file = io.BytesIO()
    with pq.ParquetWriter(file, rows.schema, store_decimal_as_integer=True, **options) as writer:
        writer.write_table(rows, row_group_size=rows.num_rows)
    group = writer.writer.metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema: column.total_compressed_size for column in columns}
