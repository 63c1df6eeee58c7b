"""Claims and checkpoints on a real etcd."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from distop.errors import InvalidArgument, LeaseLost
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.claims import (
    Claimed,
    Occupied,
    claim,
    claim_txn,
    release_claim,
    save_checkpoint,
)
from distop.metastore.operations.jobs import Mark, Outcome, Verdict, mark_txn, success_record, verdicts
from distop.metastore.operations.runs import Run, release_runner
from distop.metastore.records.operation import ABORTING, MAX_CHECKPOINT_BYTES, ClaimRecord
from support.etcd.lossy import Fault, LossyClient
from support.services.executing import set_state, start_operation, take

A, B = ClaimRecord(attempt="a"), ClaimRecord(attempt="b")


@pytest_asyncio.fixture
async def session(client: LossyClient) -> AsyncIterator[LeaseSession]:
    """The lease of the runner that the test plays."""
    async with LeaseSession(client, 10) as session:
        yield session


@pytest_asyncio.fixture
async def sidecar(client: LossyClient) -> AsyncIterator[LeaseSession]:
    """The lease that claims are made under."""
    async with LeaseSession(client, 10) as session:
        yield session


@pytest_asyncio.fixture
async def run(client: LossyClient, session: LeaseSession) -> Run:
    """A run of an operation."""
    return (await take(client, await start_operation(client, exclusive=True), session)).run


async def claimed(client: LossyClient, run: Run, record: ClaimRecord, lease: LeaseSession) -> Claimed:
    answer = await claim(client, run, "0", record, lease.lease_id)
    assert isinstance(answer, Claimed)
    return answer


async def save(client: LossyClient, run: Run, held: Claimed, value: bytes) -> KeyValue | Verdict:
    return await save_checkpoint(client, run, "0", held.claim, value, held.checkpoint)


async def mark(client: LossyClient, run: Run, held: Claimed, attempt: str = "a") -> Outcome:
    sent = [Mark("0", attempt, success_record(attempt, {}, 1.0), held.claim, True)]
    return verdicts(run, sent, await client.txn(mark_txn(run, sent)))[0].outcome


async def test_one_attempt_owns_a_job(client: LossyClient, run: Run, sidecar: LeaseSession) -> None:
    owner = await claimed(client, run, A, sidecar)
    answer = await claim(client, run, "0", B, sidecar.lease_id)
    assert isinstance(answer, Occupied)
    assert answer.holder == "a"
    await release_claim(client, run, "0", owner.claim)
    assert (await claimed(client, run, B, sidecar)).claim > owner.claim


async def test_a_claim_whose_reply_was_lost_is_found_again(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    client.fail(Fault.LOST_REPLY)
    held = await claimed(client, run, A, sidecar)
    assert held.claim == (await client.get(run.keys.claim("0"))).create_revision


async def test_a_claim_moves_to_another_lease_and_stays_the_same(
    client: LossyClient, run: Run, sidecar: LeaseSession, session: LeaseSession
) -> None:
    held = await claimed(client, run, A, sidecar)
    moved = await claim(client, run, "0", A, session.lease_id, held=held.claim)
    assert isinstance(moved, Claimed)
    assert moved.claim == held.claim
    await sidecar.close()
    assert await mark(client, run, held) is Outcome.WON


async def test_a_claim_that_was_lost_is_not_made_again_in_silence(
    client: LossyClient, run: Run, sidecar: LeaseSession, session: LeaseSession
) -> None:
    """O10, O13: somebody else may have owned the job in between."""
    held = await claimed(client, run, A, sidecar)
    await sidecar.close()
    answer = await claim(client, run, "0", A, session.lease_id, held=held.claim)
    assert isinstance(answer, Verdict)
    assert answer.outcome is Outcome.GONE


async def test_there_is_nothing_to_claim_of_a_job_that_is_done_or_a_run_that_is_over(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    await mark(client, run, await claimed(client, run, A, sidecar))
    answer = await claim(client, run, "0", B, sidecar.lease_id)
    assert isinstance(answer, Verdict)
    assert answer.outcome is Outcome.LOST
    await release_runner(client, run)
    answer = await claim(client, run, "1", B, sidecar.lease_id)
    assert isinstance(answer, Verdict)
    assert answer.outcome is Outcome.GONE


async def test_a_lease_that_is_over_claims_nothing(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    await sidecar.close()
    with pytest.raises(LeaseLost):
        await claim(client, run, "0", A, sidecar.lease_id)
    assert not (await client.get(run.keys.claim("0"))).exists


async def test_a_checkpoint_is_what_the_next_owner_finds(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    """O9"""
    first = await claimed(client, run, A, sidecar)
    assert not first.checkpoint.exists
    await save(client, run, first, b"half")
    await release_claim(client, run, "0", first.claim)
    assert (await claimed(client, run, B, sidecar)).checkpoint.value == b"half"


async def test_a_former_owner_saves_and_marks_nothing(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    """O10: also when nobody has claimed the job since."""
    former = await claimed(client, run, A, sidecar)
    await release_claim(client, run, "0", former.claim)
    for _ in range(2):
        answer = await save(client, run, former, b"stale")
        assert isinstance(answer, Verdict)
        assert answer.outcome is Outcome.GONE
        assert await mark(client, run, former) is Outcome.GONE
        assert not (await client.get(run.keys.progress("0"))).exists
        await claim(client, run, "0", B, sidecar.lease_id)


async def test_nothing_is_saved_for_a_run_that_is_over_or_a_job_that_is_done(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    held = await claimed(client, run, A, sidecar)
    await client.put(run.keys.job_state("0"), success_record("x", {}, 1.0))
    answer = await save(client, run, held, b"late")
    assert isinstance(answer, Verdict)
    assert answer.outcome is Outcome.LOST
    await set_state(client, await start_operation(client), ABORTING)
    await client.put(run.keys.state, ABORTING)
    answer = await save(client, run, held, b"late")
    assert isinstance(answer, Verdict)
    assert answer.outcome is Outcome.GONE


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.DOWN])
async def test_a_checkpoint_survives_what_befalls_its_transaction(
    client: LossyClient, run: Run, sidecar: LeaseSession, fault: Fault
) -> None:
    held = await claimed(client, run, A, sidecar)
    client.fail(fault)
    saved = await save(client, run, held, b"one")
    assert isinstance(saved, KeyValue)
    assert saved.mod_revision == (await client.get(run.keys.progress("0"))).mod_revision
    again = await save_checkpoint(client, run, "0", held.claim, b"two", saved)
    assert isinstance(again, KeyValue)
    assert again.create_revision == saved.create_revision


async def test_a_delayed_copy_of_an_older_checkpoint_changes_nothing(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    held = await claimed(client, run, A, sidecar)
    first = await save(client, run, held, b"one")
    assert isinstance(first, KeyValue)
    delayed = client.sent[-1]
    await save_checkpoint(client, run, "0", held.claim, b"two", first)
    assert not (await client.txn(delayed)).succeeded
    assert (await client.get(run.keys.progress("0"))).value == b"two"


async def test_a_delayed_copy_of_a_claim_changes_nothing_once_the_job_is_done(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    held = await claimed(client, run, A, sidecar)
    await mark(client, run, held)
    assert not (await client.txn(claim_txn(run, "0", A, sidecar.lease_id))).succeeded


async def test_a_checkpoint_that_is_too_large_or_unowned_is_refused(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    held = await claimed(client, run, A, sidecar)
    with pytest.raises(InvalidArgument, match=r"takes 1,025 bytes"):
        await save(client, run, held, b"x" * (MAX_CHECKPOINT_BYTES + 1))
    with pytest.raises(InvalidArgument, match="only a claimed job"):
        await save_checkpoint(client, run, "0", 0, b"x", held.checkpoint)


async def test_a_mark_takes_claim_and_checkpoint_with_it(
    client: LossyClient, run: Run, sidecar: LeaseSession
) -> None:
    held = await claimed(client, run, A, sidecar)
    await save(client, run, held, b"half")
    assert await mark(client, run, held) is Outcome.WON
    left = [kv.key.removeprefix(run.keys.prefix) for kv in (await client.scan(run.keys.prefix)).kvs]
    assert left == [b"0.state", b"arg", b"runner", b"state"]
