"""Commits after which Iceberg's Java library, or pyiceberg, could not read the table: they are refused."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distop.catalog.catalog import EtcdCatalog
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA, ids

T = "namespaces/default/tables/t"
COLUMNS = SCHEMA.model_dump(mode="json", by_alias=True)["fields"]
CURRENT = {"action": "set-current-schema", "schema-id": -1}
DEFAULT = {"action": "set-default-spec", "spec-id": -1}

Json = dict[str, Any]
Updates = Callable[[Json], list[Json]]


@pytest.fixture
def table(door: RestDoor, python: EtcdCatalog) -> Json:
    """The metadata of a table of two commits."""
    return two_commits(door, python)


@pytest.fixture(scope="module")
def unchanged(standing: RestDoor) -> Json:
    """That of the table of all commits that are refused."""
    return two_commits(standing, standing.behind)


def two_commits(door: RestDoor, catalog: EtcdCatalog) -> Json:
    made = catalog.create_table("default.t", SCHEMA)
    for start in range(2):
        made.append(ids(start, 1))
    found: Json = door.ask("GET", T).json["metadata"]
    return found


def columns(*fields: Json) -> Json:
    return {"action": "add-schema", "schema": {"type": "struct", "schema-id": 9, "fields": list(fields)}}


def column(number: int, name: str, kind: str = "long", **more: Any) -> Json:
    return {"id": number, "name": name, "type": kind, "required": False, **more}


def spec(*fields: tuple[int, str, str]) -> Json:
    named = [
        {"source-id": source, "name": name, "transform": transform, "field-id": 1000 + at}
        for at, (source, name, transform) in enumerate(fields)
    ]
    return {"action": "add-spec", "spec": {"spec-id": 7, "fields": named}}


def order(source: int, transform: str) -> Json:
    fields = [{"source-id": source, "transform": transform, "direction": "asc", "null-order": "nulls-first"}]
    return {"action": "add-sort-order", "sort-order": {"order-id": 3, "fields": fields}}


def snapshot(table: Json, number: int = 77, **given: Any) -> Json:
    """Like the present one of the table, and the next of it, except for what is given."""
    made = {
        **table["snapshots"][-1],
        "snapshot-id": number,
        "parent-snapshot-id": table["current-snapshot-id"],
        "sequence-number": table["last-sequence-number"] + 1,
        **{name.replace("_", "-"): value for name, value in given.items()},
    }
    return {"action": "add-snapshot", "snapshot": made}


def ref(table: Json, name: str, kind: str = "branch", **more: int) -> Json:
    named = {part.replace("_", "-"): value for part, value in more.items()}
    snapshot_id = table["current-snapshot-id"]
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id, **named}


REFUSED: dict[str, Updates] = {
    "a sequence number that goes back": lambda t: [snapshot(t, sequence_number=1, parent_snapshot_id=None)],
    "no sequence number": lambda t: [snapshot(t, sequence_number=None, parent_snapshot_id=None)],
    "a snapshot before itself": lambda t: [snapshot(t, parent_snapshot_id=77)],
    "snapshots that each come before the other": lambda t: [
        snapshot(t, parent_snapshot_id=78),
        snapshot(t, 78, parent_snapshot_id=77, sequence_number=t["last-sequence-number"] + 2),
    ],
    "the id of no snapshot": lambda t: [snapshot(t, -1)],
    "an id of 65 bits": lambda t: [snapshot(t, 1 << 63)],
    "a snapshot of the future": lambda t: [snapshot(t, timestamp_ms=int(time.time() * 1_000_000))],
    "row ids": lambda t: [snapshot(t, first_row_id=5)],
    "main as a tag": lambda t: [ref(t, "main", "tag")],
    "a tag with a branch's settings": lambda t: [ref(t, "v1", "tag", min_snapshots_to_keep=1)],
    "too many snapshots to keep": lambda t: [ref(t, "side", min_snapshots_to_keep=1 << 40)],
    "a partition field with a column's name": lambda _: [spec((1, "kind", "bucket[4]"))],
    "a column with a partition field's name": lambda _: [
        spec((1, "a", "bucket[4]")),
        columns(*COLUMNS, column(3, "a")),
        CURRENT,
    ],
    "partition fields of one name": lambda _: [spec((1, "a", "bucket[4]"), (2, "a", "bucket[4]"))],
    "a partition field without a name": lambda _: [spec((1, "", "bucket[4]"))],
    "a partition field of no column": lambda _: [spec((9, "a", "bucket[4]"))],
    "the day of a number": lambda _: [spec((1, "a", "day"))],
    "no buckets": lambda _: [spec((1, "a", "bucket[0]"))],
    "a sort order of no column": lambda _: [order(1 << 40, "identity")],
    "an order by no letters": lambda _: [order(2, "truncate[0]")],
    "two columns of one id": lambda _: [columns(*COLUMNS, column(2, "x"))],
    "a column without a name": lambda _: [columns(*COLUMNS, column(3, ""))],
    "a column that is longer than a file": lambda _: [columns(*COLUMNS, column(3, "x", "fixed[9999999999]"))],
    "too many digits": lambda _: [columns(*COLUMNS, column(3, "x", "decimal(50, 2)"))],
    "more digits behind the point than at all": lambda _: [columns(column(3, "x", "decimal(5, 9)"))],
    "a type of format 3": lambda _: [columns(*COLUMNS, column(3, "x", "timestamp_ns"))],
    "a default value": lambda _: [columns(*COLUMNS, column(3, "x", **{"initial-default": "?"}))],
    "another type": lambda _: [columns(column(1, "id", "string"), COLUMNS[1]), CURRENT],
    "a narrower type": lambda _: [columns(column(1, "id", "int"), COLUMNS[1]), CURRENT],
    "a value that old rows lack": lambda _: [columns(*COLUMNS, column(3, "x", required=True)), CURRENT],
    "a name mapping that is none": lambda _: [
        {"action": "set-properties", "updates": {"schema.name-mapping.default": "{"}}
    ],
    "a partition spec of files less": lambda _: [
        spec((1, "a", "bucket[4]")),
        DEFAULT,
        {"action": "remove-partition-specs", "spec-ids": [0]},
    ],
    "a schema of rows less": lambda _: [
        columns(*COLUMNS, column(3, "x")),
        CURRENT,
        {"action": "remove-schemas", "schema-ids": [0]},
    ],
}


@pytest.mark.parametrize("updates", REFUSED.values(), ids=REFUSED)
def test_a_table_stays_readable(standing: RestDoor, unchanged: Json, updates: Updates) -> None:
    """E1: nothing has happened, and the program is told so."""
    answer = standing.ask("POST", T, {"requirements": [], "updates": updates(unchanged)})
    assert answer.status in (400, 409), answer.text
    assert standing.ask("GET", T).json["metadata"] == unchanged


def test_a_table_that_is_replaced_may_have_other_types(door: RestDoor, table: Json) -> None:
    """E1: as Java's CREATE OR REPLACE has it: ids of columns with the same name stay, the rows do not."""
    updates = [
        columns(column(1, "id", "string"), column(3, "x", required=True)),
        CURRENT,
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        snapshot(table, parent_snapshot_id=None),
        {**ref(table, "main"), "snapshot-id": 77},
    ]
    answer = door.ask("POST", T, {"requirements": [], "updates": updates})
    assert answer.status == 200, answer.text
    assert answer.json["metadata"]["current-snapshot-id"] == 77


def test_two_programs_that_replace_a_table_at_once_both_do(door: RestDoor, table: Json) -> None:
    """E1: neither snapshot follows the other; both have the number after that of the table they have seen."""
    for number in (77, 78):
        added = snapshot(table, number, parent_snapshot_id=None)
        answer = door.ask(
            "POST", T, {"requirements": [], "updates": [added, {**ref(table, "main"), "snapshot-id": number}]}
        )
        assert answer.status == 200, answer.text
    metadata = answer.json["metadata"]
    assert (metadata["current-snapshot-id"], metadata["last-sequence-number"]) == (78, 3)


def test_a_table_whose_history_has_no_beginning_is_not_taken_over(door: RestDoor, table: Json) -> None:
    """S1: a walk over it would never end."""
    first, second = table["snapshots"]
    first["parent-snapshot-id"] = second["snapshot-id"]
    forged = Path(table["location"].removeprefix("file://")) / "metadata" / "forged.metadata.json"
    forged.write_text(json.dumps(table))
    door.ask("DELETE", T)
    body = {"name": "u", "metadata-location": f"file://{forged}"}
    answer = door.ask("POST", "namespaces/default/register", body)
    assert answer.status == 400
    assert "comes before itself" in answer.text
