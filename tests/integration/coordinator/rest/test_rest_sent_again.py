"""Commits that are sent again without a key, as Java's client does: done once, never said to have failed."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import pytest

from distop.catalog.catalog import EtcdCatalog
from support.etcd.proxy import Proxy
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA, commit_of, ids, ids_in, metadata_files
from support.waiting import eventually

T = "namespaces/default/tables/t"
SEVERAL = "transactions/commit"


@pytest.fixture(autouse=True)
def table(python: EtcdCatalog) -> None:
    python.create_table("default.t", SCHEMA)


def location(python: EtcdCatalog) -> str:
    return python.load_table("default.t").metadata_location


async def test_a_lost_reply_is_answered_as_done(door: RestDoor, other: RestDoor, python: EtcdCatalog) -> None:
    """P8, E3: also by another coordinator, and when others have committed on top of it."""
    body = commit_of(python, 1)
    async with Proxy(door.address) as gateway:
        gateway.hold_replies()
        through = RestDoor(gateway.endpoint, door.prefix)
        asking = asyncio.create_task(asyncio.to_thread(through.ask, "POST", T, body))
        await eventually(lambda: gateway.held == 1)
        gateway.cut()
        with pytest.raises((OSError, HTTPException)):
            await asking
    stands = location(python)
    again = await asyncio.to_thread(other.ask, "POST", T, body)
    assert (again.status, again.json["metadata-location"]) == (200, stands)
    python.load_table("default.t").append(ids(2, 1))
    assert door.ask("POST", T, body).json["metadata-location"] == location(python)
    assert ids_in(python, "default.t") == [1, 2]


def test_many_copies_of_a_commit_at_once_are_done_once_and_all_answered(
    door: RestDoor, other: RestDoor, python: EtcdCatalog, tmp_path: Path
) -> None:
    """P7: those that lose have lost to themselves."""
    body = commit_of(python, 1)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda at: at.ask("POST", T, body), [door, other] * 4))
    assert [answer.status for answer in answers] == [200] * 8
    assert ids_in(python, "default.t") == [1]
    assert len(metadata_files(tmp_path)) == 2


def test_a_creation_sent_again_is_not_refused_because_its_table_exists(
    door: RestDoor, python: EtcdCatalog
) -> None:
    """P8: Java's client would remove the files of what it has made."""
    making = python.create_table_transaction("default.made", SCHEMA)
    making.append(ids(1, 2))
    updates = [json.loads(one.model_dump_json()) for one in making._updates]
    body = {"requirements": [{"type": "assert-create"}], "updates": updates}
    path = "namespaces/default/tables/made"
    first, again = (door.ask("POST", path, body) for _ in range(2))
    assert first.status == again.status == 200, again.text
    assert first.json["metadata-location"] == again.json["metadata-location"]
    assert ids_in(python, "default.made") == [1, 2]


def test_a_transaction_of_several_tables_is_known_by_snapshots(door: RestDoor, python: EtcdCatalog) -> None:
    """E2: what it changes of tables that get no rows has happened with them."""
    python.create_table("default.u", SCHEMA)
    schema = SCHEMA.model_dump(mode="json", by_alias=True)
    schema["fields"].append({"id": 3, "name": "more", "type": "long", "required": False})
    alter = {
        "identifier": {"namespace": ["default"], "name": "u"},
        "requirements": [{"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2}],
        "updates": [
            {"action": "add-schema", "schema": schema, "last-column-id": 3},
            {"action": "set-current-schema", "schema-id": -1},
        ],
    }
    changes = {"table-changes": [commit_of(python, 1), alter]}
    assert [door.ask("POST", SEVERAL, changes).status for _ in range(2)] == [204, 204]
    assert ids_in(python, "default.t") == [1]
    # One that brings another snapshot, too, is another request: none of it happens.
    late = {"table-changes": [changes["table-changes"][0], commit_of(python, 2, table="u")]}
    assert door.ask("POST", SEVERAL, late).problem == (409, "CommitFailedException")
    assert ids_in(python, "default.u") == []


def test_a_commit_that_was_rolled_back_does_not_come_back_when_it_is_sent_again(
    door: RestDoor, python: EtcdCatalog
) -> None:
    """P8: it has happened once, and whoever hears so does not do it again."""
    python.load_table("default.t").append(ids(1, 1))
    before = python.load_table("default.t").current_snapshot()
    assert before is not None
    body = commit_of(python, 2)
    assert door.ask("POST", T, body).status == 200
    python.load_table("default.t").manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    stands = location(python)
    assert door.ask("POST", T, body).json["metadata-location"] == stands == location(python)
    assert ids_in(python, "default.t") == [1]


def test_another_snapshot_of_the_same_id_is_refused(door: RestDoor, python: EtcdCatalog) -> None:
    """P6: an id alone does not say what was committed."""
    body, forged = commit_of(python, 1), commit_of(python, 2, 2)
    assert door.ask("POST", T, body).status == 200
    [added, moved] = forged["updates"]
    sent = body["updates"][0]["snapshot"]["snapshot-id"]
    added["snapshot"]["snapshot-id"] = moved["snapshot-id"] = sent
    assert door.ask("POST", T, forged).problem == (409, "CommitFailedException")
    assert ids_in(python, "default.t") == [1]


def test_a_commit_that_moves_watermarks_is_recognised_by_its_snapshot(
    door: RestDoor, python: EtcdCatalog
) -> None:
    """E4: the same rows written anew are another snapshot, and are refused."""
    body, anew = commit_of(python, 1), commit_of(python, 1)
    for one in (body, anew):
        one["updates"][0]["snapshot"]["summary"]["distop.watermark.s.0"] = "7"
    assert [door.ask("POST", T, body).status for _ in range(2)] == [200, 200]
    refused = door.ask("POST", T, anew)
    assert refused.problem == (409, "CommitFailedException")
    assert "ALREADY_INGESTED" in refused.text
    assert ids_in(python, "default.t") == [1]
