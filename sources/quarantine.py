"""Quarantined rows as files that an ingest reads: each row as it was, at its old position."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, BinaryIO, Self

import pyarrow as pa

from distop.errors import AlreadyIngested
from distop.lake.layout.staging import quarantine_folder
from distop.lake.storage.quarantine import Kept, PagePosition, QuarantineList, read_list, read_rows
from distop.lake.storage.storage import StorageOptions, file_system, storage_of
from distop.metastore.records.operation import WatermarkMove
from distop.metastore.records.table import TableRecord
from distop.operations.arguments import invalid
from distop.sources.formats.bad_rows import Unconvertible
from distop.sources.formats.csv import CsvRecords, names_in
from distop.sources.formats.files import FoundSource, OpenFile, source_file, utf_8
from distop.sources.formats.inference import SAMPLE_BYTES, CsvSample, JsonSample
from distop.sources.formats.jsonl import JsonObjects, is_blank
from distop.sources.formats.options import CsvOptions
from distop.sources.formats.reader import ReadColumns
from distop.sources.formats.text_file import Converter, TextFile, TextRows
from distop.sources.kafka.records import json_line

SOURCE = "quarantine"
"""Name of the source whose watermarks say what was replayed: operation -> :data:`REPLAYED`."""
REPLAYED = "replayed"

_FOLDER = re.compile(r"_?quarantine/[0-9A-Za-z_-]+")


@dataclass(frozen=True)
class Quarantined:
    """What one operation has put into quarantine.

    Parameters
    ----------
    url:
        The folder of its files.
    """

    url: str
    storage: StorageOptions
    listed: QuarantineList

    @classmethod
    def of(cls, table: TableRecord, folder: Any) -> Quarantined:
        """The rows in a folder, as an operation's fact ``quarantine`` names it.

        Raises
        ------
        InvalidArgument
            It is no such name.
        PreconditionFailed
            It has no rows.
        """
        own = quarantine_folder(table.format)
        if not isinstance(folder, str) or not _FOLDER.fullmatch(folder) or not folder.startswith(f"{own}/"):
            raise invalid(
                "replay",
                f"{folder!r} is no folder of quarantined rows",
                f"name it as distop operation show says, such as {own}/ingest-0123456789ab",
            )
        url, storage = f"{table.location}/{folder}", storage_of(table)
        return cls(url, storage, read_list(url, storage))

    def check_text(self) -> None:
        """Raise :class:`~distop.errors.InvalidArgument` if the text of the rows is not all that there was."""
        if self.listed.no_text:
            raise invalid(
                "replay",
                f"rows of {self.listed.operation} cannot be read again as they are: {self.listed.no_text}",
                "put them right in files of your own, and name these with paths",
            )

    def moves(
        self, watermarks: Mapping[str, Mapping[str, str]], *, again: bool
    ) -> dict[str, dict[str, WatermarkMove]]:
        """The watermark that lets the rows be replayed once.

        Raises :class:`~distop.errors.AlreadyIngested` if they were, unless they may be ``again``.
        """
        operation = self.listed.operation
        before = watermarks.get(SOURCE, {}).get(operation)
        if before is not None and not again:
            raise AlreadyIngested(
                f"the quarantined rows of {operation} were replayed already",
                hint=f"distop quarantine list {operation.partition('/')[0]} says by which operation",
                details={"field": "replay", "partition": operation, "watermark": before},
            )
        return {SOURCE: {operation: WatermarkMove(before=before, after=REPLAYED)}}

    def source(self) -> FoundSource:
        """The files that count."""
        files, path = file_system(self.url, self.storage)
        path = path.rstrip("/")
        there = {str(info["name"]).rpartition("/")[2]: info for info in files.ls(path, detail=True)}
        try:
            listed = [there[name] for name, _ in self.listed.files]
        except KeyError as lost:
            raise invalid("replay", f"{self.url}/{lost.args[0]} does not exist any more") from None
        folder = listed[0]["name"].rpartition("/")[0]
        return FoundSource(self.url, {"": [source_file(folder, info) for info in listed]})

    def open(self, name: str) -> OpenFile:
        """Opens one of the files of rows in quarantine."""
        return table_file(self.url, name, self.storage)

    def sample(self, options: CsvOptions, *, csv: bool) -> CsvSample | JsonSample:
        """The columns of the first rows."""
        rows, size = [], 0
        for row, _ in read_rows(
            self.url, [name for name, _ in self.listed.files], PagePosition(), self.storage
        ):
            rows.append(row)
            size += len(row.text)
            if size > SAMPLE_BYTES:
                break
        if not csv:
            return JsonSample(row.text for row in rows)
        heads = []
        for header, some in groupby(rows, lambda row: row.header):
            text = b"".join(_in_utf_8(row, options.encoding) + b"\n" for row in some if not row.is_cut)
            heads.append((_names(header, options), text))
        return CsvSample(heads, options)


@dataclass(frozen=True, slots=True)
class _TableFile(OpenFile):
    """A file of the table: what may be read as a source does not matter."""

    def _decompressed(self) -> BinaryIO:
        return self.fs.open(self.path, "rb")


def table_file(folder_url: str, name: str, storage: StorageOptions) -> OpenFile:
    """A file of quarantined rows, opened as all files of the table are."""
    url = f"{folder_url}/{name}"
    files, path = file_system(url, storage)
    return _TableFile(files, path, url)


def _in_utf_8(row: Kept, encoding: str) -> bytes:
    return utf_8(row.text, encoding) if encoding else row.text


def _names(header: str, options: CsvOptions) -> list[str]:
    return options.header if isinstance(options.header, list) else names_in(header.encode(), options)


@dataclass(frozen=True, slots=True)
class KeptPlace:
    """The position that a row had the first time."""

    position: Mapping[str, Any]

    def __str__(self) -> str:
        source, *rest = self.position.items()
        return ", ".join([str(source[1]), *(f"{unit} {number}" for unit, number in rest)])

    def facts(self) -> dict[str, Any]:
        """The position, by names of its parts: see :class:`~distop.sources.formats.bad_rows.RowPosition`."""
        return dict(self.position)


class KeptRows:
    """Some rows of files with one header."""

    def __init__(self, rows: Sequence[Kept], line_of: Any) -> None:
        self.rows = rows
        self._line_of = line_of

    @property
    def data(self) -> bytes:
        """Their text. Raises ``Unconvertible`` for one that is none, or that is not complete."""
        return b"".join(self._line_of(row) + b"\n" for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def part(self, start: int, stop: int) -> Self:
        return type(self)(self.rows[start:stop], self._line_of)

    def number(self) -> int:
        return next(reversed(self.rows[0].position.values()), 0)

    def kept(self) -> dict[str, Any]:
        row = self.rows[0]
        own = {*row.position, "reason"}
        return {name: value for name, value in row.entry.items() if name not in own}

    def first_position(self) -> KeptPlace:
        """The position of the first of them."""
        return KeptPlace(self.rows[0].position)


class KeptFile:
    """One file of quarantined rows; see :class:`~distop.sources.formats.reader.FileReader`."""

    row_unit = "row"

    def __init__(self, file: OpenFile, reader: QuarantineReader) -> None:
        self._text = TextFile(file, is_blank=is_blank)
        self._reader = reader

    def blocks(self, start: int, end: int | None) -> Iterator[KeptRows]:
        """The rows whose entries begin within a range of bytes."""
        for block in self._text.blocks(start, end, first=0):
            yield from self._reader.grouped(block)

    def convert(self, rows: KeptRows) -> pa.Table:
        """The required columns of rows with one header."""
        return self._reader.of_header(rows.rows[0].header).convert(rows)


class QuarantineReader:
    """Reads quarantined rows of CSV or JSON as their files were read."""

    def __init__(self, file_format: str, options: CsvOptions, wanted: ReadColumns) -> None:
        self._csv = file_format == "csv"
        self._options = options
        self._wanted = wanted
        self._converters: dict[str, Converter] = {}

    @contextmanager
    def open(self, file: OpenFile) -> Iterator[KeptFile]:
        yield KeptFile(file, self)

    def of_header(self, header: str) -> Converter:
        """Converts rows of files with this header. Raises :class:`.FileUnusable` if its columns do not
        match."""
        if header not in self._converters:
            self._converters[header] = self._converter(header)
        return self._converters[header]

    def _converter(self, header: str) -> Converter:
        if not self._csv:
            return JsonObjects(self._wanted)
        names = _names(header, self._options)
        self._wanted.check(names)
        return CsvRecords(names, self._options, self._wanted.schema)

    def grouped(self, block: TextRows) -> Iterator[KeptRows]:
        """Rows that are read together. One with a newline is alone: others must not decide where it ends."""
        rows = enumerate(Kept.of(text) for _, text in block.records)
        together = groupby(rows, lambda row: (row[1].header, row[0] if b"\n" in row[1].text else -1))
        for _, some in together:
            yield KeptRows([row for _, row in some], self._line_of)

    def _line_of(self, row: Kept) -> bytes:
        if row.is_cut:
            raise Unconvertible("only the beginning of this row was kept: ingest it from its source")
        return _in_utf_8(row, self._options.encoding) if self._csv else json_line(row.text)
