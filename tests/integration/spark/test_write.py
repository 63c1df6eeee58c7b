"""Publishing files that were written before their operation began: once, however many requests come."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from distop.client import OperationFailed, OperationState
from distop.errors import (
    HeadConflict,
    OperationNotFound,
    PreconditionFailed,
    RolledBack,
    RunReused,
    StreamGap,
    WriteGivenUp,
    WriteTooOld,
)
from distop.lake.iceberg import takeover
from distop.lake.iceberg.takeover import PreparedTask
from distop.metastore.etcd.config import EtcdConfig
from distop.spark.publication import Publication, WriteOutcome
from distop.spark.target import WriteTarget
from support.etcd.lossy import LossyClient
from support.refusals import refused
from support.services.whole import Whole, whole
from support.tables.trees import age
from support.tables.writing import abandon, begin, end, tasks
from support.waiting import eventually


class Driver:
    """A driver that writes to the table of a service."""

    def __init__(self, service: Whole, address: str) -> None:
        self.service, self.address = service, address

    async def written(self, start: int, count: int = 12) -> tuple[WriteTarget, list[PreparedTask]]:
        """A write whose tasks are done."""
        target = await asyncio.to_thread(begin, self.address)
        return target, await asyncio.to_thread(tasks, target, start, count)

    async def publish(self, publication: Publication, written: list[PreparedTask]) -> WriteOutcome:
        return await asyncio.to_thread(end, self.address, publication, written)

    async def write(self, start: int, **more: str) -> WriteOutcome:
        """Twelve rows, written and published."""
        target, written = await self.written(start)
        return await self.publish(plain(target, **more), written)

    async def write_batch(self, number: int, start: int) -> WriteOutcome:
        target, written = await self.written(start)
        return await self.publish(batch(target, number), written)

    async def give_up(self, publication: Publication) -> bool:
        return await asyncio.to_thread(abandon, self.address, publication)

    async def ids(self) -> list[int]:
        return await asyncio.to_thread(self.service.ids)

    async def swept(self) -> None:
        """Wait until no file is left that the table does not know."""
        await self.service.at_rest()
        known = await asyncio.to_thread(self.service.published_files)
        await eventually(lambda: self.service.data_files() == known)


@pytest_asyncio.fixture
async def driver(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Driver]:
    async with whole(etcd_config, tmp_path, client) as service:
        yield Driver(service, service.client._connection.address)


def plain(target: WriteTarget, **more: str) -> Publication:
    """Of a write that nobody repeats."""
    return Publication(target=target, **{"run": target.write, **more})


def batch(target: WriteTarget, number: int) -> Publication:
    """Of a batch of a streaming query."""
    return Publication(target=target, run=f"q.{number}", source="stream:q", batch=str(number))


async def test_files_written_by_tasks_are_published_where_they_lie(driver: Driver) -> None:
    """P1, P3, O6"""
    target, written = await driver.written(0)
    before = driver.service.data_files()
    outcome = await driver.publish(plain(target), written)
    assert outcome.is_own
    assert outcome.facts["rows"] == 12
    assert outcome.facts["write"] == target.write
    assert await driver.ids() == list(range(12))
    await driver.swept()
    assert driver.service.data_files() == before
    keys = await driver.service.at_rest()
    assert [key for key in keys if ".write." in key and "history" not in key] == ["t.write.nextInstanceId"]


async def test_tasks_that_do_not_count_leave_nothing(driver: Driver) -> None:
    """O11, C18: what losing attempts wrote goes with the end."""
    target, written = await driver.written(0)
    await asyncio.to_thread(tasks, target, 0, 12)
    await driver.publish(plain(target), written)
    await driver.swept()
    assert await driver.ids() == list(range(12))


async def test_publishing_again_finds_the_first_answer(driver: Driver) -> None:
    """O7, P8: a driver that did not hear the reply, or another one in its place."""
    target, written = await driver.written(0)
    first = await driver.publish(plain(target), written)
    again = await driver.publish(plain(target), written)
    assert again.is_own
    assert first.operation is not None
    assert again.operation is not None
    assert again.operation.name == first.operation.name
    late = await driver.write(0, run=target.write)
    assert not late.is_own
    assert await driver.ids() == list(range(12))
    await driver.swept()


async def test_a_batch_of_a_stream_is_published_once_by_whichever_driver(driver: Driver) -> None:
    """P15"""
    for number in range(3):
        assert (await driver.write_batch(number, number * 12)).is_own
        assert not (await driver.write_batch(number, number * 12)).is_own
    assert await driver.service.client.table("t").watermarks() == {"stream:q": {"batch": "2"}}
    assert await driver.ids() == list(range(36))
    await driver.swept()


async def test_a_batch_is_recognised_when_its_request_is_forgotten(driver: Driver) -> None:
    """P15: the watermark remembers what the history has forgotten."""
    await driver.write_batch(0, 0)
    store = driver.service.store
    await store.delete(store.keyspace.table("t").request("q.0"))
    outcome = await driver.write_batch(0, 0)
    assert (outcome.is_own, outcome.facts) == (False, {"watermark": "0"})
    assert await driver.ids() == list(range(12))


async def test_a_new_query_that_does_not_begin_with_its_first_batch_is_refused(driver: Driver) -> None:
    """P15, A11: its checkpoint has lost its id: it would write everything again; somebody may want that."""
    target, written = await driver.written(0)
    with pytest.raises(StreamGap) as gap:
        await driver.publish(batch(target, 2), written)
    assert gap.value.details == {"source": "stream:q", "partition": "batch", "watermark": "", "batch": "2"}
    assert gap.value.hint.endswith("distop watermark set t stream:q batch 1")
    assert await driver.give_up(batch(target, 2))
    await driver.service.at_rest()
    await eventually(lambda: not driver.service.data_files())
    await driver.service.client.table("t").set_watermark("stream:q", "batch", "1")
    assert (await driver.write_batch(2, 0)).is_own
    await driver.service.client.table("t").set_watermark("stream:q", "batch", "none")
    with pytest.raises(PreconditionFailed, match="'none'"):
        await driver.write_batch(3, 12)


async def test_batches_that_a_rollback_has_undone_are_not_passed_over(driver: Driver) -> None:
    """P11, P15: a batch behind them is refused, and they themselves are written again, also the last one,
    whose request is remembered."""
    first = await driver.write_batch(0, 0)
    for number in (1, 2):
        await driver.write_batch(number, number * 12)
    await driver.service.succeeds("rollback", snapshot=first.facts["snapshotId"])
    with refused(error=StreamGap, match="batches 1 to 2", watermark=0, batch=3):
        await driver.write_batch(3, 36)
    assert (await driver.write_batch(1, 12)).is_own
    with refused(error=StreamGap, match="rows of batch 2", watermark=1, batch=3) as gap:
        await driver.write_batch(3, 36)
    assert gap.value.hint.endswith("distop watermark set t stream:q batch 2")
    target, written = await driver.written(24)
    assert (await driver.publish(batch(target, 2), written)).is_own
    assert not (await driver.write_batch(2, 24)).is_own
    assert not await driver.give_up(batch(target, 2))
    assert (await driver.write_batch(3, 36)).is_own
    assert await driver.ids() == list(range(48))
    assert await driver.service.client.table("t").watermarks() == {"stream:q": {"batch": "3"}}


async def test_a_write_that_was_rolled_back_is_not_called_published(driver: Driver) -> None:
    """O7: as its run it is refused; the files of the first one stay, as it may come back."""
    first, last = await driver.write(0), await driver.write(12, run="w")
    await driver.service.succeeds("rollback", snapshot=first.facts["snapshotId"])
    target, written = await driver.written(12)
    with refused("run", error=RolledBack, by="t/rollback/1"):
        await driver.publish(plain(target, run="w"), written)
    assert await driver.give_up(plain(target, run="w"))
    await driver.service.at_rest()
    await driver.service.succeeds("rollback", snapshot=last.facts["snapshotId"])
    assert not (await driver.write(12, run="w")).is_own
    assert await driver.ids() == list(range(24))
    await driver.swept()


async def batches(driver: Driver, count: int) -> list[tuple[WriteTarget, list[PreparedTask]]]:
    """That many batches of a stream, published one after the other."""
    found = []
    for number in range(count):
        written = await driver.written(number * 12)
        assert (await driver.publish(batch(written[0], number), written[1])).is_own
        await driver.service.at_rest()
        found.append(written)
    return found


async def test_a_stream_leaves_one_line_of_history_and_one_request(driver: Driver) -> None:
    """O22: the last batch, with how many there were."""
    await batches(driver, 12)
    store, client = driver.service.store, driver.service.client
    (line,) = await driver.service.operations()
    told = line.facts["series"]
    assert (told["name"], told["operations"], told["rows"]) == ("stream:q", 12, 144)
    assert len(told["last"]) == 10
    assert told["last"][0]["operation"] == line.name
    assert told["since"] < told["last"][-1]["finishedAt"]
    keys = store.keyspace.table("t")
    for prefix in (keys.request_expiry_prefix, keys.prefix + b"request.", keys.series_prefix):
        assert len((await store.scan(prefix)).kvs) == 1, prefix
    before = await client.operation(told["last"][1]["operation"]).get()
    assert (before.state, before.facts) == (OperationState.SUCCEEDED, {"rows": 12})
    with pytest.raises(OperationNotFound):
        await client.operation("t/write/none/1").get()
    assert await driver.ids() == list(range(144))
    await driver.swept()


async def test_a_driver_that_wakes_up_batches_later_removes_nothing_that_it_has_published(
    driver: Driver,
) -> None:
    """P8, P15: its request is forgotten; what it has written may be in the table."""
    (target, written), *_ = await batches(driver, 3)
    outcome = await driver.publish(batch(target, 0), written)
    assert (outcome.is_own, outcome.facts) == (False, {"watermark": "2"})
    assert not await driver.give_up(batch(target, 0))
    await driver.service.at_rest()
    assert await driver.ids() == list(range(36))


async def test_a_stream_goes_on_with_its_line_when_one_of_its_batches_has_failed(driver: Driver) -> None:
    """O22: what has failed has a line of its own."""
    await batches(driver, 2)
    target, written = await driver.written(100)
    refused = replace(batch(target, 2), on_conflict="refuse", mode="overwrite")
    await driver.write(12)
    with pytest.raises(OperationFailed):
        await driver.publish(refused, written)
    assert (await driver.write_batch(2, 24)).is_own
    newest, failed, other, *more = await driver.service.operations()
    assert newest.facts["series"]["operations"] == 3
    assert (failed.state, "series" in failed.facts, "series" in other.facts) == (
        OperationState.FAILED,
        False,
        False,
    )
    assert not more


async def test_one_of_two_drivers_with_the_same_batch_publishes_it(driver: Driver) -> None:
    """P15, P16"""
    attempts = [await driver.written(0) for _ in range(4)]
    outcomes = await asyncio.gather(*(driver.publish(batch(target, 0), rows) for target, rows in attempts))
    assert sum(outcome.is_own for outcome in outcomes) == 1
    assert await driver.ids() == list(range(12))
    await driver.swept()


async def test_ten_writers_at_once_are_all_there(driver: Driver) -> None:
    """P7: writes of one table do not wait for each other's operations."""
    attempts = [await driver.written(number * 12) for number in range(10)]
    outcomes = await asyncio.gather(*(driver.publish(plain(target), written) for target, written in attempts))
    assert all(outcome.is_own for outcome in outcomes)
    assert await driver.ids() == list(range(120))
    await driver.swept()


