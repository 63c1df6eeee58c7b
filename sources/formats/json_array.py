"""Files that are one JSON array of objects, read element by element: a file may be larger than memory.

The beginning of an element is known only after reading everything before it. So one job reads such a file as
a whole: the one whose range has its first byte. Later ranges contain no element.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from distop.sources.formats.files import OpenFile
from distop.sources.formats.lines import BLOCK_BYTES, MAX_LINE_BYTES, TAIL_BYTES, Block
from distop.sources.formats.reader import FileUnusable
from distop.sources.formats.text_file import Converter, opened_text, size_of_mark
from distop.sources.formats.text_rows import TextRows, split_lines

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_TOKEN = re.compile(rb'\{(?:[^{}\[\]"]++|%b)*+\}|%b|[\[\]{},"]' % (_STRING, _STRING), re.DOTALL)
"""The tokens of the structure: objects without nested ones as a whole, strings, and single characters. A lone
quote begins a string that continues after the text."""
_ONE_LINE = bytes.maketrans(b"\r\n", b"\t\t")
"""Control characters: white space between values; not allowed within a string."""

_NOTHING = b"null"
"""Stands for a missing element: its line would be blank, and not a row."""


def is_array(file: OpenFile) -> bool:
    """Whether the first character of a file opens an array. Raises :class:`FileUnusable` as reading it
    does."""
    with opened_text(file) as stream:
        return _open_array(stream) is not None


class ElementCounter:
    """Blocks know the number of their first element; each element is one of their lines."""

    def lines_before(self, offset: int) -> int:
        """The number itself."""
        return offset


class JsonArrayFile:
    """An open file; see :class:`~distop.sources.formats.reader.FileReader`."""

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
    """The elements of an array, one per line; ``offset`` counts elements.

    Raises
    ------
    FileUnusable
        The array is not closed, or is followed by something; an element is too long.
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
                    raise FileUnusable(f"holds a JSON array that is not closed after {count} elements")
                buffer += data
        while buffer and not buffer.strip():
            buffer = stream.read(TAIL_BYTES)
        if buffer:
            raise FileUnusable(f"holds a JSON array of {count} elements, followed by something else")


def _open_array(stream: BinaryIO) -> bytes | None:
    """The part of an array that was read, without its first character; ``None`` if the file is not an
    array."""
    data = stream.read(TAIL_BYTES)
    data = data[size_of_mark(data) :]
    while data and not data.strip():
        data = stream.read(TAIL_BYTES)
    data = data.lstrip()
    return data[1:] if data.startswith(b"[") else None


def _elements(text: bytes) -> tuple[list[bytes], int, bool]:
    """The complete elements at the start of a text, their length, and whether the array ends there.

    An invalid value is also an element, except the space within an empty array.
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
