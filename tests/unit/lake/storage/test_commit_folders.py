"""Listing and removing staged files, by URL or by path."""

import time
from pathlib import Path

import pytest
from pyiceberg.io import SCHEMA_TO_FILE_IO

from distop.lake.cleanup.staged import sweep
from distop.lake.layout.model import Layout
from distop.lake.storage.storage import entries, remove_files, remove_if_empty
from support.tables.publishing import ROWS, Table, rows

IMPLEMENTATIONS = ["pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"]


@pytest.mark.parametrize("scheme", ["file://", ""], ids=["url", "path"])
def test_files_are_listed_and_removed_by_name(tmp_path: Path, scheme: str) -> None:
    """C12, C18: names with blanks too, and those that mean something in URLs; sub-folders are left alone."""
    place = tmp_path / "staged"
    (place / "sub").mkdir(parents=True)
    for name in ("a.parquet", "a.parquet#1", "b c.avro", "%41.avro", "sub/d.avro"):
        (place / name).write_text("x")
    folder = f"{scheme}{place}"
    found = {entry.name: entry.is_folder for entry in entries(folder)}
    files = ("%41.avro", "a.parquet", "a.parquet#1", "b c.avro")
    assert found == dict.fromkeys(files, False) | {"sub": True}
    assert all(0 < entry.modified_at <= time.time() for entry in entries(folder))
    assert remove_files([f"{folder}/b c.avro", f"{folder}/a.parquet#1"]) == 2
    assert remove_files([f"{folder}/b c.avro"]) == 0
    remove_if_empty(folder)
    assert sorted(path.name for path in place.iterdir()) == ["%41.avro", "a.parquet", "sub"]


@pytest.mark.parametrize("scheme", ["file://", ""], ids=["url", "path"])
def test_a_folder_that_is_empty_or_missing(tmp_path: Path, scheme: str) -> None:
    """P9, C18"""
    place = tmp_path / "staged"
    folder = f"{scheme}{place}"
    assert entries(folder) == []
    remove_if_empty(folder)
    place.mkdir()
    assert entries(folder) == []
    remove_if_empty(folder)
    assert not place.exists()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=["pyarrow", "fsspec"])
def test_tables_at_plain_paths(tmp_path: Path, implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P14, C12: without a scheme, with blanks in it, whatever reads and writes it."""
    monkeypatch.setitem(SCHEMA_TO_FILE_IO, "file", [implementation])
    layout = Layout.create(ROWS, ["kind"])
    table = Table("flights", f"{tmp_path}/my data/flights", layout)
    for _ in range(2):
        operation = table.staged(*([rows(10 * i, 4)] for i in range(6)))
        facts = table.publish(operation).facts
        assert sweep(operation.arg, operation.history(facts), operation.jobs) == 6
    assert table.ids() == sorted(2 * [10 * i + n for i in range(6) for n in range(4)])