async def test_a_write_that_was_given_up_is_never_published(driver: Driver) -> None:
    """P8, P9: also by a process that was asleep meanwhile."""
    target, written = await driver.written(0)
    assert await driver.give_up(plain(target))
    assert await driver.give_up(plain(target)), "twice is fine"
    with pytest.raises(WriteGivenUp):
        await driver.publish(plain(target), written)
    await driver.service.at_rest()
    await eventually(lambda: not driver.service.data_files())


async def test_a_published_write_is_never_given_up(driver: Driver) -> None:
    """P8: Spark tells a write to abort also when it lost the reply of its commit."""
    target, written = await driver.written(0)
    await driver.publish(plain(target), written)
    assert not await driver.give_up(plain(target))
    await driver.swept()
    assert await driver.ids() == list(range(12))


async def test_a_write_that_was_given_up_can_be_tried_again(driver: Driver) -> None:
    first, _ = await driver.written(0)
    assert await driver.give_up(batch(first, 0))
    outcome = await driver.write_batch(0, 0)
    assert outcome.is_own
    assert outcome.operation is not None
    assert outcome.operation.run == "q.0.2"
    third, again = await driver.written(0)
    assert not (await driver.publish(batch(third, 0), again)).is_own
    assert await driver.give_up(batch(third, 0)), "the files of a loser may go"
    assert await driver.ids() == list(range(12))
    await driver.swept()


