"""How far a source was ingested, and how far it will be: the moves of its watermarks, which of its files are
new, and which jobs each move depends on. Pure.

With ``new_only`` every file has a watermark of its own, and a file with a watermark is not read again, even
if it changes. The watermark belongs to the file's folder, however the paths were written: two operations that
read the same file move the same watermark, and only one of them can.

An ingest some of whose jobs may fail splits its files so that no job reads files of two paths: then a failed
job withholds only its own path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, chain, islice

import msgspec

from distop.errors import AlreadyIngested
from distop.lake.iceberg.watermarks import is_after
from distop.operations import Entry, Marks, WatermarkMove, upwards
from distop.operations.arguments import invalid
from distop.sources.formats.files import FoundSource, SourceFile
from distop.spark_jobs.ingest.plan import Extent, FileEntry, jobs_reading


def watermark_moves(
    listing: FoundSource,
    watermarks: Mapping[str, Mapping[str, str]],
    *,
    source: str | None = None,
    values: Mapping[str, str] | None = None,
    reingest: bool = False,
) -> dict[str, dict[str, WatermarkMove]]:
    """The moves of an ingest: one for every path that has files.

    Parameters
    ----------
    watermarks:
        All watermarks of the table.
    source:
        Name of the source, instead of the URL of its folder.
    values:
        Path -> new value, if it is not the time of the newest file.
    reingest:
        Whether what was ingested before may be ingested again. Its watermark moves if the files are newer,
        and otherwise stays.

    Raises
    ------
    AlreadyIngested
        A path was ingested before, itself or a folder that contains it or is below it; says which, and how
        far.
    InvalidArgument
        A given value is not beyond the present one, or none is given where files have no time.
    """
    values = values or {}
    for path in values:
        if path not in listing.partitions:
            raise invalid("watermark", f"{path!r} is not one of the paths: {', '.join(listing.partitions)}")
    name = source or listing.url
    marks = Marks.of(watermarks)
    marks.know((name, path) for path in listing.partitions)
    if not reingest:
        _check_overlap(name, listing, marks)
    return {
        name: {
            path: _move(path, files, marks.value(name, path), values.get(path), reingest)
            for path, files in listing.partitions.items()
            if files
        }
    }


def _move(
    path: str, files: Iterable[SourceFile], before: str | None, given: str | None, reingest: bool
) -> WatermarkMove:
    if given is not None:
        if before is not None and not is_after(given, before):
            raise invalid(
                "watermark", f"the watermark of {path!r} is at {before!r}, {given!r} is not beyond it"
            )
        return WatermarkMove(before=before, after=given, neighbours="" if reingest else "nothing")
    if before is not None and not reingest:
        raise AlreadyIngested(
            f"{path!r} was already ingested, up to {before!r}",
            hint="--new-only reads the new files in it, --reingest reads all of it again; "
            "or give a watermark beyond it: --watermark PATH=VALUE",
            details={"field": "paths", "partition": path, "watermark": before},
        )
    time = newest(path, files)
    after = time if before is None or is_after(time, before) else before
    return WatermarkMove(before=before, after=after, neighbours="" if reingest else "nothing")


def newest(path: str, files: Iterable[SourceFile]) -> str:
    """The modification time of the newest file: ISO 8601, UTC, microseconds."""
    times: list[datetime] = []
    for file in files:
        if file.modified is None:
            raise invalid(
                "watermark",
                f"the file system does not report when {file.path} was modified",
                f"give a watermark for {path!r} with --watermark",
            )
        times.append(file.modified)
    return max(times).astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _check_overlap(name: str, listing: FoundSource, marks: Marks) -> None:
    """Refuse paths that contain, or are below, one that was ingested under another name: rows would be
    duplicated.

    Named sources say nothing about where their files are.
    """
    marks.look_around(f"{listing.url}/{path}" for path in listing.partitions)
    for path, files in listing.partitions.items():
        url = f"{listing.url}/{path}"
        others = (
            entry
            for entry in chain(marks.around(url), marks.below(url))
            if entry[0] != name or entry[1] not in listing.partitions
        )
        if files and (other := next(others, None)) is not None:
            source, partition, value = other
            raise AlreadyIngested(
                f"{url} was already ingested, as a whole or in part: {source}/{partition} up to {value!r}",
                hint="--new-only reads the new files, --reingest reads all of it again",
                details={"field": "paths", "partition": partition, "source": source, "watermark": value},
            )


def has_moved(
    moves: Mapping[str, Mapping[str, WatermarkMove]],
    before: Mapping[str, Mapping[str, str]],
    now: Mapping[str, Mapping[str, str]],
) -> bool:
    """Whether a watermark that an ingest with these moves has read has changed: its own, or one of a folder
    that contains, or is below, what it reads."""
    return _looked_at(moves, Marks.of(before)) != _looked_at(moves, Marks.of(now))


def _looked_at(moves: Mapping[str, Mapping[str, WatermarkMove]], marks: Marks) -> list[object]:
    own = [(source, path) for source, paths in moves.items() for path in paths]
    urls = [f"{source}/{path}" for source, path in own if "://" in source]
    marks.know(own)
    marks.look_around(urls)
    return [
        [marks.value(*at) for at in own],
        [[marks.around(url), list(islice(marks.below(url), 1))] for url in urls],
    ]


MAX_TAKEN = 10_000
"""Most files that one ingest takes."""
MAX_ENTRY_BYTES = 850_000
"""Most bytes of these files in the plan, as JSON, which includes the layout: see ``plan.MAX_PLAN_BYTES``."""
MAX_RECORDED_BYTES = 1_200_000
"""Most bytes of them in the plan and in the moves, which one transaction of etcd records."""


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """The files of a source that one ingest reads.

    Parameters
    ----------
    listing:
        The files. New ones are each a path of its own: by name, the first that one operation can record.
    moves:
        As those of :func:`.watermarks.watermark_moves`.
    skipped:
        How many files were ingested before.
    remaining:
        How many new files are left to a later ingest.
    """

    listing: FoundSource
    moves: dict[str, dict[str, WatermarkMove]]
    skipped: int = 0
    remaining: int = 0


def new_files(
    listed: FoundSource, watermarks: Mapping[str, Mapping[str, str]], source: str | None = None
) -> ChosenFiles:
    """Exclude what was ingested before: files that have a watermark, and those that are not newer than the
    watermark of a folder that contains them.

    Parameters
    ----------
    watermarks:
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
    name, marks = source or listed.url, Marks.of(watermarks)
    if source is None:
        marks.look_around(f"{name}/{file.path}" for file in listed.files)
    else:
        marks.know((source, path) for file in listed.files for path in upwards(file.path))

    def around(file: SourceFile) -> list[Entry]:
        if source is None:
            return marks.around(f"{name}/{file.path}")
        marked = ((source, path, marks.value(source, path)) for path in upwards(file.path))
        return [(at, path, value) for at, path, value in marked if value is not None]

    new = [file for file in listed.files if not _ingested(name, file, around(file))]
    moves = _first_moves(source, listed.url, sorted(new, key=lambda file: file.path))
    taken = {file.path: [file] for file in new if file.path in moves}
    return ChosenFiles(
        FoundSource(listed.url, dict(sorted(taken.items()))),
        {name: moves},
        skipped=len(listed.files) - len(new),
        remaining=len(new) - len(taken),
    )


