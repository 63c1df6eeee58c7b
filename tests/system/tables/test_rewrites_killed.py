"""The processes of a compaction and of merges die or lose a reply, while others write."""

import asyncio
import json
import random
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from distop.client import AsyncClient, TableOptions
from distop.metastore.crashpoints import ONCE_VARIABLE, VARIABLE
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from support.services.backlogs import drained
from support.services.coordinators import CoordinatorProcess, config_of, running
from support.services.executing import Child, runner
from support.services.leases import TTL_S
from support.services.whole import Whole, coordinated, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("kills or halts a process while another program writes, and waits for its lease"),
]


@dataclass
class Place:
    """What a test starts, which ends with it."""

    stack: AsyncExitStack
    etcd: EtcdConfig
    store: EtcdClient
    folder: Path

    async def filled(self, files: int) -> None:
        """Make the table ``t`` of so many files of ten rows each; nobody leads it any more then."""
        async with coordinated(self.etcd, self.folder, self.store) as service, runner(self.store):
            for number in range(files):
                source = write_csv(self.folder / f"s{number}", "1.csv", 10 * number, 10)
                (await service.ingest(source)).raise_for_outcome()
            await service.at_rest()

    async def coordinator(self, crash: str) -> tuple[CoordinatorProcess, AsyncClient]:
        process = CoordinatorProcess(self.etcd, self.folder, crash=crash)
        await self.stack.enter_async_context(process)
        await process.member(self.store)
        return process, await self.stack.enter_async_context(AsyncClient(process.address, timeout_s=60))

    async def another(self) -> Whole:
        """A coordinator that does not die."""
        other = await self.stack.enter_async_context(running(config_of(self.etcd)))
        sdk = await self.stack.enter_async_context(AsyncClient(other.address, timeout_s=60))
        return Whole(self.etcd, self.store, sdk, self.folder)

    def child(self, *command: str, **environment: str) -> Child:
        return self.stack.enter_context(Child(self.etcd, self.folder, "-m", *command, **environment))

    def appender(self, rows: int, start: int) -> Child:
        """Another program, which appends so many rows."""
        return self.child("support.tables.foreign_appender", "default.t", f"{rows}", f"{start}")

    def executor(self, crash: str = "", *, slots: int = 1) -> Child:
        words = ("executor", "--master", "none", "--slots", f"{slots}", "--lease-ttl", f"{TTL_S}")
        armed = {VARIABLE: crash, ONCE_VARIABLE: str(self.folder)} if crash else {}
        return self.child("distop.cli", *words, **armed)

    async def run_jobs(self) -> None:
        await self.stack.enter_async_context(runner(self.store))


@pytest_asyncio.fixture
async def place(etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        yield Place(stack, etcd_config, client, tmp_path)


ROUNDS = 5


async def test_a_killed_leader_and_a_killed_runner_cost_time_and_no_row(place: Place) -> None:
    """C4, C13, P2, P7: two programs append all the while; every row is there once, no file is left over."""
    await place.filled(4)
    doomed, sdk = await place.coordinator("snapshot.after=die")
    operation = await sdk.start("t", "compact", {"min_files": 2})
    appenders = [place.appender(ROUNDS, start) for start in (1000, 2000)]
    dying = place.executor("job.file.middle=die@2")
    assert await dying.exit_code() == -signal.SIGKILL, dying.log.read_text()
    await place.run_jobs()
    assert await doomed.exit_code() == -signal.SIGKILL
    assert [await one.exit_code() for one in appenders] == [0, 0], appenders[0].log.read_text()

    service = await place.another()
    ended = await service.client.operation(operation.name).result(timeout_s=180)
    assert (ended.facts["filesBefore"], ended.facts["filesAfter"], ended.facts["rows"]) == (12, 3, 40)
    await service.at_rest()
    expected = [*range(40), *range(1000, 1000 + ROUNDS), *range(2000, 2000 + ROUNDS)]
    assert await asyncio.to_thread(service.ids) == expected
    await service.forget_the_past()
    assert await service.only_published()


SCHEMA = {"id": "long", "kind": "string", "batch": "int"}
BATCHES = 8


def batch_of(number: int) -> list[dict[str, Any]]:
    """Changes of keys that other batches change, too: in another order another table would come out."""
    chance = random.Random(number)
    return [
        {"id": key, "kind": f"k{chance.randrange(3)}", "batch": number, "op": chance.choice("UUD")}
        for key in chance.sample(range(20), 12)
    ]


def after_all() -> dict[int, tuple[str, int]]:
    """What the table holds when each batch was merged once, in order."""
    held: dict[int, tuple[str, int]] = {}
    for number in range(BATCHES):
        for row in batch_of(number):
            if row["op"] == "D":
                held.pop(row["id"], None)
            else:
                held[row["id"]] = (row["kind"], row["batch"])
    return held


@pytest.mark.parametrize(
    ("struck", "crash"), [("executor", "mark.after=die@3"), ("coordinator", "finish.after=die@2")]
)
async def test_batches_are_merged_once_and_in_order_whoever_dies(
    place: Place, struck: str, crash: str
) -> None:
    """E5, B3, P2, P8: and no file is left over."""
    first, sdk = await place.coordinator(crash if struck == "coordinator" else "")
    service = Whole(place.etcd, place.store, sdk, place.folder)
    options: TableOptions = {"partitionBy": ["kind"], "schema": SCHEMA}
    await sdk.create_table("t", str(place.folder / "table"), options=options)
    for number in range(BATCHES):
        path = place.folder / "in" / f"{number}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in batch_of(number)))
        argument = {"paths": str(path), "mode": "merge", "keys": ["id"], "delete_where": "op == 'D'"}
        await sdk.table("t").enqueue(f"{number:02}", "ingest", argument)
    executor = place.executor(crash if struck == "executor" else "", slots=2)
    if struck == "coordinator":
        assert await first.exit_code() == -signal.SIGKILL
        service = await place.another()
    else:
        assert await executor.exit_code() == -signal.SIGKILL, executor.log.read_text()
        await place.run_jobs()
    assert await eventually(lambda: drained(place.store), 360)
    await service.at_rest()
    rows = (await asyncio.to_thread(service.rows)).to_pylist()
    assert len(rows) == len(after_all())
    assert {row["id"]: (row["kind"], row["batch"]) for row in rows} == after_all()
    await service.forget_the_past()
    assert await service.only_published()
    assert await service.findings("t", deep=True) == []
