"""Tables whose files are ahead of an etcd that came back from a backup (O27, B1, U8).

Keys get their earlier values, as in a restore: revisions continue, and leases are gone.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distop.catalog.catalog import EtcdCatalog
from distop.cli.main import app
from distop.client import AsyncClient
from distop.coordinator.doctor.findings import Reported
from distop.coordinator.recovery.mending import Mending, mend
from distop.errors import PreconditionFailed, TableNotFound, TablePaused
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.members.installation import enter
from distop.metastore.records.member import InstallationRecord
from distop.metastore.records.names import prefix_end
from distop.metastore.records.record import decode
from distop.metastore.tables.audit import read_audit
from support.etcd.lossy import Fault, LossyClient, puts
from support.services.coordinators import config_of, running
from support.services.executing import runner
from support.services.whole import Whole, write_csv
from support.tables.catalogs import SCHEMA
from support.tables.views import replaced, view_version
from support.types.probes import PROBES
from support.waiting import eventually


@asynccontextmanager
async def serving(etcd: EtcdConfig, folder: Path, store: EtcdClient, table: str = "") -> AsyncIterator[Whole]:
    """A coordinator, and the table ``t`` of this format; nobody runs jobs."""
    async with (
        running(config_of(etcd, operations=PROBES)) as coordinator,
        AsyncClient(coordinator.address, timeout_s=60) as client,
    ):
        if table:
            await client.create_table("t", str(folder / "table"), format=table)
        yield Whole(etcd, store, client, folder, coordinator.address)


async def backed_up(store: EtcdClient) -> Sequence[KeyValue]:
    """What a backup would hold, but for what is held under leases."""
    return [kv for kv in (await store.scan(store.keyspace.prefix)).kvs if not kv.lease]


async def put_back(store: EtcdClient, kvs: Sequence[KeyValue]) -> None:
    prefix = store.keyspace.prefix
    await store.delete(prefix, prefix_end(prefix))
    for kv in kvs:
        await store.put(kv.key, kv.value)


async def mended(store: EtcdClient, *, fix: bool = True, **what: object) -> list[Reported]:
    given = Mending(fix=fix, anyway=True, by="ada", **what)  # type: ignore[arg-type]
    return [one async for one in mend(store, given, now=time.time())]


async def repairs(store: EtcdClient) -> dict[str, bool]:
    """What ``distop cluster doctor`` finds, and whether it can repair that."""
    runner = CliRunner(env={"DISTOP_ETCD": store.config.endpoints[0], "DISTOP_PREFIX": store.config.prefix})
    words = ["cluster", "doctor", "--after-restore", "--anyway", "-o", "json"]
    result = await asyncio.to_thread(runner.invoke, app, words, prog_name="distop")
    return {one["code"]: one["fixable"] for one in json.loads(result.stdout)["findings"]}


def codes(found: Sequence[Reported], *, fixed: bool = True) -> list[str]:
    return sorted(one.finding.code for one in found if one.fixed == fixed)


async def until_applied(service: Whole, table: str = "t", *, ordered: bool = True) -> None:
    async def none_left() -> bool:
        return not [one async for one in service.client.table(table).backlog(ordered=ordered)]

    await eventually(none_left, 90)


@pytest.mark.parametrize("ordered", [True, False])
async def test_batches_that_were_applied_since_are_not_applied_again(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, ordered: bool
) -> None:
    """Neither those that waited at the backup, nor those that were queued later and come again."""

    async def publish(service: Whole, number: int) -> str:
        source = write_csv(tmp_path / f"s{number}", "a.csv", number * 10, 10)
        asked = {"paths": [str(source)]}
        answer = await service.client.table("t").enqueue(f"b{number}", "ingest", asked, ordered=ordered)
        return answer.became.replace("_", " ")

    async with serving(etcd_config, tmp_path, client, table="iceberg") as service:
        async with runner(client):
            await publish(service, 0)
            await until_applied(service, ordered=ordered)
            await service.at_rest()
        await service.client.table("t").pause()
        for number in (1, 2):
            await publish(service, number)
        saved = await backed_up(client)
        await service.client.table("t").resume()
        async with runner(client):
            await publish(service, 3)
            await until_applied(service, ordered=ordered)
            await service.at_rest()
    await put_back(client, saved)
    seen = await mended(client, fix=False)
    assert codes(seen, fixed=False) == ["HEAD_BEHIND_FILES"]
    assert codes(await mended(client)) == ["HEAD_BEHIND_FILES"]
    assert await mended(client) == []
    async with serving(etcd_config, tmp_path, client) as service, runner(client):
        await service.client.table("t").resume()
        assert [(await service.client.table("t").batch(f"b{number}")).rows for number in range(4)] == [10] * 4
        assert [await publish(service, number) for number in range(5)] == [*["already applied"] * 4, "queued"]
        await until_applied(service, ordered=ordered)
        assert service.ids() == list(range(50))
        assert await service.findings(deep=True) == []


@pytest.mark.parametrize("moment", ["staged", "being staged"])
async def test_a_staged_batch_is_published_once_and_not_without_its_approval(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, moment: str
) -> None:
    """B7: whether it was approved since the backup, or only written to its branch."""

    async def publish(service: Whole, number: int) -> None:
        asked = {"paths": [str(write_csv(tmp_path / f"s{number}", "a.csv", number * 10, 10))]}
        await service.client.table("t").enqueue(f"b{number}", "ingest", asked)

    async def awaiting(service: Whole, batch: str) -> str:
        ordering = await eventually(
            lambda: service.client.table("t").ordering(), holds=lambda now: now.awaiting == batch
        )
        assert ordering.staged is not None
        return ordering.staged.branch

    async with serving(etcd_config, tmp_path, client, table="iceberg") as service:
        await service.client.table("t").set_ordering(before=True)
        await publish(service, 0)
        if moment == "being staged":
            await eventually(
                lambda: service.client.table("t").ordering(), holds=lambda now: bool(now.running)
            )
            saved = await backed_up(client)
        async with runner(client):
            branch = await awaiting(service, "b0")
            await publish(service, 1)
            await service.at_rest()
            if moment == "staged":
                saved = await backed_up(client)
                await service.client.table("t").approve_batch("b0")
                await awaiting(service, "b1")
            await service.at_rest()
    await put_back(client, saved)
    assert codes(await mended(client)) == ["HEAD_BEHIND_FILES"]
    assert await mended(client) == []
    async with serving(etcd_config, tmp_path, client) as service, runner(client):
        if moment == "being staged":
            assert await awaiting(service, "b0") == branch
            assert service.ids() == []
            await service.client.table("t").approve_batch("b0", branch=branch)
            await publish(service, 1)
        await awaiting(service, "b1")
        assert service.ids() == list(range(10))
        await service.client.table("t").approve_batch("b1")
        await until_applied(service)
        assert service.ids() == list(range(20))
        assert len(await service.ingested()) == 2


async def test_an_operation_of_the_backup_that_has_published_since_ends_as_it_did(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """Its caller repeats the run and gets the result; watermarks keep their values."""
    source = write_csv(tmp_path / "s", "a.csv", 0, 10)
    async with serving(etcd_config, tmp_path, client, table="iceberg") as service:
        started = await service.client.start("t", "ingest", {"paths": [str(source)]}, run="r")
        saved = await backed_up(client)
        async with runner(client):
            await started.result(timeout_s=30)
            marks = await service.client.table("t").watermarks()
            await service.at_rest()
    await put_back(client, saved)
    assert codes(await mended(client)) == ["HEAD_BEHIND_FILES"]
    async with serving(etcd_config, tmp_path, client) as service, runner(client):
        again = await service.client.start("t", "ingest", {"paths": [str(source)]}, run="r")
        assert (again.name, again.started.done) == (started.name, True)
        assert await service.client.table("t").watermarks() == marks
        assert service.ids() == list(range(10))
        await service.at_rest()
        assert await service.findings(deep=True) == []
        follower = await service.ingest(write_csv(tmp_path / "s2", "a.csv", 10, 10))
        assert follower.name == "t/ingest/2"
        assert service.ids() == list(range(20))


async def test_an_operation_of_the_backup_that_has_published_nothing_is_given_up(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """What its jobs have left may have been swept since; its caller starts it again."""
    source = write_csv(tmp_path / "s", "a.csv", 0, 10)
    asked = {"paths": [str(source)]}
    async with serving(etcd_config, tmp_path, client, table="iceberg") as service:
        started = await service.client.start("t", "ingest", asked, run="r")
        saved = await backed_up(client)
    await put_back(client, saved)
    assert await repairs(client) == {"OPERATION_BEFORE_RESTORE": True}
    assert codes(await mended(client)) == ["OPERATION_BEFORE_RESTORE"]
    async with serving(etcd_config, tmp_path, client) as service, runner(client):
        ended = await service.client.operation(started.name).wait(timeout_s=30)
        assert (ended.error and ended.error.code) == "ETCD_RESTORED"
        again = await service.client.start("t", "ingest", asked, run="r")
        await again.result(timeout_s=30)
        assert (again.name, service.ids()) == ("t/ingest/2", list(range(10)))


@pytest.mark.parametrize("kind", ["files", "delta"])
async def test_tables_whose_files_tell_no_watermarks_are_paused(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path, kind: str
) -> None:
    """Nothing is doubled unseen; and a Delta table takes no new operation for one that it holds."""
    sources = [write_csv(tmp_path / f"s{number}", "a.csv", number * 10, 10) for number in range(3)]
    async with serving(etcd_config, tmp_path, client, table=kind) as service, runner(client):
        (await service.ingest(sources[0])).raise_for_outcome()
        await service.at_rest()
        saved = await backed_up(client)
        (await service.ingest(sources[1])).raise_for_outcome()
        await service.at_rest()
    assert await mended(client, fix=False) == [], "these it knows"
    await put_back(client, saved)
    assert await repairs(client) == {"RESTORE_UNCLEAR": False}
    assert codes(await mended(client), fixed=False) == ["RESTORE_UNCLEAR"]
    async with serving(etcd_config, tmp_path, client) as service, runner(client):
        with pytest.raises(TablePaused):
            await service.ingest(sources[2])
        await service.client.table("t").resume()
        after = await service.ingest(sources[2])
        assert after.name == ("t/ingest/3" if kind == "delta" else "t/ingest/2")


async def test_a_table_that_does_not_exist_is_no_sign_of_health(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """U3: and what services hold is left to them."""
    async with serving(etcd_config, tmp_path, client, table="iceberg"):
        before = (await client.scan(client.keyspace.prefix, keys_only=True)).kvs
        with pytest.raises(TableNotFound):
            await mended(client, table="other")
        after = (await client.scan(client.keyspace.prefix, keys_only=True)).kvs
        assert {kv.key for kv in before if kv.lease} <= {kv.key for kv in after}


async def test_an_installation_not_restored_is_left_alone(client: EtcdClient, tmp_path: Path) -> None:
    with pytest.raises(PreconditionFailed, match="no installation"):
        await mended(client)
    async with serving(client.config, tmp_path, client):
        with pytest.raises(PreconditionFailed, match="no mark"):
            _ = [one async for one in mend(client, Mending(fix=True), now=time.time())]


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST])
async def test_services_may_begin_whichever_reply_is_lost(client: LossyClient, fault: Fault) -> None:
    """O27: the last transaction says so; the audit trail has it once."""
    await enter(client)
    client.fail(fault, when=puts(client.keyspace.installation))
    assert await mended(client) == []
    assert client.spent
    record = decode((await client.get(client.keyspace.installation)).value, InstallationRecord)
    assert record.restored
    (entry,), _ = await read_audit(client, client.keyspace.audit_prefix, limit=10)
    assert entry.record.action == "after-restore"


async def test_mending_that_cannot_let_services_begin_says_so(client: LossyClient) -> None:
    """O27: the installation was changed meanwhile; the run is repeated."""
    await enter(client)
    key = client.keyspace.installation
    client.fail(Fault.LOST_REQUEST, when=puts(key))

    async def changed() -> None:
        other = EtcdClient(client.config)
        await other.put(key, (await other.get(key)).value)
        await other.close()

    client.meanwhile.append(lambda: asyncio.run(changed()))
    with pytest.raises(PreconditionFailed, match="by another process"):
        await mended(client)
    assert client.spent
    assert not decode((await client.get(key)).value, InstallationRecord).restored
    await mended(client)
    assert decode((await client.get(key)).value, InstallationRecord).restored


async def test_views_come_back_as_the_backup_has_them(
    etcd_config: EtcdConfig, client: EtcdClient, python: EtcdCatalog, tmp_path: Path
) -> None:
    """O27: their files are never removed, so that there is nothing to mend; nor to find."""
    made = await asyncio.to_thread(python.create_view, "default.v", SCHEMA, view_version())
    async with serving(etcd_config, tmp_path, client):
        saved = await backed_up(client)
    await asyncio.to_thread(python.commit_view, "default.v", (), replaced("SELECT 2"))
    await asyncio.to_thread(python.drop_view, "default.v")
    await put_back(client, saved)
    assert await mended(client) == []
    assert await asyncio.to_thread(python.load_view, "default.v") == made
    async with serving(etcd_config, tmp_path, client) as service:
        assert await service.findings() == []


async def test_a_table_whose_record_cannot_be_read_is_paused(
    etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path
) -> None:
    """U8: another version may be able to read it, and would go on from where the backup was."""
    async with serving(etcd_config, tmp_path, client, table="iceberg"):
        pass
    keys = client.keyspace.table("t")
    before = await client.get(keys.table)
    await client.put(keys.table, b"of a newer version")
    (found,) = await mended(client)
    assert (found.finding.code, found.finding.table) == ("RESTORE_UNCLEAR", "t")
    assert found.outcome == "paused the table"
    await client.put(keys.table, before.value)
    async with serving(etcd_config, tmp_path, client) as service:
        with pytest.raises(TablePaused, match="after a restore"):
            await service.client.start("t", "noop")
