"""The types of columns, and values of each that something once changed.

What is expected is written down here, after the documentation (docs/ingest.md, "Columns and types"), and is
held against readers other than distop before it is used (``references.py``). A value is what Arrow stores:
days of a date, microseconds of a time, bytes of a text.
"""

import math
import struct
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

CSV, JSON, KAFKA, PARQUET, AVRO = "CSV", "JSON", "Kafka", "Parquet", "Avro"
DATAFRAME, SOURCE, WRITE, STREAM = "DataFrame", "data source", "write()", "stream"
TEXTS = (CSV, JSON, KAFKA)
FILES = (*TEXTS, PARQUET, AVRO)
SPARK = (DATAFRAME, SOURCE, WRITE, STREAM)
WRITERS = (*FILES, *SPARK)
"""The ways into a table, in the order of the page's columns."""

ZONE = "Europe/Berlin"
"""Of all sessions that have one: on 2024-03-31 it has no 02:30, on 2024-10-27 two of them."""


@dataclass(frozen=True)
class Case:
    """A value on its way into a column."""

    text: str | None
    """As CSV and JSON spell it; ``None``: NULL."""
    value: Any
    """What every reader must have; of a value that is refused, what files with types and DataFrames hold."""
    name: str
    """For people; unique among the values of a type."""
    writers: frozenset[str] = frozenset(WRITERS)
    """Writers that can express it."""
    refused: frozenset[str] = frozenset()
    """Writers whose row is refused, by name."""
    source: pa.DataType | None = None
    """The type that carries it in files with types and DataFrames; ``None``: that of the column."""
    spark: str = ""
    """The same in Spark's words."""
    json: str = ""
    """How JSON spells it, if not as usual."""
    malformed: bool = False
    """Whether its line is refused as a whole: it has no columns."""


@dataclass(frozen=True)
class Kind:
    """A type of columns."""

    name: str
    """As ``schema`` spells it; a nested type, which it cannot spell, as Spark does."""
    arrow: pa.DataType
    spark: str
    cases: tuple[Case, ...]
    is_text: bool = False
    """Whether it is a string in JSON."""
    refused: frozenset[str] = frozenset()
    """Writers that cannot write the type at all."""
    nested: bool = False

    def writers(self, case: Case) -> list[str]:
        """The writers that send a value."""
        return [writer for writer in WRITERS if writer in case.writers]

    def is_refused(self, case: Case, writer: str) -> bool:
        return writer in self.refused or writer in case.refused


def number_of(writer: str, case: int) -> int:
    """The row's id."""
    return 1000 * (1 + WRITERS.index(writer)) + case


def days(text: str) -> int:
    return date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()


def micros(text: str) -> int:
    """Microseconds since 1970 of a time, which is in UTC unless it names a zone."""
    at = datetime.fromisoformat(text)
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def in_day(text: str) -> int:
    """Microseconds since midnight."""
    return micros(f"1970-01-01T{text}")


def array_of(values: Sequence[Any], dtype: pa.DataType) -> pa.Array:
    """Values as an array: also those that Python, or Arrow's own checks, would not take."""
    if pa.types.is_temporal(dtype):
        return pa.array(values, pa.int32() if dtype.bit_width == 32 else pa.int64()).view(dtype)
    if pa.types.is_string(dtype):
        return pa.array(values, pa.binary()).view(dtype)
    if isinstance(dtype, pa.UuidType):
        return pa.ExtensionArray.from_storage(dtype, pa.array(values, pa.binary(16)))
    return pa.array(values, dtype)


# -- values ------------------------------------------------------------------------------------------

_EVERY = frozenset(WRITERS)
_NO_TEXT = _EVERY.difference(TEXTS)
_NO_TYPE_OF_AVRO = frozenset((*TEXTS, PARQUET))
_JSON = frozenset({JSON, KAFKA})


def _null() -> Case:
    return Case(None, None, "NULL")


def _plain(read: Callable[[str], Any], *texts: str) -> list[Case]:
    """Values that every writer can express."""
    return [Case(text, read(text), text) for text in texts]


