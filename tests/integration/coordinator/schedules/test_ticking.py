"""A tick is decided once: under lost replies, a clock that jumps, leaders that were replaced, and changes."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import grpc.aio
import msgspec
import pytest
import pytest_asyncio

from distop.coordinator.api.operations import OperationService
from distop.coordinator.api.schedules import ScheduleService
from distop.coordinator.schedules import ticking
from distop.coordinator.schedules.due import AGAIN_S
from distop.coordinator.schedules.ticking import Ticker
from distop.coordinator.starting.planner import Planner
from distop.coordinator.starting.services import Term
from distop.coordinator.state.caches import LeaderCaches
from distop.coordinator.views.following import Following
from distop.coordinator.work.work import Work
from distop.errors import LeadershipLost, ScheduleNotFound
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.members.lease import Epoch, LeaseSession, campaign, resign
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import OperationArg, PauseRecord
from distop.metastore.records.record import decode, encode, encode_plain
from distop.metastore.records.table import Head
from distop.metastore.tables import schedules
from distop.metastore.tables.schedules import After, AgendaRecord, ScheduleRecord
from distop.operations.registry import Registry
from distop.proto import distop_pb2 as pb
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import begin, make_table
from support.refusals import traced
from support.services.schedules import operations, schedule
from support.services.sharing import services_of
from support.types.probes import PROBES
from support.waiting import eventually

HOUR = 3600.0
HOURLY = ScheduleRecord(type="noop", argument={"partitions": 0}, cron="0 * * * *", tick=HOUR / 2, request="r")
LAST = time.time() // HOUR * HOUR
"""The last full hour: calls are answered by the clock of this machine."""
LOST = [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.FULL_YET_DONE, Fault.FULL, Fault.DOWN]


@dataclass
class Clock:
    now: float = 1.5 * HOUR

    def __call__(self) -> float:
        return self.now


@dataclass
class Leader:
    """Leads table ``t`` for one epoch, and does nothing but to look at its schedules."""

    client: LossyClient
    session: LeaseSession
    keys: TableKeys
    epoch: Epoch
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.services = services_of(self.client, Work(Registry(PROBES), None), wall=self.clock)
        self.ticker = Ticker(self.services, Term(self.keys, self.epoch, self.session))

    async def add(self, name: str = "s", record: ScheduleRecord = HOURLY) -> None:
        await schedules.add_schedule(self.client, self.keys, name, record, check=lambda _: None)

    async def look(self, now: float | None = None) -> None:
        """Look until nothing is left to be decided."""
        self.clock.now = now if now is not None else self.clock.now
        self.ticker.notify()
        running = asyncio.create_task(self.ticker.run())

        async def rests() -> bool:
            if running.done():
                running.result()
            return not self.ticker.busy

        try:
            await eventually(rests)
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError, LeadershipLost):
                await running

    async def next_leader(self) -> Leader:
        await resign(self.client, self.epoch)
        epoch = await campaign(self.client, self.keys, self.session, LeaderRecord(member="next"))
        assert epoch is not None
        return replace(self, epoch=epoch)

    async def due(self) -> float | None:
        return schedules.agenda_of(await self.client.get(self.keys.agenda)).due


@pytest_asyncio.fixture
async def leader(client: LossyClient) -> AsyncIterator[Leader]:
    await make_table(client)
    keys = client.keyspace.table("t")
    async with LeaseSession(client, 10) as session:
        epoch = await campaign(client, keys, session, LeaderRecord(member="m"))
        assert epoch is not None
        # Nothing is executed here, and no operation is ever finished.
        yield Leader(client, session, keys, epoch)


@pytest.mark.parametrize("fault", LOST)
async def test_a_start_whose_reply_is_lost_happens_once(leader: Leader, fault: Fault) -> None:
    await leader.add()
    leader.client.fail(fault, when=puts(leader.keys.schedule("s")))
    await leader.look()
    assert leader.client.spent
    record = await schedule(leader.client, "s")
    assert (record.started, record.skipped, record.tick, record.operation) == (1, 0, HOUR, "t/noop/1")
    assert await operations(leader.client) == ["t/noop/1"]
    assert await leader.due() == 2 * HOUR


@pytest.mark.parametrize("fault", LOST)
async def test_a_skip_whose_reply_is_lost_is_counted_once(leader: Leader, fault: Fault) -> None:
    await leader.add()
    await begin(leader.client, kind="hooked")
    leader.client.fail(fault, when=puts(leader.keys.schedule("s")))
    await leader.look()
    record = await schedule(leader.client, "s")
    assert (record.started, record.skipped, record.tick) == (0, 1, HOUR)
    assert leader.client.spent


@pytest.mark.parametrize("fault", LOST)
async def test_the_time_of_the_next_look_survives_lost_replies(leader: Leader, fault: Fault) -> None:
    await leader.add()
    leader.client.fail(fault, when=puts(leader.keys.agenda))
    await leader.look(0.7 * HOUR)
    assert (await leader.due(), (await schedule(leader.client, "s")).started) == (HOUR, 0)


async def test_a_clock_that_jumps_back_starts_nothing_twice(leader: Leader) -> None:
    await leader.add()
    await leader.look(5.5 * HOUR)
    for now in (4.9 * HOUR, 5.0 * HOUR, 1.0, 5.99 * HOUR):
        await leader.look(now)
        assert (await schedule(leader.client, "s")).tick == 5 * HOUR
    assert await operations(leader.client) == ["t/noop/1"]
    await leader.look(6.0 * HOUR)  # the first still runs here
    assert (await schedule(leader.client, "s")).skipped == 1


@pytest.mark.parametrize(
    ("day", "hours", "started"),
    [
        ("2026-03-29T00:00+01:00", 23, "2026-03-29T03:00+02:00"),
        ("2026-10-25T00:00+02:00", 25, "2026-10-25T02:30+02:00"),
    ],
)
async def test_a_time_in_a_missing_or_repeated_hour_starts_once(
    leader: Leader, day: str, hours: int, started: str
) -> None:
    """The leader looks every half hour, the clock of Berlin jumps over half past two or shows it twice."""
    begin = datetime.fromisoformat(day).timestamp()
    nightly = msgspec.structs.replace(HOURLY, cron="30 2 * * *", timezone="Europe/Berlin", tick=begin)
    await leader.add("s", nightly)
    for half in range(12):
        await leader.look(begin + half * HOUR / 2)
    record = await schedule(leader.client, "s")
    assert (record.started, record.skipped) == (1, 0)
    assert record.last == datetime.fromisoformat(started).timestamp()
    assert await leader.due() == begin + hours * HOUR + 2.5 * HOUR


async def test_templates_are_rendered_with_the_scheduled_time(leader: Leader) -> None:
    """A10: however late it is started. Braces in a schedule of layout 1 (release 0.2.0) are braces."""
    asked = {"partitions": 0, "word": "{{ tick | date('%j %H:%M') }}"}
    berlin = msgspec.structs.replace(HOURLY, version=2, argument=asked, timezone="Europe/Berlin", request="b")
    await leader.add("a", msgspec.structs.replace(berlin, type="friend"))
    await leader.add("b", msgspec.structs.replace(HOURLY, type="friendly", argument=asked))
    await leader.look(5.9 * HOUR)
    words = {}
    for name in await operations(leader.client):
        key = leader.keys.operation(OperationId.parse(name)).arg
        arg = decode((await leader.client.get(key)).value, OperationArg)
        words[arg.schedule] = json.loads(arg.asked)["word"]
    assert words == {"a": "001 06:00", "b": asked["word"]}


async def test_a_time_waits_for_the_watermark_of_another_table(leader: Leader) -> None:
    """Level-triggered: it is read when the leader looks. A time that comes meanwhile waits instead."""
    after = After(table="x", source="s", partition="p", value="{{ tick | date('%H') }}")
    await leader.add("s", msgspec.structs.replace(HOURLY, version=2, after=after))
    agenda = leader.keys.agenda
    for hour, moved in ((1.5, None), (2.5, "01"), (2.7, "1")):
        at = await watermark(leader.client, "x", moved)
        await leader.look(hour * HOUR)
        left = decode((await leader.client.get(agenda)).value, AgendaRecord)
        assert (left.due, left.marks) == ((int(hour) + 1) * HOUR, {"x": at}), "the next time, or sooner"
    assert await operations(leader.client) == []
    await watermark(leader.client, "x", "2")
    await asyncio.gather(leader.look(2.8 * HOUR), replace(leader).look(2.8 * HOUR))
    record = await schedule(leader.client, "s")
    assert (record.started, record.skipped, record.tick) == (1, 0, 2 * HOUR)
    assert decode((await leader.client.get(agenda)).value, AgendaRecord).marks == {}


async def test_a_condition_on_a_watermark_starts_once_for_each_value(leader: Leader) -> None:
    """Not for other changes of the table's watermarks; and later, if something is in the way."""
    after = After(table="x", source="s", partition="p", value="9")
    await leader.add("s", ScheduleRecord(type="noop", argument={"partitions": 0}, after=after, request="r"))

    async def looked(value: str) -> tuple[int, int]:
        at = await watermark(leader.client, "x", value)
        await leader.look()
        assert decode((await leader.client.get(leader.keys.agenda)).value, AgendaRecord).marks == {"x": at}
        record = await schedule(leader.client, "s")
        return record.started, record.skipped

    assert [await looked(value) for value in ("8", "9", "9")] == [(0, 0), (1, 0), (1, 0)]
    # The first still runs here. It is looked at again after a minute, and counted once.
    assert [await looked("10") for _ in range(2)] == [(1, 1), (1, 1)]
    assert await leader.due() == leader.clock.now + AGAIN_S
    await leader.client.delete(leader.keys.run_ops)
    assert [await looked(value) for value in ("10", "10", "12")] == [(2, 1), (2, 1), (2, 2)]


