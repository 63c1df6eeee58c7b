"""Publishing into a tree of plain files: what is planned, and what it comes to when it is executed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.types import NestedField, StringType

from distop.errors import BadRow, CorruptRecord, InvalidArgument, LocationInUse, TableNotEmpty
from distop.lake.layout.evolution import evolved
from distop.lake.layout.model import Layout
from distop.lake.layout.partitioning import PartitionValues, escaped, named_values
from distop.lake.layout.schemas import parse_schema
from distop.lake.layout.staging import take_folder
from distop.lake.plain.publish import FilesHead, FilesPublish
from distop.lake.rows import FilesOutput
from distop.lake.storage.storage import file_system
from distop.lake.writing import file_lists
from distop.metastore.etcd.txn import KeyValue, Put
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head
from support.refusals import refused
from support.sources.s3 import S3
from support.tables.plain_tables import PlainTable
from support.tables.publishing import ROWS, rows


@pytest.fixture(params=["disk", "s3"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> PlainTable:
    if request.param == "disk":
        return PlainTable(f"file://{tmp_path}/a tree", {})
    s3: S3 = request.getfixturevalue("s3")
    return PlainTable(f"{s3.url}/tree", s3.storage)


def test_files_come_into_partition_folders_and_the_marker_is_last(tree: PlainTable) -> None:
    """C5, C16, P5: on a disk and on an object store, twice in a row."""
    tree.publish(rows(0, 30), rows(30, 30))
    assert tree.ids() == list(range(60))
    assert {name.partition("/")[0] for name in tree.names()} == {"kind=k0", "kind=k1", "kind=k2"}
    tree.publish(rows(60, 4, kinds=1), mode="overwrite_partitions")
    assert tree.ids() == sorted([i for i in range(60) if i % 3] + list(range(60, 64)))
    tree.publish(rows(100, 3), mode="overwrite")
    assert tree.ids() == [100, 101, 102]
    fs, root = file_system(tree.location, tree.storage)
    assert fs.cat_file(f"{root}/_SUCCESS") == b"t/ingest/3"


@pytest.mark.parametrize("mode", ["append", "overwrite", "overwrite_partitions"])
def test_no_marker_stands_beside_a_part_of_an_operation(tree: PlainTable, mode: str) -> None:
    """C4, C7: the old marker is removed first, the new one comes last, whichever process continues."""
    fs, root = file_system(tree.location, tree.storage)
    tree.publish(rows(0, 30))
    before = tree.names()
    arg, steps = tree.planned(rows(30, 30), mode=mode)
    for step in steps[:-1]:
        tree.execute(arg, [step])
        assert not fs.exists(f"{root}/_SUCCESS"), step
    assert tree.names() != before
    tree.execute(arg, steps)
    tree.execute(arg, steps)
    assert fs.cat_file(f"{root}/_SUCCESS") == b"t/ingest/2"


def test_an_abort_leaves_nothing_in_use(tree: PlainTable) -> None:
    """C7, C10: what is not counted as undone keeps the operation from being swept."""
    arg, steps = tree.planned(rows(0, 30))
    tree.execute(arg, steps)
    assert tree.undo(arg, steps) == []
    assert tree.names() == []
    tree.publish(rows(0, 30))
    arg, steps = tree.planned(rows(30, 30))
    tree.execute(arg, steps)
    assert tree.undo(arg, steps) == [], "the marker of the first operation is lost, and not in use"
    assert tree.ids() == list(range(30))


def test_a_tree_without_partitions_is_as_before_after_an_abort(tmp_path: Path) -> None:
    """C7, C10: its folder holds the folders of all operations."""
    tree = PlainTable(f"file://{tmp_path}/tree", {}, ())
    arg, steps = tree.planned(rows(0, 30))
    tree.execute(arg, steps)
    assert tree.undo(arg, steps) == []
    assert tree.names() == []


def test_marker_then_folders_then_renames_then_deletions_then_the_marker(tmp_path: Path) -> None:
    """C7, C16: what replaces is there before what is replaced goes; all are steps of the log."""
    tree = PlainTable(f"file://{tmp_path}/tree", {})
    tree.publish(rows(0, 30))
    _, steps = tree.planned(rows(30, 30), mode="overwrite")
    assert [(step.step, step.stage) for step in steps] == [
        ("files.unmark", 0),
        *[("files.mkdir", 1)] * 3,
        *[("files.rename", 2)] * 3,
        *[("files.delete", 3)] * 3,
        ("files.success", 4),
    ]


def test_folders_of_partitions_that_are_gone_go_with_their_files(tmp_path: Path) -> None:
    """P5, C4: also those that an execution which died has left empty; others, and the table's, stay."""
    tree = PlainTable(f"file://{tmp_path}/tree", {}, ("kind", "truncate[1](id)"))
    tree.publish(rows(0, 3))
    (tmp_path / "tree/kind=k1/_theirs").touch()
    arg, steps = tree.planned(rows(3, 1, kinds=1), mode="overwrite")
    for kind in ("k0", "k2"):
        (file,) = (tmp_path / f"tree/kind={kind}").rglob("*.parquet")
        file.unlink()
    file.parent.rmdir()
    tree.execute(arg, steps)
    left = {path.parent for path in (tmp_path / "tree").rglob("*.parquet")}
    assert set((tmp_path / "tree").glob("kind=*/*=*")) == left
    assert {path.name for path in (tmp_path / "tree").glob("kind=*")} == {"kind=k0", "kind=k1"}
    tree.execute(*tree.planned(rows(0, 0), mode="overwrite"))
    assert (tmp_path / "tree").is_dir()
    assert not (tmp_path / "tree/kind=k0").exists()


