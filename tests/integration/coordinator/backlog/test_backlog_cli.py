"""The whole of ordered batches from the command line alone: each behaviour of the checklist, B1 to B15."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from typer.testing import CliRunner

from distop.cli.main import app
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.coordinators import config_of, running
from support.waiting import eventually


@dataclass
class Terminal:
    """Where somebody types commands."""

    address: str

    async def run(self, *words: str, code: int = 0) -> Any:
        """What a command says, as JSON; the exit code must be this one."""
        runner = CliRunner(env={"DISTOP_ADDRESS": self.address, "DISTOP_OUTPUT": None})
        done = await asyncio.to_thread(runner.invoke, app, [*words, "-o", "json"], prog_name="distop")
        assert done.exit_code == code, (words, done.output)
        lines = done.stdout.strip() or done.stderr.strip()  # an error is told on stderr
        return json.loads(lines) if lines else None

    async def add(self, table: str, batch: str, *more: str, code: int = 0) -> Any:
        words = ("batch", "add", table, batch, "--type", "letters", "--arg", f"letters={batch[-1]}")
        return await self.run(*words, *more, code=code)

    async def why(self, table: str, text: str) -> None:
        """Wait until the line says so."""
        why = partial(self.run, "table", "why", table)
        await eventually(why, every_s=0.05, holds=lambda told: text in told["sentence"])

    async def reads(self, table: str, letters: str) -> None:
        marks = partial(self.run, "watermark", "list", table)
        await eventually(marks, every_s=0.05, holds=lambda told: f'"{letters}"' in json.dumps(told))

    async def waiting(self, table: str) -> list[str]:
        return [batch["name"] for batch in await self.run("batch", "list", table)]


@pytest_asyncio.fixture
async def terminal(
    etcd_config: EtcdConfig, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Terminal]:
    folder = tmp_path_factory.mktemp("tables")
    async with running(config_of(etcd_config)) as coordinator:
        typed = Terminal(coordinator.address)
        for table in ("t", "u"):
            await typed.run("table", "create", table, "--location", str(folder / table))
        yield typed


async def test_publishing_order_gate_and_together(terminal: Terminal, client: EtcdClient) -> None:
    """B1, B2, B6, B14, B15."""
    before = {kv.key for kv in (await client.scan(client.keyspace.prefix, keys_only=True)).kvs}
    await terminal.run("backlog", "set", "t", "--gate", "closed", "--together", "2")
    for batch in ("2c", "10a", "1b"):
        assert (await terminal.add("t", batch))["became"] == "queued"
    assert (await terminal.add("t", "2c"))["became"] == "already queued"
    error = await terminal.run("batch", "add", "t", "2c", "--type", "noop", code=4)
    assert error["error"]["code"] == "BATCH_DIFFERS"
    assert await terminal.waiting("t") == ["10a", "1b", "2c"]
    await terminal.why("t", "distop backlog open t")
    await terminal.add("u", "z")  # tables are independent
    await terminal.reads("u", "z")
    await terminal.run("backlog", "open", "t", "--reason", "history is complete")
    await terminal.reads("t", "abc")
    (line,) = await terminal.run("operation", "list", "t")
    told = line["facts"]["series"]
    assert (line["name"], told["name"], told["operations"]) == ("t/letters/2", "batches", 2)
    assert (await terminal.run("operation", "show", "t/letters/1"))["state"] == "succeeded"
    # A duplicate of what is done with changes nothing, and is in nobody's way.
    again = await terminal.add("t", "10a")
    assert (again["became"], again["operation"]) == ("already applied", "t/letters/1")
    await terminal.add("t", "3d")
    await terminal.reads("t", "abcd")
    assert (await terminal.add("t", "10a", "--republish"))["became"] == "queued"
    await terminal.reads("t", "abcda")
    await terminal.why("t", "idle for")
    # What is left is what is meant to be kept.
    kept = "ordering applied history series request requestExpiry auditTrail watermarks coordinator letters"

    async def at_rest() -> bool:
        after = {kv.key for kv in (await client.scan(client.keyspace.prefix, keys_only=True)).kvs}
        left = {key[len(client.keyspace.prefix) :].decode() for key in after - before}
        return {key.split(".")[1] for key in left if not key.startswith("_audit.")} <= set(kept.split())

    assert await eventually(at_rest)


async def test_approval_pause_and_who_did_it(terminal: Terminal) -> None:
    """B7, B11."""
    await terminal.run("backlog", "set", "t", "--validation", "after")
    for batch in "abc":
        await terminal.add("t", batch)
    await terminal.why("t", "batch a waits for approval before b can come")
    await terminal.reads("t", "a")
    error = await terminal.run("batch", "approve", "t", "b", code=5)
    assert "'a'" in error["error"]["message"]
    await terminal.run("batch", "approve", "t", "a")
    await terminal.why("t", "batch b waits for approval before c can come")
    await terminal.run("table", "pause", "t", "--reason", "lunch")
    await terminal.run("batch", "approve", "t")
    await terminal.why("t", "(lunch): nothing starts; distop table resume t")
    await terminal.run("table", "resume", "t")
    await terminal.reads("t", "abc")
    trail = [entry["action"] for entry in await terminal.run("audit", "list", "t")]
    assert trail.index("resume") < trail.index("pause")
    assert trail.count("backlog-approve") == 2
    ended = await terminal.run("batch", "list", "t", "--applied")
    approved = {one["name"]: one["decided_by"] for one in ended}
    assert approved["a"] == approved["b"] != ""
    assert approved["c"] == ""


async def test_failed_batches_block_and_are_decided_on(terminal: Terminal, etcd_config: EtcdConfig) -> None:
    """B8, B9, B10: what may pass is counted across coordinators, and nobody publishes again."""
    await terminal.add("t", "a!")
    await terminal.add("t", "b")
    await terminal.why("t", "batch a! blocks the table: INVALID_ARGUMENT: no letter: !")
    shown = await terminal.run("backlog", "show", "t")
    assert shown["blocked"]["batch"] == "a!"
    await terminal.run("batch", "retry", "t", "a!")
    await terminal.why("t", "batch a! blocks the table")
    await terminal.run("batch", "skip", "t", "a!", "--reason", "nobody needs it")
    await terminal.reads("t", "b")
    line = await terminal.run("batch", "show", "t", "a!")
    assert (line["state"], line["attempts"], line["decided_by"] != "") == ("skipped", 2, True)
    await terminal.run("batch", "show", "t", "c", code=3)
    await terminal.run("backlog", "set", "u", "--max-attempts", "4")
    await terminal.run("batch", "add", "u", "x", "--type", "clumsy")
    await terminal.why("u", "batch x is retried after ")
    async with running(config_of(etcd_config)) as other:
        await terminal.run("cluster", "drain", terminal.address)
        second = Terminal(other.address)
        await second.why("u", "batch x blocks the table: CRASHED: ZeroDivisionError")
        [batch] = await second.run("batch", "list", "u")
        assert batch["attempts"] == 4


async def test_a_list_that_is_cut_short_says_so(terminal: Terminal) -> None:
    """U3: the list stays one document, and the truncation is reported on stderr."""
    await terminal.run("backlog", "set", "t", "--gate", "closed")
    for batch in "abc":
        await terminal.add("t", batch)
    runner = CliRunner(env={"DISTOP_ADDRESS": terminal.address})
    words = ["batch", "list", "t", "--limit", "2", "-o", "json"]
    done = await asyncio.to_thread(runner.invoke, app, words, prog_name="distop")
    assert [batch["name"] for batch in json.loads(done.stdout)] == ["a", "b"]
    assert json.loads(done.stderr)["more"] == 1
    done = await asyncio.to_thread(runner.invoke, app, [*words, "--limit", "3"], prog_name="distop")
    assert (len(json.loads(done.stdout)), done.stderr) == (3, "")
    await terminal.run("batch", "remove", "t", "b", "--reason", "a mistake")
    assert await terminal.waiting("t") == ["a", "c"]
    await terminal.run("backlog", "open", "t")
    await terminal.reads("t", "ac")
    applied = await terminal.run("batch", "list", "t", "--applied")
    assert [(batch["name"], batch["state"]) for batch in applied] == [("a", "applied"), ("c", "applied")]
    await terminal.run("batch", "add", "t", "0", "--type", "letters", "--arg", "letters=!", "--unordered")
    await terminal.why("t", "distop batch retry t 0, or distop batch skip t 0")
    [failed] = await terminal.run("batch", "list", "t", "--unordered")
    assert (failed["state"], failed["error"]["code"]) == ("failed", "INVALID_ARGUMENT")


async def test_landing_once_reports_what_it_did_and_problems_by_exit_code_and_log(
    terminal: Terminal, tmp_path: Path
) -> None:
    """B12, U3."""
    (tmp_path / "_BACKFILL").touch()
    runner = CliRunner(env={"DISTOP_ADDRESS": terminal.address})
    words = ["landing", str(tmp_path), "--table", "t", "--once", "--log-format", "json"]
    done = await asyncio.to_thread(runner.invoke, app, words, prog_name="distop")
    assert done.exit_code == 22
    told = json.loads(done.stderr.strip().splitlines()[-1])
    assert (told["event"], told["table"], told["path"]) == ("landing_problem", "t", "_BACKFILL")
    assert "nothing waits for approval" in told["problem"]
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "_SUCCESS").touch()
    report = await terminal.run("landing", str(tmp_path), "--table", "t", "--once", "--type", "noop")
    assert (report["published"], report["known"], report["problems"]) == (["1"], [], {})
