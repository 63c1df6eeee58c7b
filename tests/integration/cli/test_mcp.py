"""``distop mcp``, spoken to by the client of the protocol's SDK."""

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.types import TextContent
from typer.testing import CliRunner

from distop.cli import mcp_server
from distop.cli.main import app
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.services.whole import coordinated
from support.waiting import eventually


@asynccontextmanager
async def assistant(address: str) -> AsyncIterator[Client]:
    environment = {**os.environ, "DISTOP_ADDRESS": address}
    started = StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "distop.cli", "mcp"], env=environment
    )
    async with Client(started, read_timeout_seconds=60) as client:
        yield client


async def answer(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert isinstance(content, TextContent)
    return json.loads(content.text) if not result.is_error else ("error", content.text)


@pytest.mark.slow("loads the SDK of the protocol in a process of its own")
async def test_an_assistant_reads_and_previews_and_changes_nothing(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    async with coordinated(etcd_config, tmp_path, client) as service:
        for number in range(3):
            handle = await service.client.start(
                "t", "ingest", {"paths": [str(service.source("1", 0))]}, run="r"
            )
            assert handle.started.found == bool(number)
        operation = handle.name
        await service.client.table("t").set_ordering(gate="closed")
        for day in range(1, 8):
            await service.client.table("t").enqueue(f"2024-01-0{day}", "ingest", {"paths": ["/nowhere"]})
        await service.client.table("t").enqueue("apart", "ingest", {"paths": ["/nowhere"]}, ordered=False)
        await service.client.create_table("idle", str(tmp_path / "idle"))
        apart = partial(service.client.table("t").batch, "apart")
        await eventually(apart, holds=lambda batch: batch.state == "failed")
        before = await kept(client)
        async with assistant(service.address) as one:
            tools = (await one.list_tools()).tools
            assert sorted(tool.name for tool in tools) == sorted(mcp_server.TOOLS)
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools)
            assert all(tool.description and "\n  " not in tool.description for tool in tools)

            assert [table["name"] for table in await answer(one, "tables")] == ["idle", "t"]
            table = await answer(one, "table", table="t")
            assert table["table"]["running"] == [operation]
            assert table["ordering"]["gate"] == "closed"
            assert "executor" in (await answer(one, "why", table="t"))["sentence"]
            batches = await answer(one, "batches", table="t", limit=2)
            assert [batches[0]["name"], batches[1]["name"], batches[2]] == [
                "2024-01-01",
                "2024-01-02",
                "5 more",
            ]
            found = await answer(one, "batches", table="t", unordered=True)
            assert [batch["name"] for batch in found] == ["apart"]
            found = await answer(one, "operations", table="t", states=["running"])
            assert [row["name"] for row in found] == [operation]
            shown = await answer(one, "operation", operation=operation)
            assert shown["operation"]["events"][0]["what"] == "started"
            assert (
                await answer(one, "snapshots", table="t"),
                await answer(one, "watermarks", table="t"),
            ) == ([], [])
            assert (await answer(one, "members"))["members"][0]["role"] == "coordinator"
            assert (await answer(one, "doctor", table="idle"))["tables"] == 1
            assert {entry["action"] for entry in await answer(one, "audit", table="t")} >= {
                "start",
                "enqueue",
            }

            preview = await answer(
                one, "preview", table="t", argument={"paths": [str(service.source("2", 10))]}
            )
            assert [column["name"] for column in preview["columns"]][:2] == ["id", "kind"]
            kind, refused = await answer(one, "preview", table="t", argument={"paths": ["/nowhere"]})
            assert (kind, json.loads(refused)["error"]["code"]) == ("error", "SOURCE_UNREADABLE")
            kind, refused = await answer(one, "why", table="idel")
            error = json.loads(refused)["error"]
            assert (kind, error["code"], error["hint"]) == ("error", "TABLE_NOT_FOUND", "did you mean idle?")
            for wrong in ({"limit": 0}, {"state": ["failed"]}):
                kind, refused = await answer(one, "operations", **wrong)
                assert kind == "error"
                assert next(iter(wrong)) in refused
        assert await kept(client) == before


async def kept(client: LossyClient) -> dict[bytes, bytes]:
    """All records but those of members."""
    prefix = client.keyspace.prefix
    return {kv.key: kv.value for kv in (await client.scan(prefix)).kvs if b"oordinator" not in kv.key}


def test_an_answer_is_bounded_and_counts_what_it_leaves_out() -> None:
    """The longest list and the longest text make no long answer; it stays JSON."""
    assert json.loads(mcp_server.answer_text([1, 2, 3], 2)) == [1, 2, "1 more"]
    assert json.loads(mcp_server.answer_text(iter(range(10_000)), 1)) == [0, "at least 2000 more"]
    keys = {"keys": ["id", "day"]}  # an item is whole: one with a part of its keys would be another
    assert json.loads(mcp_server.answer_text([keys, keys], 1)) == [keys, "1 more"]
    assert json.loads(mcp_server.answer_text(keys, 1)) == {"keys": ["id", "1 more"]}
    wide = {f"column{number}": number for number in range(60)}
    assert json.loads(mcp_server.answer_text(wide, 1))["..."] == "10 more"
    long = [{"text": "word " * 10_000, "rows": ["x" * 5_000] * 20} for _ in range(100)]
    text = mcp_server.answer_text(long, 500)
    assert len(text) <= mcp_server.MOST_ANSWER
    assert json.loads(text)[-1].endswith(" more")


def test_without_its_library_the_command_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distop.errors.find_spec", lambda _: None)
    ended = CliRunner().invoke(app, ["mcp", "--output", "json"])
    error = json.loads(ended.stderr)["error"]
    assert (error["code"], error["hint"]) == ("EXTRA_MISSING", "pip install 'distop[mcp]'")
