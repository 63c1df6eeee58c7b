"""Which files of the paths are new, and how many of them one ingest takes: one with ``new_only``. Pure.

Every file then has a watermark of its own, and a file with a watermark is not read again, even if it changes.
The watermark belongs to the file's folder, however the paths were written: two operations that read the same
file move the same watermark, and only one of them can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from distop.errors import AlreadyIngested
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.watermarks import Entry, Marks, position, upwards
from distop.sources.formats.files import FoundSource, SourceFile
from distop.spark_jobs.ingest.plan import FileEntry
from distop.spark_jobs.ingest.watermarks import newest

MAX_TAKEN = 10_000
"""Most files that one ingest takes."""
MAX_ENTRY_BYTES = 850_000
"""Most bytes of these files in the plan, as JSON, which includes the layout: see ``plan.MAX_PLAN_BYTES``."""
MAX_RECORDED_BYTES = 1_200_000
"""Most bytes of them in the plan and in the moves, which one transaction of etcd records."""


@dataclass(frozen=True, slots=True)
class NewFiles:
    """What is left of a source.

    Parameters
    ----------
    found:
        The new files, each a path of its own: by name, the first that one operation can record.
    moves:
        As those of :func:`.watermarks.watermark_moves`.
    skipped:
        How many files were ingested before.
    remaining:
        How many new files are left to a later ingest.
    """

    found: FoundSource
    moves: dict[str, dict[str, WatermarkMove]]
    skipped: int
    remaining: int


def new_files(
    found: FoundSource, standing: Mapping[str, Mapping[str, str]], source: str | None = None
) -> NewFiles:
    """Exclude what was ingested before: files that have a watermark, and those that are not newer than the
    watermark of a folder that contains them.

    Parameters
    ----------
    standing:
        All watermarks of the table.
    source:
        Name of the source, instead of the folder of each file.

    Raises
    ------
    AlreadyIngested
        A folder has a watermark that is not a time, so it is unknown which of its files are new.
    InvalidArgument
        The file system does not report modification times.
    """
    name, marks = source or found.url, Marks.of(standing)
    if source is None:
        marks.look_around(f"{name}/{file.path}" for file in found.files)
    else:
        paths = {path for file in found.files for path in upwards(file.path)}
        marks.chunks.know(position(source, path) for path in paths)

    def around(file: SourceFile) -> list[Entry]:
        if source is None:
            return marks.around(f"{name}/{file.path}")
        found = ((source, path, marks.value(source, path)) for path in upwards(file.path))
        return [(at, path, value) for at, path, value in found if value is not None]

    new = [file for file in found.files if not _ingested(name, file, around(file))]
    moves = _first_moves(source, found.url, sorted(new, key=lambda file: file.path))
    taken = {file.path: [file] for file in new if file.path in moves}
    return NewFiles(
        FoundSource(found.url, dict(sorted(taken.items()))),
        {name: moves},
        skipped=len(found.files) - len(new),
        remaining=len(new) - len(taken),
    )


def _first_moves(source: str | None, url: str, files: list[SourceFile]) -> dict[str, WatermarkMove]:
    """The moves of the first files, as many as one operation can record; see :func:`by_folder`."""
    moves: dict[str, WatermarkMove] = {}
    folders = set[str]()
    entries = recorded = 0
    for file in files[:MAX_TAKEN]:
        move = WatermarkMove(before=None, after=newest(file.path, [file]), beside="older")
        folder, _, name = f"{url}/{file.path}".rpartition("/") if source is None else (source, "", file.path)
        entry = len(msgspec.json.encode(FileEntry(file.path, file.size, file.version)))
        entries += entry
        recorded += entry + len(msgspec.json.encode({name: move}))
        if folder not in folders:
            folders.add(folder)
            recorded += len(msgspec.json.encode(folder))
        if entries > MAX_ENTRY_BYTES or recorded > MAX_RECORDED_BYTES:
            break
        moves[file.path] = move
    return moves


def by_folder(moves: dict[str, dict[str, WatermarkMove]]) -> dict[str, dict[str, WatermarkMove]]:
    """The moves of files, each in the folder of the file."""
    result: dict[str, dict[str, WatermarkMove]] = {}
    for source, paths in moves.items():
        for path, move in paths.items():
            folder, _, name = f"{source}/{path}".rpartition("/")
            result.setdefault(folder, {})[name] = move
    return result


def _ingested(name: str, file: SourceFile, around: list[Entry]) -> bool:
    if not around:
        return False
    source, path, value = around[0]
    if f"{source}/{path}" == f"{name}/{file.path}":
        return True
    try:
        until = datetime.fromisoformat(value)
    except ValueError:
        raise AlreadyIngested(
            f"{source}/{path} was ingested as a whole, up to {value!r}, which does not show its new files",
            hint="name what is new, without --new-only",
            details={"field": "new_only", "watermark": value},
        ) from None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return file.modified is not None and file.modified <= until
