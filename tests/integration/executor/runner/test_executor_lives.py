"""What an executor goes through: lost leases, launches that fail, jobs that are owned, watches that lag."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import MagicMock

import pytest

from distop.errors import LauncherBroken, LaunchFailed, UnknownOperationType
from distop.executor.launch.launch import Launch, LocalLauncher, LocalTasks
from distop.executor.launch.spark_job import SparkJob
from distop.executor.ledger import claims, oversight
from distop.executor.ledger.claims import ClaimDesk
from distop.executor.ledger.ledger import Ledger
from distop.executor.ledger.oversight import Oversight
from distop.executor.runner import runner as runner_module
from distop.executor.runner.operation_run import MAX_LAUNCHES
from distop.executor.runner.options import RunnerOptions, ServedTypes
from distop.executor.runner.runner import Runner
from distop.executor.runner.service import ExecutorConfig, serve
from distop.executor.task.task import TaskSummary
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.lease import LeaseSession
from distop.metastore.operations.jobs import FAILED, SUCCESS, Claimed, claim_txn
from distop.metastore.operations.runs import Run
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.operation import ABORTING, ClaimRecord
from distop.metastore.records.record import decode
from distop.operations import Registry
from support.etcd.lossy import Fault, LossyClient
from support.etcd.proxy import Proxy
from support.services.executing import all_done, runner, runner_of, set_state, start_operation, take
from support.services.leases import LEASE_S
from support.types.work_types import WORK_TYPES, files, traces
from support.waiting import eventually

L = TypeVar("L", bound=LocalLauncher)
REGISTRY = Registry(WORK_TYPES.split(","))
OPTIONS = RunnerOptions(lease_ttl_s=LEASE_S, resync_s=1.0)


async def members(client: EtcdClient) -> dict[str, int]:
    """Live executors and their leases."""
    listed = (await client.scan(client.keyspace.executors)).kvs
    return {decode(kv.value, MemberRecord).id: kv.lease for kv in listed}


async def test_an_executor_that_lost_its_lease_begins_a_new_life(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O13: another member, another run; the jobs of the old one are cancelled and count for nothing."""
    config = ExecutorConfig(etcd=etcd_config, slots=4, runner=OPTIONS)
    stop, mine = asyncio.Event(), EtcdClient(etcd_config)
    task = asyncio.create_task(serve(mine, config, ServedTypes(REGISTRY), stop))
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)
    await eventually(lambda: traces(tmp_path, "holds"))
    (first, lease), *_ = (await members(client)).items()
    assert await runner_of(client, arg) == first
    await client.lease_revoke(lease)
    await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
    (second, _), *rest = (await members(client)).items()
    assert not rest
    assert second != first
    assert await runner_of(client, arg) == second
    (tmp_path / "release").touch()
    records = await all_done(client, arg)
    assert records["0"].attempt == traces(tmp_path, "did")[-1][2]
    stop.set()
    await task
    assert await members(client) == {}
    assert files(tmp_path) == [f"{records['0'].attempt}.out"]
    await mine.close()


async def test_registration_survives_a_lost_reply(client: LossyClient) -> None:
    client.fail(Fault.LOST_REPLY, Fault.DOWN)
    async with runner(client) as (serving, _):
        await eventually(lambda: client.spent)
        assert list(await members(client)) == [serving.member]


@pytest.mark.parametrize("again", [EtcdProcess.stop, EtcdProcess.suspend], ids=["restarted", "halted"])
async def test_an_executor_waits_out_an_absence_of_etcd(
    prefix: str, tmp_path: Path, again: Callable[[EtcdProcess], None]
) -> None:
    """O27: jobs that end meanwhile are marked afterwards."""
    with EtcdProcess(tmp_path / "etcd") as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix, timeout_s=1.0)
        client, own = EtcdClient(config), EtcdClient(config)
        argument = {"folder": str(tmp_path), "hold": ["0", "1"]}
        async with runner(own, lease_ttl_s=60):  # an etcd starts slowly on a busy machine
            arg = await start_operation(client, "traced", argument, jobs=20)
            await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
            again(etcd)
            (tmp_path / "release").touch()
            await eventually(lambda: len(traces(tmp_path, "did")) == 20)
            etcd.start()
            etcd.resume()
            records = await all_done(client, arg, 30.0)
        await client.close()
        await own.close()
    assert files(tmp_path) == sorted(f"{record.attempt}.out" for record in records.values())
    assert len(traces(tmp_path, "began")) == 20


