"""Reading whole lines from ranges of a file."""

from io import BytesIO
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distop.sources.formats import text_file
from distop.sources.formats.text_file import LineCounter, LineTooLong, range_blocks, split_lines, whole_lines

contents = st.lists(
    st.sampled_from([b"\n", b"\r\n", b"a", b"bcd", b"ef" * 40, b"\xc3\xa9"]), max_size=40
).map(b"".join)


@given(contents, st.lists(st.integers(0, 400), max_size=8), st.integers(1, 64), st.booleans())
def test_ranges_yield_every_line_once_wherever_the_cuts_are(
    text: bytes, cuts: list[int], block: int, header: bool
) -> None:
    """A header is in no range, even where it is longer than one."""
    first = text.find(b"\n") + 1 if header else 0
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(text)}), len(text)]
    read = [
        found
        for start, end in pairwise(edges)
        for found in range_blocks(BytesIO(text), start, end, first=first, block_bytes=block)
    ]
    assert b"".join(found.data for found in read) == text[first:]
    for found in read:
        assert text[found.offset :].startswith(found.data)
        assert found.offset == 0 or text[found.offset - 1 : found.offset] == b"\n"


@given(contents)
def test_a_line_is_in_the_range_where_it_begins(text: bytes) -> None:
    start = 0
    for line in split_lines(text):
        (found,) = range_blocks(BytesIO(text), start, start + 1)
        assert found.data == line
        start += len(line)


@given(contents, st.integers(1, 50))
def test_a_stream_is_read_to_its_end_in_whole_lines(text: bytes, block: int) -> None:
    blocks = list(whole_lines(BytesIO(text), 0, block_bytes=block))
    assert b"".join(found.data for found in blocks) == text
    assert all(found.data.endswith(b"\n") for found in blocks[:-1])


def test_a_line_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_file, "MAX_LINE_BYTES", 100)
    text = b"short\n" + b"x" * 1000 + b"\nshort\n"
    with pytest.raises(LineTooLong, match="byte 6"):
        list(whole_lines(BytesIO(text), 0, block_bytes=10))
    assert [block.data for block in range_blocks(BytesIO(text), 500, 600, block_bytes=10)] == []


@given(contents, st.lists(st.integers(0, 400), max_size=6))
def test_lines_before_an_offset_are_counted_going_forward(text: bytes, offsets: list[int]) -> None:
    counter = LineCounter(lambda: BytesIO(text))
    for offset in sorted(offset for offset in offsets if offset <= len(text)):
        assert counter.lines_before(offset) == text[:offset].count(b"\n")
    counter.close()
