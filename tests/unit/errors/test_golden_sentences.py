"""The sentences that users read most stand in one file, as the real errors say them."""

import functools
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distop.cli.options.parsing import parse_duration, parse_limit, parse_object, parse_property, parse_types
from distop.client.backfill import batch_arguments, batch_range, checked_batches
from distop.client.connection import parse_addresses
from distop.client.credentials import Credentials
from distop.coordinator.access.callers import Caller, Identity
from distop.coordinator.access.gate import denied
from distop.errors import DistopError, TableNotFound
from distop.lake.layout.evolution import changed_columns, parse_changes
from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.storage.allowed import LOCATIONS, SOURCES, check_location, check_source
from distop.metastore.records.names import check_table_name
from distop.operations.api import Role
from distop.spark_jobs.delete.operation import Delete
from support.sources.ingesting import Ingesting
from support.tables.maintaining import Run
from support.tables.publishing import filled

Refused = Callable[[Path], object]

GOLDEN = Path(__file__).with_name("golden_sentences.txt")

COLUMNS = parse_schema(["id: int not null", "fare: decimal(4,2)", "time: timestamp"])

CALLS: dict[str, Callable[[], object]] = {
    "a duration": lambda: parse_duration("soon", "timeout"),
    "a limit": lambda: parse_limit("some", "max_failed_partitions"),
    "an argument that is no object": lambda: parse_object("{", "arg"),
    "an argument without a value": lambda: parse_property("paths"),
    "a column without a type": lambda: parse_types(["id"]),
    "an address": lambda: parse_addresses("here:there"),
    "two tokens": lambda: Credentials(token="a", token_file="b"),
    "half a certificate": lambda: Credentials(cert="a.crt"),
    "a certificate without TLS": lambda: Credentials(cert="a.crt", key="a.key"),
    "a backfill from no time": lambda: batch_range("2024-01", "yesterday"),
    "a backfill from the end to the beginning": lambda: batch_range("2024-02", "2024-01"),
    "a backfill of nothing": lambda: checked_batches([]),
    "a backfill that never names its batch": lambda: batch_arguments({"paths": "/in"}, ["1", "2"]),
    "a missing table": lambda: TableNotFound.named("flights"),
    "a missing role": lambda: denied(Caller(Identity("jane")), Role.WRITER, "table 'flights'"),
    "a table without a name": lambda: check_table_name(""),
    "a reserved name of a table": lambda: check_table_name("_flights"),
    "a name of a table with an empty part": lambda: check_table_name("sales..flights"),
    "a source that is not listed": lambda: check_source("/etc/passwd"),
    "a location that is not listed": lambda: check_location("/etc/flights"),
    "a source with a password": lambda: check_source("https://jane:hers@example.com/a.csv"),
    "a type of a column": lambda: parse_schema(["id: lnog"]),
    "a partition column": lambda: Layout.create(COLUMNS, ["month(colour)"]),
    "a partition transform": lambda: Layout.create(COLUMNS, ["week(time)"]),
    "renaming a missing column": lambda: changed({"change": "rename", "column": "x", "to": "y"}),
    "adding a required column": lambda: changed({"change": "add", "column": "x", "type": "int not null"}),
    "narrowing a column": lambda: changed({"change": "widen", "column": "fare", "type": "decimal(3,2)"}),
}
"""What is refused wherever it is given."""

INGESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "no such option": ("a.csv", "a\n1\n", {"pathes": "/in"}),
    "no such mode": ("a.csv", "a\n1\n", {"mode": "replace"}),
    "a format that the name does not show": ("a.txt", "a\n1\n", {}),
    "an option of another format": ("a.jsonl", '{"a": 1}\n', {"delimiter": ";"}),
    "not UTF-8": ("a.csv", "a\nM\xfcller\n", {}),
    "not Parquet": ("a.parquet", "a\n1\n", {}),
    "a column that the source lacks": ("a.csv", "a\n1\n", {"columns": ["b"]}),
    "a column that the schema lacks": ("a.csv", "a,b\n1,2\n", {"schema": {"a": "int"}}),
    "a bad value": ("a.csv", "a\n1\nx\n", {"schema": {"a": "int"}}),
    "too few values": ("a.csv", "a,b\n1,2\n3\n", {"schema": {"a": "int", "b": "int"}}),
    "a missing value": ("a.csv", "a,b\n1,2\n,2\n", {"schema": {"a": "int not null", "b": "int"}}),
    "no JSON": ("a.jsonl", '{"a": 1}\n{\n', {"schema": {"a": "int"}}),
    "only bad rows": ("a.csv", "a\nx\n", {"schema": {"a": "int"}, "on_bad_rows": "quarantine"}),
    "too many bad rows": (
        "a.csv",
        "a\n1\nx\n",
        {"schema": {"a": "int"}, "on_bad_rows": "quarantine", "max_bad_rows": 0},
    ),
    "a merge without its key": ("a.csv", "a\n1\n", {"mode": "merge", "keys": ["id"]}),
    "a watermark of another path": ("a.csv", "a\n1\n", {"watermark": {"b.csv": "1"}}),
}
"""What an ingest of one file, and its options, are refused for."""


