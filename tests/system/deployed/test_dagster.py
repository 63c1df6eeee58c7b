"""The package for Dagster, with the real Dagster: runs killed, interrupted, retried, and made again."""

import asyncio
import json
import os
import re
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.client import Operation, OperationState
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.repository import ROOT
from support.schedulers import check_parts, environment_with, variables_for
from support.services.executing import runner
from support.services.whole import HEADER, Whole, coordinated, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("installs Dagster, and runs it again and again"),
    pytest.mark.timeout(600),
]

DAGSTER_S = 180.0
"""What Dagster has not done by then it never does."""

DAY = "2013-01-01"
SCHEMA = {"id": "long", "kind": "string", "day": "date"}

INSTANCE = """
import json, sys
from dagster import AssetKey, DagsterInstance, DagsterEventType

instance = DagsterInstance.get()
(run, *_) = instance.get_runs(limit=1)
record = instance.get_latest_materialization_event(AssetKey(sys.argv[1]))
metadata = record.asset_materialization.metadata if record else {}
retried = [event for event in instance.all_logs(run.run_id, of_type=DagsterEventType.STEP_UP_FOR_RETRY)]
print(json.dumps({
    "status": run.status.value,
    "metadata": {name: str(value.value) for name, value in metadata.items()},
    "retried": len(retried),
}))
"""

LOSES_AN_ANSWER = """
from pathlib import Path
from distop.client import TableHandle
from distop.errors import Unavailable

watch, lost = TableHandle.watch_backfill, Path(__file__).with_suffix(".lost")

def to_the_end(self, batches):
    yield from list(watch(self, batches))
    if not lost.exists():  # each try is a process
        lost.touch()
        raise Unavailable("the network is away")

TableHandle.watch_backfill = to_the_end
"""


class Dagster:
    """One instance, and the definitions that docs/schedulers.md shows, of one table."""

    def __init__(self, python: Path, service: Whole, table: str) -> None:
        self.table, self._python, self._home = table, str(python), service.folder / f"dagster-{table}"
        self._home.mkdir()
        (self._home / "dagster.yaml").write_text("telemetry:\n  enabled: false\n")
        text = (ROOT / "docs/schedulers.md").read_text()
        found = re.search(r"<!-- definitions:begin -->\n```python\n(.*?)```", text, re.DOTALL)
        assert found
        shown = found[1].replace("/data/flights", f"{service.folder}/data/{table}")
        shown = shown.replace('table="flights"', f'table="{table}"').replace("delay=10", "delay=0.1")
        (self._home / "shown.py").write_text(shown)
        (self._home / "losing.py").write_text(LOSES_AN_ANSWER + shown)
        self._environment = variables_for("dagster") | {
            "DAGSTER_HOME": str(self._home),
            "DISTOP_ADDRESS": service.address,
        }

    async def begin(self, file: str = "shown") -> Process:
        """Materialize the partition, in a process of its own."""
        words = ["-m", "dagster", "asset", "materialize", "-f", str(self._home / f"{file}.py")]
        return await self._process(*words, "--select", self.table, "--partition", DAY)

    async def materialize(self, file: str = "shown") -> bool:
        """Whether a run succeeds."""
        process = await self.begin(file)
        output, _ = await asyncio.wait_for(process.communicate(), DAGSTER_S)
        print(output.decode()[-6000:])
        return process.returncode == 0

    async def last(self) -> Any:
        """Of the last run: its state, the metadata of its asset, how often it was retried."""
        process = await self._process("-c", INSTANCE, self.table)
        output, _ = await asyncio.wait_for(process.communicate(), DAGSTER_S)
        return json.loads(output)

    async def _process(self, *words: str) -> Process:
        return await asyncio.create_subprocess_exec(
            self._python,
            *words,
            env=self._environment,
            cwd=self._home,
            stdout=PIPE,
            stderr=STDOUT,
            start_new_session=True,
        )


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Whole]:
    """A coordinator, tables and files; the test says when jobs are run."""
    async with coordinated(etcd_config, tmp_path, client) as found:
        for table in ("flights", "trips"):
            await found.client.create_table(table, str(tmp_path / table), options={"schema": SCHEMA})
            write(found, table, 0, 10)
        yield found


