"""Casts of actors, each small enough that everything they can do is visited, or much of it."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from unittest import mock

from distop.metastore.tables.watermarks import ChunkReader
from explore.actors import (
    NOTHING_RECENT,
    Wanted,
    attempt,
    canceller,
    coordinator,
    folder,
    foreign,
    leader,
    pauser,
    resolver,
    runner,
    starter,
)
from explore.laws import TableLaws
from explore.plants import Plant
from explore.process import frozen, read_chunks
from explore.search import NO_FAULTS, Actor, Faults, Search
from explore.table import steps_known, table


@dataclass(frozen=True)
class Scenario:
    """Who takes part, and what may go wrong."""

    what: str
    actors: list[Actor]
    faults: Faults = NO_FAULTS
    switches: int = -1


SCENARIOS: dict[str, Scenario] = {
    "starts": Scenario(
        "two starts that share a watermark, another program that commits, and a leader",
        [
            starter(1, Wanted("append", "r1", watermark=True)),
            starter(2, Wanted("append", "r2", watermark=True)),
            foreign(1),
            leader(1),
        ],
        Faults(lost=1),
    ),
    "retries": Scenario(
        "one request that is sent by two callers, and a leader",
        [
            starter(1, Wanted("append", "r", watermark=True)),
            starter(2, Wanted("append", "r", watermark=True)),
            leader(1),
        ],
        Faults(lost=1, crash=1),
    ),
    "knows": Scenario(
        "a coordinator that starts on what it knows, another start, another program, another leader",
        [coordinator(1), starter(1, Wanted("overwrite", "r1")), foreign(1), leader(1)],
        Faults(expire=1),
    ),
    "overwrites": Scenario(
        "two overwrites, an append, and a leader",
        [
            starter(1, Wanted("overwrite", "r1")),
            starter(2, Wanted("overwrite", "r2")),
            starter(3, Wanted("append", "r3")),
            leader(1),
        ],
    ),
    "conflict": Scenario(
        "an overwrite and an append, another program that commits, and a leader",
        [starter(1, Wanted("overwrite", "r1")), starter(2, Wanted("append", "r2")), foreign(1), leader(1)],
        Faults(lost=1),
    ),
    "leaders": Scenario(
        "two leaders of an operation without jobs, and another program that commits",
        [starter(1, Wanted("append", "r1", watermark=True)), leader(1), leader(2), foreign(1)],
        Faults(lost=1, crash=1, expire=1),
    ),
    "marks": Scenario(
        "three attempts at two jobs, two runners, and a leader",
        [
            starter(1, Wanted("append", "r1", jobs=2)),
            *(leader(1), runner(1), runner(2), attempt(1, 0), attempt(2, 0), attempt(3, 1)),
        ],
        Faults(expire=1),
    ),
    "doubts": Scenario(
        "two attempts at one job whose answers are lost, two runners, and a leader",
        [
            starter(1, Wanted("append", "r1", jobs=1)),
            *(leader(1), runner(1), runner(2), attempt(1, 0), attempt(2, 0)),
        ],
        Faults(lost=1, crash=1, expire=1),
    ),
    "claims": Scenario(
        "two attempts that claim one job, a runner, and a leader",
        [
            starter(1, Wanted("owned", "r1", jobs=1)),
            *(leader(1), runner(1), attempt(1, 0, claims=True), attempt(2, 0, claims=True)),
        ],
        Faults(lost=1, expire=1),
    ),
    "folds": Scenario(
        "two starts that share a watermark, somebody who folds it, and a leader",
        [
            starter(1, Wanted("append", "r1", watermark=True)),
            starter(2, Wanted("append", "r2", watermark=True)),
            folder(2),
            leader(1),
        ],
        Faults(lost=1, crash=1),
    ),
    "cancels": Scenario(
        "somebody who cancels an operation without jobs, and two leaders",
        [starter(1, Wanted("append", "r1", watermark=True)), leader(1), leader(2), canceller()],
        Faults(lost=1, expire=1),
    ),
    "aborts": Scenario(
        "somebody who cancels, an attempt, a runner, and a leader",
        [starter(1, Wanted("append", "r1", jobs=1)), leader(1), runner(1), attempt(1, 0), canceller()],
        Faults(lost=1),
    ),
    "pauses": Scenario(
        "somebody who pauses and resumes, two attempts at one job, two runners, and a leader",
        [
            starter(1, Wanted("append", "r1", jobs=1)),
            *(leader(1), runner(1), runner(2), attempt(1, 0), attempt(2, 0), pauser()),
        ],
        Faults(lost=1),
    ),
    "silent": Scenario(
        "somebody who cancels an operation that publishes nothing, and two leaders",
        [starter(1, Wanted("silent", "r1")), leader(1), leader(2), canceller()],
        Faults(lost=1, expire=1),
    ),
    "parks": Scenario(
        "somebody who aborts an operation whose end always fails, somebody who cancels it, and two leaders",
        [starter(1, Wanted("failing", "r1")), leader(1), leader(2), resolver(), canceller()],
        Faults(lost=1, expire=1),
    ),
    "everybody": Scenario(
        "all of them; one goes on until it waits, or another one cuts in, twice at most",
        [
            starter(1, Wanted("append", "r1", jobs=2, watermark=True)),
            starter(2, Wanted("overwrite", "r2", jobs=1)),
            *(leader(1), leader(2), runner(1), runner(2), attempt(1, 0), attempt(2, 0), attempt(3, 1)),
            *(foreign(1), canceller()),
        ],
        Faults(expire=1),
        switches=2,
    ),
}


@contextlib.contextmanager
def exploring(name: str, plant: Plant | None = None) -> Iterator[Search]:
    """A search of a scenario, with a planted fault or none."""
    scenario = SCENARIOS[name]
    planted = plant.replaces() if plant is not None else contextlib.nullcontext()
    # A plan asks for chunks from its thread, and the model has none. Watermarks are few, and folded at once.
    chunks = mock.patch.object(ChunkReader, "__call__", read_chunks)
    always = mock.patch("distop.metastore.records.watermarks.FOLD_BYTES", len(NOTHING_RECENT))
    with steps_known(), frozen(), chunks, always, planted:
        laws, switches = TableLaws(scenario.actors), scenario.switches
        search = Search(table(), scenario.actors, laws, scenario.faults, switches=switches, plant=plant)
        try:
            yield search
        finally:
            search.close()
