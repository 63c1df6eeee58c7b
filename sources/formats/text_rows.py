"""Rows of line-oriented files: blocks of text with their position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Protocol, Self

from distop.lake.storage.quarantine import kept_text
from distop.sources.formats.lines import BLOCK_BYTES, Block


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
        block: Block,
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
