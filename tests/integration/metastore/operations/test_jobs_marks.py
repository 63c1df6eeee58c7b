"""Marks on a real etcd: what wins, what a lost reply leaves, what a run that is over lets through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio

from distop.errors import DistopError, EtcdUnavailable
from distop.executor.ledger.batcher import MarkBatcher
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Txn
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import (
    MAX_GROUP,
    Mark,
    Outcome,
    Verdict,
    mark_txn,
    success_record,
    verdicts,
)
from distop.metastore.operations.runs import Run, Taken, release_runner, take_runner, without_result
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import ABORTING, COMMITTING, OperationArg, RunnerRecord
from support.etcd.lossy import Fault, LossyClient
from support.etcd.proxy import Proxy
from support.services.executing import job_records, remove_operation, set_state, start_operation, take
from support.waiting import eventually


@pytest_asyncio.fixture
async def session(client: LossyClient) -> AsyncIterator[LeaseSession]:
    """The lease of the runner that the test plays."""
    async with LeaseSession(client, 10) as session:
        yield session


class Answers:
    """Collects verdicts by number."""

    def __init__(self) -> None:
        self.verdicts: dict[int, Verdict] = {}
        self.errors: dict[int, DistopError] = {}

    def answered(self, answers: list[tuple[int, Mark, Verdict]]) -> None:
        self.verdicts |= {number: verdict for number, _, verdict in answers}

    def unanswered(self, numbers: list[int], error: DistopError) -> None:
        self.errors |= dict.fromkeys(numbers, error)

    async def outcomes(self, count: int) -> list[Outcome]:
        await eventually(lambda: len(self.verdicts) + len(self.errors) == count)
        return [self.verdicts[number].outcome for number in sorted(self.verdicts)]


def mark(partition: str, attempt: str = "a", **fields: Any) -> Mark:
    return Mark(partition, attempt, success_record(attempt, {}, 1.0), **fields)


def numbered(*marks: Mark) -> list[tuple[int, Mark]]:
    return list(enumerate(marks))


async def send(client: EtcdClient, run: Run, *marks: Mark) -> list[Outcome]:
    result = await client.txn(mark_txn(run, marks))
    return [verdict.outcome for verdict in verdicts(run, marks, result)]


async def unfinished(client: EtcdClient, keys: OperationKeys, arg: OperationArg) -> list[str]:
    return without_result(keys, arg, (await client.scan(keys.prefix, keys_only=True)).kvs)


async def running(client: LossyClient, session: LeaseSession, jobs: int = 3) -> tuple[OperationArg, Taken]:
    arg = await start_operation(client, jobs=jobs)
    return arg, await take(client, arg, session)


# -- one transaction ---------------------------------------------------------------------------------


async def test_a_group_that_meets_a_result_is_marked_one_by_one(
    client: LossyClient, session: LeaseSession
) -> None:
    """O11: the cheap transaction is all or nothing; a job that has a result must not hold up the others."""
    _, taken = await running(client, session, 4)
    assert await send(client, taken.run, mark("2", "other")) == [Outcome.WON]
    submitter, batcher = Answers(), MarkBatcher(client)
    batcher.submit(taken.run, submitter, [(number, mark(str(number))) for number in range(4)])
    assert await submitter.outcomes(4) == [Outcome.WON, Outcome.WON, Outcome.LOST, Outcome.WON]
    await batcher.close()


async def test_the_first_mark_wins_and_its_neighbours_are_not_concerned(
    client: LossyClient, session: LeaseSession
) -> None:
    """O11"""
    arg, taken = await running(client, session)
    assert await send(client, taken.run, mark("0", "a")) == [Outcome.WON]
    outcomes = await send(client, taken.run, mark("1", "b"), mark("0", "b"), mark("2", "b"))
    assert outcomes == [Outcome.WON, Outcome.LOST, Outcome.WON]
    assert {name: record.attempt for name, record in (await job_records(client, arg)).items()} == {
        "0": "a",
        "1": "b",
        "2": "b",
    }


async def test_no_mark_lands_after_the_seal(client: LossyClient, session: LeaseSession) -> None:
    arg, taken = await running(client, session)
    for state in (ABORTING, COMMITTING):
        await set_state(client, arg, state)
        assert await send(client, taken.run, mark("0")) == [Outcome.GONE]
    assert await job_records(client, arg) == {}


async def test_no_mark_of_an_earlier_run_lands(client: LossyClient, session: LeaseSession) -> None:
    arg, first = await running(client, session)
    await release_runner(client, first.run)
    second = await take(client, arg, session)
    assert second.run.token > first.run.token
    assert await send(client, first.run, mark("0")) == [Outcome.GONE]
    assert await send(client, second.run, mark("0")) == [Outcome.WON]


async def test_a_mark_of_a_runner_whose_lease_ended_does_not_land(client: LossyClient) -> None:
    """O10"""
    async with LeaseSession(client, 10) as mine:
        _, taken = await running(client, mine)
    assert await send(client, taken.run, mark("0")) == [Outcome.GONE]


async def test_a_repeat_knows_its_own_mark_also_after_the_seal(
    client: LossyClient, session: LeaseSession
) -> None:
    arg, taken = await running(client, session)
    await send(client, taken.run, mark("0"), mark("1", "other"))
    repeats = [mark("0", repeated=1), mark("1", repeated=1), mark("2", repeated=1)]
    assert await send(client, taken.run, *repeats) == [Outcome.WON, Outcome.LOST, Outcome.WON]
    await set_state(client, arg, COMMITTING)
    assert await send(client, taken.run, *repeats[:2]) == [Outcome.WON, Outcome.LOST]
    await remove_operation(client, arg)
    assert await send(client, taken.run, *repeats) == [Outcome.UNKNOWN] * 3


async def test_the_largest_group_is_taken_by_etcd(client: LossyClient, session: LeaseSession) -> None:
    _, taken = await running(client, session, MAX_GROUP)
    marks = [mark(str(n), claim=0, checkpointed=1, repeated=1) for n in range(MAX_GROUP)]
    assert await send(client, taken.run, *marks) == [Outcome.WON] * MAX_GROUP


# -- group commit ------------------------------------------------------------------------------------


async def test_marks_that_gather_share_transactions(client: LossyClient, session: LeaseSession) -> None:
    arg, taken = await running(client, session, 1000)
    client.sent.clear()
    batcher, answers = MarkBatcher(client), Answers()
    for number in range(1000):
        batcher.submit(taken.run, answers, [(number, mark(str(number)))])
    assert await answers.outcomes(1000) == [Outcome.WON] * 1000
    assert len(client.sent) <= 12
    assert len(await job_records(client, arg)) == 1000
    assert await batcher.flush(1.0)


async def test_two_attempts_at_one_job_in_one_breath(client: LossyClient, session: LeaseSession) -> None:
    """O11: they must not meet in one transaction, which etcd would refuse as a whole."""
    _, taken = await running(client, session)
    batcher, answers = MarkBatcher(client), Answers()
    batcher.submit(taken.run, answers, numbered(mark("1", "x")))  # something to gather behind
    batcher.submit(taken.run, answers, [(5, mark("0", "a")), (6, mark("0", "b")), (7, mark("2"))])
    other, *rivals, neighbour = await answers.outcomes(4)
    assert other is neighbour is Outcome.WON
    assert set(rivals) == {Outcome.WON, Outcome.LOST}


async def test_a_large_operation_leaves_room_for_a_small_one(
    client: LossyClient, session: LeaseSession
) -> None:
    _, large = await running(client, session, 5000)
    _, small = await running(client, session, 1)
    batcher, many, one = MarkBatcher(client), Answers(), Answers()
    batcher.submit(large.run, many, [(n, mark(str(n))) for n in range(5000)])
    batcher.submit(small.run, one, numbered(mark("0")))
    await eventually(lambda: one.verdicts)
    assert len(many.verdicts) < 2500
    await many.outcomes(5000)


async def test_a_lost_reply_is_answered_by_sending_again(client: LossyClient, session: LeaseSession) -> None:
    arg, taken = await running(client, session, 50)
    batcher, answers = MarkBatcher(client), Answers()
    client.fail(Fault.LOST_REPLY, Fault.DOWN, Fault.LOST_REQUEST)
    batcher.submit(taken.run, answers, numbered(*(mark(str(n)) for n in range(50))))
    assert await answers.outcomes(50) == [Outcome.WON] * 50
    assert client.spent
    assert len(await job_records(client, arg)) == 50


async def test_after_a_lost_request_and_a_seal_the_mark_is_known_to_be_void(
    client: LossyClient, session: LeaseSession
) -> None:
    arg, taken = await running(client, session)
    sealing = SealsBeforeRepeat(client, arg, ABORTING)
    batcher, answers = MarkBatcher(sealing), Answers()
    client.fail(Fault.LOST_REQUEST)
    batcher.submit(taken.run, answers, numbered(mark("0")))
    assert await answers.outcomes(1) == [Outcome.GONE]


async def test_after_a_lost_reply_and_a_seal_the_mark_is_known_to_stand(
    client: LossyClient, session: LeaseSession
) -> None:
    arg, taken = await running(client, session)
    batcher, answers = MarkBatcher(SealsBeforeRepeat(client, arg, COMMITTING)), Answers()
    client.fail(Fault.LOST_REPLY)
    batcher.submit(taken.run, answers, numbered(mark("0"), mark("1")))
    assert await answers.outcomes(2) == [Outcome.WON, Outcome.WON]


async def test_after_a_lost_reply_and_the_operations_end_nobody_can_tell(
    client: LossyClient, session: LeaseSession
) -> None:
    """P8"""
    arg, taken = await running(client, session)
    batcher, answers = MarkBatcher(SealsBeforeRepeat(client, arg, b"")), Answers()
    client.fail(Fault.LOST_REPLY)
    batcher.submit(taken.run, answers, numbered(mark("0")))
    assert await answers.outcomes(1) == [Outcome.UNKNOWN]


class SealsBeforeRepeat(EtcdClient):
    """Passes transactions on; changes the operation's state (or removes it) after the first was lost."""

    def __init__(self, inner: LossyClient, arg: OperationArg, state: bytes) -> None:
        super().__init__(inner.config)
        self._inner, self._arg, self._state = inner, arg, state

    async def txn(self, txn: Txn, *, timeout_s: float | None = None):
        try:
            return await self._inner.txn(txn, timeout_s=timeout_s)
        except DistopError:
            if self._state:
                await set_state(self._inner, self._arg, self._state)
            else:
                await remove_operation(self._inner, self._arg)
            raise


