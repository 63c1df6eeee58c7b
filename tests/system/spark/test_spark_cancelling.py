"""Queries that Spark cannot cancel: the executor whose Spark it is goes with them."""

import asyncio
from typing import Any

import pytest

from distop.errors import LauncherBroken, LaunchFailed
from distop.executor.launch import spark_job
from distop.executor.launch.spark_job import SparkJob
from support.waiting import eventually

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("waits until queries that Spark cannot cancel end by themselves"),
]

ROW = "distop.test.row"
"""A property of the JVM: the row of which query is begun, or ended."""


class SlowRow(SparkJob[Any]):
    """One row that takes some seconds, in which Spark does not look whether anybody still wants it."""

    def _collect(self) -> Any:
        begun, ended = (
            f"reflect('java.lang.System', 'setProperty', '{ROW}', '{self._name} {what}')"
            for what in ("begun", "ended")
        )
        wait = f"reflect('java.lang.Thread', 'sleep', {self._launch}L)"
        return self._session.sql(f"SELECT {begun}, {wait}, {ended} FROM range(0, 1, 1, 1)").collect()


@pytest.mark.parametrize(
    ("owned", "milliseconds", "error"), [(True, 8_000, LauncherBroken), (False, 3_000, LaunchFailed)]
)
async def test_an_executor_goes_with_a_query_that_cannot_be_cancelled(
    spark: Any, owned: bool, milliseconds: Any, error: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1: nothing runs after a cancel. The executor waits for a session of the user's program."""
    monkeypatch.setattr(spark_job, "ENDS_WITHIN_S", 1.0)
    system, name = spark._jvm.java.lang.System, f"owned={owned}"
    job = SlowRow(spark, milliseconds, name=name, pool="distop-0", owned=owned)
    await eventually(lambda: system.getProperty(ROW) == f"{name} begun", 180)
    job.cancel("nobody wants it")
    with pytest.raises(LaunchFailed) as raised:
        await asyncio.wait_for(job.wait(), 60)
    assert type(raised.value) is error
    assert (system.getProperty(ROW) == f"{name} begun") is owned
    await eventually(lambda: system.getProperty(ROW) == f"{name} ended", 180)
