"""The ``distop`` command as a process: exit codes, documents, signals, pipes, speed."""

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator

import pytest

from distop.proto import distop_pb2 as pb
from support.processes import captured
from support.services.fake_service import FakeService, serving_in_thread
from support.waiting import eventually

DISTOP = [sys.executable, "-P", "-m", "distop.cli"]


@pytest.fixture
def service() -> FakeService:
    fake = FakeService()
    fake.world.tables["flights"] = pb.Table(name="flights", location="file:///data", format="iceberg")
    fake.world.add(pb.Operation(name="flights/noop/9", table="flights", type="noop", state=pb.RUNNING))
    return fake


@pytest.fixture
def address(service: FakeService) -> Iterator[str]:
    with serving_in_thread(service) as served:
        yield served


def environment(address: str) -> dict[str, str]:
    return {**os.environ, "DISTOP_ADDRESS": address, "PYTHONWARNINGS": "error::ResourceWarning"}


def distop(*words: str, address: str) -> subprocess.CompletedProcess[str]:
    return captured([*DISTOP, *words], env=environment(address), timeout=60, stdin=subprocess.DEVNULL)


def test_a_command_prints_one_json_document(service: FakeService, address: str) -> None:
    """tests/unit/cli/commands asks the same of every command, inside of one process."""
    for words in (
        ["operation", "start", "flights", "noop", "--arg", "partitions=3", "--wait"],
        ["operation", "list"],
    ):
        done = distop(*words, "--output", "json", address=address)
        assert (done.returncode, done.stderr) == (0, "")
        json.loads(done.stdout)
        assert done.stdout.count("\n") == 1


async def test_ctrl_c_leaves_the_operation_running_and_exits_130(service: FakeService, address: str) -> None:
    watching = await asyncio.create_subprocess_exec(
        *DISTOP, "operation", "watch", "flights/noop/9", env=environment(address), stdout=PIPE, stderr=PIPE
    )
    await eventually(lambda: service.calls["watch"])
    watching.send_signal(signal.SIGINT)
    _out, err = await asyncio.wait_for(watching.communicate(), 60)
    assert watching.returncode == 130
    assert b"flights/noop/9 goes on: distop operation watch flights/noop/9" in err
    assert b"Traceback" not in err
    assert not service.calls["cancel"]


def test_a_reader_that_leaves_is_no_error_to_talk_about(address: str) -> None:
    listing = subprocess.Popen(
        [*DISTOP, "operation", "list"],
        env=environment(address),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.close()
    with listing.stderr as stderr:
        assert stderr.read() == b""
    listing.wait(30)


def test_a_terminal_sees_the_grid(service: FakeService, address: str) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*DISTOP, "operation", "start", "flights", "noop", "--arg", "partitions=8", "--wait"],
        env=environment(address) | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        screen = b""
        try:
            while data := os.read(ours, 65536):
                screen += data
        except OSError:  # how a pty says that the other end is closed
            pass
        os.close(ours)
    assert process.returncode == 0
    text = screen.decode()
    assert "■ " * 8 in text.replace("\x1b[0m", "").replace("\x1b[32m", "")
    assert "succeeded" in text


def test_help_is_there_at_once() -> None:
    """It loads none of what takes its time to load."""
    environment = {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
    done = captured([*DISTOP, "--help"], timeout=60, check=True, env=environment)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert {"distop", "typer"} <= loaded
    slow = ("grpc", "google", "aetcd", "pyarrow", "pyiceberg", "pyspark", "duckdb", "pandas", "numpy")
    assert not loaded & {*slow}