async def test_an_overwrite_is_refused_if_others_have_written_meanwhile(driver: Driver) -> None:
    """P6: since the write began, not since it ended."""
    await driver.write(0)
    slow, slow_written = await driver.written(100)
    await driver.write(12)
    with pytest.raises(OperationFailed) as refused:
        await driver.publish(plain(slow, mode="overwrite"), slow_written)
    assert refused.value.details["cause"] == HeadConflict.code
    assert await driver.ids() == list(range(24))
    outcome = await driver.write(200, mode="overwrite", on_conflict="rebase")
    assert outcome.facts["removedRows"] == 24
    assert await driver.ids() == list(range(200, 212))


async def test_nothing_to_write_makes_no_snapshot(driver: Driver) -> None:
    """P10"""
    target = await asyncio.to_thread(begin, driver.address)
    outcome = await driver.publish(plain(target), [])
    assert outcome.is_own
    assert "snapshotId" not in outcome.facts


async def test_a_run_of_something_else_is_not_taken_for_a_write(driver: Driver) -> None:
    await driver.service.client.start("t", "noop", {"partitions": 0}, run="nightly")
    target, written = await driver.written(0)
    with pytest.raises(RunReused):
        await driver.publish(plain(target, run="nightly"), written)


async def test_a_pause_holds_a_write_until_its_time_is_over(driver: Driver) -> None:
    """O21"""
    target, written = await driver.written(0)
    await driver.service.client.table("t").pause()
    publishing = asyncio.create_task(driver.publish(plain(target), written))
    await asyncio.sleep(0)
    await driver.service.client.table("t").resume()
    assert (await publishing).is_own


