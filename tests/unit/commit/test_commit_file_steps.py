"""The contract of every commit step on files, on a disk, on S3, in memory, and between them."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distop.commit.contract import ExternalStep, StepState, default_registry
from distop.commit.execution import StepFailed, execute, undo
from distop.errors import LeadershipLost, OutcomeUnknown, PermanentStepError, StepConflict, StepSourceMissing
from distop.lake.plain.steps import DeleteFileArgument
from distop.lake.storage import moving
from distop.lake.storage.moving import ONE_PIECE_BYTES
from distop.lake.storage.stored_file import Md5Writer, StoredFile
from distop.metastore import crashpoints
from distop.metastore.records.operation import CommitSequence, StepRecord
from support.sources.s3 import S3
from support.types.step_worlds import CASES, TOKEN, World, across, rename, success

_memory = itertools.count()

WORLDS = ["disk", "s3", "memory", "disk to s3", "s3 to disk"]
ACROSS = ["disk to s3", "s3 to disk"]


on_disk_and_s3 = pytest.mark.parametrize("world", ["disk", "s3"], indirect=True)


def cases(*names: str, on_s3: Collection[str] = tuple(CASES)) -> pytest.MarkDecorator:
    """These cases on each file system, and renames also between two; on S3 only some of them."""
    chosen = names or tuple(CASES)
    among = dict.fromkeys(ACROSS, ("rename",)) | {"s3": on_s3}
    pairs = [(world, case) for world in WORLDS for case in chosen if case in among.get(world, chosen)]
    return pytest.mark.parametrize(("world", "case"), pairs, indirect=["world"])


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """A place to act on; ``aside`` is on another file system, where the name says so."""
    disk, memory = str(tmp_path), f"memory://w{next(_memory)}"
    if "s3" not in request.param:
        return World(f"file://{disk}") if request.param == "disk" else World(memory)
    s3: S3 = request.getfixturevalue("s3")
    bucket = f"{s3.url}/a folder"
    match request.param:
        case "disk to s3":
            return World(bucket, s3.storage, aside=f"file://{disk}/aside")
        case "s3 to disk":
            # The options of a table are those of its own file system; for another there is the environment.
            request.getfixturevalue("s3_in_environment")
            return World(disk, {"auto_mkdir": True}, aside=bucket)
    return World(bucket, s3.storage)


def step_of(record: StepRecord) -> ExternalStep:
    return default_registry().load_external(record)


def with_argument(record: StepRecord, **argument: Any) -> StepRecord:
    return StepRecord(step=record.step, argument={**record.argument, **argument})


@pytest.fixture
def disk(tmp_path: Path) -> World:
    return World(str(tmp_path))


def made(world: World, case: str) -> StepRecord:
    return across(world) if world.aside and case == "rename" else CASES[case](world)


def arm(monkeypatch: pytest.MonkeyPatch, plan: str) -> None:
    monkeypatch.setattr(crashpoints, "_PLAN", plan)


def run(world: World, *records: StepRecord, **options: Any) -> None:
    sequence = CommitSequence.of("t/k/3", "u1", records)
    execute(sequence, world.context, check=options.pop("check", lambda: None), **options)


# -- the contract ------------------------------------------------------------------------------------


@cases()
def test_a_file_step_executed_twice_changes_nothing(world: World, case: str) -> None:
    """C3, C4, C12: a file system of any kind, names of any kind."""
    record = made(world, case)
    if case != "mkdir" or not world.stored("x").is_object_store:
        assert step_of(record).verify(world.context) is StepState.NOT_DONE
    for _ in range(2):
        step_of(record).execute(world.context)
        assert step_of(record).verify(world.context) is StepState.DONE
    after = world.files()
    step_of(record).execute(world.context)
    run(world, record)
    assert world.files() == after
    assert not [name for name in after if "staged/1.csv" in name or "/.distop" in name]


@cases(on_s3=("rename", "rename over", "delete", "success"))
def test_a_file_step_cut_short_is_finished_by_the_next_execution(
    world: World, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4, C13: and looks as if nothing had happened."""
    kind = case.partition(" ")[0]
    parts = ("before", "middle", "after") if kind == "rename" else ("before", "after")
    ends = []
    for number, point in enumerate(["", *(f"step.{kind}.{part}" for part in parts)]):
        there = replace(world, url=f"{world.url}/{number}", aside=world.aside and f"{world.aside}/{number}")
        record = made(there, case)
        if kind == "mkdir" and there.stored("x").is_object_store:
            return
        if point:
            arm(monkeypatch, f"{point}=lost")
            with pytest.raises(OutcomeUnknown, match=point):
                step_of(record).execute(there.context)
            arm(monkeypatch, "")
        run(there, record)
        ends.append(there.files())
    assert len(ends) > 2
    assert all(end == ends[0] for end in ends)


