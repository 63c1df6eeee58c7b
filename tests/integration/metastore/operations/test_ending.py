"""The transactions that end an operation: cancel, seal, finish, collect."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio

from distop.errors import EtcdUnavailable, LeadershipLost, OperationNotFound, OutcomeUnknown
from distop.metastore.backlog.batches import DONE, OrderingRecord
from distop.metastore.etcd.client import Listing
from distop.metastore.etcd.txn import MAX_OPS, DeleteRange, KeyValue, Put, Txn, TxnResult, unchanged
from distop.metastore.members.lease import Epoch, LeaseSession, campaign, resign
from distop.metastore.operations import retention
from distop.metastore.operations.ending import (
    COLLECT_BITE,
    Finished,
    FinishParts,
    apply_resolve,
    collect,
    finish,
    finish_txn,
    note_failure,
    request_cancel,
    request_resolve,
    seal,
)
from distop.metastore.operations.retention import EVERY, prune, prune_after
from distop.metastore.records.keyspace import OperationKeys, TableKeys
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.names import OperationId
from distop.metastore.records.operation import (
    ABORT,
    ABORTING,
    COMMITTING,
    RETRY,
    RUNNING,
    CancelRecord,
    CompletionRecord,
    HistoryRecord,
    ResolveRecord,
    SeriesEntry,
    SeriesNote,
)
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head, decode_run_ops
from support.etcd.jobs import mark, mark_all
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import begin, make_table

CANCEL = CancelRecord(by="me", at=1.0)
HISTORY = HistoryRecord(outcome="success", finished_at=2.0)


@dataclass
class Led:
    """A table with a leader."""

    client: LossyClient
    session: LeaseSession
    keys: TableKeys
    epoch: Epoch

    async def begin(self, **fields: object) -> OperationKeys:
        """One of a job, so that it is not sealed from the start."""
        return self.keys.operation(await begin(self.client, **{"partition_count": 1, **fields}))  # type: ignore[arg-type]

    async def sealed(self, to: bytes = COMMITTING, **fields: object) -> OperationKeys:
        op = await self.begin(**fields)
        await seal(self.client, op, self.epoch, before=RUNNING, after=to)
        return op

    async def plan(self, sealed: bytes = COMMITTING, **fields: object) -> FinishParts:
        run_ops = await self.client.get(self.keys.run_ops)
        return FinishParts(sealed=sealed, run_ops=run_ops, history=HISTORY, **fields)  # type: ignore[arg-type]

    async def finish(self, op: OperationKeys, plan: FinishParts) -> Finished:
        return (await finish(self.client, self.keys, op, self.epoch, self.txn(op, plan)))[0]

    def txn(self, op: OperationKeys, plan: FinishParts) -> Txn:
        return finish_txn(self.keys, op, self.epoch, plan)

    async def next_epoch(self) -> Epoch:
        """Somebody else leads from now on."""
        await resign(self.client, self.epoch)
        epoch = await campaign(self.client, self.keys, self.session, LeaderRecord(member="next"))
        assert epoch is not None
        return epoch

    async def everything(self) -> list[KeyValue]:
        return (await self.client.scan(self.client.keyspace.prefix)).kvs

    async def below(self, op: OperationKeys) -> list[bytes]:
        return [kv.key for kv in (await self.client.scan(op.prefix)).kvs]


@pytest_asyncio.fixture
async def led(client: LossyClient) -> AsyncIterator[Led]:
    await make_table(client)
    async with LeaseSession(client, 10) as session:
        keys = client.keyspace.table("t")
        epoch = await campaign(client, keys, session, LeaderRecord(member="m"))
        assert epoch is not None
        yield Led(client, session, keys, epoch)


async def test_the_first_to_ask_for_cancellation_is_told_so(led: Led) -> None:
    """O19."""
    op = await led.begin()
    assert await request_cancel(led.client, op, CANCEL)
    standing = await led.client.get(op.cancel)
    assert decode(standing.value, CancelRecord) == CANCEL
    assert not await request_cancel(led.client, op, CancelRecord(by="other", at=2.0))
    assert await led.client.get(op.cancel) == standing


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_lost_reply_to_a_cancellation_is_found_again(led: Led, fault: Fault) -> None:
    """O19."""
    op = await led.begin()
    led.client.fail(fault, fault)
    assert await request_cancel(led.client, op, CANCEL)
    assert led.client.spent


async def test_cancelling_while_committing_is_allowed_and_while_aborting_needless(led: Led) -> None:
    """O19."""
    assert await request_cancel(led.client, await led.sealed(COMMITTING), CANCEL)
    led.client.sent.clear()
    aborting = await led.sealed(ABORTING, kind="other", compatible=lambda other: True)
    assert not await request_cancel(led.client, aborting, CANCEL)
    assert not (await led.client.get(aborting.cancel)).exists


async def test_sealing_freezes_the_results(led: Led) -> None:
    """O16: in many rounds, marks race with the seal; whatever landed stays, nothing comes after."""
    for number in range(15):
        op = await led.begin(kind=f"k{number}", compatible=lambda other: True)
        racing = [asyncio.create_task(mark(led.client, op.operation, str(job))) for job in range(20)]
        sealed = await seal(led.client, op, led.epoch, before=RUNNING, after=COMMITTING)
        frozen = await led.below(op)
        assert sealed.state == COMMITTING
        landed = sum(await asyncio.gather(*racing))
        assert await led.below(op) == frozen
        assert len([key for key in frozen if key.endswith(b".state") and key != op.state]) == landed
        assert not await mark(led.client, op.operation, "late")


async def test_a_stale_epoch_seals_nothing(led: Led) -> None:
    """O10, O24: not even if the table has no leader now, or the very same member again."""
    op = await led.begin()
    await resign(led.client, led.epoch)
    before = await led.everything()
    with pytest.raises(LeadershipLost):
        await seal(led.client, op, led.epoch, before=RUNNING, after=COMMITTING)
    assert await led.everything() == before
    await led.next_epoch()
    before = await led.everything()
    with pytest.raises(LeadershipLost):
        await seal(led.client, op, led.epoch, before=RUNNING, after=COMMITTING)
    assert await led.everything() == before


async def test_sealing_twice_shows_what_stands(led: Led) -> None:
    op = await led.sealed(ABORTING)
    assert (await seal(led.client, op, led.epoch, before=RUNNING, after=COMMITTING)).state == ABORTING
    gone = led.keys.operation(OperationId("t", "noop", 99))
    assert (await seal(led.client, gone, led.epoch, before=RUNNING, after=COMMITTING)).state == b""


async def test_everything_of_a_finish_happens_at_one_revision(led: Led) -> None:
    """P3, C8: what is published, the history, and the end of the operation."""
    op = await led.begin()
    await mark(led.client, op.operation, "0")
    await seal(led.client, op, led.epoch, before=RUNNING, after=COMMITTING)
    publication = Txn(then=(Put(led.keys.head, b"head"), Put(led.keys.watermarks, b"marks")))
    became, revision = await finish(
        led.client, led.keys, op, led.epoch, led.txn(op, await led.plan(publication=publication))
    )
    assert became is Finished.DONE
    written = [led.keys.head, led.keys.watermarks, led.keys.history(op.operation)]
    assert {(await led.client.get(key)).mod_revision for key in written} == {revision}
    assert await led.below(op) == []
    assert not (await led.client.get(led.client.keyspace.active_operation(op.operation))).exists
    assert not (await led.client.get(led.keys.run_ops)).exists
    assert not (await led.client.get(op.waiting)).exists
    just_before = await led.client.scan(op.prefix, revision=revision - 1)
    assert len(just_before.kvs) == 3, "argument, state and job stood until then"


async def test_the_end_of_an_operation_leaves_others_running(led: Led) -> None:
    op = await led.sealed()
    await led.begin(kind="other", compatible=lambda other: True)
    assert await led.finish(op, await led.plan()) is Finished.DONE
    left = decode_run_ops((await led.client.get(led.keys.run_ops)).value)
    assert left == {"other": ["1"]}


async def test_a_stale_epoch_finishes_nothing(led: Led) -> None:
    """O10, O24."""
    op = await led.sealed()
    plan = await led.plan(publication=Txn(then=(Put(led.keys.head, b"head"),)))
    await resign(led.client, led.epoch)
    before = await led.everything()
    with pytest.raises(LeadershipLost):
        await led.finish(op, plan)
    assert await led.everything() == before
    await led.next_epoch()
    before = await led.everything()
    with pytest.raises(LeadershipLost):
        await led.finish(op, plan)
    assert await led.everything() == before


@pytest.mark.parametrize("leave_keys", [False, True])
@pytest.mark.parametrize(
    "faults",
    [
        [Fault.LOST_REPLY],
        [Fault.LOST_REQUEST],
        [Fault.LOST_REQUEST, Fault.LOST_REPLY, Fault.LOST_REQUEST],
        [Fault.LOST_REPLY, Fault.FULL],
    ],
)
async def test_a_lost_reply_to_a_finish_is_done_exactly_once(
    led: Led, faults: list[Fault], leave_keys: bool
) -> None:
    """P8, O17, O27: also if etcd has become full meanwhile."""
    op = await led.sealed()
    head = await led.client.put(led.keys.head, b"0")
    base = await led.client.get(led.keys.head)
    plan = await led.plan(
        publication=Txn((unchanged(base),), (Put(led.keys.head, b"1"),)), leave_keys=leave_keys
    )
    led.client.fail(*faults)
    expected = Finished.BEFORE if Fault.LOST_REPLY in faults else Finished.DONE
    assert await led.finish(op, plan) is expected
    assert led.client.spent
    revision = (await led.client.get(led.keys.head)).mod_revision
    assert (await led.client.get(led.keys.head, revision=revision - 1)).mod_revision == head, "written once"
    assert (await led.client.get(led.keys.history(op.operation))).mod_revision == revision


async def test_a_finish_in_doubt_whose_line_is_gone_is_not_called_failed(led: Led) -> None:
    """P8: the next of its series has replaced the line. Its files are published, and must stay."""
    op = await led.sealed()
    plan = await led.plan()
    await led.finish(op, plan)
    await led.client.delete(led.keys.history(op.operation))
    await led.next_epoch()
    led.client.fail(Fault.LOST_REPLY)
    with pytest.raises(OutcomeUnknown):
        await led.finish(op, plan)
    with pytest.raises(LeadershipLost):
        await led.finish(op, plan)


async def test_a_full_etcd_refuses_a_finish_and_may_have_made_it(led: Led) -> None:
    """P8, O27: what was done is found; what was not done can be done later."""
    op = await led.sealed()
    led.client.fail(Fault.FULL)
    with pytest.raises(OutcomeUnknown) as caught:
        await led.finish(op, await led.plan())
    assert caught.value.code == "ETCD_OUT_OF_SPACE"
    assert not (await led.client.get(led.keys.history(op.operation))).exists
    led.client.fail(Fault.FULL_YET_DONE)
    assert await led.finish(op, await led.plan()) is Finished.BEFORE
    assert (await led.client.get(led.keys.history(op.operation))).exists


async def test_a_finish_by_a_predecessor_is_recognised(led: Led) -> None:
    """O17: its reply was lost with it."""
    op = await led.sealed()
    plan = await led.plan()
    assert await led.finish(op, plan) is Finished.DONE
    after = await led.everything()
    assert await led.finish(op, plan) is Finished.BEFORE
    assert await led.everything() == after
    led.epoch = await led.next_epoch()
    assert await led.finish(op, plan) is Finished.BEFORE


async def test_a_finish_on_changed_state_says_what_changed_and_writes_nothing(led: Led) -> None:
    """P6, O2: the head, the running operations, a cancellation."""
    op = await led.sealed()
    head = await led.client.get(led.keys.head)
    on_head = await led.plan(publication=Txn((unchanged(head),), (Put(led.keys.head, b"mine"),)))
    foreign = encode(Head(metadata_location="file:///foreign"))
    await led.client.put(led.keys.head, foreign)
    assert await led.finish(op, on_head) is Finished.MOVED
    stale = await led.plan()
    await led.begin(kind="other", compatible=lambda other: True)
    assert await led.finish(op, stale) is Finished.MOVED
    fresh = await led.plan()
    await request_cancel(led.client, op, CANCEL)
    assert await led.finish(op, fresh) is Finished.MOVED
    assert (await led.client.get(led.keys.head)).value == foreign
    assert (await led.client.get(op.state)).value == COMMITTING


async def test_either_the_cancellation_or_the_finish_wins(led: Led) -> None:
    """O19: in every round exactly one of them."""
    wins = {"cancel": 0, "finish": 0}
    for _ in range(60):
        op = await led.sealed()
        plan = await led.plan()

        async def finish_late(op: OperationKeys = op, plan: FinishParts = plan) -> Finished:
            for _ in range(sum(wins.values()) % 4):  # a cancellation reads before it writes
                await led.client.get(op.state)
            return await led.finish(op, plan)

        cancelling = request_cancel(led.client, op, CANCEL)
        outcomes = await asyncio.gather(cancelling, finish_late(), return_exceptions=True)
        became = next(outcome for outcome in outcomes if isinstance(outcome, Finished))
        asked = next(outcome for outcome in outcomes if not isinstance(outcome, Finished))
        history = await led.client.get(led.keys.history(op.operation))
        if became is Finished.DONE:
            assert isinstance(asked, OperationNotFound)
            assert history.exists
            wins["finish"] += 1
        else:
            assert asked is True
            assert not history.exists
            await seal(led.client, op, led.epoch, before=COMMITTING, after=ABORTING)
            assert await led.finish(op, await led.plan(ABORTING)) is Finished.DONE
            wins["cancel"] += 1
    assert all(wins.values()), wins


async def hangs(led: Led) -> OperationKeys:
    """A sealed operation with a call that is said to hang."""
    op = await led.sealed()
    await note_failure(led.client, op, led.epoch, CompletionRecord(running="a hook"), COMMITTING)
    return op


async def test_an_operation_aborted_during_a_hanging_call_is_never_published(
    led: Led,
) -> None:
    """C10, P8: whoever was told that it is aborted was told the truth."""
    op = await hangs(led)
    plan = await led.plan()
    abort = ResolveRecord(action=ABORT, by="me")
    await request_resolve(led.client, op, abort, request="r1")
    assert await led.finish(op, plan) is Finished.MOVED
    decided = (await led.client.get(op.resolve)).mod_revision
    acted = await apply_resolve(
        led.client, op, led.epoch, CompletionRecord(running="a hook"), abort, decided=decided, now=2.0
    )
    assert acted is not None
    assert await led.finish(op, await led.plan(ABORTING)) is Finished.DONE
    assert await led.below(op) == []


async def test_a_cancellation_before_a_decision_is_acted_on_counts(led: Led) -> None:
    """O19, C10: found by make explore; whoever was told that it is cancelled was told the truth."""
    op = await hangs(led)
    abort = ResolveRecord(action=ABORT)
    await request_resolve(led.client, op, abort, request="r1")
    assert await request_cancel(led.client, op, CANCEL)
    decided = (await led.client.get(op.resolve)).mod_revision
    record = CompletionRecord(running="a hook")
    assert await apply_resolve(led.client, op, led.epoch, record, abort, decided=decided, now=2.0) is None
    assert (await led.client.get(op.state)).value == COMMITTING


async def test_a_decision_does_not_outlive_what_it_was_made_about(led: Led) -> None:
    """C10, O19: an operation that was cancelled meanwhile can note how its abort fails, and give up."""
    op = await hangs(led)
    await request_resolve(led.client, op, ResolveRecord(action=ABORT), request="r1")
    await request_cancel(led.client, op, CANCEL)
    await seal(led.client, op, led.epoch, before=COMMITTING, after=ABORTING)
    assert not (await led.client.get(op.resolve)).exists
    failed = CompletionRecord(attempts=1, error="x")
    assert (await note_failure(led.client, op, led.epoch, failed, ABORTING))[1] is None


async def test_a_late_copy_of_a_failure_parks_nothing_again(led: Led) -> None:
    """C10, O18: somebody has decided since to try again, and the decision was acted on."""
    op, again = await led.sealed(), ResolveRecord(action=RETRY)
    parked = CompletionRecord(attempts=5, error="x", parked=True)
    await note_failure(led.client, op, led.epoch, parked, COMMITTING)
    late = next(txn for txn in led.client.sent if puts(op.completion)(txn))
    await request_resolve(led.client, op, again, request="r1")
    decided = (await led.client.get(op.resolve)).mod_revision
    assert await apply_resolve(led.client, op, led.epoch, parked, again, decided=decided, now=2.0)
    assert not (await led.client.txn(late)).succeeded
    assert not decode((await led.client.get(op.completion)).value, CompletionRecord).parked


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_a_failure_is_noted_though_a_reply_is_lost(led: Led, fault: Fault) -> None:
    """O18: the leader has to know that it is, and has no other way to."""
    op = await led.sealed()
    for attempts in (1, 2):
        led.client.fail(fault, when=puts(op.completion))
        failed = CompletionRecord(attempts=attempts, error="x")
        assert (await note_failure(led.client, op, led.epoch, failed, COMMITTING))[1] is None
        assert led.client.spent
        assert decode((await led.client.get(op.completion)).value, CompletionRecord) == failed


async def test_a_finish_is_bounded(led: Led) -> None:
    """O5."""
    op = await led.sealed(partition_count=10_000)
    for leave_keys in (False, True):
        txn = finish_txn(led.keys, op, led.epoch, await led.plan(leave_keys=leave_keys))
        assert txn.weight() <= MAX_OPS // 8


async def test_a_large_operation_is_collected_in_bites_its_argument_last(led: Led) -> None:
    """O5: ten thousand keys, none of them in the way of others for long."""
    jobs = 10_000
    op = await led.begin(partition_count=jobs)
    await mark_all(led.client, op.operation, (str(number) for number in range(jobs)))
    await seal(led.client, op, led.epoch, before=RUNNING, after=COMMITTING)
    assert await led.finish(op, await led.plan(leave_keys=True)) is Finished.DONE
    active = led.client.keyspace.active_operation(op.operation)
    assert (await led.client.get(active)).exists, "until it is collected, somebody has to know of it"
    assert not (await led.client.get(op.state)).exists
    began = await led.client.revision()

    assert await collect(led.client, led.keys, op) == jobs + 1
    assert await led.below(op) == []
    assert not (await led.client.get(active)).exists

    left = jobs + 1
    for revision in range(began + 1, await led.client.revision() + 1):
        now = len((await led.client.scan(op.prefix, revision=revision, keys_only=True)).kvs)
        assert left - now <= COLLECT_BITE + 1
        if now:
            assert (await led.client.get(op.arg, revision=revision)).exists
        left = now


class Killed(Exception):
    pass


class DyingClient(LossyClient):
    """Dies after some transactions."""

    lives = 0

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        if any(isinstance(op, DeleteRange) for op in txn.then):
            if not self.lives:
                raise Killed
            self.lives -= 1
        return await super().txn(txn, timeout_s=timeout_s)


@pytest.mark.parametrize("lives", [0, 1, 2, 3])
async def test_a_collector_that_was_killed_is_continued_by_another(
    led: Led, lives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O5: after any bite."""
    monkeypatch.setattr("distop.metastore.operations.ending.COLLECT_BITE", 20)
    op = await led.begin(partition_count=50)
    await mark_all(led.client, op.operation, [f"p{number}" for number in range(50)])
    await seal(led.client, op, led.epoch, before=RUNNING, after=COMMITTING)
    await led.finish(op, await led.plan(leave_keys=True))
    dying = DyingClient(led.client.config)
    dying.lives = lives
    with pytest.raises(Killed):
        await collect(dying, led.keys, op)
    await dying.close()
    assert (await led.client.get(op.arg)).exists
    assert (await led.client.get(led.client.keyspace.active_operation(op.operation))).exists
    await asyncio.gather(*(collect(led.client, led.keys, op) for _ in range(3)))
    assert await led.below(op) == []
    assert not (await led.client.get(led.client.keyspace.active_operation(op.operation))).exists


