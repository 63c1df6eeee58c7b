"""The list of what a write publishes."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.fs
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO, PyArrowLocalFileSystem

from distop.lake.iceberg.takeover import PreparedTask, write_list

TASKS = [PreparedTask(stem="a", result={"rows": 1})]


@pytest.mark.parametrize(("sweeps", "is_written"), [(0, True), (3, True), (9, False)])
def test_a_folder_that_is_swept_away_meanwhile_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sweeps: int, is_written: bool
) -> None:
    """What an earlier try has published is swept while another driver publishes it again."""
    left, path = sweeps, tmp_path / "write-w" / "list.json"

    def made_and_swept(filesystem: Any, folder: str, *, recursive: bool = True) -> None:
        nonlocal left
        pyarrow.fs.LocalFileSystem.create_dir(filesystem, folder, recursive=recursive)
        if left:
            left -= 1
            shutil.rmtree(folder)

    monkeypatch.setattr(PyArrowLocalFileSystem, "create_dir", made_and_swept, raising=False)
    if not is_written:
        with pytest.raises(FileNotFoundError):
            write_list(PyArrowFileIO(), str(path), TASKS)
        return
    write_list(PyArrowFileIO(), str(path), TASKS)
    assert msgspec.json.decode(path.read_bytes(), type=list[PreparedTask]) == TASKS
