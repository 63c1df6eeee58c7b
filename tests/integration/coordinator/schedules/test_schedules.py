"""What is done to a table by itself: added, started once, skipped, made up for, and listed."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.client import AsyncClient, OperationState
from distop.coordinator.schedules import due, timekeeping
from distop.errors import DistopError, ScheduleExists, ScheduleNotFound, TableNotFound, TablePaused
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.metastore.records.record import decode, encode
from distop.metastore.tables.schedules import MAX_SCHEDULE_BYTES, MAX_SCHEDULES, AgendaRecord, agenda_of
from distop.process.secret import MASK
from support.etcd.jobs import mark, mark_all
from support.etcd.lossy import LossyClient
from support.services.coordinators import config_of, leader_of, running
from support.services.schedules import YEARLY, at_rest, backdate, operations, schedule
from support.tables.catalogs import SCHEMA, ids
from support.tables.nowhere import nowhere
from support.waiting import eventually

NOTHING = {"partitions": 0}


async def test_a_schedule_is_added_paused_resumed_and_removed(sdk: AsyncClient, client: LossyClient) -> None:
    """U2, S6: with who did what in the audit trail."""
    added = await sdk.table("t").add_schedule("b", "noop", NOTHING, cron=" 30  3 1 1 * ")
    assert (added.cron, added.argument, added.started, added.last_at) == (YEARLY, NOTHING, 0, None)
    assert added.next_at is not None
    assert (added.next_at.month, added.next_at.day, added.next_at.hour) == (1, 1, 3)
    await sdk.table("t").add_schedule("a", "compact", when="small_files>200")
    whens = {one.name: one.when for one in await sdk.table("t").schedules()}
    assert whens == {"a": "small_files > 200", "b": ""}
    paused = await sdk.table("t").pause_schedule("b", "holidays")
    assert paused.pause is not None
    assert (paused.pause.reason, paused.next_at) == ("holidays", None)
    assert (await sdk.table("t").pause_schedule("b", "again")).pause == paused.pause
    resumed = await sdk.table("t").resume_schedule("b")
    assert (resumed.pause, resumed.next_at) == (None, added.next_at)
    await sdk.table("t").remove_schedule("a")
    with pytest.raises(ScheduleNotFound):
        await sdk.table("t").remove_schedule("a")
    await sdk.table("t").remove_schedule("b", "not needed")
    assert await sdk.table("t").schedules() == []
    trail = [(entry.action, entry.target, entry.reason) async for entry in sdk.audit("t")]
    assert trail[:5] == [
        ("remove-schedule", "b", "not needed"),
        ("remove-schedule", "a", ""),
        ("resume-schedule", "b", ""),
        ("pause-schedule", "b", "holidays"),
        ("add-schedule", "a", ""),
    ]
    assert await eventually(lambda: at_rest(client))


async def test_an_unreadable_schedule_is_listed_as_such(sdk: AsyncClient, client: LossyClient) -> None:
    """U2: a record of a newer version, as may exist during an upgrade; the other schedules are shown."""
    await sdk.table("t").add_schedule("b", "noop", NOTHING, cron=YEARLY)
    await client.put(client.keyspace.table("t").schedule("a"), b'{"version": 99}')
    newer, known = await sdk.table("t").schedules()
    assert (newer.name, newer.type, known.name, known.cron) == ("a", "", "b", YEARLY)
    assert newer.skip is not None
    assert (newer.skip.code, known.skip) == ("CORRUPT_RECORD", None)


async def of_another_release(client: LossyClient, name: str) -> None:
    """Its cron expression has a form that this version does not know."""
    record = msgspec.structs.replace(await schedule(client, name), cron="@daily 1 2 3 4")
    await client.put(client.keyspace.table("t").schedule(name), encode(record))


async def test_a_schedule_of_unknown_times_can_be_removed(sdk: AsyncClient, client: LossyClient) -> None:
    """U1: what is known of it is shown, and why there is no next time."""
    for name in ("a", "b"):
        await sdk.table("t").add_schedule(name, "noop", NOTHING, cron=YEARLY)
    await of_another_release(client, "a")
    unknown, known = await sdk.table("t").schedules()
    assert (unknown.cron, unknown.next_at, unknown.skipped_at) == ("@daily 1 2 3 4", None, None)
    assert unknown.skip is not None
    assert (unknown.skip.code, known.skip) == ("CORRUPT_RECORD", None)
    assert (await sdk.table("t").pause_schedule("a")).pause is not None
    await sdk.table("t").remove_schedule("a")
    assert [one.name for one in await sdk.table("t").schedules()] == ["b"]


async def test_nonsense_is_refused_and_leaves_nothing(sdk: AsyncClient, client: LossyClient) -> None:
    """U3."""
    await sdk.create_table("f", nowhere(), format="files")
    before = (await client.scan(client.keyspace.prefix, keys_only=True)).kvs

    async def refused(code: str, table: str = "t", name: str = "n", kind: str = "noop", **given: Any) -> None:
        with pytest.raises(DistopError) as error:
            await sdk.table(table).add_schedule(name, kind, **{"cron": YEARLY} | given)
        assert error.value.code == code, error.value

    await refused("TABLE_NOT_FOUND", table="no")
    await refused("UNKNOWN_OPERATION_TYPE", kind="no_such_type")
    await refused("INVALID_NAME", name="")
    await refused("INVALID_NAME", name="a\u200bb")
    await refused("INVALID_NAME", name="n" * 101)
    await refused("INVALID_ARGUMENT", cron="* * * *")
    await refused("INVALID_ARGUMENT", cron="0 0 30 2 *")
    await refused("INVALID_ARGUMENT", timezone="Berlin")
    await refused("INVALID_ARGUMENT", argument={"paths": ["{{ tock | date }}"]})
    await refused("INVALID_ARGUMENT", cron="", when="files > 3")
    await refused("INVALID_ARGUMENT", cron="", when="small_files > -1")
    await refused("INVALID_ARGUMENT", cron="")
    await refused("INVALID_ARGUMENT", when="small_files > 1")
    await refused("TABLE_NOT_FOUND", when="watermark(no, s, p) >= 1")
    await refused("INVALID_ARGUMENT", when="watermark(t, s, p) > 1")
    await refused("INVALID_ARGUMENT", when="watermark(t, s, {{ tock }}) >= 1")
    await refused("INVALID_ARGUMENT", kind="per_object")
    await refused("INVALID_ARGUMENT", object="x")
    await refused("INVALID_ARGUMENT", kind="ingest_dataframe")
    await refused("PRECONDITION_FAILED", table="f", cron="", when="data_files > 3")
    await refused("ARGUMENT_TOO_LARGE", argument={"x": "y" * MAX_SCHEDULE_BYTES})
    with pytest.raises(TableNotFound):
        await sdk.table("no").schedules()
    with pytest.raises(ScheduleNotFound):
        await sdk.table("t").pause_schedule("no")
    after = (await client.scan(client.keyspace.prefix, keys_only=True)).kvs
    assert [kv.key for kv in after] == [kv.key for kv in before]


async def test_an_id_of_another_request_is_no_repeat(sdk: AsyncClient) -> None:
    """O7: the reply never claims an action that was not executed."""

    async def asked(method: str, name: str, **fields: str) -> None:
        await sdk._call(method, table="t", name=name, call_id="mine", **fields)

    async def add(name: str, argument: str = "{}") -> None:
        await asked("AddSchedule", name, type="noop", cron=YEARLY, argument_json=argument)

    for _ in range(2):
        await add("a")
    await add("b")
    assert [one.name for one in await sdk.table("t").schedules()] == ["a", "b"]
    with pytest.raises(ScheduleExists):
        await add("b", '{"partitions": 1}')
    for action in ("pause", "pause", "resume"):
        await asked("ControlSchedule", "a", action=action)
    assert [one.pause for one in await sdk.table("t").schedules()] == [None, None]
    for _ in range(2):
        await asked("ControlSchedule", "a", action="remove")
    assert [one.name for one in await sdk.table("t").schedules()] == ["b"]


async def test_a_schedule_shows_readers_no_secret(sdk: AsyncClient) -> None:
    """S5."""
    asked = {"partitions": 0, "password": "hunter2"}
    added = await sdk.table("t").add_schedule("a", "noop", asked, cron=YEARLY)
    (listed,) = await sdk.table("t").schedules()
    assert added.argument == listed.argument
    assert (listed.argument["partitions"], listed.argument["password"]) == (0, MASK)


async def test_a_table_has_so_many_and_no_more(sdk: AsyncClient) -> None:
    for number in range(MAX_SCHEDULES):
        await sdk.table("t").add_schedule(f"s{number}", "noop", cron=YEARLY)
    with pytest.raises(DistopError, match="the limit") as error:
        await sdk.table("t").add_schedule("another", "noop", cron=YEARLY)
    assert error.value.code == "PRECONDITION_FAILED"
    with pytest.raises(ScheduleExists):
        await sdk.table("t").add_schedule("s7", "noop", cron=YEARLY)
    await sdk.table("t").remove_schedule("s7")
    await sdk.table("t").add_schedule("another", "noop", cron=YEARLY)
    assert len(await sdk.table("t").schedules()) == MAX_SCHEDULES


async def test_missed_times_of_a_schedule_are_made_up_for_once(sdk: AsyncClient, client: LossyClient) -> None:
    """Two years have passed."""
    await sdk.table("t").add_schedule("s", "noop", NOTHING, cron=YEARLY)
    await backdate(client, "s")

    async def made_up() -> bool:
        return (await schedule(client, "s")).started == 1 and await at_rest(client)

    assert await eventually(made_up)
    [operation] = await operations(client)
    assert (await sdk.operation(operation).wait()).state is OperationState.SUCCEEDED
    [shown] = await sdk.table("t").schedules()
    assert (shown.operation, shown.skipped, shown.skip) == (operation, 0, None)
    assert shown.last_at is not None
    assert shown.next_at is not None
    assert (shown.next_at - shown.last_at).days in (365, 366)
    assert (shown.last_at.month, shown.last_at.day, shown.last_at.hour) == (1, 1, 3)
    trail = [entry async for entry in sdk.audit("t") if entry.action == "start"]
    assert [(entry.target, entry.reason) for entry in trail] == [(operation, "schedule s")]
    assert (await sdk.operation(operation).get()).started_by == sdk.identity


async def test_what_keeps_a_schedule_from_starting_is_shown_and_counted(
    sdk: AsyncClient, client: LossyClient
) -> None:
    """The previous operation, another one, a pause, and an invalid argument."""
    await sdk.table("t").add_schedule("s", "noop", {"partitions": 1}, cron=YEARLY)

    async def skipped(count: int, code: str, message: str) -> None:
        await backdate(client, "s")
        await eventually(lambda: sdk.table("t").schedules(), holds=lambda found: found[0].skipped == count)
        [shown] = await sdk.table("t").schedules()
        assert shown.skip is not None
        assert shown.skipped_at is not None
        assert (shown.skip.code, message in shown.skip.message) == (code, True), shown.skip

    await backdate(client, "s")
    assert await eventually(lambda: operations(client)) == ["t/noop/1"]
    await skipped(1, "INCOMPATIBLE_OPERATION", "its last operation, t/noop/1, is running")
    await mark(client, OperationId.parse("t/noop/1"), "0")
    await sdk.operation("t/noop/1").wait()
    other = await sdk.start("t", "friend", {"partitions": 1})
    await skipped(2, "INCOMPATIBLE_OPERATION", f"{other.name} is running")
    await other.cancel()
    await other.wait()
    await sdk.table("t").pause("new disks")
    await skipped(3, "TABLE_PAUSED", "new disks")
    await sdk.table("t").resume()
    await sdk.table("t").remove_schedule("s")
    await sdk.table("t").add_schedule("s", "noop", {"partitions": "many"}, cron=YEARLY)
    await skipped(1, "INVALID_ARGUMENT", "partitions")
    assert await eventually(lambda: at_rest(client))
    assert await operations(client) == ["t/friend/1", "t/noop/1"]


async def test_a_skipped_time_is_made_up_for_by_command(sdk: AsyncClient, client: LossyClient) -> None:
    """U2, O7: with the argument for that time; it is answered with its operation from then on."""
    at = (datetime.now(UTC) - timedelta(days=1)).replace(second=0, microsecond=0)
    local = at.astimezone(ZoneInfo("Asia/Kolkata"))
    cron, tick = f"{local:%M %H %d %m} *", f"{local:%Y-%m-%dT%H:%M}"
    asked = {"partitions": 1, "day": "{{ tick | date('%d') }}"}
    await sdk.table("t").add_schedule("s", "friend", asked, cron=cron, timezone="Asia/Kolkata")
    await sdk.table("t").pause("new disks")
    await backdate(client, "s", anew=False)
    await eventually(lambda: schedule(client, "s"), holds=lambda found: found.skipped == 1)
    with pytest.raises(TablePaused):
        await sdk.table("t").run_schedule("s", tick)
    await sdk.table("t").resume()
    started = await sdk.table("t").run_schedule("s", tick)
    assert (started.name, started.started.found) == ("t/friend/1", False)
    assert started.started.argument["day"] == f"{local:%d}"
    again = await sdk.table("t").run_schedule("s", at)
    assert (again.name, again.started.found) == ("t/friend/1", True)
    await sdk.operation("t/friend/1").cancel()
    await sdk.operation("t/friend/1").wait()
    retried = await sdk.table("t").run_schedule("s", at)
    assert (retried.name, retried.started.retry_of) == ("t/friend/2", "t/friend/1")
    await mark(client, OperationId.parse("t/friend/2"), "0")
    await sdk.operation("t/friend/2").wait()
    # Also by the schedule: its clock may have been set back.
    await backdate(client, "s", anew=False)
    await eventually(lambda: schedule(client, "s"), holds=lambda found: found.skipped == 2)
    [shown] = await sdk.table("t").schedules()
    assert shown.skip is not None
    assert (shown.skip.code, "t/friend/2" in shown.skip.message) == ("RUN_REUSED", True)
    trail = [entry async for entry in sdk.audit("t") if entry.action == "start"]
    assert [(entry.target, entry.reason) for entry in trail] == [
        ("t/friend/2", "schedule s"),
        ("t/friend/1", "schedule s"),
    ]


async def test_only_a_time_that_has_passed_is_made_up_for(sdk: AsyncClient) -> None:
    """U3."""
    await sdk.create_table("x", nowhere())
    await sdk.table("t").add_schedule("s", "noop", NOTHING, cron="0 * * * *")
    await sdk.table("t").add_schedule("c", "noop", NOTHING, when="watermark(x, s, p) >= 1")
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)

    async def refused(code: str, name: str, tick: datetime | str) -> None:
        with pytest.raises(DistopError) as error:
            await sdk.table("t").run_schedule(name, tick)
        assert error.value.code == code, error.value

    await refused("SCHEDULE_NOT_FOUND", "no", hour)
    await refused("PRECONDITION_FAILED", "c", hour)
    await refused("INVALID_ARGUMENT", "s", "yesterday")
    await refused("INVALID_ARGUMENT", "s", "")
    await refused("INVALID_ARGUMENT", "s", hour - timedelta(minutes=1))
    await refused("INVALID_ARGUMENT", "s", hour - timedelta(microseconds=1))
    await refused("PRECONDITION_FAILED", "s", hour + timedelta(hours=2))
    await refused("PRECONDITION_FAILED", "s", hour - timedelta(days=6, hours=1))
    await refused("PRECONDITION_FAILED", "s", "0001-01-01T00:00+23:00")
    await refused("PRECONDITION_FAILED", "s", "9999-12-31T23:00-23:00")


async def test_a_paused_schedule_starts_nothing_then_or_later(sdk: AsyncClient, client: LossyClient) -> None:
    await sdk.table("t").add_schedule("s", "noop", NOTHING, cron=YEARLY)
    await sdk.table("t").add_schedule("other", "noop", NOTHING, cron=YEARLY)
    await sdk.table("t").pause_schedule("s")
    await backdate(client, "s")
    await backdate(client, "other")
    await eventually(lambda: schedule(client, "other"), holds=lambda found: found.started == 1)
    await sdk.table("t").resume_schedule("s")
    assert await eventually(lambda: at_rest(client))
    assert (await schedule(client, "s")).started == 0
    await sdk.table("t").pause_schedule("other")
    resumed = await sdk.table("t").resume_schedule("other")
    assert resumed.last_at is not None, "what was decided last, not when it was resumed"
    assert (resumed.last_at.month, resumed.last_at.day, resumed.last_at.hour) == (1, 1, 3)


async def test_a_table_whose_schedules_rest_has_no_leader(
    etcd_config: EtcdConfig, client: LossyClient
) -> None:
    """O24: schedules cost what they start."""
    async with (
        running(config_of(etcd_config, linger_s=0.1)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as sdk,
    ):
        await sdk.create_table("t", nowhere())
        await sdk.table("t").add_schedule("s", "noop", NOTHING, cron=YEARLY)
        await sdk.table("t").add_schedule("c", "noop", NOTHING, when="data_files > 3")

        async def is_left_alone() -> bool:
            return await at_rest(client) and not await leader_of(client, "t")

        assert await eventually(is_left_alone)


async def test_tables_with_one_time_are_looked_at_a_few_at_once(
    client: LossyClient, etcd_config: EtcdConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No unbounded burst of elections and plans; all get their turn, also when who leads them has changed."""
    monkeypatch.setattr(timekeeping, "AT_ONCE", 2)
    tables = [f"t{number}" for number in range(9)]

    async def started() -> set[int]:
        return {(await schedule(client, "s", table)).started for table in tables}

    async with running(config_of(etcd_config)) as first, AsyncClient(first.address, timeout_s=60) as sdk:
        for table in tables:
            await sdk.create_table(table, nowhere())
            await sdk.table(table).add_schedule("s", "noop", NOTHING, cron=YEARLY)
        # Half of the tables are the other's as soon as it comes.
        async with running(config_of(etcd_config)):
            for table in tables:
                await backdate(client, "s", table)
            await eventually(started, 90, holds=lambda counts: counts == {1})
        for table in tables:
            await backdate(client, "s", table)
        await eventually(started, 90, holds=lambda counts: counts == {2})
    for table in tables:
        assert await operations(client, table) == [f"{table}/noop/1", f"{table}/noop/2"]


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timekeeping, "HEADS_EVERY_S", 0.05)
    monkeypatch.setattr(due, "AGAIN_S", 0.1)
    monkeypatch.setattr(timekeeping, "AGAIN_S", 0.1)


