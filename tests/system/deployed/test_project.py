"""From ``distop dev`` to services: the Compose file of ``distop init``, whose services are processes here."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from distop.cli import project
from distop.client import Client
from distop.errors import DistopError
from distop.metastore.etcd.embedded import find_etcd, free_port
from support.processes import captured, end
from support.repository import ROOT
from support.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow("starts `distop dev`, and then the services one by one")]

DISTOP = [sys.executable, "-P", "-m", "distop.cli"]


def compose(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def publish(client: Client, folder: Path, day: str) -> str:
    path = str(folder / "orders" / f"{day}.csv")
    return client.table("orders").enqueue(day, "ingest", {"paths": [path]}).became


def wait_until_applied(client: Client, day: str) -> None:
    until(lambda: client.table("orders").ordering().last == day)


def rows(client: Client) -> int:
    return next(client.table("orders").snapshots()).rows or 0


def test_the_services_of_a_project_go_on_with_all_that_dev_has_done(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    project.write(folder)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Of tests, not of what is tested: nothing here waits for a lease to run out.
    environment = {**os.environ, "PATH": path, "DISTOP_RUNTIME_DIR": str(tmp_path / "run")}
    address, page, etcd = (f"127.0.0.1:{free_port()}" for _ in range(3))

    ports = ["--listen", address, "--web", page, "--catalog", "127.0.0.1:0"]
    dev = [*DISTOP, "dev", "--data", "data", "--master", "none", *ports]
    with (tmp_path / "dev.log").open("wb") as log:
        process = subprocess.Popen(dev, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        until(lambda: "distop is ready" in (tmp_path / "dev.log").read_text())
        made = captured(["sh", "setup.sh"], cwd=folder, env={**environment, "DISTOP_ADDRESS": address})
        assert made.returncode == 0, made.stderr
        with Client(address) as client:
            for day in ("2024-01-01", "2024-01-02"):
                assert publish(client, folder, day) == "queued"
            wait_until_applied(client, "2024-01-02")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        end(process)

    here = {
        "${PWD}": str(folder),
        "etcd:2379": etcd,
        "0.0.0.0:2379": etcd,
        "coordinator:7070": address,
        "0.0.0.0:7070": address,
        "0.0.0.0:7071": page,
        "local[2]": "none",
    }

    def localized(text: str) -> str:
        for there, ours in here.items():
            text = text.replace(there, ours)
        return text

    with ExitStack() as stack, Client(address, timeout_s=5) as client:
        for name, service in compose(folder / "compose.yaml")["services"].items():
            program = [str(find_etcd().path)] if name == "etcd" else DISTOP
            given = {key: localized(value) for key, value in service.get("environment", {}).items()}
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            command = [*program, *map(localized, service["command"])]
            served = {**environment, **given, "DISTOP_RUNTIME_DIR": str(tmp_path / "run")}
            process = subprocess.Popen(command, cwd=tmp_path, env=served, stdout=log, stderr=log)
            stack.callback(end, process)

        def members() -> set[str]:
            try:
                return {member.role for member in client.members()}
            except DistopError:
                return set()

        until(lambda: members() == {"coordinator", "executor"})
        assert publish(client, folder, "2024-01-01") == "already applied"
        assert [schedule.name for schedule in client.table("orders").schedules()] == ["tidy"]
        before = rows(client)
        assert publish(client, folder, "2024-01-03") == "queued"
        wait_until_applied(client, "2024-01-03")
        assert (before, rows(client)) == (5, 6)


def test_the_services_of_a_project_are_confined_as_those_of_the_cluster() -> None:
    ours = compose(ROOT / "cli" / "project" / "files" / "compose.yaml")
    theirs = compose(ROOT / "deploy" / "compose.yaml")
    assert ours["x-confined"] == theirs["x-confined"]
    for name, service in ours["services"].items():
        assert {**service, **ours["x-confined"]} == service, name
        image = service["image"].partition(":-")[2].strip("}")
        assert image in {one["image"] for one in theirs["services"].values()}
