"""Again: rolled back, run anew, replaced (A1 to A3; docs/again.md)."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from distop.client import AsyncTableHandle, Batch, Operation, OperationState, Snapshot
from distop.errors import InvalidArgument, NotFound, RolledBack
from support.refusals import refused
from support.services.whole import Whole, error_of
from support.waiting import eventually

DAYS = ["2024-01-01", "2024-01-02", "2024-01-03"]


async def published(service: Whole, *batches: str, ordered: bool = True) -> None:
    """Publish batches, each of the one row of its number, and wait until they are applied."""
    for name in batches:
        source = service.source(name, int(name), 1)
        await service.client.table("t").enqueue(name, "ingest", {"paths": [str(source)]}, ordered=ordered)

    async def applied() -> bool:
        listed = await backlog(service, applied=True, ordered=ordered)
        return {one.name for one in listed} >= set(batches)

    assert await eventually(applied)


async def backlog(service: Whole, *, applied: bool = False, ordered: bool = True) -> list[Batch]:
    """The batches that wait, or others."""
    return [batch async for batch in service.client.table("t").backlog(applied=applied, ordered=ordered)]


async def snapshots(service: Whole) -> Sequence[Snapshot]:
    """Those of the table's history, the oldest first."""
    listed = [one async for one in service.client.table("t").snapshots()]
    return [one for one in reversed(listed) if one.in_history]


async def rolled_back(service: Whole, to: Snapshot, **argument: str) -> dict[str, object]:
    """Roll back, and wait until the batches wait again."""
    facts = await service.succeeds("rollback", snapshot=str(to.snapshot_id), **argument)

    async def put_back() -> bool:
        names = {one.name for one in await backlog(service)}
        names |= {one.name for one in await backlog(service, ordered=False)}
        return names >= set(facts.get("undoneBatches", ()))

    assert await eventually(put_back)
    return facts


async def test_batches_that_were_rolled_back_wait_again_in_their_order(service: Whole) -> None:
    """A1, B2: until somebody opens the gate; those that stay in the table are not applied again."""
    await published(service, "1", "2", "3")
    await published(service, "7", ordered=False)
    for name in ("2", "7"):
        one = await service.client.table("t").batch(name)
        assert (one.state, one.rows, one.files, one.together) == ("applied", 1, 1, 1)
        assert one.bytes
    first, *_ = await snapshots(service)
    facts = await rolled_back(service, first)
    assert facts["undoneBatches"] == ["2", "3", "7"]
    assert [(await service.client.table("t").batch(name)).state for name in "1237"] == [
        "applied",
        *["waiting"] * 3,
    ]
    ordering = await service.client.table("t").ordering()
    assert (ordering.gate, ordering.held_by, ordering.last) == ("closed", "t/rollback/1", "1")
    assert [one.name for one in await backlog(service)] == ["2", "3"]
    assert [one.name for one in await backlog(service, ordered=False)] == ["7"]
    assert "distop backlog open t" in (await service.client.table("t").why()).sentence
    for batch in await backlog(service):
        published_again = await service.client.table("t").enqueue(batch.name, "ingest", batch.argument)
        assert published_again.became == "already queued"
    await service.client.table("t").enqueue("4", "ingest", {"paths": [str(service.source("4", 4, 1))]})
    await service.client.table("t").skip_batch("3")
    assert await asyncio.to_thread(service.ids) == [1]
    await service.client.table("t").open_gate()
    assert await eventually(service.drained)
    assert await eventually(lambda: asyncio.to_thread(lambda: service.ids() == [1, 2, 4, 7]))
    line = [one.operation for one in await snapshots(service)]
    assert len(line) == 4
    assert [(await service.client.table("t").batch(name)).rows for name in "1237"] == [1, 1, None, 1]
    assert (await service.client.table("t").ordering()).held_by == ""


async def test_going_forward_again_applies_no_batch_twice(service: Whole) -> None:
    """A1: batches that are part of the table again do not wait any more."""
    await published(service, "1", "2")
    await published(service, "7", ordered=False)
    first, *_, last = await snapshots(service)
    await rolled_back(service, first)
    await service.succeeds("rollback", snapshot=str(last.snapshot_id))
    await service.client.table("t").open_gate()
    await published(service, "3")
    assert await backlog(service) == await backlog(service, ordered=False) == []
    assert [(await service.client.table("t").batch(name)).rows for name in "1237"] == [1, None, 1, None]
    assert await asyncio.to_thread(service.ids) == [1, 2, 3, 7]


