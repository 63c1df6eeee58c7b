"""Finding the files of a source."""

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from distop.errors import ArgumentTooLarge, DistopError, InvalidArgument, SourceEmpty, SourceUnreadable
from distop.sources.formats import files as sources
from distop.sources.formats.files import FoundSource, OpenFile, find_files


def write(path: Path, text: str = "x\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(found: FoundSource) -> dict[str, list[str]]:
    return {partition: [file.path for file in files] for partition, files in found.partitions.items()}


def test_a_folder_is_read_with_all_below_it_in_order(tmp_path: Path) -> None:
    for name in ("m/b.csv", "m/a.csv", "m/deep/er/c.csv", "m/10.csv"):
        write(tmp_path / name)
    found = find_files([str(tmp_path / "m")])
    assert found.url == f"file://{tmp_path}"
    assert names(found) == {"m": ["m/10.csv", "m/a.csv", "m/b.csv", "m/deep/er/c.csv"]}


def test_hidden_and_empty_files_in_folders_are_passed_over(tmp_path: Path) -> None:
    for name in ("m/a.csv", "m/_SUCCESS", "m/.a.csv.crc", "m/_tmp/b.csv", "m/.hidden/b.csv"):
        write(tmp_path / name)
    write(tmp_path / "m/empty.csv", "")
    assert names(find_files([str(tmp_path / "m")])) == {"m": ["m/a.csv"]}
    (tmp_path / "m/a.csv").unlink()
    with pytest.raises(SourceEmpty):
        find_files([str(tmp_path / "m")])


def test_every_path_is_a_partition_and_globs_stand_for_what_they_match(tmp_path: Path) -> None:
    for month in ("2013-01", "2013-02", "2014-01"):
        write(tmp_path / month / "a.csv")
    assert list(find_files([f"{tmp_path}/2013-*"]).partitions) == ["2013-01", "2013-02"]
    assert list(find_files([f"{tmp_path}/2014-01", f"{tmp_path}/2013-02/a.csv"]).partitions) == [
        "2013-02/a.csv",
        "2014-01",
    ]


def test_names_with_odd_characters_are_found(tmp_path: Path) -> None:
    odd = [
        "a b.csv",
        "ü ñ 漢.csv",
        "a#b?c.csv",
        "a%20b.csv",
        "a::b.csv",
        "[x].csv",
        'it\'s "q".csv',
        "nl\n.csv",
    ]
    for name in odd:
        write(tmp_path / "m" / name)
    found = find_files([str(tmp_path / "m")])
    assert sorted(names(found)["m"]) == sorted(f"m/{name}" for name in odd)
    for file in found.files:
        opened = OpenFile.at(found.url, file.path)
        assert opened.identity() == (file.size, file.version)
        with opened.open() as stream:
            assert stream.read(10) == b"x\n"
    assert names(find_files([str(tmp_path / "m" / "[x].csv")])) == {"[x].csv": ["[x].csv"]}


def test_modification_times_are_known_to_the_microsecond(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    os.utime(path, ns=(0, 1_700_000_000_123_456_000))
    (file,) = find_files([str(path)]).files
    assert file.version == 1_700_000_000_123_456
    assert file.modified == datetime(2023, 11, 14, 22, 13, 20, 123456, tzinfo=UTC)


def test_links_are_followed_and_loops_are_refused(tmp_path: Path) -> None:
    target = write(tmp_path / "elsewhere" / "a.csv", "12345\n")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "link.csv").symlink_to(target)
    (file,) = find_files([str(tmp_path / "m")]).files
    assert (file.path, file.size) == ("m/link.csv", 6)
    (tmp_path / "m" / "loop").symlink_to(tmp_path / "m")
    with pytest.raises(InvalidArgument, match="nested deeper"):
        find_files([str(tmp_path / "m")])


def test_other_file_systems_are_read_the_same_way() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/ingest-sources/m/a.csv", b"1\n2\n")
    memory.pipe("/ingest-sources/m/_x.csv", b"1\n")
    found = find_files(["memory://ingest-sources/m"])
    assert found.url == "memory:///ingest-sources"
    assert names(found) == {"m": ["m/a.csv"]}
    opened = OpenFile.at(found.url, "m/a.csv")
    assert opened.identity() == (4, found.files[0].version)
    with opened.open() as stream:
        assert stream.read(10) == b"1\n2\n"


@pytest.mark.parametrize(
    ("path", "error", "says"),
    [
        ("data/a.csv", InvalidArgument, "relative"),
        ("~/a.csv", InvalidArgument, "relative"),
        ("/nowhere/at/all", SourceUnreadable, "/nowhere/at/all"),
        ("/nowhere/*.csv", SourceEmpty, "nothing matches"),
        ("/nowhere/**", InvalidArgument, "is not supported"),
        ("nosuch://a/b", SourceUnreadable, "nosuch"),
        ("zip://a.csv::/x.zip", InvalidArgument, "chain"),
        ("/", InvalidArgument, "does not name a file or folder"),
        ("/dev/null", SourceUnreadable, "neither a file nor a folder"),
    ],
)
def test_a_path_that_cannot_be_read_is_named(path: str, error: type[InvalidArgument], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        find_files([path])
    assert type(caught.value) is error
    assert caught.value.details["field"] == "paths"


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"\xff.csv")).write_text("1\n")
    with pytest.raises(SourceUnreadable, match=r"udcff\.csv .*not valid UTF-8"):
        find_files([str(tmp_path)])


