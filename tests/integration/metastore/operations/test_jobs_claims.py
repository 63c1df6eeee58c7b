"""Claims and checkpoints on a real etcd."""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from distop.errors import InvalidArgument, LeaseLost
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import (
    Claimed,
    Mark,
    Occupied,
    Outcome,
    Verdict,
    claim,
    claim_txn,
    mark_txn,
    release_claim,
    save_checkpoint,
    success_record,
    verdicts,
)
from distop.metastore.operations.runs import Run, release_runner
from distop.metastore.records.keyspace import OperationKeys
from distop.metastore.records.operation import ABORTING, MAX_CHECKPOINT_BYTES, ClaimRecord
from support.etcd.lossy import Fault, LossyClient
from support.services.executing import set_state, start_operation
from support.services.sidecars import Runs
from support.services.sidecars import runs as runs
from support.services.sidecars import session as session

A, B = ClaimRecord(attempt="a"), ClaimRecord(attempt="b")


@dataclass
class Job:
    """The first job of a run; the test claims it under the lease of a sidecar."""

    client: LossyClient
    run: Run
    session: LeaseSession
    """The lease of the runner."""
    sidecar: LeaseSession

    @property
    def keys(self) -> OperationKeys:
        return self.run.keys

    async def claimed(self, record: ClaimRecord) -> Claimed:
        answer = await self.try_claim(record)
        assert isinstance(answer, Claimed)
        return answer

    async def try_claim(self, record: ClaimRecord) -> Claimed | Occupied | Verdict:
        return await claim(self.client, self.run, "0", record, self.sidecar.lease_id)

    async def move(self, held: Claimed) -> Claimed | Occupied | Verdict:
        """Claim it under the other lease."""
        return await claim(self.client, self.run, "0", A, self.session.lease_id, held=held.claim)

    async def save(self, held: Claimed, value: bytes, after: KeyValue | None = None) -> KeyValue | Verdict:
        return await save_checkpoint(self.client, self.run, "0", held.claim, value, after or held.checkpoint)

    async def mark(self, held: Claimed) -> Outcome:
        sent = [Mark("0", "a", success_record("a", {}, 1.0), held.claim, True)]
        return verdicts(self.run, sent, await self.client.txn(mark_txn(self.run, sent)))[0].outcome


@pytest_asyncio.fixture
async def job(runs: Runs) -> AsyncIterator[Job]:
    async with LeaseSession(runs.client, 10) as sidecar:
        yield Job(runs.client, (await runs.take(exclusive=True)).run, runs.session, sidecar)


def outcome(answer: object) -> Outcome:
    """Of an answer that is a refusal."""
    assert isinstance(answer, Verdict)
    return answer.outcome


async def test_only_one_attempt_owns_a_job(job: Job) -> None:
    owner = await job.claimed(A)
    answer = await job.try_claim(B)
    assert isinstance(answer, Occupied)
    assert answer.holder == "a"
    await release_claim(job.client, job.run.keys.claim("0"), owner.claim)
    assert (await job.claimed(B)).claim > owner.claim


async def test_a_claim_whose_reply_was_lost_is_found_again(job: Job) -> None:
    job.client.fail(Fault.LOST_REPLY)
    held = await job.claimed(A)
    assert held.claim == (await job.client.get(job.keys.claim("0"))).create_revision


async def test_a_claim_moves_to_another_lease_and_stays_the_same(job: Job) -> None:
    held = await job.claimed(A)
    moved = await job.move(held)
    assert isinstance(moved, Claimed)
    assert moved.claim == held.claim
    await job.sidecar.close()
    assert await job.mark(held) is Outcome.WON


async def test_a_claim_that_was_lost_is_not_made_again_in_silence(job: Job) -> None:
    """O10, O13: somebody else may have owned the job in between."""
    held = await job.claimed(A)
    await job.sidecar.close()
    assert outcome(await job.move(held)) is Outcome.GONE


