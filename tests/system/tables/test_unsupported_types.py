"""A table with a column of a type that distop does not read, beside another one."""

import pytest

from distop.coordinator.schedules import timekeeping
from distop.errors import UnsupportedType
from distop.metastore.records.record import decode, encode
from distop.metastore.records.table import Head
from support.services.schedules import operations
from support.services.whole import Whole
from support.tables.formats import newer_metadata
from support.waiting import eventually

NAMED = "column 'x' of the type variant"


async def test_the_table_is_refused_by_name_and_the_other_one_goes_on(
    service: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """V5: at the start of operations, by schedules, in what is shown, and by the doctor."""
    monkeypatch.setattr(timekeeping, "HEADS_EVERY_S", 0.05)
    client, space = service.client, service.store.keyspace
    await service.fill(1)
    await service.at_rest()
    head = decode((await service.store.get(space.table("t").head)).value, Head)
    newer = newer_metadata(head.metadata_location, {"name": "x", "type": "variant"})
    moved = Head(metadata_location=newer, snapshot_id=head.snapshot_id, operation="foreign")
    await service.store.put(space.table("t").head, encode(moved))
    await client.create_table("u", str(service.folder / "u"))
    for table in ("t", "u"):
        await client.table(table).add_schedule("s", "compact", when="data_files > 0")

    (await service.ingest(service.source("u", 0), "u")).raise_for_outcome()
    for kind, argument in {"ingest": {"paths": [str(service.source("v", 50))]}, "compact": {}}.items():
        with pytest.raises(UnsupportedType, match=NAMED):
            await client.start("t", kind, argument)

    async def skipped() -> str:
        return (await client.table("t").why()).sentence

    assert NAMED in await eventually(skipped, holds=lambda line: "UNSUPPORTED_TYPE" in line)

    async def compacted() -> bool:
        return "u/compact/1" in await operations(service.store, "u")

    assert await eventually(compacted)
    assert [one for one in await operations(service.store) if "compact" in one] == []

    code, listed = await service.distop("table", "list")
    assert (code, [one["name"] for one in listed]) == (0, ["t", "u"])
    code, shown = await service.distop("table", "show", "t")
    assert code == 0
    assert NAMED in shown["content"]["missing"]
    await service.at_rest()
    found = [(one.code, one.table) for one in await service.findings()]
    assert found == [("UNSUPPORTED_TYPE", "t")]
