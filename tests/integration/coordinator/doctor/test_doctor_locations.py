"""What the doctor says of folders that two tables share, and of claims without a table."""

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest_asyncio

from distop.coordinator.access.callers import Caller, Identity, held_by
from distop.coordinator.doctor.findings import Reported
from distop.coordinator.doctor.rounds import Doctor, Examination
from distop.coordinator.work.work import Work
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Txn
from distop.metastore.members.installation import GrantRecord, PolicyRecord
from distop.metastore.records.record import encode
from distop.metastore.records.table import DropRecord, TableRecord
from distop.metastore.tables.locations import LocationClaim
from distop.metastore.tables.registry import table_puts
from distop.operations.registry import Registry
from support.etcd.lossy import LossyClient
from support.services.tokens import answering

CODES = ("LOCATION_SHARED", "LOCATION_NOT_CLAIMED", "CLAIM_WITHOUT_TABLE")


@pytest_asyncio.fixture
async def doctor(client: LossyClient) -> AsyncIterator[Doctor]:
    with ThreadPoolExecutor(2) as threads:
        yield Doctor(client, Work(Registry(), threads))


def record_of(name: str, location: str) -> TableRecord:
    return TableRecord(name=name, location=location, format="files", uuid=f"uuid of {name}")


async def put(client: EtcdClient, *records: TableRecord, claimed: bool = True) -> None:
    """Put tables without any check."""
    for record in records:
        claim = LocationClaim.of(client.keyspace, record)
        table = table_puts(client.keyspace.table(record.name), record)
        await client.txn(Txn(then=(*table, claim.put) if claimed else table))


async def told(doctor: Doctor, *, fix: bool = False) -> dict[tuple[str, str], Reported]:
    found: dict[tuple[str, str], Reported] = {}
    async with aclosing(doctor.examine(Examination(fix=fix))) as examined:
        async for progress in examined:
            for one in progress.reported:
                if one.finding.code in CODES:
                    found[one.finding.code, one.finding.table] = one
    return found


async def test_tables_that_share_or_nest_are_told(doctor: Doctor, client: LossyClient) -> None:
    """S2: each finding names the other table; nothing is fixed, since a person has to choose."""
    await put(client, record_of("alone", "file:///data/g"), record_of("outer", "file:///data/f"))
    await put(client, record_of("inner", "file:///data/f/kind"))
    await put(client, record_of("same", "file:///data/f"), claimed=False)
    found = await told(doctor, fix=True)
    assert found.keys() == {("LOCATION_SHARED", name) for name in ("outer", "inner", "same")}
    assert "'inner'" in found["LOCATION_SHARED", "outer"].finding.sentence
    assert "'outer'" in found["LOCATION_SHARED", "inner"].finding.sentence
    assert not any(one.fixed for one in found.values())


async def test_the_other_table_is_not_told_to_who_may_not_see_it(doctor: Doctor, client: LossyClient) -> None:
    """S3: neither its name nor its folder."""
    await put(client, record_of("outer", "file:///data/f"), record_of("inner", "file:///data/f/secret"))
    policy = PolicyRecord(grants=[GrantRecord(who="jane", role="reader", tables=["outer"])])
    with answering(Caller(Identity("jane"), held=held_by(policy, "jane"))):
        found = await told(doctor)
    sentence = found["LOCATION_SHARED", "outer"].finding.sentence
    assert "belongs to another table" in sentence
    assert "inner" not in sentence
    assert "secret" not in sentence


async def test_claims_that_lack_are_added_once(doctor: Doctor, client: LossyClient) -> None:
    """S2: of two tables in one folder one gets the claim, and the other gets a finding."""
    await put(client, record_of("a", "file:///data/a"), claimed=False)
    await put(client, record_of("b", "file:///data/a/b"), record_of("c", "s3://bucket/c"), claimed=False)
    found = await told(doctor, fix=True)
    assert {name for code, name in found if code == "LOCATION_NOT_CLAIMED"} >= {"c"}
    found = await told(doctor)
    [(code, _)] = found
    assert code == "LOCATION_SHARED"


async def test_claims_of_no_table_are_removed(doctor: Doctor, client: LossyClient) -> None:
    """S2: of one that never was, is another one now, or has moved; not while a drop is unfinished."""
    claims = [
        record_of("gone", "file:///data/gone"),
        record_of("moved", "file:///data/before"),
        TableRecord(name="again", location="file:///data/again", uuid="of the one before"),
        record_of("dropped", "file:///data/dropped"),
    ]
    await client.txn(Txn(then=tuple(LocationClaim.of(client.keyspace, claimed).put for claimed in claims)))
    await put(client, record_of("moved", "file:///data/now"))
    await put(client, record_of("again", "file:///data/then"))
    tombstone = DropRecord(name="dropped", location="file:///data/dropped", uuid="uuid of dropped")
    await client.put(client.keyspace.dropped("dropped"), encode(tombstone))
    found = await told(doctor, fix=True)
    assert found.keys() == {("CLAIM_WITHOUT_TABLE", name) for name in ("gone", "moved", "again")}
    assert all(one.fixed for one in found.values())
    assert await told(doctor) == {}
    left = await client.scan(client.keyspace.locations, keys_only=True)
    assert [kv.key.rpartition(b"/")[2] for kv in left.kvs] == [b"dropped", b"now", b"then"]