async def test_a_condition_is_looked_at_when_the_head_has_moved(
    quick_looks: None, client: LossyClient, sdk: AsyncClient, python: EtcdCatalog
) -> None:
    """Any program may move it, here one of pyiceberg. Once for each head; after incompatible operations."""
    python.create_namespace_if_not_exists("default")
    table = python.create_table("default.c", SCHEMA)
    await sdk.table("c").add_schedule("s", "noop", NOTHING, when="data_files > 2")
    table.append(ids(0, 3))
    table.append(ids(3, 3))

    async def looked() -> bool:
        head = await client.get(client.keyspace.table("c").head)
        told = decode((await client.get(client.keyspace.table("c").agenda)).value, AgendaRecord)
        return told.due is None and told.head == head.mod_revision

    assert await eventually(looked)
    assert await operations(client, "c") == []
    await sdk.table("c").pause("a moment")
    table.append(ids(6, 3))
    await eventually(lambda: schedule(client, "s", "c"), holds=lambda one: one.skipped == 1)
    await sdk.table("c").resume()
    done = await eventually(lambda: schedule(client, "s", "c"), holds=lambda one: one.started == 1)
    assert done.skipped == 1
    await sdk.operation("c/noop/1").wait()
    table.append(ids(9, 3))

    async def again() -> bool:
        return (await schedule(client, "s", "c")).started == 2 and await looked()

    assert await eventually(again)
    assert await operations(client, "c") == ["c/noop/1", "c/noop/2"]


