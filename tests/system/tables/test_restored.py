"""etcd is lost, comes back from a backup that was made under load, and everybody goes on."""

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.client import AsyncClient
from distop.errors import LeadershipLost, Restored
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.embedded import EtcdProcess
from distop.metastore.members.installation import enter
from distop.metastore.members.lease import LeaseSession, campaign
from distop.metastore.operations.ending import seal
from distop.metastore.operations.jobs import Mark, Outcome, mark_txn, success_record, verdicts
from distop.metastore.operations.runs import take_operation
from distop.metastore.records.member import LeaderRecord
from distop.metastore.records.operation import COMMITTING, RUNNING, RunnerRecord
from support.etcd.restoring import distop, etcd_that_restores, findings, lose, restore, services
from support.etcd.starts import begin, make_table
from support.services.whole import Whole, write_csv
from support.waiting import eventually

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow("needs an etcdutl that raises revisions, as etcd 3.6 has it"),
    pytest.mark.timeout(400),
]

ROWS = 20


@dataclass
class Callers:
    """Somebody who names the runs of its ingests, and somebody who publishes batches; both may begin anew."""

    client: AsyncClient
    folder: Path
    ingested: int = 0
    queued: int = 0
    applied: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def start(self) -> None:
        self.tasks = [asyncio.create_task(self._ingest()), asyncio.create_task(self._publish())]

    async def _ingest(self) -> None:
        while True:
            await self.ingest(self.ingested)
            self.ingested += 1

    async def ingest(self, number: int, table: str = "t") -> str:
        """One file; the operation that has published it."""
        source = write_csv(self.folder / f"{table}-{number}", "a.csv", number * ROWS, ROWS)
        asked = {"paths": [str(source)]}
        started = await self.client.start(table, "ingest", asked, run=f"r{number}")
        return (await started.result(timeout_s=120)).name

    async def _publish(self) -> None:
        while True:
            await self.publish(self.queued)
            self.queued += 1
            if self.queued % 3 == 0:
                await eventually(self.batches_done, 180)

    async def publish(self, number: int) -> None:
        source = write_csv(self.folder / f"b-{number}", "a.csv", number * ROWS, ROWS)
        await self.client.table("b").enqueue(f"{number:06}", "ingest", {"paths": [str(source)]})

    async def batches_done(self) -> bool:
        backlog = [batch async for batch in self.client.table("b").backlog()]
        return not backlog

    async def until(self, ingested: int, queued: int) -> None:
        """So many more."""
        goals = self.ingested + ingested, self.queued + queued

        def reached() -> bool:
            for task in self.tasks:
                if task.done():
                    task.result()
            return self.ingested >= goals[0] and self.queued >= goals[1]

        await eventually(reached, 270)

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


def codes(found: list[dict[str, object]], table: str) -> Counter[object]:
    return Counter(one["code"] for one in found if one["table"] == table)