def test_nothing_written_is_nothing_to_do(tmp_path: Path) -> None:
    """P10."""
    tree = PlainTable(f"file://{tmp_path}/tree", {})
    assert tree.planned(rows(0, 0))[1] == []
    tree.publish(rows(0, 5))
    steps = [step.step for step in tree.planned(rows(0, 0), mode="overwrite")[1]]
    assert steps == ["files.unmark", *["files.delete"] * 3, "files.success"]


@pytest.mark.parametrize("mode", ["error_if_exists", "ignore"])
def test_files_that_turned_up_meanwhile_refuse_modes_for_empty_trees(tmp_path: Path, mode: str) -> None:
    """P5, P6."""
    tree = PlainTable(f"file://{tmp_path}/tree", {})
    assert tree.planned(rows(0, 5), mode=mode)[1]
    (tmp_path / "tree" / "theirs.parquet").write_text("x")
    with pytest.raises(TableNotEmpty, match=r"theirs\.parquet"):
        tree.planned(rows(0, 5), mode=mode)


@pytest.mark.parametrize("mode", ["overwrite", "overwrite_partitions"])
def test_files_of_another_table_are_not_replaced(tmp_path: Path, mode: str) -> None:
    """S2, P5: those of a table in the folder that a link leads to."""
    (tmp_path / "here").symlink_to(tmp_path / "tree")
    (tmp_path / "tree").mkdir()
    tree = PlainTable(f"file://{tmp_path}/here", {})
    take_folder(f"{tree.location}/other", "of another installation")
    with refused("location", "has in it", LocationInUse):
        tree.planned(rows(0, 3), mode=mode)


@pytest.mark.parametrize("mode", ["overwrite", "overwrite_partitions"])
def test_what_a_link_in_the_tree_leads_to_is_not_replaced(tmp_path: Path, mode: str) -> None:
    """S2, P5"""
    for folder in ("other", "tree"):
        (tmp_path / folder).mkdir()
    (tmp_path / "other" / "file").touch()
    (tmp_path / "tree" / "kind=k0").symlink_to(tmp_path / "other")
    _, steps = PlainTable(f"file://{tmp_path}/tree", {}).planned(rows(0, 3), mode=mode)
    assert steps
    assert not any("kind=k0/file" in str(step.argument) for step in steps)


