"""Rows that cannot be read: finding them exactly, and what becomes of them."""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from distop.errors import BadRow

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, OutputStream

logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 400


PIECE_ROWS = 512
"""A block with a bad row is first taken apart into pieces of so many rows."""


class Unconvertible(Exception):
    """Some of the rows cannot be converted. Its text says why, in words for the user.

    Parameters
    ----------
    row:
        Index of a bad row among those that were to be converted, if known; there may be others before it.
    """

    def __init__(self, reason: str, row: int | None = None) -> None:
        super().__init__(reason)
        self.row = row


class Rows(Protocol):
    """Raw rows of one file."""

    def __len__(self) -> int: ...

    def part(self, start: int, stop: int) -> Self:
        """Some of the rows."""

    def number(self) -> int:
        """Where the first row stands in its file, counted from 1. May read the file."""

    def raw(self) -> str:
        """The rows as text, to be looked at by people."""


R = TypeVar("R", bound=Rows)
T = TypeVar("T")


def convert_good_rows(rows: R, convert: Callable[[R], T], reject: Callable[[R, str], None]) -> Iterator[T]:
    """Convert what can be converted, in order; ``reject`` each row that cannot.

    Rows are taken apart until the bad ones stand alone, so that one and the same conversion decides about a
    block and about a single row: a row is good or bad whatever stands beside it.
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
    """Where to take ``count`` rows apart, of which one is bad: around it, if that leaves something aside."""
    if count > PIECE_ROWS:
        return [*range(0, count, PIECE_ROWS), count]
    if bad is not None and 0 < bad < count:
        return sorted({0, bad, bad + 1, count})
    return sorted({0, count // 2, count})


class RowPlace(Protocol):
    """Where a row stands in its source; as text, for people."""

    def facts(self) -> dict[str, Any]:
        """The same for programs: first the source, last the place within it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a row stands: the URL of its file, and its line (CSV, JSON) or row (Parquet), counted from 1."""

    file: str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"

    def facts(self) -> dict[str, Any]:
        return {"file": self.file, self.unit: self.number}


class BadRowPolicy(ABC):
    """What becomes of bad rows."""

    count: int = 0
    path: str | None = None
    """Where they are kept, once there are any."""

    @abstractmethod
    def reject(self, place: RowPlace, reason: str, raw: str) -> None:
        """One bad row.

        Raises
        ------
        BadRow
            If the policy is to fail.
        """

    def close(self) -> None:  # noqa: B027 - a default, not a gap
        """No more will come; what is kept is complete."""

    def abort(self) -> None:  # noqa: B027 - a default, not a gap
        """The attempt has failed; nothing is kept."""


class Fail(BadRowPolicy):
    """The first bad row fails the job."""

    def reject(self, place: RowPlace, reason: str, raw: str) -> None:
        self.count += 1
        raise BadRow(
            f"{place}: {_shorten(reason)}",
            details={name: str(value) for name, value in place.facts().items()},
        )


class Quarantine(BadRowPolicy):
    """Bad rows go into a file of JSON lines: where they stand (``file``, ``line``), ``reason`` and ``raw``.

    Parameters
    ----------
    io:
        Access to the table's files.
    path:
        URL of the file; it is made when the first bad row comes.
    """

    def __init__(self, io: FileIO, path: str) -> None:
        self._io = io
        self._target = path
        self._stream: OutputStream | None = None

    def reject(self, place: RowPlace, reason: str, raw: str) -> None:
        if self._stream is None:
            self._stream = self._io.new_output(self._target).create(overwrite=True)
            self.path = self._target
            logger.info(
                "rows_quarantined", extra={"path": self._target, "first": str(place), "reason": reason}
            )
        entry = {**place.facts(), "reason": _shorten(reason), "raw": raw}
        self._stream.write(json.dumps(entry, ensure_ascii=False).encode() + b"\n")
        self.count += 1

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
            # The reason of the failure matters more; the attempt's clean-up will try again.
            logger.warning("quarantine_not_removed", extra={"path": self._target, "error": str(error)})


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else text[: MAX_REASON_CHARACTERS - 1] + "…"