async def test_a_request_that_was_rolled_back_is_refused_by_name(service: Whole) -> None:
    """A1: that of an operation as that of a commit of another program; done again where it is back."""
    await published(service, "1")
    argument = {"paths": [str(service.source("r", 20, 1))]}
    started = await service.client.start("t", "ingest", argument, run="run-1")
    await started.result(timeout_s=60)
    other = pa.table({"id": [30], "kind": ["k0"]})
    of_program = {"distop.run": "monday"}

    def appended() -> None:
        table = service.table()
        rows = other.cast(pa.schema([("id", pa.int64()), ("kind", pa.string())]))
        table.append(rows, snapshot_properties=of_program)

    await asyncio.to_thread(appended)
    first, *_, last = await snapshots(service)
    assert (await rolled_back(service, first))["undoneRequests"] == ["monday", "run-1"]
    with refused("run", error=RolledBack, by="t/rollback/1"):
        await service.client.start("t", "ingest", argument, run="run-1")
    with refused("run", error=RolledBack, by="t/rollback/1"):
        await asyncio.to_thread(appended)
    assert await asyncio.to_thread(service.ids) == [1]
    await service.client.start("t", "ingest", argument, run="run-2")
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == [1, 20]
    await service.succeeds("rollback", snapshot=str(last.snapshot_id))
    found = await service.client.start("t", "ingest", argument, run="run-1")
    assert found.name == started.name
    await asyncio.to_thread(appended)
    assert await asyncio.to_thread(service.ids) == [1, 20, 30]


async def test_what_counts_as_applied_and_is_not_in_the_table_is_found(service: Whole) -> None:
    """A1: as after a rollback by a release that did not take batches and requests back. It is mended."""
    await published(service, "1", "2")
    await published(service, "7", ordered=False)
    argument = {"paths": [str(service.source("r", 20, 1))]}
    started = await service.client.start("t", "ingest", argument, run="run-1")
    await started.wait(timeout_s=60)
    keys, store = service.store.keyspace.table("t"), service.store
    before = await store.scan(keys.prefix)
    first, *_ = await snapshots(service)
    await rolled_back(service, first, watermarks="keep")

    async def found() -> dict[str, list[str]]:
        sentences: dict[str, list[str]] = {}
        for one in await service.findings("t"):
            sentences.setdefault(one.code, []).append(one.sentence)
        return sentences

    assert set(await found()) == {"BACKLOG_WAITS", "WATERMARKS_OF_ROLLED_BACK"}
    ends = keys.ordering, keys.applied_prefix, keys.unordered_prefix
    for kv in (await store.scan(keys.backlog_prefix)).kvs + (await store.scan(keys.unordered_prefix)).kvs:
        await store.delete(kv.key)
    for kv in before.kvs:
        if kv.key.startswith(ends):
            await store.put(kv.key, kv.value)
    await store.delete(keys.undone)
    [sentence] = (await found())["APPLIED_NOT_IN_HISTORY"]
    assert "batch 2 (t/ingest/2), batch 7 (t/ingest/batch:7/3), request run-1 (t/ingest/4)" in sentence
    await service.client.diagnose("t", fix=True)
    assert set(await found()) == {"BACKLOG_WAITS", "WATERMARKS_OF_ROLLED_BACK"}
    await service.client.table("t").rewind_watermarks()
    await service.client.table("t").open_gate()
    again = await service.client.start("t", "ingest", argument, run="run-1", again=True, queue=True)
    await again.result(timeout_s=60)
    assert await eventually(lambda: asyncio.to_thread(lambda: service.ids() == [1, 2, 7, 20]))
    assert await eventually(found, holds=lambda codes: not codes) == {}


async def test_a_tick_that_was_rolled_back_says_how_to_write_it_again(service: Whole) -> None:
    """A1, A10: its run is its schedule's, so that no other one can be chosen."""
    await published(service, "1")
    first, *_ = await snapshots(service)
    argument = {"paths": [str(service.source("r", 20, 1))]}
    tick = (datetime.now(UTC) - timedelta(days=1, hours=12)).replace(minute=0, second=0, microsecond=0)
    cron = f"0 {tick.hour} * * *"  # not while this test runs
    await service.client.table("t").add_schedule("daily", "ingest", argument, cron=cron)
    run = partial(service.client.table("t").run_schedule, "daily", tick)
    started = await run()
    await service.client.operation(started.name).result(timeout_s=60)
    await rolled_back(service, first)
    with pytest.raises(RolledBack) as refused:
        await run()
    hint = "distop operation start t ingest, with the arguments that distop operation show "
    assert f"{hint}{started.name} lists" in refused.value.hint


