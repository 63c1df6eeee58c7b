"""The rows that an ingest could not read, in files below the location of its table.

Each job writes its bad rows to a file of its own: one JSON object per line, with the position of the row
(first its source), ``reason``, ``raw``, and what else its text needs (see :attr:`Kept.text`). The commit
writes one *list* next to them: which files count, and how their rows are read. Only listed files have rows:
an attempt that does not count may write its file late, even after its other files were removed.

All of them stay as long as the table's folder: nothing removes those of an operation that succeeded.
"""

from __future__ import annotations

import ast
import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from distop.errors import CorruptRecord, PreconditionFailed
from distop.lake.storage.storage import StorageOptions, entries, file_system
from distop.metastore.records.record import from_json

MAX_KEPT_BYTES = 1 << 20
"""Bytes of a row that are kept."""
LIST_SUFFIX = "-list.json"

REASON, RAW, EXACT, HEADER, CUT = "reason", "raw", "base64", "header", "cut"
"""Fields of an entry that are no part of the row's position."""
_NO_POSITION = frozenset({REASON, RAW, EXACT, HEADER, CUT})

_COLUMN = re.compile(r"""column ('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"): """)


class QuarantineList(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel"):
    """What one operation has put into quarantine."""

    operation: str
    argument: dict[str, Any] = {}
    """The fields of an ingest's argument with which the rows are read as they were the first time."""
    no_text: str = ""
    """Why the text of the rows is not all that there was of them; empty: it is."""
    files: list[tuple[str, int]] = []
    """Names within the folder, and the number of their rows."""

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)


class PagePosition(NamedTuple):
    """Where a page of rows begins."""

    file: int = 0
    offset: int = 0
    """Bytes from the beginning of the file."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A row in quarantine: one line of its file."""

    entry: dict[str, Any]

    @classmethod
    def of(cls, line: bytes) -> Kept:
        """The row that a line describes. Raises :class:`~distop.errors.CorruptRecord`."""
        try:
            return cls(msgspec.json.decode(line, type=dict[str, Any]))
        except msgspec.MsgspecError as error:
            raise CorruptRecord(f"a quarantine file holds a line that is no entry: {error}") from None

    @property
    def position(self) -> dict[str, Any]:
        """First the source, last the position in it."""
        return {name: value for name, value in self.entry.items() if name not in _NO_POSITION}

    @property
    def reason(self) -> str:
        return str(self.entry.get(REASON, ""))

    @property
    def column(self) -> str:
        """The column whose value was bad; empty if the reason names none."""
        match = _COLUMN.match(self.reason)
        return str(ast.literal_eval(match[1])) if match else ""

    @property
    def header(self) -> str:
        """The line of its file that names the columns; empty if it has none."""
        return str(self.entry.get(HEADER, ""))

    @property
    def is_cut(self) -> bool:
        """Whether only the beginning of the row was kept."""
        return bool(self.entry.get(CUT))

    @property
    def exact(self) -> str:
        """Its bytes in base64, if they are no UTF-8; otherwise empty."""
        return str(self.entry.get(EXACT, ""))

    @property
    def raw(self) -> str:
        """The text of the row, for people."""
        return str(self.entry.get(RAW, ""))

    @property
    def text(self) -> bytes:
        """The row as its file has it, without the end of its line. It need not be UTF-8."""
        return base64.b64decode(self.exact) if self.exact else self.raw.encode()


def kept_text(data: bytes, *, header: str = "") -> dict[str, Any]:
    """The fields of an entry for the text of a row, so that :attr:`Kept.text` has the same bytes; of a longer
    one than :data:`MAX_KEPT_BYTES` only the beginning, and that it is one."""
    shown = data[:MAX_KEPT_BYTES].decode(errors="backslashreplace")
    if len(data) > MAX_KEPT_BYTES:
        return {RAW: f"{shown}… ({len(data)} bytes)", CUT: True}
    fields = {RAW: shown}
    if shown.encode() != data:
        fields[EXACT] = base64.b64encode(data).decode()
    return fields | ({HEADER: header} if header else {})


def read_list(folder: str, storage: StorageOptions | None = None) -> QuarantineList:
    """The list in a folder of quarantine files.

    Raises
    ------
    PreconditionFailed
        There is none: an earlier release has written the files, or somebody has removed them.
    CorruptRecord
    """
    names = [entry.name for entry in entries(folder, storage) if entry.name.endswith(LIST_SUFFIX)]
    if not names:
        raise PreconditionFailed(
            f"{folder} has no list of its quarantine files",
            hint="an earlier release wrote them, or they were removed: ingest the rows of its files by hand",
        )
    files, path = file_system(f"{folder}/{names[0]}", storage)
    with files.open(path, "rb") as stream:
        try:
            return from_json(stream.read(), QuarantineList)
        except msgspec.MsgspecError as error:
            raise CorruptRecord(f"{folder}/{names[0]} is no list of quarantine files: {error}") from None


def read_rows(
    folder: str,
    names: Sequence[str],
    begin: PagePosition,
    storage: StorageOptions | None = None,
) -> Iterator[tuple[Kept, PagePosition]]:
    """The rows of some quarantine files from a place on, each with the place after it.

    Raises :class:`~distop.errors.CorruptRecord`, and ``FileNotFoundError`` if a file was removed.
    """
    for number in range(begin.file, len(names)):
        files, path = file_system(f"{folder}/{names[number]}", storage)
        at = begin.offset if number == begin.file else 0
        with files.open(path, "rb") as stream:
            stream.seek(at)
            for line in stream:
                at += len(line)
                yield Kept.of(line), PagePosition(number, at)


def page(
    folder: str, storage: StorageOptions, begin: PagePosition, *, rows: int, most_bytes: int
) -> tuple[list[Kept], PagePosition | None, str]:
    """Some rows of an operation, at least one if there are more; where the next ones begin, if there may be
    any; and the format of their text. Raises as :func:`read_list` and :func:`read_rows`."""
    listed = read_list(folder, storage)
    file_format = str(listed.argument.get("format", ""))
    names = [name for name, _ in listed.files]
    page: list[Kept] = []
    size = 0
    for row, after in read_rows(folder, names, begin, storage):
        page.append(row)
        size += len(row.raw) + len(row.exact) + len(row.header)
        if len(page) >= rows or size >= most_bytes:
            return page, after, file_format
    return page, None, file_format
