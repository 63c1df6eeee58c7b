"""Jobs that are owned, through sidecars: who has them, who gets them next, and from where."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from distop.executor.host.sidecar_folder import SidecarFolder
from distop.executor.ledger.claims import Claimant, ClaimDesk
from distop.executor.sidecar import wire
from distop.executor.sidecar.dial import dial
from distop.executor.task.task import TaskSummary
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import SUCCESS, Verdict
from distop.metastore.operations.pausing import pause_operation
from distop.metastore.operations.runs import release_runner
from distop.metastore.records.operation import ClaimRecord, OperationArg, PauseRecord
from distop.metastore.records.record import decode
from distop.metastore.tables.audit import audit_put
from support.etcd.lossy import Fault, LossyClient, puts
from support.services.executing import (
    Child,
    job_records,
    place_in,
    short_folder,
    sidecar_process,
    start_operation,
    take,
)
from support.services.leases import LEASE_S
from support.services.sidecars import connected, task, worker_process
from support.services.sidecars import place as place
from support.services.sidecars import session as session
from support.types.work_types import traces
from support.waiting import eventually


async def claim_of(client: LossyClient, arg: OperationArg) -> ClaimRecord | None:
    kv = await client.get(client.keyspace.operation(arg.id).claim("0"))
    return decode(kv.value, ClaimRecord, kv.key) if kv.exists else None


def owned(folder: Path, **argument: Any) -> dict[str, object]:
    return {"folder": str(folder), "steps": 4, **argument}


async def test_a_claimed_job_leaves_neither_claim_nor_checkpoint(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    arg = await start_operation(client, "owned", owned(tmp_path), jobs=2, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        assert await task(worker, taken) == TaskSummary(won=2)
    keys = client.keyspace.operation(arg.id)
    left = [kv.key.removeprefix(keys.prefix) for kv in (await client.scan(keys.prefix)).kvs]
    assert left == [b"0.state", b"1.state", b"arg", b"runner", b"state"]


@pytest.mark.parametrize("wrong", [{"width": 9 << 20}, {"text": "1"}], ids=["large", "text"])
async def test_a_checkpoint_that_cannot_be_saved_fails_its_job_at_once(
    client: LossyClient,
    session: LeaseSession,
    etcd_config: EtcdConfig,
    place: SidecarFolder,
    tmp_path: Path,
    wrong: dict[str, Any],
) -> None:
    arg = await start_operation(client, "owned", owned(tmp_path, **wrong), exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        assert await task(worker, taken) == TaskSummary(won=1, failed=1)
    assert (await job_records(client, arg))["0"].error.startswith("INVALID_ARGUMENT: the checkpoint ")


async def test_a_second_attempt_waits_for_the_owner_and_learns_that_it_is_done(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as one, connected(place, etcd_config) as other:
        first = task(one, taken, "a")
        await eventually(lambda: traces(tmp_path, "holds"))
        second = task(other, taken, "b")
        (tmp_path / "release").touch()
        assert await first == TaskSummary(won=1)
        assert await second == TaskSummary(lost=1)
    assert len(traces(tmp_path, "began@0")) == 1


async def test_a_worker_that_dies_frees_its_job_and_the_next_one_resumes(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O9: without waiting for a lease that the sidecar goes on renewing."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config):  # keeps the sidecar
        worker = worker_process(etcd_config, place, tmp_path, taken)
        with worker:
            await eventually(lambda: traces(tmp_path, "holds"))
            worker.kill()
            (tmp_path / "release").touch()
            with connected(place, etcd_config) as other:
                assert await asyncio.wait_for(task(other, taken, "b"), 20) == TaskSummary(won=1)
    assert traces(tmp_path, "began@2")
    assert (await job_records(client, arg))["0"].result == {"from": 2}


async def test_an_owner_whose_sidecar_slept_past_its_lease_saves_and_marks_nothing(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O10, O13"""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    keys = client.keyspace.operation(arg.id)
    async with sidecar_process(etcd_config, place, tmp_path) as sidecar:
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            owner = await claim_of(client, arg)
            sidecar.stop()

            async def expired() -> bool:
                return await claim_of(client, arg) is None

            await eventually(expired)
            checkpoint = await client.get(keys.progress("0"))
            (tmp_path / "release").touch()  # the job goes on and tries to save, through a halted sidecar
            sidecar.resume()
            summary = await asyncio.wait_for(running, 20)
    # It was cancelled and tried again under a new claim, from what it had saved while it owned the job.
    assert checkpoint.value == b"2"
    assert summary == TaskSummary(won=1)
    assert [line[2] for line in traces(tmp_path, "began@0")] == [owner.attempt if owner else ""]
    assert [line[2] for line in traces(tmp_path, "cleaned")] == [owner.attempt if owner else ""]
    saved = {line[0] for line in traces(tmp_path) if owner and line[2] == owner.attempt}
    assert "saved@3" not in saved
    assert (await job_records(client, arg))["0"].result == {"from": 2}


