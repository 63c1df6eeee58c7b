"""Noticing that a run is over, without etcd."""

import asyncio
from unittest.mock import AsyncMock, Mock

import pytest

from distop.executor.ledger import oversight
from distop.executor.ledger.oversight import Oversight
from distop.metastore.operations.runs import RUNNER_GONE, Run
from distop.metastore.records.keyspace import Keyspace
from distop.metastore.records.names import OperationId


async def test_the_end_of_a_run_is_noticed_after_a_defect(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C11: and the defect is logged."""
    for pause in ("LOOK_AFTER_S", "_RETRY_S"):
        monkeypatch.setattr(oversight, pause, 0.0)
    overseeing = Oversight(Mock(keyspace=Keyspace()))
    over = asyncio.Event()
    listener = Mock(run_over=Mock(side_effect=lambda *_: over.set()))
    run = Run(Keyspace().operation(OperationId("t", "noop", 1)), 1)
    looking = AsyncMock(side_effect=[RuntimeError("odd"), RUNNER_GONE])
    monkeypatch.setattr(overseeing, "_until_over", looking)
    monkeypatch.setattr(overseeing, "_follow_pauses", AsyncMock(side_effect=RuntimeError("odder")))
    overseeing.attach(run, listener)
    await asyncio.wait_for(over.wait(), 60)
    listener.run_over.assert_called_once_with(run, RUNNER_GONE)
    await overseeing.close()
    logged = {str(record.exc_info[1]) for record in caplog.records if record.exc_info}
    assert {"odd", "odder"} <= logged
