"""Folders of sidecars: which are safe to use, and which are removed."""

import os
import time
from pathlib import Path

import pytest

from distop.errors import PreconditionFailed
from distop.executor.host.sidecar_folder import (
    BASE_VARIABLE,
    IDLE_S,
    IDLE_WITH_SCRATCH_S,
    SidecarFolder,
    sweep_folders,
    take_lock,
)
from distop.metastore.records.names import OperationId


def place(base: Path, prefix: str = "distOp") -> SidecarFolder:
    return SidecarFolder.of(("127.0.0.1:2379",), prefix, environ={BASE_VARIABLE: str(base)}).prepare()


def test_a_folder_that_was_chosen_by_hand_may_lie_anywhere(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    SidecarFolder(tmp_path / "mine").prepare()
    assert (tmp_path / "mine").stat().st_mode & 0o077 == 0


def test_a_folder_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o755)
    with pytest.raises(PreconditionFailed):
        SidecarFolder(tmp_path / "mine").prepare()
    place(tmp_path).folder.parent.chmod(0o755)
    with pytest.raises(PreconditionFailed):
        place(tmp_path)


def test_folders_of_dead_installations_are_removed(tmp_path: Path) -> None:
    """O14"""
    own, dead = place(tmp_path), place(tmp_path, "dead")
    dead.log.write_text("it was here")
    (own.folder.parent / "something").mkdir()
    assert sweep_folders(own) == []
    later = time.time() + IDLE_S + 60
    assert sweep_folders(own, now=later) == [dead.folder]
    assert sorted(path.name for path in own.folder.parent.iterdir()) == [own.folder.name, "something"]


def test_a_folder_with_scratch_is_kept_longer(tmp_path: Path) -> None:
    own, dead = place(tmp_path), place(tmp_path, "dead")
    dead.scratch_of(OperationId("flights", "audit", 1))
    assert sweep_folders(own, now=time.time() + IDLE_S + 60) == []
    assert sweep_folders(own, now=time.time() + IDLE_WITH_SCRATCH_S + 60) == [dead.folder]


@pytest.mark.parametrize("name", ["starting", "service", "serving"])
def test_a_folder_that_is_served_is_kept(tmp_path: Path, name: str) -> None:
    own, other = place(tmp_path), place(tmp_path, "other")
    lock = take_lock(other.folder / f"{name}.lock")
    assert lock is not None
    assert sweep_folders(own, now=time.time() + IDLE_S + 60) == []
    os.close(lock)


def test_nothing_is_removed_beside_a_folder_chosen_by_hand(tmp_path: Path) -> None:
    own = SidecarFolder(tmp_path / "mine").prepare()
    (tmp_path / "0123456789abcdef").mkdir()
    assert sweep_folders(own, now=time.time() + IDLE_S + 60) == []


def test_a_sweep_that_was_killed_is_ended_by_the_next(tmp_path: Path) -> None:
    own = place(tmp_path)
    (own.folder.parent / ".dead-0123456789abcdef-17" / "scratch").mkdir(parents=True)
    sweep_folders(own)
    assert list(own.folder.parent.iterdir()) == [own.folder]
