"""Reads complete lines from a range of a file, in blocks of bounded size.

The rule that makes ranges add up to the file: a line belongs to the range that contains its first byte. So
every line is read exactly once, wherever the file is split, and a reader may read past the end of its range
to finish its last line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

BLOCK_BYTES = 8 << 20
"""How much is read and converted at once."""
MAX_LINE_BYTES = 16 << 20
"""A longer line is refused: one line must fit into memory several times."""
TAIL_BYTES = 64 << 10
"""How much is read at a time to finish a line beyond the end of the range."""


class Readable(Protocol):
    """The required methods of a binary file; at its end a read returns nothing."""

    def read(self, size: int, /) -> bytes: ...


class Seekable(Readable, Protocol):
    """A binary file that can be read from any position."""

    def seek(self, offset: int, /) -> int: ...


class LineTooLong(Exception):
    """A line exceeds :data:`MAX_LINE_BYTES`. ``offset`` is its start."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"the line at byte {offset} is longer than {MAX_LINE_BYTES} bytes")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Block:
    """Some complete lines: ``data`` begins at byte ``offset`` of the file, where a line begins."""

    offset: int
    data: bytes


def last_line_end(text: bytes) -> int:
    """The position after the last newline; 0 if there is none."""
    return text.rfind(b"\n") + 1


def range_blocks(
    file: Seekable, start: int, end: int | None, *, first: int = 0, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block]:
    """The lines that begin at bytes ``start`` to ``end`` (exclusive; ``None``: the end) of a file.

    Parameters
    ----------
    first:
        The start of the first line of data, after a byte order mark and a header; never inside a line.

    Raises
    ------
    LineTooLong
    """
    at = first if start <= first else _next_line(file, start, end)
    if at is None or (end is not None and at >= end):
        return
    file.seek(at)
    yield from whole_lines(file, at, end, block_bytes=block_bytes)


def _next_line(file: Seekable, start: int, end: int | None) -> int | None:
    """The start of the first line between ``start`` and ``end``; ``None`` if there is none."""
    # The byte before shows whether a line begins exactly at start.
    position = start - 1
    file.seek(position)
    while (end is None or position < end - 1) and (data := file.read(TAIL_BYTES)):
        newline = data.find(b"\n")
        if newline >= 0:
            return position + newline + 1
        position += len(data)
    return None


def whole_lines(
    file: Readable,
    at: int,
    end: int | None = None,
    *,
    block_bytes: int = BLOCK_BYTES,
    last_end: Callable[[bytes], int] = last_line_end,
) -> Iterator[Block]:
    """Read from ``at``, where a line begins, in blocks of complete lines.

    Parameters
    ----------
    file:
        Positioned at byte ``at``.
    end:
        Lines that begin here or later are not read; ``None``: read to the end of the file.
    last_end:
        The end of the last complete record of a text that begins with one; only without ``end``.

    Raises
    ------
    LineTooLong
    """
    buffer = b""
    while True:
        missing = block_bytes if end is None else end - at - len(buffer)
        # Beyond the range only one line must be finished: step by step, doubling the step.
        wanted = missing if missing > 0 else max(TAIL_BYTES, len(buffer))
        data = file.read(min(block_bytes, wanted))
        if not data:
            if buffer:
                yield Block(at, buffer)
            return
        buffer = buffer + data if buffer else data
        if end is not None and at + len(buffer) >= end:
            # The line with the last byte of the range is the last one that begins in it.
            stop = buffer.find(b"\n", end - 1 - at) + 1
            if stop:
                yield Block(at, buffer[:stop])
                return
        stop = last_end(buffer)
        if stop:
            yield Block(at, buffer[:stop])
            at += stop
            buffer = buffer[stop:]
        elif len(buffer) > MAX_LINE_BYTES:
            raise LineTooLong(at)
