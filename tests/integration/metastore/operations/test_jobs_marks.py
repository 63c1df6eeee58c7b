"""Marks on a real etcd: what wins, what a lost reply leaves, what a run that is over lets through."""

import asyncio
from typing import Any

import pytest

from distop.errors import DistopError, EtcdUnavailable, OutcomeUnknown
from distop.executor.ledger.ledger import MarkBatcher
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.operations.jobs import (
    MAX_GROUP,
    Mark,
    Outcome,
    Verdict,
    mark_txn,
    success_record,
    verdicts,
)
from distop.metastore.operations.runs import (
    Run,
    Taken,
    give_back,
    release_runner,
    take_operation,
    without_result,
)
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import ABORTING, COMMITTING, OperationArg, RunnerRecord
from support.etcd.lossy import Fault, LossyClient
from support.etcd.proxy import Proxy
from support.services.executing import job_records, remove_operation, set_state, start_operation
from support.services.sidecars import Runs
from support.services.sidecars import runs as runs
from support.services.sidecars import session as session
from support.waiting import eventually


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


async def running(runs: Runs, jobs: int = 3) -> tuple[OperationArg, Taken]:
    taken = await runs.take(jobs=jobs)
    return taken.arg, taken


async def test_a_group_that_meets_a_result_is_marked_one_by_one(runs: Runs) -> None:
    """O11: the cheap transaction is all or nothing; a job that has a result must not hold up the others."""
    _, taken = await running(runs, 4)
    assert await send(runs.client, taken.run, mark("2", "other")) == [Outcome.WON]
    submitter, batcher = Answers(), MarkBatcher(runs.client)
    batcher.submit(taken.run, submitter, [(number, mark(str(number))) for number in range(4)])
    assert await submitter.outcomes(4) == [Outcome.WON, Outcome.WON, Outcome.LOST, Outcome.WON]
    await batcher.close()


async def test_the_first_mark_wins_and_its_neighbours_are_not_concerned(runs: Runs) -> None:
    """O11"""
    arg, taken = await running(runs)
    assert await send(runs.client, taken.run, mark("0", "a")) == [Outcome.WON]
    outcomes = await send(runs.client, taken.run, mark("1", "b"), mark("0", "b"), mark("2", "b"))
    assert outcomes == [Outcome.WON, Outcome.LOST, Outcome.WON]
    records = await job_records(runs.client, arg)
    assert {name: record.attempt for name, record in records.items()} == {"0": "a", "1": "b", "2": "b"}


async def test_no_mark_lands_after_the_seal(runs: Runs) -> None:
    arg, taken = await running(runs)
    for state in (ABORTING, COMMITTING):
        await set_state(runs.client, arg, state)
        assert await send(runs.client, taken.run, mark("0")) == [Outcome.GONE]
    assert await job_records(runs.client, arg) == {}


async def test_no_mark_of_an_earlier_run_lands(runs: Runs) -> None:
    arg, first = await running(runs)
    await release_runner(runs.client, first.run)
    second = await runs.take_over(arg)
    assert second.run.token > first.run.token
    assert await send(runs.client, first.run, mark("0")) == [Outcome.GONE]
    assert await send(runs.client, second.run, mark("0")) == [Outcome.WON]


async def test_a_mark_in_doubt_is_not_judged_by_another_operation_of_that_name(runs: Runs) -> None:
    """P8, U3: the table was renamed, and one of its old name was made since; what the first copy of the mark
    made was published, and its files are in use."""
    arg, first = await running(runs)
    keys = runs.client.keyspace.operation(arg.id)
    in_doubt, started = [mark("0", repeated=True), mark("1")], (keys.arg, keys.state)
    values = [(await runs.client.get(key)).value for key in started]
    await remove_operation(runs.client, arg)
    await runs.client.txn(Txn(then=tuple(map(Put, started, values))))
    assert await send(runs.client, first.run, *in_doubt) == [Outcome.UNKNOWN, Outcome.GONE]
    anew = await runs.take_over(arg)
    assert await send(runs.client, anew.run, mark("0", "other")) == [Outcome.WON]
    assert await send(runs.client, first.run, *in_doubt) == [Outcome.UNKNOWN, Outcome.GONE]


