"""What engines other than pyiceberg ask of the catalog, as they ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from distop.commit.catalog.catalog import EtcdCatalog
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA

TABLES = "namespaces/default/tables"
TABLE = f"{TABLES}/t"
COLUMNS = SCHEMA.model_dump(mode="json", by_alias=True)
MORE = {**COLUMNS, "schema-id": 1, "fields": [*COLUMNS["fields"], dict(COLUMNS["fields"][1], id=3, name="m")]}
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
    ("add", "choose", "key", "ids", "default", "one", "other"),
    [
        (
            {"action": "add-sort-order", "sort-order": None},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            ("sort-orders", "order-id"),
            [0, 1, 2],
            "default-sort-order-id",
            sorted_by(1),
            sorted_by(2),
        ),
        (
            {"action": "add-spec", "spec": None},
            {"action": "set-default-spec", "spec-id": -1},
            ("partition-specs", "spec-id"),
            [0, 1, 2],
            "default-spec-id",
            {"spec-id": 1, "fields": [BUCKET]},
            {"spec-id": 1, "fields": [DAYS]},
        ),
        (
            {"action": "add-schema", "schema": None},
            {"action": "set-current-schema", "schema-id": -1},
            ("schemas", "schema-id"),
            [0, 1, 2],
            "current-schema-id",
            MORE,
            {**MORE, "fields": [*MORE["fields"], dict(COLUMNS["fields"][1], id=4, name="o")]},
        ),
    ],
)
def test_what_two_clients_add_under_one_id_gets_two_and_what_is_there_is_used_again(
    door: RestDoor,
    python: EtcdCatalog,
    add: dict[str, Any],
    choose: dict[str, Any],
    key: tuple[str, str],
    ids: list[int],
    default: str,
    one: dict[str, Any],
    other: dict[str, Any],
) -> None:
    """Java's clients replace tables so: each counts ids from the state that it has seen."""
    python.create_table("default.t", SCHEMA)
    what = next(name for name in add if name != "action")
    for wanted, number in ((one, 1), (other, 2), (one, 1)):
        found = commit(door, {**add, what: wanted}, choose)
        assert found[default] == number
    assert [entry[key[1]] for entry in found[key[0]]] == ids


def test_an_id_that_a_commit_gives_itself_is_followed(door: RestDoor, python: EtcdCatalog) -> None:
    python.create_table("default.t", SCHEMA)
    commit(door, {"action": "add-sort-order", "sort-order": sorted_by(1)})
    named = {"action": "set-default-sort-order", "sort-order-id": 1}
    found = commit(door, {"action": "add-sort-order", "sort-order": sorted_by(2)}, named)
    assert found["default-sort-order-id"] == 2


def test_the_catalog_chooses_where_a_table_lies_that_is_to_be_somewhere_relative(
    door: RestDoor, tmp_path: Path
) -> None:
    """Sail names its tables so."""
    made = door.ask("POST", TABLES, {"name": "t", "schema": COLUMNS, "location": "spark-warehouse/t"})
    assert made.json["metadata"]["location"].startswith(f"file://{tmp_path}/warehouse/default/t-")
    named = door.ask("POST", TABLES, {"name": "u", "schema": COLUMNS, "location": f"{tmp_path}/u"})
    assert named.json["metadata"]["location"] == f"{tmp_path}/u"


def test_a_table_whose_metadata_is_gone_is_not_taken_for_one_that_does_not_exist(
    door: RestDoor, python: EtcdCatalog
) -> None:
    """Java's clients tell ``NotFoundException`` from ``NoSuchTableException``."""
    table = python.create_table("default.t", SCHEMA)
    Path(table.metadata_location.removeprefix("file://")).unlink()
    assert door.ask("GET", TABLE).problem == (404, "NotFoundException")
    assert door.ask("HEAD", TABLE).status == 204