def test_the_parts_of_the_package(tmp_path: Path) -> None:
    check_parts("dagster", tmp_path)


async def test_partitions_whose_runs_are_killed_interrupted_and_retried_are_there_once(
    service: Whole,
) -> None:
    """O7, P16. Two tables at the same time."""
    python = await asyncio.to_thread(environment_with, "dagster")
    flights, trips = Dagster(python, service, "flights"), Dagster(python, service, "trips")
    await asyncio.gather(
        a_killed_run_leaves_its_operation(service, flights), an_interrupted_run(service, trips)
    )
    async with runner(service.store):
        await asyncio.gather(
            a_partition_made_again_is_replaced(service, flights),
            a_bad_file_is_not_tried_again(service, trips),
        )


async def a_killed_run_leaves_its_operation(service: Whole, dagster: Dagster) -> None:
    process = await started(service, dagster)
    os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    (operation,) = await operations(service, dagster)
    assert operation.state is OperationState.RUNNING


async def an_interrupted_run(service: Whole, dagster: Dagster) -> None:
    """It cancels its operation, and its batch does not block the table."""
    process = await started(service, dagster)
    process.send_signal(signal.SIGINT)  # which it passes on to the process of the step, as Dagster does
    await asyncio.wait_for(process.communicate(), DAGSTER_S)
    (operation,) = await operations(service, dagster)
    assert operation.state is OperationState.CANCELLED
    assert not [batch async for batch in service.client.table(dagster.table).backlog()]


async def a_partition_made_again_is_replaced(service: Whole, dagster: Dagster) -> None:
    """Once, although the reply of its first try is lost."""
    assert await dagster.materialize()
    (before,) = await operations(service, dagster)
    assert await asyncio.to_thread(service.ids, dagster.table) == list(range(10))
    last = await dagster.last()
    assert (last["status"], last["metadata"]["dagster/row_count"]) == ("SUCCESS", "10")
    assert last["metadata"]["operation"] == before.name

    write(service, dagster.table, 50, 5)
    assert await dagster.materialize("losing")
    assert (await dagster.last())["retried"] == 1
    assert await asyncio.to_thread(service.ids, dagster.table) == list(range(50, 55))
    (after,) = await operations(service, dagster)
    assert after.instance == before.instance + 1


async def a_bad_file_is_not_tried_again(service: Whole, dagster: Dagster) -> None:
    """It does not block the table for the run that comes after it was put right."""
    file = write(service, dagster.table, 0, 10) / "1.csv"
    good = file.read_text()
    file.write_text(HEADER + "1,k1,2013-01-01\n" * 5 + "x,k1,2013-01-01\n")
    assert not await dagster.materialize()
    last = await dagster.last()
    assert (last["status"], last["retried"]) == ("FAILURE", 0)
    file.write_text(good)
    assert await dagster.materialize()
    assert await asyncio.to_thread(service.ids, dagster.table) == list(range(10))


async def started(service: Whole, dagster: Dagster) -> Process:
    """A run whose operation has started."""
    process = await dagster.begin()

    async def has_started() -> bool:
        assert process.returncode is None, (await process.communicate())[0].decode()[-6000:]
        return bool(await operations(service, dagster))

    await eventually(has_started, DAGSTER_S)
    return process


async def operations(service: Whole, dagster: Dagster) -> list[Operation]:
    """The last one of the table's backlog."""
    return [found async for found in service.client.operations(dagster.table)]


def write(service: Whole, table: str, start: int, rows: int) -> Path:
    return write_csv(service.folder / "data" / table / DAY, "1.csv", start, rows)