async def watermark(client: LossyClient, table: str, value: str | None) -> int:
    """Sets the one of ``s/p``, and makes its table; returns the revision. ``None``: there is no table yet."""
    keys = client.keyspace.table(table)
    if value is None:
        return 0
    await make_table(client, table)
    marks = encode_plain({"s": {"p": value}, "other": {"p": str(random.random())}})
    return (await client.txn(Txn(then=(Put(keys.watermarks, marks),)))).revision


async def test_a_leader_that_was_replaced_starts_nothing(leader: Leader) -> None:
    """Also one that had looked, and was halted before it sent anything."""
    await leader.add()
    before = await leader.ticker._read()
    following = await leader.next_leader()
    with pytest.raises(LeadershipLost):
        await leader.look()
    assert await operations(leader.client) == []
    await following.look()
    assert await operations(leader.client) == ["t/noop/1"]
    kv, record = before.schedules["s"]
    tick = leader.ticker
    with pytest.raises(LeadershipLost):
        await tick._rest(before, {}, leader.clock.now, waiting=False)
    assert (await leader.client.get(kv.key)).mod_revision > kv.mod_revision
    assert (await schedule(leader.client, "s")).started == record.started + 1


async def test_a_look_that_meets_defects_is_repeated(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """O24: it does not end the leadership, which would begin again and again."""

    def broken(*_: object) -> None:
        monkeypatch.undo()
        raise ZeroDivisionError

    monkeypatch.setattr(ticking, "due_tick", broken)
    await leader.add()
    await leader.look()
    assert await operations(leader.client) == ["t/noop/1"]


async def test_a_schedule_that_changes_meanwhile_is_not_started(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody pauses the schedule between the look and the start."""
    await leader.add()
    plan = Planner.plan

    async def slowly(*args: object, **options: object) -> object:
        monkeypatch.undo()
        pause = PauseRecord(by="jane")
        await schedules.change_schedule(
            leader.client,
            leader.keys,
            "s",
            lambda record: msgspec.structs.replace(record, pause=pause),
            request="p",
        )
        return await plan(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Planner, "plan", slowly)
    await leader.look()
    assert await operations(leader.client) == []
    assert (await schedule(leader.client, "s")).pause is not None


async def test_a_condition_that_could_not_be_planned_for_long_starts_once_it_can(
    leader: Leader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long its condition has held by then; the log has the trace of what was raised meanwhile."""
    files = msgspec.structs.replace(HOURLY, cron="", measure="small_files", above=1)
    await leader.add("s", files)
    await leader.client.txn(Txn(then=(Put(leader.keys.head, encode(Head(metadata_location="m"))),)))
    monkeypatch.setattr(ticking, "measured", lambda table, head: {"small_files": 2})
    plan, tries = Planner.plan, list[object]()

    async def fails(*args: object, **options: object) -> object:
        tries.append(args)
        raise OSError("the storage is away")

    monkeypatch.setattr(Planner, "plan", fails)
    await leader.look()
    assert ((await schedule(leader.client, "s")).skipped, len(tries)) == (1, 2)
    assert traced(caplog, "schedule_skipped") is OSError
    monkeypatch.setattr(Planner, "plan", plan)
    await leader.look()
    assert await operations(leader.client) == ["t/noop/1"]


def service_of(leader: Leader, client: LossyClient) -> ScheduleService:
    services = replace(leader.services, client=client, caches=LeaderCaches())
    return ScheduleService(services, OperationService(services, Following(client), asyncio.Event()))


async def made_up(leader: Leader, call: str, client: LossyClient | None = None) -> pb.Operation:
    """The answer to a call that makes up for the last hour of schedule ``s``."""
    tick = datetime.fromtimestamp(LAST, UTC).isoformat()
    request = pb.RunScheduleRequest(table="t", name="s", tick=tick, call_id=call)
    context = cast("grpc.aio.ServicerContext[Any, Any]", SimpleNamespace(time_remaining=lambda: 60.0))
    return await service_of(leader, client or leader.client).RunSchedule(request, context)


async def hourly(leader: Leader) -> None:
    await leader.add("s", msgspec.structs.replace(HOURLY, tick=LAST - HOUR / 2, request="a" * 64))


@pytest.mark.parametrize("first", ["the leader", "a call", "both"])
async def test_a_time_is_started_once_by_its_schedule_and_calls(leader: Leader, first: str) -> None:
    """O7: with a call of each after it, and a leader that was killed before it wrote what it did."""
    await hourly(leader)
    if first != "a call":
        leader.client.fail(
            Fault.LOST_REQUEST if first == "both" else Fault.LOST_REPLY, when=puts(leader.keys.run_ops)
        )
    if first == "both":
        await asyncio.gather(leader.look(LAST + 1.0), made_up(leader, "one"), made_up(leader, "two"))
    elif first == "a call":
        await made_up(leader, "one")
        await leader.look(LAST + 1.0)
    else:
        await leader.look(LAST + 1.0)
    following = await leader.next_leader()
    await following.look(LAST + 2.0)
    assert (await made_up(leader, "three")).name == "t/noop/1"
    assert await operations(leader.client) == ["t/noop/1"]
    record = await schedule(leader.client, "s")
    assert (record.tick, record.started + record.skipped) == (LAST, 1)


async def test_a_late_copy_of_a_made_up_start_starts_nothing(leader: Leader, etcd_config: EtcdConfig) -> None:
    """It comes when the operation is over, and the schedule is gone."""
    await hourly(leader)
    lossy = LossyClient(etcd_config)
    assert (await made_up(leader, "one", lossy)).name == "t/noop/1"
    (copy,) = [txn for txn in lossy.sent if puts(leader.keys.run_ops)(txn)]
    await leader.client.delete(leader.keys.run_ops)
    await schedules.remove_schedule(leader.client, leader.keys, "s", request="gone")
    assert not (await lossy.txn(copy)).succeeded
    with pytest.raises(ScheduleNotFound):
        await made_up(leader, "one")
    await lossy.close()


async def test_a_late_copy_of_its_addition_brings_no_removed_schedule_back(leader: Leader) -> None:
    """Each change writes what the addition compares."""
    await leader.add()
    (copy,) = [txn for txn in leader.client.sent if puts(leader.keys.schedule("s"))(txn)]
    await schedules.remove_schedule(leader.client, leader.keys, "s", request="gone")
    assert not (await leader.client.txn(copy)).succeeded
    assert (await schedules.read_schedules(leader.client, leader.keys))[0] == {}


async def test_schedules_of_a_table_that_is_gone_are_forgotten(leader: Leader) -> None:
    await leader.add()
    await leader.client.delete(leader.keys.table)
    await leader.look()
    assert not (await leader.client.get(leader.keys.agenda)).exists
    assert await operations(leader.client) == []


async def test_a_schedule_of_a_newer_version_is_left_alone_and_others_go_on(leader: Leader) -> None:
    await leader.add()
    newer = Put(leader.keys.schedule("n"), b'{"version": 99, "type": ["a", "b"]}')
    await leader.client.txn(Txn(then=(newer,)))
    await leader.look()
    assert await operations(leader.client) == ["t/noop/1"]
    assert (await leader.client.get(leader.keys.schedule("n"))).value == newer.value
    # Its time may come first: whoever leads then is to look, also after an upgrade.
    assert await leader.due() == leader.clock.now + AGAIN_S
    told = Put(leader.keys.agenda, b'{"version": 99, "due": 0}')
    await leader.client.txn(Txn(then=(told,)))
    await leader.look(2.5 * HOUR)
    assert (await leader.client.get(leader.keys.agenda)).value == told.value


async def test_several_that_are_due_are_all_started_or_skipped(leader: Leader) -> None:
    friendly = msgspec.structs.replace(HOURLY, type="friendly")
    await leader.add("a", msgspec.structs.replace(friendly, request="a", type="friend"))
    await leader.add("b", msgspec.structs.replace(friendly, request="b"))
    await leader.add("c", msgspec.structs.replace(friendly, request="c", type="hooked"))
    await leader.look()
    assert await operations(leader.client) == ["t/friend/1", "t/friendly/1"]
    assert (await schedule(leader.client, "c")).skipped == 1
    operation = OperationId.parse((await schedule(leader.client, "a")).operation)
    arg = decode((await leader.client.get(leader.keys.operation(operation).arg)).value, OperationArg)
    assert (arg.schedule, arg.run.startswith("schedule.a.")) == ("a", True)


@pytest.mark.parametrize("fault", LOST[:3])
async def test_a_change_whose_reply_is_lost_is_made_once(leader: Leader, fault: Fault) -> None:
    """A repeat of a call, at another coordinator, finds that it was done."""
    keys, client = leader.keys, leader.client
    client.fail(fault, when=puts(keys.schedule("s")))
    await leader.add()
    await leader.add()
    client.fail(fault)
    await schedules.remove_schedule(client, keys, "s", request="gone")
    assert client.spent
    assert await schedules.remove_schedule(client, keys, "s", request="gone") is None
    await leader.add()  # a late copy of the call that had added it
    assert (await schedules.read_schedules(client, keys))[0] == {}
