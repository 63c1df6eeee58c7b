"""Requests with a key: done once, answered alike, whoever is asked again."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.sync import SyncEtcd
from support.etcd.lossy import Fault
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA, faulty, metadata_files

TABLES = "namespaces/default/tables"
T = f"{TABLES}/t"
NEW = {"name": "t", "schema": SCHEMA.model_dump(mode="json", by_alias=True)}


def setting(**wanted: str) -> dict[str, Any]:
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": wanted}]}


def key() -> str:
    return str(uuid4())


def commits(python: EtcdCatalog) -> int:
    return len(python.load_table("default.t").metadata.metadata_log)


def test_another_coordinator_gives_the_first_answer_again(
    door: RestDoor, other: RestDoor, python: EtcdCatalog
) -> None:
    """E3, P8: of everything that changes a table."""
    ids = [key() for _ in range(4)]
    renaming = {
        "source": {"namespace": ["default"], "name": "t"},
        "destination": {"namespace": ["default"], "name": "u"},
    }

    def ask(at: RestDoor, step: int) -> Any:
        named = {"idempotency_key": ids[step]}
        match step:
            case 0:
                return at.ask("POST", TABLES, NEW, **named)
            case 1:
                return at.ask("POST", T, setting(a="b"), **named)
            case 2:
                return at.ask("POST", "tables/rename", renaming, **named)
            case _:
                return at.ask("DELETE", f"{TABLES}/u", **named)

    for step in range(4):
        first, again = ask(door, step), ask(other, step)
        assert first.status == again.status == (200 if step < 2 else 204)
        if step < 2:
            assert again.json["metadata-location"] == first.json["metadata-location"]
            assert again.json["metadata"] == first.json["metadata"]
        if step == 1:
            assert commits(python) == 1
    # Also after all that has come since.
    assert ask(other, 1).status == 200
    assert python.list_tables("default") == []


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
def test_the_outcome_of_a_commit_whose_replies_are_all_lost_is_known(
    door: RestDoor, other: RestDoor, python: EtcdCatalog, tmp_path: Path, fault: Fault
) -> None:
    """P8: in doubt no file is removed; the repeat is answered, or done."""
    door.ask("POST", TABLES, NEW)
    faulty(door.behind, fault, *[Fault.LOST_REQUEST] * 20)
    named = key()
    first = door.ask("POST", T, setting(a="b"), idempotency_key=named)
    if fault is Fault.LOST_REQUEST:
        assert first.problem == (500, "CommitStateUnknownException")
    else:
        assert first.status == 200  # its note says so
    assert len(metadata_files(tmp_path)) == 2
    assert other.ask("POST", T, setting(a="b"), idempotency_key=named).status == 200
    assert commits(python) == 1


def test_many_parallel_repeats_of_a_commit_are_done_once_and_all_answered(
    door: RestDoor, other: RestDoor, python: EtcdCatalog, tmp_path: Path
) -> None:
    """P7"""
    door.ask("POST", TABLES, NEW)
    named = key()

    def ask(number: int) -> str:
        at = door if number % 2 else other
        answer = at.ask("POST", T, setting(a="b"), idempotency_key=named)
        assert answer.status == 200, answer.text
        return str(answer.json["metadata-location"])

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1
    assert commits(python) == 1
    assert len(metadata_files(tmp_path)) == 2


def test_a_key_is_for_one_request(door: RestDoor) -> None:
    door.ask("POST", TABLES, NEW)
    named = key()
    assert door.ask("POST", T, setting(a="b"), idempotency_key=named).status == 200
    problem = door.ask("POST", T, setting(a="c"), idempotency_key=named).problem
    assert problem == (422, "UnprocessableEntityException")
    assert door.ask("POST", T, setting(a="b"), idempotency_key="first").problem == (
        400,
        "BadRequestException",
    )


def test_a_refused_commit_may_be_tried_again_with_its_key(door: RestDoor) -> None:
    named = key()
    assert door.ask("POST", T, setting(a="b"), idempotency_key=named).status == 404
    door.ask("POST", TABLES, NEW)
    assert door.ask("POST", T, setting(a="b"), idempotency_key=named).status == 200


def test_a_commit_that_may_be_a_repeat_is_not_reported_as_failed(door: RestDoor) -> None:
    """P8: it was not done now, but may have been before; sent again it does no harm."""
    door.ask("POST", TABLES, NEW)
    faulty(door.behind, Fault.DOWN)
    answer = door.ask("POST", T, setting(a="b"), idempotency_key=key())
    assert answer.problem == (503, "CommitStateUnknownException")
    assert answer.headers["retry-after"] == "1"


def test_answers_go_by_themselves(door: RestDoor, store: SyncEtcd) -> None:
    """G7: each stands under a lease that ends; no process renews it."""
    door.ask("POST", TABLES, NEW)
    for number in range(3):
        door.ask("POST", T, setting(a=str(number)), idempotency_key=key())
    kept = store.scan(store.keyspace.prefix + b"_answers.").kvs
    assert len(kept) == 3
    (lease,) = {kv.lease for kv in kept}
    store.run(lambda client: client.lease_revoke(lease))
    assert not store.scan(store.keyspace.prefix + b"_answers.").kvs
    # Should it go before its time, the next request gets another one.
    assert door.ask("POST", T, setting(a="x"), idempotency_key=(named := key())).status == 503
    assert door.ask("POST", T, setting(a="x"), idempotency_key=named).status == 200
