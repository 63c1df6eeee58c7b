"""Runs of dynamic plans on a real etcd: whose results count, and when they are complete."""

import pytest

from distop.metastore.etcd.client import EtcdClient
from distop.metastore.operations.jobs import Mark, Outcome, mark_txn, success_record, verdicts
from distop.metastore.operations.runs import DynamicRun, Run, release_runner
from distop.metastore.records.operation import ABORTING, OperationArg, RunRecord
from distop.metastore.records.record import decode, encode
from support.etcd.lossy import Fault, puts
from support.services.executing import job_records, remove_operation, set_state
from support.services.sidecars import Runs
from support.services.sidecars import runs as runs
from support.services.sidecars import session as session


async def dynamic(runs: Runs) -> tuple[OperationArg, DynamicRun]:
    """A new operation, and its first run, which has not begun."""
    taken = await runs.take(jobs=0)
    return taken.arg, DynamicRun(runs.client, taken.run)


async def run_of(client: EtcdClient, arg: OperationArg) -> RunRecord:
    kv = await client.get(client.keyspace.operation(arg.id).run)
    return decode(kv.value, RunRecord, kv.key)


async def send(client: EtcdClient, run: Run, *partitions: str) -> list[Outcome]:
    attempt = f"{run.token}-a"
    marks = [Mark(name, attempt, success_record(attempt, {}, 1.0, run=run.token)) for name in partitions]
    result = await client.txn(mark_txn(run, marks))
    return [verdict.outcome for verdict in verdicts(run, marks, result)]


async def test_a_new_run_begins_from_nothing_and_the_old_one_can_do_nothing_more(runs: Runs) -> None:
    """O10: whatever it still sends."""
    arg, old = await dynamic(runs)
    assert await old.begin()
    assert await send(runs.client, old.run, "0", "1", "10") == [Outcome.WON] * 3
    await release_runner(runs.client, old.run)
    new = DynamicRun(runs.client, (await runs.take_over(arg)).run)
    assert new.run.token > old.run.token
    # Its runner's key is gone, and another one stands there: that a key stands is not enough.
    assert await send(runs.client, old.run, "2") == [Outcome.GONE]
    assert not await old.seal(3)
    assert await new.begin()
    assert await job_records(runs.client, arg) == {}
    assert await run_of(runs.client, arg) == RunRecord(token=new.run.token, begun=2)
    assert not await old.begin()
    assert not await old.note(7, 3)
    assert not await old.seal(3)
    assert await send(runs.client, old.run, "0") == [Outcome.GONE]
    assert await send(runs.client, new.run, "0") == [Outcome.WON]
    assert await new.seal(1)
    records = await job_records(runs.client, arg)
    assert {name: record.run for name, record in records.items()} == {"0": new.run.token}


async def test_leftovers_of_an_earlier_run_are_removed_in_several_transactions(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distop.metastore.operations.runs.REMOVED_AT_ONCE", 3)
    arg, old = await dynamic(runs)
    await old.begin()
    await send(runs.client, old.run, *(str(number) for number in range(10)))
    await release_runner(runs.client, old.run)
    new = DynamicRun(runs.client, (await runs.take_over(arg)).run)
    before = len(runs.client.sent)
    runs.client.fail(Fault.LOST_REPLY, when=puts(new.run.keys.run))
    assert await new.begin()
    assert runs.client.spent
    assert await job_records(runs.client, arg) == {}
    assert len(runs.client.sent) - before >= 4
    assert new.begun == 2  # whatever was sent twice
    assert await new.note(7, 3)
    assert (await run_of(runs.client, arg)).begun == 2


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.DOWN])
async def test_a_count_is_sealed_once_whether_or_not_the_reply_comes(runs: Runs, fault: Fault) -> None:
    """O7: then it stays, whichever runner takes the operation over."""
    arg, run = await dynamic(runs)
    await run.begin()
    await send(runs.client, run.run, "0", "1")
    runs.client.fail(fault, when=puts(run.run.keys.run))
    assert await run.seal(2)
    assert runs.client.spent
    assert (await run_of(runs.client, arg)).count == 2
    standing = await runs.client.get(run.run.keys.run)
    await release_runner(runs.client, run.run)
    later = DynamicRun(runs.client, (await runs.take_over(arg)).run)
    assert await later.begin()
    assert later.count == 2
    assert await runs.client.get(run.run.keys.run) == standing
    assert set(await job_records(runs.client, arg)) == {"0", "1"}


async def test_a_note_that_is_late_does_not_take_the_seal_back(runs: Runs) -> None:
    arg, run = await dynamic(runs)
    await run.begin()
    assert await run.note(7, 3)
    assert (await run_of(runs.client, arg)).tasks == 7
    # One that was given up while it was on its way: it was written, and the run does not know.
    await runs.client.put(run.run.keys.run, encode(RunRecord(token=run.run.token, tasks=7, done=5)))
    assert await run.seal(7)
    assert await run_of(runs.client, arg) == RunRecord(token=run.run.token, count=7)


@pytest.mark.parametrize("end", ["aborted", "removed"])
async def test_nothing_is_sealed_in_an_operation_that_is_over(runs: Runs, end: str) -> None:
    arg, run = await dynamic(runs)
    await run.begin()
    await (set_state(runs.client, arg, ABORTING) if end == "aborted" else remove_operation(runs.client, arg))
    assert not await run.seal(0)
    assert not await run.note(1, 1)
    later = DynamicRun(runs.client, run.run)
    assert not await later.begin()
    assert (await runs.client.get(run.run.keys.run)).exists == (end == "aborted")