def _bad(
    text: str,
    value: Any = None,
    source: pa.DataType | None = None,
    spark: str = "",
    writers: frozenset[str] | None = None,
) -> Case:
    """A value that is refused from every writer that can express it: Spark's only if it has a type for it."""
    carried = frozenset(TEXTS) if value is None else _EVERY if source is None or spark else frozenset(FILES)
    carried = carried if writers is None else writers
    return Case(text, value, text, writers=carried, refused=carried, source=source, spark=spark)


def _hexadecimal(text: str) -> Case:
    """Of a column of integers; files with types and DataFrames hold it as a text, and so does JSON."""
    value, json = text.encode(), f'"{text}"'
    return Case(text, value, text, refused=_EVERY, source=pa.string(), spark="string", json=json)


def _floats(read: Callable[[str], float], *finite: str) -> tuple[Case, ...]:
    special = ("NaN", "inf", "-inf", "Infinity", "-Infinity")
    # JSON has no such numbers: these are texts, and without quotes no JSON.
    infinite = [Case(text, float(text), text, refused=_JSON, json=f'"{text}"') for text in special]
    bare = [
        Case(text, None, f"{text} without quotes", writers=_JSON, refused=_JSON, malformed=True)
        for text in ("NaN", "-Infinity")
    ]
    return (_null(), *_plain(read, "0.0", "-0.0", "0.1", *finite), *infinite, *bare)


def _single(text: str) -> float:
    """The nearest number of 32 bits."""
    rounded: float = struct.unpack("f", struct.pack("f", float(text)))[0]
    return rounded


def _decimals(*texts: str) -> list[Case]:
    return _plain(Decimal, *texts)


def _digits(text: str, more: str, read: Callable[[str], int]) -> Case:
    """A time with a seventh digit, which is 0."""
    return Case(text + more, read(text), text + more)


def _named(name: str, text: str, writers: frozenset[str] = _EVERY) -> Case:
    return Case(text, text.encode(), name, writers=writers)


def _bytes(*values: bytes) -> tuple[Case, ...]:
    return (_null(), *(Case(value.hex(), value, value.hex() or "empty") for value in values))


_MOMENTS = (
    "0001-01-01T00:00:00",
    "1582-10-10T12:00:00",
    "1969-12-31T23:59:59.999999",
    "1970-01-01T00:00:00",
    "2024-03-31T02:30:00",
    "2024-10-27T02:30:00",
    "9999-12-31T23:59:59.999999",
)
_UTC = pa.timestamp("us", tz="UTC")
_TYPES_OF_BYTES = frozenset(TEXTS)
_UNKNOWN_TO_SPARK = frozenset((*TEXTS, *SPARK))