def test_no_file_is_read_twice(tmp_path: Path) -> None:
    path = write(tmp_path / "m" / "a.csv")
    for paths in (
        [str(path), str(path)],
        [str(tmp_path / "m"), str(path)],
        [str(path), f"{tmp_path}/m/../m/a.csv"],
    ):
        with pytest.raises(InvalidArgument, match="named twice"):
            find_files(paths)


def test_paths_of_several_file_systems_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv")
    with pytest.raises(InvalidArgument, match="another file system"):
        find_files([str(path), "memory://x"])


def test_listing_is_bounded_in_number_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(5):
        write(tmp_path / "m" / f"{index}.csv")
    monkeypatch.setattr(sources, "MAX_FILES", 4)
    with pytest.raises(ArgumentTooLarge, match="more than 4 files"):
        find_files([str(tmp_path / "m")])
    with pytest.raises(ArgumentTooLarge, match="more than 3 paths"):
        find_files([f"{tmp_path}/m/*"], most=3)
    ticks = iter([0.0, 1.0, 2.0, 21.0])
    with pytest.raises(ArgumentTooLarge, match="longer than 20 s, after 1 files"):
        find_files([str(tmp_path / "m")], clock=lambda: next(ticks))
    # A few links to the folder above make very many folders, also without a file.
    for name in ("a", "b"):
        (tmp_path / "empty" / name).mkdir(parents=True)
    ticks = iter([0.0, 1.0, 21.0])
    with pytest.raises(ArgumentTooLarge, match="longer than 20 s"):
        find_files([str(tmp_path / "empty")], clock=lambda: next(ticks))


def test_the_root_is_a_folder_like_any_other(tmp_path: Path) -> None:
    top = str(tmp_path).split("/")[1]
    write(tmp_path / "a.csv")
    found = find_files([f"/{top}/../{tmp_path}/a.csv"])
    assert found.url == f"file://{tmp_path}"
    memory = fsspec.filesystem("memory")
    memory.pipe("/ingest-root.csv", b"1\n")
    found = find_files(["memory://ingest-root.csv"])
    assert (found.url, names(found)) == ("memory://", {"ingest-root.csv": ["ingest-root.csv"]})
    assert OpenFile.at(found.url, "ingest-root.csv").identity()[0] == 2


def _compressed(codec: str) -> Callable[[bytes], bytes]:
    return lambda data: pa.compress(data, codec, asbytes=True)


@pytest.mark.parametrize(
    ("ending", "compress"),
    [
        (".gz", gzip.compress),
        (".bz2", bz2.compress),
        (".xz", lzma.compress),
        (".zst", _compressed("zstd")),
        (".lz4", _compressed("lz4")),
    ],
)
def test_compressed_text_is_decompressed_over_all_its_members(
    tmp_path: Path, ending: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"a.csv{ending}"
    path.write_bytes(compress(b"a\n1\n") + compress(b"2\n"))
    opened = OpenFile.at(f"file://{tmp_path}", path.name).text()
    with opened.open() as stream:
        assert stream.read(100) + stream.read(100) == b"a\n1\n2\n"


SCHEMES = ("dir", "github", "jupyter", "generic", "reference")


@pytest.mark.parametrize("url", [*(f"{name}://x" for name in SCHEMES), "zip:///nowhere", "tar:///nowhere"])
def test_a_path_that_no_file_system_can_open_is_refused_by_its_field(url: str) -> None:
    """U3: not as a defect."""
    with pytest.raises(DistopError) as told:
        find_files([url])
    assert told.value.details["field"] == "paths"
