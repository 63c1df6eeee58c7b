"""Who may do what through the REST catalog: the roles of the policy hold there, too."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyiceberg.exceptions import OAuthError, UnauthorizedError

from distop.catalog.catalog import EtcdCatalog
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.access.tokens import IssuerConfig
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from distop.metastore.records.record import decode
from distop.metastore.records.table import AuditRecord
from support.services.issuers import CLIENT, PASSWORD, issuing
from support.services.rest import RestDoor, rest_door
from support.services.tokens import allow, token_file, token_of
from support.tables.catalogs import SCHEMA, ids
from support.tables.views import new_view

TABLES = "namespaces/default/tables"
NEW = {"name": "t", "schema": SCHEMA.model_dump(mode="json", by_alias=True)}
SETTING = {"requirements": [], "updates": [{"action": "set-properties", "updates": {"a": "b"}}]}
READER, WRITER, ROOT, NOBODY = "reader", "writer", "root", "nobody"


def test_the_roles_of_the_policy_hold(etcd_config: EtcdConfig, store: SyncEtcd, tmp_path: Path) -> None:
    """S3: on every endpoint; what one may not see does not exist."""
    subjects = [READER, WRITER, ROOT, NOBODY]
    identity = IdentityConfig(admins=(ROOT,), token_file=token_file(tmp_path, subjects))

    def status(door: RestDoor, who: str, method: str, path: str, body: Any = None) -> int:
        return door.ask(method, path, body, authorization=f"Bearer {token_of(who)}").status

    with rest_door(etcd_config, tmp_path, identity) as first:
        assert first.ask("GET", "namespaces").problem == (401, "NotAuthorizedException")
        assert first.raw("GET", "/v1/config", None, {}).status == 401
        assert status(first, ROOT, "GET", "namespaces") == 200
        allow(store, READER, "reader", "t")
        allow(store, WRITER, "writer", "t")
    with rest_door(etcd_config, tmp_path, identity) as door:
        table = f"{TABLES}/t"
        expected: list[tuple[str, str, Any, dict[str, int]]] = [
            ("POST", TABLES, NEW, {NOBODY: 403, READER: 403, WRITER: 200}),
            ("GET", table, None, {NOBODY: 404, READER: 200, WRITER: 200}),
            ("POST", table, SETTING, {NOBODY: 404, READER: 403, WRITER: 200}),
            ("GET", "namespaces/hidden", None, {NOBODY: 404, READER: 404, WRITER: 404, ROOT: 404}),
            ("POST", "namespaces", {"namespace": ["n"]}, {WRITER: 403, ROOT: 200}),
            ("DELETE", table, None, {NOBODY: 404, READER: 403, WRITER: 403, ROOT: 204}),
        ]
        for method, path, body, answers in expected:
            found = {who: status(door, who, method, path, body) for who in answers}
            assert found == answers, (method, path)
        changes = {
            "table-changes": [{**SETTING, "identifier": {"namespace": ["default"], "name": n}} for n in "tu"]
        }
        assert status(door, WRITER, "POST", "transactions/commit", changes) == 404
    trail = store.scan(store.keyspace.audit_prefix).kvs
    by = {decode(kv.value, AuditRecord).action: decode(kv.value, AuditRecord).by for kv in trail}
    assert (by["create-table"], by["drop-table"]) == (WRITER, ROOT)


def test_a_repeat_without_the_right_to_it_leaves_the_outcome_open(
    etcd_config: EtcdConfig, store: SyncEtcd, python: EtcdCatalog, tmp_path: Path
) -> None:
    """P8: engines remove the files of a commit that was refused."""
    identity = IdentityConfig(admins=(ROOT,), token_file=token_file(tmp_path, [READER, WRITER, ROOT, NOBODY]))
    python.create_table("default.t", SCHEMA)
    allow(store, ROOT, "admin", "*")
    allow(store, READER, "reader", "t")
    allow(store, WRITER, "writer", "t")
    with rest_door(etcd_config, tmp_path, identity) as door:

        def commit(key: str, **headers: str) -> tuple[int, str]:
            answer = door.ask("POST", f"{TABLES}/t", SETTING, idempotency_key=key, **headers)
            return (200, "") if answer.status == 200 else answer.problem

        done, new = str(uuid4()), str(uuid4())
        assert commit(done, authorization=f"Bearer {token_of(WRITER)}") == (200, "")
        refused = {
            "Bearer of what has run out": (401, "NotAuthorizedException"),
            f"Bearer {token_of(READER)}": (403, "ForbiddenException"),
            f"Bearer {token_of(NOBODY)}": (404, "NotFoundException"),
        }
        for proof, problem in refused.items():
            assert commit(new, authorization=proof) == commit("none", authorization=proof) == problem
            assert commit(done, authorization=proof) == (503, "CommitStateUnknownException")


def test_an_engine_gets_its_token_from_the_issuer(
    etcd_config: EtcdConfig, store: SyncEtcd, python: EtcdCatalog, tmp_path: Path
) -> None:
    """S3: with pyiceberg's own client, which asks for another one when it counts no more."""
    python.create_table("default.t", SCHEMA).append(ids(0, 3))
    python.create_table("default.hidden", SCHEMA)
    allow(store, ROOT, "admin", "*")
    allow(store, f"login:{CLIENT}", "reader", "t")
    with issuing() as issuer:
        known = IssuerConfig(url=issuer.url, audience="distop", name="login")
        engine = {
            "credential": f"{CLIENT}:{PASSWORD}",
            "oauth2-server-uri": f"{issuer.url}/token",
            "audience": "distop",
        }
        with rest_door(etcd_config, tmp_path, IdentityConfig(issuers=(known,))) as door:
            with door.client(**engine) as catalog:
                assert catalog.load_table("default.t").scan().to_arrow()["id"].to_pylist() == [0, 1, 2]
                assert catalog.list_tables("default") == [("default", "t")]
            with door.client(**engine, token="no longer valid") as catalog:
                assert catalog.table_exists("default.t")
            with pytest.raises(UnauthorizedError, match="the token is invalid"):
                door.client(**{**engine, "audience": "another"})
            with pytest.raises(OAuthError):
                door.client(**{**engine, "credential": f"{CLIENT}:guessed"})
            # Where nobody says who the issuer is, clients ask the catalog itself.
            with pytest.raises(OAuthError, match="oauth2-server-uri"):
                door.client(credential=engine["credential"])