async def test_there_is_nothing_to_claim_of_a_job_that_is_done_or_a_run_that_is_over(job: Job) -> None:
    await job.mark(await job.claimed(A))
    assert outcome(await job.try_claim(B)) is Outcome.LOST
    await release_runner(job.client, job.run)
    assert outcome(await claim(job.client, job.run, "1", B, job.sidecar.lease_id)) is Outcome.GONE


async def test_a_lease_that_is_over_claims_nothing(job: Job) -> None:
    await job.sidecar.close()
    with pytest.raises(LeaseLost):
        await job.try_claim(A)
    assert not (await job.client.get(job.keys.claim("0"))).exists


async def test_a_checkpoint_is_what_the_next_owner_finds(job: Job) -> None:
    """O9"""
    first = await job.claimed(A)
    assert not first.checkpoint.exists
    await job.save(first, b"half")
    await release_claim(job.client, job.run.keys.claim("0"), first.claim)
    assert (await job.claimed(B)).checkpoint.value == b"half"


async def test_a_former_owner_saves_and_marks_nothing(job: Job) -> None:
    """O10: also when nobody has claimed the job since."""
    former = await job.claimed(A)
    await release_claim(job.client, job.run.keys.claim("0"), former.claim)
    for _ in range(2):
        assert outcome(await job.save(former, b"stale")) is Outcome.GONE
        assert await job.mark(former) is Outcome.GONE
        assert not (await job.client.get(job.keys.progress("0"))).exists
        await job.try_claim(B)


async def test_nothing_is_saved_for_a_run_that_is_over_or_a_job_that_is_done(job: Job) -> None:
    held = await job.claimed(A)
    await job.client.put(job.keys.job_state("0"), success_record("x", {}, 1.0))
    assert outcome(await job.save(held, b"late")) is Outcome.LOST
    await set_state(job.client, await start_operation(job.client), ABORTING)
    await job.client.put(job.keys.state, ABORTING)
    assert outcome(await job.save(held, b"late")) is Outcome.GONE


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.DOWN])
async def test_a_checkpoint_survives_what_befalls_its_transaction(job: Job, fault: Fault) -> None:
    held = await job.claimed(A)
    job.client.fail(fault)
    saved = await job.save(held, b"one")
    assert isinstance(saved, KeyValue)
    assert saved.mod_revision == (await job.client.get(job.keys.progress("0"))).mod_revision
    again = await job.save(held, b"two", saved)
    assert isinstance(again, KeyValue)
    assert again.create_revision == saved.create_revision


async def test_a_delayed_copy_of_an_older_checkpoint_changes_nothing(job: Job) -> None:
    held = await job.claimed(A)
    first = await job.save(held, b"one")
    assert isinstance(first, KeyValue)
    delayed = job.client.sent[-1]
    await job.save(held, b"two", first)
    assert not (await job.client.txn(delayed)).succeeded
    assert (await job.client.get(job.keys.progress("0"))).value == b"two"


async def test_a_delayed_copy_of_a_claim_changes_nothing_once_the_job_is_done(job: Job) -> None:
    held = await job.claimed(A)
    await job.mark(held)
    assert not (await job.client.txn(claim_txn(job.run, "0", A, job.sidecar.lease_id))).succeeded


async def test_a_checkpoint_that_is_too_large_or_unowned_is_refused(job: Job) -> None:
    held = await job.claimed(A)
    with pytest.raises(InvalidArgument, match=r"takes 1,025 bytes"):
        await job.save(held, b"x" * (MAX_CHECKPOINT_BYTES + 1))
    with pytest.raises(InvalidArgument, match="only a claimed job"):
        await save_checkpoint(job.client, job.run, "0", 0, b"x", held.checkpoint)


async def test_a_mark_takes_claim_and_checkpoint_with_it(job: Job) -> None:
    held = await job.claimed(A)
    await job.save(held, b"half")
    assert await job.mark(held) is Outcome.WON
    left = [kv.key.removeprefix(job.keys.prefix) for kv in (await job.client.scan(job.keys.prefix)).kvs]
    assert left == [b"0.state", b"arg", b"runner", b"state"]