KINDS: tuple[Kind, ...] = (
    Kind(
        "boolean",
        pa.bool_(),
        "boolean",
        (_null(), *_plain(lambda text: text == "true", "true", "false")),
    ),
    Kind(
        "int",
        pa.int32(),
        "int",
        (
            _null(),
            *_plain(int, "0", "-2147483648", "2147483647"),
            _bad("2147483648", 2**31, pa.int64(), "bigint"),
            _bad("-2147483649", -(2**31) - 1, pa.int64(), "bigint"),
            _bad("1.5", 1.5, pa.float64(), "double"),
            _hexadecimal("0x1F"),
        ),
    ),
    Kind(
        "long",
        pa.int64(),
        "bigint",
        (
            _null(),
            *_plain(int, "0", "-9223372036854775808", "9223372036854775807", "9007199254740993"),
            _bad("9223372036854775808", 2**63, pa.uint64(), writers=_NO_TYPE_OF_AVRO),
            _bad("-9223372036854775809"),
            _bad("1.5", 1.5, pa.float64(), "double"),
            _hexadecimal("0xFFFFFFFFFFFFFFFF"),
        ),
    ),
    Kind(
        "float",
        pa.float32(),
        "float",
        (
            *_floats(_single, "1e-45", "3.4028235e38"),
            _bad("1e39", 1e39, pa.float64(), "double"),
            _bad("16777217", 2**24 + 1, pa.int64(), "bigint"),
        ),
    ),
    Kind(
        "double",
        pa.float64(),
        "double",
        (
            *_floats(float, "5e-324", "1.7976931348623157e308", "0.10000000000000001"),
            _bad("1e400"),
            _bad("12345678901234.123456"),
            _bad("9007199254740993", 2**53 + 1, pa.int64(), "bigint"),
        ),
    ),
    Kind(
        "decimal(9,2)",
        pa.decimal128(9, 2),
        "decimal(9,2)",
        (
            _null(),
            *_decimals("0.00", "-0.01", "9999999.99", "-9999999.99"),
            _bad("10000000.00", Decimal("10000000.00"), pa.decimal128(10, 2), "decimal(10,2)"),
            _bad("0.005", Decimal("0.005"), pa.decimal128(9, 3), "decimal(9,3)"),
        ),
    ),
    Kind(
        "decimal(38,0)",
        pa.decimal128(38, 0),
        "decimal(38,0)",
        (
            _null(),
            *_decimals("0", "9" * 38, "-" + "9" * 38),
            _bad("1" + "0" * 38, Decimal("1" + "0" * 38), pa.decimal256(39, 0)),
        ),
    ),
    Kind(
        "decimal(38,38)",
        pa.decimal128(38, 38),
        "decimal(38,38)",
        (_null(), *_decimals("0." + "9" * 38, "-0." + "9" * 38, "0." + "0" * 37 + "1")),
    ),
    Kind(
        "date",
        pa.date32(),
        "date",
        (
            _null(),
            *_plain(days, "0001-01-01", "1582-10-10", "1969-12-31", "1970-01-01", "9999-12-31"),
            _bad("10000-01-01", days("9999-12-31") + 1),
            _bad("0000-12-31", days("0001-01-01") - 1),
        ),
        is_text=True,
    ),
    Kind(
        "time",
        pa.time64("us"),
        "time(6)",
        (
            _null(),
            *_plain(in_day, "00:00:00", "23:59:59.999999"),
            _digits("12:00:00.123456", "0", in_day),
            _bad("24:00:00", 86_400_000_000, writers=frozenset(FILES)),
            _bad(
                "12:00:00.1234567",
                1000 * in_day("12:00:00.123456") + 700,
                pa.time64("ns"),
                writers=_NO_TYPE_OF_AVRO,
            ),
        ),
        is_text=True,
    ),
    Kind(
        "timestamp",
        pa.timestamp("us"),
        "timestamp_ntz",
        (
            _null(),
            *_plain(micros, *_MOMENTS),
            _digits("2024-01-01T00:00:00.123456", "0", micros),
            _bad("10000-01-01T00:00:00", micros("9999-12-31T23:59:59.999999") + 1),
            _bad("0000-12-31T23:59:59.999999", micros("0001-01-01T00:00:00") - 1),
            _bad(
                "2024-01-01T00:00:00.1234567",
                1000 * micros("2024-01-01T00:00:00.123456") + 700,
                pa.timestamp("ns"),
            ),
            _bad("2024-01-01T00:00:00Z", micros("2024-01-01T00:00:00"), _UTC, "timestamp"),
        ),
        is_text=True,
    ),
    Kind(
        "timestamptz",
        _UTC,
        "timestamp",
        (
            _null(),
            *_plain(micros, *(f"{moment}Z" for moment in _MOMENTS)),
            *_plain(micros, "2024-03-31T01:30:00Z", "2024-10-27T00:30:00Z", "2024-10-27T01:30:00Z"),
            *_plain(micros, "2024-01-01T00:00:00+14:00", "2024-01-01T00:00:00-11:30"),
            _digits("2024-01-01T00:00:00.123456", "0Z", micros),
            Case(
                "2024-03-31T02:30:00",
                micros("2024-03-31T02:30:00"),
                "2024-03-31T02:30:00, without a zone",
                source=pa.timestamp("us"),
                spark="timestamp_ntz",
                refused=frozenset({WRITE}),
            ),
            _bad("10000-01-01T00:00:00Z", micros("9999-12-31T23:59:59.999999") + 1),
            _bad("0000-12-31T23:59:59.999999Z", micros("0001-01-01T00:00:00") - 1),
            _bad(
                "2024-01-01T00:00:00.1234567Z",
                1000 * micros("2024-01-01T00:00:00.123456") + 700,
                pa.timestamp("ns", tz="UTC"),
            ),
        ),
        is_text=True,
    ),
    Kind(
        "string",
        pa.string(),
        "string",
        (
            _null(),
            _named("empty", ""),
            _named("U+0000", "a\0b"),
            _named("U+10FFFF", "\U0010ffff"),
            _named("U+D7FF as the 16th character", f"{'x' * 15}\ud7ffyz"),
            _named("U+10FFFF as the 16th character", f"{'x' * 15}\U0010ffffyz"),
            _named("the text NULL", "NULL"),
            _named("spaces", "  a "),
            _named("a quotation mark", 'a"b'),
            _named("a backslash", "a\\b\\"),
            _named("a comma", "a,b"),
            _named("a newline", "a\nb"),
            _named("a carriage return", "a\r\nb"),
            _named("a decomposed letter", "e\u0301"),
            Case(None, b"a\xffb", "not UTF-8", writers=_NO_TEXT, refused=_NO_TEXT),
            Case(
                "\\ud800",
                None,
                "half a surrogate pair",
                writers=_JSON,
                refused=_JSON,
                json='"a\\ud800b"',
                malformed=True,
            ),
        ),
        is_text=True,
    ),
    Kind(
        "uuid",
        pa.uuid(),
        "binary",
        tuple(
            Case(text, None if text is None else uuid.UUID(text).bytes, text or "NULL")
            for text in (None, str(uuid.UUID(int=0)), str(uuid.UUID(int=2**128 - 1)))
        ),
        is_text=True,
        refused=_UNKNOWN_TO_SPARK,
    ),
    Kind(
        "binary",
        pa.binary(),
        "binary",
        _bytes(b"", b"\0", b"\xff\xfe", "\U0010ffff".encode(), b"x" * 15 + b"\xff\xff\xff"),
        is_text=True,
        refused=_TYPES_OF_BYTES,
    ),
    Kind(
        "fixed[4]",
        pa.binary(4),
        "binary",
        _bytes(b"\0\0\0\0", b"\xff\xff\xff\xff"),
        is_text=True,
        refused=_UNKNOWN_TO_SPARK,
    ),
    Kind(
        "array<double>",
        pa.list_(pa.float64()),
        "array<double>",
        (
            _null(),
            Case("[]", [], "[]"),
            Case("[null]", [None], "[null]"),
            Case("[-0.0, 0.1]", [-0.0, 0.1], "[-0.0, 0.1]"),
            Case('["NaN", "Infinity"]', [math.nan, math.inf], "[NaN, inf]", refused=_JSON),
        ),
        refused=frozenset({CSV, WRITE}),
        nested=True,
    ),
    Kind(
        "struct<n: decimal(38,0), s: string>",
        pa.struct([("n", pa.decimal128(38, 0)), ("s", pa.string())]),
        "struct<n: decimal(38,0), s: string>",
        (
            _null(),
            Case('{"n": null, "s": null}', {"n": None, "s": None}, "of NULLs"),
            Case('{"s": ""}', {"n": None, "s": ""}, "of NULL and empty"),
            Case(
                '{"n": ' + "9" * 38 + ', "s": "\U0010ffff"}',
                {"n": Decimal("9" * 38), "s": "\U0010ffff"},
                "of 38 digits and U+10FFFF",
            ),
        ),
        refused=frozenset({CSV, WRITE}),
        nested=True,
    ),
    Kind(
        "map<string, bigint>",
        pa.map_(pa.string(), pa.int64()),
        "map<string, bigint>",
        (
            _null(),
            Case("{}", [], "{}"),
            Case('{"": 9223372036854775807, "b": null}', [("", 2**63 - 1), ("b", None)], "of '' and NULL"),
        ),
        refused=frozenset((*TEXTS, WRITE)),
        nested=True,
    ),
)
"""All of them, in the order of the page."""
