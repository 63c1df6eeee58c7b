"""``distop dev``: everything in one terminal."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from distop.client import AsyncClient, OperationState
from support.waiting import eventually

pytestmark = pytest.mark.process

DISTOP = [sys.executable, "-P", "-m", "distop.cli"]


@dataclass
class Dev:
    """A ``distop dev`` that is ready."""

    process: Process
    ready: dict[str, Any]
    pids: dict[str, int]

    async def end(self, number: signal.Signals | None = signal.SIGINT) -> str:
        """What it said on stderr, once it has ended; ``None``: by itself."""
        if number is not None:
            self.process.send_signal(number)
        _out, err = await asyncio.wait_for(self.process.communicate(), 60)
        return err.decode()

    def anything_left(self) -> bool:
        return any(map(_alive, self.pids.values())) or _listens(self.ready["etcd"])


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def distop(*words: str, **env: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *DISTOP, *words, stdout=PIPE, stderr=PIPE, env={**os.environ, **env}
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode or 0, out.decode(), err.decode()


@asynccontextmanager
async def dev(data: Path) -> AsyncIterator[Dev]:
    # What the environment says of another etcd is not for the services of dev.
    process = await asyncio.create_subprocess_exec(
        *DISTOP,
        *(
            "dev",
            "--data",
            str(data),
            "--listen",
            "127.0.0.1:0",
            "--web",
            "127.0.0.1:0",
            "--catalog",
            "127.0.0.1:0",
            "--master",
            "none",
            # Nothing here waits for a lease to run out, and a busy machine must not lose one.
            "--lease-ttl",
            "60",
        ),
        *("-o", "json"),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "DISTOP_ETCD": "127.0.0.1:1", "DISTOP_PREFIX": "other"},
    )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        if not line:
            _out, err = await process.communicate()
            raise AssertionError(err.decode())
        ready = json.loads(line)
        async with AsyncClient(ready["address"]) as client:
            pids = {member.role: member.pid for member in await client.members()}
        running = Dev(process, ready, pids)
        yield running
        await eventually(lambda: not running.anything_left())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_everything_works_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    async with dev(tmp_path / "data") as running:
        address = running.ready["address"]
        assert set(running.pids) == {"coordinator", "executor"}
        location = str(tmp_path / "tables" / "demo")
        code, _, err = await distop(
            "tables", "create", "demo", "--location", location, DISTOP_ADDRESS=address
        )
        assert (code, err) == (0, "")
        words = ["start", "demo", "noop", "--arg", "partitions=50", "--wait", "-o", "json"]
        code, out, err = await distop(*words, DISTOP_ADDRESS=address)
        assert (code, err) == (0, "")
        ended = json.loads(out)
        assert (ended["state"], ended["jobs"]["succeeded"]) == ("succeeded", 50)
        words[4] = "partitions=2"
        code, out, _ = await distop(*words, "--arg", 'fail=["1"]', DISTOP_ADDRESS=address)
        assert (code, json.loads(out)["state"]) == (20, "failed")
        code, out, _ = await distop("ls", "demo", "-o", "json", DISTOP_ADDRESS=address)
        assert [operation["instance"] for operation in json.loads(out)] == [2, 1]
        async with AsyncClient(address) as client:
            again = await client.start("demo", "noop", {"partitions": 3})
            assert (await client.wait(again.name, 30)).state is OperationState.SUCCEEDED
            # What lands in the folder of a table's name is applied, in order.
            days = Path(running.ready["landing"]) / "days"
            for batch in ("2", "1"):
                (days / batch).mkdir(parents=True)
                (days / batch / "a.csv").write_text(f"id\n{batch}\n")
                (days / batch / "_SUCCESS").touch()
            (days / "_config").mkdir()
            (days / "_config" / "ORDERME").touch()
            await client.create_table("days", str(tmp_path / "tables" / "days"))

            async def fed() -> bool:
                return (await client.ordering("days")).last == "2"

            await eventually(fed, 40.0, every_s=0.2)
        said = await running.end()
        assert running.process.returncode == 0
        assert "coordinator | " in said
        assert "executor    | " in said


async def test_what_was_made_is_there_the_next_time(tmp_path: Path) -> None:
    async with dev(tmp_path) as running:
        async with AsyncClient(running.ready["address"]) as client:
            await client.create_table("kept", str(tmp_path / "kept"))
        await running.end(signal.SIGTERM)
        assert running.process.returncode == 0
        etcd = running.ready["etcd"]
    async with dev(tmp_path) as running:
        assert running.ready["etcd"] == etcd
        async with AsyncClient(running.ready["address"]) as client:
            assert [table.name async for table in client.list_tables()] == ["kept"]
        await running.end()


@pytest.mark.parametrize("service", ["executor", "coordinator"])
async def test_a_service_that_dies_is_reported_and_ends_it(tmp_path: Path, service: str) -> None:
    async with dev(tmp_path) as running:
        os.kill(running.pids[service], signal.SIGKILL)
        said = await running.end(None)
        assert running.process.returncode == 13
        error = json.loads(said.splitlines()[-1])["error"]
        assert error["code"] == "SERVICE_ENDED"
        assert error["message"] == f"the {service} has ended by signal 9"


async def test_nothing_is_left_when_dev_itself_is_killed(tmp_path: Path) -> None:
    async with dev(tmp_path) as running:
        await running.end(signal.SIGKILL)


async def test_a_port_or_folder_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = await distop(
            *("dev", "--data", str(tmp_path / "a"), "--listen", address),
            *("--web", "127.0.0.1:0", "--catalog", "127.0.0.1:0"),
        )
        assert (code, out) == (5, "")
        assert f"error: PRECONDITION_FAILED: cannot listen on {address}: Address already in use" in err
        assert not (tmp_path / "a").exists()
    async with dev(tmp_path / "b") as running:
        code, out, err = await distop(
            *("dev", "--data", str(tmp_path / "b"), "--listen", "127.0.0.1:0"),
            *("--web", "127.0.0.1:0", "--catalog", "127.0.0.1:0"),
        )
        assert (code, out) == (5, "")
        assert f"another distop dev uses {tmp_path / 'b'}" in err
        await running.end()
