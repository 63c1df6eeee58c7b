"""What is sent: the same values as a CSV file, as lines of JSON, as a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

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


def by_source(cases: Cases) -> Iterable[tuple[pa.DataType | None, dict[int, Case]]]:
    """The values by the type that carries them: a Parquet file has one."""
    found: dict[pa.DataType | None, dict[int, Case]] = {}
    for number, case in cases.items():
        found.setdefault(case.source, {})[number] = case
    return found.items()