async def test_nothing_of_an_operation_that_lives_is_collected(led: Led) -> None:
    """O24: whatever a stale leader believes."""
    op = await led.begin()
    await mark(led.client, op.operation, "0")
    before = await led.everything()
    assert await collect(led.client, led.keys, op) == 0
    assert await led.everything() == before


async def test_neighbours_are_not_collected(led: Led) -> None:
    """O29: instance 1 next to 10 and 2."""
    ops = [await led.begin(kind="k", object=f"o{n}", compatible=lambda other: True) for n in range(3)]
    near = [replace(ops[0].operation, instance=10), replace(ops[0].operation, object="o00")]
    for neighbour in near:
        await led.client.put(led.keys.operation(neighbour).arg, b"")
    await seal(led.client, ops[0], led.epoch, before=RUNNING, after=COMMITTING)
    await led.finish(ops[0], await led.plan(leave_keys=True))
    await collect(led.client, led.keys, ops[0])
    for other in (*ops[1:], *(led.keys.operation(each) for each in near)):
        assert (await led.client.get(other.arg)).exists


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_collecting_survives_lost_replies(led: Led, fault: Fault) -> None:
    op = await led.sealed()
    await led.finish(op, await led.plan(leave_keys=True))
    led.client.fail(fault, fault, fault)
    await collect(led.client, led.keys, op)
    assert led.client.spent
    assert await led.below(op) == []


