"""Jobs that are owned, through sidecars: who has them, who gets them next, and from where."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from distop.executor.ledger.claims import Claimant, ClaimDesk
from distop.executor.sidecar import client as sidecar_client
from distop.executor.sidecar import wire
from distop.executor.sidecar.client import SidecarClient, SidecarUnavailable, dial
from distop.executor.task.session import Ownership, TaskSession
from distop.executor.task.task import TaskSummary
from distop.metastore.operations import jobs
from distop.metastore.operations.jobs import SUCCESS, Claimed, Mark, Verdict, success_record
from distop.metastore.operations.pausing import pause_operation
from distop.metastore.operations.runs import Taken, release_runner
from distop.metastore.records.operation import PauseRecord
from distop.metastore.tables.audit import audit_put
from support.etcd.lossy import Fault, deletes, puts
from support.services.executing import Child, place_in, short_folder, sidecar_process, take
from support.services.leases import LEASE_S
from support.services.sidecars import Host, connected, task
from support.services.sidecars import host as host
from support.services.sidecars import session as session
from support.services.sidecars import sidecar_folder as sidecar_folder
from support.waiting import eventually


def owned(folder: Path, **argument: Any) -> dict[str, object]:
    return {"folder": str(folder), "steps": 4, **argument}


async def test_a_claimed_job_leaves_neither_claim_nor_checkpoint(host: Host) -> None:
    taken = await host.take("owned", owned(host.folder), jobs=2, exclusive=True)
    with host.connected() as worker:
        assert await task(worker, taken) == TaskSummary(won=2)
    keys = taken.run.keys
    left = [kv.key.removeprefix(keys.prefix) for kv in (await host.client.scan(keys.prefix)).kvs]
    assert left == [b"0.state", b"1.state", b"arg", b"runner", b"state"]


@pytest.mark.parametrize("wrong", [{"width": 9 << 20}, {"text": "1"}], ids=["large", "text"])
async def test_a_checkpoint_that_cannot_be_saved_fails_its_job_at_once(
    host: Host, wrong: dict[str, Any]
) -> None:
    taken = await host.take("owned", owned(host.folder, **wrong), exclusive=True)
    with host.connected() as worker:
        assert await task(worker, taken) == TaskSummary(won=1, failed=1)
    assert (await host.records(taken))["0"].error.startswith("INVALID_ARGUMENT: the checkpoint ")


async def test_a_second_attempt_waits_for_the_owner_and_learns_that_it_is_done(host: Host) -> None:
    taken = await host.take("owned", owned(host.folder, hold_at=2), jobs=1, exclusive=True)
    with host.connected() as one, host.connected() as other:
        first = task(one, taken, "a")
        await eventually(lambda: host.traces("holds"))
        second = task(other, taken, "b")
        host.release()
        assert await first == TaskSummary(won=1)
        assert await second == TaskSummary(lost=1)
    assert len(host.traces("began@0")) == 1


async def test_a_worker_that_dies_frees_its_job_and_the_next_one_resumes(host: Host) -> None:
    """O9: without waiting for a lease that the sidecar goes on renewing."""
    taken = await host.take("owned", owned(host.folder, hold_at=2), jobs=1, exclusive=True)
    with host.connected() as other, host.worker(taken) as worker:  # the first keeps the sidecar
        await eventually(lambda: host.traces("holds"))
        worker.kill()
        host.release()
        assert await asyncio.wait_for(task(other, taken, "b"), 60) == TaskSummary(won=1)
    assert host.traces("began@2")
    assert (await host.records(taken))["0"].result == {"from": 2}


async def test_an_owner_whose_sidecar_slept_past_its_lease_saves_and_marks_nothing(host: Host) -> None:
    """O10, O13"""
    taken = await host.take("owned", owned(host.folder, hold_at=2), jobs=1, exclusive=True)
    async with host.sidecar() as sidecar:
        with host.connected() as worker:
            running = task(worker, taken)
            await eventually(lambda: host.traces("holds"))
            owner = await host.owner(taken)
            sidecar.stop()
            await eventually(lambda: host.is_free(taken))
            checkpoint = await host.client.get(taken.run.keys.progress("0"))
            host.release()  # the job goes on and tries to save, through a halted sidecar
            sidecar.resume()
            summary = await asyncio.wait_for(running, 60)
    # It was cancelled and tried again under a new claim, from what it had saved while it owned the job.
    assert checkpoint.value == b"2"
    assert summary == TaskSummary(won=1)
    assert [line[2] for line in host.traces("began@0")] == [owner]
    assert [line[2] for line in host.traces("cleaned")] == [owner]
    saved = {line[0] for line in host.traces() if line[2] == owner}
    assert "saved@3" not in saved
    assert (await host.records(taken))["0"].result == {"from": 2}


async def test_a_job_whose_sidecar_was_halted_past_its_lease_is_done_once_by_another_host(host: Host) -> None:
    """O9, O10: no push can reach it, but it is cancelled: its own clock says that its claim is over.
    When the sidecar wakes up it saves and marks nothing."""
    taken = await host.take("owned", owned(host.folder, hold_at=2), jobs=1, exclusive=True)
    with short_folder() as elsewhere:
        other_place = place_in(elsewhere, host.etcd)
        async with (
            host.sidecar() as sidecar,
            sidecar_process(host.etcd, other_place, host.folder, ttl_s=LEASE_S),
        ):
            with host.connected() as worker, connected(other_place, host.etcd) as other:
                loser = task(worker, taken, "a")
                await eventually(lambda: host.traces("holds"))
                first = await host.owner(taken)
                sidecar.stop()
                winner = task(other, taken, "b")
                await eventually(lambda: [line[2] for line in host.traces("cleaned")] == [first])
                await eventually(lambda: len(host.traces("holds")) == 2)
                second = await host.owner(taken)
                host.release()
                assert await asyncio.wait_for(winner, 60) == TaskSummary(won=1)
                sidecar.resume()
                assert await asyncio.wait_for(loser, 60) == TaskSummary(lost=1)
    assert second != first
    assert host.traces("began@2")[0][2] == second
    by = {line[0]: line[2] for line in host.traces() if line[0].startswith(("saved@", "did"))}
    assert by == {"saved@1": first, "saved@2": first, "saved@3": second, "saved@4": second, "did": second}
    assert (await host.records(taken))["0"].attempt == second


async def test_a_deaf_owner_whose_sidecar_was_halted_saves_nothing_and_loses(host: Host) -> None:
    """O10: it never looks whether it is cancelled; its next save tells it, and its claim is another's."""
    taken = await host.take("owned", owned(host.folder, deaf_at=2), jobs=1, exclusive=True)
    async with host.sidecar() as sidecar:
        with host.connected() as worker:
            running = task(worker, taken)
            await eventually(lambda: host.traces("deaf"))
            first = await host.owner(taken)
            sidecar.stop()
            await eventually(lambda: host.is_free(taken))
            sidecar.resume()
            host.release()
            assert await asyncio.wait_for(running, 60) == TaskSummary(won=1)
    assert [line[2] for line in host.traces("cleaned")] == [first]
    saved = [(line[0], line[2] == first) for line in host.traces() if line[0].startswith("saved@")]
    assert saved == [("saved@1", True), ("saved@2", True), ("saved@3", False), ("saved@4", False)]


