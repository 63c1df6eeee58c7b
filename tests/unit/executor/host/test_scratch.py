"""Folders of attempts on a worker's disk: whose they are, and what the next attempt finds."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from distop.errors import Cancelled
from distop.executor.host import scratch as module
from distop.executor.host.scratch import NOTE, Scratch, read_note
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.metastore.records.names import OperationId

OPERATION = OperationId("flights", "audit", 1)


@pytest.fixture
def place(tmp_path: Path) -> SidecarFolder:
    return SidecarFolder(tmp_path / "place")


@pytest.fixture
def scratch(place: SidecarFolder) -> Scratch:
    return Scratch(place)


def leave(scratch: Scratch, claim: int = 5, checkpoint: bytes | None = None) -> Path:
    """An attempt that leaves a file behind; its folder."""
    folder = scratch.kept(OPERATION, "a/b", f"7-s-{claim}", claim, checkpoint)
    (folder / "part").write_text("half")
    return folder


def test_private_folders_are_of_one_attempt_each(scratch: Scratch) -> None:
    one = scratch.private(OPERATION, "0", "7-a-1")
    other = scratch.private(OPERATION, "0", "7-a-2")
    (one / "part").write_text("x")
    assert list(other.iterdir()) == []
    scratch.remove(OPERATION, "0", "7-a-1")
    assert not one.exists()
    assert other.exists()


def test_threads_that_begin_at_the_same_time_do_not_meet(tmp_path: Path) -> None:
    """Jobs of an executor without Spark are threads of one process."""
    threads, rounds = 6, 40
    barrier = Barrier(threads)

    def begin(number: int) -> None:
        for turn in range(rounds):
            barrier.wait(20)
            Scratch(SidecarFolder(tmp_path / f"{turn}")).private(OPERATION, "0", f"7-a-{number}")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(begin, range(threads)))
    assert len(list(tmp_path.glob("*/scratch/*/*/a-*"))) == threads * rounds


def test_folders_are_for_this_user_alone(scratch: Scratch, place: SidecarFolder) -> None:
    for folder in (scratch.private(OPERATION, "0", "7-a-1"), leave(scratch), place.scratch.parent):
        assert folder.stat().st_mode & 0o077 == 0


def test_the_next_attempt_takes_over_what_was_left(scratch: Scratch) -> None:
    """O14: and the one before writes nowhere any more."""
    before = leave(scratch)
    after = scratch.kept(OPERATION, "a/b", "7-s-6", 6, None)
    assert (after / "part").read_text() == "half"
    with pytest.raises(FileNotFoundError):
        (before / "late").write_text("x")


def test_an_attempt_that_lost_its_claim_takes_nothing_from_a_later_one(scratch: Scratch) -> None:
    """O10"""
    later = leave(scratch, claim=6)
    with pytest.raises(Cancelled):
        scratch.kept(OPERATION, "a/b", "7-s-5", 5, None)
    assert (later / "part").exists()


def test_scratch_behind_the_checkpoint_of_another_host_is_not_taken_over(scratch: Scratch) -> None:
    folder = leave(scratch)
    scratch.made_up_to(folder, "a/b", b"1")
    after = scratch.kept(OPERATION, "a/b", "7-s-6", 6, b"2")
    assert list(after.iterdir()) == []
    assert not folder.exists()


@pytest.mark.parametrize("stands", [b"1", b"2"])
def test_a_save_whose_outcome_is_unknown_keeps_the_folder(scratch: Scratch, stands: bytes) -> None:
    """It died between the two: whichever checkpoint is in etcd, the folder belongs to it."""
    folder = leave(scratch)
    scratch.made_up_to(folder, "a/b", b"1", b"2")
    after = scratch.kept(OPERATION, "a/b", "7-s-6", 6, stands)
    assert (after / "part").exists()


def test_a_late_note_of_an_attempt_whose_folder_is_taken_over_changes_nothing(scratch: Scratch) -> None:
    before = leave(scratch)
    after = scratch.kept(OPERATION, "a/b", "7-s-6", 6, None)
    scratch.made_up_to(before, "a/b", b"late")
    note = read_note(after.parent)
    assert note is not None
    assert note.checkpoints == [""]


def test_scratch_from_before_a_crash_of_the_host_is_not_taken_over(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(scratch)
    monkeypatch.setattr(module, "_boot_id", lambda: "another")
    assert list(scratch.kept(OPERATION, "a/b", "7-s-6", 6, None).iterdir()) == []


def test_a_torn_note_is_nobodys(scratch: Scratch) -> None:
    folder = leave(scratch)
    (folder.parent / NOTE).write_text('{"part')
    assert list(scratch.kept(OPERATION, "a/b", "7-s-6", 6, None).iterdir()) == []


def test_names_of_any_length_have_folders(scratch: Scratch) -> None:
    """O29"""
    long = "p" * 500
    assert scratch.private(OperationId("t" * 500, "audit", 1, "o" * 500), long, "7-a-1").is_dir()


def test_a_job_that_is_done_leaves_nothing(scratch: Scratch) -> None:
    folder = leave(scratch)
    scratch.remove(OPERATION, "a/b")
    assert not folder.parent.exists()
