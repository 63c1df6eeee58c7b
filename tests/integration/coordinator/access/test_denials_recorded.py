"""The audit trail records refused calls, and every action under the caller's verified name."""

from pathlib import Path

import httpx
import pytest

from distop.client import AsyncClient, Credentials
from distop.coordinator.access.authentication import IdentityConfig
from distop.errors import PermissionDenied, TableNotFound, Unauthenticated
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running
from support.services.tokens import token_file, token_of
from support.tables.catalogs import SCHEMA
from support.tables.nowhere import nowhere


async def test_denials_and_verified_names_stand_in_the_trail(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S6: with the verified name, the claimed one, and the address."""
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, ["root", "eve"]))
    async with running(config_of(etcd_config, identity=identity)) as coordinator:
        at = coordinator.address
        root = AsyncClient(at, credentials=Credentials(token=token_of("root")), identity="somebody")
        eve = AsyncClient(at, credentials=Credentials(token=token_of("eve")), identity="root")
        async with root, eve:
            await root.create_table("t", nowhere())
            with pytest.raises(TableNotFound):
                await eve.table("t").pause()
            with pytest.raises(PermissionDenied):
                await eve.drain("x")
            trail = [entry async for entry in root.audit()]
    denied = {entry.action: entry for entry in trail if entry.outcome == "denied"}
    assert denied["PauseTable"].target == "t"
    for entry in denied.values():
        assert (entry.by, entry.claimed_by, entry.address) == ("eve", "root", "127.0.0.1")
    [made] = [entry for entry in trail if entry.action == "create-table"]
    assert (made.by, made.claimed_by, made.outcome) == ("root", "somebody", "done")


async def test_refusals_of_page_and_catalog_stand_there_too(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S6: proofs that do not hold at any door, and denials; but so few that they push nothing out."""
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, ["root", "eve"]))
    config = config_of(etcd_config, identity=identity, web="127.0.0.1:0", catalog="127.0.0.1:0")
    async with running(config) as coordinator, httpx.AsyncClient() as web:
        page, catalog = f"http://{coordinator.web_address}", f"http://{coordinator.catalog_address}"
        eve = {"authorization": f"Bearer {token_of('eve')}"}
        spaces = f"{catalog}/v1/{etcd_config.prefix}/namespaces"
        root = AsyncClient(coordinator.address, credentials=Credentials(token=token_of("root")))
        thief = AsyncClient(coordinator.address, credentials=Credentials(token="stolen"))
        async with root, thief:
            await root.create_table("t", nowhere())
            assert (await web.get(f"{page}/api/table?name=t", headers=eve)).status_code == 404
            assert (await web.get(f"{page}/metrics", headers=eve)).status_code == 403
            assert (await web.get(f"{spaces}/default/tables/t", headers=eve)).status_code == 404
            made = await web.post(spaces, headers=eve, json={"namespace": ["n"]})
            assert made.status_code == 403
            # Who has shown nothing yet has not been refused.
            assert (await web.get(f"{page}/metrics")).status_code == 401
            assert (await web.post(f"{page}/sign-in", data={"token": "guess"})).status_code == 401
            assert (await web.get(spaces, headers={"authorization": "Bearer guess"})).status_code == 401
            with pytest.raises(Unauthenticated):
                await thief.table("t").get()
            for _ in range(20):
                await web.post(f"{page}/sign-in", data={"token": "guess"})
            trail = [entry async for entry in root.audit()]
    denied = [entry for entry in trail if entry.outcome == "denied"]
    assert {entry.address for entry in denied} == {"127.0.0.1"}
    assert {(entry.action, entry.target) for entry in denied if entry.by == "eve"} == {
        ("GetTable", "t"),
        ("Diagnose", ""),
        ("GET /v1/{prefix}/namespaces/{namespace}/tables/{table}", "t"),
        ("POST /v1/{prefix}/namespaces", ""),
    }
    assert [entry.action for entry in denied if not entry.by] == ["sign-in"] * 5


async def test_what_a_catalog_does_is_recorded_with_address(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S6: in the trail of the table, whichever door it came through."""
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, ["root"]))
    place = {"catalog": "127.0.0.1:0", "warehouse": f"file://{tmp_path}/warehouse"}
    config = config_of(etcd_config, identity=identity, **place)
    async with running(config) as coordinator, httpx.AsyncClient() as web:
        known = {"authorization": f"Bearer {token_of('root')}"}
        body = {"name": "t", "schema": SCHEMA.model_dump(mode="json", by_alias=True)}
        tables = f"http://{coordinator.catalog_address}/v1/{etcd_config.prefix}/namespaces/default/tables"
        assert (await web.post(tables, headers=known, json=body)).status_code == 200
        async with AsyncClient(coordinator.address, credentials=Credentials(token=token_of("root"))) as root:
            trail = [entry async for entry in root.audit("t")] + [entry async for entry in root.audit()]
    assert ("create-table", "root", "127.0.0.1") in {(one.action, one.by, one.address) for one in trail}
