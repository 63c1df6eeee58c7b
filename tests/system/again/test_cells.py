"""Each cell of the table in docs/again.md: what is said, and that the table has the rows that the page
promises (``make prove-again`` counts them)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from distop.errors import BacklogInUse
from support.again.cells import Cell, cell, counted
from support.again.ways import DONE, NAMES, WAITS, WRITTEN, Way, ways_into
from support.repository import ROOT
from support.services.whole import Whole

PAGE = ROOT / "docs" / "again.md"
REFUSED = "ALREADY_INGESTED"


Event = Callable[[Way], Awaitable[Cell]]


async def repeated(way: Way) -> Cell:
    await way.write(1)
    return await cell(way, 1)


async def asked_again_later(way: Way) -> Cell:
    """The source has changed."""
    await way.write(1)
    await way.write(2)
    return await cell(way, 1, row=11, other=True)


async def failed_before(way: Way) -> Cell:
    await way.fail(1)
    return await cell(way, 1)


async def rolled_back(way: Way) -> Cell:
    await way.write(1)
    await way.write(2)
    await way.roll_back((await way.snapshots())[0])
    return await cell(way, 2, other=True)


async def rolled_forward(way: Way) -> Cell:
    await way.write(1)
    await way.write(2)
    first, last = await way.snapshots()
    await way.roll_back(first)
    await way.roll_back(last)
    return await cell(way, 2)


async def renamed(way: Way) -> Cell:
    await way.write(1)
    await way.service.at_rest()
    before, way.table = way.table, f"{way.table}_now"
    catalog = way.service.catalog()
    try:
        await asyncio.to_thread(catalog.rename_table, f"default.{before}", f"default.{way.table}")
    except BacklogInUse as error:
        way.table = before
        return Cell(error.code, await way.ids())
    return await cell(way, 1)


async def dropped_and_made_anew(way: Way) -> Cell:
    await way.write(1)
    await way.client.table(way.table).drop(purge=True)
    await way.create()
    return await cell(way, 1)


DONE_ALREADY = {name: Cell(DONE, [1]) for name in NAMES} | {"file watermark": Cell(REFUSED, [1])}

CELLS: Mapping[str, tuple[Event, Mapping[str, Cell]]] = {
    "call repeated": (repeated, DONE_ALREADY),
    "asked again later": (
        asked_again_later,
        {
            "request": Cell(DONE, [1, 2], (WRITTEN, [2, 11])),
            "batch": Cell(DONE, [1, 2], (WRITTEN, [2, 11])),
            "file watermark": Cell(REFUSED, [1, 2], (WRITTEN, [1, 2, 11])),
            "stream": Cell(DONE, [1, 2]),
            "schedule tick": Cell(DONE, [1, 2]),
            "other program": Cell(DONE, [1, 2], (WRITTEN, [1, 2, 11])),
        },
    ),
    "it had failed": (failed_before, {name: Cell(WRITTEN, [1]) for name in NAMES}),
    "rolled back": (
        rolled_back,
        {
            "request": Cell("ROLLED_BACK", [1], (WRITTEN, [1, 2])),
            "batch": Cell(WAITS, [1], (WRITTEN, [1, 2])),
            "file watermark": Cell(WRITTEN, [1, 2]),
            "stream": Cell(WRITTEN, [1, 2]),
            "schedule tick": Cell("ROLLED_BACK", [1]),
            "other program": Cell("ROLLED_BACK", [1], (WRITTEN, [1, 2])),
        },
    ),
    "rolled forward": (
        rolled_forward,
        {name: Cell(DONE, [1, 2]) for name in NAMES} | {"file watermark": Cell(REFUSED, [1, 2])},
    ),
    "renamed": (
        renamed,
        DONE_ALREADY
        | {"request": Cell(REFUSED, [1]), "schedule tick": Cell(REFUSED, [1])}
        | {"batch": Cell("BACKLOG_IN_USE", [1])},
    ),
    "dropped, made anew": (dropped_and_made_anew, {name: Cell(WRITTEN, [1]) for name in NAMES}),
}
"""What the page says: by event and way."""


@pytest.mark.parametrize("event", CELLS)
async def test_again_means_what_the_page_says(
    service: Whole, event: str, record_property: Callable[[str, object], None]
) -> None:
    ways = ways_into(service)
    await asyncio.gather(*(way.create() for way in ways))
    happens, expected = CELLS[event]
    seen = dict(zip(expected, await asyncio.gather(*map(happens, ways)), strict=True))
    counted(record_property, seen, expected)
    assert seen == expected


def test_the_page_has_these_cells_and_names_what_is_refused() -> None:
    table = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("| **")]
    page = {line[0].strip().split("**")[1]: dict(zip(NAMES, line[1:], strict=True)) for line in table}
    assert set(page) == {*CELLS, "restored"}
    for event, (_, expected) in CELLS.items():
        for name, (said, *_) in expected.items():
            if said not in (DONE, WRITTEN, WAITS):
                assert said in page[event][name] or "[^file]" in page[event][name], (event, name)
