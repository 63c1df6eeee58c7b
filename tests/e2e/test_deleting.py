"""Deletion from the call to the files: coordinator, executor, etcd and other writers are real."""

from __future__ import annotations

import asyncio

import pytest

from distop.client import Operation, OperationState
from distop.errors import InvalidArgument
from support.services.whole import Whole, write_csv


async def delete(service: Whole, where: str) -> Operation:
    started = await service.client.start("t", "delete", {"where": where})
    return (await service.client.wait(started.name, timeout_s=90)).raise_for_outcome()


async def fill(service: Whole, batches: int, first: int = 0) -> None:
    """Ten rows a batch, of three kinds."""
    for number in range(first, first + batches):
        source = write_csv(service.folder / "src" / str(number), "1.csv", number * 10, 10)
        ended = await service.ingest(source)
        assert ended.state is OperationState.SUCCEEDED, ended.error


async def test_just_these_rows_go_while_others_come_in(service: Whole) -> None:
    """P7, C8: those that came in before a deletion began, none that come in after it; watermarks stay, and no
    file is left over."""
    await fill(service, 3)
    appending = asyncio.create_task(fill(service, 5, first=3))
    removed = 0
    for where in ("id < 7", "kind = 'k1' and id < 30", "id in (8, 9, 4711)", "id = 4711"):
        removed += (await delete(service, where)).facts["removedRows"]
    await appending
    expected = [n for n in range(80) if not (n < 10 or (n < 30 and n % 3 == 1))]
    assert await asyncio.to_thread(service.ids) == expected
    assert removed == 80 - len(expected)
    assert [len(marks) for marks in (await service.client.watermarks("t")).values()] == [8]
    expired = await service.client.start("t", "expire_snapshots", {"older_than": "0s"})
    (await service.client.wait(expired.name, timeout_s=90)).raise_for_outcome()
    await service.at_rest()
    assert service.data_files() == await asyncio.to_thread(service.published_files)
    assert await service.findings("t", deep=True) == []


async def test_what_cannot_be_is_refused_at_the_start(service: Whole) -> None:
    """O4: with its field; and a look at it before starts nothing."""
    await fill(service, 1)
    with pytest.raises(InvalidArgument, match="no column 'nobody'") as refused:
        await service.client.start("t", "delete", {"where": "nobody = 1"})
    assert refused.value.details["field"] == "where"
    seen = await service.client.preview("t", "delete", {"where": "kind = 'k1'"})
    assert seen == {"jobs": 0, "filesToRead": 0, "filesToDrop": 1, "rowsToDrop": 3}
    assert await asyncio.to_thread(service.ids) == list(range(10))