async def test_a_request_is_run_anew_in_place_of_its_rows(service: Whole) -> None:
    """A2: whatever others have written since stays; a late copy of the call runs nothing."""
    source = service.source("s", 0, 2)

    async def run(*, again: bool = False) -> Operation:
        started = await service.client.start("t", "ingest", {"paths": [str(source)]}, run="r", again=again)
        return await started.result(timeout_s=60)

    first = await run(again=True)
    await published(service, "7")
    service.source("s", 10, 3)
    assert (await run()).name == first.name
    second = await run(again=True)
    assert (second.facts["insteadOf"], second.facts["removedRows"]) == (first.name, 2)
    assert await asyncio.to_thread(service.ids) == [7, 10, 11, 12]
    assert (await run()).name == second.name
    second_snapshot = (await snapshots(service))[-2]
    await service.succeeds("rollback", snapshot=str(second_snapshot.snapshot_id))
    assert (await run()).name == first.name
    assert await asyncio.to_thread(service.ids) == [0, 1, 7]
    await run(again=True)
    assert await asyncio.to_thread(service.ids) == [7, 10, 11, 12]


async def test_a_request_that_was_rolled_back_is_run_anew(service: Whole) -> None:
    """A2"""
    await published(service, "1")
    before = (await snapshots(service))[-1]
    argument = {"paths": [str(service.source("s", 10, 2))]}
    for again in (False, True):
        started = await service.client.start("t", "ingest", argument, run="r", again=again)
        await started.result(timeout_s=60)
        assert await asyncio.to_thread(service.ids) == [1, 10, 11]
        await service.succeeds("rollback", snapshot=str(before.snapshot_id))


async def test_rows_that_cannot_be_told_from_others_are_not_replaced(service: Whole) -> None:
    """A2: some were deleted since; nothing happens."""
    argument = {"paths": [str(service.source("s", 0, 2))]}
    started = await service.client.start("t", "ingest", argument, run="r")
    await started.wait(timeout_s=60)
    await service.succeeds("delete", where="id == 0")
    again = await service.client.start("t", "ingest", argument, run="r", again=True)
    ended = await again.wait(timeout_s=60)
    assert (error_of(ended).code, ended.state) == ("PRECONDITION_FAILED", OperationState.FAILED)
    assert await asyncio.to_thread(service.ids) == [1]


async def test_a_batch_is_replaced_and_what_came_later_stays(service: Whole) -> None:
    """A3: with its argument as it was published, or with another one; not counted twice, nor late."""
    await published(service, "1", "2", "3")
    service.source("2", 20, 2)
    await service.client.table("t").replace_batch("2")
    assert await eventually(lambda: asyncio.to_thread(lambda: service.ids() == [1, 3, 20, 21]))
    other = {"paths": [str(service.source("other", 30, 1))]}
    await eventually(service.drained)
    await service.client.table("t").replace_batch("2", other)
    assert await eventually(lambda: asyncio.to_thread(lambda: service.ids() == [1, 3, 30]))
    await eventually(service.drained)
    assert [one.name for one in await backlog(service, applied=True)] == ["1", "2", "3"]
    assert (await service.client.table("t").ordering()).last == "3"
    with pytest.raises(NotFound, match="batch add"):
        await service.client.table("t").replace_batch("4")
    await published(service, "7", ordered=False)
    service.source("7", 70, 1)
    await service.client.table("t").replace_batch("7")
    assert await eventually(lambda: asyncio.to_thread(lambda: service.ids() == [1, 3, 30, 70]))


async def test_a_replaced_batch_that_was_rolled_back_is_applied_again(service: Whole) -> None:
    """A1, A3: it replaces nothing then; nor does one that has waited, if the rows it is for are gone."""
    await published(service, "1", "2", "3")
    first, *_ = await snapshots(service)
    other = {"paths": [str(service.source("other", 20, 1))]}
    await service.client.table("t").replace_batch("2", other)
    assert await eventually(lambda: asyncio.to_thread(lambda: service.ids() == [1, 3, 20]))
    await eventually(service.drained)
    await service.client.table("t").set_ordering(gate="closed")
    await service.client.table("t").replace_batch("3", {"paths": [str(service.source("third", 30, 1))]})
    await rolled_back(service, first)
    await service.client.table("t").open_gate()
    assert await eventually(lambda: asyncio.to_thread(lambda: service.ids() == [1, 20, 30]))


