"""Files that are one JSON array of objects, read element by element: a file may be larger than memory.

Where an element begins is only known to who has read all before it. So one job reads such a file as a whole:
the one whose range has its first byte. Ranges behind that hold no element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from distop.spark_jobs.formats.files import OpenFile
from distop.spark_jobs.formats.lines import BLOCK_BYTES, MAX_LINE_BYTES, TAIL_BYTES, Block
from distop.spark_jobs.formats.reader import FileUnusable
from distop.spark_jobs.formats.text_file import Converter, opened_text, size_of_mark
from distop.spark_jobs.formats.text_rows import TextRows, split_lines

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN = re.compile(rb'\{(?:[^{}\[\]"]++|%b)*+\}|%b|[\[\]{},"]' % (_STRING, _STRING), re.DOTALL)
"""What structure consists of: objects without others in them at one go, strings, and single signs. A quote
that stands alone begins a string that goes on behind the text."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"\t\t")
"""Between values each is white space; within a string none may stand."""

_NOTHING = b"null"
"""Stands for an element that is not there: its line would be blank, and no row."""


def is_array(file: OpenFile) -> bool:
    """Whether the first sign of a file opens an array. Raises :class:`FileUnusable` as reading it does."""
    with opened_text(file) as stream:
        return _open_array(stream) is not None


class ElementCounter:
    """Blocks know themselves with which element they begin, each of which is one of their lines."""

    def lines_before(self, offset: int) -> int:
        """The number itself."""
        return offset


class JsonArrayFile:
    """One opened file; see :class:`~distop.spark_jobs.formats.reader.FileReader`."""

    row_unit = "element"

    def __init__(self, file: OpenFile, elements: Converter) -> None:
        self._file = file
        self.convert = elements.convert

    def blocks(self, start: int, end: int | None) -> Iterator[TextRows]:
        """All elements, if the range has the first byte of the file."""
        if start > 0:
            return
        for block in element_blocks(self._file):
            yield TextRows(block, ElementCounter(), split=split_lines, is_blank=lambda _: False)


def element_blocks(file: OpenFile, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
    """The elements of an array, one on a line each; ``offset`` counts elements.

    Raises
    ------
    FileUnusable
        The array is not closed, or something stands behind it; an element is too long.
    """
    count = 0
    with opened_text(file) as stream:
        buffer = _open_array(stream)
        closed = buffer is None
        if buffer is not None:
            buffer += stream.read(block_bytes)
        while buffer is not None and not closed:
            elements, used, closed = _elements(buffer)
            buffer = buffer[used:]
            if elements:
                yield Block(count, b"".join(elements))
                count += len(elements)
            elif len(buffer) > MAX_LINE_BYTES:
                raise FileUnusable(f"has an element, number {count + 1}, of more than {MAX_LINE_BYTES} bytes")
            if not closed:
                data = stream.read(block_bytes)
                if not data:
                    raise FileUnusable(f"holds a JSON array that is not closed, behind {count} elements")
                buffer += data
        while buffer and not buffer.strip():
            buffer = stream.read(TAIL_BYTES)
        if buffer:
            raise FileUnusable(f"holds a JSON array of {count} elements, and something else behind it")


def _open_array(stream: BinaryIO) -> bytes | None:
    """What was read of an array, without its first sign; ``None`` if the file holds something else."""
    data = stream.read(TAIL_BYTES)
    data = data[size_of_mark(data) :]
    while data and not data.strip():
        data = stream.read(TAIL_BYTES)
    data = data.lstrip()
    return data[1:] if data.startswith(b"[") else None


def _elements(text: bytes) -> tuple[list[bytes], int, bool]:
    """The whole elements that a text begins with, how much of it they are, and whether the array ends there.

    What is no value at all is an element, too, but for the room between the signs of an empty array.
    """
    elements: list[bytes] = []
    begin = depth = 0
    for match in _TOKEN.finditer(text):
        sign = match[0]
        if sign in (b"[", b"{"):
            depth += 1
        elif sign == b'"':
            break
        elif depth and sign in (b"]", b"}"):
            depth -= 1
        elif not depth and sign in (b",", b"]"):
            element = text[begin : match.start()].strip()
            if element or elements or sign == b",":
                elements.append((element.translate(_ONE_LINE) or _NOTHING) + b"\n")
            begin = match.end()
            if sign == b"]":
                return elements, begin, True
    return elements, begin, False
