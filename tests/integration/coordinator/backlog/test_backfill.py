"""Backfills: a range of batches as one plan, which is nothing but its names (A9)."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from distop.cli.main import app
from distop.client import AsyncClient, AsyncTableHandle, Backfill, Enqueued, OperationFailed, batch_range
from distop.errors import BatchDiffers, BatchLate, Cancelled, DistopError, PreconditionFailed
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.retention import forget_batches
from support.etcd.lossy import LossyClient
from support.refusals import refused
from support.services.backlogs import waiting
from support.services.coordinators import config_of, running
from support.tables.nowhere import nowhere
from support.waiting import eventually

JANUARY = batch_range("2024-01-01", "2024-01-31")
FEBRUARY = ["2024-02-01", "2024-02-02"]
NAMED = {"letters": "{{ batch }} "}
"""Each batch appends its name: see ``Letters``."""


async def finished(sdk: AsyncClient, batches: Sequence[str]) -> Backfill:
    """The last progress."""
    async with asyncio.timeout(60):
        return [progress async for progress in sdk.table("t").watch_backfill(batches)][-1]


async def applied(sdk: AsyncClient) -> list[str]:
    """The batches in the order in which they were applied."""
    return (await sdk.table("t").watermarks())["letters"]["string"].split()


async def queue(sdk: AsyncClient, *batches: str) -> None:
    for batch in batches:
        await sdk.table("t").enqueue(batch, "letters", {"letters": f"{batch} "})


async def test_history_is_applied_before_increments_and_only_once(sdk: AsyncClient) -> None:
    await sdk.table("t").set_ordering(gate="closed", together=20)
    await queue(sdk, *FEBRUARY)
    first = await sdk.table("t").backfill(JANUARY, "letters", NAMED)
    assert (first.queued, first.waiting, first.gate, first.done) == (31, 31, "closed", False)
    again = await sdk.table("t").backfill(JANUARY[::-1], "letters", NAMED)
    assert (again.queued, again.waiting) == (0, 31)
    await sdk.table("t").open_gate()
    assert (await finished(sdk, FEBRUARY)).applied == 2
    assert await applied(sdk) == [*JANUARY, *FEBRUARY]
    done = await sdk.table("t").backfill(JANUARY, "letters", NAMED, retry_failed=True, hold=True)
    assert (done.queued, done.applied, done.done, done.gate) == (0, 31, True, "open")
    assert done.raise_for_outcome() is done
    more = await sdk.table("t").backfill(batch_range("2024-02-01", "2024-02-04"), "letters", NAMED)
    assert (more.queued, more.batches) == (2, 4)


async def test_a_killed_backfill_is_passed_by_nothing_and_goes_on(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """The command is killed in the middle, while its table is fed; the same command ends it."""
    words = [
        "batch",
        "backfill",
        "t",
        "--from",
        "001",
        "--to",
        "100",
        "--every",
        "1",
        "--type",
        "letters",
        "--hold",
    ]
    async with (
        running(config_of(etcd_config)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as sdk,
    ):
        words += ["--arg", "letters={{ batch }} ", "--address", coordinator.address, "-o", "json"]
        await sdk.create_table("t", nowhere())
        await sdk.table("t").set_ordering(together=20)
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "distop.cli", *words, env=dict(os.environ), stdout=PIPE, stderr=PIPE
        )

        async def begun() -> bool:
            return len(await waiting(client)) > 3

        await eventually(begun, every_s=0.01)
        command.send_signal(signal.SIGKILL)
        assert await command.wait() == -signal.SIGKILL
        await queue(sdk, "101")
        half = await sdk.table("t").backfill_progress(batch_range("001", "100", "1"))
        assert half.gate == "closed"
        assert 0 < half.absent < 100
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--wait"])
        assert done.exit_code == 0, done.output
        shown = json.loads(done.stdout)
        assert (shown["applied"], shown["waiting"], shown["absent"]) == (100, 0, 0)
        await finished(sdk, ["101"])
        assert await applied(sdk) == batch_range("001", "101", "1")


async def test_a_backfill_opens_no_gate_that_another_has_closed_meanwhile(
    sdk: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has slept. All is queued, and the gate stays as it is; run again, the backfill holds it itself."""
    enqueue = AsyncTableHandle.enqueue

    async def sleeping(table: AsyncTableHandle, batch: str, *args: Any, **options: Any) -> Enqueued:
        if batch == JANUARY[-1]:
            await sdk.table("t").set_ordering(gate="closed")
        return await enqueue(table, batch, *args, **options)

    monkeypatch.setattr(AsyncTableHandle, "enqueue", sleeping)
    with pytest.raises(PreconditionFailed, match="closed") as refused:
        await sdk.table("t").backfill(JANUARY, "letters", NAMED, hold=True)
    assert "distop backlog open t" in refused.value.hint
    progress = await sdk.table("t").backfill_progress(JANUARY)
    assert (progress.waiting, progress.gate) == (31, "closed")
    monkeypatch.undo()
    again = await sdk.table("t").backfill(JANUARY, "letters", NAMED, hold=True)
    assert (again.queued, again.gate) == (0, "open")