def _first_moves(source: str | None, url: str, files: list[SourceFile]) -> dict[str, WatermarkMove]:
    """The moves of the first files, as many as one operation can record; see :func:`by_folder`."""
    moves: dict[str, WatermarkMove] = {}
    folders = set[str]()
    entries = recorded = 0
    for file in files[:MAX_TAKEN]:
        move = WatermarkMove(before=None, after=newest(file.path, [file]), neighbours="older")
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


def first_files(source: FoundSource) -> Collection[int]:
    """The position of each path's first file among all files."""
    ends = accumulate(len(files) for files in source.partitions.values())
    return frozenset(ends) | {0}


def with_jobs(
    moves: Mapping[str, WatermarkMove], lengths: Mapping[str, int], cuts: Sequence[int]
) -> dict[str, WatermarkMove]:
    """The moves of a source, each with the jobs that read its partition.

    Parameters
    ----------
    lengths:
        Partition -> its units on the line that was split, in order. One without units has no job.
    """
    jobs = jobs_reading(lengths, cuts)
    return {
        partition: msgspec.structs.replace(move, jobs=jobs.get(partition, []))
        for partition, move in moves.items()
    }


def lengths_of_paths(source: FoundSource, extents: Sequence[Extent]) -> dict[str, int]:
    """Path -> the units of its files together."""
    units = iter(extent.units for extent in extents)
    return {path: sum(islice(units, len(files))) for path, files in source.partitions.items()}
