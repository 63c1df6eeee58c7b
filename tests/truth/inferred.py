"""Files without a schema: a text is of another type only if its value is exactly what is written."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table

from distop.errors import DistopError
from truth.installation import PATIENCE_S, Installation
from truth.readers import Reader, values_of
from truth.values import CSV, JSON, KINDS, days, in_day, micros
from truth.verdicts import Cell
from truth.writers import described

NAME = "without a schema"
"""In place of the type of a cell."""


@dataclass(frozen=True)
class Guess:
    """A value that stands alone in its column."""

    writer: str
    text: str
    """As the file has it."""
    kind: str
    """The type that its column gets."""
    value: Any


def _of_csv(kind: str, *texts: str) -> Iterator[Guess]:
    return (Guess(CSV, text, kind, _READ[kind](text)) for text in texts)


def _of_json(kind: str, *values: str | float) -> Iterator[Guess]:
    return (Guess(JSON, json.dumps(value), kind, _READ[kind](str(value))) for value in values)


_READ: dict[str, Any] = {
    "string": str.encode,
    "boolean": lambda text: text == "true",
    "long": int,
    "double": float,
    "date": days,
    "time": in_day,
    "timestamp": micros,
    "timestamptz": lambda text: micros(text.replace("1234560Z", "123456Z")),
}
_CODES = ("32E0134", "0x1F", "0x00FF", "007", "+491701234567")
_NO_TIMES = ("10000-01-01", "2024-02-30", "24:00:00")
_TIMES = ("2024-01-01T00:00:00Z", "2024-01-01T00:00:00.1234560Z")

GUESSES = (
    *_of_csv("string", *_CODES, "1e400", "12e34567", "12345678901234.123456", "nan", "inf", *_NO_TIMES),
    *_of_csv("long", "0", "-5", "9007199254740993"),
    *_of_csv("double", "0.1", "1.10", "12.50", "1e-05", "1.5E10"),
    *_of_csv("boolean", "true"),
    *_of_csv("date", "0001-01-01", "9999-12-31"),
    *_of_csv("time", "23:59:59"),
    *_of_csv("timestamp", "2024-03-31T02:30:00"),
    *_of_csv("timestamptz", *_TIMES),
    *_of_json("string", *_CODES, "1.10", "5", "true", "23:59:59", *_NO_TIMES),
    *_of_json("long", 0, -5, 9007199254740993),
    *_of_json("double", 0.1, -0.0),
    *_of_json("date", "0001-01-01", "9999-12-31"),
    *_of_json("timestamp", "2024-03-31T02:30:00"),
    *_of_json("timestamptz", *_TIMES),
)


def cells(readers: Iterable[str]) -> list[Cell]:
    """All cells of inferred types, for these readers."""
    return [Cell(NAME, guess.writer, guess.text, reader) for guess in GUESSES for reader in readers]


def faults(installation: Installation, readers: Mapping[str, Reader]) -> dict[Cell, str]:
    """The cells that are not as expected, with what was expected and what was seen. Makes two tables."""
    wrong = {}
    for writer, suffix in ((CSV, "csv"), (JSON, "jsonl")):
        columns = {f"c{number}": guess for number, guess in enumerate(GUESSES) if guess.writer == writer}
        table, refusal = _filled(installation, f"inferred_{suffix}", suffix, _text(writer, columns))
        for reader, read in readers.items():
            rows, failure = None, refusal
            try:
                rows = None if table is None else read(table, "id >= 0")
            except Exception as error:
                failure = described(error)
            for name, guess in columns.items():
                actual = failure
                if table is not None and rows is not None:
                    actual = _difference(str(table.schema().find_type(name)), rows.column(name), guess)
                if actual:
                    text = f"expected {guess.kind} {guess.value!r}, seen {actual}"
                    wrong[Cell(NAME, writer, guess.text, reader)] = text
    return wrong


def _text(writer: str, columns: Mapping[str, Guess]) -> str:
    """The text of a file with one row: its id, and a column for each guess."""
    if writer == CSV:
        values = ",".join(["1", *(guess.text for guess in columns.values())])
        return f"id,{','.join(columns)}\n{values}\n"
    return (
        "{" + ", ".join(['"id": 1', *(f'"{name}": {guess.text}' for name, guess in columns.items())]) + "}\n"
    )


def _filled(installation: Installation, name: str, suffix: str, text: str) -> tuple[Table | None, str]:
    """A table that had no columns, with the rows of a file; or why they are not there."""
    path = installation.folder / "sources" / name / f"a.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    client = installation.client
    client.create_table(name, f"file://{installation.folder}/tables/{name}")
    try:
        started = client.start(name, "ingest", {"paths": str(path)})
        started.result(timeout_s=PATIENCE_S)
    except DistopError as error:
        return None, described(error)
    return installation.catalog.load_table(f"default.{name}"), ""


def _difference(kind: str, column: pa.ChunkedArray, guess: Guess) -> str:
    """The type and value of a column that are not as guessed; empty: they are."""
    wanted = next((known.arrow for known in KINDS if known.name == kind), column.type)
    (value,) = values_of(column, wanted)
    same = (kind, repr(value)) == (guess.kind, repr(guess.value))
    return "" if same else f"{kind} {value!r}"
