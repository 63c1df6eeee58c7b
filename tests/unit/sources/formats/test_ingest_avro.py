"""Avro files into a table: written by fastavro, or by hand where it would not write them."""

import bz2
import lzma
import re
import struct
import sys
import uuid
import zlib
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from distop.errors import BadRow, ExtraMissing, JobFailed, SourceUnreadable
from distop.sources.formats import avro
from support.refusals import refused
from support.sources.avro_files import MARKER, block, container, long, optional, record
from support.sources.ingesting import Ingesting, quarantined


def write(
    ingesting: Ingesting, schema: Any, rows: list[dict[str, Any]], name: str = "a.avro", **options: Any
) -> str:
    """A file of rows with the values that fastavro takes."""
    path = ingesting.folder / "source" / name
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as stream:
        fastavro.writer(stream, schema, rows, **options)
    return str(path)


def by_hand(ingesting: Ingesting, schema: Any, *blocks: tuple[int, bytes], codec: str = "null") -> str:
    path = ingesting.folder / "source" / "a.avro"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(container(schema, *blocks, codec=codec))
    return str(path)


def logical(name: str, kind: str = "long", **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


NOON = datetime(2013, 1, 1, 12, 0, 0, 123_456)  # noqa: DTZ001 - a time without a zone
UTC_NOON = NOON.replace(tzinfo=UTC)
MILLIS = NOON.replace(microsecond=123_000)
MICROS_OF_NOON = 1_357_041_600_123_456
CODE = {"type": "enum", "name": "Code", "symbols": ["x", "y"]}
SHORT = {"type": "fixed", "name": "Short", "size": 3}
ID = {"type": "fixed", "name": "Id", "size": 16, "logicalType": "uuid"}
MONEY = {"type": "fixed", "name": "Money", "size": 5, "logicalType": "decimal", "precision": 9, "scale": 2}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "t", "type": "string"}],
}

