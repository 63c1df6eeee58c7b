"""The runner: who runs what, and what becomes of operations when runners come and go."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from distop.errors import EtcdDenied, EtcdUnavailable
from distop.executor.runner.options import RunnerOptions, ServedTypes
from distop.executor.runner.waiting import WaitingOperations
from distop.metastore.etcd.client import Listing
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import DeleteRange, Txn, TxnResult
from distop.metastore.operations.jobs import FAILED, SUCCESS
from distop.metastore.records.member import MemberRecord
from distop.metastore.records.names import prefix_end
from distop.metastore.records.operation import ABORTING, COMMITTING
from distop.metastore.records.record import encode
from distop.operations import Registry
from support.etcd.lossy import LossyClient, deletes
from support.services.executing import (
    Child,
    all_done,
    executor_process,
    job_records,
    lease,
    remove_operation,
    runner,
    runner_of,
    set_state,
    start_operation,
    take,
)
from support.types.work_types import files, traces
from support.waiting import eventually


async def test_runs_all_jobs_of_an_operation_that_was_there_before(client: LossyClient) -> None:
    """O8"""
    arg = await start_operation(client, jobs=250)
    async with runner(client) as (serving, _):
        records = await all_done(client, arg)
        assert {record.state for record in records.values()} == {SUCCESS}
        assert await runner_of(client, arg) == serving.member


async def test_a_failed_job_is_marked_with_its_code_after_its_clean_up(
    client: LossyClient, tmp_path: Path
) -> None:
    """O12, O20: permanent errors are not tried again."""
    argument = {"folder": str(tmp_path), "permanent": ["1"], "large": ["2"], "fail": {"3": 9, "4": 1}}
    arg = await start_operation(client, "traced", argument, jobs=5, max_job_attempts=2)
    async with runner(client):
        records = await all_done(client, arg)
    assert {name: record.state for name, record in records.items()} == {
        "0": SUCCESS,
        "1": FAILED,
        "2": FAILED,
        "3": FAILED,
        "4": SUCCESS,
    }
    assert records["1"].error == "JOB_FAILED: as its argument says"
    assert records["2"].error.startswith("JOB_RESULT_TOO_LARGE: ")
    assert records["3"].error == "JOB_CRASHED: OSError: try 2"
    began = [partition for _, partition, *_ in traces(tmp_path, "began")]
    assert {name: began.count(name) for name in records} == {"0": 1, "1": 1, "2": 1, "3": 2, "4": 2}
    assert files(tmp_path) == sorted(f"{records[name].attempt}.out" for name in ("0", "4"))


async def test_a_sealed_operation_stops_its_jobs_by_push(client: LossyClient, tmp_path: Path) -> None:
    """O15, O16: the others are stopped once the operation aborts, and clean up."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0", "1"]}, jobs=2)
    async with runner(client):
        await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
        await set_state(client, arg, ABORTING)
        await eventually(lambda: len(traces(tmp_path, "cleaned")) == 2)
    assert files(tmp_path) == []
    assert await job_records(client, arg) == {}


async def test_an_operation_whose_keys_vanish_stops_its_jobs(client: LossyClient, tmp_path: Path) -> None:
    """O15"""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)
    async with runner(client):
        await eventually(lambda: traces(tmp_path, "holds"))
        await remove_operation(client, arg)
        await eventually(lambda: traces(tmp_path, "cleaned"))
    assert files(tmp_path) == []


