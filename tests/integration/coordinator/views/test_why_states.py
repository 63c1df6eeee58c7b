"""Every state that a table can be in, produced on a real etcd, and the one line that says why (checklist U1).

Each function comes into the state of its name; above it stand the mood and the line. Each has a table of
its own, all in one installation with one coordinator and an executor that serves ``noop`` and nothing else.
"""

import asyncio
import itertools
import json
import re
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from distop.cli.main import app
from distop.client import AsyncClient
from distop.coordinator.leading.leadership import preferred
from distop.errors import DistopError, NotFound
from distop.metastore.backlog.queue import enqueue
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import Epoch, LeaseSession, campaign
from distop.metastore.operations.ending import seal
from distop.metastore.operations.runs import take_operation
from distop.metastore.records.member import LeaderRecord, MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    RUNNING,
    CancelRecord,
    ErrorRecord,
    HistoryRecord,
    RunnerRecord,
)
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.schedules import Skip
from support.etcd.jobs import mark
from support.etcd.starts import begin
from support.services.backlogs import record_of
from support.services.coordinators import config_of, running
from support.services.schedules import YEARLY, backdate, schedule
from support.tables.nowhere import nowhere
from support.waiting import eventually


class World:
    """One installation, in which each state has a table called like it."""

    def __init__(self, store: EtcdClient, sdk: AsyncClient, session: LeaseSession, folder: Path) -> None:
        self.store, self.sdk, self.session, self.folder = store, sdk, session, folder

    async def start(self, table: str, kind: str = "noop", partitions: int = 2, **more: Any) -> OperationId:
        argument = {"partitions": partitions, "log": str(self.folder / table)}
        argument = argument if kind != "noop" else {"partitions": partitions}
        argument |= more.pop("argument", {})
        return OperationId.parse((await self.sdk.start(table, kind, argument, **more)).name)

    async def queue(self, table: str, batch: str = "a", partitions: int = 0, kind: str = "noop") -> None:
        await self.sdk.table(table).enqueue(batch, kind, {"partitions": partitions})

    async def lead(self, table: str) -> Epoch:
        """Lead a table and do nothing."""
        keys = self.store.keyspace.table(table)
        epoch = await campaign(self.store, keys, self.session, LeaderRecord(member="idler"))
        assert epoch is not None
        return epoch

    async def applied(self, table: str, batch: str) -> None:
        key = self.store.keyspace.table(table).applied(batch)
        await eventually(lambda: self.store.get(key), holds=lambda found: found.exists)

    async def take(self, operation: OperationId) -> None:
        keys = self.store.keyspace.operation(operation)
        assert await take_operation(self.store, keys, RunnerRecord(member="e1"), self.session.lease_id)


Come: TypeAlias = Callable[[World, str], Awaitable[None]]
STATES: dict[str, tuple[Come, str, str]] = {}
"""By their names: how a table comes into each, the mood, and the line."""
SHORTLY = r"\d+ (ms|s)"


def state(mood: str, line: str) -> Callable[[Come], Come]:
    def listed(come: Come) -> Come:
        STATES[come.__name__] = come, mood, f"^{line}$"
        return come

    return listed


@state("idle", "idle: no operation has run yet")
async def idle(world: World, table: str) -> None:
    """Nothing has ever been asked of it."""


@state("idle", f"idle for {SHORTLY}: noop/1 succeeded")
async def succeeded(world: World, table: str) -> None:
    await world.start(table, partitions=0)


@state("failed", f"idle for {SHORTLY}: noop/1 failed: JOB_FAILED: .*line 3")
async def failed(world: World, table: str) -> None:
    await mark(world.store, await world.start(table), "0", error="line 3", code="BAD_ROW")


@state("idle", f"idle for {SHORTLY}: noop/1 was cancelled")
async def cancelled(world: World, table: str) -> None:
    await world.sdk.operation(str(await world.start(table))).cancel()


@state("waiting", r"noop/1 is waiting for a runner \(0 of 2 jobs done\): 1 executor for type noop, none .*")
async def waiting_for_a_runner(world: World, table: str) -> None:
    await world.start(table)


