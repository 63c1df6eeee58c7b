"""``distop executor --master yarn`` on a real YARN, with the Python that venv-pack has packed.

``make test-yarn`` fetches what is needed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.executor.host.sidecar_folder import BASE_VARIABLE, SidecarFolder
from distop.executor.sidecar.client import dial
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from support.etcd.etcds import enable_users
from support.etcd.lossy import LossyClient
from support.services.executing import place_in, short_folder, sidecar_pid
from support.services.sidecars import program
from support.services.whole import Whole, coordinated, write_csv
from support.spark.yarn import Yarn, executor, there
from support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(not there(), reason="YARN is not there: make test-yarn"),
    pytest.mark.process,
    pytest.mark.slow("needs YARN, Java and a packed Python"),
    pytest.mark.timeout(1800),
]

ENDS_S = 240
"""How long an application may take that asks its workers something."""


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    made = Yarn(tmp_path_factory.mktemp("yarn"))
    asyncio.run(made.open())
    yield made
    made.close()


@dataclass
class Secured:
    """An etcd with a user whose password is in a file, and where tasks look for their sidecar."""

    config: EtcdConfig
    base: Path
    place: SidecarFolder

    @property
    def conf(self) -> list[str]:
        return ["--conf", f"spark.executorEnv.{BASE_VARIABLE}={self.base}"]


@pytest_asyncio.fixture
async def secured(tmp_path: Path, prefix: str) -> AsyncIterator[Secured]:
    file = tmp_path / "password"
    file.write_text("secret\n")
    with EtcdProcess(tmp_path / "etcd") as etcd, short_folder() as base:
        enable_users(etcd, user="distop", password="secret", prefix=f"{prefix}.")
        known = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, user="distop").to_env()
        config = EtcdConfig.from_env({**known, "DISTOP_ETCD_PASSWORD_FILE": str(file)})
        place = place_in(base, config)
        yield Secured(config, base, place)


async def checked(yarn: Yarn, secured: Secured, environment: dict[str, str]) -> dict[str, Any]:
    """What ``--check`` says."""
    words = [*secured.conf, "--check", "--output", "json"]
    command, given = executor(yarn, *words, environment=environment)
    done = await asyncio.to_thread(
        subprocess.run, command, env=given, capture_output=True, text=True, timeout=ENDS_S * 3, check=False
    )
    assert done.returncode in (0, 22), f"{done.stderr[-4000:]}\n{yarn.log()}"
    told: dict[str, Any] = json.loads(done.stdout)
    return told


async def test_workers_in_containers_are_well(yarn: Yarn, secured: Secured) -> None:
    """They start their sidecar, which reads the password itself, and is reached by a path that stays."""
    told = await checked(yarn, secured, secured.config.to_env())
    assert told["findings"] == []
    [worker] = told["workers"]
    assert worker["python"].startswith(str(yarn.folder))
    assert "/container_" in worker["python"]
    python = program(sidecar_pid(secured.place))
    assert python.startswith(str(yarn.folder))
    assert "/container_" not in python


async def test_workers_without_password_and_sidecar_say_so(yarn: Yarn, secured: Secured) -> None:
    """S5: the driver has it, and YARN passes it to nobody."""
    told = await checked(yarn, secured, replace(secured.config, password_file="").to_env())
    [finding] = told["findings"]
    assert finding["code"] == "SIDECAR_UNREACHABLE"
    assert "there is no password to start one" in finding["sentence"]


async def ingested(service: Whole, start: int) -> None:
    """Four files of 250 rows, in several jobs."""
    source = service.folder / f"from-{start}"
    for number in range(4):
        write_csv(source, f"{number}.csv", start + number * 250, 250)
    operation = await service.client.start("t", "ingest", {"paths": [str(source)], "split_bytes": 4096})
    assert operation.jobs.total >= 4
    await succeeded(service, operation.name)


async def succeeded(service: Whole, operation: str) -> None:
    ended = await service.client.wait(operation, timeout_s=ENDS_S * 3)
    assert ended.error is None, ended.error


def started(command: list[str], environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as said:
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said)


def works_in(pid: int) -> Path:
    return Path(f"/proc/{pid}/cwd").readlink()


async def test_operations_go_on_when_the_container_of_their_sidecar_is_gone(
    yarn: Yarn, secured: Secured, tmp_path: Path
) -> None:
    """A sidecar outlives the container that started it, and serves the tasks of the next one."""
    command, given = executor(yarn, *secured.conf, environment=secured.config.to_env())
    store = LossyClient(secured.config)
    async with coordinated(secured.config, tmp_path, store) as service:
        driver = started(command, given, tmp_path / "executor.log")
        try:
            await ingested(service, 0)
            # As a task of another container: without one it would end within a minute.
            with dial(secured.place, secured.config.to_public_env()):
                sidecar, [container] = sidecar_pid(secured.place), yarn.executors()
                folder = works_in(container)
                os.kill(container, signal.SIGKILL)
                await eventually(lambda: not folder.exists(), ENDS_S)
                await ingested(service, 1000)
                assert sidecar_pid(secured.place) == sidecar
                assert yarn.executors() != [container]
            rules = {"rules": ["id >= 0", {"not_null": "day"}, {"unique": ["id", "kind"]}]}
            operation = await service.client.start("t", "validate", rules)
            await succeeded(service, operation.name)
            assert await asyncio.to_thread(service.ids) == list(range(2000))
        finally:
            driver.terminate()
            driver.wait(60)
    await store.close()
