"""What a worker finds out for ``distop executor --check``: real sidecars, real folders."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from distop.executor.checking import facts
from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.sidecar import client as sidecar_client
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from support.services.executing import place_in, short_folder, sidecar_process
from support.services.sidecars import Host
from support.services.sidecars import host as host
from support.services.sidecars import session as session
from support.services.sidecars import sidecar_folder as sidecar_folder


async def ask(sidecar_folder: SidecarFolder, etcd: EtcdConfig) -> dict[str, str]:
    return await asyncio.to_thread(facts.way_to_etcd, sidecar_folder, etcd.to_public_env())


async def test_a_sidecar_that_serves_is_the_way_to_etcd(host: Host) -> None:
    async with host.sidecar():
        assert await ask(host.sidecar_folder, host.etcd) == {"sidecar": "", "etcd": ""}


async def test_where_none_serves_and_none_can_be_started_it_is_said(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sidecar_client, "WAIT_S", 0.2)
    found = await ask(host.sidecar_folder, replace(host.etcd, user="distop"))
    assert f"no sidecar answers at {host.sidecar_folder.socket}" in found["sidecar"]
    assert "DISTOP_ETCD_PASSWORD_FILE" in found["sidecar"]


async def test_a_sidecar_that_does_not_reach_etcd_is_not_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts, "ANSWER_S", 1.0)
    nowhere = EtcdConfig(endpoints=(f"127.0.0.1:{free_port()}",))
    with short_folder() as folder:
        away = place_in(folder, nowhere)
        async with sidecar_process(nowhere, away, tmp_path):
            found = await ask(away, nowhere)
    assert found["sidecar"] == ""
    assert "etcd has not answered the sidecar within 1 s" in found["etcd"]


def test_a_folder_of_all_hosts_is_known_by_the_file_of_the_driver(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours" / "sign").write_text("sign")
    assert facts.store(str(tmp_path / "ours"), "sign") == {"error": "", "shared": "yes"}
    assert facts.store(f"file://{tmp_path}/ours/", "sign") == {"error": "", "shared": "yes"}
    assert facts.store(str(tmp_path / "theirs"), "sign") == {"error": "", "shared": ""}
    assert [path.name for path in (tmp_path / "ours").iterdir()] == ["sign"]


def test_why_a_store_cannot_be_reached_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISTOP_ALLOW_LOCATIONS", "s3://tables/")
    found = facts.store("/elsewhere", "sign")
    assert found["error"].startswith("NotAllowed: /elsewhere may not be opened here")


def test_types_that_cannot_be_loaded_are_told() -> None:
    assert "noop" in facts.facts_of_types("")
    (said,) = facts.facts_of_types("no.such.module:Type")
    assert "cannot be loaded" in said
