"""What is sent: the same values as a CSV file, as lines of JSON, as a Parquet or an Avro file."""

import json
from collections.abc import Iterable, Mapping
from decimal import Context
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types as is_

from support.sources.avro_files import block, container, optional, record
from truth.values import Case, Kind, array_of

Cases = Mapping[int, Case]
"""By the ids of their rows."""


def csv_text(kind: Kind, cases: Cases) -> bytes:
    """With a header; texts are quoted, and nothing else."""

    def spelled(case: Case) -> str:
        if case.text is None:
            return ""
        quoted = kind.name == "string" or kind.nested
        return '"' + case.text.replace('"', '""') + '"' if quoted else case.text

    return "".join(["id,v\n", *(f"{number},{spelled(case)}\n" for number, case in cases.items())]).encode()


def json_lines(kind: Kind, cases: Cases) -> list[bytes]:
    """An object for each value. Numbers have all their digits."""

    def spelled(case: Case) -> str:
        if case.text is None:
            return "null"
        return case.json or (json.dumps(case.text, ensure_ascii=False) if kind.is_text else case.text)

    return [f'{{"id": {number}, "v": {spelled(case)}}}'.encode() for number, case in cases.items()]


def parquet_file(path: Path, dtype: pa.DataType, cases: Cases) -> None:
    """Written by pyarrow, with the values as they are stored."""
    values = array_of([case.value for case in cases.values()], dtype)
    rows = pa.table({"id": pa.array(list(cases), pa.int64()), "v": values})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)


def avro_file(dtype: pa.DataType, cases: Cases) -> bytes:
    """With the values as they are stored. Texts are written as bytes, which look the same in a file: some are
    not UTF-8."""
    schema = record({"id": "long", "v": optional(_avro_type(dtype))})
    rows = [{"id": number, "v": _avro_value(case.value, dtype)} for number, case in cases.items()]
    return container(schema, block(json.loads(json.dumps(schema).replace('"string"', '"bytes"')), rows))


def _avro_type(dtype: pa.DataType) -> Any:
    if is_.is_timestamp(dtype):
        name = {"us": "timestamp-micros", "ns": "timestamp-nanos"}[dtype.unit]
        return {"type": "long", "logicalType": name if dtype.tz else f"local-{name}"}
    if is_.is_decimal(dtype):
        decimal = {"precision": dtype.precision, "scale": dtype.scale}
        return {"type": "bytes", "logicalType": "decimal", **decimal}
    if is_.is_list(dtype):
        return {"type": "array", "items": optional(_avro_type(dtype.value_type))}
    if is_.is_map(dtype):
        return {"type": "map", "values": optional(_avro_type(dtype.item_type))}
    if is_.is_struct(dtype):
        return record({field.name: optional(_avro_type(field.type)) for field in dtype}, "Struct")
    if is_.is_fixed_size_binary(dtype):
        return {"type": "fixed", "name": "Fixed", "size": dtype.byte_width}
    return _AVRO_TYPES[dtype]


_AVRO_TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "bytes",
    pa.string(): "string",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    pa.uuid(): {"type": "string", "logicalType": "uuid"},
}


def _avro_value(value: Any, dtype: pa.DataType) -> Any:
    if value is None:
        return None
    if is_.is_string(dtype):
        return value if isinstance(value, bytes) else value.encode()
    if isinstance(dtype, pa.UuidType):
        return str(UUID(bytes=value)).encode()
    if is_.is_decimal(dtype):
        number = int(value.scaleb(dtype.scale, Context(prec=100)))
        return number.to_bytes(number.bit_length() // 8 + 1, signed=True)
    if is_.is_list(dtype):
        return [_avro_value(item, dtype.value_type) for item in value]
    if is_.is_map(dtype):
        return {key: _avro_value(item, dtype.item_type) for key, item in value}
    if is_.is_struct(dtype):
        return {field.name: _avro_value(value[field.name], field.type) for field in dtype}
    return value


def by_source(cases: Cases) -> Iterable[tuple[pa.DataType | None, dict[int, Case]]]:
    """The values by the type that carries them: a file with types has one."""
    cases_by_type: dict[pa.DataType | None, dict[int, Case]] = {}
    for number, case in cases.items():
        cases_by_type.setdefault(case.source, {})[number] = case
    return cases_by_type.items()