@state(
    "stuck",
    r"friend/1 is waiting for a runner \(0 of 2 jobs done\): no executor serves type friend; "
    "1 executor for other types; start one that does: distop executor",
)
async def no_executor(world: World, table: str) -> None:
    await world.start(table, "friend")


@state("moving", "noop/1 running: 1 of 2 jobs done, run by e1")
async def run(world: World, table: str) -> None:
    operation = await world.start(table)
    await world.take(operation)
    await mark(world.store, operation, "0")


@state("waiting", "noop/1 running: 1 of 2 jobs done, run by e1; no job has finished for 16 min: .*")
async def silent(world: World, table: str) -> None:
    operation = await begin(world.store, table=table, partition_count=2, started_at=time.time() - 1000)
    await world.take(operation)
    await mark(world.store, operation, "0")


@state("moving", "noop/1 running: 0 of 3 jobs done, 1 failed, run by e1")
async def run_and_failing(world: World, table: str) -> None:
    operation = await world.start(table, partitions=3, max_failed_partitions=1)
    await world.take(operation)
    await mark(world.store, operation, "0", error="line 3", code="BAD_ROW")


@state("stuck", "per_object/a/1 is waiting for a runner .*; 2 other operations")
async def side_by_side(world: World, table: str) -> None:
    for name in ("a", "b", "c"):
        await world.start(table, "per_object", object=name)


@state(
    "paused",
    rf"noop/1 is paused by \S+ since {SHORTLY} \(lunch\): 0 of 2 jobs done; "
    "distop operation resume paused_operation/noop/1",
)
async def paused_operation(world: World, table: str) -> None:
    await world.sdk.operation(str(await world.start(table))).pause("lunch")


@state(
    "paused",
    rf"paused by \S+ since {SHORTLY} \(lunch\): nothing starts, 1 operation held; "
    "distop table resume paused_table",
)
async def paused_table(world: World, table: str) -> None:
    await world.start(table)
    await world.sdk.table(table).pause("lunch")


@state("paused", rf"paused by \S+ since {SHORTLY}: nothing starts; distop table resume paused_backlog")
async def paused_backlog(world: World, table: str) -> None:
    await world.sdk.table(table).pause()
    await world.queue(table)


@state("moving", "noop/1 is being cancelled: 0 of 2 jobs done; idler leads")
async def to_be_cancelled(world: World, table: str) -> None:
    await world.lead(table)
    operation = await world.start(table)
    keys = world.store.keyspace.operation(operation)
    await world.store.put(keys.cancel, encode(CancelRecord(by="me", at=1.0)))


@state("moving", "noop/1 is to be aborted: 1 job failed; idler leads")
async def to_be_aborted(world: World, table: str) -> None:
    await world.lead(table)
    await mark(world.store, await world.start(table), "0", error="line 3", code="BAD_ROW")


@state("moving", "noop/1 is being aborted: DEADLINE_EXCEEDED: it took too long; idler leads")
async def aborting(world: World, table: str) -> None:
    epoch = await world.lead(table)
    keys = world.store.keyspace.operation(await world.start(table))
    error = ErrorRecord(code="DEADLINE_EXCEEDED", message="it took too long", at=1.0)
    await seal(world.store, keys, epoch, before=RUNNING, after=ABORTING, error=error)


@state("moving", "noop/1 is about to commit: 1 of 1 job done; idler leads")
async def to_be_committed(world: World, table: str) -> None:
    await world.lead(table)
    await mark(world.store, await world.start(table, partitions=1), "0")


@state("moving", "noop/1 is committing: all 1 job done; idler leads")
async def committing(world: World, table: str) -> None:
    epoch = await world.lead(table)
    operation = await world.start(table, partitions=1)
    await mark(world.store, operation, "0")
    keys = world.store.keyspace.operation(operation)
    await seal(world.store, keys, epoch, before=RUNNING, after=COMMITTING)


@state(
    "waiting",
    rf"hooked/1 is committing after \d+ failed attempts? for {SHORTLY}: .*not yet; "
    r"tries again (now|in .*), gives up in 29 min; coordinator-\S+ leads",
)
async def completion_fails(world: World, table: str) -> None:
    await world.start(table, "hooked", 0, argument={"raises": 100})


