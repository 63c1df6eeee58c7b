"""Sources that are larger, wider or deeper than a table can be: refused by name, soon."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.errors import InvalidArgument, SourceUnreadable
from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.spark_jobs.ingest.argument import parse_argument
from support.refusals import refused
from support.sources.ingesting import Ingesting

WIDE = [f"c{number}" for number in range(1_000_000)]


def planned(folder: Path, name: str, text: str | bytes) -> Any:
    source = folder / "src" / name
    source.parent.mkdir()
    source.write_bytes(text.encode() if isinstance(text, str) else text)
    return Ingesting(folder).start(paths=str(source))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("1.csv", ",".join(WIDE) + "\n"),
        ("1.csv", ",".join(["same"] * 1_000_000) + "\n"),
        (
            "1.jsonl",
            "".join(json.dumps({f"c{row * 100 + at}": 1 for at in range(100)}) + "\n" for row in range(200)),
        ),
    ],
    ids=["header", "one name", "keys"],
)
def test_a_source_of_too_many_columns_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """S1: their number is looked at before they are compared with each other."""
    with pytest.raises(SourceUnreadable, match="10,000"):
        planned(tmp_path, name, text)


def test_a_parquet_file_of_too_many_columns_is_refused(tmp_path: Path) -> None:
    """S1"""
    (tmp_path / "src").mkdir()
    pq.write_table(pa.table({name: [1] for name in WIDE[:10_001]}), tmp_path / "src" / "1.parquet")
    with pytest.raises(SourceUnreadable, match=r"10,001 columns"):
        Ingesting(tmp_path).start(paths=str(tmp_path / "src"))


def test_long_names_are_refused_and_cut_in_the_error(tmp_path: Path) -> None:
    """U3"""
    with pytest.raises(SourceUnreadable, match="100,000 characters") as refused:
        planned(tmp_path, "1.csv", "a," + "b" * 100_000 + "\n1,2\n")
    assert len(str(refused.value)) < 1000
    for check in (
        lambda: parse_schema({"b" * 100_000: "int"}),
        lambda: Layout.create(pa.schema([("b" * 100_000, "int32")])),
    ):
        with pytest.raises(InvalidArgument, match="100,000 characters"):
            check()


def test_schemas_and_arguments_have_limits_too() -> None:
    """U3: and the field is named."""
    with pytest.raises(InvalidArgument, match="more than 10,000 columns"):
        parse_schema(dict.fromkeys(WIDE[:10_001], "int"))
    for field, value in (("columns", WIDE), ("header", WIDE), ("schema", dict.fromkeys(WIDE, "int"))):
        with refused(field, "1,000,000 columns"):
            parse_argument({"paths": "/x.csv", field: value})


@pytest.mark.parametrize("depth", [100, 5_000])
def test_values_that_are_nested_deep_are_refused(tmp_path: Path, depth: int) -> None:
    """S1: by the name of their column, or as rows that cannot be read."""
    with pytest.raises(InvalidArgument, match=r"nested|no columns"):
        planned(tmp_path, "1.jsonl", '{"deep": ' + "[" * depth + "1" + "]" * depth + "}\n")


def test_a_wide_source_is_looked_at_once(tmp_path: Path) -> None:
    """S1: not once for each column of text."""
    wide = WIDE[:3_000]
    text = ",".join(wide) + "\n" + (",".join(["some text"] * len(wide)) + "\n") * 20
    assert planned(tmp_path, "1.csv", text).partition_count == 1