@cases("rename", "mkdir", "success", on_s3=("rename", "success"))
def test_an_executed_file_step_can_be_undone(world: World, case: str) -> None:
    """P9: what was not, too; and again."""
    record = made(world, case)
    sequence = CommitSequence.of("t/k/3", "u1", [record])
    before = world.contents()
    for executed in (False, True):
        if executed:
            run(world, record)
        for _ in range(2):
            assert undo(sequence, world.context, check=lambda: None).left == []
        assert world.contents() == before


@cases("rename over", "delete")
def test_a_file_step_that_destroyed_something_says_that_it_cannot_be_undone(world: World, case: str) -> None:
    """C7"""
    record = made(world, case)
    run(world, record)
    after = world.files()
    assert not step_of(record).undo(world.context)
    assert world.files() == after


@cases(*(case for case in CASES if case != "mkdir"), on_s3=("rename", "delete"))
def test_nothing_is_changed_without_asking_whether_one_may(world: World, case: str) -> None:
    """O24: right before the act, after all looking and copying."""
    record = made(world, case)
    before = world.contents()

    with pytest.raises(LeadershipLost):
        step_of(record).execute(replace(world.context, check=Mock(side_effect=LeadershipLost)))
    assert world.contents() == before


@pytest.mark.parametrize("name", ["rename", "delete", "mkdir", "success", "unmark"])
@pytest.mark.parametrize("argument", [{}, {"path": 1}, {"path": "/x", "since": "2.0"}])
def test_an_argument_without_sense_fails_for_good(disk: World, name: str, argument: dict[str, Any]) -> None:
    """C11, U3: a field of a newer version is not ignored."""
    with pytest.raises(PermanentStepError, match=f"files.{name}") as caught:
        step_of(StepRecord(step=f"files.{name}", argument=argument)).verify(disk.context)
    assert not caught.value.retryable


# -- rename ------------------------------------------------------------------------------------------


@on_disk_and_s3
def test_a_target_with_other_content_is_not_taken_for_done(world: World) -> None:
    """C5: old, truncated or empty; of another size or of the same."""
    record = rename(world, target="final/1.csv")
    for wrong in (b"row", b"ROWS", b"", b"rows and more"):
        world.write("final/1.csv", wrong)
        for act in (step_of(record).verify, step_of(record).execute):
            with pytest.raises(StepConflict, match=r"final/1\.csv"):
                act(world.context)
        assert (world.read("final/1.csv"), world.read("staged/1.csv")) == (wrong, b"rows")
    run(world, with_argument(record, overwrite=True))
    assert (world.read("final/1.csv"), world.read("staged/1.csv")) == (b"rows", None)


@on_disk_and_s3
def test_source_and_target_both_missing_is_permanent(world: World) -> None:
    """C6: an error, not an endless retry; also when another file is at the target."""
    record = rename(world, target="final/1.csv", overwrite=True)
    world.stored("staged/1.csv").remove()
    for _ in range(2):
        with pytest.raises(StepSourceMissing, match=r"staged/1\.csv .*final/1\.csv"):
            step_of(record).execute(world.context)
        world.write("final/1.csv", b"old")
    with pytest.raises(StepFailed) as caught:
        run(world, record)
    assert isinstance(caught.value.cause, StepSourceMissing)
    assert world.read("final/1.csv") == b"old"


def test_a_source_that_is_not_what_was_written_is_not_published(world: World) -> None:
    """C5, C15: and leaves no partial target."""
    record = made(world, "rename")
    source, wrong = world.stored(record.argument["source"]), [b"row", b"rows+", b""]
    if world.aside or source.is_object_store:
        # Content is read, or its checksum is known. On one disk a rename looks at the size alone.
        wrong.append(b"R" * record.argument["size"])
    for now in wrong:
        world.write(source.url, now)
        before = world.contents()
        with pytest.raises(StepConflict, match="file to publish"):
            step_of(record).execute(world.context)
        assert world.contents() == before