def changed(*changes: dict[str, Any]) -> object:
    return changed_columns(COLUMNS, parse_changes(changes), 9)


def twice(first: str, second: str, *, schema: dict[str, str] | None = None, **options: Any) -> Refused:
    """An ingest of a second file, which is the first one unless it has text of its own."""

    def refused(folder: Path) -> object:
        ingesting = Ingesting(folder)
        path = ingesting.write(first)
        ingesting.ingest(paths=path, schema=schema)
        return ingesting.ingest(paths=ingesting.write(second, "b.csv") if second else path, **options)

    return refused


def changed_under_an_ingest(folder: Path) -> object:
    ingesting = Ingesting(folder)
    arg = ingesting.start(paths=ingesting.write("a\n1\n"))
    ingesting.write("a\n1\n22\n")
    return ingesting.run(arg)


ON_A_TABLE: dict[str, Refused] = {
    "ingested already": twice("a\n1\n", ""),
    "a table with data": twice("a\n1\n", "a\n1\n", mode="error_if_exists"),
    "a new column": twice("a\n1\n", "a,b\n1,2\n"),
    "a wider type": twice("a\n1\n", "a\n1.5\n", schema={"a": "int"}),
    "a file that changes while it is read": changed_under_an_ingest,
    "a delete by a missing column": lambda folder: Run.of(filled(folder, 1), Delete(), where="x = 1"),
    "a delete by another type": lambda folder: Run.of(filled(folder, 1), Delete(), where="id = 'one'"),
    "a delete by no predicate": lambda folder: Run.of(filled(folder, 1), Delete(), where="id = "),
    "a delete on a missing branch": lambda folder: Run.of(
        filled(folder, 1), Delete(), where="id = 1", branch="aside"
    ),
}
"""What a table with rows refuses."""


def told(call: Callable[[], object]) -> DistopError:
    """The error that a call raises, or makes."""
    try:
        error = call()
    except DistopError as raised:
        error = raised
    assert isinstance(error, DistopError), "it was not refused"
    return error


def test_the_sentences_that_users_read_most_are_those_of_the_golden_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U3: each with its code and what to do. ``GOLDEN=write`` puts the present words into the file."""
    errors = dict[str, DistopError]()
    for name, (file, text, options) in INGESTS.items():
        ingesting = Ingesting(tmp_path / str(len(errors)))
        path = ingesting.write(text.encode("latin-1"), file)
        errors[name] = told(functools.partial(ingesting.ingest, **{"paths": path, **options}))
    for name, refused in ON_A_TABLE.items():
        errors[name] = told(functools.partial(refused, tmp_path / str(len(errors))))
    monkeypatch.setenv(SOURCES, "s3://in/")
    monkeypatch.setenv(LOCATIONS, "s3://tables/")
    errors |= {name: told(call) for name, call in CALLS.items()}
    lines = []
    for name, error in errors.items():
        lines += ["", name, f"  {error.code}: {error.message}", *([f"  {error.hint}"] if error.hint else [])]
    text = re.sub(rf"{tmp_path}/\d+", "FOLDER", "\n".join(lines[1:])) + "\n"
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", re.sub(r"\b\d{16,19}\b", "NUMBER", text))
    if os.environ.get("GOLDEN") == "write":
        GOLDEN.write_text(text)
    assert text.splitlines() == GOLDEN.read_text().splitlines()
