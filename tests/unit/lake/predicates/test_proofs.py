"""What statistics, partitions and footers prove of the rows of a file, and what they do not."""

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IntegerType, LongType, PrimitiveType

from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.predicates.binding import predicate_of
from distop.lake.predicates.proofs import Pruning, matching_groups

NOTHING, SOME, ALL = "nothing", "some", "all"


def metadata_of(columns: dict[str, str], *partition_by: str) -> TableMetadata:
    return Layout.create(parse_schema(columns), list(partition_by)).new_metadata("file:///t")


def file_of(partition: tuple[Any, ...] = (), rows: int = 10, **statistics: Any) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="file:///t/a.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=rows,
        file_size_in_bytes=100,
        **statistics,
    )
    file.spec_id = 0
    return file


def verdict(metadata: TableMetadata, text: str, file: DataFile) -> str:
    """What is known of the rows of a file: that none matches, some may, or all do."""
    pruning = Pruning(metadata, predicate_of(text, metadata.schema()))
    if not pruning.file(file):
        assert not pruning.whole(file)
        return NOTHING
    return ALL if pruning.whole(file) else SOME


def bounded(
    kind: str, least: Any, greatest: Any, *, nulls: int | None = 0, nans: int | None = None
) -> DataFile:
    """A file of ten rows with bounds of its only column."""
    found = parse_schema({"x": kind}).find_type("x")
    assert isinstance(found, PrimitiveType)
    return file_of(
        value_counts={1: 10},
        null_value_counts={} if nulls is None else {1: nulls},
        nan_value_counts={} if nans is None else {1: nans},
        lower_bounds={1: to_bytes(found, least)},
        upper_bounds={1: to_bytes(found, greatest)},
    )


FLOATS = [
    # Without a count, there may be NaN, which is greater than all else.
    (bounded("double", 1.0, 3.0), {"x > 5": SOME, "x < 5": SOME, "x < 1": NOTHING, "x = 5": NOTHING}),
    (bounded("double", 1.0, 3.0), {"x is nan": SOME, "x != 1": SOME, "x in (5, 'nan')": SOME, "x >= 1": ALL}),
    (
        bounded("double", 1.0, 3.0, nans=0),
        {"x > 5": NOTHING, "x < 5": ALL, "x is nan": NOTHING, "x > 1": SOME},
    ),
    (bounded("double", 1.0, 3.0, nans=2), {"x > 5": SOME, "x < 5": SOME, "x >= 1": ALL, "x < 'nan'": SOME}),
    (
        bounded("double", 7.0, 7.0),
        {"x != 7": SOME, "x = 7": SOME, "x not in (7, 8)": SOME, "not x = 7": SOME},
    ),
    (bounded("double", 7.0, 7.0, nans=0), {"x != 7": NOTHING, "x = 7": ALL, "x not in (7, 8)": NOTHING}),
    (
        bounded("double", -0.0, -0.0, nans=0),
        {"x = 0": ALL, "x in (0.0, 3.0)": ALL, "x >= 0": ALL, "x < 0": NOTHING},
    ),
    (bounded("double", 0.0, 0.0, nans=0), {"x = -0.0": ALL, "x in (-0.0)": ALL, "x > -0.0": NOTHING}),
    (bounded("double", math.nan, math.nan), {"x = 5": SOME, "x < 5": SOME, "x > 5": SOME}),
    (bounded("double", 1.0, 3.0, nulls=1, nans=0), {"x < 5": SOME, "x is null": SOME, "x is not null": SOME}),
    (bounded("double", 1.0, 3.0, nulls=None, nans=0), {"x < 5": SOME, "x is null": SOME, "x > 5": NOTHING}),
]


@pytest.mark.parametrize(("file", "verdicts"), FLOATS)
def test_bounds_of_floats_say_nothing_of_nan(file: DataFile, verdicts: dict[str, str]) -> None:
    """P3, P14: and both zeros are one value."""
    metadata = metadata_of({"x": "double"})
    assert {text: verdict(metadata, text, file) for text in verdicts} == verdicts