@pytest.mark.parametrize("world", ["s3", "disk to s3"], indirect=True)
def test_an_object_written_in_parts_is_told_by_its_content(world: World) -> None:
    """C5: its ETag is no MD5, and another client may write ours anew."""
    data = os.urandom(ONE_PIECE_BYTES + 1)
    name = f"{world.aside}/big" if world.aside else "staged/big"
    record = rename(world, data, source=name, target="final/big")
    run(world, record)
    place = world.stored("final/big")
    with place.fs.open(place.path, "wb", block_size=6 << 20) as stream:
        stream.write(data)
    seen = place.existing()
    assert seen is not None
    assert not seen.md5
    assert step_of(record).verify(world.context) is StepState.DONE
    place.fs.pipe_file(place.path, data[::-1])
    with pytest.raises(StepConflict):
        step_of(record).verify(world.context)


@pytest.mark.parametrize("world", ACROSS, indirect=True)
def test_a_copy_that_fails_leaves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C15: the disk is full, the connection ends."""
    record = across(world)
    before = world.contents()

    digest = Mock()
    digest.update.side_effect = [None, OSError("no space left on device")]
    monkeypatch.setattr(moving, "READ_BYTES", 1000)
    monkeypatch.setattr(moving, "new_digest", lambda kind: digest)
    with pytest.raises(OSError, match="no space left"):
        step_of(record).execute(world.context)
    monkeypatch.undo()
    assert world.contents() == before
    run(world, record)


@pytest.mark.parametrize(
    ("world", "kind"), [("disk", "sha256"), ("s3", "sha256"), ("s3", "etag")], indirect=["world"]
)
def test_checksums_may_be_of_other_kinds(world: World, kind: str) -> None:
    """C5"""
    record = rename(world, target="final/1.csv")
    seen = world.stored("staged/1.csv").existing()
    assert seen is not None
    value = hashlib.sha256(b"rows").hexdigest() if kind == "sha256" else seen.version.partition(":")[2]
    step = step_of(with_argument(record, checksum=f"{kind}:{value}"))
    step.execute(world.context)
    assert step.verify(world.context) is StepState.DONE
    world.write("final/1.csv", b"ROWS")
    with pytest.raises(StepConflict):
        step.verify(world.context)
    with pytest.raises(PermanentStepError, match="'crc'"):
        step_of(with_argument(record, checksum=f"crc:{value}")).verify(world.context)


@on_disk_and_s3
def test_a_rename_to_itself_is_refused(world: World) -> None:
    """U3"""
    record = rename(world, target="staged/1.csv")
    with pytest.raises(PermanentStepError, match="itself"):
        step_of(record).verify(world.context)
    assert world.read("staged/1.csv") == b"rows"


def test_a_file_that_appears_before_the_move_is_not_overwritten(disk: World) -> None:
    """C5: on a disk the name is taken by a link, which fails if somebody was faster."""
    step = step_of(rename(disk, target="final/1.csv"))
    theirs = Mock(side_effect=lambda: disk.write("final/1.csv", b"theirs"))
    with pytest.raises(FileExistsError):
        step.execute(replace(disk.context, check=theirs))
    assert (disk.read("final/1.csv"), disk.read("staged/1.csv")) == (b"theirs", b"rows")


def test_a_process_that_was_overtaken_removes_nothing_that_the_faster_one_has_moved(tmp_path: Path) -> None:
    """C3: on a file system that renames and is no disk of this host, as HDFS."""
    world = World(f"local://{tmp_path}", {"auto_mkdir": True})
    step = step_of(rename(world, target="final/1.csv"))
    with pytest.raises(FileNotFoundError):
        step.execute(replace(world.context, check=lambda: step.execute(world.context)))
    assert world.read("final/1.csv") == b"rows"
    assert step.verify(world.context) is StepState.DONE


def test_names_that_only_a_disk_takes(tmp_path: Path) -> None:
    """C12: through the log's JSON and back."""
    world = World(f"file://{tmp_path}")
    for name in ("new\nline", "tab\t", "-rf", "~", "a\\b", "\x01", "ß" * 120):
        record = rename(world, source=f"staged/{name}", target=f"final/{name}/{name}")
        logged = msgspec.json.decode(msgspec.json.encode(record), type=StepRecord)
        run(world, logged)
        assert (tmp_path / "final" / name / name).read_bytes() == b"rows"
        assert os.listdir(tmp_path / "staged") == []