class Flaky(LocalLauncher):
    """The given number of launches fail, before anything runs."""

    def __init__(self, ledger: Ledger, failures: int, error: LaunchFailed) -> None:
        super().__init__(ledger, slots=2)
        self.failures, self.error = failures, error
        self.launches: list[list[str]] = []

    def launch(self, launch: Launch):
        self.launches.append(list(launch.partitions))
        if len(self.launches) > self.failures:
            return super().launch(launch)
        return Failing(self.error)


class Failing:
    """A launch that comes to nothing."""

    def __init__(self, error: LaunchFailed) -> None:
        self.error = error

    def cancel(self, reason: str) -> None:
        pass

    async def wait(self) -> TaskSummary:
        raise self.error


@asynccontextmanager
async def running(
    client: LossyClient, make: Callable[[Ledger], L], options: RunnerOptions = OPTIONS
) -> AsyncIterator[tuple[L, Runner, asyncio.Task[None]]]:
    """A runner with a launcher of the test's."""
    ledger, stop = Ledger(client), asyncio.Event()
    launcher = make(ledger)
    serving = Runner(ledger, launcher, ServedTypes(REGISTRY), options)
    task = asyncio.create_task(serving.serve(stop))
    try:
        yield launcher, serving, task
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)
        await ledger.close()


def flaky_runner(
    client: LossyClient, failures: int, error: LaunchFailed
) -> AbstractAsyncContextManager[tuple[Flaky, Runner, asyncio.Task[None]]]:
    return running(client, partial(Flaky, failures=failures, error=error))


async def test_a_launch_that_fails_is_repeated(client: LossyClient) -> None:
    arg = await start_operation(client, jobs=4)
    async with flaky_runner(client, 1, LaunchFailed("no executors")) as (launcher, *_):
        records = await all_done(client, arg)
        assert {record.state for record in records.values()} == {SUCCESS}
        assert launcher.launches == [["0", "1", "2", "3"]] * 2


async def test_jobs_that_cannot_be_launched_are_marked_failed_with_the_reason(client: LossyClient) -> None:
    arg = await start_operation(client, jobs=3)
    async with flaky_runner(client, 99, LaunchFailed("no executors")) as (launcher, *_):
        records = await all_done(client, arg)
        assert {record.state for record in records.values()} == {FAILED}
        assert {record.error for record in records.values()} == {"LAUNCH_FAILED: no executors"}
        assert len(launcher.launches) == MAX_LAUNCHES


