"""Who was refused stands in the audit trail, and who did something by the verified name."""

from __future__ import annotations

from pathlib import Path

import pytest

from distop.client import AsyncClient, Credentials
from distop.coordinator.access.authentication import IdentityConfig
from distop.errors import PermissionDenied, TableNotFound
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running
from support.services.tokens import token_file, token_of
from support.tables.nowhere import nowhere


async def test_denials_and_verified_names_stand_in_the_trail(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """S6: with the claimed name beside the verified one, and the address."""
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, ["root", "eve"]))
    async with running(config_of(etcd_config, identity=identity)) as coordinator:
        at = coordinator.address
        root = AsyncClient(at, credentials=Credentials(token=token_of("root")), identity="somebody")
        eve = AsyncClient(at, credentials=Credentials(token=token_of("eve")), identity="root")
        async with root, eve:
            await root.create_table("t", nowhere())
            with pytest.raises(TableNotFound):
                await eve.pause_table("t")
            with pytest.raises(PermissionDenied):
                await eve.drain("x")
            trail = [entry async for entry in root.audit()]
    denied = {entry.action: entry for entry in trail if entry.outcome == "denied"}
    assert denied["PauseTable"].target == "t"
    for entry in denied.values():
        assert (entry.by, entry.claimed_by, entry.address) == ("eve", "root", "127.0.0.1")
    [made] = [entry for entry in trail if entry.action == "create-table"]
    assert (made.by, made.claimed_by, made.outcome) == ("root", "somebody", "done")