async def test_a_line_that_cannot_be_read_does_not_keep_the_whole_history(led: Led) -> None:
    lines = [led.keys.history(OperationId("flights", "noop", number)) for number in range(1, 6)]
    for at, key in enumerate(lines[1:], start=1):
        await led.client.put(key, encode(HistoryRecord(outcome="success", finished_at=float(at))))
    await led.client.put(lines[0], b"damaged")
    assert await prune(led.client, led.keys, now=10.0, keep=1) == 3
    left = await led.client.scan(led.keys.history_prefix, keys_only=True)
    assert [kv.key for kv in left.kvs] == [lines[0], lines[4]]


@pytest.mark.parametrize("error", [EtcdUnavailable("away"), ZeroDivisionError("a defect")])
async def test_pruning_that_fails_does_not_make_an_end_seem_to_have_failed(
    led: Led, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It goes on when the next operation ends."""
    monkeypatch.setattr(retention, "prune", AsyncMock(side_effect=error))
    await prune_after(led.client, led.keys, OperationId("flights", "noop", EVERY), now=10.0)


async def test_pruning_that_comes_late_takes_nothing_of_the_next_table_of_that_name(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P8, B13: a batch of that one would be applied twice, or be late."""
    keys, done = led.keys, b'{"outcome":"applied"}'
    values = {
        keys.history(OperationId("flights", "noop", 1)): encode(HISTORY),
        keys.ordering: encode(OrderingRecord(remember=1)),
        **{key: done for name in "ab" for key in (keys.applied(name), keys.unordered(DONE, name))},
    }

    async def remade() -> None:
        for key, value in values.items():
            await led.client.put(key, value)

    await remade()
    listed = led.client.scan

    async def then_remade(prefix: bytes, **how: Any) -> Listing:
        listing = await listed(prefix, **how)
        await remade()
        return listing

    monkeypatch.setattr(led.client, "scan", then_remade)
    await prune(led.client, keys, now=10.0, keep=0)
    left = {key for key in values if (await led.client.get(key)).exists}
    assert left == values.keys()
    assert decode((await led.client.get(keys.ordering)).value, OrderingRecord).forgotten == ""


async def test_a_series_that_a_newer_version_wrote_is_forgotten_with_its_last_line(led: Led) -> None:
    entry = SeriesEntry(operation="flights/noop/1", started_at=1.0, finished_at=2.0)
    note = SeriesNote(name="s", since=1.0, count=1, last=[entry])
    line = HistoryRecord(outcome="success", finished_at=2.0, series=note)
    await led.client.put(led.keys.history(OperationId("flights", "noop", 1)), encode(line))
    pointer = b'{"version":1,"operation":"flights/noop/1","later":1}'
    await led.client.put(led.keys.series("s"), pointer)
    assert await prune(led.client, led.keys, now=10.0, keep=0) == 1
    assert not (await led.client.get(led.keys.series("s"))).exists