@state(
    "stuck",
    rf"hooked/1 is parked after 1 failed attempt for {SHORTLY}: .*not yet; remove the cause and decide: "
    "distop operation resolve parked/hooked/1 retry, or distop operation resolve parked/hooked/1 abort",
)
async def parked(world: World, table: str) -> None:
    await world.start(table, "hooked", 0, argument={"raises": 100}, retry_for_s=0)


@state("waiting", "strange/1 is committing after .*UNKNOWN_OPERATION_TYPE: .*strange.*")
async def unknown_type(world: World, table: str) -> None:
    await mark(world.store, await begin(world.store, table=table, kind="strange", partition_count=1), "0")


@state("stuck", "noop/1 is in a state that this version does not know; upgrade distop here")
async def newer_state(world: World, table: str) -> None:
    await world.lead(table)
    await world.store.put(world.store.keyspace.operation(await world.start(table)).state, b"dreaming")


@state("stuck", "its gate is closed, and batches are collected from a on; distop backlog open gate_closed")
async def gate_closed(world: World, table: str) -> None:
    await world.sdk.table(table).set_ordering(gate="closed")
    await world.queue(table)


@state("stuck", "batch a waits for approval before b can come; distop batch approve awaiting_approval a")
async def awaiting_approval(world: World, table: str) -> None:
    await world.sdk.table(table).set_ordering(validation=True)
    await world.queue(table, "a")
    await world.queue(table, "b")


@state("stuck", "batch a waits for approval; distop batch approve awaiting_approval_of_the_last a")
async def awaiting_approval_of_the_last(world: World, table: str) -> None:
    await world.sdk.table(table).set_ordering(validation=True)
    await world.queue(table, "a")


@state(
    "stuck",
    "batch a blocks the table: INVALID_ARGUMENT: partitions must lie .*; "
    "distop batch retry blocked_by_a_failure a, or distop batch skip blocked_by_a_failure a",
)
async def blocked_by_a_failure(world: World, table: str) -> None:
    await world.queue(table, partitions=-1)


@state(
    "stuck",
    "batch a blocks the table: BATCH_LATE: it sorts before 'b', which was already applied or skipped; "
    "distop batch retry blocked_by_a_late_one a, or distop batch skip blocked_by_a_late_one a",
)
async def blocked_by_a_late_one(world: World, table: str) -> None:
    await world.queue(table, "b")
    await world.applied(table, "b")
    await world.queue(table, "a")


@state(
    "stuck",
    "batch a blocks the table: UNKNOWN_OPERATION_TYPE: .*strange.*; "
    "distop batch retry blocked_by_an_unknown_type a, or distop batch skip blocked_by_an_unknown_type a",
)
async def blocked_by_an_unknown_type(world: World, table: str) -> None:
    keys = world.store.keyspace.table(table)
    await enqueue(world.store, keys, "a", record_of({}, "strange"), ordered=True)


@state(
    "stuck",
    "batch a blocks the table: .*; distop batch retry blocked_while_another_runs a, "
    "or distop batch skip blocked_while_another_runs a; 1 operation running",
)
async def blocked_while_another_runs(world: World, table: str) -> None:
    await world.queue(table, partitions=-1)
    await says(world, table, "blocks the table")
    await world.take(await world.start(table))


@state("stuck", "(noop/1 )?cannot be read: CORRUPT_RECORD: .*")
async def unreadable_operation(world: World, table: str) -> None:
    await world.store.put(world.store.keyspace.operation(await world.start(table)).arg, b"{")


@state("failed", "idle: how noop/7 ended cannot be read: CORRUPT_RECORD: .*")
async def unreadable_end(world: World, table: str) -> None:
    end = world.store.keyspace.table(table).history(OperationId(table, "noop", 7))
    await world.store.put(end, b"{")


@state("idle", f"idle for {SHORTLY}: noop/1 succeeded")
async def rejected(world: World, table: str) -> None:
    await world.sdk.table(table).set_ordering(late="reject")
    await world.queue(table, "b")
    await world.applied(table, "b")
    with pytest.raises(DistopError, match="sorts before"):
        await world.queue(table, "a")


