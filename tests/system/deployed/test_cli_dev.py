"""``distop dev``: everything in one terminal."""

import asyncio
import json
import os
import signal
import socket
import ssl
import stat
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from typer.testing import CliRunner

from distop.cli.main import app
from distop.client import AsyncClient, Credentials, Grant, OperationState
from support.processes import listens
from support.waiting import eventually

pytestmark = pytest.mark.process

DISTOP = [sys.executable, "-P", "-m", "distop.cli"]
ELSEWHERE = ("--web", "127.0.0.1:0", "--catalog", "127.0.0.1:0")
ANYWHERE = ("--listen", "127.0.0.1:0", *ELSEWHERE)


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
        return any(map(_alive, self.pids.values())) or listens(self.ready["etcd"])


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


async def distop(*words: str, **env: str) -> tuple[int, str, str]:
    """The command line in this process; ``test_cli_process.py`` starts it as one of its own."""
    done = await asyncio.to_thread(CliRunner(env=env).invoke, app, words, prog_name="distop")
    return done.exit_code, done.stdout, done.stderr


def credentials(ready: dict[str, Any], subject: str = "admin") -> Credentials:
    """What somebody shows to such a service."""
    if "secure" not in ready:
        return Credentials()
    folder = Path(ready["secure"])
    return Credentials(ca=str(folder / "ca.crt"), token_file=str(folder / f"{subject}.token"))


def arguments(data: Path, *options: str) -> list[str]:
    # Nothing here waits for a lease to run out, and a busy machine must not lose one.
    lasting = ("--master", "none", "--lease-ttl", "60", "-o", "json")
    return [*DISTOP, "dev", "--data", str(data), *ANYWHERE, *lasting, *options]