async def test_a_backfill_says_which_batch_waits_for_approval(etcd_config: EtcdConfig) -> None:
    """Also when all are applied: the next one would wait."""
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        await sdk.create_table("t", nowhere())
        await sdk.table("t").set_ordering(validation=True)
        words = ["batch", "backfill", "t", "--from", FEBRUARY[0], "--to", FEBRUARY[-1], "--type", "letters"]
        words += ["--arg", "letters={{ batch }} ", "--wait", "--address", coordinator.address]
        command = asyncio.create_task(asyncio.to_thread(CliRunner().invoke, app, words))
        for batch in FEBRUARY:

            async def awaited(batch: str = batch) -> bool:
                return (await sdk.table("t").backfill_progress(FEBRUARY)).awaiting == batch

            assert await eventually(awaited)
            if batch != FEBRUARY[-1]:
                await sdk.table("t").approve_batch(batch)
        done = await command
        assert f"batch {batch} waits for approval; distop batch approve t {batch}" in done.output
        assert done.exit_code == 0


async def test_history_that_comes_too_late_is_refused_before_anything_is_queued(
    sdk: AsyncClient, client: LossyClient
) -> None:
    """U3: with the command that has it applied all the same."""
    await queue(sdk, *FEBRUARY)
    await finished(sdk, FEBRUARY)
    with refused(error=BatchLate, match="31 batches", batch="2024-01-01") as late:
        await sdk.table("t").backfill(JANUARY, "letters", NAMED)
    assert "distop backlog set t --late apply" in late.value.hint
    assert (await sdk.table("t").backfill_progress(JANUARY)).absent == 31
    await sdk.table("t").set_ordering(late="apply")
    await sdk.table("t").backfill(JANUARY, "letters", NAMED)
    await finished(sdk, JANUARY)
    assert await applied(sdk) == [*FEBRUARY, *JANUARY]
    # What the table has forgotten may have been applied.
    await sdk.table("t").set_ordering(remember=1)
    assert await forget_batches(client, client.keyspace.table("t")) == 32
    with pytest.raises(BatchLate, match="not remembered"):
        await sdk.table("t").backfill(JANUARY, "letters", NAMED)
    assert (await sdk.table("t").backfill_progress(JANUARY)).forgotten == 31


async def test_a_backfill_names_failed_batches_and_takes_out_waiting_ones(sdk: AsyncClient) -> None:
    """With the exit code of an operation that has failed."""
    await sdk.table("t").backfill(["a", "b!", "c", "d"], "letters", NAMED)
    blocked = await finished(sdk, ["a", "b!", "c", "d"])
    assert (blocked.applied, blocked.waiting, blocked.done) == (1, 3, False)
    with pytest.raises(OperationFailed, match="no letter") as failed:
        blocked.raise_for_outcome()
    assert (failed.value.details["batch"], failed.value.details["cause"]) == ("b!", "INVALID_ARGUMENT")
    with pytest.raises(BatchDiffers) as differs:
        await sdk.table("t").backfill(["b!", "c"], "letters", {"letters": "other {{ batch }}"})
    assert "--cancel" in differs.value.hint
    await sdk.table("t").backfill(["a", "b!", "c", "d"], "letters", NAMED, retry_failed=True)
    blocked = await finished(sdk, ["a", "b!", "c", "d"])
    assert blocked.blocked is not None
    left = await sdk.table("t").cancel_backfill(["a", "b!", "c"])
    assert (left.applied, left.absent, left.blocked) == (1, 2, None)
    with pytest.raises(Cancelled, match="2 batches"):
        left.raise_for_outcome()
    await finished(sdk, ["d"])
    assert await applied(sdk) == ["a", "d"]


async def test_a_backfill_retries_no_batch_that_may_be_in_the_table(sdk: AsyncClient) -> None:
    await queue(sdk, "m")
    await finished(sdk, ["m"])
    await queue(sdk, "k")
    await eventually(lambda: is_blocked(sdk))
    with refused(error=PreconditionFailed, batch="k") as refusal:
        await sdk.table("t").backfill(["k", "n"], "letters", NAMED, retry_failed=True)
    with pytest.raises(OperationFailed) as failed:
        (await sdk.table("t").backfill_progress(["k", "n"])).raise_for_outcome()
    assert failed.value.hint == refusal.value.hint, "none advises what the other refuses"
    assert [batch.name async for batch in sdk.table("t").backlog()] == ["k"], "nothing was queued"


async def is_blocked(sdk: AsyncClient) -> bool:
    return (await sdk.table("t").ordering()).blocked is not None


async def test_a_backfill_of_what_is_not_there_is_refused_with_a_stable_code(sdk: AsyncClient) -> None:
    """U3: and nothing is queued."""

    async def refused(code: str, table: str, type: str, argument: dict[str, Any]) -> None:
        with pytest.raises(DistopError) as error:
            await sdk.table(table).backfill(JANUARY, type, argument)
        assert error.value.code == code, error.value

    await refused("TABLE_NOT_FOUND", "missing", "letters", NAMED)
    await refused("UNKNOWN_OPERATION_TYPE", "t", "no_such_type", NAMED)
    await refused("INVALID_ARGUMENT", "t", "letters", {"letters": "{{ day }}"})
    await refused("INVALID_ARGUMENT", "t", "letters", {"letters": "all the same"})
    assert [batch async for batch in sdk.table("t").backlog()] == []


async def test_a_range_of_the_backlog_is_listed_page_by_page(sdk: AsyncClient) -> None:
    await sdk.table("t").set_ordering(gate="closed")
    await queue(sdk, "a", "b", "b1", "c", "d")
    listed = sdk.table("t").backlog(first="b", last="c", page_size=2)
    assert [batch.name async for batch in listed] == ["b", "b1", "c"]
    assert [batch async for batch in sdk.table("t").backlog(first="c", last="b")] == []
    with pytest.raises(DistopError, match="unordered"):
        [batch async for batch in sdk.table("t").backlog(ordered=False, first="b")]
