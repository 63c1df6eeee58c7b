"""The log of commit steps: whole or absent."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from distop.errors import (
    ArgumentTooLarge,
    CorruptRecord,
    InvalidArgument,
    LeadershipLost,
    OutcomeUnknown,
    TooLateToCancel,
)
from distop.metastore.etcd.txn import MAX_OPS, MAX_REQUEST_BYTES, Put, Txn, TxnResult
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.ending import (
    Finished,
    FinishParts,
    collect,
    finish,
    finish_txn,
    request_cancel,
)
from distop.metastore.operations.steplog import MAX_STEP_BYTES, CommitStepStore
from distop.metastore.records.operation import (
    COMMITTING,
    CancelRecord,
    CommitSequence,
    HistoryRecord,
    StepRecord,
)
from support.etcd.leading import Committing
from support.etcd.lossy import Fault, LossyClient, puts
from support.etcd.starts import make_table

ODD_NAMES = ["a b", "q\"u'o", "new\nline", "tab\t", "🦆", "飞机.parquet", "100%", "a#b", "a?b=c&d", "..", "~"]
CANCEL = CancelRecord(by="me", at=1.0)

# Small chunks make many of them.
store = CommitStepStore(chunk_bytes=200)


@pytest_asyncio.fixture
async def op(client: LossyClient) -> AsyncIterator[Committing]:
    await make_table(client)
    async with LeaseSession(client, 10) as session:
        yield await Committing.of(client, session)


async def write(op: Committing, sequence: CommitSequence) -> CommitSequence | None:
    return await store.write(op.client, op.keys, op.epoch, sequence)


async def load(op: Committing) -> CommitSequence | None:
    return await store.load(op.client, op.keys)


async def test_a_log_of_steps_is_read_back_as_it_was_written(op: Committing) -> None:
    """C1, C12, C13: names of all sorts survive, and order does."""
    steps = [
        StepRecord(step="rename", argument={"source": name}, stage=n // 3) for n, name in enumerate(ODD_NAMES)
    ]
    sequence = op.sequence(*reversed(steps))
    assert await load(op) is None
    assert await write(op, sequence) == sequence
    loaded = await load(op)
    assert loaded == sequence
    assert [len(stage) for stage in sequence.stages()] == [3, 3, 3, 2]
    assert {step.argument["source"] for step in loaded.steps} == set(ODD_NAMES)
    assert "🦆" in (await op.client.get(op.keys.commit_chunk(1))).value.decode()


async def test_a_log_may_be_empty(op: Committing) -> None:
    sequence = op.sequence()
    assert await write(op, sequence) == sequence
    assert await load(op) == sequence


async def test_ten_thousand_steps_are_logged_in_bounded_transactions(
    client: LossyClient, op: Committing
) -> None:
    """C16, O5: neither one value nor one transaction holds them."""
    sequence = op.noted(10_000, "n" * 250)
    big = CommitStepStore()
    client.sent.clear()
    assert await big.write(client, op.keys, op.epoch, sequence) == sequence
    assert len(client.sent) > 5
    assert max(txn.size() for txn in client.sent) < MAX_REQUEST_BYTES / 4
    assert max(txn.weight() for txn in client.sent) < MAX_OPS
    assert await big.load(client, op.keys) == sequence


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_lost_replies_while_the_log_is_written(
    client: LossyClient, op: Committing, fault: Fault
) -> None:
    """C2: of every write in turn, the header included."""
    sequence = op.noted(12)
    count = await _writes(op, sequence)
    assert count > 3
    met: list[Txn] = []

    def first_time(txn: Txn) -> bool:
        met.append(txn)
        return met.count(txn) == 1

    client.fail(*[fault] * count, when=first_time)
    assert await write(op, sequence) == sequence
    assert client.spent
    assert len(set(met)) == count
    assert await load(op) == sequence


async def _writes(op: Committing, sequence: CommitSequence) -> int:
    other = op.sequence(*sequence.steps)
    return len(store._cut(other)) + 1


async def test_a_lost_reply_to_the_header_is_read_back(client: LossyClient, op: Committing) -> None:
    """C2."""
    sequence = op.noted(5)
    client.fail(Fault.LOST_REPLY, when=puts(op.keys.commit))
    assert await write(op, sequence) == sequence
    assert await load(op) == sequence


class _Dies(Exception):
    pass


async def test_a_writer_that_dies_anywhere_leaves_no_log_or_all_of_it(
    client: LossyClient, op: Committing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C2: and the next writer's log, shorter or longer, is whole, without a chunk of the dead one."""
    long, short = op.noted(20, "long"), op.noted(7, "s")
    sends = client.txn
    total = await _writes(op, long)
    for survived in range(total):
        left = survived

        async def mortal(txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
            nonlocal left
            if any(isinstance(step, Put) for step in txn.then):
                if not left:
                    raise _Dies
                left -= 1
            return await sends(txn, timeout_s=timeout_s)

        monkeypatch.setattr(client, "txn", mortal)
        with pytest.raises(_Dies):
            await write(op, long)
        monkeypatch.undo()
        assert await load(op) is None
    assert await write(op, short) == short
    assert await load(op) == short
    assert len(await op.log_keys()) == await _writes(op, short)


async def test_the_log_that_stands_wins(op: Committing) -> None:
    """C1: a leader that computes the steps again executes those that were logged first."""
    first, second = op.noted(5, "first"), op.noted(9, "second")
    assert await write(op, first) == first
    assert await write(op, second) == first
    op.epoch = await op.depose()
    assert await write(op, second) == first
    assert await load(op) == first


async def test_a_late_copy_of_a_chunk_does_not_get_into_a_log(client: LossyClient, op: Committing) -> None:
    """C2: its sender had given it up; it arrives between the chunks and the header of another log."""
    old, new = op.noted(5, "old"), op.noted(5, "new")
    client.fail(Fault.DOWN, when=puts(op.keys.commit))
    with pytest.raises(Exception, match="etcd does not answer"):
        await write(op, old)
    late = next(txn for txn in client.sent if puts(op.keys.commit_chunk(0))(txn))
    sends = client.txn
    arrived = False

    async def arrives(txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        nonlocal arrived
        if puts(op.keys.commit)(txn) and not arrived:
            arrived = True
            assert (await sends(late)).succeeded
        return await sends(txn, timeout_s=timeout_s)

    client.txn = arrives  # type: ignore[method-assign]
    assert await write(op, new) == new
    assert arrived
    assert await load(op) == new
    assert not (await sends(late)).succeeded, "nothing of a log changes once it is whole"


async def test_a_leader_that_was_replaced_logs_nothing(op: Committing) -> None:
    """O24."""
    await op.depose()
    with pytest.raises(LeadershipLost):
        await write(op, op.noted(5))
    assert await op.log_keys() == []


async def test_an_operation_that_was_cancelled_gets_no_log(client: LossyClient, op: Committing) -> None:
    """O19: the request came before the header."""
    assert await request_cancel(client, op.keys, CANCEL)
    assert await write(op, op.noted(5)) is None
    assert await load(op) is None


async def test_a_logged_operation_can_no_longer_be_cancelled(client: LossyClient, op: Committing) -> None:
    """O19: it tells the truth."""
    await write(op, op.noted(5))
    with pytest.raises(TooLateToCancel) as caught:
        await request_cancel(client, op.keys, CANCEL)
    assert caught.value.code == "TOO_LATE_TO_CANCEL"
    assert not (await client.get(op.keys.cancel)).exists


@pytest.mark.parametrize("leave_keys", [True, False])
async def test_the_end_of_an_operation_takes_its_log_along(
    client: LossyClient, op: Committing, leave_keys: bool
) -> None:
    """B15, O19."""
    await write(op, op.noted(20))
    run_ops = await client.get(op.table.run_ops)
    plan = FinishParts(
        sealed=COMMITTING, run_ops=run_ops, history=HistoryRecord(outcome="success"), leave_keys=leave_keys
    )
    txn = finish_txn(op.table, op.keys, op.epoch, plan)
    assert (await finish(client, op.table, op.keys, op.epoch, txn))[0] is Finished.DONE
    if leave_keys:
        await collect(client, op.table, op.keys)
    assert (await client.scan(op.keys.root)).kvs == []
    assert await write(op, op.noted(5)) is None


async def test_a_damaged_log_is_refused(client: LossyClient, op: Committing) -> None:
    """C2, U3."""
    sequence = op.noted(20)
    await write(op, sequence)
    chunk = await client.get(op.keys.commit_chunk(1))
    for damage in (
        b"{",
        chunk.value.replace(b'"n":', b'"m":'),
        chunk.value.replace(sequence.digest.encode(), b"x"),
    ):
        await client.put(chunk.key, damage)
        with pytest.raises(CorruptRecord):
            await load(op)
    await client.delete(chunk.key)
    with pytest.raises(CorruptRecord, match="chunks"):
        await load(op)
    await client.put(chunk.key, chunk.value)
    assert await load(op) == sequence


async def test_a_log_of_steps_that_is_too_large_is_refused_before_anything_is_written(op: Committing) -> None:
    """U3."""
    with pytest.raises(ArgumentTooLarge, match="step 0"):
        await write(op, op.noted(1, "x" * (MAX_STEP_BYTES + 1)))
    with pytest.raises(ArgumentTooLarge, match="100 x 200"):
        await write(op, op.noted(2_000))
    with pytest.raises(InvalidArgument, match="not JSON"):
        op.noted(1, "\udcff")
    assert await op.log_keys() == []


async def test_an_etcd_that_stays_silent_leaves_it_open(client: LossyClient, op: Committing) -> None:
    """P8."""
    client.config = replace(client.config, timeout_s=0.2)
    client.fail(*[Fault.LOST_REQUEST] * 50, when=puts(op.keys.commit))
    with pytest.raises(OutcomeUnknown):
        await write(op, op.noted(5))
    client.fail()
    assert await load(op) is None