def test_a_file_of_nan_or_of_null_alone() -> None:
    metadata = metadata_of({"x": "double"})
    nan = file_of(value_counts={1: 10}, null_value_counts={1: 0}, nan_value_counts={1: 10})
    null = file_of(value_counts={1: 10}, null_value_counts={1: 10})
    for text, of_nan, of_null in (
        ("x is nan", ALL, NOTHING),
        ("x > 5", ALL, NOTHING),
        ("x < 5", NOTHING, NOTHING),
        ("x != 5", ALL, NOTHING),
        ("x is null", NOTHING, ALL),
        ("x < 5 or x is null", NOTHING, ALL),
        ("not x < 5", ALL, NOTHING),
    ):
        assert (verdict(metadata, text, nan), verdict(metadata, text, null)) == (of_nan, of_null), text


def test_rows_that_are_not_counted_may_be_null() -> None:
    """P3, P14: ORC files count only the fields of structs that are not NULL."""
    schema = pa.schema([("s", pa.struct([("x", pa.int64())]))])
    metadata = Layout.create(schema).new_metadata("file:///t")
    number = metadata.schema().find_field("s.x").field_id
    bounds: dict[str, Any] = {
        "lower_bounds": {number: to_bytes(LongType(), 1)},
        "upper_bounds": {number: to_bytes(LongType(), 3)},
    }
    for counted, verdicts in (
        (10, {"s.x is null": NOTHING, "s.x > 0": ALL}),
        (7, {"s.x is null": SOME, "s.x > 0": SOME}),
    ):
        file = file_of(value_counts={number: counted}, null_value_counts={number: 0}, **bounds)
        assert {text: verdict(metadata, text, file) for text in verdicts} == verdicts


def test_a_pattern_with_many_places_to_match_is_decided() -> None:
    """With an engine that tries them all one after the other this would take years."""
    table = metadata_of({"x": "string"}, "x")
    for end, expected in (("b", NOTHING), ("a", ALL)):
        assert verdict(table, f"x like '{'%a' * 20}%{end}'", file_of(("a" * 60,))) == expected


def test_missing_or_unreadable_statistics_prove_nothing() -> None:
    """Missing statistics, bounds that cannot be read, those of texts for a deletion, and Java's of UUIDs."""
    numbers, texts, uuids = (metadata_of({"x": kind}) for kind in ("long", "string", "uuid"))
    for text in ("x = 5", "x is null", "x is not null", "x > 5 and x < 7"):
        assert verdict(numbers, text, file_of()) == SOME
    assert verdict(numbers, "x = 5", file_of(lower_bounds={1: b"\1"}, upper_bounds={1: b"\1"})) == SOME
    file = bounded("string", "a", "a")
    assert [verdict(texts, f"x {op} 'a'", file) for op in ("=", "!=", "<=", ">")] == [
        SOME,
        SOME,
        SOME,
        NOTHING,
    ]
    assert verdict(texts, "x like 'a%'", file) == SOME
    assert [verdict(texts, f"x like '{pattern}'", file) for pattern in ("b%", "%b", "aa%")] == [
        NOTHING,
        SOME,
        NOTHING,
    ]
    assert (
        verdict(uuids, "x = '00000000-0000-0000-0000-000000000009'", bounded("uuid", b"\1" * 16, b"\2" * 16))
        == SOME
    )
    assert verdict(numbers, "true", file_of()) == ALL
    assert verdict(numbers, "false", file_of()) == NOTHING


def test_bounds_may_be_of_a_narrower_type() -> None:
    metadata = metadata_of({"x": "long"})
    file = file_of(
        value_counts={1: 10},
        null_value_counts={1: 0},
        lower_bounds={1: to_bytes(IntegerType(), 3)},
        upper_bounds={1: to_bytes(IntegerType(), 5)},
    )
    assert [verdict(metadata, text, file) for text in ("x = 2", "x < 5.5", "x in (4, 9)")] == [
        NOTHING,
        ALL,
        SOME,
    ]


