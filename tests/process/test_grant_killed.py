"""A coordinator that is killed in the middle of a grant."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distop.client import AsyncClient, Credentials, Grant
from distop.metastore.crashpoints import VARIABLE
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from distop.metastore.members.policy import read_policy
from distop.metastore.tables.audit import read_audit
from support.etcd.lossy import LossyClient
from support.services import preloaded
from support.services.tokens import token_file, token_of
from support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("kills a coordinator in each test")]


@contextmanager
def coordinator(etcd: EtcdConfig, port: int, tokens: Path, crash: str = "") -> Iterator[preloaded.Process]:
    """A coordinator that dies at the given crash point."""
    environment = {**os.environ, **etcd.to_env(), VARIABLE: crash}
    words = ["coordinator", "--listen", f"127.0.0.1:{port}", "--token-file", str(tokens), "--admin", "root"]
    process = preloaded.start("distop.cli", words, env=environment, log=tokens.with_suffix(".log"))
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("point", ["grant.before", "grant.after"])
async def test_a_grant_whose_coordinator_is_killed_is_whole_and_made_once(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path, point: str
) -> None:
    """S4, S6: the call, repeated by its client, is answered by the next one."""
    port, tokens = free_port(), Path(token_file(tmp_path, ["root", "jane"]))
    # The first time is the one that begins the policy.
    with coordinator(etcd_config, port, tokens, f"{point}=die@2") as first:
        credentials = Credentials(token=token_of("root"))
        address = f"127.0.0.1:{port}"
        async with AsyncClient(address, timeout_s=60, connect_timeout_s=60, credentials=credentials) as root:
            await root.grants()
            async with AsyncClient(address, timeout_s=60, credentials=credentials) as doomed:
                call = doomed.change_grants([Grant(who="jane", role="reader", tables=("t",))])
                granting = asyncio.create_task(call)
                await eventually(lambda: first.poll() is not None)
                granting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await granting
            policy = await read_policy(client)
            entries, _ = await read_audit(client, client.keyspace.audit_prefix, limit=10)
            assert policy is not None
            done = point == "grant.after"
            assert (len(policy.grants), len(entries)) == ((2, 2) if done else (1, 1))
            with coordinator(etcd_config, port, tokens):
                granted = await root.change_grants([Grant(who="jane", role="reader", tables=("t",))])
    assert [grant.who for grant in granted.grants] == ["jane", "root"]
    entries, _ = await read_audit(client, client.keyspace.audit_prefix, limit=10)
    assert len(entries) == 2
