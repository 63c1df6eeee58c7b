"""The commit step of Delta tables, on a disk and on S3."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from distop.commit.contract import StepContext, StepState
from distop.commit.execution import execute
from distop.errors import LeadershipLost, OutcomeUnknown, PermanentStepError, StepConflict, StepSourceMissing
from distop.lake.delta.commit import DeltaArgument, DeltaCommit, DeltaFile, application_of
from distop.lake.storage.storage import delta_options
from distop.metastore import crashpoints
from distop.metastore.records.operation import CommitSequence, OperationArg
from distop.metastore.records.record import convert
from distop.metastore.records.table import TableRecord
from support.refusals import refused
from support.sources.s3 import S3
from support.types.step_worlds import World

ROWS = pa.schema([("id", pa.int64()), ("kind", pa.string())])
SCHEMA: str = Schema.from_arrow(ROWS).to_json()


def operation(world: World, instance: int = 1, *, uuid: str = "table-1") -> StepContext:
    place: dict[str, Any] = {"location": world.url, "storage": world.storage}
    arg = OperationArg(table="t", type="ingest", instance=instance, uuid=f"u{instance}", **place)
    table = TableRecord(name="t", location=world.url, uuid=uuid)
    return StepContext(table=table, arg=arg, token=f"{arg.id}/{arg.uuid}")


@pytest.fixture(params=["disk", "s3"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    if request.param == "disk":
        return World(str(tmp_path))
    s3: S3 = request.getfixturevalue("s3")
    return World(f"{s3.url}/a folder", s3.storage)


@pytest.fixture
def disk(tmp_path: Path) -> World:
    return World(str(tmp_path))


def staged(world: World, name: str, ids: list[int], kind: str = "x y/z 🦆") -> DeltaFile:
    """A file of the table's folder that holds these ids."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": ids}), sink)
    data = sink.getvalue().to_pybytes()
    path = f"data/{name} 100%25 #1.parquet"
    world.write(f"table/{path}", data)
    told: dict[str, Any] = {"partition": {"kind": kind}, "stats": {"numRecords": len(ids)}}
    return DeltaFile(path=path, size=len(data), modified=1000, **told)


def commit_of(world: World, *files: DeltaFile, **options: Any) -> DeltaCommit:
    options = {"schema": SCHEMA, "partition_by": ["kind"], **options}
    record = DeltaArgument(table=f"{world.url}/table", files=list(files), **options).record()
    logged = msgspec.json.decode(msgspec.json.encode(record.argument))
    return DeltaCommit(logged)


def table_of(world: World) -> DeltaTable:
    url = f"{world.url}/table"
    return DeltaTable(url, storage_options=delta_options(url, world.storage))


def ids(world: World) -> list[int]:
    """All ids of the table, read from its files."""
    found: list[int] = []
    for path in pa.table(table_of(world).get_add_actions(flatten=True))["path"].to_pylist():
        # In the log of a Delta table paths are URLs, and escaped.
        held = world.read(f"table/{unquote(path)}")
        assert held is not None, path
        found += pq.read_table(pa.BufferReader(held))["id"].to_pylist()
    return sorted(found)


def test_commits_happen_once_however_often_they_are_executed(world: World) -> None:
    """C3, C12, C15: the first makes the table, others append or replace; names are odd."""
    first = commit_of(world, staged(world, "1", [1, 2]))
    assert first.verify(operation(world)) is StepState.NOT_DONE
    for _ in range(3):
        first.execute(operation(world))
        assert first.verify(operation(world)) is StepState.DONE
    second = commit_of(world, staged(world, "2", [3]))
    assert second.verify(operation(world, 2)) is StepState.NOT_DONE
    for _ in range(3):
        second.execute(operation(world, 2))
    assert ids(world) == [1, 2, 3]
    assert table_of(world).version() == 1
    over = commit_of(world, staged(world, "3", [9]), mode="overwrite")
    for _ in range(2):
        over.execute(operation(world, 3))
    assert ids(world) == [9]
    assert table_of(world).version() == 2
    assert table_of(world).history(1)[0]["distop.operation"] == "t/ingest/3"


