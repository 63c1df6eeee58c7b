"""Sorted runs of an index: key, data file, row group; written in one go, merged without holding them.

A *run* is a Parquet file of entries in key order. Jobs make one (or, of large files, several) of each data
file, and merge them into a *part*, which is a run as well, with small row groups, so that a look-up reads
little. Memory is bounded by the number of runs that are merged at a time, not by what stands in them.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO

from distop.commit.index.blooms import PartBlooms
from distop.commit.index.keys import Key, hashes, key_type
from distop.errors import CorruptRecord

MERGED_AT_ONCE = 100
"""Runs that are merged at a time: each takes an open file and a batch of entries."""

BATCH_ROWS = 8192
"""Entries that are read of a run at a time."""

_DISTINCT = b"distop.distinct"
"""Metadata of a run: how many distinct keys each data file has, by its number."""


def entry_schema(encoding: str) -> pa.Schema:
    """Columns of a run: the key; the data file by its number; the row group within it."""
    return pa.schema(
        [
            pa.field("key", key_type(encoding)),
            pa.field("file", pa.int32()),
            pa.field("group", pa.int32()),
        ]
    )


@dataclass(frozen=True)
class Written:
    """What a run holds."""

    entries: int
    bytes: int
    least: Key | None
    greatest: Key | None
    distinct: dict[int, int] = field(default_factory=dict)
    """Distinct keys of each data file, by its number; at least."""


class RunWriter:
    """Writes one run. Entries are given in key order.

    Parameters
    ----------
    expected:
        About how many entries there will be.
    blooms:
        Bloom filters to be filled on the way.
    """

    def __init__(
        self,
        io: FileIO,
        location: str,
        encoding: str,
        *,
        expected: int,
        blooms: PartBlooms | None = None,
    ) -> None:
        self._blooms = blooms
        self._group_rows = group_rows(expected)
        self._waiting: list[pa.Table] = []
        self._rows = 0
        self._entries = 0
        self._least: Key | None = None
        self._greatest: Key | None = None
        self._distinct: dict[int, int] = {}
        self._stream: Any = io.new_output(location).create(overwrite=True)
        self._schema = entry_schema(encoding)
        self._parquet = pq.ParquetWriter(
            self._stream, self._schema, compression="zstd", use_dictionary=["file", "group"]
        )

    def write(self, entries: pa.Table) -> None:
        """Take entries that come after all that were taken before."""
        if not entries.num_rows:
            return
        self._note(entries)
        self._waiting.append(entries)
        self._rows += entries.num_rows
        while self._rows >= self._group_rows:
            together = pa.concat_tables(self._waiting)
            self._parquet.write_table(together[: self._group_rows], row_group_size=self._group_rows)
            self._waiting = [together[self._group_rows :]]
            self._rows = self._waiting[0].num_rows

    def _note(self, entries: pa.Table) -> None:
        if self._least is None:
            self._least = entries["key"][0].as_py()
        self._greatest = entries["key"][-1].as_py()
        self._entries += entries.num_rows
        keys = pc.dictionary_encode(entries["key"].combine_chunks())
        number = keys.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        files = entries["file"].to_numpy().astype(np.int64)
        pairs = np.unique((files << 32) | number)  # a key may stand in several row groups of a file
        of_file, of_key = pairs >> 32, pairs & 0xFFFFFFFF
        hashed = None
        if self._blooms is not None:
            hashed = hashes(keys.dictionary.to_pylist())
            self._blooms.whole.add(hashed)
        for file in np.unique(of_file).tolist():
            chosen = of_key[of_file == file]
            self._distinct[file] = self._distinct.get(file, 0) + len(chosen)
            if hashed is not None and self._blooms is not None:
                self._blooms.files[file].add(hashed[chosen])

    def close(self) -> Written:
        """Complete the file."""
        if self._rows:
            self._parquet.write_table(pa.concat_tables(self._waiting), row_group_size=self._group_rows)
        counts = {str(file): count for file, count in self._distinct.items()}
        self._parquet.add_key_value_metadata({_DISTINCT: msgspec.json.encode(counts)})
        self._parquet.close()
        size = int(self._stream.tell())
        self._stream.close()
        return Written(self._entries, size, self._least, self._greatest, self._distinct)

    def abort(self) -> None:
        """Let go of the file, whatever it is by now."""
        for close in (self._parquet.close, self._stream.close):
            with suppress(Exception):  # it is thrown away
                close()
        self._parquet.is_open = False


def group_rows(entries: int) -> int:
    """Entries of a row group: a look-up reads one, and the footer, which has a line for each."""
    return min(65_536, max(1024, 4 * math.isqrt(entries)))


def sorted_entries(keys: pa.Array, file: int, group: int | pa.Array) -> pa.Table:
    """Keys of a row group as entries, sorted."""
    count = len(keys)
    groups = group if isinstance(group, pa.Array) else pa.array(np.full(count, group, np.int32))
    columns = [keys, pa.array(np.full(count, file, np.int32)), groups]
    return _sorted(pa.table(columns, names=["key", "file", "group"]))


def _sorted(entries: pa.Table) -> pa.Table:
    return entries.sort_by([("key", "ascending"), ("file", "ascending"), ("group", "ascending")])


# -- reading -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A run to be merged."""

    location: str
    numbers: Mapping[int, int] | None = None
    """What its data files are called in the result; files that are not named are left out. ``None``: as
    here."""


