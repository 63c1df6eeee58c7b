"""Views through the REST catalog, as they stand on the wire: who may do what, and what errors say."""

import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.catalog.rest import RestCatalog as RestClient
from pyiceberg.exceptions import NoSuchViewError, ViewAlreadyExistsError

from distop.catalog.catalog import EtcdCatalog
from distop.coordinator.access.authentication import IdentityConfig
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.records.record import decode
from distop.metastore.records.table import AuditRecord
from support.etcd.lossy import Fault
from support.services.rest import RestDoor, rest_door
from support.services.tokens import allow, token_file, token_of
from support.tables.catalogs import SCHEMA, faulty, metadata_files
from support.tables.views import new_view, replacing, view_version

VIEWS = "namespaces/default/views"
V = f"{VIEWS}/v"
TABLES = "namespaces/default/tables"
READER, WRITER, ROOT, NOBODY = "reader", "writer", "root", "nobody"
NEW_TABLE = {"name": "t", "schema": SCHEMA.model_dump(mode="json", by_alias=True)}


def change(sql: str, **more: Any) -> dict[str, Any]:
    return {"updates": replacing(sql), **more}


def renaming(old: str, new: str, space: str = "default") -> dict[str, Any]:
    return {
        "source": {"namespace": ["default"], "name": old},
        "destination": {"namespace": [space], "name": new},
    }


@pytest.fixture
def view(door: RestDoor) -> Any:
    """What the creation of a view answers."""
    made = door.ask("POST", VIEWS, new_view("v"))
    assert made.status == 200, made.text
    return made.json


def test_a_view_from_its_creation_to_its_end(door: RestDoor, view: Any, python: EtcdCatalog) -> None:
    """E1: and the same through both doors."""
    listed = door.raw("GET", "/v1/config", None, {}).json["endpoints"]
    assert len([one for one in listed if "view" in one]) == 8
    first = door.ask("GET", V)
    assert first.json == view
    assert door.ask("GET", V, if_none_match=first.headers["etag"]).status == 304
    uuid = {"type": "assert-view-uuid", "uuid": view["metadata"]["view-uuid"]}
    changed = door.ask("POST", V, change("SELECT 2", requirements=[uuid]))
    assert changed.status == 200
    assert [one["version-id"] for one in changed.json["metadata"]["versions"]] == [1, 2]
    assert door.ask("GET", V, if_none_match=first.headers["etag"]).json == changed.json
    assert python.load_view("default.v").current_version().version_id == 2
    assert door.ask("POST", "views/rename", renaming("v", "w")).status == 204
    assert (door.ask("HEAD", V).status, door.ask("HEAD", f"{VIEWS}/w").status) == (404, 204)
    location = changed.json["metadata-location"]
    assert door.ask("DELETE", f"{VIEWS}/w").status == 204
    body = {"name": "again", "metadata-location": location}
    assert door.ask("POST", "namespaces/default/register-view", body).json == changed.json


def test_pyicebergs_client_has_views(rest: RestClient) -> None:
    """E1"""
    made = rest.create_view("default.v", SCHEMA, view_version("SELECT 1", "spark", "trino"))
    assert rest.load_view("default.v") == made
    assert rest.list_views("default") == [("default", "v")]
    assert rest.view_exists("default.v")
    with pytest.raises(ViewAlreadyExistsError):
        rest.create_view("default.v", SCHEMA, view_version())
    rest.drop_view("default.v")
    with pytest.raises(NoSuchViewError):
        rest.load_view("default.v")
    assert not rest.view_exists("default.v")


def test_lists_come_in_pages(door: RestDoor) -> None:
    """O37"""
    for number in range(5):
        assert door.ask("POST", VIEWS, new_view(f"v{number}")).status == 200
    found, token = [], ""
    while token is not None:
        page = door.ask("GET", f"{VIEWS}?pageSize=2&pageToken={token}").json
        assert len(page["identifiers"]) <= 2
        found += [one["name"] for one in page["identifiers"]]
        token = page["next-page-token"]
    assert found == [f"v{number}" for number in range(5)]
    assert door.ask("GET", TABLES).json["identifiers"] == []


BAD = (400, "BadRequestException")
ERRORS: list[tuple[str, str, Any, tuple[int, str]]] = [
    ("GET", f"{VIEWS}/x", None, (404, "NoSuchViewException")),
    ("POST", f"{VIEWS}/x", change("SELECT 2"), (404, "NoSuchViewException")),
    ("DELETE", f"{VIEWS}/x", None, (404, "NoSuchViewException")),
    ("DELETE", f"{VIEWS}/t", None, (404, "NoSuchViewException")),
    ("GET", f"{TABLES}/v", None, (404, "NoSuchTableException")),
    ("DELETE", f"{TABLES}/v", None, (404, "NoSuchTableException")),
    ("GET", "namespaces/none/views", None, (404, "NoSuchNamespaceException")),
    ("POST", "namespaces/none/views", new_view("v"), (404, "NoSuchNamespaceException")),
    ("POST", VIEWS, new_view("v"), (409, "AlreadyExistsException")),
    ("POST", VIEWS, new_view("t"), (409, "AlreadyExistsException")),
    ("POST", TABLES, {**NEW_TABLE, "name": "v"}, (409, "AlreadyExistsException")),
    ("POST", TABLES, {**NEW_TABLE, "name": "v", "stage-create": True}, (409, "AlreadyExistsException")),
    ("POST", "views/rename", renaming("x", "y"), (404, "NoSuchViewException")),
    ("POST", "views/rename", renaming("v", "t"), (409, "AlreadyExistsException")),
    ("POST", "views/rename", renaming("v", "y", "none"), (404, "NoSuchNamespaceException")),
    ("POST", "tables/rename", renaming("t", "v"), (409, "AlreadyExistsException")),
    ("POST", VIEWS, new_view("b c\n"), BAD),
    ("POST", VIEWS, {"name": "w"}, BAD),
    ("POST", VIEWS, new_view("w", properties={"s3.endpoint": "x"}), BAD),
    ("POST", VIEWS, new_view("w", location="file:///etc/x\n"), BAD),
    ("POST", V, {"updates": [{"action": "add-snapshot"}]}, BAD),
    ("POST", V, change("x", requirements=[{"type": "assert-create"}]), BAD),
    (
        "POST",
        V,
        change("x", requirements=[{"type": "assert-view-uuid", "uuid": str(uuid4())}]),
        (409, "CommitFailedException"),
    ),
    ("POST", V, change("x", identifier={"namespace": ["default"], "name": "w"}), BAD),
]