@pytest.mark.parametrize("end", [Child.kill, Child.terminate], ids=["killed", "ended"])
async def test_a_claim_moves_to_the_next_sidecar(host: Host, end: Callable[[Child], None]) -> None:
    """The attempt goes on as if nothing had happened: its claim's key was never gone."""
    taken = await host.take("owned", owned(host.folder, hold_at=2), jobs=1, exclusive=True)
    claim = taken.run.keys.claim("0")
    # The next one must start within the time to live of its claims.
    async with host.sidecar(ttl_s=20) as first:
        with host.connected() as worker:
            running = task(worker, taken)
            await eventually(lambda: host.traces("holds"))
            before = await host.client.get(claim)
            end(first)
            await eventually(
                lambda: host.client.get(claim), holds=lambda kv: kv.lease not in (0, before.lease)
            )
            assert (await host.client.get(claim)).create_revision == before.create_revision
            host.release()
            assert await asyncio.wait_for(running, 60) == TaskSummary(won=1)
    assert len(host.traces("began@0")) == 1
    assert (await host.records(taken))["0"].state == SUCCESS


async def test_a_claim_that_is_taken_away_cancels_its_job(host: Host) -> None:
    """O9: the loser is cancelled by push, then tries for the job again."""
    taken = await host.take("owned", owned(host.folder, hold_at=2), jobs=1, exclusive=True)
    with host.connected() as worker:
        running = task(worker, taken)
        await eventually(lambda: host.traces("holds"))
        await host.client.delete(taken.run.keys.claim("0"))
        await eventually(lambda: host.traces("cleaned"))
        host.release()
        assert await asyncio.wait_for(running, 60) == TaskSummary(won=1)
    assert host.traces("began@2")


