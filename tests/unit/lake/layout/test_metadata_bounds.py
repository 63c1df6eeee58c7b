"""Metadata files named by callers may hold anything; reading one costs little all the same."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distop.errors import CorruptRecord
from distop.lake.iceberg import metadata_files
from distop.lake.iceberg.metadata_files import TableFile
from distop.lake.layout import metadata
from distop.lake.layout.model import Layout, load_metadata
from support.tables.publishing import ROWS, new_table, rows

CANARY = "canary5b1e"
MISTAKES = 1_000_000

MADE = Layout.create(ROWS, []).new_metadata("/t", now=1.0)
GOOD = json.loads(MADE.model_dump_json())

READS: list[Callable[[str], object]] = [load_metadata, TableFile.read]


@pytest.mark.parametrize("read", READS)
def test_a_bomb_is_not_unpacked(
    read: Callable[[str], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: neither a packed file nor a plain one is read beyond what metadata may have."""
    monkeypatch.setattr(metadata, "MAX_METADATA_BYTES", 1 << 20)
    (tmp_path / "a.gz.metadata.json").write_bytes(gzip.compress(b" " * (1 << 25)))
    (tmp_path / "b.metadata.json").write_bytes(b" " * (1 << 21))
    for name in ("a.gz.metadata.json", "b.metadata.json"):
        with pytest.raises(CorruptRecord, match="more than 1,048,576 bytes"):
            read(f"{tmp_path}/{name}")


@pytest.mark.parametrize("read", READS)
def test_badly_compressed_metadata_is_refused(read: Callable[[str], object], tmp_path: Path) -> None:
    """U3"""
    whole = gzip.compress(b'{"format-version": 2}' * 1000)
    for at, broken in enumerate((whole[:-20], whole[:10] + b"x" * 50, whole[:20])):
        (path := tmp_path / f"{at}.gz.metadata.json").write_bytes(broken)
        with pytest.raises(CorruptRecord, match="not table metadata"):
            read(str(path))


@pytest.mark.parametrize("read", READS)
def test_a_missing_or_damaged_file_is_reported(read: Callable[[str], object], tmp_path: Path) -> None:
    """U3: and not guessed around."""
    path = tmp_path / "t.metadata.json"
    with pytest.raises(CorruptRecord, match=r"t\.metadata\.json is missing"):
        read(str(path))
    for content in (b"no json", b'{"snapshots": 3}', b'{"format-version": 2}', b"{}", b"\xff"):
        path.write_bytes(content)
        with pytest.raises(CorruptRecord, match=r"t\.metadata\.json is not"):
            read(str(path))


@pytest.mark.parametrize("name", ["snapshots", "metadata-log", "schemas", "sort-orders", "refs", "x"])
def test_metadata_with_a_million_mistakes_is_refused_for_one(name: str, tmp_path: Path) -> None:
    """S1: to look for all of them would take minutes, and gigabytes."""
    text = json.dumps({**GOOD, name: []}).replace(f'"{name}": []', f'"{name}": [{"{}," * MISTAKES}{{}}]')
    (path := tmp_path / "t.metadata.json").write_text(text)
    with pytest.raises(CorruptRecord) as refused:
        load_metadata(str(path))
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("content", [f"{CANARY}\n", {"table-uuid": CANARY}, {"last-updated-ms": CANARY}])
def test_the_content_of_a_file_that_is_no_metadata_is_not_shown(content: Any, tmp_path: Path) -> None:
    """S5: it may be a file of another user."""
    text = content if isinstance(content, str) else json.dumps({**GOOD, **content})
    (path := tmp_path / "t.metadata.json").write_text(text)
    with pytest.raises(CorruptRecord, match="not table metadata") as refused:
        load_metadata(str(path))
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("value", [None, 5, [], {}, [None], {"a": None}])
def test_another_kind_of_value_is_no_bug(read: Callable[[str], object], value: Any, tmp_path: Path) -> None:
    """U3: at any place; pyiceberg converts some of them."""
    refused = set()
    for name in GOOD:
        (path := tmp_path / f"{name}.metadata.json").write_text(json.dumps({**GOOD, name: value}))
        try:
            read(str(path))
        except CorruptRecord:
            refused.add(name)
    assert "schemas" in refused


def test_packed_metadata_is_read(tmp_path: Path) -> None:
    """P14: as other programs write it."""
    (path := tmp_path / "t.gz.metadata.json").write_bytes(gzip.compress(MADE.model_dump_json().encode()))
    assert load_metadata(str(path)) == TableFile.read(str(path)).metadata == MADE


def test_the_last_metadata_written_is_remembered_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounded in number and in bytes: the last ones that fit."""
    monkeypatch.setattr(metadata_files, "_written", {})
    table = new_table(tmp_path)
    for start in range(4):
        table.publish(table.staged([rows(start, 1)]))
    written = metadata_files._written
    assert len(written) > 2
    for file in written.values():
        assert file._size == Path(str(file.location).removeprefix("file://")).stat().st_size
    last = written[table.record().metadata_location]
    monkeypatch.setattr(metadata_files, "MAX_REMEMBERED_BYTES", 2 * last._size)
    last.remember(f"{tmp_path}/again.metadata.json")
    assert list(written) == [last.location, f"{tmp_path}/again.metadata.json"]
    monkeypatch.setattr(metadata_files, "MAX_REMEMBERED_BYTES", last._size - 1)
    last.remember(f"{tmp_path}/too-large.metadata.json")
    assert list(written) == [last.location, f"{tmp_path}/again.metadata.json"]