# -- delete, mkdir, _SUCCESS -------------------------------------------------------------------------


@on_disk_and_s3
def test_only_the_planned_file_is_deleted(world: World) -> None:
    """C14: a file that was written since is somebody's; the error names both."""
    argument = DeleteFileArgument.of(world.write("old", b"old"))
    assert argument is not None
    world.write("old", b"new")
    if world.stored("old").is_local:
        os.utime(world.stored("old").path, (1, 1))
    for act in ("verify", "execute"):
        with pytest.raises(StepConflict) as caught:
            getattr(step_of(argument.record()), act)(world.context)
        assert caught.value.details["planned"] != caught.value.details["found"]
    assert world.read("old") == b"new"
    assert DeleteFileArgument.of(world.stored("nothing")) is None


def test_a_folder_gets_its_permissions(disk: World, tmp_path: Path) -> None:
    """C15"""
    record = CASES["mkdir"](disk)
    run(disk, record)
    made_at = Path(record.argument["path"])
    assert made_at.stat().st_mode & 0o7777 == 0o750
    made_at.chmod(0o700)
    assert step_of(record).verify(disk.context) is StepState.NOT_DONE
    run(disk, record)
    assert made_at.stat().st_mode & 0o7777 == 0o750
    (tmp_path / "file").touch()
    with pytest.raises(StepConflict, match="is a file"):
        step_of(with_argument(record, path=str(tmp_path / "file"))).verify(disk.context)


@pytest.mark.parametrize("mode", ["", "0750"])
def test_a_folder_that_others_use_stays(disk: World, mode: str) -> None:
    """C7: of the operation nothing is left but permissions, which are not restored."""
    record = StepRecord(step="files.mkdir", argument={"path": f"{disk.url}/folder", "mode": mode})
    run(disk, record)
    disk.write("folder/theirs", b"theirs")
    assert step_of(record).undo(disk.context) is (not mode)
    assert disk.read("folder/theirs") == b"theirs"


@on_disk_and_s3
def test_a_marker_belongs_to_one_operation(world: World) -> None:
    """C15, C19"""
    record = success(world)
    run(world, record)
    assert world.read("day=1/_SUCCESS") == TOKEN.encode()
    other = replace(world.context, token="t/k/4/u2")
    for act in (step_of(record).verify, step_of(record).execute):
        with pytest.raises(StepConflict, match=r"'t/k/3/u1', .*'t/k/4/u2'"):
            act(other)
    assert step_of(record).undo(other), "there is nothing of this operation"
    assert world.read("day=1/_SUCCESS") == TOKEN.encode()


@on_disk_and_s3
@pytest.mark.parametrize("case", ["success over", "unmark"])
def test_a_marker_that_is_taken_back_stands_beside_no_other_files(world: World, case: str) -> None:
    """C7: the one it has replaced does not come back; nothing of the operation is left."""
    record = made(world, case)
    run(world, record)
    assert step_of(record).undo(world.context)
    assert world.read("day=1/_SUCCESS") is None


@on_disk_and_s3
def test_a_marker_of_the_operation_itself_is_not_taken_away(world: World) -> None:
    """C3, C4: it was written after the one before was removed."""
    record = CASES["unmark"](world)
    run(world, record)
    run(world, success(world))
    run(world, record)
    assert world.read("day=1/_SUCCESS") == TOKEN.encode()


# -- places ------------------------------------------------------------------------------------------


def test_a_writer_counts_and_sums_what_passes(tmp_path: Path) -> None:
    """C5: what a job records of a file it writes, with pyarrow too."""
    path = tmp_path / "1.parquet"
    with open(path, "wb") as stream:
        counted = Md5Writer(stream)
        pq.write_table(pa.table({"a": list(range(1000))}), counted)
        counted.flush()
    assert counted.content.checksum == f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"
    assert StoredFile(str(path)).holds(counted.content, StoredFile(str(path)).existing())
    assert counted.content.size == path.stat().st_size == counted.tell()