async def test_keys_removed_by_hand_stop_the_jobs_and_the_runner_does_not_spin(
    client: LossyClient, tmp_path: Path
) -> None:
    """O15: as with ``etcdctl del --prefix``, which leaves the index entry behind."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0", "1"]}, jobs=2)
    keys = client.keyspace.operation(arg.id)
    async with runner(client, slots=2, max_operations=1):
        await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
        await client.txn(Txn(then=(DeleteRange(keys.prefix, prefix_end(keys.prefix)),)))
        await eventually(lambda: len(traces(tmp_path, "cleaned")) == 2)
        await all_done(client, await start_operation(client))  # the only place is free again
        before = len(client.sent)
        # Every one of these makes it look at what there is to do.
        for _ in range(5):
            await all_done(client, await start_operation(client))
    about_it = [txn for txn in client.sent[before:] if any(c.key.startswith(keys.root) for c in txn.compares)]
    assert files(tmp_path) == []
    assert len(traces(tmp_path, "began")) == 2
    assert not about_it
    assert (await client.scan(keys.prefix)).kvs == []


async def test_another_runner_goes_on_with_the_remaining_jobs_only(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O8: a runner is killed half-way; finished jobs stay finished."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["7", "8", "9"]}, jobs=10)
    with executor_process(etcd_config, tmp_path) as first:
        await eventually(lambda: len(traces(tmp_path, "holds")) == 3)
        await eventually(lambda: job_records(client, arg), holds=lambda records: len(records) == 7)
        before = await job_records(client, arg)
        first.kill()
    async with runner(client) as (serving, _):
        (tmp_path / "release").touch()
        after = await all_done(client, arg)
        assert await runner_of(client, arg) == serving.member
    assert {name: after[name] for name in before} == before
    began = [partition for _, partition, *_ in traces(tmp_path, "began")]
    assert {name: began.count(name) for name in after} == {str(n): 2 if n >= 7 else 1 for n in range(10)}


async def test_a_runner_that_is_told_to_stop_hands_over_at_once(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """Far faster than its lease would expire, and its jobs have cleaned up."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)
    command = ("-m", "support.services.executor_main", "none", "120")
    with Child(etcd_config, tmp_path, *command) as first:
        await eventually(lambda: traces(tmp_path, "holds"))
        async with runner(client) as (serving, _):
            first.terminate()
            await eventually(lambda: runner_of(client, arg), holds=lambda member: member == serving.member)
            assert await first.exit_code() == 0
            (tmp_path / "release").touch()
            await all_done(client, arg)
    assert len(files(tmp_path)) == 1


async def test_a_runner_that_slept_past_its_lease_marks_nothing(
    client: LossyClient, etcd_config: EtcdConfig, tmp_path: Path
) -> None:
    """O10"""
    arg = await start_operation(client, "deaf", {"folder": str(tmp_path)}, jobs=1)
    with executor_process(etcd_config, tmp_path) as sleeper:
        await eventually(lambda: traces(tmp_path, "began"))
        sleeper.stop()
        await eventually(lambda: runner_of(client, arg), holds=lambda member: member == "")
        (tmp_path / "release").touch()
        async with runner(client):
            records = await all_done(client, arg)
            sleeper.resume()
            # It wakes, ends its job, finds that it counts for nothing, and cleans up.
            slept = traces(tmp_path, "began")[0][2]
            await eventually(lambda: slept in [line[2] for line in traces(tmp_path, "cleaned")])
            assert await job_records(client, arg) == records
    assert files(tmp_path) == [f"{records['0'].attempt}.out"]


async def test_a_type_that_is_not_known_here_is_left_alone(client: LossyClient) -> None:
    other = await start_operation(client, "unheard_of")
    async with runner(client):
        await all_done(client, await start_operation(client))
        assert await runner_of(client, other) == ""


async def test_an_operation_that_is_committed_is_forgotten(client: LossyClient) -> None:
    """The runner's key stays until the operation is over, and nobody runs its jobs again."""
    async with runner(client) as (serving, _):
        arg = await start_operation(client, jobs=2)
        await all_done(client, arg)
        await set_state(client, arg, COMMITTING)
        assert await runner_of(client, arg) == serving.member
        await remove_operation(client, arg)
        await all_done(client, await start_operation(client))