@asynccontextmanager
async def dev(data: Path, *options: str) -> AsyncIterator[Dev]:
    # What the environment says of another etcd is not for the services of dev.
    process = await asyncio.create_subprocess_exec(
        *arguments(data, *options),
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
        async with AsyncClient(ready["address"], credentials=credentials(ready)) as client:
            pids = {member.role: member.pid for member in await client.members()}
        running = Dev(process, ready, pids)
        yield running
        await eventually(lambda: not running.anything_left())
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.slow("starts `distop dev` with all its services, and a dozen commands")
async def test_everything_works_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    async with dev(tmp_path / "data") as running:
        address = running.ready["address"]
        assert set(running.pids) == {"coordinator", "executor"}
        location = str(tmp_path / "tables" / "demo")
        code, _, err = await distop("table", "create", "demo", "--location", location, DISTOP_ADDRESS=address)
        assert (code, err) == (0, "")
        words = ["operation", "start", "demo", "noop", "--arg", "partitions=50", "--wait", "-o", "json"]
        code, out, err = await distop(*words, DISTOP_ADDRESS=address)
        assert (code, err) == (0, "")
        ended = json.loads(out)
        assert (ended["state"], ended["jobs"]["succeeded"]) == ("succeeded", 50)
        words[words.index("partitions=50")] = "partitions=2"
        code, out, _ = await distop(*words, "--arg", 'fail=["1"]', DISTOP_ADDRESS=address)
        assert (code, json.loads(out)["state"]) == (20, "failed")
        code, out, _ = await distop("operation", "list", "demo", "-o", "json", DISTOP_ADDRESS=address)
        assert [operation["instance"] for operation in json.loads(out)] == [2, 1]
        async with AsyncClient(address) as client:
            again = await client.start("demo", "noop", {"partitions": 3})
            assert (await again.wait(30)).state is OperationState.SUCCEEDED
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
                return (await client.table("days").ordering()).last == "2"

            await eventually(fed, every_s=0.2)
        code, out, err = await distop("dev", "--data", str(tmp_path / "data"), *ANYWHERE)
        assert (code, out) == (5, "")
        assert f"another distop dev uses {tmp_path / 'data'}" in err
        said = await running.end()
        assert running.process.returncode == 0
        assert "coordinator | " in said
        assert "executor    | " in said


async def test_sigterm_ends_it_while_it_starts(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(*arguments(tmp_path), stdout=PIPE, stderr=PIPE)
    assert process.stderr is not None
    while not (line := await asyncio.wait_for(process.stderr.readline(), 60)).startswith(b"coordinator"):
        assert line
    process.terminate()
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, out) == (0, b""), err
    assert not listens(f"127.0.0.1:{(tmp_path / 'etcd-port').read_text().strip()}")


@pytest.mark.slow("starts all services behind TLS twice, each a process")
async def test_everything_works_behind_tls_and_is_there_the_next_time_for_those_who_have_a_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U5, S3: ingest, ls, show, the page and the catalog; each by who may, and by nobody else.

    Of the first one the coordinator dies, which ends the rest. The second one is killed, and leaves nothing.
    """
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # go before what pyiceberg is told
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "rows.csv").write_text("id\n1\n2\n")
    async with dev(tmp_path / "data", "--secure") as running:
        ready, secure = running.ready, Path(running.ready["secure"])
        _, modes = files(secure)
        assert (set(modes.values()), os.stat(secure).st_mode & 0o777) == ({0o600}, 0o700)
        address = {"DISTOP_ADDRESS": ready["address"]}
        admin, writer, reader = (
            address | credentials(ready, name).to_env() for name in ("admin", "writer", "reader")
        )
        for words in (
            ("table", "create", "rows", "--location", str(tmp_path / "rows"), "--schema", "id: long"),
            ("table", "ingest", "rows", str(tmp_path / "rows.csv"), "--wait"),
        ):
            code, _, err = await distop(*words, **reader)
            assert code != 0
            assert "does not have the role" in " ".join(err.split()), err
            code, _, err = await distop(*words, **writer)
            assert code == 0, err
        code, out, _ = await distop("operation", "list", "-o", "json", **reader)
        assert [operation["state"] for operation in json.loads(out)] == ["succeeded"]
        code, out, _ = await distop("operation", "show", "rows/ingest/1", "-o", "json", **reader)
        assert json.loads(out)["started_by"] == "writer"
        code, out, _ = await distop("grant", "list", "-o", "json", **admin)
        assert {grant["who"] for grant in json.loads(out)["grants"]} == {
            "admin", "writer", "operator", "reader", "landing",
        }  # fmt: skip
        code, out, err = await distop("cluster", "doctor", **admin)
        assert code == 0, out + err
        code, _, err = await distop("operation", "list", **address)
        assert "no TLS connection, or no server at" in err

        token = (secure / "reader.token").read_text().strip()
        trust = ssl.create_default_context(cafile=secure / "ca.crt")
        async with httpx.AsyncClient(verify=trust, base_url=ready["page"]) as browser:
            assert (await browser.get("/")).headers["location"].startswith("/sign-in")
            await browser.post("/sign-in", data={"token": token})
            assert ">rows<" in (await browser.get("/")).text
        properties = {"uri": ready["catalog"], "ssl": {"cabundle": str(secure / "ca.crt")}}
        catalog = RestCatalog("dev", token=token, **properties)
        assert catalog.load_table("default.rows").scan().to_arrow().num_rows == 2
        with pytest.raises(Exception, match="does not have the role writer"):
            catalog.create_table("default.mine", pa.schema([("id", pa.int64())]))
        with pytest.raises(Exception, match="token"):
            RestCatalog("dev", token="wrong", **properties).list_tables("default")
        with pytest.raises(OSError):
            await asyncio.to_thread(without_certificate, ready["etcd"], secure / "ca.crt")

        async with AsyncClient(ready["address"], credentials=credentials(ready)) as client:
            await client.change_grants(remove=[Grant(who="writer", role="writer")])
        made, _ = files(secure)
        (secure / "jane.token").write_text("hers")
        os.kill(running.pids["coordinator"], signal.SIGKILL)
        said = await running.end(None)
        assert running.process.returncode == 13, said
        error = json.loads(said.splitlines()[-1])["error"]
        assert error["code"] == "SERVICE_ENDED", said
        assert error["message"] == "the coordinator has ended by signal 9"
        assert token not in said
    code, _, err = await distop("dev", "--data", str(tmp_path / "data"), *ANYWHERE)
    assert (code, "was created with --secure" in err) == (5, True)
    async with dev(tmp_path / "data", "--secure") as running:
        assert running.ready["etcd"] == ready["etcd"]
        now, _ = files(secure)
        assert {name for name in now if now[name] != made.get(name)} == {"tokens", "jane.token"}
        async with AsyncClient(running.ready["address"], credentials=credentials(running.ready)) as client:
            assert [table.name async for table in client.tables()] == ["rows"]
            grants = (await client.grants()).grants
            assert {grant.who for grant in grants} == {"admin", "operator", "reader", "landing"}
        jane = credentials(running.ready, "jane")
        async with AsyncClient(running.ready["address"], credentials=jane) as client:
            assert (await client.grants()).subject == "jane"
        await running.end(signal.SIGKILL)


def files(folder: Path) -> tuple[dict[str, bytes], dict[str, int]]:
    """Contents and modes, by name."""
    found = {path.name: path for path in folder.iterdir()}
    return (
        {name: path.read_bytes() for name, path in found.items()},
        {name: stat.S_IMODE(path.stat().st_mode) for name, path in found.items()},
    )


def without_certificate(address: str, ca: Path) -> None:
    """Speak TLS and show no certificate: in TLS 1.3 the refusal comes with the first answer."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname=host) as wrapped,
    ):
        wrapped.recv(1)


async def test_a_port_in_use_is_told_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = await distop("dev", "--data", str(tmp_path / "a"), "--listen", address, *ELSEWHERE)
        assert (code, out) == (8, "")
        assert f"error: ADDRESS_IN_USE: cannot listen on {address}: Address already in use" in err
        assert "Choose another with --listen host:port" in err
        assert not (tmp_path / "a").exists()