PARTITIONS = [
    (
        "int",
        "x",
        5,
        {"x = 5": ALL, "x = 6": NOTHING, "x != 5": NOTHING, "x is null": NOTHING, "x > 4.5": ALL},
    ),
    ("int", "x", None, {"x = 5": NOTHING, "x is null": ALL, "x != 5": NOTHING, "x = 5 or x is null": ALL}),
    ("double", "x", math.nan, {"x is nan": ALL, "x > 5": ALL, "x < 5": NOTHING, "x is null": NOTHING}),
    ("double", "x", -0.0, {"x = 0": ALL, "x < 0": NOTHING}),
    (
        "string",
        "x",
        "ab",
        {"x like 'a_'": ALL, "x like 'a_c'": NOTHING, "x not like 'b%'": ALL, "x >= 'ab'": ALL},
    ),
    ("int", "truncate(10, x)", 20, {"x = 29": SOME, "x = 30": NOTHING, "x >= 20": ALL, "x < 25": SOME}),
    ("int", "truncate(10, x)", -10, {"x = -1": SOME, "x < 0": ALL, "x = 0": NOTHING}),
    (
        "decimal(9,2)",
        "truncate(50, x)",
        Decimal("1.50"),
        {"x < 2": ALL, "x = 1.99": SOME, "x = 2": NOTHING, "x >= 1.5": ALL},
    ),
    (
        "decimal(38,2)",
        "truncate(50, x)",
        Decimal("1" * 36 + ".00"),
        {f"x = {'1' * 36}.49": SOME, f"x < {'1' * 36}.50": ALL, f"x = {'1' * 36}.50": NOTHING},
    ),
    ("string", "truncate(2, x)", "ab", {"x like 'abc%'": SOME, "x like 'ab%'": SOME, "x = 'ad'": NOTHING}),
    ("string", "truncate(2, x)", "ab", {"x >= 'ab'": ALL, "x < 'ad'": ALL, "x > 'b'": NOTHING}),
    ("string", "truncate(2, x)", "a", {"x = 'a'": ALL, "x != 'a'": NOTHING}),
    ("string", "truncate(1, x)", "\U0010ffff", {"x > 'a'": ALL, "x = 'a'": NOTHING}),
    (
        "date",
        "year(x)",
        54,
        {"x = '2024-02-29'": SOME, "x < '2024-01-01'": NOTHING, "x >= '2024-01-01'": ALL},
    ),
    (
        "date",
        "month(x)",
        -1,
        {"x = '1969-12-31'": SOME, "x = '1969-11-30'": SOME, "x = '1970-01-01'": NOTHING},
    ),
    ("timestamp", "day(x)", 1, {"x < '1970-01-03'": ALL, "x = '1970-01-02T23:59:59.999999'": SOME}),
    ("timestamp", "hour(x)", 1, {"x < '1970-01-01T01:00:00'": NOTHING, "x < '1970-01-01T02:00:00'": ALL}),
    ("int", "bucket(1000, x)", None, {"x is null": ALL, "x = 5": NOTHING}),
]


@pytest.mark.parametrize(("kind", "term", "value", "verdicts"), PARTITIONS)
def test_a_partition_bounds_its_rows(kind: str, term: str, value: Any, verdicts: dict[str, str]) -> None:
    """P3, P14: those of old writers, which rounded times before 1970 up, as well."""
    metadata = metadata_of({"x": kind}, term)
    file = file_of((value,))
    assert {text: verdict(metadata, text, file) for text in verdicts} == verdicts


def test_a_deletion_trusts_the_partition_of_texts_and_not_their_statistics() -> None:
    """P3: pyiceberg's are wrong where texts are long."""
    metadata = metadata_of({"x": "string"}, "truncate(1, x)")
    bounds: dict[str, Any] = {"lower_bounds": {1: b"ab"}, "upper_bounds": {1: b"ab"}}
    file = file_of(("a",), value_counts={1: 10}, null_value_counts={1: 0}, **bounds)
    for text in ("x < 'ac'", "x = 'ab'", "x <= 'ab'", "x like 'ab%'"):
        assert verdict(metadata, text, file) == SOME, text
    assert verdict(metadata, "x >= 'a' and x < 'c'", file_of(("a",))) == ALL