async def test_orphans_are_not_looked_for_among_young_writes_and_old_ones_are_not_published(
    driver: Driver,
) -> None:
    """P13"""
    target, written = await driver.written(0)
    began = time.time() - takeover.SPARED_S - 60
    old = replace(target, write=takeover.new_write(began))
    old_written = await asyncio.to_thread(tasks, old, 12, 12)
    assert len(driver.service.data_files()) == 12
    client = driver.service.client

    async def remove() -> int:
        await asyncio.to_thread(age, driver.service.location)
        argument = {"older_than": "1d", "dry_run": False}
        started = await client.start("t", "remove_orphans", argument)
        ended = await started.wait(timeout_s=90)
        return int(ended.raise_for_outcome().facts["orphans"])

    assert await remove() == 6
    await eventually(lambda: len(driver.service.data_files()) == 6)
    with pytest.raises(WriteTooOld):
        await driver.publish(plain(old), old_written)
    await driver.publish(plain(target), written)
    assert await driver.ids() == list(range(12))


async def test_bad_requests_are_refused_by_name(driver: Driver) -> None:
    """U3, O4"""
    client = driver.service.client
    good = {"write": "w20130101T000000-0123456789ab", "files": "list.json"}
    for argument, field in (
        ({**good, "write": "mine"}, "write"),
        ({**good, "files": "../list.json"}, "files"),
        ({**good, "batch": "1"}, "batch"),
        ({**good, "more": 1}, "more"),
    ):
        with refused(field):
            await client.start("t", "write", argument, object="w")
    with pytest.raises(WriteTooOld):
        await client.start("t", "write", good, object="w")
    assert [key for key in await driver.service.keys() if ".write." in key] == []
