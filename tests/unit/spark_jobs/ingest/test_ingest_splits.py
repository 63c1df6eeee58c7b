"""Cutting files into jobs."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.spark_jobs.ingest.argument import DEFAULT_SPLIT_BYTES
from distop.spark_jobs.ingest.plan import Extent, Line, Piece, cut_into_splits

text_files = st.integers(1, 5_000).map(Extent)
whole_files = st.integers(1, 5_000).map(lambda size: Extent(size, (size,)))
block_files = st.lists(st.integers(1, 900), min_size=2, max_size=12).map(lambda b: Extent(sum(b), tuple(b)))
files = st.lists(st.one_of(text_files, whole_files, block_files), min_size=1, max_size=12)


@given(files, st.integers(1, 3_000))
def test_splits_cover_every_unit_of_every_file_once(extents: list[Extent], split_bytes: int) -> None:
    cuts = cut_into_splits(extents, split_bytes)
    line = Line(extent.units for extent in extents)
    pieces = [piece for split in range(len(cuts) - 1) for piece in line.pieces(cuts, split)]
    for index, extent in enumerate(extents):
        mine = [piece for piece in pieces if piece.file == index]
        assert [piece.start for piece in mine] == [0, *(piece.end for piece in mine[:-1])]
        assert mine[-1].end == extent.units


@given(files, st.integers(1, 3_000))
def test_no_split_is_empty_or_larger_than_it_must_be(extents: list[Extent], split_bytes: int) -> None:
    cuts = cut_into_splits(extents, split_bytes)
    assert all(start < end for start, end in pairwise(cuts))
    line = Line(extent.units for extent in extents)
    for split in range(len(cuts) - 1):
        pieces = line.pieces(cuts, split)
        size = sum(_bytes(extents[piece.file], piece) for piece in pieces)
        smallest = max(_smallest(extents[piece.file], piece) for piece in pieces)
        assert size <= max(split_bytes, smallest)


def _bytes(extent: Extent, piece: Piece) -> int:
    return piece.end - piece.start if extent.blocks is None else sum(extent.blocks[piece.start : piece.end])


def _smallest(extent: Extent, piece: Piece) -> int:
    """What cannot be cut further."""
    return 1 if extent.blocks is None else max(extent.blocks[piece.start : piece.end])


def test_small_files_are_packed_and_large_ones_get_splits_of_their_own() -> None:
    """Row groups are gathered up to the size of a split; what is read as a whole is one, however large."""
    extents = [Extent(40), Extent(50), Extent(20), Extent(250), Extent(10), Extent(10)]
    assert cut_into_splits(extents, 100) == [0, 90, 110, 193, 276, 360, 380]
    assert cut_into_splits([Extent(100, (30, 30, 30, 5, 5))], 60) == [0, 2, 5]
    assert cut_into_splits([Extent(10_000, (10_000,))], 100) == [0, 1]


@pytest.mark.parametrize(("count", "jobs"), [(1, 4), (3, 6), (10, 5), (1_000, 4), (100_000, 4)])
def test_a_gigabyte_of_text_is_few_jobs(count: int, jobs: int) -> None:
    """N8: each job makes a file; of CSV it has about a tenth of the text's size."""
    cuts = cut_into_splits([Extent(1_000_000_000 // count)] * count, DEFAULT_SPLIT_BYTES)
    assert len(cuts) - 1 == jobs
    *whole, _ = (end - begin for begin, end in pairwise(cuts))
    assert min(whole) > 150_000_000