def test_columns_that_the_files_bring_are_added_once(world: World) -> None:
    """C3, C15: in the version right before that of the rows, however often the step is executed."""
    commit_of(world, staged(world, "1", [1])).execute(operation(world))
    wider: str = Schema.from_arrow(ROWS.append(pa.field("fare", pa.float64()))).to_json()
    with pytest.raises(StepConflict, match="fare"):
        commit_of(world, staged(world, "2", [2]), schema=wider).execute(operation(world, 2))
    for number in (2, 3):
        for _ in range(2):
            step = commit_of(world, staged(world, f"{number}", [number]), schema=wider, adds=["fare"])
            step.execute(operation(world, number))
    assert ids(world) == [1, 2, 3]
    assert table_of(world).version() == 3
    # An operation that began before the column was there.
    commit_of(world, staged(world, "4", [4])).execute(operation(world, 4))
    assert ids(world) == [1, 2, 3, 4]
    assert [field.name for field in table_of(world).schema().fields] == ["id", "kind", "fare"]


@pytest.mark.parametrize("point", ["before", "after"])
def test_a_commit_cut_short_is_finished(world: World, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4: done and nobody knows it, or not done."""
    step = commit_of(world, staged(world, "1", [1]))
    monkeypatch.setattr(crashpoints, "_PLAN", f"step.delta.{point}=lost")
    with pytest.raises(OutcomeUnknown):
        step.execute(operation(world))
    monkeypatch.undo()
    record = DeltaArgument.record(convert(step.argument, DeltaArgument))
    sequence = CommitSequence.of("t/ingest/1", "u1", [record])
    for _ in range(2):
        execute(sequence, operation(world), check=lambda: None)
    assert ids(world) == [1]
    assert table_of(world).version() == 0


def test_a_process_that_slept_through_a_later_operation_commits_nothing(disk: World) -> None:
    """O24: a later instance has the table; this one was resolved in some other way."""
    old = commit_of(disk, staged(disk, "1", [1]))
    commit_of(disk, staged(disk, "2", [2])).execute(operation(disk, 2))
    old.execute(operation(disk, 1))
    assert ids(disk) == [2]


def test_a_table_that_was_made_anew_counts_anew(disk: World) -> None:
    """C19: under the same name, in the same folder."""
    commit_of(disk, staged(disk, "1", [1])).execute(operation(disk, 5))
    step = commit_of(disk, staged(disk, "2", [2]))
    again = operation(disk, 1, uuid="table-2")
    assert application_of(again) != application_of(operation(disk, 1))
    step.execute(again)
    assert ids(disk) == [1, 2]


@pytest.mark.parametrize("existing", [True, False])
def test_one_commit_executed_by_many_at_once_happens_once(disk: World, existing: bool) -> None:
    """C3, O24: leaders that do not know of each other."""
    if existing:
        commit_of(disk, staged(disk, "0", [0])).execute(operation(disk, 1))
    step = commit_of(disk, staged(disk, "1", [1]))
    together = threading.Barrier(6, timeout=30)

    def one(_: int) -> None:
        together.wait()
        DeltaCommit(step.argument).execute(operation(disk, 2))

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(one, range(6)))
    assert ids(disk) == ([0, 1] if existing else [1])


def test_other_writers_are_appended_to_and_replaced(disk: World) -> None:
    """P6, P7: a foreign commit in between makes the try fail and the next one build on it."""
    commit_of(disk, staged(disk, "1", [1])).execute(operation(disk, 1))

    def foreign() -> None:
        if not met:
            met.append(True)
            rows = pa.table({"id": [50], "kind": ["k"]}, schema=ROWS)
            write_deltalake(f"{disk.url}/table", rows, mode="append")

    for mode, instance, expected in (("append", 2, 3), ("overwrite", 3, 1)):
        met: list[bool] = []
        step = commit_of(disk, staged(disk, mode, [instance]), mode=mode)
        step.execute(replace(operation(disk, instance), check=foreign))
        assert met
        assert len(table_of(disk).file_uris()) == expected


def test_a_table_that_has_moved_is_refused_where_that_was_asked_for(disk: World) -> None:
    """P6"""
    commit_of(disk, staged(disk, "1", [1]), expected_version=-1).execute(operation(disk, 1))
    commit_of(disk, staged(disk, "2", [2]), expected_version=0).execute(operation(disk, 2))
    for wrong in (-1, 0, 7):
        with refused(error=StepConflict, planned=wrong, found=1):
            commit_of(disk, staged(disk, "3", [3]), expected_version=wrong).execute(operation(disk, 3))
    assert ids(disk) == [1, 2]


def test_columns_are_added_to_a_table_that_must_be_without_files(disk: World) -> None:
    """C3, C4, P6: the version that adds them is not held against the step, also not after a crash."""
    write_deltalake(f"{disk.url}/table", ROWS.empty_table(), partition_by=["kind"])
    wider: str = Schema.from_arrow(ROWS.append(pa.field("fare", pa.float64()))).to_json()
    options: dict[str, Any] = {"schema": wider, "adds": ["fare"], "expected_version": 0}
    step = commit_of(disk, staged(disk, "1", [1]), **options)
    second_fails = Mock(side_effect=[None, LeadershipLost])
    with pytest.raises(LeadershipLost):
        step.execute(replace(operation(disk), check=second_fails))
    assert (table_of(disk).version(), ids(disk)) == (1, [])
    for _ in range(2):
        step.execute(operation(disk))
    assert (table_of(disk).version(), ids(disk)) == (2, [1])
    with refused(error=StepConflict, planned=0, found=2):
        commit_of(disk, staged(disk, "2", [2]), **options).execute(operation(disk, 2))


def test_files_that_do_not_fit_are_refused(disk: World) -> None:
    """U3: for good."""
    commit_of(disk, staged(disk, "1", [1])).execute(operation(disk, 1))
    other: str = Schema.from_arrow(pa.schema([("id", pa.string()), ("more", pa.int64())])).to_json()
    file = staged(disk, "2", [2])
    with pytest.raises(StepConflict, match="id, more"):
        commit_of(disk, file, schema=other).execute(operation(disk, 2))
    with pytest.raises(StepConflict, match="partitioned by"):
        commit_of(disk, file, partition_by=[]).execute(operation(disk, 2))
    with pytest.raises(PermanentStepError, match="schema"):
        commit_of(disk, file, schema="{").execute(operation(disk, 2))
    assert ids(disk) == [1]


def test_many_files_stand_in_lists(world: World) -> None:
    """C16: written by the jobs; the log only names them."""
    files = [staged(world, str(n), [n]) for n in range(4)]
    for n in (0, 1):
        lines = b"\n".join(msgspec.json.encode(file) for file in files[2 * n : 2 * n + 2])
        world.write(f"lists/{n} 🦆.jsonl", lines + b"\n")
    lists = {"lists": ["0 🦆.jsonl", "1 🦆.jsonl"], "folder": f"{world.url}/lists"}
    commit_of(world, **lists).execute(operation(world))
    assert ids(world) == [0, 1, 2, 3]
    world.stored("lists/1 🦆.jsonl").remove()
    with pytest.raises(StepSourceMissing, match="is gone"):
        commit_of(world, **lists).execute(operation(world, 2))
    world.write("lists/1 🦆.jsonl", b'{"path": 1}')
    with pytest.raises(PermanentStepError, match="not a list of files"):
        commit_of(world, **lists).execute(operation(world, 2))


def test_nothing_is_committed_without_asking(disk: World) -> None:
    """O24"""

    step = commit_of(disk, staged(disk, "1", [1]))
    with pytest.raises(LeadershipLost):
        step.execute(replace(operation(disk), check=Mock(side_effect=LeadershipLost)))
    assert step.verify(operation(disk)) is StepState.NOT_DONE
    assert step.undo(operation(disk))
    step.execute(operation(disk))
    assert not step.undo(operation(disk))
    assert ids(disk) == [1]
