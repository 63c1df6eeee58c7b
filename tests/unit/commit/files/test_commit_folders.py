"""Listing and removing staged files, through either kind of ``FileIO``, by URL or by path."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.io import FileIO, load_file_io

from distop.commit.cleanup.sweep import sweep
from distop.commit.files.folders import BATCH, Folder
from distop.commit.layout.model import Layout
from support.tables.publishing import ROWS, Table, rows

IMPLEMENTATIONS = ["pyiceberg.io.pyarrow.PyArrowFileIO", "pyiceberg.io.fsspec.FsspecFileIO"]


@pytest.fixture(params=IMPLEMENTATIONS, ids=["pyarrow", "fsspec"])
def io(request: pytest.FixtureRequest) -> FileIO:
    return load_file_io({"py-io-impl": request.param})


@pytest.mark.parametrize("scheme", ["file://", ""], ids=["url", "path"])
def test_files_are_listed_and_removed_by_name(tmp_path: Path, io: FileIO, scheme: str) -> None:
    """C18: names with blanks too; sub-folders are left alone."""
    place = tmp_path / "staged"
    (place / "sub").mkdir(parents=True)
    for name in ("a.parquet", "b c.avro", "%41.avro", "sub/d.avro"):
        (place / name).write_text("x")
    folder = Folder(io, f"{scheme}{place}")
    (names,) = folder.listing()
    assert sorted(names) == ["%41.avro", "a.parquet", "b c.avro"]
    assert folder.remove("b c.avro")
    assert not folder.remove("b c.avro")
    folder.remove_if_empty()
    assert sorted(path.name for path in place.iterdir()) == ["%41.avro", "a.parquet", "sub"]


@pytest.mark.parametrize("scheme", ["file://", ""], ids=["url", "path"])
def test_a_folder_that_is_empty_or_missing(tmp_path: Path, io: FileIO, scheme: str) -> None:
    """P9, C18"""
    place = tmp_path / "staged"
    folder = Folder(io, f"{scheme}{place}")
    assert list(folder.listing()) == []
    folder.remove_if_empty()
    place.mkdir()
    assert list(folder.listing()) == []
    folder.remove_if_empty()
    assert not place.exists()


def test_a_long_listing_comes_in_batches(tmp_path: Path, io: FileIO) -> None:
    """P4"""
    for number in range(BATCH + 1):
        (tmp_path / f"{number}").touch()
    assert [len(names) for names in Folder(io, str(tmp_path)).listing()] == [BATCH, 1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS, ids=["pyarrow", "fsspec"])
def test_a_table_at_a_plain_path(tmp_path: Path, implementation: str) -> None:
    """P14, C12: without a scheme, with blanks in it, whatever reads and writes it."""
    layout = Layout.create(ROWS, ["kind"], {"py-io-impl": implementation})
    table = Table("flights", f"{tmp_path}/my data/flights", layout)
    for _ in range(2):
        operation = table.staged(*([rows(10 * i, 4)] for i in range(6)))
        facts = table.publish(operation).facts
        assert sweep(operation.arg, operation.history(facts), operation.jobs) == 6
    assert table.ids() == sorted(2 * [10 * i + n for i in range(6) for n in range(4)])
