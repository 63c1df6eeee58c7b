"""Stack traces that are kept in the table's storage."""

import os
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from distop.errors import Crashed, JobFailed
from distop.lake.storage import traces
from distop.lake.storage.traces import MAX_LETTERS, MOST_WRITTEN, OPERATIONS, PLACES, keep_trace, read_traces
from distop.metastore.records.operation import OperationArg
from distop.process.template import Template


def arg(location: object, instance: int = 1, **fields: Any) -> OperationArg:
    given = {"uuid": f"{location}/{instance}", "location": str(location), **fields}
    return OperationArg(table="t", type="audit", instance=instance, **given)


def raised(text: str = "boom") -> Exception:
    def in_user_code() -> None:
        raise KeyError(text)

    try:
        in_user_code()
    except KeyError as error:
        return error
    raise AssertionError


def kept(of: OperationArg) -> list[traces.StoredTrace]:
    return read_traces(of.location, {}, of.id, of.uuid)


def test_a_stored_trace_is_read_back(tmp_path: Path) -> None:
    operation = arg(tmp_path, object="a/b c")
    keep_trace(operation, raised(), partition="p/1", attempt="7-1")
    keep_trace(operation, raised("hook"))
    keep_trace(operation, JobFailed("says enough by itself"), partition="2")
    first, second = kept(operation)
    assert (first.partition, first.attempt, first.error) == ("p/1", "7-1", "KeyError: 'boom'")
    assert "in_user_code" in first.trace
    assert (second.partition, second.error) == ("", "KeyError: 'hook'")


def test_only_what_is_there_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_trace(arg(tmp_path), raised(), partition="p")
    opened, opens = list[str](), LocalFileSystem.open

    def counted(files: LocalFileSystem, path: str, *given: Any, **options: Any) -> Any:
        opened.append(path)
        return opens(files, path, *given, **options)

    monkeypatch.setattr(LocalFileSystem, "open", counted)
    assert kept(arg(tmp_path))
    assert len(opened) == 1


def test_an_exception_that_cannot_be_pickled_keeps_its_trace(tmp_path: Path) -> None:
    """Such as an exception of a class that a function has made."""
    program = "class Odd(Exception): pass\ndef in_user_code(): raise Odd('boom')\nin_user_code()"
    with closing(Template()) as template:
        worker = template.fork(int)
        with pytest.raises(Crashed, match="Odd: boom") as caught:
            worker.run(partial(exec, program, {}), limit_s=60.0)
        worker.end()
    operation = arg(tmp_path)
    keep_trace(operation, caught.value)
    (found,) = kept(operation)
    assert found.error == "Odd: boom"
    assert "in_user_code" in found.trace
    keep_trace(operation, Crashed("the process that ran it has died (7)"), partition="1")
    assert kept(operation) == [found]


def test_a_file_name_that_is_no_text_is_shown_as_text(tmp_path: Path) -> None:
    operation = arg(tmp_path)
    keep_trace(operation, FileNotFoundError(os.fsdecode(b"\xff.csv")))
    (found,) = kept(operation)
    assert found.error == r"FileNotFoundError: \udcff.csv"
    assert found.trace.rstrip().endswith(found.error)


def test_stored_traces_are_bounded_however_many_jobs_fail(tmp_path: Path) -> None:
    for instance in range(1, OPERATIONS + 6):
        operation = arg(tmp_path, instance)
        for partition in range(MOST_WRITTEN + 10):
            keep_trace(operation, raised("x" * 100_000), partition=str(partition))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) <= OPERATIONS * PLACES
    assert max(path.stat().st_size for path in files) < 3 * MAX_LETTERS
    assert len(traces._written) <= traces._REMEMBERED
    assert kept(operation)
    # Its place was taken by a later one, which is not shown as its own.
    assert kept(arg(tmp_path, 5)) == []


def test_a_storage_that_cannot_be_written_to_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    keep_trace(arg(tmp_path / "file"), raised(), partition="1")
    assert kept(arg(tmp_path / "nothing")) == []