async def test_a_table_follows_the_watermarks_of_another(
    quick_looks: None, sdk: AsyncClient, client: LossyClient
) -> None:
    """What it waits for is shown; no leader is needed for the wait."""
    await sdk.create_table("x", nowhere())
    await sdk.table("t").add_schedule(
        "s", "noop", NOTHING, cron=YEARLY, when="watermark(x, s, p) >= {{ tick | date }}"
    )
    await backdate(client, "s")

    async def waits() -> bool:
        agenda = agenda_of(await client.get(client.keyspace.table("t").agenda))
        return agenda.marks == {"x": 0} and await at_rest(client)

    assert await eventually(waits)
    [shown] = await sdk.table("t").schedules()
    assert (shown.cron, shown.when) == (YEARLY, "watermark(x, s, p) >= {{ tick | date }}")
    assert shown.next_at is not None
    assert shown.next_at < datetime.now(UTC), "the time that waits"
    await sdk.table("x").set_watermark("s", "p", "2999-01-01")
    await eventually(lambda: schedule(client, "s"), holds=lambda found: found.started == 1)
    assert await operations(client) == ["t/noop/1"]


async def test_a_schedule_of_unknown_times_holds_up_nothing(sdk: AsyncClient, client: LossyClient) -> None:
    """U1: such as one of another release. The other schedules of the table start, and its operations end."""
    await sdk.table("t").add_schedule("known", "noop", NOTHING, cron=YEARLY)
    await sdk.table("t").add_schedule("unknown", "noop", NOTHING, cron=YEARLY)
    await of_another_release(client, "unknown")
    await backdate(client, "known")
    assert await eventually(lambda: operations(client))
    operation = await sdk.start("t", "noop", {"partitions": 1}, queue=True)
    await mark_all(client, OperationId.parse(operation.name), ["0"])
    assert (await operation.wait(timeout_s=60)).state is OperationState.SUCCEEDED
