"""Ingests that are repeated: asked about before, waiting for their turn, and taking what is new."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distop.cli.main import app
from distop.client import OperationState
from distop.errors import AlreadyIngested, IncompatibleOperation, InvalidArgument, OperationNotFound
from distop.metastore.records.record import encode_plain
from distop.metastore.records.watermarks import FOLD_BYTES
from distop.metastore.tables.watermarks import make_room
from support.services.executing import runner
from support.services.whole import HEADER, Whole, error_of, write_csv


async def test_a_preview_tells_what_a_start_would_do_and_starts_nothing(idle: Whole) -> None:
    source = write_csv(idle.folder / "src", "1.csv", 0, 100)
    before = await idle.keys()
    argument = {"paths": [str(source)], "split_bytes": 1024}
    shown = await idle.client.preview("t", "ingest", argument)
    assert [column["type"] for column in shown["columns"]] == ["long", "string", "date"]
    assert shown["rows"][0] == {"id": 0, "kind": "k0", "day": "2013-01-01"}
    assert len(shown["rows"]) == 5
    assert (shown["files"], shown["bytes"]) == (1, (source / "1.csv").stat().st_size)
    assert await idle.keys() == before
    started = await idle.client.start("t", "ingest", argument)
    assert started.started.jobs.total == shown["jobs"] > 1
    with pytest.raises(InvalidArgument):
        await idle.client.preview("t", "ingest", {"paths": []})


async def test_a_second_ingest_may_wait_for_its_turn(idle: Whole) -> None:
    """O2: incompatible operations never run at the same time."""
    paths = [str(write_csv(idle.folder / name, "1.csv", 10 * number, 10)) for number, name in enumerate("ab")]
    await idle.client.start("t", "ingest", {"paths": [paths[0]]})
    second = {"paths": [paths[1]]}
    with pytest.raises(IncompatibleOperation):
        await idle.client.start("t", "ingest", second)
    waiting = asyncio.create_task(idle.client.start("t", "ingest", second, queue=True))
    async with runner(idle.store):
        started = await asyncio.wait_for(waiting, 60)
        ended = await idle.client.operation(started.name).wait(timeout_s=60)
    assert ended.state is OperationState.SUCCEEDED
    assert await asyncio.to_thread(idle.ids) == list(range(20))


async def test_two_ingests_of_what_is_new_at_the_same_time_take_each_file_once(idle: Whole) -> None:
    """P2, P15: side by side, over paths that overlap; what one has lost the next one takes."""
    source = idle.folder / "src"
    write_csv(source / "2013", "1.csv", 0, 10)
    write_csv(source, "2.csv", 10, 10)
    started = [
        await idle.client.start("t", "ingest", {"paths": [str(path)], "new_only": True}, object=name)
        for name, path in (("a", source / "2013"), ("b", source))
    ]
    async with runner(idle.store):
        ended = [await idle.client.operation(one.name).wait(timeout_s=60) for one in started]
        assert sorted(one.state.value for one in ended) == ["failed", "succeeded"]
        (lost,) = [one for one in ended if one.state is OperationState.FAILED]
        assert error_of(lost).code == "WATERMARK_CONFLICT"
        for left in (0, 2):
            again = await idle.ingest(source, new_only=True)
            assert again.raise_for_outcome().facts["filesSkipped"] >= left
    assert await asyncio.to_thread(idle.ids) == list(range(20))


async def test_what_was_ingested_long_ago_is_known_from_its_chunks(idle: Whole) -> None:
    """G4: also to a start and to a finish, which makes room before it moves more."""
    keys, store = idle.store.keyspace.table("t"), idle.store
    folder = write_csv(idle.folder / "src", "old.csv", 0, 10)
    write_csv(idle.folder / "src", "new.csv", 10, 10)
    source, late = f"file://{folder}", "2100-01-01T00:00:00.000000Z"
    marks = {source: {f"{number:05}.csv": late for number in range(2_000)} | {"old.csv": late}}
    await store.put(keys.watermarks, encode_plain(marks))
    await make_room(store, keys, 0)
    marks["orders"] = {f"{number:05}": str(number) for number in range(4_000)}
    await store.put(keys.watermarks, encode_plain({"orders": marks["orders"]}))
    async with runner(store):
        started = await idle.client.start("t", "ingest", {"paths": [str(folder)], "new_only": True})
        ended = await started.wait(timeout_s=60)
    assert ended.facts["filesSkipped"] == 1
    assert idle.ids() == list(range(10, 20))
    now = await idle.client.table("t").watermarks()
    assert now[source].pop("new.csv") < late
    assert now == marks
    assert len((await store.get(keys.watermarks)).value) <= FOLD_BYTES
    assert any(key.startswith("_watermarks.") and ".orders." in key for key in await idle.keys())
    for paths in (str(folder), f"{folder}/old.csv"):
        with pytest.raises(AlreadyIngested, match=r"old\.csv|00000\.csv"):
            await idle.client.start("t", "ingest", {"paths": [paths]})
    assert not await idle.findings()


async def test_quarantined_rows_are_shown_exported_and_replayed_once(
    service: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A6: and a repeated replay is answered with the first one's operation."""

    async def run(*words: str) -> str:
        said = await asyncio.to_thread(CliRunner(env={"COLUMNS": "200"}).invoke, app, words)
        assert said.exit_code == 0, said.output
        return said.stdout

    monkeypatch.setenv("DISTOP_ADDRESS", service.address)
    folder = service.source("a", 0, 10)
    (folder / "2.csv").write_text(HEADER + "x,k,2013-01-01\ny,k,2013-01-01\n")
    types = {"id": "long", "kind": "string", "day": "date"}
    first = (await service.ingest(folder, schema=types, on_bad_rows="quarantine")).raise_for_outcome()
    assert "succeeded, 2 quarantined" in await run("operation", "list", "t")
    assert "succeeded, 2 quarantined" in await run("operation", "show", first.name)

    (row, _) = json.loads(await run("quarantine", "show", first.name, "-o", "json"))
    assert (row["source"], row["unit"], row["number"]) == (f"file://{folder}/2.csv", "line", 2)
    assert (row["column"], row["raw"], row["header"]) == ("id", "x,k,2013-01-01", HEADER.strip())
    assert [
        one.number async for one in service.client.operation(first.name).quarantined_rows(page_size=1)
    ] == [2, 3]
    with pytest.raises(OperationNotFound):
        await anext(service.client.operation("t/ingest/7").quarantined_rows())

    out = tmp_path / "src" / "out"
    await run("quarantine", "export", first.name, str(out))
    assert (out / "rows.csv").read_text() == HEADER + "x,k,2013-01-01\ny,k,2013-01-01\n"
    (out / "rows.csv").write_text(HEADER + "10,k,2013-01-01\n11,k,2013-01-01\n")
    replay = ("quarantine", "replay", first.name, "--file", str(out))
    said = await run(*replay, "--wait")
    assert "t/ingest/2" in said
    assert await asyncio.to_thread(service.ids) == list(range(12))
    assert (await run(*replay)).strip() == "t/ingest/2"
    with pytest.raises(AlreadyIngested):
        await service.client.operation(first.name).replay()
    (listed,) = [one async for one in service.client.table("t").quarantines()]
    assert (listed.operation, listed.rows, listed.replayed_by) == (first.name, 2, "t/ingest/2")
    assert "t/ingest/2" in await run("quarantine", "list", "t")
    assert await asyncio.to_thread(service.ids) == list(range(12))
