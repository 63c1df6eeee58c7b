"""The files of a scan, page by page: no answer and no call grows with the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile

from distop.commit.iceberg.deletes import DeleteFiles
from distop.commit.index.filters import Left
from distop.commit.scans.scan import Scan

MAX_TASKS = 10_000
"""Data files of one page."""
MAX_FILES = 10_000
"""Data files that are looked at for one page, unless a single manifest lists more."""
MAX_MANIFESTS = 64
"""That are read for one page, besides those of delete files."""
MAX_DELETE_FILES = 50_000
"""Of a snapshot: each page looks at all that may concern it."""

Narrow = Callable[[BooleanExpression, list[str]], Left | None]
"""What indexes leave of some data files; ``None``: all of them."""


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A part of a scan that is yet to be planned: some of its manifests of data files."""

    first: int
    """Place of the first one."""
    skip: int
    """Entries of the first one that are done."""
    stop: int
    """Place of the first one that is not part of it."""


@dataclass(frozen=True)
class Task:
    """A data file that may hold rows that are asked for."""

    file: DataFile
    deletes: list[DataFile]
    """Files that may name rows of it that are gone."""
    all_rows: bool
    """Whether all others of its rows are asked for."""


@dataclass(frozen=True)
class Page:
    tasks: list[Task]
    rest: Span | None
    """What is still to be planned of the span."""


def whole(scan: Scan) -> Span:
    """All of a scan."""
    return Span(0, 0, len(scan.data))


def planned(scan: Scan, span: Span, narrow: Narrow, *, most: int = MAX_TASKS) -> Page:
    """The first page of a span: at most so many files.

    Raises ``FileNotFoundError`` if a manifest is gone, and ``NotImplementedError`` if there are more delete
    files than are looked at here.
    """
    found, rest = _found(scan, span, most)
    left = narrow(scan.filter.expression, [entry.data_file.file_path for entry in found])
    if left is not None:
        found = [entry for entry in found if entry.data_file.file_path in left]
    deletes = _deletes_of(scan, found)
    tasks = [Task(one.data_file, deletes.concerning(one), scan.is_all_of(one)) for one in found]
    return Page(tasks, rest)


def parted(scan: Scan, rest: Span, parts: int) -> list[Span]:
    """A span in so many parts of about as many files, or fewer: they may be planned side by side."""
    places = list(_places(scan, rest))
    share = sum(_files(scan.data[place]) for place in places) / parts
    starts, files = [rest.first], 0
    for place in places:
        if files >= share * len(starts) and place > rest.first:
            starts.append(place)
        files += _files(scan.data[place])
    stops = (*starts[1:], rest.stop)
    skips = (rest.skip, *(0 for _ in starts[1:]))
    return [Span(*one) for one in zip(starts, skips, stops, strict=True)]


def _places(scan: Scan, span: Span) -> Iterator[int]:
    for place in range(max(0, span.first), min(span.stop, len(scan.data))):
        if scan.concerns(scan.data[place]):
            yield place


def _found(scan: Scan, span: Span, most: int) -> tuple[list[ManifestEntry], Span | None]:
    places = _places(scan, span)
    chosen, files, following = list[int](), 0, None
    for place in places:
        if chosen and (files + _files(scan.data[place]) > MAX_FILES or len(chosen) == MAX_MANIFESTS):
            following = Span(place, 0, span.stop)
            break
        chosen.append(place)
        files += _files(scan.data[place])
    found = list[ManifestEntry]()
    read = scan.entries([scan.data[place] for place in chosen])
    for place, entries in zip(chosen, read, strict=True):
        skip = span.skip if place == span.first else 0
        for at, entry in enumerate(islice(entries, skip, None), skip):
            if not scan.may_match(entry):
                continue
            if len(found) == most:
                return found, Span(place, at, span.stop)
            found.append(entry)
    return found, following


def _deletes_of(scan: Scan, found: list[ManifestEntry]) -> DeleteFiles:
    specs = scan.metadata.specs()
    if not found:
        return DeleteFiles((), specs)
    oldest = min(entry.sequence_number or 0 for entry in found)
    manifests = [one for one in scan.deletes if one.sequence_number >= oldest]
    if (count := sum(map(_files, manifests))) > MAX_DELETE_FILES:
        raise NotImplementedError(
            f"the snapshot has {count:,} delete files, at most {MAX_DELETE_FILES:,} are looked at here: "
            "rewrite them, or have the engine plan"
        )
    entries = (entry for read in scan.entries(manifests) for entry in read)
    return DeleteFiles((entry for entry in entries if scan.in_partitions(entry)), specs)


def _files(manifest: ManifestFile) -> int:
    """How many files a manifest lists that are there, as far as its list says."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)