async def test_a_replacement_that_fails_leaves_the_batch_as_it_was(service: Whole) -> None:
    """A3: its rows stay, whether it is skipped or withdrawn; publishing it again finds it applied."""
    await published(service, "1", "2")
    for decide in (AsyncTableHandle.skip_batch, AsyncTableHandle.remove_batch):
        await service.client.table("t").replace_batch("1", {"paths": [str(service.folder / "nowhere")]})
        await eventually(lambda: is_blocked(service))
        await decide(service.client.table("t"), "1")
        argument = {"paths": [str(service.folder / "src" / "1")]}
        assert (await service.client.table("t").enqueue("1", "ingest", argument)).became == "already applied"
    await published(service, "3")
    assert await asyncio.to_thread(service.ids) == [1, 2, 3]


async def is_blocked(service: Whole) -> bool:
    return (await service.client.table("t").ordering()).blocked is not None


async def test_a_backfill_is_retried_replaced_and_followed_by_command(service: Whole) -> None:
    """A9: one command, run again and again."""
    for number in (0, 2):
        service.source(DAYS[number], number, 1)
    missing = service.folder / "src" / DAYS[1]

    async def backfill(*more: str, code: int = 0) -> Any:
        argument = f"paths={service.folder}/src/{{{{ batch }}}}"
        given = ("--from", DAYS[0], "--to", DAYS[-1], "--arg", argument)
        exit_code, shown = await service.distop("batch", "backfill", "t", *given, *more)
        assert exit_code == code, shown
        return shown

    planned = await backfill("--dry-run")
    assert (planned["batches"], list(planned["arguments"])) == (DAYS, [DAYS[0], DAYS[-1]])
    assert planned["arguments"][DAYS[-1]] == {"paths": f"{service.folder}/src/{DAYS[-1]}"}
    assert (await backfill("--status"))["absent"] == 3
    failed = await backfill("--wait", code=20)
    assert (failed["applied"], failed["waiting"], failed["blocked"]["batch"]) == (1, 2, DAYS[1])
    assert await asyncio.to_thread(service.ids) == [0]

    service.source(missing.name, 1, 1)
    await backfill("--wait", code=20)  # it is retried only by request
    done = await backfill("--retry-failed", "--wait")
    assert (done["applied"], done["rows"], done["waiting"], done["blocked"]) == (3, 3, 0, None)
    assert await asyncio.to_thread(service.ids) == [0, 1, 2]

    for number, day in enumerate(DAYS):
        service.source(day, 10 + number, 1)
    assert (await backfill("--wait"))["applied"] == 3
    assert await asyncio.to_thread(service.ids) == [0, 1, 2]
    await service.client.table("t").set_ordering(gate="closed")
    assert (await backfill("--replace"))["queued"] == 3
    assert (await backfill("--cancel"))["applied"] == 3  # the old rows stay
    assert (await backfill("--replace", "--hold"))["queued"] == 3
    await backfill("--wait")
    assert await asyncio.to_thread(service.ids) == [10, 11, 12]
    _, usage = await service.distop("batch", "backfill", "t", "--from", DAYS[0], "--status")
    assert "--batches" in usage["error"]["message"]
    assert await eventually(service.drained)


async def test_a_request_whose_new_runs_have_failed_still_replaces_its_rows(service: Whole) -> None:
    """A2: the new rows are in place of the old ones, also after tries that failed in between."""
    source = service.source("s", 0, 2)

    async def run(*, again: bool = False) -> Operation:
        started = await service.client.start("t", "ingest", {"paths": [str(source)]}, run="r", again=again)
        return await started.wait(timeout_s=60)

    first = await run()
    before = (await snapshots(service))[-1]
    file = source if source.is_file() else next(source.iterdir())
    whole = file.read_text()
    file.write_text(whole + "x,k,2013-01-01\n")
    failed = [await run(again=True), await run()]
    assert [one.state for one in failed] == 2 * [OperationState.FAILED]
    with pytest.raises(InvalidArgument, match="in place of t/ingest/1"):
        await service.client.start("t", "noop", {"partitions": 0}, run="r")
    service.source("s", 10, 3)
    anew = await run()
    assert (anew.facts["insteadOf"], anew.facts["removedRows"]) == (first.name, 2)
    assert (await run()).name == anew.name
    assert await asyncio.to_thread(service.ids) == [10, 11, 12]

    # Rolled back after the next failure: the rows of the first one are in the table again, later none.
    file.write_text(whole + "x,k,2013-01-01\n")
    assert (await run(again=True)).state is OperationState.FAILED
    await service.succeeds("rollback", snapshot=str(before.snapshot_id))
    service.source("s", 20, 1)
    anew = await run(again=True)
    assert anew.facts["insteadOf"] == first.name
    assert await asyncio.to_thread(service.ids) == [20]