async def test_a_repeat_knows_its_own_mark_also_after_the_seal(runs: Runs) -> None:
    arg, taken = await running(runs)
    await send(runs.client, taken.run, mark("0"), mark("1", "other"))
    repeats = [mark("0", repeated=1), mark("1", repeated=1), mark("2", repeated=1)]
    assert await send(runs.client, taken.run, *repeats) == [Outcome.WON, Outcome.LOST, Outcome.WON]
    await set_state(runs.client, arg, COMMITTING)
    assert await send(runs.client, taken.run, *repeats[:2]) == [Outcome.WON, Outcome.LOST]
    await remove_operation(runs.client, arg)
    assert await send(runs.client, taken.run, *repeats) == [Outcome.UNKNOWN] * 3


async def test_the_largest_group_is_taken_by_etcd(runs: Runs) -> None:
    _, taken = await running(runs, MAX_GROUP)
    marks = [mark(str(n), claim=0, checkpointed=1, repeated=1) for n in range(MAX_GROUP)]
    assert await send(runs.client, taken.run, *marks) == [Outcome.WON] * MAX_GROUP


async def test_marks_that_gather_share_transactions(runs: Runs) -> None:
    arg, taken = await running(runs, 1000)
    runs.client.sent.clear()
    batcher, answers = MarkBatcher(runs.client), Answers()
    for number in range(1000):
        batcher.submit(taken.run, answers, [(number, mark(str(number)))])
    assert await answers.outcomes(1000) == [Outcome.WON] * 1000
    assert len(runs.client.sent) <= 12
    assert len(await job_records(runs.client, arg)) == 1000
    assert await batcher.flush(1.0)


async def test_two_attempts_at_one_job_in_one_breath(runs: Runs) -> None:
    """O11: they must not meet in one transaction, which etcd would refuse as a whole."""
    _, taken = await running(runs)
    batcher, answers = MarkBatcher(runs.client), Answers()
    batcher.submit(taken.run, answers, numbered(mark("1", "x")))  # something to gather behind
    batcher.submit(taken.run, answers, [(5, mark("0", "a")), (6, mark("0", "b")), (7, mark("2"))])
    other, *rivals, neighbour = await answers.outcomes(4)
    assert other is neighbour is Outcome.WON
    assert set(rivals) == {Outcome.WON, Outcome.LOST}


async def test_a_large_operation_leaves_room_for_a_small_one(runs: Runs) -> None:
    _, large = await running(runs, 5000)
    _, small = await running(runs, 1)
    batcher, many, one = MarkBatcher(runs.client), Answers(), Answers()
    batcher.submit(large.run, many, [(n, mark(str(n))) for n in range(5000)])
    batcher.submit(small.run, one, numbered(mark("0")))
    await eventually(lambda: one.verdicts)
    assert len(many.verdicts) < 2500
    await many.outcomes(5000)


async def test_a_lost_reply_is_answered_by_sending_again(runs: Runs) -> None:
    arg, taken = await running(runs, 50)
    batcher, answers = MarkBatcher(runs.client), Answers()
    runs.client.fail(Fault.LOST_REPLY, Fault.DOWN, Fault.LOST_REQUEST)
    batcher.submit(taken.run, answers, numbered(*(mark(str(n)) for n in range(50))))
    assert await answers.outcomes(50) == [Outcome.WON] * 50
    assert runs.client.spent
    assert len(await job_records(runs.client, arg)) == 50


@pytest.mark.parametrize(
    ("fault", "then", "outcome"),
    [
        (Fault.LOST_REQUEST, ABORTING, Outcome.GONE),
        (Fault.LOST_REPLY, COMMITTING, Outcome.WON),
        (Fault.LOST_REPLY, b"", Outcome.UNKNOWN),
    ],
    ids=["void", "stands", "nobody-can-tell"],
)
async def test_the_outcome_of_a_mark_before_the_seal_or_the_end_is_known(
    runs: Runs, fault: Fault, then: bytes, outcome: Outcome
) -> None:
    """P8: whether it was lost on its way, or its reply was, and what the operation became meanwhile."""
    arg, taken = await running(runs)
    batcher, answers = MarkBatcher(SealsBeforeRepeat(runs.client, arg, then)), Answers()
    runs.client.fail(fault)
    batcher.submit(taken.run, answers, numbered(mark("0"), mark("1")))
    assert await answers.outcomes(2) == [outcome] * 2


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