async def test_a_run_whose_tasks_see_its_end_first_is_over_and_not_held_up(
    client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Their marks are refused before the watch of the run says so: no failed launch, and no other one."""
    monkeypatch.setattr(oversight, "LOOK_AFTER_S", 600.0)
    caplog.set_level("INFO", "distop")
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)

    def ends() -> list[tuple[str, str]]:
        return [(one.end, one.reason) for one in caplog.records if one.getMessage() == "run_ended"]  # type: ignore[attr-defined]

    async with flaky_runner(client, 0, LaunchFailed("")) as (launcher, *_):
        await eventually(lambda: traces(tmp_path, "holds"))
        await set_state(client, arg, ABORTING)
        (tmp_path / "release").touch()
        await eventually(ends)
        assert ends() == [("over", "the operation is aborting")]
        assert launcher.launches == [["0"]]


async def test_jobs_of_a_type_that_cannot_fail_are_launched_for_ever(
    client: LossyClient, tmp_path: Path
) -> None:
    arg = await start_operation(client, "stubborn", {"folder": str(tmp_path)}, jobs=2)
    async with flaky_runner(client, MAX_LAUNCHES, LaunchFailed("no executors")):
        records = await all_done(client, arg)
        assert {record.state for record in records.values()} == {SUCCESS}


class Unsayable(Exception):
    """As an error of Spark whose JVM has died since: its text cannot be had any more."""

    def __str__(self) -> str:
        raise ConnectionRefusedError("no JVM")


class CrashedJob(SparkJob[TaskSummary]):
    """Its thread is ended by an exception that nothing foresees."""

    def _collect(self) -> TaskSummary:
        raise Unsayable


class Crashing(LocalLauncher):
    """The threads of its launches are ended by exceptions, until it is mended."""

    mended, launches = False, 0

    def launch(self, launch: Launch) -> Any:
        self.launches += 1
        if self.mended:
            return super().launch(launch)
        session = MagicMock()
        session.sparkContext._jsc.sc().isStopped.return_value = False
        return CrashedJob(session, launch, name="crashed", pool="")


async def test_a_launch_whose_thread_is_ended_by_an_exception_has_failed(
    client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1: its runner says so with the exception, and launches the jobs again."""
    monkeypatch.setattr(runner_module, "REPORT_EVERY_S", 0.05)
    arg = await start_operation(client, "stubborn", {"folder": str(tmp_path)}, jobs=2)
    async with running(client, Crashing) as (launcher, serving, _):
        crash = "its jobs are launched again after: a task failed: ConnectionRefusedError: no JVM"
        assert await eventually(lambda: words_of(client, serving)) == [(str(arg.id), crash)]
        launcher.mended = True
        assert {record.state for record in (await all_done(client, arg)).values()} == {SUCCESS}
        assert launcher.launches > 1


class Clumsy(LocalLauncher):
    """Has a defect."""

    launches = 0

    def launch(self, launch: Launch) -> LocalTasks:
        self.launches += 1
        raise ZeroDivisionError("by a defect")


async def words_of(client: LossyClient, serving: Runner) -> list[tuple[str, str]]:
    """What an executor says that holds its operations up."""
    kv = await client.get(client.keyspace.executor(serving.member))
    return [(one.operation, one.what) for one in decode(kv.value, MemberRecord).held_up] if kv.exists else []


async def test_an_operation_that_cannot_be_run_here_is_left_to_others(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U1: and its executor says why."""
    monkeypatch.setattr(runner_module, "REPORT_EVERY_S", 0.05)
    arg = await start_operation(client, jobs=2)
    async with running(client, Clumsy) as (_, clumsy, _):
        what = await eventually(lambda: words_of(client, clumsy))
        assert what == [(str(arg.id), "left to other executors after: ZeroDivisionError: by a defect")]
        async with runner(client) as (other, _):
            await all_done(client, arg)
            assert await runner_of(client, arg) == other.member


@pytest.mark.parametrize("hosted", [False, True])
async def test_an_operation_is_tried_again_here_as_soon_as_its_rest_is_over(
    client: LossyClient, hosted: bool
) -> None:
    """And not at the next look at everything: nobody else would take one whose program hosts it."""
    arg = await start_operation(client, jobs=1)
    options = RunnerOptions(lease_ttl_s=LEASE_S, resync_s=600.0, rest_s=0.05, only=arg.id if hosted else None)
    async with running(client, Clumsy, options) as (clumsy, *_):
        await eventually(lambda: clumsy.launches, holds=lambda launches: launches > 5)


async def test_the_key_of_a_runner_whose_jobs_stage_files_goes_when_nothing_runs_any_more(
    client: LossyClient, tmp_path: Path
) -> None:
    """Only then may those files be swept."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path)}, jobs=3, stages_files=True)
    async with runner(client), runner(client):
        await all_done(client, arg)
        await eventually(lambda: runner_of(client, arg), holds=lambda member: member == "")
    assert len(traces(tmp_path, "began")) == 3


async def test_a_launcher_that_is_broken_ends_its_runner_and_frees_its_operations(
    client: LossyClient,
) -> None:
    arg = await start_operation(client, jobs=1)
    async with flaky_runner(client, 99, LauncherBroken("the JVM is gone")) as (*_, task):
        with pytest.raises(LauncherBroken):
            await task
        assert await runner_of(client, arg) == ""
        assert await members(client) == {}
        async with runner(client):
            await all_done(client, arg)


async def test_claimed_jobs_run_in_threads(client: LossyClient, tmp_path: Path) -> None:
    argument = {"folder": str(tmp_path), "steps": 3}
    arg = await start_operation(client, "owned", argument, jobs=6, exclusive=True)
    async with runner(client):
        assert {record.state for record in (await all_done(client, arg)).values()} == {SUCCESS}
    assert len(traces(tmp_path, "saved@3")) == 6


async def test_the_next_runner_resumes_from_the_checkpoint(client: LossyClient, tmp_path: Path) -> None:
    """O9"""
    argument = {"folder": str(tmp_path), "steps": 3, "hold_at": 2}
    arg = await start_operation(client, "owned", argument, jobs=1, exclusive=True)
    async with runner(client) as (_, stop):
        await eventually(lambda: traces(tmp_path, "holds"))
        stop.set()
        await eventually(lambda: traces(tmp_path, "cleaned"))
    (tmp_path / "release").touch()
    async with runner(client):
        assert (await all_done(client, arg))["0"].result == {"from": 2}


class Claimant:
    """A claimant of jobs."""

    closed = False

    def claim_lost(self, run: Run, partition: str, claim: int, reason: str) -> None:
        """Nothing to stop."""


@asynccontextmanager
async def ghost_claim(client: LossyClient) -> AsyncIterator[tuple[ClaimDesk, Run]]:
    """A desk, and a claim under its lease of an attempt that has ended: a copy that was long on its way."""
    arg = await start_operation(client, exclusive=True)
    async with LeaseSession(client, 10) as session:
        run = (await take(client, arg, session)).run
        desk = ClaimDesk(client)
        desk.begin("tester", session)
        ghost = claim_txn(run, "0", ClaimRecord(attempt="long-gone"), session.lease_id)
        assert (await client.txn(ghost)).succeeded
        yield desk, run
        await desk.close()


async def test_a_claim_that_is_nobodys_does_not_keep_others_waiting(client: LossyClient) -> None:
    async with ghost_claim(client) as (desk, run), asyncio.timeout(60):
        assert isinstance(await desk.claim(run, Claimant(), "0", "mine"), Claimed)


async def test_a_claim_that_is_nobodys_is_noticed_by_the_next_look(
    client: LossyClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: also when no task here works for its run any more, so that nothing of it is watched."""
    monkeypatch.setattr(claims, "LOOK_S", 0.1)
    async with ghost_claim(client) as (desk, run):
        assert isinstance(await desk.claim(run, Claimant(), "1", "mine"), Claimed)
        await eventually(lambda: client.get(run.keys.claim("0")), holds=lambda kv: not kv.exists)
        assert (await client.get(run.keys.claim("1"))).exists


async def test_a_claim_that_is_held_or_asked_for_is_let_be(client: LossyClient) -> None:
    async with ghost_claim(client) as (desk, run):
        oversight = Oversight(client)
        oversight.attach(run, Told(), claims=desk)
        held = await desk.claim(run, Claimant(), "0", "mine")
        assert isinstance(held, Claimed)
        other = asyncio.create_task(desk.claim(run, Claimant(), "0", "other"))
        await set_state(client, await start_operation(client), ABORTING)  # time passes
        assert not other.done()
        assert (await client.get(run.keys.claim("0"))).create_revision == held.claim
        await desk.release(run, "0", held.claim)
        assert isinstance(await other, Claimed)
        await oversight.close()


class Told:
    """Collects events of runs."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def run_over(self, run: Run, reason: str) -> None:
        self.reasons.append(reason)


async def test_the_end_of_a_run_is_noticed_although_its_history_was_compacted(
    client: LossyClient, etcd_config: EtcdConfig
) -> None:
    """O27: compaction under a watch that lags."""
    arg = await start_operation(client)
    async with LeaseSession(client, 10) as session, Proxy(etcd_config.endpoints[0]) as proxy:
        taken = await take(client, arg, session)
        lagging = EtcdClient(EtcdConfig(endpoints=(proxy.endpoint,), prefix=etcd_config.prefix))
        oversight, told = Oversight(lagging), Told()
        oversight.attach(taken.run, told)
        await eventually(lambda: proxy.connections)
        await proxy.refuse()
        await set_state(client, arg, ABORTING)
        revision = await client.put(client.keyspace.prefix + b"other", b"")
        await client.compact(revision)
        await proxy.accept()
        await eventually(lambda: told.reasons)
        assert told.reasons == ["the operation is aborting"]
        await oversight.close()
        await lagging.close()


async def test_a_task_that_attaches_after_the_end_of_its_run_is_notified_at_once(client: LossyClient) -> None:
    arg = await start_operation(client)
    async with LeaseSession(client, 10) as session:
        taken = await take(client, arg, session)
        oversight, first, second = Oversight(client), Told(), Told()
        oversight.attach(taken.run, first, known_at=taken.run.token)
        await set_state(client, arg, ABORTING)
        await eventually(lambda: first.reasons)
        oversight.attach(taken.run, second)
        await eventually(lambda: second.reasons)
        assert first.reasons == second.reasons
        await oversight.close()


def test_a_type_that_was_asked_for_must_load() -> None:
    with pytest.raises(UnknownOperationType, match="'unheard_of' cannot be loaded"):
        ServedTypes(REGISTRY, ["noop", "unheard_of"])
    assert ServedTypes(REGISTRY, ["traced"]).names == ["traced"]
