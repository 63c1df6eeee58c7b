"""What a request to the catalog may hold: few mistakes, and tables of a size that can be borne."""

import itertools
from typing import Any

import pytest

from support.services.rest import RestDoor

TABLES = "namespaces/default/tables"
JSON: dict[str, Any] = {"content-type": "application/json"}
FIELD = '{"id": 1, "name": "a", "type": "long", "required": false}'
SET_SCHEMA = {"action": "set-current-schema", "schema-id": 7}
MANY = [
    {"source-id": 1, "field-id": 1000 + at, "transform": f"bucket[{at + 1}]", "name": f"f{at}"}
    for at in range(1_001)
]
MANY_FIELDS = {"action": "add-spec", "spec": {"spec-id": 1, "fields": MANY}}
SET_PROPERTIES = {"action": "set-properties", "updates": {"a": "b"}}


def updates(text: str) -> str:
    return f'{{"requirements": [], "updates": [{text}]}}'


def schema(*fields: str) -> str:
    return f'{{"type": "struct", "schema-id": 0, "fields": [{", ".join(fields)}]}}'


_numbers = itertools.count()


def next_name() -> str:
    return f"t{next(_numbers)}"


def make(door: RestDoor, *fields: str) -> str:
    """A new table; its name."""
    name = next_name()
    one = f'{{"name": "{name}", "schema": {schema(*fields or (FIELD,))}}}'
    assert door.raw("POST", f"/v1/{door.prefix}/{TABLES}", one, JSON).status == 200
    return name


def column(at: int, name: str, kind: str = '"long"', **more: str) -> str:
    told = "".join(f', "{key}": "{text}"' for key, text in more.items())
    return f'{{"id": {at}, "name": "{name}", "type": {kind}, "required": false{told}}}'


def nested(depth: int, at: int = 1) -> str:
    kind = '"long"'
    for level in range(depth):
        kind = f'{{"type": "list", "element-id": {level + 10}, "element": {kind}, "element-required": false}}'
    return column(at, "nested", kind)


