"""Unreadable rows: finding them exactly, naming their values, and handling them."""

from __future__ import annotations

import json
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import pyarrow as pa
from pyarrow import types as is_

from distop.errors import BadRow, TooManyBadRows
from distop.lake.writing.casts import Values

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, OutputStream

logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 400
MAX_VALUE_CHARACTERS = 200
MAX_ENTRY_BYTES = 1 << 16
"""Bytes of an entry without the row itself, with some to spare."""

PIECE_ROWS = 512
"""A block with a bad row is first split into pieces of this many rows."""


_BEFORE_RAW = re.compile(r'\{.*?"reason": "(?:[^"\\]|\\.)*"(?=, "raw": )')


class Unconvertible(Exception):
    """Some of the rows cannot be converted. The text is the reason, for the user.

    Parameters
    ----------
    row:
        Index of a bad row among the rows to convert, if known; there may be others before it.
    """

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row


# -- values ------------------------------------------------------------------------------------------


def bad_value(column: str, values: Values, check: Callable[[Values], object], reason: str) -> Unconvertible:
    """The error about the first bad value of a column.

    Parameters
    ----------
    values:
        At least one is bad.
    check:
        Raises ``pa.ArrowInvalid`` if some values have a bad one. It is repeated to find the value by halves:
        only those who have a bad one pay for it.
    reason:
        Why, with ``{}`` for the value.
    """
    while len(values) > 1:
        half = len(values) // 2
        try:
            check(values.slice(0, half))
            values = values.slice(half)
        except pa.ArrowInvalid:
            values = values.slice(0, half)
    return refused(column, values[0], reason)


def refused(column: str, value: pa.Scalar, reason: str) -> Unconvertible:
    """As :func:`bad_value`, about a value that is known."""
    return Unconvertible(f"column {column!r}: {reason.format(_named(value))}")


def _named(value: pa.Scalar) -> str:
    """A value within a sentence."""
    if isinstance(value, pa.StringScalar):
        data = value.as_buffer().to_pybytes()
        try:
            return _shorten(repr(data.decode()), MAX_VALUE_CHARACTERS)
        except UnicodeDecodeError:
            return _shorten(repr(data), MAX_VALUE_CHARACTERS)
    return _shorten(str(shown(value)), MAX_VALUE_CHARACTERS)


def shown(value: pa.Scalar) -> Any:
    """A value for people, as ``json.dumps`` with ``default=str`` can write it: what is stored, also where
    Python has no such value (a date after the year 9999) or another one (24:00:00, which would be 00:00:00).
    """
    kind = value.type
    if not value.is_valid:
        return None
    if is_.is_dictionary(kind):
        return shown(value.value)
    if is_.is_struct(kind):
        return {field.name: shown(value[number]) for number, field in enumerate(kind)}
    if is_.is_map(kind):
        return [[shown(entry[0]), shown(entry[1])] for entry in value.values]
    if is_.is_nested(kind):
        return [shown(item) for item in value.values]
    if isinstance(value, pa.StringScalar):
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    if is_.is_temporal(kind):
        # Arrow's texts of arrays need no database of time zones, those of its casts do.
        text = pa.repeat(value, 1).to_string(skip_new_lines=True)[1:-1]
        return text.removeprefix("<value out of range: ").removesuffix(">")
    return value.as_py()


# -- rows --------------------------------------------------------------------------------------------


class Rows(Protocol):
    """Raw rows of one file."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Some of the rows."""

    def number(self) -> int:
        """The position of the first row in its file, counted from 1. May read the file."""

    def kept(self) -> dict[str, Any]:
        """The rows as fields of a quarantine entry: ``raw``, and what else their text needs (see
        :mod:`distop.lake.storage.quarantine`)."""


R = TypeVar("R", bound=Rows)
T = TypeVar("T")


def convert_good_rows(rows: R, convert: Callable[[R], T], reject: Callable[[R, str], None]) -> Iterator[T]:
    """Convert all convertible rows, in order; ``reject`` each other row.

    Rows are split until the bad ones are alone, so the same conversion decides about a block and about a
    single row: a row is good or bad independently of its neighbours.
    """
    waiting = [rows]
    while waiting:
        part = waiting.pop()
        try:
            yield convert(part)
        except Unconvertible as error:
            if len(part) == 1:
                reject(part, str(error))
            else:
                edges = _edges(len(part), error.row)
                waiting.extend(part.part(start, stop) for start, stop in reversed(list(pairwise(edges))))


