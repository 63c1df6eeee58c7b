"""Splits a list of files into jobs. Pure: sizes in, cuts out.

All files form one line, measured in *units*: bytes if a file can be split at any byte, row groups if it can
be split between them, one unit if it is read as a whole. A split is a range of that line, so N splits need N
+ 1 numbers, and the recorded plan of an operation stays small.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from distop.errors import ArgumentTooLarge
from distop.spark_jobs.ingest.argument import option

MAX_SPLITS = 100_000
"""Most jobs of one operation."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The size of one file, and where it may be split.

    Parameters
    ----------
    size:
        Bytes to read, more than 0.
    blocks:
        Sizes in bytes of the blocks between which it can be split, summing to about ``size``; ``None`` if it
        can be split at any byte; a single block if it is read as a whole.
    """

    size: int
    blocks: tuple[int, ...] | None = None

    @property
    def units(self) -> int:
        return self.size if self.blocks is None else len(self.blocks)


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one file: units ``start`` to ``end`` (exclusive) of the file at ``file``."""

    file: int
    start: int
    end: int


def cut(extents: Iterable[Extent], split_bytes: int, apart: Collection[int] = ()) -> list[int]:
    """The starts of the splits on the line of units, and the end of the last one.

    A file larger than ``split_bytes`` gets splits of its own, of nearly equal size; smaller ones are packed,
    whole and in order, up to ``split_bytes``. The same input gives the same cuts.

    Parameters
    ----------
    apart:
        Indices of extents that start a new split, whatever precedes them.
    """
    cuts = [0]
    position = 0
    packed = 0
    for index, extent in enumerate(extents):
        if packed and (index in apart or packed + extent.size > split_bytes):
            cuts.append(position)
            packed = 0
        if extent.size > split_bytes:
            cuts.extend(position + units for units in _inner_cuts(extent, split_bytes))
            position += extent.units
            cuts.append(position)
        else:
            position += extent.units
            packed += extent.size
    if cuts[-1] != position:
        cuts.append(position)
    return cuts


def jobs_reading(lengths: Mapping[str, int], cuts: Sequence[int]) -> dict[str, list[tuple[int, int]]]:
    """The splits that read some of each range of the line, as ranges.

    Parameters
    ----------
    lengths:
        Name of a range -> its units; they follow each other and are the whole line.
    """
    ends = accumulate(lengths.values())
    return {
        name: [(bisect_right(cuts, end - length) - 1, bisect_left(cuts, end))]
        for (name, length), end in zip(lengths.items(), ends, strict=True)
    }


def check_count(total: int, per_split: int, unit: str, *, field: str, less: str) -> None:
    """Refuse more than :data:`MAX_SPLITS` splits in advance.

    Parameters
    ----------
    total, per_split:
        The total size, and the size for one job, in ``unit``.
    field, less:
        What to raise, and what to do instead.

    Raises
    ------
    ArgumentTooLarge
    """
    if total // per_split > MAX_SPLITS:
        raise ArgumentTooLarge(
            f"there would be {total // per_split} splits of {per_split} {unit}, "
            f"at most {MAX_SPLITS} are possible",
            hint=f"raise {option(field)}, or {less}",
            details={"field": field},
        )


def _inner_cuts(extent: Extent, split_bytes: int) -> Iterator[int]:
    """Where one large file is split, in its own units, without its beginning and end."""
    if extent.blocks is None:
        count = -(-extent.size // split_bytes)
        yield from (extent.size * number // count for number in range(1, count))
        return
    taken = 0
    for index, block in enumerate(extent.blocks):
        if taken and taken + block > split_bytes:
            yield index
            taken = 0
        taken += block


class Line:
    """The line of units of all files, to look up the content of a split.

    Parameters
    ----------
    units:
        Units of each file, in order.
    """

    def __init__(self, units: Iterable[int]) -> None:
        self._ends = list(accumulate(units))

    def pieces(self, cuts: Sequence[int], split: int) -> list[Piece]:
        """The ranges of files in split number ``split``."""
        start, end = cuts[split], cuts[split + 1]
        pieces = []
        file = bisect_right(self._ends, start)
        while start < end:
            begin = self._ends[file - 1] if file else 0
            stop = min(end, self._ends[file])
            pieces.append(Piece(file, start - begin, stop - begin))
            start = stop
            file += 1
        return pieces
