"""The watermarks of a table: recent ones in one value, the rest in chunks.

Every change of the watermarks is written to ``<table>.watermarks``, so its revision is that of all of them:
comparing it compares them all. When it has grown, its entries are moved into the chunks, which changes
nothing for readers (:func:`distop.metastore.tables.watermarks.fold`).

A chunk holds the entries of a range. Its key ends with the *position* of the last entry that it may hold, so
the chunk of an entry is the first one at or after the entry's own position.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from distop.errors import ArgumentTooLarge, InvalidArgument
from distop.metastore.records.names import escape, prefix_end
from distop.metastore.records.record import decode_plain, encode_plain
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

Recent = dict[str, dict[str, str | None]]
"""``<table>.watermarks``: recent ones, as a plain JSON object; ``None``: deletes the entry in a chunk."""

Changes = Mapping[str, Mapping[str, str | None]]
"""source -> partition -> the new value; ``None``: it is deleted."""

MAX_RECENT_BYTES = 1_000_000
"""Limit of ``<table>.watermarks``; a transaction has room for half as much again."""

FOLD_BYTES = 48 << 10
"""From this size on, it is moved into the chunks before an operation finishes."""

MAX_MOVED_BYTES = MAX_RECENT_BYTES - 2 * FOLD_BYTES
"""Limit of what one operation may move."""

MAX_ENTRY_BYTES = CHUNK_BYTES
"""Limit of a source, a partition and a value together."""


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
        unknown = [position for position in wanted if self._at(position) is None]
        if not self._bounds:
            # Most tables have no chunk: the first probe shows that.
            return [b"", *unknown[:: -(-len(unknown) // PROBES)]] if unknown else []
        after = {two for position, two in pairwise(wanted) if self._at(position) is not None}
        ends = [position for position in unknown if position in after or position == unknown[0]]
        return ends[:PROBES]

    def learn(self, positions: Sequence[bytes], chunks: Sequence[tuple[bytes, bytes] | None]) -> None:
        """Process the result of the fetch."""
        for start, chunk in zip(positions, chunks, strict=True):
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


def decode_recent(value: bytes) -> Recent:
    """The recent watermarks in the value of ``<table>.watermarks``; a missing key's empty value has none."""
    return decode_plain(value, Recent, "watermarks")


def check_entry(source: str, partition: str, value: str) -> None:
    """Raise :class:`~distop.errors.InvalidArgument` if a watermark is too long."""
    size = len(position(source, partition)) + len(encode_plain(value))
    if size > MAX_ENTRY_BYTES:
        raise InvalidArgument(
            f"a watermark of source {source[:100]!r} takes {size:,} bytes, the limit is {MAX_ENTRY_BYTES:,}",
            hint="give the source a shorter name",
            details={"field": "watermark", "source": source[:100], "partition": partition[:100]},
        )


def check_room(changes: Changes) -> None:
    """Refuse at the start what one finish could not move.

    Raises
    ------
    ArgumentTooLarge
        There are too many.
    InvalidArgument
        One of them is too long.
    """
    for source, partitions in changes.items():
        for partition, value in partitions.items():
            check_entry(source, partition, value or "")
    size = len(encode_plain(changes))
    if size > MAX_MOVED_BYTES:
        count = sum(map(len, changes.values()))
        raise ArgumentTooLarge(
            f"the operation would move {count:,} watermarks of {size:,} bytes, "
            f"the limit is {MAX_MOVED_BYTES:,}",
            hint="name fewer paths in one operation, or folders, which have one watermark each",
            details={"field": "watermarks"},
        )