async def test_marks_are_given_up_when_etcd_stays_away(runs: Runs, etcd_config: EtcdConfig) -> None:
    """U4"""
    _, taken = await running(runs)
    nowhere = EtcdClient(EtcdConfig(endpoints=("127.0.0.1:1",), prefix=etcd_config.prefix, timeout_s=0.1))
    batcher, answers = MarkBatcher(nowhere, patience_s=0.3), Answers()
    batcher.submit(taken.run, answers, numbered(mark("0"), mark("1")))
    await eventually(lambda: len(answers.errors) == 2)
    assert isinstance(answers.errors[0], EtcdUnavailable)
    await nowhere.close()


async def test_marks_wait_out_a_broken_connection(runs: Runs, etcd_config: EtcdConfig) -> None:
    """A real one: requests and replies are lost on the way."""
    arg, taken = await running(runs, 300)
    async with Proxy(etcd_config.endpoints[0]) as proxy:
        through = EtcdClient(EtcdConfig(endpoints=(proxy.endpoint,), prefix=etcd_config.prefix, timeout_s=1))
        batcher, answers = MarkBatcher(through), Answers()
        batcher.submit(taken.run, answers, numbered(mark("0")))
        await answers.outcomes(1)
        proxy.hold_replies()
        batcher.submit(taken.run, answers, [(n, mark(str(n))) for n in range(1, 300)])
        await eventually(lambda: job_records(runs.client, arg), holds=lambda records: len(records) > 100)
        await proxy.refuse()
        proxy.flow()
        await proxy.accept()
        assert await answers.outcomes(300) == [Outcome.WON] * 300
        await through.close()
    assert len(await job_records(runs.client, arg)) == 300


async def test_one_of_many_runners_takes_an_operation(runs: Runs) -> None:
    arg = await start_operation(runs.client)
    keys = runs.client.keyspace.operation(arg.id)
    tries = [
        take_operation(runs.client, keys, RunnerRecord(member=f"m{n}"), runs.session.lease_id)
        for n in range(8)
    ]
    taken = [one for one in await asyncio.gather(*tries) if one is not None]
    assert len(taken) == 1
    assert taken[0].run.token == (await runs.client.get(keys.runner)).create_revision


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_runner_whose_reply_was_lost_takes_the_operation_all_the_same(
    runs: Runs, fault: Fault
) -> None:
    """Its request is repeated. If that is refused, it gives back what is held under its lease."""
    arg = await start_operation(runs.client, jobs=2)
    runs.client.fail(fault)
    if fault is Fault.LOST_REPLY:
        with pytest.raises(OutcomeUnknown):
            await runs.take_over(arg)
        await give_back(runs.client, runs.session.lease_id, lambda run: False)
    taken = await runs.take_over(arg)
    assert runs.client.spent
    assert taken.run.token == (await runs.client.get(taken.run.keys.runner)).create_revision
    assert taken.unfinished == ["0", "1"]


async def test_a_sealed_operation_is_not_taken(runs: Runs) -> None:
    arg = await start_operation(runs.client)
    await set_state(runs.client, arg, ABORTING)
    keys = runs.client.keyspace.operation(arg.id)
    assert await take_operation(runs.client, keys, RunnerRecord(member="m"), runs.session.lease_id) is None


async def test_the_unfinished_jobs_are_known_of_small_and_large_operations(runs: Runs) -> None:
    for jobs in (10, 3000):
        arg, first = await running(runs, jobs)
        for start in range(0, jobs // 2, MAX_GROUP):
            names = range(start, min(start + MAX_GROUP, jobs // 2))
            await send(runs.client, first.run, *(mark(str(n)) for n in names))
        await release_runner(runs.client, first.run)
        left = [str(n) for n in range(jobs // 2, jobs)]
        assert (await runs.take_over(arg)).unfinished == left
        assert await unfinished(runs.client, first.run.keys, arg) == left


async def test_partitions_with_odd_names_are_told_apart(runs: Runs) -> None:
    """O29"""
    names = ["a.b", "a", "a%2Eb", "ö/x y", "1", "10", "progress", "claim"]
    arg = await start_operation(runs.client, partitions=names)
    taken = await runs.take_over(arg)
    await send(runs.client, taken.run, mark("a.b"), mark("1"), mark("claim"))
    left = await unfinished(runs.client, taken.run.keys, arg)
    assert left == ["a", "a%2Eb", "ö/x y", "10", "progress"]