def test_a_bucket_excludes_values_and_nothing_else() -> None:
    metadata = metadata_of({"x": "long"}, "bucket(16, x)")
    transform = metadata.spec().fields[0].transform.transform(metadata.schema().find_type("x"))
    file = file_of((transform(34),))
    other = next(number for number in range(100) if transform(number) != transform(34))
    for text, found in {
        "x = 34": SOME,
        f"x = {other}": NOTHING,
        f"x in ({other}, 34)": SOME,
        f"x != {other}": ALL,
        f"x not in ({other})": ALL,
        "x > 50": SOME,
        "x is not null": ALL,
    }.items():
        assert verdict(metadata, text, file) == found, text


def test_manifests_are_left_out_by_their_summaries() -> None:
    """Of NaN only if they say that there is none."""
    metadata = metadata_of({"x": "double", "d": "date"}, "x", "month(d)")

    def may_hold(text: str, nan: bool | None = None) -> bool:
        floats = [to_bytes(DoubleType(), value) for value in (1.0, 3.0)]
        months = [to_bytes(IntegerType(), value) for value in (648, 649)]
        manifest = ManifestFile.from_args(
            manifest_path="m",
            manifest_length=1,
            partition_spec_id=0,
            content=ManifestContent.DATA,
            partitions=[
                PartitionFieldSummary(False, nan, *floats),
                PartitionFieldSummary(True, None, *months),
            ],
        )
        return Pruning(metadata, predicate_of(text, metadata.schema())).manifest(manifest)

    assert (may_hold("x > 5"), may_hold("x > 5", nan=False), may_hold("x < 1")) == (True, False, False)
    assert (may_hold("x is nan"), may_hold("x is nan", nan=False)) == (True, False)
    assert (may_hold("x is null"), may_hold("d is null")) == (False, True)
    assert (may_hold("d = '2024-02-29'"), may_hold("d = '2024-03-01'"), may_hold("d < '2024-01-01'")) == (
        True,
        False,
        False,
    )


def groups(
    folder: Path, kind: str, text: str, *values: list[Any], type: pa.DataType | None = None
) -> list[int]:
    """The row groups of a file, one for each list, that may hold a row that matches."""
    schema = parse_schema({"x": kind})
    arrow = pa.schema([("x", type or Layout.create(schema).arrow_schema.field("x").type)])
    with pq.ParquetWriter(folder / "a.parquet", arrow) as writer:
        for group in values:
            writer.write_table(pa.table({"x": group}, schema=arrow))
    footer = pq.read_metadata(folder / "a.parquet")
    return matching_groups(predicate_of(text, schema), footer, {1: "x"}.get)


def test_row_groups_are_left_out_by_their_footers(tmp_path: Path) -> None:
    """P14: Arrow's own proofs ignore NaN and negative zero."""
    floats = [0.0], [-0.0], [7.0, math.nan], [7.0], [None], [None, math.nan]  # the last one has no bounds
    for text, found in {
        "x in (0.0, 3.0)": [0, 1, 5],
        "x = -0.0": [0, 1, 5],
        "x is nan": [0, 1, 2, 3, 5],
        "x > 8": [0, 1, 2, 3, 5],
        "x < 0": [5],
        "x < 8": [0, 1, 2, 3, 5],
        "x is null": [4, 5],
        "x is not null": [0, 1, 2, 3, 5],
    }.items():
        assert groups(tmp_path, "double", text, *floats) == found, text
    assert groups(tmp_path, "long", "x >= 2.5", [1, 2], [3], [None]) == [1]
    assert groups(tmp_path, "long", "x = 3", [1, 2], [3], type=pa.int32()) == [1]
    assert groups(tmp_path, "string", "x like 'b%'", ["a"], ["ab", "ba"], ["c"]) == [1]
    assert groups(tmp_path, "date", "x < '1970-01-02'", [0], [1]) == [0]
    assert groups(tmp_path, "decimal(9,2)", "x > 1.505", [Decimal("1.50")], [Decimal("1.51")]) == [1]
    assert groups(tmp_path, "timestamp", "x > '1970-01-01'", [0], [1]) == [1]
    assert groups(tmp_path, "timestamp", "x > '1970-01-01'", [0], [1], type=pa.timestamp("ns")) == [0, 1]
    assert groups(tmp_path, "boolean", "x = true", [True], [False]) == [0]
    assert groups(tmp_path, "binary", "x = 'a'", [b"b"], [b"c"]) == [0, 1]
