"""Racing appends over HTTP: put on top of each other by the catalog, where their table asks for it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.catalog.rest import RestCatalog as RestClient

from distop.catalog.catalog import EtcdCatalog
from support.services.rest import Answer, RestDoor
from support.tables.catalogs import SCHEMA, commit_of, ids, ids_in

T = "namespaces/default/tables/t"
WRITERS = 6


@pytest.fixture(autouse=True)
def table(python: EtcdCatalog) -> None:
    properties = {"commit.retry.num-retries": "0", "distop.on-conflict": "rebase"}
    python.create_table("default.t", SCHEMA, properties=properties)


def test_appends_that_began_on_one_snapshot_are_all_there(
    door: RestDoor, other: RestDoor, python: EtcdCatalog
) -> None:
    """P7: through two coordinators; each is answered with the table that holds its own snapshot."""
    bodies = [commit_of(python, number) for number in range(WRITERS)]
    ready = threading.Barrier(WRITERS)

    def commit(number: int) -> Answer:
        ready.wait(60)
        return (door, other)[number % 2].ask("POST", T, bodies[number])

    with ThreadPoolExecutor(WRITERS) as threads:
        answers = list(threads.map(commit, range(WRITERS)))
    assert [answer.status for answer in answers] == [200] * WRITERS
    for body, answer in zip(bodies, answers, strict=True):
        sent = body["updates"][0]["snapshot"]["snapshot-id"]
        assert answer.json["metadata"]["current-snapshot-id"] == sent
    assert ids_in(python, "default.t") == list(range(WRITERS))


def test_an_append_sent_twice_with_its_key_is_answered_twice_and_done_once(
    door: RestDoor, other: RestDoor, python: EtcdCatalog
) -> None:
    """P8: also by another coordinator, once others have built on it. Without its key it is known, too."""
    late = commit_of(python, 1)
    assert door.ask("POST", T, commit_of(python, 0)).status == 200
    named = str(uuid4())
    first = door.ask("POST", T, late, idempotency_key=named)
    assert door.ask("POST", T, commit_of(python, 2)).status == 200
    again = other.ask("POST", T, late, idempotency_key=named)
    assert first.status == again.status == 200
    assert first.json["metadata-location"] == again.json["metadata-location"]
    assert other.ask("POST", T, late).status == 200
    assert ids_in(python, "default.t") == [0, 1, 2]


def test_an_append_whose_files_cannot_be_read_is_refused_as_a_conflict(
    door: RestDoor, python: EtcdCatalog
) -> None:
    """U3: whoever sent it makes it again by himself."""
    late = commit_of(python, 1)
    assert door.ask("POST", T, commit_of(python, 0)).status == 200
    path = late["updates"][0]["snapshot"]["manifest-list"]
    Path(path.removeprefix("file://")).unlink()
    assert door.ask("POST", T, late).problem == (409, "CommitFailedException")
    assert ids_in(python, "default.t") == [0]


def test_clients_of_several_append_side_by_side(door: RestDoor, other: RestDoor, python: EtcdCatalog) -> None:
    """P7: of the rows that they say are there each is there once."""
    with ExitStack() as stack:
        clients: list[RestClient] = [stack.enter_context(at.client()) for at in (door, other)]  # type: ignore[misc]

        def append(writer: int) -> None:
            for number in range(3):
                clients[writer % 2].load_table("default.t").append(ids(10 * writer + number, 1))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(append, range(4)))
    assert ids_in(python, "default.t") == [10 * writer + number for writer in range(4) for number in range(3)]