TYPES: dict[str, tuple[Any, Any, pa.DataType, Any]] = {
    # column: the type, a value as it is stored, the type of the column, the value that is read
    "nothing": ("null", None, pa.large_string(), None),
    "yes": ("boolean", True, pa.bool_(), True),
    "i": ("int", -(2**31), pa.int32(), -(2**31)),
    "l": ("long", 2**63 - 1, pa.int64(), 2**63 - 1),
    "f": ("float", 1.5, pa.float32(), 1.5),
    "d": ("double", 0.1, pa.float64(), 0.1),
    "b": ("bytes", b"\x00\xff", pa.large_binary(), b"\x00\xff"),
    "s": ("string", "ä\0\U0010ffff", pa.large_string(), "ä\0\U0010ffff"),
    "x": (SHORT, b"abc", pa.binary(3), b"abc"),
    "e": (CODE, "y", pa.large_string(), "y"),
    "r": (
        POINT,
        {"x": 7, "t": "a"},
        pa.struct([("x", pa.int32()), ("t", pa.large_string())]),
        {"x": 7, "t": "a"},
    ),
    "again": (optional("Point"), None, pa.struct([("x", pa.int32()), ("t", pa.large_string())]), None),
    "a": (
        {"type": "array", "items": optional(logical("date", "int"))},
        [0, None],
        pa.large_list(pa.date32()),
        [date(1970, 1, 1), None],
    ),
    "m": ({"type": "map", "values": "long"}, {"k": 1}, pa.map_(pa.large_string(), pa.int64()), [("k", 1)]),
    "day": (logical("date", "int"), -719_162, pa.date32(), date(1, 1, 1)),
    "ms": (logical("time-millis", "int"), 43_200_123, pa.time64("us"), time(12, 0, 0, 123_000)),
    "us": (logical("time-micros"), 43_200_123_456, pa.time64("us"), time(12, 0, 0, 123_456)),
    "tms": (
        logical("timestamp-millis"),
        MICROS_OF_NOON // 1000,
        pa.timestamp("us", "UTC"),
        MILLIS.replace(tzinfo=UTC),
    ),
    "tus": (logical("timestamp-micros"), MICROS_OF_NOON, pa.timestamp("us", "UTC"), UTC_NOON),
    "tns": (logical("timestamp-nanos"), MICROS_OF_NOON * 1000, pa.timestamp("us", "UTC"), UTC_NOON),
    "lms": (logical("local-timestamp-millis"), MICROS_OF_NOON // 1000, pa.timestamp("us"), MILLIS),
    "lus": (logical("local-timestamp-micros"), MICROS_OF_NOON, pa.timestamp("us"), NOON),
    "lns": (logical("local-timestamp-nanos"), MICROS_OF_NOON * 1000, pa.timestamp("us"), NOON),
    "dec": (
        logical("decimal", "bytes", precision=38, scale=38),
        (-(10**38) + 1).to_bytes(17, signed=True),
        pa.decimal128(38, 38),
        Decimal("-0." + "9" * 38),
    ),
    "money": (MONEY, (-150).to_bytes(5, signed=True), pa.decimal128(9, 2), Decimal("-1.50")),
    "moneys": (
        {"type": "array", "items": "Money"},
        [(7).to_bytes(5)],
        pa.large_list(pa.decimal128(9, 2)),
        [Decimal("0.07")],
    ),
    "u": (logical("uuid", "string"), str(uuid.UUID(int=7)), pa.uuid(), uuid.UUID(int=7)),
    "ub": (ID, uuid.UUID(int=8).bytes, pa.uuid(), uuid.UUID(int=8)),
    "us_": (
        record({"id": "Id"}, name="Holder"),
        {"id": uuid.UUID(int=9).bytes},
        pa.struct([("id", pa.uuid())]),
        {"id": uuid.UUID(int=9)},
    ),
    # What is no logical type of these says nothing.
    "other": (logical("no-such"), 1, pa.int64(), 1),
    "wide": (logical("decimal", "bytes", precision=2, scale=3), b"\x01", pa.large_binary(), b"\x01"),
    "only": (["string"], "a", pa.large_string(), "a"),
}


def stored(ingesting: Ingesting, fields: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    """A file of rows with the values as Avro stores them."""
    schema = record(fields)
    return by_hand(ingesting, schema, block(schema, rows))


def test_types_become_those_of_a_table(ingesting: Ingesting) -> None:
    fields = {name: kind for name, (kind, _, _, _) in TYPES.items()}
    path = stored(ingesting, fields, [{name: value for name, (_, value, _, _) in TYPES.items()}])
    ingesting.ingest(paths=path)
    read = ingesting.read()
    assert {field.name: field.type for field in read.schema} == {
        name: dtype for name, (_, _, dtype, _) in TYPES.items()
    }
    assert read.to_pylist() == [{name: value for name, (_, _, _, value) in TYPES.items()}]


def test_a_union_with_null_is_null_or_the_value(ingesting: Ingesting) -> None:
    fields = {
        name: optional(kind)
        for name, (kind, _, _, _) in TYPES.items()
        if name not in ("nothing", "again", "only")
    }
    values = {name: value for name, (_, value, _, _) in TYPES.items() if name in fields}
    ingesting.ingest(paths=stored(ingesting, fields, [dict.fromkeys(fields), values]))
    assert ingesting.read().to_pylist() == [
        dict.fromkeys(fields),
        {name: value for name, (_, _, _, value) in TYPES.items() if name in fields},
    ]


BAD = {
    # why: the type, how it is stored, the table's type, what is said
    "int": ("int", 2**31, "int", "Value 2147483648 too large"),
    "year 10000": (logical("date", "int"), 2_932_897, "date", "outside of the years 1 to 9999"),
    "year 0": (logical("timestamp-micros"), -62_135_596_800_000_001, "timestamptz", "outside of the years"),
    "millis beyond 64 bits": (
        logical("timestamp-millis"),
        2**62,
        "timestamptz",
        f"invalid value {2**62} for timestamp",
    ),
    "nanos": (logical("timestamp-nanos"), 1, "timestamptz", "invalid value 1970-01-01 00:00:00.000000001Z"),
    "local nanos": (
        logical("local-timestamp-nanos"),
        -1,
        "timestamp",
        "invalid value 1969-12-31 23:59:59.999999999",
    ),
    "a day of 25 hours": (logical("time-millis", "int"), 90_000_000, "time", "of a day"),
    "micros before midnight": (logical("time-micros"), -1, "time", "of a day"),
    "digits": (
        logical("decimal", "bytes", precision=3, scale=1),
        (10_000).to_bytes(2),
        "decimal(9,2)",
        "1000.0 has more than 3 digits",
    ),
    "uuid": (logical("uuid", "string"), "{00000000-0000-0000-0000-000000000007}", "uuid", "is no uuid"),
    "no uuid": (logical("uuid", "string"), "x", "uuid", "badly formed"),
}


@pytest.mark.parametrize("why", BAD)
def test_a_value_that_a_table_cannot_hold_is_a_bad_row(tmp_path: Path, why: str) -> None:
    """C2: the rows beside it are good, and the quarantine has what is stored."""
    kind, value, column, said = BAD[why]
    ingesting = Ingesting(tmp_path, {"schema": ["id: long", f"v: {column}"]})
    schema = record({"id": "long", "v": optional(kind)})
    # fastavro does not write an int that is none.
    written = record({"id": "long", "v": optional("long")}) if kind == "int" else schema
    rows = [{"id": number, "v": value if number == 2 else None} for number in (1, 2, 3)]
    path = by_hand(ingesting, schema, block(written, rows))
    with refused(error=BadRow, match="column 'v'", row=2):
        ingesting.ingest(paths=path)
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine")
    [entry] = quarantined(ingesting, jobs)
    assert entry["row"] == 2
    assert said in entry["reason"]
    assert str(value) in entry["raw"] or why == "digits"
    assert ingesting.rows("id") == [1, 3]


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("string", b"", b""),
        ({"type": "array", "items": "string"}, b"\2", b"\0"),
        ({"type": "map", "values": "null"}, b"\2", b"\0"),
    ],
)
def test_a_text_that_is_not_utf_8_is_a_bad_row(
    ingesting: Ingesting, kind: Any, before: bytes, after: bytes
) -> None:
    """C2: nobody could read the table."""
    texts = b"".join(before + long(len(text)) + text + after for text in (b"a", b"m\xff", b"z"))
    path = by_hand(ingesting, record({"v": kind}), (3, texts))
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine")
    [entry] = quarantined(ingesting, jobs)
    assert entry["row"] == 2
    assert entry["reason"].endswith(": b'm\\xff' is not UTF-8")
    assert "m\\xff" in entry["raw"]
    assert ingesting.read().num_rows == 2


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
def test_a_large_file_is_cut_between_blocks(ingesting: Ingesting, codec: str) -> None:
    """Each row is read once, and knows its place, wherever the cuts are."""
    rows = [{"a": number, "b": "x" * (number % 50)} for number in range(4_000)]
    schema = record({"a": "long", "b": "string"})
    path = write(ingesting, schema, rows, codec=codec, sync_interval=500)
    size = Path(path).stat().st_size
    types = {"a": "int", "b": "string"}
    for parts in (1, 3, 14):
        arg = ingesting.start(
            paths=path,
            reingest=True,
            mode="overwrite",
            split_bytes=max(1024, size // parts),
            schema=types,
            on_bad_rows="quarantine",
        )
        jobs = ingesting.run(arg)
        ingesting.finish(arg, jobs)
        assert sorted(ingesting.read()["a"].to_pylist()) == list(range(4_000))
    assert len(jobs) > 10
    rows[3_000]["a"] = 2**40
    write(ingesting, schema, rows, codec=codec, sync_interval=500)
    jobs = ingesting.ingest(
        paths=path,
        reingest=True,
        mode="overwrite",
        split_bytes=max(1024, size // 5),
        schema=types,
        on_bad_rows="quarantine",
    )
    assert [entry["row"] for entry in quarantined(ingesting, jobs)] == [3_001]
    assert ingesting.read().num_rows == 3_999


def test_rows_are_converted_some_at_a_time(ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "BATCH_ROWS", 7)
    monkeypatch.setattr(avro, "BATCH_BYTES", 100)
    schema = record({"a": "long"})
    blocks = [block(schema, [{"a": at * 10 + number} for number in range(10)]) for at in range(30)]
    ingesting.ingest(paths=by_hand(ingesting, schema, *blocks, (0, b"")))
    assert ingesting.read()["a"].to_pylist() == list(range(300))


def test_snappy_and_zstandard_are_read(ingesting: Ingesting) -> None:
    schema = record({"a": "long"})
    count, data = block(schema, [{"a": number} for number in range(1000)])
    packed = pa.Codec("snappy").compress(data, asbytes=True)
    ingesting.ingest(
        paths=by_hand(ingesting, schema, (count, packed + zlib.crc32(data).to_bytes(4)), codec="snappy")
    )
    assert ingesting.read()["a"].to_pylist() == list(range(1000))
    stream = pa.BufferOutputStream()
    with pa.CompressedOutputStream(stream, "zstd") as out:  # does not say how much it becomes
        out.write(data)
    path = by_hand(ingesting, schema, (count, stream.getvalue().to_pybytes()), codec="zstandard")
    ingesting.ingest(paths=path, mode="overwrite", reingest=True)
    assert ingesting.read()["a"].to_pylist() == list(range(1000))
    wrong = by_hand(ingesting, schema, (count, packed + b"abcd"), codec="snappy")
    with pytest.raises(JobFailed, match="checksum"):
        ingesting.ingest(paths=wrong, reingest=True, schema={"a": "long"})


@pytest.mark.parametrize("codec", ["deflate", "bzip2", "xz", "snappy", "zstandard"])
def test_a_small_block_that_becomes_too_large_is_refused(
    ingesting: Ingesting, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(avro, "MAX_BLOCK_BYTES", 100_000)
    data = bytes(200_000)
    packed = {
        "deflate": lambda: zlib.compress(data, wbits=-15),
        "bzip2": lambda: bz2.compress(data),
        "xz": lambda: lzma.compress(data),
        "snappy": lambda: pa.Codec("snappy").compress(data, asbytes=True) + zlib.crc32(data).to_bytes(4),
        "zstandard": lambda: pa.Codec("zstd").compress(data, asbytes=True),
    }[codec]()
    path = by_hand(ingesting, record({"a": "long"}), (200_000, packed), codec=codec)
    with pytest.raises(JobFailed, match="100,000 bytes"):
        ingesting.ingest(paths=path)


def damaged(whole: bytes) -> dict[str, bytes]:
    return {
        "ends within its last block": whole[:-20],
        "ends without a marker": whole[:-16],
        "has another marker": whole[:-1] + b"\0",
        "has more in a block than its rows": whole[:-16].replace(long(4) + long(8), long(3) + long(8))
        + MARKER,
        "has less": whole.replace(long(4) + long(8), long(5) + long(8)),
        "has a block of less than nothing": whole.replace(long(4) + long(8), long(-4) + long(8)),
    }


@pytest.mark.parametrize("how", damaged(b""))
def test_damaged_files_are_named(ingesting: Ingesting, how: str) -> None:
    path = stored(ingesting, {"a": "long"}, [{"a": 300 + number} for number in range(4)])
    whole = Path(path).read_bytes()
    broken = damaged(whole)[how]
    assert broken != whole
    Path(path).write_bytes(broken)
    with pytest.raises(JobFailed, match=r"a\.avro is damaged: "):
        ingesting.ingest(paths=path)
    assert not ingesting.table.head.exists


NODE = record({"next": optional("Row"), "v": "int"})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (NODE, "a type that contains itself, 'Row'"),
        ("string", "holds other values than records"),
        (["null", record({"a": "int"})], "holds other values than records"),
        ({"type": "record"}, "a schema that cannot be read"),
        (record({"a": "no-such"}), "a schema that cannot be read"),
        (
            {**record({"a": "int"}), "fields": [{"name": "a", "type": "int"}] * 2},
            "two fields 'a' in one record",
        ),
        (record({f"c{number}": "int" for number in range(10_001)}), "has 10,001 columns"),
    ],
)
def test_files_that_cannot_be_rows_are_refused_at_the_start(
    ingesting: Ingesting, schema: Any, said: str
) -> None:
    path = by_hand(ingesting, schema)
    with refused("paths", re.escape(said), SourceUnreadable, path=f"file://{path}"):
        ingesting.start(paths=path)


def test_many_fields_from_few_types_are_refused(ingesting: Ingesting) -> None:
    """Each type has two fields of the one before: a short text says millions of fields."""
    kind: Any = "int"
    for level in range(25):
        name = f"T{level}"
        first = {"name": "a", "type": kind}
        again = {"name": "b", "type": "int" if level == 0 else f"T{level - 1}"}
        kind = {"type": "record", "name": name, "fields": [first, again]}
    with pytest.raises(SourceUnreadable, match="10,000 fields"):
        ingesting.start(paths=by_hand(ingesting, record({"a": kind})))


def test_files_of_other_formats_are_refused_as_avro(ingesting: Ingesting) -> None:
    for content in (b"a\n1\n", b"Obj\x01", b"Obj\x01\xff\xff\xff\xff\xff\xff\xff\xff\x7f"):
        path = Path(by_hand(ingesting, record({"a": "int"})))
        path.write_bytes(content)
        with refused("paths", "not an Avro file", SourceUnreadable, path=f"file://{path}"):
            ingesting.start(paths=str(path))
    with refused("paths", "'lzo'; .*null, deflate, snappy", SourceUnreadable):
        ingesting.start(paths=by_hand(ingesting, record({"a": "int"}), codec="lzo"))
    with refused("format"):
        ingesting.start(paths=write(ingesting, record({"a": "int"}), [], "a.avro.gz"))


UNKNOWN = {
    "union of int and string": ["null", "int", "string"],
    "duration": {"type": "fixed", "name": "D", "size": 12, "logicalType": "duration"},
    "big-decimal": logical("big-decimal", "bytes"),
    "decimal(80,2)": logical("decimal", "bytes", precision=80, scale=2),
    "decimal256(39, 0)": logical("decimal", "bytes", precision=39),
    "record without fields": record({}, name="Empty"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_column_of_a_type_that_no_table_has_is_refused_by_name(ingesting: Ingesting, name: str) -> None:
    value = {"union of int and string": 5, "record without fields": {}}.get(name, bytes(12))
    path = stored(ingesting, {"a": "int", "v": UNKNOWN[name]}, [{"a": 1, "v": value}])
    with refused("paths", re.escape(f"column 'v': values of type {name} are not supported")):
        ingesting.start(paths=path)
    ingesting.ingest(paths=path, columns=["a"])
    assert ingesting.read().to_pylist() == [{"a": 1}]


def test_a_nested_field_of_a_type_that_no_table_has_may_be_left_out(ingesting: Ingesting) -> None:
    """In a file that is not looked into at the start."""
    schema, row = record({"a": optional(POINT)}), {"a": {"x": 7, "t": "t"}}
    paths = [write(ingesting, schema, [row], f"{index:03}.avro") for index in range(40)]
    inner = record({"x": "int", "u": ["int", "string"]}, name="Inner")
    write(ingesting, record({"a": optional(inner)}), [{"a": {"x": 1, "u": "t"}}, {"a": None}], "017.avro")
    ingesting.ingest(paths=paths[0])
    ingesting.ingest(paths=paths, on_new_columns="ignore", reingest=True, mode="overwrite")
    assert ingesting.read()["a"].to_pylist()[17:20] == [{"x": 1, "t": None}, None, row["a"]]


def test_a_decimal_of_no_bytes_is_a_bad_row(ingesting: Ingesting) -> None:
    kind = logical("decimal", "bytes", precision=9, scale=2)
    path = stored(ingesting, {"v": kind}, [{"v": b""}, {"v": b"\x07"}, {"v": bytes([1] * 3000)}])
    jobs = ingesting.ingest(paths=path, on_bad_rows="quarantine")
    assert [entry["row"] for entry in quarantined(ingesting, jobs)] == [1, 3]
    assert ingesting.read()["v"].to_pylist() == [Decimal("0.07")]


def test_a_later_file_with_other_types_fails(ingesting: Ingesting) -> None:
    paths = [
        write(ingesting, record({"a": "long"}), [{"a": index}], f"{index:03}.avro") for index in range(40)
    ]
    write(ingesting, record({"a": ["int", "string"]}), [{"a": 1}], "017.avro")
    arg = ingesting.start(paths=paths)
    with pytest.raises(JobFailed, match=r"union of int and string .*'a'"):
        ingesting.run(arg)


def test_files_may_differ_in_their_columns_and_widths(ingesting: Ingesting) -> None:
    paths = [
        write(ingesting, record({"a": "int", "b": "string"}), [{"a": 1, "b": "x"}], "a.avro"),
        write(ingesting, record({"b": optional("string"), "a": "long"}), [{"a": 2**40, "b": None}], "b.avro"),
    ]
    ingesting.ingest(paths=paths)
    assert ingesting.rows("a", "b") == [(1, "x"), (2**40, None)]
    more = write(ingesting, record({"a": "int", "c": POINT}), [{"a": 3, "c": {"x": 1, "t": "t"}}], "c.avro")
    with refused("paths", "'c'"):
        ingesting.start(paths=more)
    ingesting.ingest(paths=more, on_new_columns="add")
    assert ingesting.rows("a", "b", "c")[2] == (3, None, {"x": 1, "t": "t"})


def test_avro_columns_can_be_chosen_and_rows_filtered(ingesting: Ingesting) -> None:
    path = write(ingesting, record({"a": "long", "b": "long"}), [{"a": n, "b": n % 5} for n in range(10)])
    ingesting.ingest(paths=path, columns=["a"], filter="b not in (3, 4) and not a > 6")
    assert ingesting.rows("a") == [0, 1, 2, 5, 6]


def test_values_are_the_same_bits(ingesting: Ingesting) -> None:
    """pyiceberg's decoder of Avro once made other doubles of these."""
    values = [0.1, -0.0, 5e-324, 1.7976931348623157e308, float("inf"), float("nan")]
    ingesting.ingest(paths=write(ingesting, record({"v": "double"}), [{"v": value} for value in values]))
    assert [struct.pack("d", v) for v in ingesting.read()["v"].to_pylist()] == [
        struct.pack("d", v) for v in values
    ]


def test_without_the_library_it_is_said_what_to_install(
    ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(ingesting, record({"a": "long"}), [{"a": 1}])
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with refused(error=ExtraMissing, extra="avro", package="fastavro") as missing:
        ingesting.start(paths=path)
    assert missing.value.hint == "pip install 'distop[avro]'"
