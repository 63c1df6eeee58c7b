"""Which files of the paths are new: an ingest with ``new_only``. Pure.

Every file has a watermark of its own then, and one that has it is not read again, whatever becomes of it.
The watermark belongs to the folder that the file lies in, however the paths were written: two operations that
take the same file move the same watermark, and only one of them can.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from distop.commit.iceberg.watermarks import MAX_WATERMARKS_BYTES, moved, standing_by_url, upwards
from distop.errors import AlreadyIngested, ArgumentTooLarge
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.record import encode_plain
from distop.metastore.records.table import Watermarks
from distop.spark_jobs.formats.files import FoundSource, SourceFile
from distop.spark_jobs.ingest.watermarks import newest


@dataclass(frozen=True, slots=True)
class NewFiles:
    """What is left of a source.

    Parameters
    ----------
    found:
        The files that are new, each a path of its own.
    moves:
        As those of :func:`.watermarks.watermark_moves`.
    skipped:
        How many files were ingested before.
    """

    found: FoundSource
    moves: dict[str, dict[str, WatermarkMove]]
    skipped: int


def new_files(found: FoundSource, standing: Watermarks, source: str | None = None) -> NewFiles:
    """Leave out what was ingested before: files that have a watermark, and those that are not younger than
    the watermark of a folder around them.

    Parameters
    ----------
    standing:
        All watermarks of the table.
    source:
        Name of the source, if it is not to be the folder of each file.

    Raises
    ------
    AlreadyIngested
        A folder has a watermark that is no time, so nobody can tell which of its files are new.
    InvalidArgument
        The file system does not tell when a file was modified.
    """
    name = source or found.url
    before = {f"{name}/{path}": value for path, value in standing.get(name, {}).items()}
    if source is None:
        before |= {url: standing[at][path] for url, (at, path) in standing_by_url(standing).items()}
    new = {file.path: [file] for file in found.files if not _ingested(f"{name}/{file.path}", file, before)}
    moves = {
        path: WatermarkMove(before=None, after=newest(path, files), beside="older")
        for path, files in sorted(new.items())
    }
    return NewFiles(
        FoundSource(found.url, dict(sorted(new.items()))), {name: moves}, len(found.files) - len(new)
    )


def by_folder(moves: dict[str, dict[str, WatermarkMove]]) -> dict[str, dict[str, WatermarkMove]]:
    """The moves of files, each in the folder that the file lies in."""
    result: dict[str, dict[str, WatermarkMove]] = {}
    for source, paths in moves.items():
        for path, move in paths.items():
            folder, _, name = f"{source}/{path}".rpartition("/")
            result.setdefault(folder, {})[name] = move
    return result


def check_room(standing: Watermarks, moves: dict[str, dict[str, WatermarkMove]]) -> None:
    """Refuse at the start what would have no room at the end.

    Raises :class:`~distop.errors.ArgumentTooLarge`.
    """
    size = len(encode_plain(moved(standing, moves)))
    if size > MAX_WATERMARKS_BYTES:
        raise ArgumentTooLarge(
            f"the table's watermarks would take {size:,} bytes, at most {MAX_WATERMARKS_BYTES:,} are kept",
            hint="ingest whole folders, which have one watermark each, without new_only",
            details={"field": "new_only"},
        )


def _ingested(url: str, file: SourceFile, before: dict[str, str]) -> bool:
    if url in before:
        return True
    around = next((folder for folder in upwards(url) if folder in before), None)
    if around is None:
        return False
    try:
        until = datetime.fromisoformat(before[around])
    except ValueError:
        raise AlreadyIngested(
            f"{around} was ingested as a whole, up to {before[around]!r}, which does not tell its new files",
            hint="name what is new without new_only",
            details={"field": "new_only", "watermark": before[around]},
        ) from None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return file.modified is not None and file.modified <= until
