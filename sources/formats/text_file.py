"""An open line-oriented file: the start of its data, and its rows by range."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from typing import BinaryIO, Protocol

import pyarrow as pa

from distop.sources.formats.files import OpenFile
from distop.sources.formats.lines import (
    TAIL_BYTES,
    LineTooLong,
    last_line_end,
    range_blocks,
    whole_lines,
)
from distop.sources.formats.reader import FileUnusable
from distop.sources.formats.text_rows import LineCounter, Lines, TextRows, split_lines

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@contextmanager
def opened_text(file: OpenFile) -> Iterator[BinaryIO]:
    """The file's content as text. Damaged data raises :class:`FileUnusable`."""
    try:
        with closing(file.open()) as stream:
            yield stream
    except LineTooLong as error:
        raise FileUnusable(str(error)) from None
    except UnicodeDecodeError as error:
        raise FileUnusable(f"its text is damaged: {error}") from None
    except (lzma.LZMAError, EOFError) as error:
        raise FileUnusable(f"its compressed data is damaged: {error}") from error
    except OSError as error:
        # Errors of the operating system have a number, and may be transient.
        if file.compression is None or error.errno is not None:
            raise
        raise FileUnusable(f"its compressed data is damaged: {error}") from error


class TextFile:
    """A text file as records.

    Parameters
    ----------
    split:
        Splits text into records.
    last_end:
        The end of the last record of a text. If records are not simply lines, the file is read as a whole.
    """

    def __init__(
        self,
        file: OpenFile,
        *,
        is_blank: Callable[[bytes], bool],
        split: Callable[[bytes], Iterable[bytes]] = split_lines,
        last_end: Callable[[bytes], int] = last_line_end,
    ) -> None:
        self._file = file
        self._is_blank = is_blank
        self._split = split
        self._last_end = last_end

    def first_record(self) -> tuple[bytes, int, int]:
        """The first non-blank record, its start and its end; for an empty file ``b""``.

        A byte order mark is not part of a record.
        """
        end = 0
        with opened_text(self._file) as stream:
            for block in whole_lines(stream, 0, block_bytes=TAIL_BYTES, last_end=self._last_end):
                begin, text = block.offset, block.data
                if begin == 0:
                    begin = size_of_mark(text)
                for record in self._split(text[begin - block.offset :]):
                    end = begin + len(record)
                    if not self._is_blank(record):
                        return record, begin, end
                    begin = end
        return b"", end, end

    def head(self, first: int, size: int) -> bytes:
        """Complete records from byte ``first``, about ``size`` bytes of them; more if the first is longer."""
        with opened_text(self._file) as stream:
            _skip(stream, first)
            head = b""
            for block in whole_lines(stream, first, block_bytes=size, last_end=self._last_end):
                head += block.data
                if len(head) > size // 2:  # what is missing is one record, or the last line has no newline
                    break
            return head

    def blocks(self, start: int, end: int | None, *, first: int, header: str = "") -> Iterator[TextRows]:
        """Rows of a range of bytes; of a file that is read as a whole: all rows.

        Parameters
        ----------
        first:
            The start of the data.
        header:
            See :class:`~distop.sources.formats.text_rows.TextRows`.
        """
        with opened_text(self._file) as stream, closing(LineCounter(self._file.open)) as counter:
            if self._file.is_plain and self._last_end is last_line_end:
                blocks = range_blocks(stream, start, end, first=first)
            else:
                _skip(stream, first)
                blocks = whole_lines(stream, first, last_end=self._last_end)
            for block in blocks:
                yield TextRows(block, counter, split=self._split, is_blank=self._is_blank, header=header)


class Converter(Protocol):
    """Converts records to columns."""

    def convert(self, rows: Lines) -> pa.Table:
        """The required columns of some rows; raises ``Unconvertible``."""


class OpenTextFile:
    """One open text file of a source; see :class:`~distop.sources.formats.reader.FileReader`.

    Parameters
    ----------
    first:
        The start of its data.
    header:
        The line before it that names the columns, if there is one.
    """

    row_unit = "line"

    def __init__(self, text: TextFile, first: int, records: Converter, header: str = "") -> None:
        self._text, self._first, self._header = text, first, header
        self.convert = records.convert

    def blocks(self, start: int, end: int | None) -> Iterator[TextRows]:
        """Rows of a range of bytes."""
        return self._text.blocks(start, end, first=self._first, header=self._header)


def size_of_mark(text: bytes) -> int:
    """The length of the file's byte order mark. Raises :class:`FileUnusable` for UTF-16."""
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileUnusable("is written in UTF-16, but read as UTF-8 (of CSV files, see --arg encoding)")
    return len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0


def _skip(stream: BinaryIO, size: int) -> None:
    while size > 0 and (data := stream.read(min(size, TAIL_BYTES))):
        size -= len(data)


def has_lone_return(text: bytes) -> bool:
    """Whether there is a carriage return without a following newline."""
    return b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
