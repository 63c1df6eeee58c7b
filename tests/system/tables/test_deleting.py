"""Deletion from the call to the files: coordinator, executor, etcd and other writers are real."""

import asyncio

from support.services.whole import Whole


async def test_just_these_rows_go_while_others_come_in(service: Whole) -> None:
    """P7, C8: those that came in before a deletion began, none that come in after it; watermarks stay, and no
    file is left over."""
    await service.fill(3)
    appending = asyncio.create_task(service.fill(5, first=3))
    removed = 0
    for where in ("id < 7", "kind = 'k1' and id < 30", "id in (8, 9, 4711)", "id = 4711"):
        removed += (await service.succeeds("delete", where=where))["removedRows"]
    await appending
    expected = [n for n in range(80) if not (n < 10 or (n < 30 and n % 3 == 1))]
    assert await asyncio.to_thread(service.ids) == expected
    assert removed == 80 - len(expected)
    assert [len(marks) for marks in (await service.client.table("t").watermarks()).values()] == [8]
    await service.succeeds("expire_snapshots", older_than="0s")
    await service.expect_no_other_files()
    assert await service.findings("t", deep=True) == []