async def test_marks_are_given_up_when_etcd_stays_away(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig
) -> None:
    """U4"""
    _, taken = await running(client, session)
    nowhere = EtcdClient(EtcdConfig(endpoints=("127.0.0.1:1",), prefix=etcd_config.prefix, timeout_s=0.1))
    batcher, answers = MarkBatcher(nowhere, patience_s=0.3), Answers()
    batcher.submit(taken.run, answers, numbered(mark("0"), mark("1")))
    await eventually(lambda: len(answers.errors) == 2)
    assert isinstance(answers.errors[0], EtcdUnavailable)
    await nowhere.close()


async def test_marks_wait_out_a_broken_connection(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig
) -> None:
    """A real one: requests and replies are lost on the way."""
    arg, taken = await running(client, session, 300)
    async with Proxy(etcd_config.endpoints[0]) as proxy:
        through = EtcdClient(EtcdConfig(endpoints=(proxy.endpoint,), prefix=etcd_config.prefix, timeout_s=1))
        batcher, answers = MarkBatcher(through), Answers()
        batcher.submit(taken.run, answers, numbered(mark("0")))
        await answers.outcomes(1)
        proxy.hold_replies()
        batcher.submit(taken.run, answers, [(n, mark(str(n))) for n in range(1, 300)])

        async def some_landed() -> bool:
            return len(await job_records(client, arg)) > 100

        await eventually(some_landed)
        await proxy.refuse()
        proxy.flow()
        await proxy.accept()
        assert await answers.outcomes(300) == [Outcome.WON] * 300
        await through.close()
    assert len(await job_records(client, arg)) == 300