def test_lists_leave_out_what_the_caller_may_not_see(
    etcd_config: EtcdConfig, store: SyncEtcd, python: EtcdCatalog, tmp_path: Path
) -> None:
    """S3: and a namespace exists for those who may see tables in it, also where there are none yet."""
    identity = IdentityConfig(admins=(ROOT,), token_file=token_file(tmp_path, [READER, ROOT, NOBODY]))
    for namespace in ("empty", "hidden", "hidden.deep", "sales", "sales.eu"):
        python.create_namespace(namespace)
    for name in ("default.mine", "default.theirs", "sales.a", "sales.b1", "sales.b2", "hidden.x"):
        python.create_table(name, SCHEMA)
    allow(store, ROOT, "admin", "*")
    allow(store, READER, "reader", "mine", "sales.b*", "sales.eu.*", "empty.*")
    with rest_door(etcd_config, tmp_path, identity) as door:

        def asked(who: str, path: str) -> Any:
            answer = door.ask("GET", path, authorization=f"Bearer {token_of(who)}")
            return answer.json if answer.status == 200 else answer.status

        def spaces(who: str, query: str = "") -> list[str]:
            return [".".join(one) for one in asked(who, f"namespaces{query}")["namespaces"]]

        def tables(who: str, namespace: str) -> list[str]:
            found = asked(who, f"namespaces/{namespace}/tables?pageSize=2")
            return [one["name"] for one in found["identifiers"]]

        assert spaces(READER) == ["default", "empty", "sales"]
        assert spaces(ROOT) == ["default", "empty", "hidden", "sales"]
        assert spaces(READER, "?parent=sales") == ["sales.eu"]
        assert spaces(NOBODY) == []
        assert (tables(READER, "default"), tables(READER, "sales")) == (["mine"], ["b1", "b2"])
        assert tables(ROOT, "sales") == ["a", "b1"]
        for path in ("namespaces/hidden", "namespaces/hidden/tables", "namespaces?parent=hidden"):
            assert asked(READER, path) == asked(NOBODY, path) == 404
            assert asked(ROOT, path) != 404


@pytest.mark.parametrize("what", ["tables", "views"])
def test_a_folder_that_is_taken_does_not_say_by_whom(
    etcd_config: EtcdConfig, store: SyncEtcd, python: EtcdCatalog, tmp_path: Path, what: str
) -> None:
    """S3: not to who may not see that table."""
    identity = IdentityConfig(admins=(ROOT,), token_file=token_file(tmp_path, [WRITER, ROOT]))
    place = python.create_table("default.secret", SCHEMA, f"file://{tmp_path}/all/of").location()
    allow(store, ROOT, "admin", "*")
    allow(store, WRITER, "writer", "mine*")
    body = new_view("mine") if what == "views" else {**NEW, "name": "mine"}
    with rest_door(etcd_config, tmp_path, identity) as door:
        for wanted in (place, f"{place}/in", f"file://{tmp_path}/all"):
            for who, named in ((WRITER, False), (ROOT, True)):
                path, asked = f"namespaces/default/{what}", {**body, "location": wanted}
                refused = door.ask("POST", path, asked, authorization=f"Bearer {token_of(who)}")
                assert refused.problem == (409, "AlreadyExistsException")
                assert ("secret" in refused.text) == named