def test_errors_say_what_has_happened(door: RestDoor, view: Any) -> None:
    """E2: a client decides by the status what becomes of its data."""
    assert door.ask("POST", TABLES, NEW_TABLE).status == 200
    for method, path, body, expected in ERRORS:
        assert door.ask(method, path, body).problem == expected, (method, path, body)
    assert door.ask("GET", V).json == view


def test_a_lost_reply_is_no_failure_and_a_repeat_is_done_once(
    door: RestDoor, view: Any, python: EtcdCatalog, tmp_path: Path
) -> None:
    """E2, P8: with a key, the first answer comes again, after all that has come since."""
    made, changed, dropped = (str(uuid4()) for _ in range(3))
    for fault in (Fault.LOST_REPLY, Fault.LOST_REQUEST):
        faulty(door.behind, fault)
        body = new_view(fault.name.lower())
        named = {"idempotency_key": made} if fault is Fault.LOST_REPLY else {}
        first = door.ask("POST", VIEWS, body, **named)
        assert first.status == 200
    body = new_view("lost_reply")
    assert door.ask("POST", VIEWS, body, idempotency_key=made).status == 200
    assert door.ask("POST", VIEWS, body).status == 409
    once = door.ask("POST", V, change("SELECT 2"), idempotency_key=changed)
    assert door.ask("POST", V, change("SELECT 3")).status == 200
    assert door.ask("POST", V, change("SELECT 2"), idempotency_key=changed).json == once.json
    assert len(python.load_view("default.v").versions) == 3
    for _ in range(2):
        assert door.ask("DELETE", V, idempotency_key=dropped).status == 204
    assert len(metadata_files(tmp_path)) == 5


def test_an_unknown_outcome_is_told(door: RestDoor, view: Any, python: EtcdCatalog, tmp_path: Path) -> None:
    """E2: and no file is removed."""
    losing = faulty(door.behind, Fault.LOST_REPLY)
    losing.meanwhile.append(lambda: python.drop_view("default.v"))
    answer = door.ask("POST", V, change("SELECT 2"))
    assert answer.problem == (500, "CommitStateUnknownException")
    assert len(metadata_files(tmp_path)) == 2


def test_the_roles_of_the_policy_hold_for_views(
    etcd_config: EtcdConfig, store: SyncEtcd, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S3: the rights of a name are the same, whatever has it; what one may not see does not exist."""
    caplog.set_level(logging.INFO)
    identity = IdentityConfig(admins=(ROOT,), token_file=token_file(tmp_path, [READER, WRITER, ROOT, NOBODY]))
    allow(store, ROOT, "admin", "*")
    allow(store, READER, "reader", "v")
    allow(store, WRITER, "writer", "v", "w")
    with rest_door(etcd_config, tmp_path, identity) as door:
        assert door.ask("GET", VIEWS).status == 401

        def status(who: str, method: str, path: str, body: Any) -> int:
            return door.ask(method, path, body, authorization=f"Bearer {token_of(who)}").status

        expected: list[tuple[str, str, Any, dict[str, int]]] = [
            ("POST", VIEWS, new_view("v"), {NOBODY: 403, READER: 403, WRITER: 200}),
            ("POST", VIEWS, new_view("hidden"), {WRITER: 403, ROOT: 200}),
            ("GET", V, None, {NOBODY: 404, READER: 200, WRITER: 200}),
            ("HEAD", V, None, {NOBODY: 404, READER: 204}),
            ("POST", V, change("SELECT 2"), {NOBODY: 404, READER: 403, WRITER: 200}),
            ("POST", "views/rename", renaming("v", "w"), {NOBODY: 404, READER: 403, WRITER: 204}),
            ("POST", "views/rename", renaming("w", "v"), {WRITER: 204}),
            ("DELETE", V, None, {NOBODY: 404, READER: 403, WRITER: 403}),
        ]
        for method, path, body, answers in expected:
            assert {who: status(who, method, path, body) for who in answers} == answers, (method, path)
        for who, names in {READER: ["v"], ROOT: ["hidden", "v"]}.items():
            listed = door.ask("GET", VIEWS, authorization=f"Bearer {token_of(who)}").json
            assert [one["name"] for one in listed["identifiers"]] == names
        unseen = door.ask("GET", f"{VIEWS}/hidden", authorization=f"Bearer {token_of(READER)}")
        assert unseen.problem == (404, "NoSuchViewException")
        assert status(ROOT, "DELETE", V, None) == 204
    trail = [decode(kv.value, AuditRecord) for kv in store.scan(store.keyspace.audit_prefix).kvs]
    by = {one.action: one.by for one in trail}
    assert (by["create-view"], by["alter-view"], by["drop-view"]) == (ROOT, WRITER, ROOT)
    denied = [vars(one) for one in caplog.records if one.getMessage() == "call_denied"]
    assert {READER, NOBODY} <= {one["subject"] for one in denied if one["code"] == "TABLE_NOT_FOUND"}
