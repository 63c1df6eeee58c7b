"""Which columns of a Parquet file get a dictionary."""

import io
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from distop.lake.layout.model import Layout
from distop.lake.writing.writer import SAMPLE_ROWS, StagedWriter, encodings_for

ROWS = 20_000


def rows() -> pa.Table:
    first = datetime(2013, 1, 1)  # noqa: DTZ001 - a timestamp without zone
    states, units = ("new", "paid", "sent"), ("kg", "l", "m")
    numbers = [number * number * 7919 % 1_000_003 for number in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "at": pa.array([first + timedelta(seconds=number) for number in range(ROWS)], pa.timestamp("us")),
            "code": pa.array([f"{number:x}" for number in numbers], pa.large_string()),
            "state": pa.array([states[number % 3] for number in numbers], pa.large_string()),
            "lines": pa.array([[{"item": number, "unit": units[number % 3]}] for number in numbers]),
        }
    )


def file_of(table: pa.Table, **options: Any) -> pq.FileMetaData:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd", **options)
    return pq.ParquetFile(file).metadata


def with_dictionary(metadata: pq.FileMetaData) -> set[str]:
    group = metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    return {column.path_in_schema for column in columns if "RLE_DICTIONARY" in column.encodings}


def test_values_that_hardly_repeat_get_no_dictionary(tmp_path: Path) -> None:
    """A file is as small as its columns allow: ids and times take next to nothing."""
    layout = Layout.create(rows().schema)
    writer = StagedWriter(layout, lambda suffix, kind: f"file://{tmp_path}/{kind}/0-a{suffix}")
    writer.write(rows().cast(layout.arrow_schema))
    result = writer.finish()
    (path,) = tmp_path.rglob("*.parquet")
    metadata = pq.ParquetFile(path).metadata
    assert with_dictionary(metadata) == {"state", "lines.list.element.unit"}
    group = metadata.row_group(0)
    id_column, at_column = group.column(0), group.column(1)
    assert "DELTA_BINARY_PACKED" in id_column.encodings
    assert id_column.total_compressed_size < ROWS / 10
    assert at_column.total_compressed_size < ROWS / 10
    usual = file_of(rows()).row_group(0)
    sizes = [usual.column(index).total_compressed_size for index in range(usual.num_columns)]
    assert result["bytes"] < 0.6 * sum(sizes)
    assert pq.read_table(path).column("code").to_pylist() == rows().column("code").to_pylist()


def test_few_rows_are_not_looked_at() -> None:
    assert encodings_for(rows().slice(0, 100), {"compression": "zstd"}) == {}


def test_only_the_first_rows_are_tried() -> None:
    """What is tried stays small, however large the first row group is."""
    same = pa.table({"n": pa.array([*[1] * SAMPLE_ROWS, *range(SAMPLE_ROWS)], pa.int64())})
    chosen = encodings_for(same, {"compression": "zstd"})
    assert chosen == {"use_dictionary": ["n"], "column_encoding": None}