@state("waiting", r"batch a is retried after [1-9]\d* failed attempts? of 100: CRASHED: ZeroDivisionError.*")
async def retrying(world: World, table: str) -> None:
    await world.sdk.table(table).set_ordering(max_attempts=100)
    await world.queue(table, kind="clumsy")


@state("stuck", "batch a cannot be read: CORRUPT_RECORD: .*")
async def unreadable_batch(world: World, table: str) -> None:
    await world.store.put(world.store.keyspace.table(table).backlog("a"), b"{}")


@state("moving", "noop/1 running: 0 of 2 jobs done, run by e1; batch a waits")
async def in_the_way(world: World, table: str) -> None:
    await world.take(await world.start(table))
    await world.queue(table)


@state("waiting", r"noop/1 is waiting for a runner \(0 of 2 jobs done\): .*taken it yet")
async def applying(world: World, table: str) -> None:
    await world.queue(table, partitions=2)


@state("waiting", "batch a is next; waiting for a coordinator to lead the table and apply it")
async def not_led(world: World, table: str) -> None:
    """Another member should lead it, which is alive and does not."""
    await world.queue(table)


async def scheduled(world: World, table: str, *names: str, partitions: int = 0, kind: str = "noop") -> None:
    """Schedules whose time has come."""
    for name in names or ("nightly",):
        await world.sdk.table(table).add_schedule(name, kind, {"partitions": partitions}, cron=YEARLY)
        await backdate(world.store, name, table)


@state("idle", f"idle for {SHORTLY}: noop/1 succeeded")
async def schedule_started(world: World, table: str) -> None:
    await scheduled(world, table)


@state(
    "idle",
    rf"idle: .*; schedule nightly is paused by \S+ since {SHORTLY} \(lunch\); "
    "distop schedule resume schedule_held nightly",
)
async def schedule_held(world: World, table: str) -> None:
    await world.sdk.table(table).add_schedule("nightly", "noop", cron=YEARLY)
    await world.sdk.table(table).pause_schedule("nightly", "lunch")


@state(
    "failed",
    rf"idle: .*; schedule a was skipped {SHORTLY} ago: INVALID_ARGUMENT: partitions must .*; "
    "1 other schedule: distop schedule list schedule_refused",
)
async def schedule_refused(world: World, table: str) -> None:
    await schedule_held(world, table)
    await scheduled(world, table, "a", partitions=-1)


@state(
    "moving",
    rf"noop/1 running: .*; schedule nightly was skipped {SHORTLY} ago: INCOMPATIBLE_OPERATION: "
    "schedule_in_the_way/noop/1 is running .*",
)
async def schedule_in_the_way(world: World, table: str) -> None:
    await world.take(await world.start(table))
    await scheduled(world, table)


@state("idle", rf"idle: .*; schedule nightly was skipped {SHORTLY} ago: REQUEST_ID_REUSED: t/noop/1 .*")
async def schedule_skipped_by_release_0_2_0(world: World, table: str) -> None:
    """Its code is another one now. No action was needed then either."""
    await world.sdk.table(table).add_schedule("nightly", "noop", cron=YEARLY)
    skip = Skip(code="REQUEST_ID_REUSED", message="t/noop/1 was started for it before", at=time.time())
    record = replace(await schedule(world.store, "nightly", table), skipped=1, skip=skip)
    await world.store.put(world.store.keyspace.table(table).schedule("nightly"), encode(record))


@state(
    "failed",
    f"idle for {SHORTLY}: noop/2 succeeded; schedule nightly: its last operation failed; "
    "distop operation show schedule_failed/noop/1",
)
async def schedule_failed(world: World, table: str) -> None:
    await scheduled(world, table, partitions=1)
    await eventually(lambda: schedule(world.store, "nightly", table), holds=lambda found: found.started == 1)
    operation = (await schedule(world.store, "nightly", table)).operation
    await mark(world.store, OperationId.parse(operation), "0", error="line 3", code="BAD_ROW")
    await says(world, table, "noop/1 failed")
    await world.start(table, partitions=0)


