"""Joining task manifests: block by block, and checked."""

import itertools
import random
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.typedef import Record
from pyiceberg.types import StringType

from distop.errors import CorruptRecord
from distop.lake.layout.model import Layout, file_io
from distop.lake.layout.schemas import parse_schema
from distop.lake.writing.manifests import (
    ManifestBuilder,
    OpenManifest,
    TaskManifest,
    adopt,
    join,
    open_manifest,
    summaries_from_json,
)
from distop.lake.writing.writer import StagedWriter

LAYOUT = Layout.create(pa.schema([("id", pa.int64()), ("kind", pa.string())]), ["kind"])


@pytest.fixture
def io(tmp_path: Path) -> FileIO:
    return file_io(str(tmp_path))


def written(folder: Path, name: str, kinds: list[str | None]) -> TaskManifest:
    """The manifest of a job that wrote one row of each kind."""
    writer = StagedWriter(LAYOUT, lambda suffix, kind: f"{folder}/{kind}/{name}{suffix}")
    writer.write(pa.table({"id": list(range(len(kinds))), "kind": pa.array(kinds, pa.string())}))
    result = writer.finish()
    return TaskManifest(
        path=f"{folder}/metadata/{result['manifest']}",
        length=result["manifestLength"],
        files=result["files"],
        rows=result["rows"],
        summaries=summaries_from_json(result["partitions"]),
    )


def joined(io: FileIO, folder: Path, opened: list[OpenManifest]) -> list[ManifestFile]:
    numbers = itertools.count()
    return join(io, opened, LAYOUT, 7, lambda: f"{folder}/metadata/joined-{next(numbers)}.avro")


def test_a_joined_manifest_lists_what_its_parts_list(tmp_path: Path, io: FileIO) -> None:
    """P1, P4: same files, same statistics, the range of all partitions."""
    kinds: dict[str, list[str | None]] = {"a": ["m", "c"], "b": [None], "c": ["z"]}
    parts = [written(tmp_path, name, held) for name, held in kinds.items()]
    (whole,) = joined(io, tmp_path, [open_manifest(io, part) for part in parts])
    entries = whole.fetch_manifest_entry(io)
    alone = [entry for part in parts for entry in adopt(io, part, 0, 7).fetch_manifest_entry(io)]
    assert [entry.data_file.file_path for entry in entries] == [e.data_file.file_path for e in alone]
    assert [e.data_file.upper_bounds[1] for e in entries] == [e.data_file.upper_bounds[1] for e in alone]
    assert (whole.added_files_count, whole.added_rows_count) == (4, 4)
    assert whole.manifest_length == Path(whole.manifest_path).stat().st_size
    (summary,) = whole.partitions or []
    assert summary.contains_null
    assert from_bytes(StringType(), summary.lower_bound or b"") == "c"
    assert from_bytes(StringType(), summary.upper_bound or b"") == "z"


def test_partition_values_are_read_as_they_were_written(tmp_path: Path, io: FileIO) -> None:
    """P14: all 64 bits of a double, and a UUID as its bytes, by which filters and bounds compare it."""
    layout = Layout.create(parse_schema({"x": "double", "u": "uuid"}), ["x", "u"])
    rng = random.Random(7)
    given = [(struct.unpack("<d", rng.randbytes(8))[0], rng.randbytes(16)) for _ in range(500)]
    builder = ManifestBuilder(layout.schema, layout.spec, snapshot_id=7)
    for number, values in enumerate(given):
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{tmp_path}/{number}.parquet",
            file_format=FileFormat.PARQUET,
            partition=Record(*values),
            record_count=1,
            file_size_in_bytes=1,
        )
        builder.add(file)
    manifest = builder.write(io, f"{tmp_path}/m.avro")
    found = [entry.data_file.partition for entry in manifest.fetch_manifest_entry(io)]
    assert [(repr(one[0]), one[1]) for one in found] == [(repr(x), u) for x, u in given]
    numbers = [x for x, _ in given if x == x]
    summaries = manifest.partitions or []
    bounds = [(summary.lower_bound, summary.upper_bound) for summary in summaries]
    assert bounds[0] == tuple(struct.pack("<d", bound) for bound in (min(numbers), max(numbers)))
    assert bounds[1] == (min(u for _, u in given), max(u for _, u in given))
    names = layout.spec.partition_to_path(Record(0.1, UUID(int=1).bytes), layout.schema)
    assert names == "x=0.1/u=00000000-0000-0000-0000-000000000001"


def test_every_process_with_file_access_reads_manifests_exactly() -> None:
    """pyiceberg itself does not."""
    program = """
import distop.lake.layout.model
from pyiceberg.avro import reader
for kind in (reader.DoubleReader, reader.UUIDReader):
    assert kind.read.__module__ == "distop.lake.pyiceberg_private"
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_summaries_without_room_in_a_result_are_read_from_the_manifest(tmp_path: Path, io: FileIO) -> None:
    """P4"""
    told = written(tmp_path, "a", ["m", "c"])
    untold = replace(told, summaries=None)
    assert adopt(io, untold, 0, 7).partitions == adopt(io, told, 0, 7).partitions


def test_manifests_of_other_versions_are_not_mixed(tmp_path: Path, io: FileIO) -> None:
    """C11: another header makes another joined manifest."""
    one, other = (open_manifest(io, written(tmp_path, name, ["m"])) for name in "ab")
    later = replace(other, meta={**other.meta, "added-by": "a later version"})
    assert [m.added_files_count for m in joined(io, tmp_path, [one, later])] == [1, 1]


def test_many_entries_make_few_blocks(tmp_path: Path, io: FileIO) -> None:
    """P4: entries are compressed together."""
    opened = open_manifest(io, written(tmp_path, "a", [f"k{i}" for i in range(500)]))
    assert sum(count for count, _ in opened.blocks) == 500
    assert len(opened.blocks) < 10


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "another"])
def test_a_damaged_manifest_is_never_published(tmp_path: Path, io: FileIO, damage: str) -> None:
    """C5, P2: cut short, changed, gone, or not the one its job reported."""
    manifest = written(tmp_path, "a", ["m", "n"])
    path = Path(manifest.path)
    content = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(content[:-20])
        case "flipped":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "missing":
            path.unlink()
        case "another":
            manifest = replace(manifest, files=3, rows=3)
    with pytest.raises(CorruptRecord, match=r"a\.avro"):
        open_manifest(io, manifest)