async def test_a_job_of_a_run_that_is_over_is_free_for_another_host(host: Host) -> None:
    """O8, O9: the sidecar that the claim was made under lives on, and no task of the next run comes by."""
    taken = await host.take("owned", owned(host.folder, hold_at=2), jobs=1, exclusive=True)
    with short_folder() as elsewhere:
        other_place = place_in(elsewhere, host.etcd)
        with host.connected() as worker, connected(other_place, host.etcd) as other:
            first = task(worker, taken, "a")
            await eventually(lambda: host.traces("holds"))
            await release_runner(host.client, taken.run)
            assert await first == TaskSummary(gone=1)
            host.release()
            second = task(other, await take(host.client, taken.arg, host.session), "b")
            assert await asyncio.wait_for(second, 60) == TaskSummary(won=1)
    assert host.traces("began@2")


@pytest.mark.parametrize("at", ["hold_at", "deaf_at"])
async def test_a_pause_frees_the_job_once_its_attempt_has_ended(host: Host, at: str) -> None:
    """O21: one that was about to end, and heard of nothing, has done its job."""
    taken = await host.take("owned", owned(host.folder, **{at: 3}), jobs=1)
    table = host.client.keyspace.table(taken.arg.table)
    note = audit_put(table, "pause", by="jane", target=str(taken.arg.id), at=0.0)
    with host.connected() as worker:
        running = task(worker, taken)
        await eventually(lambda: host.traces("deaf" if at == "deaf_at" else "holds"))
        owner = await host.owner(taken)
        await pause_operation(host.client, taken.run.keys, PauseRecord(), note)
        if at == "deaf_at":
            await eventually(lambda: any(run.over for run in worker._runs.values()))
            assert await host.owner(taken) == owner
            host.release()
        assert await running == (TaskSummary(won=1) if at == "deaf_at" else TaskSummary(gone=1))
        await eventually(lambda: host.is_free(taken))


async def test_a_claim_whose_reply_was_lost_before_the_run_was_over_is_given_back(host: Host) -> None:
    taken = await host.take("owned", jobs=1, exclusive=True)
    desk, loop = ClaimDesk(host.client), asyncio.get_running_loop()
    desk.begin("tester", host.session)
    host.client.fail(Fault.LOST_REPLY, when=puts(taken.run.keys.claim("0")))
    over = partial(release_runner, host.client, taken.run)
    host.client.meanwhile = [lambda: asyncio.run_coroutine_threadsafe(over(), loop).result(5)]
    assert isinstance(await desk.claim(taken.run, Mock(Claimant), "0", "a"), Verdict)
    await eventually(lambda: host.is_free(taken))
    await desk.close()


