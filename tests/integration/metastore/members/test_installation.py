"""An installation whose keys are laid out by another version is refused by name."""

import asyncio

import pytest

from distop.catalog.catalog import EtcdCatalog
from distop.coordinator.service import Coordinator
from distop.errors import OtherLayout
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.members.installation import LAYOUT, enter
from distop.metastore.members.registration import log_distant_versions
from distop.metastore.records.member import InstallationRecord, MemberRecord
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import TableRecord
from distop.proto.identity import own_version
from support.etcd.lossy import Fault, LossyClient
from support.etcd.starts import make_table
from support.refusals import refused
from support.services.coordinators import config_of, members, running


async def test_the_first_process_says_how_keys_are_laid_out(client: LossyClient) -> None:
    """O24: also when its reply is lost, and of several that begin together."""
    client.fail(Fault.LOST_REPLY)
    await asyncio.gather(*(enter(client) for _ in range(5)))
    kv = await client.get(client.keyspace.installation)
    assert decode(kv.value, InstallationRecord).layout == LAYOUT
    await make_table(client)
    await enter(client)
    assert await client.get(client.keyspace.installation) == kv


async def test_tables_that_a_program_made_before_are_taken_in(client: LossyClient) -> None:
    """P14: a catalog needs no process of distop."""
    await make_table(client)
    await enter(client)
    assert (await client.get(client.keyspace.installation)).exists


@pytest.mark.parametrize("layout", [1, LAYOUT + 1])
async def test_another_layout_is_refused_and_nothing_is_written(
    client: LossyClient, etcd_config: EtcdConfig, layout: int
) -> None:
    """U3: an older one, which had no record of itself, and a newer one."""
    if layout == 1:
        record = TableRecord(name="t", location="file:///nowhere/t")
        await client.put(client.keyspace.table("t").table, encode(record))
    else:
        await client.put(client.keyspace.installation, encode(InstallationRecord(layout=layout)))
    before = await client.scan(client.keyspace.prefix)
    with refused(error=OtherLayout, match=f"layout {LAYOUT}", layout=layout):
        await enter(client)
    coordinator = Coordinator(config_of(etcd_config))
    with pytest.raises(OtherLayout):
        await coordinator.run()
    assert not coordinator.address, "nobody could call it"
    assert (await client.scan(client.keyspace.prefix)).kvs == before.kvs


async def test_a_catalog_refuses_another_layout(client: LossyClient, etcd_config: EtcdConfig) -> None:
    """U3: of a process that never registers."""
    await client.put(client.keyspace.installation, encode(InstallationRecord(layout=LAYOUT + 1)))
    catalog = EtcdCatalog("other", uri=etcd_config.endpoints[0], **{"etcd.prefix": etcd_config.prefix})
    for _ in range(2):
        with pytest.raises(OtherLayout):
            await asyncio.to_thread(catalog.create_namespace, "n")
    await asyncio.to_thread(catalog.close)
    assert len((await client.scan(client.keyspace.prefix)).kvs) == 1


async def test_a_member_that_is_too_old_or_too_new_is_told_of_at_the_start_of_another(
    client: LossyClient, caplog: pytest.LogCaptureFixture
) -> None:
    """O21"""
    for name, version in (("a", own_version()), ("b", "97.0.0"), ("c", "")):
        record = MemberRecord(id=name, distop=version)
        await client.put(client.keyspace.executor(name), encode(record))
    await client.put(client.keyspace.executor("d"), b'{"version": 99}')
    await log_distant_versions(client)
    told = [one for one in caplog.records if one.getMessage() == "version_far_apart"]
    assert [vars(one)["member"] for one in told] == ["b"]
    assert "version_not_known" in caplog.text, "it does not keep this one from starting"


async def test_members_say_which_version_they_run(etcd_config: EtcdConfig, client: LossyClient) -> None:
    async with running(config_of(etcd_config)):
        (member,) = (await members(client)).values()
        assert member.distop == own_version()