@state(
    "idle",
    f"idle for {SHORTLY}: noop/1 succeeded; schedule nightly: its last operation changed nothing, since it "
    "passed over files; distop operation show schedule_changes_nothing/noop/1",
)
async def schedule_changes_nothing(world: World, table: str) -> None:
    await scheduled(world, table, partitions=0)
    operation = OperationId("schedule_changes_nothing", "noop", 1)
    key = world.store.keyspace.table(table).history(operation)
    ended = await eventually(lambda: world.store.get(key), holds=lambda kv: kv.exists)
    record = decode(ended.value, HistoryRecord, key)
    record.facts["passedOver"] = {"deletes": 3}
    await world.store.put(key, encode(record))


@state("failed", "idle: no operation has run yet; schedule nightly cannot be read: .*")
async def schedule_of_a_newer_version(world: World, table: str) -> None:
    await world.store.put(world.store.keyspace.table(table).schedule("nightly"), b'{"version": 99}')


Ask: TypeAlias = Callable[[], Awaitable[tuple[str, str]]]
"""For the mood and the line of a table."""


async def says(world: World, table: str, line: str, mood: str = ".*", ask: Ask | None = None) -> None:
    """Wait for a line; a failure shows the last line instead."""
    said = ""

    async def command() -> tuple[str, str]:
        explanation = await world.sdk.table(table).why()
        return explanation.mood, explanation.sentence

    async def said_it() -> bool:
        nonlocal said
        found, sentence = await (ask or command)()
        said = f"{found}: {sentence}"
        return re.search(line, sentence) is not None and re.fullmatch(mood, found) is not None

    with suppress(AssertionError):
        await eventually(said_it, every_s=0.05)
        return
    raise AssertionError(f"{table}: {said!r}, not {line!r}")


def fetch(address: str) -> Any:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)


async def test_every_state_of_a_table_is_explained_in_one_line(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """U1: and what is stuck says what to do about it."""
    async with (
        running(config_of(etcd_config, web="127.0.0.1:0")) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as sdk,
        LeaseSession(client, 10) as session,
    ):
        lease, space = session.lease_id, client.keyspace
        executor = MemberRecord(id="e1", role="executor", types=["noop"])
        await client.put(space.executor("e1"), encode(executor), lease=lease)
        # One who should lead that table, rather than the one who would.
        [member] = [one.id for one in await sdk.members() if one.role == "coordinator"]
        rivals = (f"idler-{number}" for number in itertools.count())
        rival = next(one for one in rivals if preferred({member, one}, "not_led") == one)
        world = World(client, sdk, session, tmp_path)

        async def reach(table: str) -> None:
            come, mood, line = STATES[table]
            await sdk.create_table(table, nowhere())
            await come(world, table)
            await says(world, table, line, mood)

        reached = (reach(one) for one in STATES if one != "not_led")
        wrong = await asyncio.gather(*reached, return_exceptions=True)
        assert set(wrong) == {None}

        async def page(table: str) -> tuple[str, str]:
            address = f"http://{coordinator.web_address}/api/table?name={table}"
            said = (await asyncio.to_thread(fetch, address))["why"]
            return said["mood"].lower(), said["sentence"]

        # The page says the same.
        for table, (_, mood, line) in STATES.items():
            if table != "not_led":
                await says(world, table, line, mood, ask=partial(page, table))
        record = MemberRecord(id=rival, role="coordinator")
        await client.put(space.coordinator(rival), encode(record), lease=lease)
        await reach("not_led")
        # Both have lost their leases: nobody is left who could lead.
        await client.delete(space.coordinator(member))
        await client.delete(space.coordinator(rival))
        end = "; no coordinator is alive to apply it; start one: distop coordinator$"
        await says(world, "not_led", f"^batch a is next{end}", "stuck")
        with pytest.raises(NotFound):
            await sdk.table("dropped").why()
    # And when nobody answers at all.
    words = ["--address", coordinator.address, "--timeout", "1", "table", "why", "idle"]
    done = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert done.exit_code != 0
    assert "UNAVAILABLE" in done.output
