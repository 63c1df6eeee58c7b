"""Claims to places: two tables never share a folder, and none lies in another's."""

import asyncio
from pathlib import Path

import pytest

from distop.client import AsyncClient
from distop.errors import AlreadyExists, InvalidArgument, LocationInUse
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Put, Txn
from distop.metastore.etcd.update import settle
from distop.metastore.tables.locations import LocationClaim, canonical
from support.etcd.lossy import Fault, LossyClient
from support.refusals import refused

MANY = 1_000


def claim(client: EtcdClient, location: str, table: str = "t") -> LocationClaim:
    return LocationClaim(client.keyspace, canonical(location), table, f"uuid of {table}")


async def take(client: EtcdClient, wanted: LocationClaim) -> bool:
    return (await settle(client, Txn(wanted.free(), (wanted.put,)))).succeeded


async def test_equal_and_nested_locations_are_refused(sdk: AsyncClient) -> None:
    """S2: by a code, naming the table; and nothing of the refused one is left."""
    for stands, comes in (
        ("/data/f", "/data/f"),
        ("/data/f", "/data//f/./"),
        ("/data/f", "file:/data/f/kind"),
        ("/data/f", "/data/f/a/b/c/d"),
        ("/data/f/kind", "/data/f"),
        ("/data/f/a/b/c/d", "/data"),
        ("s3://bucket/f", "s3a://bucket/f"),
        ("s3://bucket/f", "s3n://bucket/f/kind"),
        ("s3://bucket/f", "s3://bucket"),
        ("s3://bucket", "s3://bucket/f"),
    ):
        await sdk.create_table("first", stands)
        with refused("location", error=LocationInUse, table="first"):
            await sdk.create_table("second", comes)
        assert [table.name async for table in sdk.tables()] == ["first"], (stands, comes)
        await sdk.table("first").drop()
        await sdk.create_table("second", comes)
        await sdk.table("second").drop()


async def test_folders_beside_each_other_are_no_conflict(sdk: AsyncClient) -> None:
    """S2: names that begin alike, and such as sort before a slash."""
    for number, name in enumerate(("f", "f2", "f.x", "f-x", "f x", "F", "fx/kind", "f!", "e/f", "ff")):
        await sdk.create_table(f"t{number}", f"/data/{name}")
    await sdk.create_table("bucket", "s3://bucket/f")
    await sdk.create_table("other", "s3://bucket2/f")


async def test_a_location_without_one_spelling_is_refused(sdk: AsyncClient) -> None:
    """S2, U3."""
    for where in ("s3://bucket/a?versionId=1", "/data/a#1", "/data/../etc", "data/f", "/a%2Fb"):
        with pytest.raises(InvalidArgument) as caught:
            await sdk.create_table("t", where)
        assert caught.value.details["field"] == "location", where


async def test_tables_created_at_the_same_instant_never_nest(sdk: AsyncClient) -> None:
    """S2: of a folder and what lies in it, one."""
    for round_ in range(20):
        folder = f"/data/{round_}"
        places = [folder, f"{folder}/kind", f"{folder}/kind/of", folder]
        made = await asyncio.gather(
            *(sdk.create_table(f"t{round_}.{n}", place) for n, place in enumerate(places)),
            return_exceptions=True,
        )
        assert sum(not isinstance(one, BaseException) for one in made) == 1, made
        assert all(isinstance(one, LocationInUse) for one in made if isinstance(one, BaseException)), made


async def test_a_repeated_create_is_refused_for_its_name(sdk: AsyncClient) -> None:
    """O7: not for its own claim."""
    await sdk.create_table("t", "/data/t")
    with pytest.raises(AlreadyExists) as caught:
        await sdk.create_table("t", "/data/t")
    assert caught.value.code == "TABLE_EXISTS"


async def test_claiming_a_location_compares_no_more_keys_with_more_tables(client: LossyClient) -> None:
    """S2: with a thousand tables next to it, the transaction is the same as with none."""
    wanted = claim(client, "s3://bucket/warehouse/n/t")
    size = Txn(wanted.free(), (wanted.put,)).size()
    beside = [claim(client, f"s3://bucket/warehouse/n/t{number}", f"t{number}").put for number in range(MANY)]
    for first in range(0, MANY, 100):
        await client.txn(Txn(then=tuple[Put, ...](beside[first : first + 100])))
    before = len(client.sent)
    assert await take(client, wanted)
    [sent] = client.sent[before:]
    assert (sent.size(), len(sent.compares)) == (size, 2 + len(("bucket", "warehouse", "n")))
    assert not await take(client, claim(client, "s3://bucket/warehouse", "above"))


@pytest.mark.parametrize("fault", [Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.FULL])
async def test_an_empty_range_is_compared_through_faults(client: LossyClient, fault: Fault) -> None:
    """S2."""
    assert await take(client, claim(client, "/data/f/kind"))
    above = claim(client, "/data/f", "above")
    assert not await take(client, above)
    client.fail(fault, when=lambda txn: above.put in txn.then)
    assert not await take(client, above)
    assert client.spent


async def test_a_claim_goes_with_its_table(sdk: AsyncClient, client: LossyClient, tmp_path: Path) -> None:
    """S2: and with no other of that name."""
    await sdk.create_table("t", str(tmp_path))
    mine = LocationClaim(client.keyspace, f"file://{tmp_path}", "t", (await sdk.table("t").get()).uuid)
    standing = await client.get(mine.key)
    assert mine.is_mine(standing)
    assert claim(client, f"file://{tmp_path}").given_up(standing) == Txn()
    await sdk.table("t").drop()
    assert not (await client.get(mine.key)).exists
