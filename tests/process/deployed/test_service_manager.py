"""Services under a manager: they say when they serve, a probe finds them, and SIGTERM ends them well."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.waiting import eventually

pytestmark = pytest.mark.process

DISTOP = [sys.executable, "-P", "-m", "distop.cli"]
SERVICES = {
    "coordinator": ["--listen", "127.0.0.1:0"],
    "executor": ["--master", "none"],
    "sidecar": [],
}


@pytest.fixture
def environment(etcd_config: EtcdConfig, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, **etcd_config.to_env(), "DISTOP_RUNTIME_DIR": str(tmp_path)}


def probe(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DISTOP, "probe", *words, "-o", "json"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def started(words: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*DISTOP, *words], env=environment, stderr=log)


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_says_when_it_serves_and_is_found(
    service: str, etcd: EtcdProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (tmp_path / "log").open("wb") as log:
        manager.bind(place)
        manager.settimeout(60)
        process = started([service, *SERVICES[service]], {**environment, "NOTIFY_SOCKET": place}, log)
        try:
            assert await asyncio.to_thread(manager.recv, 100) == b"READY=1"
            others = [name for name in SERVICES if name != service]

            async def found() -> bool:
                return (await asyncio.to_thread(probe, environment, service)).returncode == 0

            await eventually(found, 30.0)  # a sidecar serves before it has its lease
            assert (await asyncio.to_thread(probe, environment)).returncode == 0
            missed = await asyncio.to_thread(probe, environment, others[0])
            assert (missed.returncode, json.loads(missed.stderr)["error"]["code"]) == (8, "NO_MEMBER")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait()
        gone = await asyncio.to_thread(probe, environment, service)
        assert (gone.returncode, json.loads(gone.stderr)["error"]["code"]) == (8, "NO_MEMBER")


def test_a_probe_of_an_etcd_that_is_away_ends(environment: dict[str, str]) -> None:
    """No call hangs, in a health check as anywhere."""
    away = {**environment, "DISTOP_ETCD": "127.0.0.1:1", "DISTOP_ETCD_TIMEOUT": "1"}
    said = probe(away)
    assert (said.returncode, json.loads(said.stderr)["error"]["code"]) == (8, "ETCD_UNAVAILABLE")
