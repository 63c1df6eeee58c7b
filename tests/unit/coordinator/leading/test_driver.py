"""When the leader of a table looks again, and what becomes of an action that fails."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from distop.coordinator.completion.attempts import Parking
from distop.coordinator.completion.completion import Completion
from distop.coordinator.leading import leadership
from distop.coordinator.leading.driver import DrivenOperation, TableDriver
from distop.coordinator.leading.leadership import Leadership
from distop.coordinator.starting.services import Term
from distop.coordinator.state.tracker import Tracked
from distop.errors import Busy, CallTimeout, DistopError, LeadershipLost, OperationPaused
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.members.lease import Epoch
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.operation import COMMITTING, RUNNING, CompletionRecord, OperationArg
from distop.operations.registry import Registry
from support.services.sharing import services_of

KEYS = Keyspace().table("t")


def driver_of(client: Any, epoch: Any = None, session: Any = None, **others: Any) -> TableDriver:
    """The leader of the table, with operations of no type."""
    services = services_of(client, Mock(registry=Registry(())), **others)
    term = Term(KEYS, epoch or Mock(), session or Mock())
    return TableDriver(services, term, Completion(services))


@pytest.mark.parametrize("timer", ["deadline", "back-off"])
def test_a_timer_that_becomes_due_between_acting_and_waiting_is_waited_for(timer: str) -> None:
    """O18, O20: the next look would be as far away as the end of a lease."""
    now = 4.999
    driver = driver_of(Mock(), session=Mock(ttl_s=10), clock=lambda: now)
    arg = OperationArg(table="t", type="noop", instance=1, partition_count=1)
    slot = DrivenOperation(
        Tracked(KEYS.operation(arg.id), arg), deadline=5.0 if timer == "deadline" else None
    )
    slot.tracked.set_state(RUNNING, 1)
    slot.not_before = 5.0 if timer == "back-off" else 0.0
    driver._slots[slot.tracked.keys.root] = slot
    acted_at = driver._act()
    assert slot.task is None
    assert driver._next_due(acted_at) == pytest.approx(0.001)
    now = 5.001
    assert driver._next_due(acted_at) == 0.0


async def reaped(failures: int, error: DistopError) -> DrivenOperation:
    """An operation whose action has failed so often before, and once more at 7.0."""
    keys, arg = Keyspace("p").table("t"), OperationArg(table="t", type="noop", instance=1)
    driver = driver_of(Mock())
    slot = DrivenOperation(Tracked(keys.operation(arg.id), arg), None)
    slot.failures = failures

    async def fails() -> None:
        raise error

    slot.task = asyncio.create_task(fails())
    await asyncio.wait({slot.task})
    driver._reap(slot, 7.0)
    return slot


async def test_an_action_that_has_failed_for_days_is_tried_again() -> None:
    """O18: at the longest interval, however many failures there were."""
    slot = await reaped(100_000, CallTimeout("sweeping has taken longer than 600 s"))
    assert (slot.failures, slot.not_before) == (100_001, 7.0 + 30.0)


@pytest.mark.parametrize(
    ("before", "last"),
    [
        (CompletionRecord(attempts=9, since=1.0, next_at=1800.0), False),
        (CompletionRecord(attempts=9, since=1.0, next_at=1801.0), True),
        (CompletionRecord(attempts=4), False),
    ],
)
def test_an_attempt_that_was_missed_is_made_up_for(before: CompletionRecord, last: bool) -> None:
    """O18: all hosts have slept for a day. A record of release 0.2.0 says nothing of times."""
    arg = OperationArg(table="t", type="noop", instance=1)
    tracked = Tracked(KEYS.operation(arg.id), arg, COMMITTING, completion=before)
    parking = Parking(services_of(Mock(), Mock(registry=Registry(())), wall=lambda: 86_400.0))
    assert parking.gives_up(tracked) is last


async def test_a_seal_is_not_sent_all_the_time_while_a_pause_is_in_no_index() -> None:
    """O21: somebody has removed the entry by hand, and nothing else says that it is paused."""
    pauses = [
        (await reaped(failures, OperationPaused("it is paused"))).not_before - 7.0 for failures in (0, 5, 50)
    ]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0


async def test_an_etcd_that_has_too_much_to_do_ends_no_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    """O27: an election for each table would be more to do."""
    monkeypatch.setattr("distop.coordinator.leading.driver.CHECK_STATES_S", 0.0)
    driver = driver_of(Mock())
    arg = OperationArg(table="t", type="noop", instance=1)
    driver._slots[b"t"] = DrivenOperation(Tracked(KEYS.operation(arg.id), arg), None)
    reading = AsyncMock(side_effect=[Busy("too many requests"), LeadershipLost("it was read again")])
    monkeypatch.setattr(driver._client, "read_in_lane", reading)
    with pytest.raises(LeadershipLost):
        await driver._check_states()
    following = AsyncMock(side_effect=[Busy("too many requests"), LeadershipLost("it was followed again")])
    monkeypatch.setattr(driver, "_follow", following)
    with pytest.raises(LeadershipLost):
        await driver.run()


async def test_a_leader_whose_key_is_gone_ends() -> None:
    """O25: its own key was removed by hand; another member's, or one of its own that came late, is there."""

    async def silent(_: object) -> None:
        await asyncio.Event().wait()

    for standing in (KeyValue.missing(KEYS.coordinator), KeyValue(KEYS.coordinator, b"", 9, 9, lease=1)):
        client = Mock(open_watch=AsyncMock(side_effect=silent))
        driver = driver_of(client, Epoch(KEYS.coordinator, 7), Mock(ttl_s=10))
        running = asyncio.create_task(driver.run())
        driver.key_read(KeyValue(KEYS.coordinator, b"", 8, 7, lease=1))
        await asyncio.sleep(0)
        assert not running.done()
        if standing.exists:
            driver._apply_put(standing)  # the table's watch shows it
        else:
            driver.key_read(standing)
        with pytest.raises(LeadershipLost):
            await asyncio.wait_for(running, 60)


async def test_a_table_is_resigned_however_much_etcd_has_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """O24: the others would wait until the lease ends."""
    resign = AsyncMock(side_effect=[Busy("too many requests"), None])
    monkeypatch.setattr(leadership, "resign", resign)
    services = services_of(Mock(keyspace=Keyspace()), Mock())
    leading = Leadership(services, Mock(alive=True), Mock(), Mock())
    await leading._resign("t", Epoch(KEYS.coordinator, 1))
    assert resign.await_count == 2
