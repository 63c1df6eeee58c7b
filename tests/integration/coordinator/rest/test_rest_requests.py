"""The REST catalog as it stands on the wire: paths, headers, and what errors say."""

from typing import Any
from uuid import uuid4

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.coordinator.rest.routes import ROUTES
from distop.metastore.etcd.sync import SyncEtcd
from support.etcd.lossy import Fault
from support.services.rest import RestDoor
from support.tables.catalogs import SCHEMA, faulty, ids, keys_of

T = "namespaces/default/tables/t"


def new_table(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "schema": SCHEMA.model_dump(mode="json", by_alias=True), **more}


def properties(**wanted: str) -> dict[str, Any]:
    """A commit that sets properties."""
    return {"requirements": [], "updates": [{"action": "set-properties", "updates": wanted}]}


@pytest.fixture
def table(door: RestDoor) -> Any:
    """What the creation of a table answers."""
    return made(door)


@pytest.fixture(scope="module")
def unchanged(standing: RestDoor) -> Any:
    """The same of the table of all requests that are refused."""
    return made(standing)


def made(door: RestDoor) -> Any:
    answer = door.ask("POST", "namespaces/default/tables", new_table("t"))
    assert answer.status == 200
    return answer.json


def test_the_configuration_tells_the_prefix_and_every_endpoint(door: RestDoor) -> None:
    told = door.raw("GET", "/v1/config?warehouse=x", None, {}).json
    assert told["overrides"] == {"prefix": door.prefix}
    assert set(told["endpoints"]) == {str(route) for route in ROUTES}
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in told["endpoints"]


def test_names_are_decoded_once_and_after_the_path_is_split(door: RestDoor, python: EtcdCatalog) -> None:
    """O29: a slash or a percent sign of a name is no part of the path."""
    assert door.ask("POST", "namespaces", {"namespace": ["a/b", "c%2Fd"]}).status == 200
    path = "namespaces/a%2Fb%1Fc%252Fd"
    assert door.ask("GET", path).json["namespace"] == ["a/b", "c%2Fd"]
    assert door.ask("POST", f"{path}/tables", new_table("x/y ü")).status == 200
    assert python.table_exists(("a/b", "c%2Fd", "x/y ü"))
    for way in ("x%2Fy%20%C3%BC", "x%2Fy+%C3%BC"):
        assert door.ask("HEAD", f"{path}/tables/{way}").status == 204
    assert door.ask("GET", f"{path}/tables/x/y%20%C3%BC").status == 404
    assert door.ask("POST", f"{path}/tables", new_table("v1.2")).status == 200
    assert python.table_exists(("a/b", "c%2Fd", "v1.2"))
    assert (
        door.ask("HEAD", f"{path}/tables/v1.2").status
        == door.ask("HEAD", f"{path}/tables/v1%2E2").status
        == 204
    )
    assert door.ask("GET", "namespaces?parent=a%2Fb").json["namespaces"] == [["a/b", "c%2Fd"]]
    assert door.ask("GET", "namespaces/%FF").problem == (400, "BadRequestException")


def test_paths_may_leave_the_prefix_out(door: RestDoor, python: EtcdCatalog) -> None:
    """E1: as ClickHouse's do to drop a table. Another prefix is another installation's."""
    python.create_namespace("namespaces")
    python.create_table("namespaces.tables", SCHEMA)
    for path, status in (
        ("namespaces", 200),
        ("namespaces/namespaces", 200),
        ("namespaces/namespaces/tables", 200),
        ("namespaces/namespaces/tables/tables/", 200),
        ("namespaces/none", 404),
        ("other/namespaces", 404),
        ("other/namespaces/namespaces", 404),
        ("", 404),
    ):
        assert door.raw("GET", f"/v1/{path}", None, {}).status == status, path
    named = {"idempotency-key": str(uuid4())}
    gone = "namespaces/namespaces/tables/tables?purgeRequested=False"
    assert door.raw("DELETE", f"/v1/{gone}", None, named).status == 204
    assert not python.table_exists("namespaces.tables")
    # It is one and the same request, either way.
    assert door.ask("DELETE", gone, idempotency_key=named["idempotency-key"]).status == 204


def test_clickhouse_is_told_200_in_place_of_204(door: RestDoor, python: EtcdCatalog) -> None:
    """E1: it takes 204 for no answer, and sends the request again."""
    for agent, status in (("PyIceberg/0.12.0", 204), ("ClickHouse/26.9.2.1", 200)):
        python.create_table("default.t", SCHEMA)
        answer = door.ask("DELETE", T, user_agent=agent)
        assert (answer.status, answer.text) == (status, "")
        assert not python.table_exists("default.t")


def test_metadata_that_a_client_has_is_not_sent_again(
    door: RestDoor, table: Any, python: EtcdCatalog
) -> None:
    first = door.ask("GET", T)
    assert first.json["metadata-location"] == table["metadata-location"]
    etag = first.headers["etag"]
    same = door.ask("GET", T, if_none_match=f'"other", W/{etag}')
    assert (same.status, same.text, same.headers["etag"]) == (304, "", etag)
    assert door.ask("GET", f"{T}?snapshots=refs", if_none_match=etag).status == 200
    python.load_table("default.t").append(ids(0, 1))
    assert door.ask("GET", T, if_none_match=etag).status == 200


