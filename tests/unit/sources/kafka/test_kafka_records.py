"""Records of a topic as rows, without brokers."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE

from distop.sources.formats.bad_rows import Unconvertible, convert_good_rows
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.reader import ReadColumns, writable
from distop.sources.kafka.records import RecordReader, Records, csv_line

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


@dataclass
class Message:
    """As the client returns it."""

    content: bytes | None
    stamp: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, 0)

    def value(self) -> bytes | None:
        return self.content

    def timestamp(self) -> tuple[int, int]:
        return self.stamp


def rows(messages: list[Message], value_format: str = "json") -> tuple[list[dict[str, Any]], list[str]]:
    """The good rows, and the reasons why others are bad."""
    reader = RecordReader(
        value_format,
        ReadColumns(SCHEMA, strict=True),
        metadata={"timestamp": "at"},
        csv=CsvOptions(header=["id"]),
        value_column="value",
    )
    bad: list[str] = []
    records: Any = Records(messages)  # type: ignore[arg-type]
    good = convert_good_rows(
        records, lambda some: writable(reader.convert(some), SCHEMA), lambda _, reason: bad.append(reason)
    )
    return pa.concat_tables([SCHEMA.empty_table(), *good]).to_pylist(), bad


def test_a_record_with_an_impossible_time_is_a_bad_row() -> None:
    """C2: one that a producer has stamped in microseconds stopped its topic for ever."""
    stamps = [1_700_000_000_123, 1_700_000_000_123_456, -1, 2**62]
    messages = [Message(b'{"id": %d}' % at, (TIMESTAMP_CREATE_TIME, ms)) for at, ms in enumerate(stamps)]
    good, bad = rows([*messages, Message(b'{"id": 9}')])
    assert good == [
        {"id": 0, "at": datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)},
        {"id": 2, "at": datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)},
        {"id": 9, "at": None},
    ]
    assert [reason.partition(":")[0] for reason in bad] == ["column 'at'", "column 'at'"]
    assert "outside of the years 1 to 9999" in bad[0]


@pytest.mark.parametrize("value_format", ["json", "csv"])
def test_a_value_framed_for_a_schema_registry_is_called_so(value_format: str) -> None:
    good, bad = rows([Message(b"\0\0\0\1\2" + b'{"id": 1}')], value_format)
    assert good == []
    (reason,) = bad
    assert reason.startswith("the value is framed for a schema registry (schema 258): ")


def test_an_unknown_key_is_named() -> None:
    _, bad = rows([Message(b'{"id": 1, "x": 2}')])
    assert bad == ["column 'x' is not wanted; see --on-new-columns"]


def test_a_csv_record_is_read_in_its_encoding() -> None:
    assert csv_line("1,Müller\n".encode("cp1252"), "cp1252") == "1,Müller".encode()
    assert csv_line(b"1,\xff\n", "") == b"1,\xff"
    with pytest.raises(Unconvertible, match="not utf-16"):
        csv_line(b"abc", "utf-16")
