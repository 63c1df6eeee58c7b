"""What engines other than pyiceberg ask of the catalog, as they ask it."""

from pathlib import Path
from typing import Any

import pytest

from distop.catalog.catalog import EtcdCatalog
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA

TABLES = "namespaces/default/tables"
TABLE = f"{TABLES}/t"
COLUMNS = SCHEMA.model_dump(mode="json", by_alias=True)
MORE = {**COLUMNS, "schema-id": 1, "fields": [*COLUMNS["fields"], dict(COLUMNS["fields"][1], id=3, name="m")]}
MOST = {**MORE, "fields": [*MORE["fields"], dict(COLUMNS["fields"][1], id=4, name="o")]}
BUCKET = {"name": "b", "transform": "bucket[4]", "source-id": 1, "field-id": 1000}
DAYS = {"name": "d", "transform": "truncate[2]", "source-id": 2, "field-id": 1001}


def sorted_by(source: int) -> dict[str, Any]:
    field = {"transform": "identity", "source-id": source, "direction": "asc", "null-order": "nulls-last"}
    return {"order-id": 1, "fields": [field]}


def commit(door: RestDoor, *updates: dict[str, Any]) -> dict[str, Any]:
    answer = door.ask("POST", TABLE, {"requirements": [], "updates": updates})
    assert answer.status == 200, answer.text
    metadata: dict[str, Any] = answer.json["metadata"]
    return metadata


@pytest.mark.parametrize(
    ("add", "choose", "number", "one", "other"),
    [
        ("sort-order", "default-sort-order", "order-id", sorted_by(1), sorted_by(2)),
        ("spec", "default-spec", "spec-id", {"fields": [BUCKET]}, {"fields": [DAYS]}),
        ("schema", "current-schema", "schema-id", MORE, MOST),
    ],
)
def test_what_two_clients_add_under_one_id_gets_two_and_what_is_there_is_used_again(
    door: RestDoor, python: EtcdCatalog, add: str, choose: str, number: str, one: Any, other: Any
) -> None:
    """Java's clients replace tables so: each counts ids from the state that it has seen."""
    python.create_table("default.t", SCHEMA)
    last = {"action": f"set-{choose}", f"{add}-id": -1}
    for wanted, given in ((one, 1), (other, 2), (one, 1)):
        found = commit(door, {"action": f"add-{add}", add: {**wanted, number: 1}}, last)
        assert found[f"{choose}-id"] == given
    plural = "partition-specs" if add == "spec" else f"{add}s"
    assert [entry[number] for entry in found[plural]] == [0, 1, 2]


def test_an_id_that_a_commit_gives_itself_is_followed(door: RestDoor, python: EtcdCatalog) -> None:
    python.create_table("default.t", SCHEMA)
    commit(door, {"action": "add-sort-order", "sort-order": sorted_by(1)})
    named = {"action": "set-default-sort-order", "sort-order-id": 1}
    found = commit(door, {"action": "add-sort-order", "sort-order": sorted_by(2)}, named)
    assert found["default-sort-order-id"] == 2


def test_the_catalog_chooses_where_a_table_with_a_relative_place_lies(door: RestDoor, tmp_path: Path) -> None:
    """Sail names its tables so."""
    made = door.ask("POST", TABLES, {"name": "t", "schema": COLUMNS, "location": "spark-warehouse/t"})
    assert made.json["metadata"]["location"].startswith(f"file://{tmp_path}/warehouse/default/t-")
    named = door.ask("POST", TABLES, {"name": "u", "schema": COLUMNS, "location": f"{tmp_path}/u"})
    assert named.json["metadata"]["location"] == f"{tmp_path}/u"


def test_a_table_without_its_metadata_is_not_taken_for_none(door: RestDoor, python: EtcdCatalog) -> None:
    """Java's clients tell ``NotFoundException`` from ``NoSuchTableException``."""
    table = python.create_table("default.t", SCHEMA)
    Path(table.metadata_location.removeprefix("file://")).unlink()
    assert door.ask("GET", TABLE).problem == (404, "NotFoundException")
    assert door.ask("HEAD", TABLE).status == 204
