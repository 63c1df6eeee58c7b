"""Compares each cell with what is expected of it, and the wrong ones with those that are known to be."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from truth.matrix import Seen, sent_by
from truth.readers import READERS, UNREADABLE
from truth.values import DOORS, KINDS, Case, Kind

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
    door: str
    case: str
    reader: str


def cells(doors: Iterable[str], readers: Iterable[str], kinds: Iterable[Kind] = KINDS) -> Iterator[Cell]:
    """All of them."""
    for kind in kinds:
        for door in doors:
            for case in sent_by(kind, door).values():
                for reader in readers:
                    if (kind.name, reader) not in UNREADABLE:
                        yield Cell(kind.name, door, case.name, reader)


def faults(seen: Seen, measured: Iterable[Cell]) -> dict[Cell, str]:
    """The cells that are not as expected, with what was expected and what was seen."""
    kinds = {kind.name: kind for kind in KINDS}
    numbers = {
        (kind.name, door, case.name): number
        for kind in KINDS
        for door in DOORS
        for number, case in sent_by(kind, door).items()
    }
    found = {}
    for cell in measured:
        text = _fault(seen, cell, kinds[cell.kind], numbers[cell.kind, cell.door, cell.case])
        if text:
            found[cell] = text
    return found


def _fault(seen: Seen, cell: Cell, kind: Kind, number: int) -> str:
    rows, case = seen.rows[cell.kind, cell.reader], sent_by(kind, cell.door)[number]
    refusal = seen.refusals[cell.kind].get(number, "")
    if kind.is_refused(case, cell.door):
        return f"expected a refusal, seen {rows[number]!r}" if number in rows else _unnamed(case, refusal)
    if number in rows:
        same = repr(rows[number]) == repr(case.value)  # which tells signs of zeros apart, and no NaN
        return "" if same else f"expected {case.value!r}, seen {rows[number]!r}"
    failure = seen.failures.get((cell.kind, cell.reader, cell.door), "nothing")
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
    named = any(one and one in refusal.replace("\\\\", "\\") for one in spelled)
    return "" if named else f"expected a refusal that names the value {case.name}, seen {refusal}"


# -- known ones --------------------------------------------------------------------------------------


def known() -> dict[Cell, str]:
    """The cells of the file, each with why it is wrong."""
    found = {}
    for line in KNOWN.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        kind, doors, case, readers, reason = (part.strip() for part in line.split("|"))
        for door in _several(doors, DOORS):
            for reader in _several(readers, READERS):
                found[Cell(kind, door, case, reader)] = reason
    return found


def _several(text: str, all_of_them: Iterable[str]) -> Iterable[str]:
    return all_of_them if text == "*" else [one.strip() for one in text.split(",")]


def unexpected(wrong: Mapping[Cell, str], measured: Iterable[Cell]) -> list[str]:
    """Lines about what differs from the file: cells that are wrong and not in it, and those that are right.
    Readers of whom the same is said share a line."""
    expected = known()
    found = {cell: text for cell, text in wrong.items() if cell not in expected}
    found |= {
        cell: f"it is right now: remove it from {KNOWN.name}"
        for cell in measured
        if cell in expected and cell not in wrong
    }
    readers: dict[tuple[str, str, str, str], list[str]] = defaultdict(list)
    for cell, text in found.items():
        readers[cell.kind, cell.door, cell.case, text].append(cell.reader)
    return [
        f"{kind} | {door} | {case} | {', '.join(some)}: {text}"
        for (kind, door, case, text), some in readers.items()
    ]