async def test_a_job_whose_sidecar_was_halted_past_its_lease_is_done_once_by_another_host(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O9, O10: no push can reach it, but it is cancelled: its own clock says that its claim is over.
    When the sidecar wakes up it saves and marks nothing."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with short_folder() as elsewhere:
        other_place = place_in(elsewhere, etcd_config)
        async with (
            sidecar_process(etcd_config, place, tmp_path) as sidecar,
            sidecar_process(etcd_config, other_place, tmp_path, ttl_s=LEASE_S),
        ):
            with connected(place, etcd_config) as worker, connected(other_place, etcd_config) as other:
                loser = task(worker, taken, "a")
                await eventually(lambda: traces(tmp_path, "holds"))
                first = (await claim_of(client, arg) or ClaimRecord(attempt="")).attempt
                sidecar.stop()
                winner = task(other, taken, "b")
                await eventually(lambda: [line[2] for line in traces(tmp_path, "cleaned")] == [first])
                await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
                second = (await claim_of(client, arg) or ClaimRecord(attempt="")).attempt
                (tmp_path / "release").touch()
                assert await asyncio.wait_for(winner, 20) == TaskSummary(won=1)
                sidecar.resume()
                assert await asyncio.wait_for(loser, 20) == TaskSummary(lost=1)
    assert second != first
    assert traces(tmp_path, "began@2")[0][2] == second
    by = {line[0]: line[2] for line in traces(tmp_path) if line[0].startswith(("saved@", "did"))}
    assert by == {"saved@1": first, "saved@2": first, "saved@3": second, "saved@4": second, "did": second}
    assert (await job_records(client, arg))["0"].attempt == second


async def test_a_deaf_owner_whose_sidecar_was_halted_saves_nothing_and_loses(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O10: it never looks whether it is cancelled; its next save tells it, and its claim is another's."""
    arg = await start_operation(client, "owned", owned(tmp_path, deaf_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    async with sidecar_process(etcd_config, place, tmp_path) as sidecar:
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "deaf"))
            first = (await claim_of(client, arg) or ClaimRecord(attempt="")).attempt
            sidecar.stop()

            async def expired() -> bool:
                return await claim_of(client, arg) is None

            await eventually(expired)
            sidecar.resume()
            (tmp_path / "release").touch()
            assert await asyncio.wait_for(running, 20) == TaskSummary(won=1)
    assert [line[2] for line in traces(tmp_path, "cleaned")] == [first]
    saved = [(line[0], line[2] == first) for line in traces(tmp_path) if line[0].startswith("saved@")]
    assert saved == [("saved@1", True), ("saved@2", True), ("saved@3", False), ("saved@4", False)]


@pytest.mark.parametrize("end", [Child.kill, Child.terminate], ids=["killed", "ended"])
async def test_a_claim_moves_to_the_next_sidecar(
    client: LossyClient,
    session: LeaseSession,
    etcd_config: EtcdConfig,
    place: SidecarFolder,
    tmp_path: Path,
    end: Callable[[Child], None],
) -> None:
    """The attempt goes on as if nothing had happened: its claim's key was never gone."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    claim = client.keyspace.operation(arg.id).claim("0")
    # The next one must start within the time to live of its claims.
    async with sidecar_process(etcd_config, place, tmp_path, ttl_s=20) as first:
        with connected(place, etcd_config) as worker:
            running = task(worker, taken)
            await eventually(lambda: traces(tmp_path, "holds"))
            before = await client.get(claim)
            end(first)

            async def moved() -> bool:
                return (await client.get(claim)).lease not in (0, before.lease)

            await eventually(moved)
            assert (await client.get(claim)).create_revision == before.create_revision
            (tmp_path / "release").touch()
            assert await asyncio.wait_for(running, 20) == TaskSummary(won=1)
    assert len(traces(tmp_path, "began@0")) == 1
    assert (await job_records(client, arg))["0"].state == SUCCESS


async def test_a_claim_that_is_taken_away_cancels_its_job(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O9: the loser is cancelled by push, then tries for the job again."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "holds"))
        await client.delete(client.keyspace.operation(arg.id).claim("0"))
        await eventually(lambda: traces(tmp_path, "cleaned"))
        (tmp_path / "release").touch()
        assert await asyncio.wait_for(running, 20) == TaskSummary(won=1)
    assert traces(tmp_path, "began@2")


async def test_a_job_of_a_run_that_is_over_is_free_for_another_host(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """O8, O9: the sidecar that the claim was made under lives on, and no task of the next run comes by."""
    arg = await start_operation(client, "owned", owned(tmp_path, hold_at=2), jobs=1, exclusive=True)
    taken = await take(client, arg, session)
    with short_folder() as elsewhere:
        other_place = place_in(elsewhere, etcd_config)
        with connected(place, etcd_config) as worker, connected(other_place, etcd_config) as other:
            first = task(worker, taken, "a")
            await eventually(lambda: traces(tmp_path, "holds"))
            await release_runner(client, taken.run)
            assert await first == TaskSummary(gone=1)
            (tmp_path / "release").touch()
            second = task(other, await take(client, arg, session), "b")
            assert await asyncio.wait_for(second, 20) == TaskSummary(won=1)
    assert traces(tmp_path, "began@2")


@pytest.mark.parametrize("at", ["hold_at", "deaf_at"])
async def test_a_pause_frees_the_job_once_its_attempt_has_ended(
    client: LossyClient,
    session: LeaseSession,
    etcd_config: EtcdConfig,
    place: SidecarFolder,
    tmp_path: Path,
    at: str,
) -> None:
    """O21: one that was about to end, and heard of nothing, has done its job."""
    arg = await start_operation(client, "owned", owned(tmp_path, **{at: 3}), jobs=1)
    keys = client.keyspace.operation(arg.id)
    taken = await take(client, arg, session)
    note = audit_put(client.keyspace.table(arg.table), "pause", by="jane", target=str(arg.id), at=0.0)
    with connected(place, etcd_config) as worker:
        running = task(worker, taken)
        await eventually(lambda: traces(tmp_path, "deaf" if at == "deaf_at" else "holds"))
        owner = await claim_of(client, arg)
        await pause_operation(client, keys, PauseRecord(), note)
        if at == "deaf_at":
            await eventually(lambda: any(run.over for run in worker._runs.values()))
            assert await claim_of(client, arg) == owner
            (tmp_path / "release").touch()
        assert await running == TaskSummary(**({"won": 1} if at == "deaf_at" else {"gone": 1}))

        async def free() -> bool:
            return await claim_of(client, arg) is None

        await eventually(free)


async def test_a_claim_whose_reply_was_lost_before_the_run_was_over_is_given_back(
    client: LossyClient, session: LeaseSession
) -> None:
    arg = await start_operation(client, "owned", jobs=1, exclusive=True)
    run = (await take(client, arg, session)).run
    desk, loop = ClaimDesk(client), asyncio.get_running_loop()
    desk.begin("tester", session)
    client.fail(Fault.LOST_REPLY, when=puts(run.keys.claim("0")))
    over = partial(release_runner, client, run)
    client.meanwhile = [lambda: asyncio.run_coroutine_threadsafe(over(), loop).result(5)]
    answer = await desk.claim(run, Mock(Claimant), "0", "a")
    assert isinstance(answer, Verdict)

    async def free() -> bool:
        return await claim_of(client, arg) is None

    await eventually(free)
    await desk.close()


async def test_a_task_that_leaves_its_run_leaves_no_claim(
    client: LossyClient, session: LeaseSession, etcd_config: EtcdConfig, place: SidecarFolder, tmp_path: Path
) -> None:
    """Whatever it was given last: its connection stays for other tasks."""
    arg = await start_operation(client, "owned", jobs=1, exclusive=True)
    run = (await take(client, arg, session)).run
    async with sidecar_process(etcd_config, place, tmp_path):
        with dial(place, etcd_config.to_env()) as connection:
            for message in (wire.Attach(1, str(arg.id), run.token, True), wire.Claim(2, 1, "0", "a")):
                connection.sendall(wire.frame(message))

            async def claimed() -> bool:
                return await claim_of(client, arg) is not None

            async def free() -> bool:
                return not await claimed()

            await eventually(claimed)
            await asyncio.to_thread(connection.recv, 4096)
            connection.sendall(wire.frame(wire.Detach(1)))
            await eventually(free)
