"""Properties that any type may declare, declared by types of users: the service knows no type by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop import DistributedOperation, Effect, JobContext, OperationView, Plan, PlanRequest
from distop.client import Client
from distop.errors import IncompatibleOperation
from distop.executor.runner import run_hosted
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.spark_jobs.index.operation import BuildIndex
from support.etcd.lossy import LossyClient
from support.refusals import refused
from support.services.executing import runner
from support.services.whole import Whole, coordinated
from support.tables.publishing import local
from support.waiting import eventually


class Restated(DistributedOperation):
    """Can run in place of an earlier run: it reports which."""

    type = "restated"
    can_replace = True

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(partition_count=1)

    def run_job(self, job: JobContext) -> None: ...

    def facts(self, operation: OperationView) -> dict[str, str]:
        return {"replaced": operation.argument.get("replaces", "")}


class Lookup(BuildIndex):
    """Builds indexes, under another name."""

    type = "lookup"


class Present(DistributedOperation):
    """Runs in the program that starts it."""

    type = "present"
    hosted = True

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(partition_count=2)

    def run_job(self, job: JobContext) -> None: ...


class Foldered(DistributedOperation):
    """Each attempt writes a folder; the first one fails."""

    type = "foldered"
    effect = Effect.APPENDS
    stages_files = True

    def plan(self, request: PlanRequest) -> Plan:
        return Plan(partition_count=1)

    def run_job(self, job: JobContext) -> Mapping[str, Any]:
        folder = local(job.staging_path(""))
        again = folder.parent.exists()
        (folder / "kind=a").mkdir(parents=True)
        (folder / "kind=a" / "part.bin").write_text(job.attempt)
        if not again:
            raise OSError("not yet")
        return {"attempt": job.attempt}


TYPES = tuple(f"{__name__}:{kind.__name__}" for kind in (Restated, Lookup, Present, Foldered))


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path) -> AsyncIterator[Whole]:
    """A table of one file, and a coordinator that knows the types; nobody runs jobs."""
    async with coordinated(etcd_config, tmp_path, client, more=TYPES) as service:
        yield service


async def test_a_run_that_can_be_replaced_gets_the_name_of_the_earlier_one(
    service: Whole, client: LossyClient
) -> None:
    async with runner(client, more=TYPES):
        for again, replaced in ((False, ""), (True, "t/restated/1")):
            started = await service.client.start("t", "restated", {}, run="nightly", again=again)
            assert (await started.result(timeout_s=60)).facts["replaced"] == replaced
    await (await service.client.start("t", "noop", {"partitions": 0}, run="once")).result(timeout_s=60)
    with refused("again_of"):
        await service.client.start("t", "noop", {"partitions": 0}, run="once", again=True)


async def test_a_batch_is_replaced_by_its_own_type_or_with_an_argument(
    service: Whole, client: LossyClient
) -> None:
    """A3: an ingest with the argument of another type would block the table. What it replaces is its own."""
    table = service.client.table("t")
    async with runner(client, more=TYPES):
        await table.enqueue("1", "restated", {})
        await eventually(service.drained)
        with refused("type", "'restated'"):
            await table.replace_batch("1")
        with refused("replaces", "t/restated/1"):
            await table.replace_batch("1", {"replaces": "t/restated/0"}, type="restated")
        await table.replace_batch("1", type="restated")
        await eventually(service.drained)
    batch = await table.batch("1")
    facts = (await service.client.operation(batch.operation).get()).facts
    assert (batch.operation, facts["replaced"]) == ("t/restated/2", "t/restated/1")


async def test_an_index_of_a_users_type_is_published_and_its_column_kept_meanwhile(
    service: Whole, client: LossyClient
) -> None:
    async with runner(client):
        await service.fill(1)
    started = await service.client.start("t", "lookup", {"column": "id"})
    with pytest.raises(IncompatibleOperation, match="index of column 'id'"):
        await service.client.table("t").alter([{"change": "drop", "column": "id"}])
    async with runner(client, more=TYPES):
        await started.result(timeout_s=60)
        keys = await service.at_rest()
    (index,) = await service.client.table("t").indexes()
    assert (index.column, index.commits_behind) == ("id", 0)
    assert not [key for key in keys if key.startswith("t.lookup.id")], "swept as an index is"


async def test_a_hosted_type_is_left_to_its_program_and_no_schedule_may_start_it(
    service: Whole, client: LossyClient, etcd_config: EtcdConfig
) -> None:
    with refused("type", "by the program"):
        await service.client.table("t").add_schedule("nightly", "present", cron="0 1 * * *")
    async with runner(client, more=TYPES):
        members = await service.client.members()
        assert all("present" not in member.types for member in members)
        assert any("restated" in member.types for member in members)

        def host() -> Any:
            with Client(service.address, timeout_s=60) as sdk:
                operation = sdk.start("t", "present", {})
                return run_hosted(
                    OperationId.parse(operation.name),
                    Present(),
                    lambda: operation.wait(timeout_s=1.0),
                    session=None,
                    etcd=etcd_config,
                )

        assert (await asyncio.to_thread(host)).jobs.succeeded == 2


async def test_folders_of_attempts_that_do_not_count_are_swept(service: Whole, client: LossyClient) -> None:
    async with runner(client, more=TYPES):
        ended = await service.run("foldered")
        ended.raise_for_outcome()
        await service.at_rest()
    (left,) = (service.location / "data").rglob("part.bin")
    assert left.parts[-3].endswith(left.read_text())
    assert list(left.parents[2].iterdir()) == [left.parents[1]]
