"""Commits to several tables: all of it in one transaction of etcd, or nothing."""

from pathlib import Path
from typing import Any

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.metastore.etcd.sync import SyncEtcd
from support.etcd.lossy import Fault
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA, faulty, ids, keys_of, metadata_files

PATH = "transactions/commit"


def change(name: str, *requirements: dict[str, Any], **properties: str) -> dict[str, Any]:
    return {
        "identifier": {"namespace": ["default"], "name": name},
        "requirements": list(requirements),
        "updates": [{"action": "set-properties", "updates": properties}],
    }


def creation(name: str, place: str) -> dict[str, Any]:
    """What makes a table."""
    schema = SCHEMA.model_dump(mode="json", by_alias=True)
    return {
        "identifier": {"namespace": ["default"], "name": name},
        "requirements": [{"type": "assert-create"}],
        "updates": [
            {"action": "assign-uuid", "uuid": "11111111-2222-4333-8444-555555555555"},
            {"action": "upgrade-format-version", "format-version": 2},
            {"action": "add-schema", "schema": schema, "last-column-id": 2},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": f"file://{place}/{name}"},
        ],
    }


@pytest.fixture
def tables(python: EtcdCatalog) -> list[str]:
    for name in ("a", "b"):
        python.create_table(f"default.{name}", SCHEMA)
    return ["a", "b"]


def wanted(python: EtcdCatalog, *names: str) -> list[str | None]:
    return [python.load_table(f"default.{name}").properties.get("x") for name in names]


def test_all_tables_change_at_one_revision(
    door: RestDoor, python: EtcdCatalog, store: SyncEtcd, tables: list[str], tmp_path: Path
) -> None:
    """E2: also one that is made by it."""
    changes = [change("a", x="1"), change("b", x="1"), creation("c", f"{tmp_path}/warehouse")]
    assert door.ask("POST", PATH, {"table-changes": changes}).status == 204
    assert wanted(python, "a", "b", "c") == ["1", "1", None]
    heads = [store.get(keys_of(store, name).head) for name in ("a", "b", "c")]
    assert len({kv.mod_revision for kv in heads}) == 1


def test_if_one_table_refuses_none_changes(
    door: RestDoor, python: EtcdCatalog, tables: list[str], tmp_path: Path
) -> None:
    """E2"""
    before = metadata_files(tmp_path)
    late = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7}
    answers = [
        ([change("a", x="1"), change("b", late, x="1")], (409, "CommitFailedException")),
        ([change("a", x="1"), change("no", x="1")], (404, "NoSuchTableException")),
        ([change("a", x="1"), change("a", x="2")], (400, "BadRequestException")),
        ([change("a", x="1"), creation("b", str(tmp_path))], (409, "CommitFailedException")),
    ]
    for changes, problem in answers:
        assert door.ask("POST", PATH, {"table-changes": changes}).problem == problem
    assert wanted(python, "a", "b") == [None, None]
    assert metadata_files(tmp_path) == before


NO_ROWS = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None}


@pytest.mark.parametrize("requirements", [[NO_ROWS], []], ids=["it has lost", "it goes on top"])
def test_a_transaction_that_lost_the_race_for_one_table_changes_none(
    door: RestDoor, python: EtcdCatalog, tables: list[str], tmp_path: Path, requirements: list[dict[str, Any]]
) -> None:
    """E2, P6, P8: also when the first request got lost; no rows are, nor is a file of the first try left."""
    lossy = faulty(door.behind, Fault.LOST_REQUEST)
    lossy.meanwhile.append(lambda: python.load_table("default.b").append(ids(0, 3)))
    changes = [change("a", x="1"), change("b", *requirements, x="1")]
    answer = door.ask("POST", PATH, {"table-changes": changes})
    assert answer.status == (409 if requirements else 204)
    assert wanted(python, "a", "b") == ([None, None] if requirements else ["1", "1"])
    assert python.load_table("default.b").scan().to_arrow().num_rows == 3
    assert len(metadata_files(tmp_path)) == (3 if requirements else 5)


def test_a_lost_reply_hides_no_commit(door: RestDoor, python: EtcdCatalog, tables: list[str]) -> None:
    """E2, P8"""
    faulty(door.behind, Fault.LOST_REPLY)
    answer = door.ask("POST", PATH, {"table-changes": [change("a", x="1"), change("b", x="1")]})
    assert answer.status == 204
    assert wanted(python, "a", "b") == ["1", "1"]


def test_more_than_a_transaction_holds_is_refused_before_anything_is_written(
    door: RestDoor, python: EtcdCatalog, tmp_path: Path
) -> None:
    """E2: and it says how many it holds."""
    changes = [creation(f"t{number}", f"{tmp_path}/warehouse") for number in range(20)]
    answer = door.ask("POST", PATH, {"table-changes": changes})
    assert answer.problem == (400, "BadRequestException")
    assert "20 tables are more than one transaction holds" in answer.json["error"]["message"]
    assert not metadata_files(tmp_path)
    assert python.list_tables("default") == []