UPDATES = [
    SET_SCHEMA,
    {"action": "remove-properties", "removals": ["x", "x"]},
    {"action": "remove-snapshot-ref", "ref-name": "x"},
    {"action": "remove-partition-specs", "spec-ids": [7]},
    {"action": "remove-schemas", "schema-ids": [7]},
    {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch", "snapshot-id": 7},
    MANY_FIELDS,
    {"action": "set-default-spec", "spec-id": 7},
    {"action": "set-default-sort-order", "sort-order-id": 7},
    {"action": "remove-snapshots", "snapshot-ids": [7]},
    {"action": "remove-statistics", "snapshot-id": 7},
]
CREATE = [{"type": "assert-create"}]
BODIES: list[dict[str, Any]] = [
    *({"requirements": CREATE, "updates": updates} for updates in ([], [SET_SCHEMA], [SET_PROPERTIES])),
    *({"requirements": [], "updates": [update]} for update in UPDATES),
    {"requirements": [{"type": "assert-current-schema-id", "current-schema-id": 7}], "updates": []},
]


@pytest.mark.parametrize("body", BODIES)
def test_an_update_of_a_missing_part_of_metadata_is_refused(standing: RestDoor, body: dict[str, Any]) -> None:
    """U3: at once; pyiceberg looks for it with ``next()``, whose end no thread can tell of. Also of a table
    that there is not."""
    table, new = make(standing), next_name()
    for name in (table, new):
        answer = standing.ask("POST", f"{TABLES}/{name}", body)
        assert answer.status in (400, 404, 409, 200), answer.text


@pytest.mark.parametrize(
    "update",
    [
        {"action": "remove-snapshots", "snapshot-ids": [7, 7]},
        {"action": "remove-snapshot-ref", "ref-name": "x"},
        {"action": "remove-statistics", "snapshot-id": 7},
        {"action": "remove-partition-statistics", "snapshot-id": 7},
        {"action": "remove-schemas", "schema-ids": [7]},
        {"action": "remove-partition-specs", "spec-ids": [7]},
    ],
    ids=lambda update: update["action"],
)
def test_to_remove_what_is_not_there_changes_nothing(standing: RestDoor, update: dict[str, Any]) -> None:
    """As in Iceberg's own catalogs: somebody else may have removed it a moment ago."""
    path = f"{TABLES}/{make(standing)}"
    made = standing.ask("GET", path).json["metadata"]
    again = standing.ask("POST", path, {"requirements": [], "updates": [update]})
    assert (again.status, again.json["metadata"]) == (200, made), again.text


def test_removing_parts_of_metadata_ignores_those_that_are_missing(standing: RestDoor) -> None:
    """The schema that the table has now stays, whatever is removed besides."""
    path = f"{TABLES}/{make(standing)}"
    made = standing.ask("GET", path).json["metadata"]
    statistics = {"snapshot-id": 7, "statistics-path": "x", "file-size-in-bytes": 1, "blob-metadata": []}
    statistics["file-footer-size-in-bytes"] = 1
    added = [{"action": "set-statistics", "snapshot-id": 7, "statistics": statistics}]
    removed = [{"action": "remove-statistics", "snapshot-id": number} for number in (7, 8, 7)]
    present = made["current-schema-id"]
    for updates_of, status, left in (
        (added, 200, 1),
        ([{"action": "remove-schemas", "schema-ids": [present, 7]}], 400, 1),
        ([*removed, *added], 200, 1),
        (removed, 200, 0),
    ):
        answer = standing.ask("POST", path, {"requirements": [], "updates": updates_of})
        assert answer.status == status, answer.text
        found = standing.ask("GET", path).json["metadata"]
        assert (len(found["statistics"]), found["current-schema-id"]) == (left, present)


@pytest.mark.parametrize(
    ("before", "mistake", "behind", "count"),
    [
        ("", "{}", "", 1_000_000),
        ('{"action": "remove-snapshots", "snapshot-ids": [', '"x"', "]}", 50_000),
        ('{"action": "add-schema", "schema": {"type": "struct", "fields": [', "{}", "]}}", 50_000),
    ],
    ids=["updates", "snapshots", "fields"],
)
def test_a_request_of_many_mistakes_is_refused_in_few_words(
    standing: RestDoor, before: str, mistake: str, behind: str, count: int
) -> None:
    """S1: to look for them, and to tell them all, would take minutes and gigabytes."""
    text = updates(before + ",".join([mistake] * count) + behind)
    answer = standing.raw("POST", f"/v1/{standing.prefix}/{TABLES}/t", text, JSON)
    assert answer.status in (400, 413), answer.text[:300]
    assert len(answer.text) < 2_000


@pytest.mark.parametrize(
    "shape",
    [
        schema(*(column(at + 1, f"c{at}") for at in range(10_001))),
        schema(column(1, "c" * 1_001)),
        schema(column(1, "c", doc="d" * 10_001)),
        schema(nested(40)),
    ],
    ids=["columns", "name", "doc", "nesting"],
)
def test_a_table_is_not_larger_than_operations_bear(standing: RestDoor, shape: str) -> None:
    """S1: when it is made, and when it is changed; the error names the schema."""
    one = f'{{"name": "wide", "schema": {shape}}}'
    made = standing.raw("POST", f"/v1/{standing.prefix}/{TABLES}", one, JSON)
    assert made.problem == (400, "BadRequestException"), made.text[:300]
    good = make(standing, FIELD, nested(20, 2))
    change = updates(f'{{"action": "add-schema", "schema": {shape}}}')
    changed = standing.raw("POST", f"/v1/{standing.prefix}/{TABLES}/{good}", change, JSON)
    assert changed.problem == (400, "BadRequestException"), changed.text[:300]
