"""Avro files with any content, also such as fastavro would not write: a text that is not UTF-8, the year
10000. Values are what the format stores: numbers instead of times, bytes instead of decimals."""

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro

MARKER = bytes(range(100, 116))
METADATA = {"type": "map", "values": "bytes"}


def record(fields: Mapping[str, Any], name: str = "Row") -> dict[str, Any]:
    """The schema of records with these fields."""
    named = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "fields": named}


def optional(kind: Any) -> list[Any]:
    return ["null", kind]


def encoded(schema: Any, value: Any) -> bytes:
    """A value of a schema that has no logical types."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return stream.getvalue()


def long(number: int) -> bytes:
    return encoded("long", number)


def block(schema: Any, rows: Iterable[Mapping[str, Any]]) -> tuple[int, bytes]:
    """How many rows, and their bytes."""
    plain = fastavro.parse_schema(json.loads(json.dumps(schema).replace("logicalType", "unused")))
    written = [encoded(plain, row) for row in rows]
    return len(written), b"".join(written)


def container(schema: Any, *blocks: tuple[int, bytes], codec: str = "null") -> bytes:
    """A file of blocks."""
    metadata = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
    body = b"".join(long(rows) + long(len(data)) + data + MARKER for rows, data in blocks)
    return b"Obj\x01" + encoded(METADATA, metadata) + MARKER + body
