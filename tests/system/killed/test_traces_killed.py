"""The trace of an operation whose leader and executor are killed."""

from pathlib import Path

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.process.tracing import VARIABLE
from distop.proto import distop_pb2 as pb
from support.etcd.lossy import LossyClient
from support.services.collector import attributes, collecting
from support.services.coordinators import CoordinatorProcess, Service, leader_of
from support.services.executing import executor_process
from support.types.probes import PROBES
from support.types.work_types import WORK_TYPES, traces
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills a leader and an executor, and waits for their leases"),
]

TYPES = (*PROBES, *WORK_TYPES.split(","))


async def test_a_trace_outlives_its_leader_and_executor_with_one_root_and_no_orphan(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with collecting() as collector:
        monkeypatch.setenv(VARIABLE, collector.url)
        one, other = (CoordinatorProcess(etcd_config, tmp_path, operations=TYPES) for _ in range(2))
        async with one, other:
            of_one, of_other = await one.member(client), await other.member(client)
            async with Service(one.address) as service:
                await service.create_table("t")
                argument = {"folder": str(tmp_path), "partitions": 4, "hold": ["2"]}
                operation = await service.start("t", "traced", argument)
            leader = await eventually(lambda: leader_of(client, "t"))
            led, left = (one, other) if leader == of_one else (other, one)
            with executor_process(etcd_config, tmp_path) as doomed:
                await eventually(lambda: len(traces(tmp_path, "holds")) == 1)
                await eventually(lambda: collector.named("plan"))
                led.kill()
                doomed.kill()
            with executor_process(etcd_config, tmp_path) as executor:
                async with Service(left.address) as service:
                    (tmp_path / "release").touch()
                    ended = await service.ended(operation, timeout_s=60)
                assert ended.state == pb.SUCCEEDED
                await eventually(collector.roots)
                executor.terminate()
                assert await executor.exit_code() == 0
        spans = collector.spans
    (root,) = [span for span in spans if not span.parent_span_id]
    assert collector.roots() == [root]
    assert {span.trace_id for span in spans} == {root.trace_id}
    assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
    assert len({span.span_id for span in spans}) == len(spans)
    names = [span.name for span in spans]
    assert {"start", "plan", "run", "task", "seal", "finish", "traced"} <= set(names)
    member = of_other if leader == of_one else of_one
    leaders = [attributes(span)["distop.leader"] for span in spans if span.name == "seal"]
    assert leaders == [member]
    line = next(line for line in left.log_file.read_text().splitlines() if "operation_finished" in line)
    assert f"trace_id={root.trace_id.hex()}" in line
