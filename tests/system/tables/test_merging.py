"""Merging from the call to the files: coordinator, executor and etcd are real."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest_asyncio

from distop.client import Operation, TableOptions
from support.services.whole import Whole

MERGE = {"mode": "merge", "keys": ["id"], "delete_where": "op == 'D'"}


@pytest_asyncio.fixture
async def service(service: Whole) -> Whole:
    """With a table of people."""
    options: TableOptions = {"partitionBy": ["kind"], "schema": {"id": "long", "kind": "string"}}
    await service.client.create_table("people", str(service.folder / "people"), options=options)
    return service


def written(service: Whole, name: str, *rows: tuple[int, str, str]) -> Path:
    path = service.folder / "in" / f"{name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"id": id, "kind": kind, "op": op}) + "\n" for id, kind, op in rows))
    return path


async def merge(service: Whole, path: Path, **argument: Any) -> Operation:
    return (await service.ingest(path, "people", **MERGE, **argument)).raise_for_outcome()


async def held(service: Whole) -> list[tuple[int, str]]:
    rows = await asyncio.to_thread(service.rows, "people")
    return sorted((row["id"], row["kind"]) for row in rows.to_pylist())


async def test_files_of_changes_are_merged_as_they_come(service: Whole) -> None:
    """E5, C8: each once; into a branch, too, which readers do not see before it is published."""
    written(service, "1", (1, "a", "U"), (2, "a", "U"), (3, "b", "U"))
    folder = service.folder / "in"
    await merge(service, folder, new_only=True)
    written(service, "2", (1, "b", "U"), (2, "a", "D"), (4, "c", "U"))
    facts = (await merge(service, folder, new_only=True)).facts
    assert [facts[f"{name}Rows"] for name in ("inserted", "updated", "deleted")] == [1, 1, 1]
    assert await held(service) == [(1, "b"), (3, "b"), (4, "c")]
    await merge(service, written(service, "3", (3, "z", "U"), (1, "b", "D")), branch="staging")
    assert await held(service) == [(1, "b"), (3, "b"), (4, "c")]
    await service.succeeds("publish_branch", "people", branch="staging")
    assert await held(service) == [(3, "z"), (4, "c")]
    await service.at_rest()
    assert await service.findings("people", deep=True) == []
