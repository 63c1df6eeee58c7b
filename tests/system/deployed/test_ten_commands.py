"""The set-up of docs/security.md, run as printed: a coordinator behind TLS, an admin, and a reader."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest
import trustme

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import free_port
from support.pages import blocks, lines
from support.services.certs import put, put_pair

pytestmark = pytest.mark.process

WAIT = "until (exec 3<> /dev/tcp/{}) 2> /dev/null; do sleep 0.1; done\n"
"""Until somebody listens there."""


async def test_ten_commands_set_a_coordinator_up(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """U5, S3"""
    commands = list(lines(next(one for one in blocks("docs/security.md") if "openssl rand" in one.code).code))
    assert len(commands) == 10
    ca = trustme.CA()
    put(tmp_path / "ca.crt", ca.cert_pem.bytes())
    put_pair(tmp_path, "server", ca.issue_cert("127.0.0.1"))
    address, web = (f"127.0.0.1:{free_port()}" for _ in range(2))
    script = "set -e\ntrap 'kill $!; wait' EXIT\n"
    for line in commands:
        here = line.replace("0.0.0.0:7070", address).replace("0.0.0.0:7071", web)
        script += here.replace("coordinator.example:7070", address)
        script += WAIT.format(address.replace(":", "/")) if line.startswith("export") else ""
    script += "unset DISTOP_TOKEN\ndistop table list || echo refused: $?\n"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        cwd=tmp_path,
        env={**os.environ, **etcd_config.to_env(), "PATH": path, "DISTOP_OUTPUT": "json"},
        stdout=PIPE,
        stderr=STDOUT,
        start_new_session=True,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), 200)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    said = out.decode()
    assert process.returncode == 0, said
    assert "refused: " in said
    [trail] = [json.loads(line) for line in said.splitlines() if line.startswith("[") and '"by"' in line]
    assert [(entry["by"], entry["target"]) for entry in trail] == [
        ("root", "jane"),
        ("root", "group:analysts"),
        ("--admin", "root"),
    ]