def test_only_snapshots_that_are_named_if_asked_for(door: RestDoor, table: Any, python: EtcdCatalog) -> None:
    written = python.load_table("default.t")
    for start in range(3):
        written.append(ids(start, 1))
    assert len(door.ask("GET", T).json["metadata"]["snapshots"]) == 3
    some = door.ask("GET", f"{T}?snapshots=refs").json["metadata"]
    assert [one["snapshot-id"] for one in some["snapshots"]] == [some["current-snapshot-id"]]
    assert door.ask("GET", f"{T}?snapshots=few").problem == (400, "BadRequestException")


BAD, TABLES = (400, "BadRequestException"), "namespaces/default/tables"
WRONG_SCHEMA = {"type": "assert-current-schema-id", "current-schema-id": 7}
VERSION_3 = {"format-version": "3"}
REFUSED: list[tuple[str, str, Any, tuple[int, str]]] = [
    ("POST", T, {"requirements": [{"type": "assert-moon"}], "updates": []}, BAD),
    ("POST", T, {"requirements": [], "updates": [{"action": "explode"}]}, BAD),
    ("POST", T, "{", BAD),
    ("POST", T, {"requirements": [], "updates": [{"action": "set-properties", "updates": None}]}, BAD),
    ("POST", T, {"requirements": [], "updates": [{"action": "set-current-schema", "schema-id": 9}]}, BAD),
    ("POST", T, {**properties(a="b"), "identifier": {"namespace": ["default"], "name": "other"}}, BAD),
    ("POST", T, {"requirements": [WRONG_SCHEMA], "updates": []}, (409, "CommitFailedException")),
    ("POST", f"{TABLES}/no", properties(a="b"), (404, "NoSuchTableException")),
    ("GET", "namespaces/no/tables", None, (404, "NoSuchNamespaceException")),
    ("GET", "namespaces/default/functions", None, (404, "NotFoundException")),
    ("PUT", T, None, (405, "MethodNotAllowedException")),
    ("POST", "namespaces", {"namespace": ["default", ""]}, BAD),
    ("POST", TABLES, new_table("t"), (409, "AlreadyExistsException")),
    ("POST", "namespaces/no/tables", new_table("t"), (404, "NoSuchNamespaceException")),
    ("POST", TABLES, new_table("v3", properties=VERSION_3), BAD),
    ("POST", T, properties(**VERSION_3), BAD),
    ("DELETE", "namespaces/default", None, (409, "NamespaceNotEmptyException")),
    (
        "POST",
        "namespaces/default/properties",
        {"removals": ["a"], "updates": {"a": "b"}},
        (422, "UnprocessableEntityException"),
    ),
]


@pytest.mark.parametrize(("method", "path", "body", "problem"), REFUSED)
def test_a_refused_request_says_that_nothing_has_happened(
    standing: RestDoor, unchanged: Any, method: str, path: str, body: Any, problem: tuple[int, str]
) -> None:
    """U3: nothing has happened, and the status says why."""
    assert standing.ask(method, path, body).problem == problem
    assert standing.ask("GET", T).json["metadata-location"] == unchanged["metadata-location"]


def test_a_form_of_a_web_site_does_nothing(door: RestDoor, table: Any) -> None:
    """A browser sends a form anywhere without asking; JSON it does not."""
    text = '{"requirements": [], "updates": []}'
    assert door.ask("POST", T, text, content_type="text/plain").status == 415
    assert door.ask("POST", T, properties(a="b"), host="evil.example").status == 421


def test_metrics_that_engines_report_are_accepted(door: RestDoor, table: Any) -> None:
    assert door.ask("POST", f"{T}/metrics", {"report-type": "scan-report"}).status == 204


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (Fault.LOST_REQUEST, (500, "CommitStateUnknownException")),
        (Fault.DOWN, (429, "ServiceUnavailableException")),
        (Fault.FULL, (429, "TooManyRequestsException")),
    ],
)
def test_a_commit_that_may_have_happened_is_never_reported_as_failed(
    door: RestDoor, table: Any, store: SyncEtcd, fault: Fault, problem: tuple[int, str]
) -> None:
    """P8: what certainly has not happened may be tried again, and 503 is said of neither."""
    before = store.get(keys_of(store, "t").head)
    faulty(door.behind, fault, *[fault] * 20 if fault is Fault.LOST_REQUEST else ())
    assert door.ask("POST", T, properties(a="b")).problem == problem
    assert store.get(keys_of(store, "t").head) == before


@pytest.mark.parametrize("version", [1, 2])
def test_another_program_may_choose_the_format_of_its_table(door: RestDoor, version: int) -> None:
    """It is none of the table's properties."""
    wanted = new_table("chosen", properties={"format-version": str(version)})
    metadata = door.ask("POST", TABLES, wanted).json["metadata"]
    assert metadata["format-version"] == version
    assert "format-version" not in metadata["properties"]