async def test_nothing_is_lost_and_nothing_doubled(tmp_path: Path, prefix: str) -> None:
    """D2, O27, P16, B1: backed up under load, written on, etcd destroyed, restored, mended; callers send all
    again, and processes of before wake up."""
    backup = tmp_path / "backup.db"
    async with AsyncExitStack() as stack:
        etcd = stack.enter_context(EtcdProcess(tmp_path / "etcd", binary=etcd_that_restores()))
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)
        store = EtcdClient(config)
        stack.push_async_callback(store.close)
        before = await services(stack, config, tmp_path, store)
        client = before.client
        for table in ("t", "b", "gone"):
            await client.create_table(table, str(tmp_path / "tables" / table))
        callers = Callers(client, tmp_path)
        await callers.ingest(0, "gone")
        callers.start()
        await callers.until(2, 2)
        await asyncio.to_thread(distop, etcd.endpoint, prefix, "cluster", "backup", str(backup))
        checked = json.loads(
            await asyncio.to_thread(
                distop, etcd.endpoint, prefix, "cluster", "backup", "--check", str(backup)
            )
        )
        assert (checked["tables"], checked["prefix"]) == (3, prefix)
        await callers.until(3, 4)
        await client.table("gone").drop(purge=True)
        await client.create_table("new", str(tmp_path / "tables" / "new"))
        await callers.ingest(0, "new")
        before_loss = callers.ingested, callers.queued
        await callers.stop()
        before.sleep()
        lose(etcd)
        restore(etcd, backup)
        # Where nobody of before finds it.
        aside = EtcdProcess(etcd.data_dir, binary=etcd.binary)
        with aside:
            quiet = EtcdClient(EtcdConfig(endpoints=(aside.endpoint,), prefix=prefix))
            with pytest.raises(Restored):
                await enter(quiet)
            seen = await findings(aside, prefix, succeeds=False)
            assert codes(seen, "t")["HEAD_BEHIND_FILES"] == codes(seen, "b")["HEAD_BEHIND_FILES"] == 1
            assert codes(seen, "gone")["RESTORE_UNCLEAR"] == 1
            assert [one["sentence"] for one in seen if one["code"] == "FILES_WITHOUT_TABLE"]
            mended = await findings(aside, prefix, "--fix", succeeds=False)
            assert all(one["fixed"] for one in mended if one["table"] in ("t", "b")), mended
            await enter(quiet)
            await quiet.close()
        etcd.start()
        after = await services(stack, config, tmp_path, store)
        client = after.client
        # The table that was made after the backup is taken up again, with what it knows.
        catalog = EtcdCatalog("test", **{"etcd.endpoints": etcd.endpoint, "etcd.prefix": prefix})
        folder = tmp_path / "tables" / "new"
        (owner,) = (folder / "_distop").glob("table-*")
        owner.unlink()
        metadata = max((folder / "metadata").glob("*.metadata.json"))
        await asyncio.to_thread(catalog.register_table, "default.new", str(metadata))
        adopted = await findings(etcd, prefix, "--fix", "--table", "new", succeeds=True)
        assert all(one["fixed"] for one in adopted), adopted
        await client.table("gone").drop()
        again = Callers(client, tmp_path)
        for number in range(before_loss[0] + 3):
            await again.ingest(number)
        await again.ingest(0, "new")
        before.wake()
        for number in range(before_loss[1] + 3):
            await again.publish(number)
        await eventually(again.batches_done, 270)
        whole = Whole(config, store, client, tmp_path)
        assert await asyncio.to_thread(whole.ids, "t") == list(range((before_loss[0] + 3) * ROWS))
        assert await asyncio.to_thread(whole.ids, "b") == list(range((before_loss[1] + 3) * ROWS))
        assert await asyncio.to_thread(whole.ids, "new") == list(range(ROWS))
        await whole.at_rest()
        left = await client.diagnose(deep=True)
        assert [one for one in left.findings if one.severity.value == "error"] == []


async def test_leases_and_claims_from_before_a_restore_are_not_held(tmp_path: Path, prefix: str) -> None:
    """D2, O24, O26: leases come back with a backup, and their keys with the revisions that they had."""
    backup = tmp_path / "backup.db"
    with EtcdProcess(tmp_path / "etcd", binary=etcd_that_restores()) as etcd:
        config = EtcdConfig(endpoints=(etcd.endpoint,), prefix=prefix)
        client = EtcdClient(config)
        await enter(client)
        await make_table(client)
        operation = await begin(client, partition_count=1)
        keys = client.keyspace.operation(operation)
        session = await LeaseSession(client, 60).start()
        epoch = await campaign(client, client.keyspace.table("t"), session, LeaderRecord(member="old"))
        taken = await take_operation(client, keys, RunnerRecord(member="old"), session.lease_id)
        assert epoch is not None
        assert taken is not None
        await asyncio.to_thread(distop, etcd.endpoint, prefix, "cluster", "backup", str(backup))
        lose(etcd)
        restore(etcd, backup)
        etcd.start()
        standing = await client.get(epoch.key)
        assert standing.create_revision == epoch.revision, "the fence of before holds again"
        await findings(etcd, prefix, "--fix", succeeds=True)
        with pytest.raises(LeadershipLost):
            await seal(client, keys, epoch, before=RUNNING, after=COMMITTING)
        marks = [Mark("0", "a1", success_record("a1", {}, 1.0))]
        answer = await client.txn(mark_txn(taken.run, marks))
        assert [one.outcome for one in verdicts(taken.run, marks, answer)] == [Outcome.GONE]
        await session.close()
        await client.close()
