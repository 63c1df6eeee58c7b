"""Line-oriented files: complete lines from a range of a file, in blocks of bounded size, as rows with their
position.

The rule that makes ranges add up to the file: a line belongs to the range that contains its first byte. So
every line is read exactly once, wherever the file is split, and a reader may read past the end of its range
to finish its last line.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol, Self

import pyarrow as pa

from distop.lake.storage.quarantine import kept_text
from distop.sources.formats.files import OpenFile
from distop.sources.formats.reader import FileUnusable

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
class LineBlock:
    """Some complete lines: ``data`` begins at byte ``offset`` of the file, where a line begins."""

    offset: int
    data: bytes


def last_line_end(text: bytes) -> int:
    """The position after the last newline; 0 if there is none."""
    return text.rfind(b"\n") + 1


def range_blocks(
    file: Seekable, start: int, end: int | None, *, first: int = 0, block_bytes: int = BLOCK_BYTES
) -> Iterator[LineBlock]:
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
) -> Iterator[LineBlock]:
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
                yield LineBlock(at, buffer)
            return
        buffer = buffer + data if buffer else data
        if end is not None and at + len(buffer) >= end:
            # The line with the last byte of the range is the last one that begins in it.
            stop = buffer.find(b"\n", end - 1 - at) + 1
            if stop:
                yield LineBlock(at, buffer[:stop])
                return
        stop = last_end(buffer)
        if stop:
            yield LineBlock(at, buffer[:stop])
            at += stop
            buffer = buffer[stop:]
        elif len(buffer) > MAX_LINE_BYTES:
            raise LineTooLong(at)


class Lines(Protocol):
    """Records as lines of text, for converters."""

    @property
    def data(self) -> bytes:
        """The text of the records."""

    def __len__(self) -> int:
        """The number of records."""


class Counter(Protocol):
    """Knows how many lines of a file end before a block of it."""

    def lines_before(self, offset: int) -> int:
        """Lines before the block at ``offset``; offsets must not decrease."""


class LineCounter:
    """Counts the lines of one file, for messages: only on demand, and reading forward only once.

    Parameters
    ----------
    open_text:
        Opens the file (decompressed) at its beginning.
    """

    def __init__(self, open_text: Callable[[], BinaryIO]) -> None:
        self._open = open_text
        self._file: BinaryIO | None = None
        self._offset = 0
        self._lines = 0

    def lines_before(self, offset: int) -> int:
        """How many lines end before byte ``offset``; offsets must not decrease."""
        if self._file is None:
            self._file = self._open()
        while self._offset < offset and (data := self._file.read(min(BLOCK_BYTES, offset - self._offset))):
            self._offset += len(data)
            self._lines += data.count(b"\n")
        return self._lines

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def split_lines(text: bytes) -> Iterator[bytes]:
    """Lines with their newline; the last one may lack it."""
    start = 0
    while (newline := text.find(b"\n", start)) >= 0:
        yield text[start : newline + 1]
        start = newline + 1
    if start < len(text):
        yield text[start:]


class TextRows:
    """Some records of a text file.

    Parameters
    ----------
    block:
        Whole records.
    split:
        Splits text into records.
    is_blank:
        Whether a record is not a row.
    header:
        The line of the file that names the columns, if it has one.
    """

    def __init__(
        self,
        block: LineBlock,
        counter: Counter,
        *,
        split: Callable[[bytes], Iterable[bytes]],
        is_blank: Callable[[bytes], bool],
        header: str = "",
    ) -> None:
        self._block = block
        self._counter = counter
        self._split = split
        self._is_blank = is_blank
        self._header = header
        self._records: list[tuple[int, bytes]] | None = None
        self._whole = True

    @property
    def data(self) -> bytes:
        """The text of the rows."""
        return self._block.data if self._whole else b"".join(text for _, text in self.records)

    @property
    def records(self) -> list[tuple[int, bytes]]:
        """``(line within the block, text)`` of every row, blank lines left out."""
        if self._records is None:
            self._records = []
            line = 0
            for text in self._split(self._block.data):
                if not self._is_blank(text):
                    self._records.append((line, text))
                line += text.count(b"\n")
        return self._records

    def __len__(self) -> int:
        return len(self.records)

    def part(self, start: int, stop: int) -> Self:
        part = type(self)(
            self._block, self._counter, split=self._split, is_blank=self._is_blank, header=self._header
        )
        part._records = self.records[start:stop]
        part._whole = False
        return part

    def number(self) -> int:
        return self._counter.lines_before(self._block.offset) + self.records[0][0] + 1

    def kept(self) -> dict[str, Any]:
        return kept_text(self.data.removesuffix(b"\n").removesuffix(b"\r"), header=self._header)


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
            See :class:`~distop.sources.formats.text_file.TextRows`.
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
        raise FileUnusable("is written in UTF-16, but read as UTF-8 (of CSV files, see --encoding)")
    return len(_BYTE_ORDER_MARK) if text.startswith(_BYTE_ORDER_MARK) else 0


def _skip(stream: BinaryIO, size: int) -> None:
    while size > 0 and (data := stream.read(min(size, TAIL_BYTES))):
        size -= len(data)


def has_lone_return(text: bytes) -> bool:
    """Whether there is a carriage return without a following newline."""
    return b"\r" in text and text.count(b"\r") != text.count(b"\r\n")