class Marks(Mapping[str, Mapping[str, str]]):
    """All watermarks of a table, as a mapping: source -> partition -> value.

    Looking up a partition reads its one chunk; iterating a source reads that source, and iterating everything
    reads everything. May be used by one thread at a time.
    """

    def __init__(self, recent: Changes | None = None, chunks: Chunks | None = None) -> None:
        self.recent: Changes = recent or {}
        self.chunks = chunks or Chunks()
        self._around: dict[str, list[Entry]] = {}
        self._order: list[tuple[bytes, str, str]] | None = None

    @classmethod
    def of(cls, marks: Mapping[str, Mapping[str, str]]) -> Marks:
        """The watermarks of a plain dictionary."""
        return marks if isinstance(marks, Marks) else cls(marks)

    # -- reading -------------------------------------------------------------------------------------

    def __getitem__(self, source: str) -> Mapping[str, str]:
        if any(value is not None for value in self.recent.get(source, {}).values()):
            return _Partitions(self, source)
        for _ in self.of_source(source):
            return _Partitions(self, source)
        raise KeyError(source)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(source for source, _, _ in self.between(b"", END)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self.between(b"", END))

    def __repr__(self) -> str:
        return f"Marks({self.recent!r}, {'no chunks' if self.chunks.none else 'and chunks'})"

    def value(self, source: str, partition: str) -> str | None:
        """The value of one; ``None``: there is none."""
        recent = self.recent.get(source, {})
        if partition in recent:
            return recent[partition]
        return None if self.chunks.none else self.chunks.get(position(source, partition))

    def of_source(self, source: str) -> Iterator[Entry]:
        """The watermarks of a source, in the order of their partitions' names."""
        start = position(source)
        return self.between(start, prefix_end(start))

    def between(self, start: bytes, end: bytes) -> Iterator[Entry]:
        """Those from one position to (without) another, in order."""
        newer = self._recent_between(start, end)
        here = next(newer, None)
        for where, entry in self.chunks.between(start, end):
            while here is not None and here[0] < where:
                if here[1] is not None:
                    yield here[1]
                here = next(newer, None)
            if here is None or here[0] != where:
                yield entry
        while here is not None:
            if here[1] is not None:
                yield here[1]
            here = next(newer, None)

    def _recent_between(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, Entry | None]]:
        if self._order is None:
            self._order = sorted(
                (position(source, partition), source, partition)
                for source, partitions in self.recent.items()
                for partition in partitions
            )
        first = bisect_left(self._order, (start, "", ""))
        for where, source, partition in self._order[first : bisect_left(self._order, (end, "", ""))]:
            value = self.recent[source][partition]
            yield where, None if value is None else (source, partition, value)

    def know(self, entries: Iterable[tuple[str, str]]) -> None:
        """Read what looking up these sources and partitions needs, together."""
        self.chunks.know({position(*at) for at in entries})

    # -- sources that are places -----------------------------------------------------------------------

    def look_around(self, urls: Iterable[str]) -> None:
        """Read what :meth:`around` needs for all of these, together."""
        self.chunks.know([b""])
        if not self.chunks.none:
            outer = {folder for url in urls for folder in upwards(url)}
            self.chunks.know(position(*at) for folder in outer for at in _splits(folder))

    def around(self, url: str) -> list[Entry]:
        """What was ingested from a URL itself and from the folders that contain it, the innermost first."""
        cover = self._around.get(url)
        if cover is None:
            here = [(*at, value) for at in _splits(url) if (value := self.value(*at)) is not None]
            parent = url.rpartition("/")[0]
            cover = self._around[url] = here + (self.around(parent) if "://" in parent else [])
        return cover

    def below(self, url: str) -> Iterator[Entry]:
        """What was ingested from below a URL."""
        inside = f"{url}/"
        for source, path in _splits(inside):
            start = position(source, path)
            yield from self.between(start, prefix_end(start))
        start = escape(inside).encode()
        yield from self.between(start, prefix_end(start))

    # -- changing --------------------------------------------------------------------------------------

    def then(self, changes: Changes) -> Marks:
        """These watermarks after changes."""
        recent = {source: dict(partitions) for source, partitions in self.recent.items()}
        for source, partitions in changes.items():
            existing = recent.setdefault(source, {})
            for partition, value in partitions.items():
                if value is not None:
                    existing[partition] = value
                elif not self.chunks.none and self.chunks.get(position(source, partition)) is not None:
                    existing[partition] = None
                else:
                    existing.pop(partition, None)
        return Marks({source: partitions for source, partitions in recent.items() if partitions}, self.chunks)

    def encoded(self) -> bytes:
        """The new value of ``<table>.watermarks``.

        Raises :class:`~distop.errors.ArgumentTooLarge` if the change is too large.
        """
        value = encode_plain(self.recent)
        if len(value) > MAX_RECENT_BYTES:
            raise ArgumentTooLarge(
                f"so many watermarks take {len(value):,} bytes, "
                f"the limit of one change is {MAX_RECENT_BYTES:,}",
                hint="change fewer of them at a time",
                details={"field": "watermarks"},
            )
        return value


class _Partitions(Mapping[str, str]):
    """The watermarks of one source."""

    def __init__(self, marks: Marks, source: str) -> None:
        self._marks, self._source = marks, source

    def __getitem__(self, partition: str) -> str:
        value = self._marks.value(self._source, partition)
        if value is None:
            raise KeyError(partition)
        return value

    def __iter__(self) -> Iterator[str]:
        return (partition for _, partition, _ in self._marks.of_source(self._source))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


def upwards(url: str) -> Iterator[str]:
    """A URL, and those of the folders that contain it."""
    while url:
        yield url
        url = url.rpartition("/")[0]


def _splits(url: str) -> Iterator[tuple[str, str]]:
    """Every source and path under which a URL may have been ingested."""
    start = url.find("://") + 3
    while start > 2 and (at := url.find("/", start)) >= 0:
        yield url[:at], url[at + 1 :]
        start = at + 1
