"""How far a source was ingested, and how far it will be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import chain, islice

from distop.errors import AlreadyIngested
from distop.lake.iceberg.watermarks import is_after
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.watermarks import Marks, position
from distop.operations.arguments import invalid
from distop.sources.formats.files import FoundSource, SourceFile


def watermark_moves(
    found: FoundSource,
    standing: Mapping[str, Mapping[str, str]],
    *,
    source: str | None = None,
    values: Mapping[str, str] | None = None,
    reingest: bool = False,
) -> dict[str, dict[str, WatermarkMove]]:
    """The moves of an ingest: one for every path that has files.

    Parameters
    ----------
    standing:
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
        if path not in found.partitions:
            raise invalid("watermark", f"{path!r} is not one of the paths: {', '.join(found.partitions)}")
    name = source or found.url
    marks = Marks.of(standing)
    marks.chunks.know(position(name, path) for path in found.partitions)
    if not reingest:
        _check_overlap(name, found, marks)
    return {
        name: {
            path: _move(path, files, marks.value(name, path), values.get(path), reingest)
            for path, files in found.partitions.items()
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
        return WatermarkMove(before=before, after=given, beside="" if reingest else "nothing")
    if before is not None and not reingest:
        raise AlreadyIngested(
            f"{path!r} was already ingested, up to {before!r}",
            hint="--new-only reads the new files in it, --reingest reads all of it again; "
            "or give a watermark beyond it: --arg watermark",
            details={"field": "paths", "partition": path, "watermark": before},
        )
    time = newest(path, files)
    after = time if before is None or is_after(time, before) else before
    return WatermarkMove(before=before, after=after, beside="" if reingest else "nothing")


def newest(path: str, files: Iterable[SourceFile]) -> str:
    """The modification time of the newest file: ISO 8601, UTC, microseconds."""
    times: list[datetime] = []
    for file in files:
        if file.modified is None:
            raise invalid(
                "watermark",
                f"the file system does not report when {file.path} was modified",
                f"give a watermark for {path!r} with --arg watermark",
            )
        times.append(file.modified)
    return max(times).astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _check_overlap(name: str, found: FoundSource, marks: Marks) -> None:
    """Refuse paths that contain, or are below, one that was ingested under another name: rows would be
    duplicated.

    Named sources say nothing about where their files are.
    """
    marks.look_around(f"{found.url}/{path}" for path in found.partitions)
    for path, files in found.partitions.items():
        url = f"{found.url}/{path}"
        others = (
            entry
            for entry in chain(marks.around(url), marks.below(url))
            if entry[0] != name or entry[1] not in found.partitions
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
    marks.chunks.know(position(*at) for at in own)
    marks.look_around(urls)
    return [
        [marks.value(*at) for at in own],
        [[marks.around(url), list(islice(marks.below(url), 1))] for url in urls],
    ]
