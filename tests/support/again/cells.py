"""The cells of the table in docs/again.md: what each way into a table does again after an event."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from support.again.ways import WRITTEN, Way


class Cell(NamedTuple):
    """The outcome of writing again (as of :meth:`Way.write`), and the ids in the table then.

    ``otherwise``: both for the call that the page names for the opposite intention, if there is one.
    """

    outcome: str
    ids: list[int]
    otherwise: tuple[str, list[int]] | None = None


async def cell(way: Way, number: int, *, row: int | None = None, other: bool = False) -> Cell:
    """Write the identity again; unless that wrote it, also try the opposite intention, with ``other``."""
    outcome, ids = await way.write(number, row), await way.ids()
    if not other or outcome == WRITTEN or not way.has_other:
        return Cell(outcome, ids)
    return Cell(outcome, ids, (await way.otherwise(number, number if row is None else row), await way.ids()))


def counted(
    record: Callable[[str, object], None], actual: Mapping[str, Cell], expected: Mapping[str, Cell]
) -> None:
    """Record the figures of ``make prove-again``: cells, rows lost, rows doubled."""
    lost, doubled = Counter[int](), Counter[int]()
    for name, cell in expected.items():
        for rows, expected_rows in zip(rows_of(actual[name]), rows_of(cell), strict=True):
            lost += expected_rows - rows
            doubled += rows - expected_rows
    record("cells", len(actual))
    record("rows_lost", lost.total())
    record("rows_doubled", doubled.total())


def rows_of(cell: Cell) -> tuple[Counter[int], Counter[int]]:
    return Counter(cell.ids), Counter(cell.otherwise[1] if cell.otherwise else ())