async def test_a_claim_that_etcd_did_not_let_go_of_is_let_go_later(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: its run is over, and nothing of it is watched any more; the lease goes on."""
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.1)
    taken = await host.take("owned", jobs=1, exclusive=True)
    desk = ClaimDesk(host.client)
    desk.begin("tester", host.session)
    assert isinstance(await desk.claim(taken.run, Mock(Claimant, closed=False), "0", "a"), Claimed)
    host.client.fail(*[Fault.DOWN] * 20, when=deletes(taken.run.keys.claim("0")))
    desk.claims_over(taken.run)
    await eventually(lambda: host.is_free(taken))
    assert host.client.spent
    await desk.close()


async def test_a_task_that_leaves_its_run_leaves_no_claim(host: Host) -> None:
    """Whatever it is given last, also after it has left: its connection stays for other tasks."""
    taken = await host.take("owned", jobs=1, exclusive=True)
    first, second = (wire.Attach(number, str(taken.arg.id), taken.run.token, True) for number in (1, 2))
    async with host.sidecar():
        with dial(host.sidecar_folder, host.etcd.to_env()) as connection:
            for message in (first, wire.ClaimRequest(3, 1, "0", "a"), wire.Detach(1)):
                connection.sendall(wire.frame(message))
            for message in (second, wire.ClaimRequest(4, 2, "0", "b")):
                connection.sendall(wire.frame(message))
            await eventually(lambda: host.owner(taken), holds=lambda attempt: attempt == "b")
            connection.sendall(wire.frame(wire.Detach(2)))
            await eventually(lambda: host.is_free(taken))


def session_of(worker: SidecarClient, taken: Taken) -> TaskSession[str]:
    return TaskSession(worker, str(taken.arg.id), taken.run.token, claims=True)


async def test_a_task_that_fails_leaves_no_claim(host: Host) -> None:
    """Such as one whose mark had no answer. Spark tries again in the same worker process, whose connection
    would keep the claim from the next attempt for as long as that asks for it."""
    taken = await host.take("owned", owned(host.folder), jobs=1, exclusive=True)
    async with host.sidecar():
        with host.connected() as worker:
            failed = session_of(worker, taken)
            assert isinstance(await asyncio.to_thread(failed.claim, "0", "a"), Ownership)
            failed.close()
            assert await asyncio.wait_for(task(worker, taken, "b"), 60) == TaskSummary(won=1)


async def test_a_claim_that_is_given_too_late_is_no_tasks(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sidecar was halted for longer than its task waits, and reads the request once it goes on."""
    taken = await host.take("owned", owned(host.folder), jobs=1, exclusive=True)
    async with host.sidecar() as sidecar:
        with host.connected() as worker:
            sidecar.stop()
            with monkeypatch.context() as patched:
                patched.setattr(sidecar_client, "ANSWER_TIMEOUT_S", 0.2)
                with pytest.raises(SidecarUnavailable):
                    await task(worker, taken, "a")
            sidecar.resume()
            assert await asyncio.wait_for(task(worker, taken, "b"), 60) == TaskSummary(won=1)


async def test_marks_of_a_run_that_was_left_hold_up_no_other_task(host: Host) -> None:
    """The next sidecar does not know that run: it would end each connection that sends them again."""
    left = await host.take("owned", jobs=1, exclusive=True)
    taken = await host.take("traced", {"folder": str(host.folder), "hold": ["0"]}, jobs=1, table="u")
    async with host.sidecar() as sidecar:
        with host.connected() as worker:
            running = task(worker, taken)
            await eventually(lambda: host.traces("holds"))
            failed = session_of(worker, left)
            claimed = await asyncio.to_thread(failed.claim, "0", "a")
            assert isinstance(claimed, Ownership)
            sidecar.stop()
            failed.mark(Mark("0", "a", success_record("a", {}, 0.0), claimed.claim), "0")
            failed.close()
            sidecar.kill()
            host.release()
            assert await asyncio.wait_for(running, 60) == TaskSummary(won=1)
