"""Files with more columns than anybody has, while others work."""

from __future__ import annotations

import asyncio

import pytest

from distop.client import AsyncClient
from distop.errors import SourceUnreadable
from support.services.whole import Whole, write_csv

COLUMNS = 1_000_000


@pytest.mark.parametrize("header", ["many names", "one name"])
async def test_a_header_of_a_million_columns_holds_up_nobody(service: Whole, header: str) -> None:
    """S1, U3: refused by its field and its file; meanwhile other tables are planned and loaded."""
    wide = service.folder / "wide"
    wide.mkdir()
    names = (f"c{number}" for number in range(COLUMNS)) if header == "many names" else ["same"] * COLUMNS
    (wide / "1.csv").write_text(",".join(names) + "\n" + ",".join(["1"] * COLUMNS) + "\n")
    source = write_csv(service.folder / "src", "1.csv", 0, 10)
    for name in ("other", "third"):
        await service.client.create_table(name, str(service.folder / name))

    async def attack() -> SourceUnreadable:
        with pytest.raises(SourceUnreadable) as refused:
            async with AsyncClient(service.address, timeout_s=120) as stranger:
                await stranger.start("t", "ingest", {"paths": [str(wide)]})
        return refused.value

    async def load(name: str) -> list[int]:
        async with AsyncClient(service.address, timeout_s=120) as friend:
            operation = await friend.start(name, "ingest", {"paths": [str(source)]})
            assert (await friend.wait(operation.name, timeout_s=120)).error is None
        return await asyncio.to_thread(service.ids, name)

    attacks = asyncio.gather(*(attack() for _ in range(4)))
    first, second = await asyncio.gather(load("other"), load("third"))
    assert first == second == list(range(10))
    for refused in await attacks:
        assert refused.details["field"] == "paths"
        assert "1.csv has 1,000,000 columns, at most 10,000 are read" in refused.message
