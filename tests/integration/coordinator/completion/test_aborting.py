"""What a type hears of its operations that end without success."""

from pathlib import Path
from typing import Any

import pytest

from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.records.names import OperationId
from distop.proto import distop_pb2 as pb
from distop.proto.json_text import from_json
from support.etcd.jobs import mark
from support.etcd.lossy import LossyClient
from support.services.coordinators import Service, serving
from support.waiting import eventually

ATTEMPTS = 2


async def start(service: Service, log: Path, **argument: Any) -> OperationId:
    await service.create_table("t")
    return await service.start("t", "hooked", {"log": str(log), **argument})


def said(log: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in log.read_text().splitlines()] if log.exists() else []


@pytest.mark.parametrize("code", ["JOB_FAILED", "CANCELLED"])
async def test_a_type_hears_that_its_operation_has_failed(
    etcd_config: EtcdConfig, client: LossyClient, tmp_path: Path, code: str
) -> None:
    """O16, O17, O19: and why."""
    async with serving(etcd_config) as service:
        operation = await start(service, tmp_path / "log")
        if code == "CANCELLED":
            await service.cancel(operation)
        else:
            assert await mark(client, operation, "0", error="no")
        ended = await service.ended(operation)
    assert ended.error.code == code
    assert said(tmp_path / "log") == [code]


async def test_a_type_that_cannot_bear_it_holds_up_no_table(
    etcd_config: EtcdConfig, tmp_path: Path, parks_soon: None
) -> None:
    """O17, O18: it is tried as long as a completion, then the history says so."""
    async with serving(etcd_config) as service:
        operation = await start(service, tmp_path / "log", abortRaises=1000)
        await service.cancel(operation)
        ended = await service.ended(operation)
    assert ended.state == pb.CANCELLED
    assert from_json(ended.facts_json, "facts")["abortError"] == "CRASHED: RuntimeError: not yet"
    assert said(tmp_path / "log") == ["CANCELLED"] * ATTEMPTS


async def test_the_next_leader_tells_it_again(etcd_config: EtcdConfig, tmp_path: Path) -> None:
    """O17, O24: at least once, whichever coordinator goes."""
    log = tmp_path / "log"
    async with serving(etcd_config) as service:
        operation = await start(service, log, abortRaises=2)
        await service.cancel(operation)
        assert await eventually(lambda: said(log))
    async with serving(etcd_config) as service:
        ended = await service.ended(operation)
    assert "abortError" not in from_json(ended.facts_json, "facts")
    assert len(said(log)) >= 3