def _edges(count: int, bad: int | None) -> list[int]:
    """Where to split ``count`` rows with a bad one: around it, if that separates any."""
    if count > PIECE_ROWS:
        return [*range(0, count, PIECE_ROWS), count]
    if bad is not None and 0 < bad < count:
        return sorted({0, bad, bad + 1, count})
    return sorted({0, count // 2, count})


class RowPosition(Protocol):
    """The position of a row in its source; as text, for people."""

    def facts(self) -> dict[str, Any]:
        """The same for programs: first the source, last the position in it."""


@dataclass(frozen=True, slots=True)
class FilePosition:
    """The position of a row: the URL of its file, and its line (CSV, JSON) or row (Parquet, Avro), counted
    from 1."""

    file: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"

    def facts(self) -> dict[str, Any]:
        return {"file": self.file, self.unit: self.number}


class BadRowPolicy(ABC):
    """Handles bad rows."""

    count: int = 0
    path: str | None = None
    """Where they are stored, once there are any."""

    @abstractmethod
    def reject(self, position: RowPosition, reason: str, kept: Mapping[str, Any]) -> None:
        """One bad row; ``kept`` as :meth:`Rows.kept`.

        Raises
        ------
        BadRow
            The policy is to fail.
        """

    def close(self) -> None:  # noqa: B027 - a default, not a gap
        """No more will come; the stored rows are complete."""

    def abort(self) -> None:  # noqa: B027 - a default, not a gap
        """The attempt has failed; nothing is stored."""


class Fail(BadRowPolicy):
    """The first bad row fails the job."""

    def reject(self, position: RowPosition, reason: str, kept: Mapping[str, Any]) -> None:
        self.count += 1
        raise BadRow(
            f"{position}: {_shorten(reason)}",
            details={name: str(value) for name, value in position.facts().items()},
        )


class QuarantineRows(BadRowPolicy):
    """Bad rows go to a file of JSON lines: their position (``file``, ``line``), ``reason``, ``raw``, and what
    else :meth:`Rows.kept` has.

    Parameters
    ----------
    io:
        File access of the table.
    path:
        URL of the file; it is created with the first bad row.
    most:
        More bad rows fail the job; ``None``: any number is allowed.
    """

    def __init__(self, io: FileIO, path: str, *, most: int | None = None) -> None:
        self._io = io
        self._target = path
        self._most = most
        self._stream: OutputStream | None = None

    def reject(self, position: RowPosition, reason: str, kept: Mapping[str, Any]) -> None:
        if self._stream is None:
            self._stream = self._io.new_output(self._target).create(overwrite=True)
            self.path = self._target
            logger.info(
                "rows_quarantined", extra={"path": self._target, "first": str(position), "reason": reason}
            )
        entry = {**position.facts(), "reason": _shorten(reason), **kept}
        self._stream.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self.count += 1
        if self._most is not None and self.count > self._most:
            raise TooManyBadRows(f"more than {self._most:,} rows are bad; {position}: {entry['reason']}")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def abort(self) -> None:
        if self._stream is None:
            return
        try:
            self._stream.close()
            self._io.delete(self._target)
        except Exception as error:
            # The error of the failure matters more; the attempt's clean-up will retry.
            logger.warning("quarantine_not_removed", extra={"path": self._target, "error": str(error)})


def first_of(io: FileIO, path: str) -> str:
    """Position and reason of the first row in a quarantine file, as text; empty if it cannot be read."""
    try:
        with io.new_input(path).open() as stream:
            head = stream.read(MAX_ENTRY_BYTES).decode(errors="replace")
        match = _BEFORE_RAW.match(head)
        entry = json.loads(f"{match[0]}}}") if match else {}
    except (OSError, ValueError):
        return ""
    reason = entry.pop("reason", "")
    source, *position = entry.items()
    return ", ".join([source[1], *(f"{unit} {number}" for unit, number in position)]) + f": {reason}"


def _shorten(text: str, most: int = MAX_REASON_CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
