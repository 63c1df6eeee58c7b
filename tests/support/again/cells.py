"""What a way into a table does again after an event, as the cells of the table in docs/again.md say it."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from support.again.ways import WRITTEN, Way


class Cell(NamedTuple):
    """What was said, and the ids in the table; and the same for what the page says to those who want the
    other thing, if there is one."""

    said: str
    ids: list[int]
    otherwise: tuple[str, list[int]] | None = None


async def cell(way: Way, number: int, *, row: int | None = None, other: bool = False) -> Cell:
    """The identity is asked for again; then, unless that wrote it, for the other thing, if there is one."""
    said, ids = await way.write(number, row), await way.ids()
    if not other or said == WRITTEN or not way.has_other:
        return Cell(said, ids)
    return Cell(said, ids, (await way.otherwise(number, number if row is None else row), await way.ids()))


def counted(
    record: Callable[[str, object], None], seen: Mapping[str, Cell], expected: Mapping[str, Cell]
) -> None:
    """For ``make prove-again``."""
    lost, doubled = Counter[int](), Counter[int]()
    for name, one in expected.items():
        for found, wanted in zip(rows_of(seen[name]), rows_of(one), strict=True):
            lost += wanted - found
            doubled += found - wanted
    record("cells", len(seen))
    record("rows_lost", lost.total())
    record("rows_doubled", doubled.total())


def rows_of(cell: Cell) -> tuple[Counter[int], Counter[int]]:
    return Counter(cell.ids), Counter(cell.otherwise[1] if cell.otherwise else ())