def test_a_list_too_long_for_a_record_lies_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1, O5: and one that is missing or cut short is reported, never taken for nothing (C6)."""
    tree = PlainTable(f"file://{tmp_path}/tree", {}, ())
    arg = tree.start()
    short = tree.run(arg, "0", rows(0, 5))
    assert "listed" in short.result
    monkeypatch.setattr(file_lists, "MAX_INLINE_BYTES", 10)
    long = tree.run(arg, "0", rows(0, 5))
    path = tmp_path / "tree" / "_distop" / f"ingest-{arg.uuid}" / long.result["manifest"]

    def steps() -> int:
        return len(FilesPublish().expand(tree.context(arg, {"0": long})))

    assert steps() == len(["mkdir", "rename", "success"])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptRecord):
        steps()
    path.unlink()
    with pytest.raises(CorruptRecord, match="is gone"):
        steps()


@pytest.mark.parametrize("damage", [{"listed": None}, {"files": 2}, {"listed": [["x"]]}])
def test_a_damaged_record_is_reported(tmp_path: Path, damage: dict[str, Any]) -> None:
    """C11: rows are not lost silently."""
    tree = PlainTable(f"file://{tmp_path}/tree", {}, ())
    arg = tree.start()
    record = tree.run(arg, "0", rows(0, 5))
    record.result.update(damage)
    if record.result["listed"] is None:
        del record.result["listed"]
    with pytest.raises(CorruptRecord):
        FilesPublish().expand(tree.context(arg, {"0": record}))


def test_folders_are_named_as_spark_names_them() -> None:
    """C12. What Spark itself writes is compared in tests/system/spark."""
    odd = "a/b c=d%e:f?{g[h]i^j\\k\"l'm*n#"
    assert escaped(odd) == "a%2Fb c%3Dd%25e%3Af%3F%7Bg%5Bh%5Di%5Ej%5Ck%22l%27m%2An%23"
    assert escaped("\x01\n\x7f") == "%01%0A%7F"
    assert escaped("日本 é }") == "日本 é }"
    columns = parse_schema(["d: date", "t: timestamp", "b: boolean", "s: string", "n: int"])
    layout = Layout.create(columns, ["d", "t", "b", "s"])
    values = PartitionValues(layout.schema, layout.spec)
    assert values.folder((19000, 1_600_000_000_000_000, True, "")) == (
        "d=2022-01-08/t=2020-09-13 12%3A26%3A40/b=true/s=__HIVE_DEFAULT_PARTITION__"
    )
    assert values.folder((None, None, None, None)).count("__HIVE_DEFAULT_PARTITION__") == 4


def test_partitions_of_uuids_have_their_usual_text_and_bytes_cannot_name_a_folder() -> None:
    columns = parse_schema(["u: uuid", "b: binary", "f: fixed[3]", "n: int"])
    layout = Layout.create(columns, ["u"])
    FilesOutput().check(layout)
    key = UUID(int=7)
    for value in (key, key.bytes):
        assert PartitionValues(layout.schema, layout.spec).folder((value,)) == f"u={key}"
    for term in ("b", "f", "truncate[2](b)"):
        with pytest.raises(InvalidArgument, match="cannot name a folder"):
            FilesOutput().check(Layout.create(columns, [term]))
    FilesOutput().check(Layout.create(columns, ["bucket[4](b)"]))


def test_folders_name_the_values_that_were_written() -> None:
    columns = parse_schema(["d: date", "s s: string", "n: int"])
    layout = Layout.create(columns, ["d", "s s"])
    values = PartitionValues(layout.schema, layout.spec)
    for key in ((19000, "a/b c=d%e:é"), (None, None)):
        named = named_values(f"s3://bucket/top/{values.folder(key)}/x=1.parquet")
        assert list(named.items()) == list(zip(("d", "s s"), values.texts(key), strict=True))
    with pytest.raises(InvalidArgument, match="two values for 'd'"):
        named_values("d=1/d=2/a.csv")
    with pytest.raises(InvalidArgument, match=r"'d' .*not UTF-8"):
        named_values("d=%FF/a.csv")


def test_an_empty_text_is_no_partition(tmp_path: Path) -> None:
    """Readers would take it for NULL."""
    tree = PlainTable(f"file://{tmp_path}/tree", {})
    arg = tree.start()
    tree.run(arg, "0", pa.record_batch({"id": [1, 2], "kind": [None, "a"]}, ROWS))
    for kind in (pa.array(["a", ""]), pa.array(["a", ""]).dictionary_encode()):
        with pytest.raises(BadRow, match=r"'kind': .*empty text"):
            tree.run(arg, "0", pa.record_batch({"id": pa.array([1, 2], pa.int64()), "kind": kind}))


def test_a_table_of_partition_columns_alone_is_refused() -> None:
    """U3."""
    with refused("partition_by", "all columns"):
        FilesOutput().check(Layout.create(pa.schema([("a", pa.int32())]), ["a"]))


def test_the_columns_of_a_tree_grow_on_what_they_are_by_then(tmp_path: Path) -> None:
    """P6: two operations that add columns, and one that began before."""
    tree = PlainTable(f"file://{tmp_path}/tree", {}, ())
    text = [NestedField(0, name, StringType()) for name in ("a", "b", "a")]
    layouts = [evolved(tree.layout, [text[0], text[1]]), evolved(tree.layout, [text[2]]), (tree.layout, None)]
    head = KeyValue.missing(Keyspace().table("t").head)
    names = []
    for layout, evolution in [(tree.layout, None), *layouts]:
        arg = tree.start()
        arg.argument.update(layout=layout.to_json(), evolution=msgspec.to_builtins(evolution))
        context = replace(tree.context(arg, {}), head=head)
        (put,) = FilesHead().prepare(context).txn.then
        assert isinstance(put, Put)
        head = KeyValue(put.key, put.value, 7, 7)
        names.append(Layout.from_json(decode(put.value, Head).layout).schema.column_names)
    assert names == [["id", "kind"], *[["id", "kind", "a", "b"]] * 3]
