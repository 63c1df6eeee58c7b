"""Services under a manager: they say when they serve, a probe finds them, and SIGTERM ends them well."""

import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.services import preloaded
from support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow("starts each service from its command line, and ends it")]

DISTOP = [sys.executable, "-P", "-m", "distop.cli"]
SERVICES = {"coordinator": ["--listen", "127.0.0.1:0"], "executor": ["--master", "none"], "sidecar": []}


@pytest.fixture
def environment(etcd_config: EtcdConfig, tmp_path: Path) -> dict[str, str]:
    return {**os.environ, **etcd_config.to_env(), "DISTOP_RUNTIME_DIR": str(tmp_path)}


def probe(environment: dict[str, str], *words: str) -> tuple[int, dict[str, Any]]:
    """The exit code of a probe, and what it says."""
    log = Path(environment["DISTOP_RUNTIME_DIR"], f"probe-{secrets.token_hex(3)}.log")
    process = preloaded.start(
        "distop.cli", ["cluster", "probe", *words, "-o", "json"], env=environment, log=log
    )
    return process.wait(60.0), json.loads(log.read_text())


def missing(environment: dict[str, str], *words: str) -> bool:
    """Whether a probe says that nobody is there."""
    code, said = probe(environment, *words)
    return (code, said.get("error", {}).get("code")) == (8, "NO_MEMBER")


def started(words: list[str], environment: dict[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([*DISTOP, *words], env=environment, stderr=log)


@pytest.mark.parametrize("service", SERVICES)
async def test_a_service_says_when_it_serves_and_is_found(
    service: str, etcd: EtcdProcess, environment: dict[str, str], tmp_path: Path
) -> None:
    """D1: as its unit starts it; the manager hears when it is ready, and ends it by SIGTERM."""
    place = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (tmp_path / "log").open("wb") as log:
        manager.bind(place)
        manager.settimeout(60)
        process = started([service, *SERVICES[service]], {**environment, "NOTIFY_SOCKET": place}, log)
        try:
            assert await asyncio.to_thread(manager.recv, 100) == b"READY=1"
            others = [name for name in SERVICES if name != service]
            await eventually(
                lambda: asyncio.to_thread(probe, environment, service), 90, holds=lambda found: found[0] == 0
            )  # a sidecar serves before it has its lease
            assert (await asyncio.to_thread(probe, environment))[0] == 0
            assert await asyncio.to_thread(missing, environment, others[0])
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 30) == 0, (tmp_path / "log").read_text()
        finally:
            process.kill()
            process.wait()
        assert await asyncio.to_thread(missing, environment, service)


def test_a_probe_of_an_etcd_that_is_away_ends(environment: dict[str, str]) -> None:
    """U4: no call hangs, in a health check as anywhere."""
    away = {**environment, "DISTOP_ETCD": "127.0.0.1:1", "DISTOP_ETCD_TIMEOUT": "1"}
    code, said = probe(away)
    assert (code, said["error"]["code"]) == (8, "ETCD_UNAVAILABLE")