def distinct_of(io: FileIO, source: Source) -> tuple[int, dict[int, int]]:
    """Entries of a run; distinct keys of each data file, as the result names it."""
    with io.new_input(source.location).open() as stream, pq.ParquetFile(stream) as parquet:
        metadata = parquet.metadata
        entries = int(metadata.num_rows)
        text = (metadata.metadata or {}).get(_DISTINCT)
    if text is None:
        raise CorruptRecord(f"{source.location} is no run of an index")
    counts = {int(file): count for file, count in msgspec.json.decode(text, type=dict[str, int]).items()}
    if source.numbers is None:
        return entries, counts
    return entries, {source.numbers[file]: n for file, n in counts.items() if file in source.numbers}


def merge(
    io: FileIO,
    sources: Sequence[Source],
    location: str,
    encoding: str,
    *,
    with_blooms: bool = True,
) -> tuple[Written, PartBlooms]:
    """Merge runs into one, and make the Bloom filters of its data files."""
    expected = 0
    distinct: dict[int, int] = {}
    for source in sources:
        entries, counts = distinct_of(io, source)
        expected += entries
        for file, count in counts.items():
            distinct[file] = distinct.get(file, 0) + count
    blooms = PartBlooms.of(distinct)
    writer = RunWriter(io, location, encoding, expected=expected, blooms=blooms if with_blooms else None)
    try:
        with ExitStack() as stack:
            for entries_in_order in merged([_batches(stack, io, source) for source in sources]):
                writer.write(entries_in_order)
        return writer.close(), blooms
    except BaseException:
        writer.abort()
        raise


def _batches(stack: ExitStack, io: FileIO, source: Source) -> Iterator[pa.Table]:
    stream: Any = stack.enter_context(io.new_input(source.location).open())
    parquet = stack.enter_context(pq.ParquetFile(stream))
    numbers = None
    if source.numbers is not None:
        numbers = np.full(max(source.numbers, default=-1) + 2, -1, np.int32)
        for file, number in source.numbers.items():
            numbers[file] = number
    for batch in parquet.iter_batches(BATCH_ROWS, use_threads=False):
        entries = pa.Table.from_batches([batch])
        if numbers is not None:
            files = entries["file"].to_numpy()
            renamed = numbers[np.minimum(files, len(numbers) - 1)]
            entries = entries.set_column(1, "file", pa.array(renamed)).filter(pa.array(renamed >= 0))
        if entries.num_rows:
            yield entries


def merged(runs: Iterable[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """The entries of several runs, each in key order, in key order; none twice in a row.

    Each step takes of every run what does not come after the run that ends first does now: no run can have
    anything before that any more.
    """
    waiting = [(first, run) for run in runs if (first := next(run, None)) is not None]
    while waiting:
        bound = min(entries["key"][-1].as_py() for entries, _ in waiting)
        taken, left = [], []
        for entries, run in waiting:
            count = _count_up_to(entries["key"], bound)
            taken.append(entries[:count])
            following = entries[count:] if count < entries.num_rows else next(run, None)
            if following is not None:
                left.append((following, run))
        waiting = left
        yield _without_repeats(_sorted(pa.concat_tables(taken).combine_chunks()))


def _count_up_to(keys: pa.ChunkedArray, bound: Key) -> int:
    return bisect.bisect_right(range(len(keys)), bound, key=lambda index: keys[index].as_py())


def _without_repeats(entries: pa.Table) -> pa.Table:
    """Without entries that equal the one before: of a row group that was too large for one run."""
    if entries.num_rows < 2:
        return entries
    before, after = entries[:-1], entries[1:]
    same = pc.equal(before["file"], after["file"])
    for name in ("group", "key"):
        same = pc.and_(same, pc.equal(before[name], after[name]))
    if not pc.any(same).as_py():
        return entries
    first = pa.array([True])
    return entries.filter(pa.chunked_array([first, *pc.invert(same).chunks]))
