"""Compares each cell with what is expected of it, and the wrong ones with those that are known to be."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from truth.matrix import Results, sent_by
from truth.readers import READERS, UNREADABLE
from truth.values import KINDS, WRITERS, Case, Kind

KNOWN = Path(__file__).with_name("known.txt")
"""Cells that are wrong, and known to be."""

_BEFORE_ROWS = re.compile(
    r"INVALID_ARGUMENT|InvalidArgument|PRECONDITION_FAILED|PreconditionFailed|cannot become"
)
"""In a refusal of all values of a type, which comes before there is a value that could be named."""
_COLUMN = re.compile(r"'v['.]")
"""The column, or a field of it."""
_BAD_ROW = re.compile(r"BAD_ROW|BadRow")


@dataclass(frozen=True, order=True)
class Cell:
    """A value of a type, by the way that it came in and by who reads it."""

    kind: str
    writer: str
    case: str
    reader: str


def cells(writers: Iterable[str], readers: Iterable[str], kinds: Iterable[Kind] = KINDS) -> Iterator[Cell]:
    """All cells of these writers, readers and types."""
    for kind in kinds:
        for writer in writers:
            for case in sent_by(kind, writer).values():
                for reader in readers:
                    if (kind.name, reader) not in UNREADABLE:
                        yield Cell(kind.name, writer, case.name, reader)


def faults(results: Results, measured: Iterable[Cell]) -> dict[Cell, str]:
    """The cells that are not as expected, with what was expected and what was seen."""
    kinds = {kind.name: kind for kind in KINDS}
    numbers = {
        (kind.name, writer, case.name): number
        for kind in KINDS
        for writer in WRITERS
        for number, case in sent_by(kind, writer).items()
    }
    wrong = {}
    for cell in measured:
        text = _fault(results, cell, kinds[cell.kind], numbers[cell.kind, cell.writer, cell.case])
        if text:
            wrong[cell] = text
    return wrong


def _fault(results: Results, cell: Cell, kind: Kind, number: int) -> str:
    rows, case = results.rows[cell.kind, cell.reader], sent_by(kind, cell.writer)[number]
    refusal = results.refusals[cell.kind].get(number, "")
    if kind.is_refused(case, cell.writer):
        return f"expected a refusal, seen {rows[number]!r}" if number in rows else _unnamed(case, refusal)
    if number in rows:
        same = repr(rows[number]) == repr(case.value)  # which tells signs of zeros apart, and no NaN
        return "" if same else f"expected {case.value!r}, seen {rows[number]!r}"
    failure = results.failures.get((cell.kind, cell.reader, cell.writer), "nothing")
    return f"expected {case.value!r}, seen {refusal or failure}"


def _unnamed(case: Case, refusal: str) -> str:
    """What a refusal does not name, though it should: the column, and the value or its type."""
    if not refusal:
        return "expected a refusal, seen none, nor a row"
    if not _COLUMN.search(refusal) and not case.malformed:
        return f"expected a refusal that names the column, seen {refusal}"
    if _BEFORE_ROWS.search(refusal):
        return ""
    if not _BAD_ROW.search(refusal):
        return f"expected the error BAD_ROW, seen {refusal}"
    text = case.text or ""
    spelled = {text, text.replace("T", " ").rstrip("Z"), str(case.value), repr(case.value)[2:-1]}
    named = any(text and text in refusal.replace("\\\\", "\\") for text in spelled)
    return "" if named else f"expected a refusal that names the value {case.name}, seen {refusal}"


# -- known ones --------------------------------------------------------------------------------------


def known() -> dict[Cell, str]:
    """The cells of the file, each with why it is wrong."""
    reasons = {}
    for line in KNOWN.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        kind, writers, case, readers, reason = (part.strip() for part in line.split("|"))
        for writer in _several(writers, WRITERS):
            for reader in _several(readers, READERS):
                reasons[Cell(kind, writer, case, reader)] = reason
    return reasons


def _several(text: str, all_of_them: Iterable[str]) -> Iterable[str]:
    return all_of_them if text == "*" else [name.strip() for name in text.split(",")]


def unexpected(wrong: Mapping[Cell, str], measured: Iterable[Cell]) -> list[str]:
    """Lines about what differs from the file: cells that are wrong and not in it, and those that are right.
    Readers of whom the same is said share a line."""
    expected = known()
    texts = {cell: text for cell, text in wrong.items() if cell not in expected}
    texts |= {
        cell: f"it is right now: remove it from {KNOWN.name}"
        for cell in measured
        if cell in expected and cell not in wrong
    }
    readers: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for cell, text in texts.items():
        readers[cell.kind, cell.writer, cell.case, text].append(cell.reader)
    return [
        f"{kind} | {writer} | {case} | {', '.join(some)}: {text}"
        for (kind, writer, case, text), some in readers.items()
    ]
