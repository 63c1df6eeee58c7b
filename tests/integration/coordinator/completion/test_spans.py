"""What a collector of OpenTelemetry gets of an operation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from distop.client import OperationState
from distop.metastore import crashpoints
from distop.metastore.etcd.config import EtcdConfig
from distop.process import tracing
from distop.process.tracing import VARIABLE, Tracer
from support.etcd.lossy import LossyClient
from support.services.collector import Collector, attributes, collecting
from support.services.executing import runner
from support.services.whole import coordinated, write_csv
from support.waiting import eventually

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setattr(tracing, "GATHER_S", 0.01)
    with collecting() as collector:
        monkeypatch.setenv(VARIABLE, collector.url)
        yield collector


async def test_a_collector_gets_every_part_of_an_operation_below_one_root(
    etcd_config: EtcdConfig,
    client: LossyClient,
    tmp_path: Path,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TRACEPARENT", CALLER)
    source = write_csv(tmp_path / "src", "1.csv", 0, 60)
    tracer = Tracer.from_env("executor")
    async with coordinated(etcd_config, tmp_path, client) as service, runner(client, tracer=tracer):
        done = await service.ingest(source)
        assert done.state is OperationState.SUCCEEDED
        await eventually(lambda: len(collector.named("run")) == 1)
    tracer.close()
    await eventually(lambda: collector.roots())
    (root,) = collector.roots()
    assert root.trace_id.hex() == CALLER[3:35]
    assert root.parent_span_id.hex() == CALLER[36:52]
    assert root.name == "ingest"
    told = attributes(root)
    assert (told["distop.operation"], told["distop.outcome"], told["distop.rows"]) == (
        done.name,
        "success",
        60,
    )
    assert {event.name for event in root.events} >= {"led", "taken", "sealed"}
    parts = [span for span in collector.spans if span is not root and span.span_id != root.span_id]
    names = [span.name for span in parts]
    for name in (
        "start",
        "plan",
        "run",
        "task",
        "seal",
        "preparing the commit",
        "step iceberg.append",
        "finish",
    ):
        assert names.count(name) == 1, (name, *names)
    assert {span.parent_span_id for span in parts} == {root.span_id}
    assert {span.trace_id for span in parts} == {root.trace_id}
    assert len({span.span_id for span in parts}) == len(parts)
    assert all(root.start_time_unix_nano <= span.start_time_unix_nano for span in parts)


async def test_the_root_of_a_failed_operation_says_why_and_its_jobs_are_named(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, collector: Collector
) -> None:
    tracer = Tracer.from_env("executor")
    async with coordinated(etcd_config, tmp_path, client) as service, runner(client, tracer=tracer):
        started = await service.client.start(
            "t", "noop", {"partitions": 3, "fail": ["1"]}, max_job_attempts=1
        )
        assert (await started.wait(timeout_s=60)).state is OperationState.FAILED
        await eventually(lambda: collector.named("job"))
    tracer.close()
    await eventually(lambda: collector.roots())
    (root,), (job,) = collector.roots(), collector.named("job")
    assert root.status.code == job.status.code == 2
    assert attributes(job)["distop.partition"] == "1"
    assert job.trace_id == root.trace_id
    assert job.parent_span_id == root.span_id


async def test_a_finish_whose_reply_is_lost_sends_its_root_once(
    etcd_config: EtcdConfig,
    client: LossyClient,
    tmp_path: Path,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(crashpoints, "_PLAN", "finish.after=lost")
    monkeypatch.setenv(crashpoints.ONCE_VARIABLE, str(tmp_path))
    async with coordinated(etcd_config, tmp_path, client) as service, runner(client):
        done = await (await service.client.start("t", "noop", {"partitions": 1})).result(timeout_s=60)
        await eventually(collector.roots)
    assert [attributes(root)["distop.operation"] for root in collector.roots()] == [done.name]
    assert (tmp_path / "finish.after=lost").exists()
