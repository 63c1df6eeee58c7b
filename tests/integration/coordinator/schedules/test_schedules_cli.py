"""Schedules from the command line, for people and for programs."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from typer.testing import CliRunner

from distop.cli.main import app
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.services.coordinators import config_of, running
from support.services.schedules import backdate, schedule
from support.tables.nowhere import nowhere
from support.waiting import eventually


class Terminal:
    """Where somebody types ``distop schedule``."""

    def __init__(self, address: str) -> None:
        self._runner = CliRunner(env={"DISTOP_ADDRESS": address, "DISTOP_OUTPUT": None, "COLUMNS": "200"})

    async def told(self, *words: str, code: int = 0) -> str:
        done = await asyncio.to_thread(self._runner.invoke, app, list(words), prog_name="distop")
        assert done.exit_code == code, (words, done.output)
        return done.stdout + done.stderr

    async def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(await self.told(*words, "-o", "json", code=code))


@pytest_asyncio.fixture
async def terminal(etcd_config: EtcdConfig) -> AsyncIterator[Terminal]:
    async with running(config_of(etcd_config)) as coordinator:
        typed = Terminal(coordinator.address)
        await typed.told("table", "create", "t", "--location", nowhere())
        yield typed


async def test_schedules_are_added_listed_paused_and_removed(terminal: Terminal, client: LossyClient) -> None:
    """U3: an error has its code, and says what to do."""
    add = ("schedule", "add", "t", "nightly", "noop", "--cron", "30 3 1 1 *", "--arg", "partitions=1")
    told = await terminal.told(*add, "--deadline", "10m")
    assert "30 3 1 1 *" in told
    assert "partitions: 1" in told
    assert (await terminal.json(*add, code=4))["error"]["code"] == "SCHEDULE_EXISTS"
    await terminal.told("schedule", "add", "t", "many", "compact", "--when", "small_files > 200")
    refused = await terminal.json("schedule", "add", "t", "x", "noop", "--when", "size > 2", code=2)
    assert "small_files" in refused["error"]["hint"]
    refused = await terminal.json("schedule", "add", "t", "x", "noop", "--cron", "@daily", code=2)
    assert refused["error"]["details"]["field"] == "cron"
    zone = ("--timezone", "Europe/Berlin")
    told = await terminal.told("schedule", "add", "t", "local", "noop", "--cron", "30 3 1 1 *", *zone)
    assert re.search(r"timezone +Europe/Berlin", told)
    await terminal.told("schedule", "remove", "t", "local")
    await backdate(client, "nightly")
    await eventually(lambda: schedule(client, "nightly"), holds=lambda one: one.started == 1)
    await backdate(client, "nightly")
    await eventually(lambda: schedule(client, "nightly"), holds=lambda one: one.skipped == 1)
    listed = {one["name"]: one for one in await terminal.json("schedule", "list", "t")}
    assert list(listed) == ["many", "nightly"]
    assert (listed["nightly"]["started"], listed["nightly"]["operation"]) == (1, "t/noop/1")
    assert listed["nightly"]["skip"]["code"] == "INCOMPATIBLE_OPERATION"
    told = await terminal.told("schedule", "list", "t")
    assert "its last operation, t/noop/1" in told
    assert "small_files > 200" in told
    refused = await terminal.json("schedule", "run", "t", "nightly", "--tick", "2999-01-01", code=5)
    assert "in the future" in refused["error"]["message"]
    told = await terminal.told("schedule", "pause", "t", "nightly", "--reason", "an import")
    assert "an import" in told
    assert "paused" in await terminal.told("schedule", "list", "t")
    assert (await terminal.json("schedule", "resume", "t", "nightly"))["pause"] is None
    await terminal.told("schedule", "remove", "t", "nightly")
    missing = await terminal.json("schedule", "remove", "t", "nightly", code=3)
    assert missing["error"]["code"] == "SCHEDULE_NOT_FOUND"
    assert "distop schedule list t" in missing["error"]["hint"]
