"""The chunks of a table's watermarks: which one an entry is in, and how writes change a chunk.

A chunk holds the entries of a range. Its key ends with the *position* of the last entry that it may hold, so
the chunk of an entry is the first one at or after the entry's own position.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from distop.metastore.records.components import escape
from distop.metastore.records.record import encode_plain
from distop.metastore.records.table import Watermarks, decode_watermarks

Entry = tuple[str, str, str]
"""Source, partition, value."""

Fetch = Callable[[Sequence[bytes]], Sequence[tuple[bytes, bytes] | None]]
"""For each position the chunk there: the position of the last entry that it may hold, and its value.
``None``: there is none at or after it."""

CHUNK_BYTES = 32 << 10
"""A chunk that would grow beyond this is split. The name of its first source is not counted: every piece of a
source has it, however many there are."""

PROBES = 16
"""Chunks in one read."""

END = b"\xff"
"""After all positions."""


def position(source: str, partition: str = "") -> bytes:
    """The position of an entry among all; without a partition: the start of the source."""
    return b"%s.%s" % (escape(source).encode(), escape(partition).encode())


def entry_bytes(entry: Entry, before: str | None) -> int:
    """What an entry adds to the value of a chunk or of what is recent, in bytes.

    Parameters
    ----------
    before:
        The source of the entry before it there: a source's name is stored once for its partitions.
    """
    source, partition, value = entry
    size = len(encode_plain(partition)) + len(encode_plain(value)) + 2
    return size if source == before else size + len(encode_plain(source)) + 4


class Chunk:
    """The entries of a range of positions, in their order."""

    def __init__(self, start: bytes, bound: bytes, value: bytes) -> None:
        self.start = start
        """It is known to cover positions from here; it may begin earlier."""
        self.bound = bound
        self.entries = {
            position(source, partition): (source, partition, value)
            for source, partitions in decode_watermarks(value).items()
            for partition, value in partitions.items()
        }
        self.order = sorted(self.entries)


class Chunks:
    """The chunks of a table, read on demand.

    Parameters
    ----------
    fetch:
        Reads them; without it there are none.
    """

    def __init__(self, fetch: Fetch | None = None) -> None:
        self._fetch = fetch
        self._bounds: list[bytes] = []
        self._known: dict[bytes, Chunk] = {}
        if fetch is None:
            self.learn([b""], [None])

    def missing(self, positions: Iterable[bytes]) -> list[bytes]:
        """The positions to fetch next to know the chunks of all these; empty: they are known."""
        wanted = sorted(set(positions))
        unknown = [one for one in wanted if self._at(one) is None]
        if not self._bounds:
            # Most tables have no chunk: the first probe shows that.
            return [b"", *unknown[:: -(-len(unknown) // PROBES)]] if unknown else []
        after = {two for one, two in pairwise(wanted) if self._at(one) is not None}
        ends = [one for one in unknown if one in after or one == unknown[0]]
        return ends[:PROBES]

    def learn(self, positions: Sequence[bytes], found: Sequence[tuple[bytes, bytes] | None]) -> None:
        """Process the result of the fetch."""
        for start, chunk in zip(positions, found, strict=True):
            bound, value = chunk or (END, b"")
            known = self._known.get(bound)
            if known is None:
                self._known[bound] = Chunk(start, bound, value)
                insort(self._bounds, bound)
            else:
                known.start = min(known.start, start)

    def know(self, positions: Iterable[bytes]) -> None:
        """Read the chunks of these positions, unless already read. Blocks."""
        wanted = list(positions)
        while self._fetch is not None and (starts := self.missing(wanted)):
            self.learn(starts, self._fetch(starts))

    @property
    def none(self) -> bool:
        """Whether it is known that there is no chunk at all."""
        return self._bounds == [END] and not self._known[END].start

    def at(self, where: bytes) -> Chunk:
        """The chunk of the entry at a position."""
        self.know([where])
        chunk = self._at(where)
        assert chunk is not None
        return chunk

    def _at(self, where: bytes) -> Chunk | None:
        index = bisect_left(self._bounds, where)
        chunk = self._known[self._bounds[index]] if index < len(self._bounds) else None
        return chunk if chunk is not None and chunk.start <= where else None

    def get(self, where: bytes) -> str | None:
        """The value in a chunk at a position."""
        entry = None if self.none else self.at(where).entries.get(where)
        return entry[2] if entry is not None else None

    def between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Entry]]:
        """The entries of the chunks from one position to (without) another, in order."""
        while start < end and not self.none:
            chunk = self.at(start)
            for where in chunk.order[bisect_left(chunk.order, start) :]:
                if where >= end:
                    return
                yield where, chunk.entries[where]
            start = chunk.bound + b"\0"


def chunk_value(entries: Iterable[Entry]) -> bytes:
    """The encoded value of a chunk."""
    marks: Watermarks = {}
    for source, partition, value in entries:
        marks.setdefault(source, {})[partition] = value
    return encode_plain(marks)


def refilled(chunk: Chunk, newer: Iterable[tuple[bytes, Entry | None]]) -> dict[bytes, bytes | None]:
    """A chunk with newer entries, split as needed: bound -> value, ``None``: it is deleted."""
    merged: dict[bytes, Entry | None] = {**chunk.entries, **dict(newer)}
    entries = [(where, entry) for where in sorted(merged) if (entry := merged[where]) is not None]
    sources = [source for _, (source, _, _) in entries]
    sizes = [
        entry_bytes(entry, before)
        for (_, entry), before in zip(entries, [*sources[:1], *sources], strict=False)
    ]
    # If entries arrive in order the pieces are full; others are halved, so that both have room.
    total, most = sum(sizes), CHUNK_BYTES
    if chunk.bound != END and total > most:
        most = total // -(-total // most)
    bounds: list[bytes] = []
    pieces: list[list[Entry]] = []
    size = 0
    for (where, entry), takes in zip(entries, sizes, strict=True):
        if not pieces or size >= most or size + takes > CHUNK_BYTES:
            bounds.append(where)
            pieces.append([])
            size, takes = 0, entry_bytes(entry, entry[0])
        size += takes
        bounds[-1] = where
        pieces[-1].append(entry)
    if chunk.bound != END:
        if not pieces:
            return {chunk.bound: None}
        bounds[-1] = chunk.bound
    return {bound: chunk_value(piece) for bound, piece in zip(bounds, pieces, strict=True)}