# -- taking an operation -----------------------------------------------------------------------------


async def test_one_of_many_runners_takes_an_operation(client: LossyClient, session: LeaseSession) -> None:
    arg = await start_operation(client)
    keys = client.keyspace.operation(arg.id)
    tries = [take_runner(client, keys, RunnerRecord(member=f"m{n}"), session.lease_id) for n in range(8)]
    taken = [one for one in await asyncio.gather(*tries) if one is not None]
    assert len(taken) == 1
    assert taken[0].run.token == (await client.get(keys.runner)).create_revision


async def test_a_runner_whose_reply_was_lost_finds_its_own_key(
    client: LossyClient, session: LeaseSession
) -> None:
    arg = await start_operation(client, jobs=2)
    client.fail(Fault.LOST_REPLY)
    taken = await take(client, arg, session)
    assert client.spent
    assert taken.run.token == (await client.get(taken.run.keys.runner)).create_revision
    assert taken.unfinished == ["0", "1"]


async def test_a_sealed_operation_is_not_taken(client: LossyClient, session: LeaseSession) -> None:
    arg = await start_operation(client)
    await set_state(client, arg, ABORTING)
    keys = client.keyspace.operation(arg.id)
    assert await take_runner(client, keys, RunnerRecord(member="m"), session.lease_id) is None


async def test_the_unfinished_jobs_are_known_of_small_and_large_operations(
    client: LossyClient, session: LeaseSession
) -> None:
    for jobs in (10, 3000):
        arg, first = await running(client, session, jobs)
        for start in range(0, jobs // 2, MAX_GROUP):
            names = range(start, min(start + MAX_GROUP, jobs // 2))
            await send(client, first.run, *(mark(str(n)) for n in names))
        await release_runner(client, first.run)
        left = [str(n) for n in range(jobs // 2, jobs)]
        assert (await take(client, arg, session)).unfinished == left
        assert await unfinished(client, first.run.keys, arg) == left


async def test_partitions_with_odd_names_are_told_apart(client: LossyClient, session: LeaseSession) -> None:
    """O29"""
    names = ["a.b", "a", "a%2Eb", "ö/x y", "1", "10", "progress", "claim"]
    arg = await start_operation(client, partitions=names)
    taken = await take(client, arg, session)
    await send(client, taken.run, mark("a.b"), mark("1"), mark("claim"))
    left = await unfinished(client, taken.run.keys, arg)
    assert left == ["a", "a%2Eb", "ö/x y", "10", "progress"]
