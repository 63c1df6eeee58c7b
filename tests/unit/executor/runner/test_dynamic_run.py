"""One run of an operation with a dynamic plan, without Spark."""

import asyncio
import itertools
import random
from unittest.mock import AsyncMock, Mock

import pytest

from distop.executor.runner import operation_run
from distop.executor.runner.operation_run import DynamicOperationRun
from distop.executor.task.task import FrameResult
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.operations.runs import Run, Taken
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.operation import OperationArg


async def test_progress_is_recorded_again_after_a_defect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C11: and the defect is logged."""
    monkeypatch.setattr(operation_run, "NOTE_EVERY_S", 0.0)
    noted = asyncio.Event()
    counted = Mock(note=AsyncMock(side_effect=lambda *_: noted.set()))

    async def results() -> list[FrameResult]:
        await noted.wait()
        return []

    launched = Mock(wait=results)
    launched.progress = AsyncMock(
        side_effect=itertools.chain([RuntimeError("odd")], itertools.repeat((2, 1)))
    )
    arg = OperationArg(table="t", type="noop", instance=1)
    taken = Mock(spec=Taken, arg=arg, arg_value=b"", run=Run(Keyspace().operation(arg.id), 1))
    ledger, launcher = Mock(), Mock(launch_frame=Mock(return_value=launched))
    ledger.client.config = EtcdConfig()
    operation = Mock(frame_limit_s=Mock(return_value=60))
    run = DynamicOperationRun(ledger, launcher, operation, taken, rng=random.Random(0))
    await asyncio.wait_for(run._computed(counted), 60)
    counted.note.assert_awaited_with(2, 1)
    assert "odd" in caplog.text