async def test_a_runner_whose_key_was_removed_takes_the_operation_again(
    client: LossyClient, tmp_path: Path
) -> None:
    """The jobs of the run that ended are stopped, and count for nothing."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path), "hold": ["0"]}, jobs=1)
    async with runner(client):
        await eventually(lambda: traces(tmp_path, "holds"))
        await client.delete(client.keyspace.operation(arg.id).runner)
        await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
        (tmp_path / "release").touch()
        records = await all_done(client, arg)
    (first, _), (second, _) = [(line[2], line) for line in traces(tmp_path, "began")]
    assert records["0"].attempt == second
    assert int(second.split("-")[0]) > int(first.split("-")[0])
    assert files(tmp_path) == [f"{second}.out"]


async def test_an_operation_without_jobs_is_nothing_to_do(client: LossyClient) -> None:
    """O6"""
    async with runner(client):
        empty = await start_operation(client, jobs=0)
        await all_done(client, await start_operation(client))
        assert await job_records(client, empty) == {}


async def test_tables_take_turns_at_the_slots_of_an_executor(client: LossyClient, tmp_path: Path) -> None:
    """A table with many operations does not keep others waiting."""
    held = {"folder": str(tmp_path), "hold": ["0"]}
    many = [await start_operation(client, "traced", held, table="many") for _ in range(4)]
    one = await start_operation(client, "traced", held, table="one")
    async with runner(client, max_operations=2):
        await eventually(lambda: len(traces(tmp_path, "holds")) == 2)
        assert await runner_of(client, one)
        assert len([arg for arg in many if await runner_of(client, arg)]) == 1
        (tmp_path / "release").touch()
        for arg in [*many, one]:
            await all_done(client, arg)


async def test_a_key_that_is_not_understood_does_not_hide_the_operations_of_a_dead_executor(
    client: LossyClient,
) -> None:
    arg = await start_operation(client)
    async with lease(client) as session:
        await take(client, arg, session)
    await client.put(client.keyspace.active + b"of another version", b"{}")
    async with runner(client):
        await all_done(client, arg)


class Unread(LossyClient):
    """Cannot read the keys of an operation, as often as it is told."""

    def __init__(self, config: EtcdConfig, prefix: bytes, times: int) -> None:
        super().__init__(config)
        self._prefix, self._times = prefix, times

    async def scan(self, prefix: bytes, *range: Any, **how: Any) -> Listing:
        if prefix == self._prefix and self._times:
            self._times -= 1
            raise EtcdUnavailable
        return await super().scan(prefix, *range, **how)


async def test_an_operation_that_was_taken_before_etcd_gave_no_answer_is_run(client: LossyClient) -> None:
    """Its keys are listed after it was taken: then it waits for nobody, and no other runner may take it."""
    arg = await start_operation(client, jobs=3)
    keys = client.keyspace.operation(arg.id)
    await client.put(keys.job_counts, b"{}")
    other = Unread(client.config, keys.prefix, 2)
    async with runner(other) as (serving, _):
        await all_done(client, arg)
        assert await runner_of(client, arg) == serving.member
    await other.close()


class Refused(LossyClient):
    """Loses its rights for the time of some transactions."""

    def __init__(self, config: EtcdConfig, what: Callable[[Txn], bool], times: int) -> None:
        super().__init__(config)
        self._what, self._times = what, times

    async def txn(self, txn: Txn, *, timeout_s: float | None = None) -> TxnResult:
        if self._times and self._what(txn):
            self._times -= 1
            raise EtcdDenied
        return await super().txn(txn, timeout_s=timeout_s)


async def test_an_operation_that_etcd_did_not_let_go_of_is_let_go_later(
    client: LossyClient, tmp_path: Path
) -> None:
    """Its staged files are not swept, and no other runner may take it, while this one has it."""
    arg = await start_operation(client, "traced", {"folder": str(tmp_path)}, stages_files=True)
    keys = client.keyspace.operation(arg.id)
    refused = Refused(client.config, deletes(keys.runner), 2)

    async def let_go() -> bool:
        return bool(await job_records(client, arg)) and not (await client.get(keys.runner)).exists

    async with runner(refused):
        await eventually(let_go)
    await refused.close()


async def test_a_job_that_exits_has_failed(client: LossyClient, tmp_path: Path) -> None:
    """As ``argparse`` does, and libraries that were written for the command line."""
    argument = {"folder": str(tmp_path), "exit": ["1"]}
    arg = await start_operation(client, "traced", argument, jobs=3, max_job_attempts=2)
    async with runner(client):
        records = await all_done(client, arg)
    assert [records[name].state for name in ("0", "1", "2")] == [SUCCESS, FAILED, SUCCESS]
    assert records["1"].error == "JOB_CRASHED: SystemExit: 2"
    assert files(tmp_path) == sorted(f"{records[name].attempt}.out" for name in ("0", "2"))


async def test_a_runner_without_free_slots_forgets_what_others_have_taken(client: LossyClient) -> None:
    types, member = ServedTypes(Registry()), "m"
    taken, left = [await start_operation(client) for _ in range(3)], await start_operation(client)

    async def nothing() -> None:
        pass

    async with lease(client) as session:
        record = encode(MemberRecord(id=member, types=types.names))
        await client.put(client.keyspace.executor(member), record, lease=session.lease_id)
        waiting = WaitingOperations(
            client, member, types, RunnerOptions(resync_s=0.1), [], nothing, random.Random(1)
        )
        following = waiting.follow()
        await eventually(lambda: len(waiting.operations) == 4)
        for arg in taken:
            await take(client, arg, session)
        await eventually(lambda: list(waiting.operations) == [left.id])
    for one in following:
        one.cancel()
    await asyncio.gather(*following, return_exceptions=True)
