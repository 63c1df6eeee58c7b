"""Approval before publication: batches are staged on a branch, looked at, approved and published (B7)."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from distop.client import Ordering
from distop.client.backlog import Staged
from distop.errors import InvalidArgument, PreconditionFailed
from distop.metastore import crashpoints
from distop.metastore.etcd.config import EtcdConfig
from support.etcd.lossy import LossyClient
from support.services.executing import runner
from support.services.whole import Whole, coordinated, whole
from support.types.branching import BRANCHING
from support.waiting import eventually


@pytest_asyncio.fixture
async def service(etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient) -> AsyncIterator[Whole]:
    """A coordinator, an executor and the table ``t``."""
    async with whole(etcd_config, tmp_path, client) as started:
        yield started


async def staged(service: Whole, batch: str, *, other_than: str = "") -> Staged:
    """Where the batch is, once it waits for its approval; not on this branch any more."""

    def waits(now: Ordering) -> bool:
        return now.awaiting == batch and now.staged is not None and now.staged.branch != other_than

    found = (await eventually(partial(service.client.table("t").ordering), holds=waits)).staged
    assert found is not None
    return found


async def published(service: Whole, *batches: str) -> None:
    """Publish batches, each of the one row of its number."""
    for name in batches:
        argument = {"paths": [str(service.source(name, int(name), 1))]}
        await service.client.table("t").enqueue(name, "ingest", argument)


async def applied(service: Whole) -> dict[str, str]:
    """The finished batches, with their operations or how they ended."""
    listed = [one async for one in service.client.table("t").backlog(applied=True)]
    return {one.name: one.operation or one.state for one in listed}


async def are_applied(service: Whole, *batches: str) -> None:
    async def done() -> bool:
        return set(await applied(service)) == set(batches)

    assert await eventually(done)


async def is_blocked(service: Whole, code: str, why: str = "") -> None:
    async def blocked() -> bool:
        block = (await service.client.table("t").ordering()).blocked
        return block is not None and block.error.code == code and why in block.error.message

    assert await eventually(blocked)


async def ids(service: Whole, branch: str = "main") -> list[int]:
    def read() -> list[int]:
        table = service.table()
        scan = table.scan() if branch == "main" else table.scan().use_ref(branch)
        return sorted(scan.to_arrow()["id"].to_pylist())

    return await asyncio.to_thread(read)


async def only_main(service: Whole) -> None:
    """Wait until the table has no branch."""
    assert await eventually(lambda: asyncio.to_thread(lambda: set(service.table().metadata.refs) == {"main"}))


async def test_a_batch_is_looked_at_before_anybody_sees_it(service: Whole) -> None:
    """B7, C8, A4: approval publishes its rows, watermark and end in one transaction; then the next."""
    await service.ingest(service.source("0", 0, 1))
    ordering = await service.client.table("t").set_ordering(before=True)
    assert ordering.validation
    await published(service, "1", "2")
    one = await staged(service, "1")
    assert await ids(service) == [0]
    assert await ids(service, one.branch) == [0, 1]
    assert await service.ingested() == ["0"]
    assert await applied(service) == {}
    sentence = (await service.client.table("t").why()).sentence
    assert f"distop batch approve t 1 --branch {one.branch}" in sentence
    (waits,) = [found for found in await service.findings() if found.code == "BACKLOG_WAITS"]
    assert one.branch in waits.sentence
    assert f"distop batch approve t 1 --branch {one.branch}" in waits.remedy
    for batch, branch in (("2", ""), ("1", "batch-1-1")):
        with pytest.raises(PreconditionFailed, match=r"waits (for approval|on branch)"):
            await service.client.table("t").approve_batch(batch, branch=branch)
    await service.client.table("t").approve_batch("1", branch=one.branch)
    two = await staged(service, "2")
    assert await ids(service) == [0, 1]
    assert await service.ingested() == ["0", "1"]
    assert await applied(service) == {"1": one.operation}
    done = await service.client.table("t").batch("1")
    assert done.rows == 1
    assert done.decided_by
    assert await ids(service, two.branch) == [0, 1, 2]
    with pytest.raises(PreconditionFailed):
        await service.client.table("t").approve_batch("1", branch=one.branch)
    # Others write to the table meanwhile: the batch is put on what they have written.
    await service.ingest(service.source("7", 7, 1))
    await service.client.table("t").approve_batch()
    await are_applied(service, "1", "2")
    assert await ids(service) == [0, 1, 2, 7]
    assert (await applied(service))["2"].startswith("t/publish_branch/")
    await only_main(service)
    assert "idle" in (await service.client.table("t").why()).sentence
    assert await service.findings(deep=True) == []


async def test_a_staged_batch_that_is_not_wanted_leaves_no_branch(service: Whole) -> None:
    """B8: skipped, withdrawn, published with other content, or written anew."""
    await service.client.table("t").set_ordering(before=True)
    await published(service, "1", "2", "3")
    first = await staged(service, "1")
    await service.client.table("t").retry_batch("1")
    again = await staged(service, "1", other_than=first.branch)
    with pytest.raises(PreconditionFailed, match=first.branch):
        await service.client.table("t").approve_batch("1", branch=first.branch)  # a late copy
    argument = {"paths": [str(service.source("other", 10, 1))]}
    await service.client.table("t").enqueue("1", "ingest", argument, republish=True)
    other = await staged(service, "1", other_than=again.branch)
    assert await ids(service, other.branch) == [10]
    await service.client.table("t").skip_batch("1")
    two = await staged(service, "2")
    await service.client.table("t").remove_batch("2")
    three = await staged(service, "3")
    assert await ids(service, three.branch) == [3]
    await service.succeeds("drop_branch", branch=three.branch)  # by hand
    await service.client.table("t").approve_batch("3")
    await is_blocked(service, "PRECONDITION_FAILED")
    await service.client.table("t").retry_batch("3")
    three = await staged(service, "3", other_than=three.branch)
    refs = await asyncio.to_thread(lambda: set(service.table().metadata.refs))
    assert refs - {"main"} == {three.branch}
    await service.client.table("t").approve_batch("3")
    await are_applied(service, "1", "3")
    assert (await applied(service))["1"] == "skipped"
    assert await ids(service) == [3]
    assert await service.ingested() == ["3"]
    assert two.branch != three.branch


async def test_what_was_rolled_back_does_not_come_back_with_a_staged_batch(service: Whole) -> None:
    """A1, B2: batches that were rolled back are applied first; rows that were, are not published."""
    await published(service, "1")
    await are_applied(service, "1")
    to = str((await anext(service.client.table("t").snapshots())).snapshot_id)
    await published(service, "2")
    await are_applied(service, "1", "2")
    await service.client.table("t").set_ordering(before=True)
    await published(service, "3")
    first = await staged(service, "3")
    await service.succeeds("rollback", snapshot=to)
    await service.client.table("t").open_gate()
    await staged(service, "2")
    await service.client.table("t").approve_batch("2")
    third = await staged(service, "3", other_than=first.branch)
    await service.client.table("t").approve_batch("3")
    await are_applied(service, "1", "2", "3")
    assert await ids(service) == [1, 2, 3]
    # Of rows without a batch nobody knows but the branch.
    await service.ingest(service.source("7", 7, 1))
    await published(service, "4")
    fourth = await staged(service, "4")
    await service.succeeds("rollback", snapshot=third.snapshot)
    await service.client.table("t").approve_batch("4")
    await is_blocked(service, "HEAD_CONFLICT")
    await service.client.table("t").retry_batch("4")
    await staged(service, "4", other_than=fourth.branch)
    await service.client.table("t").approve_batch("4")
    await are_applied(service, "1", "2", "3", "4")
    assert await ids(service) == [1, 2, 3, 4]
    await only_main(service)


async def test_a_users_type_names_who_publishes_and_who_drops_its_branches(
    etcd_config: EtcdConfig, tmp_path: Path, client: LossyClient
) -> None:
    """B7: the core knows none of them by name."""
    async with (
        coordinated(etcd_config, tmp_path, client, more=BRANCHING) as service,
        runner(client, more=BRANCHING),
    ):
        await service.client.table("t").set_ordering(before=True)
        for name in ("1", "2"):
            argument = {"paths": [str(service.source(name, int(name), 1))]}
            await service.client.table("t").enqueue(name, "branching", argument)
        await staged(service, "1")
        await service.client.table("t").remove_batch("1")
        await staged(service, "2")
        await service.client.table("t").approve_batch("2")
        await are_applied(service, "2")
        await only_main(service)
        types = {operation.type for operation in await service.operations()}
        assert types >= {"branch_in", "branch_off"}


async def test_publishing_the_branch_of_a_staged_batch_applies_the_batch(service: Whole) -> None:
    """C8: as a validation does, which keeps rules instead of a person; a rollback knows what it takes out."""
    await service.ingest(service.source("0", 0, 1))
    await service.client.table("t").set_ordering(before=True)
    await published(service, "1")
    one = await staged(service, "1")
    await service.succeeds("validate", branch=one.branch, rules="id > -1", publish=True)
    await are_applied(service, "1")
    ordering = await service.client.table("t").ordering()
    assert (ordering.staged, ordering.awaiting, ordering.last) == (None, "", "1")
    await published(service, "2")
    two = await staged(service, "2")
    await service.ingest(service.source("7", 7, 1))
    before = str((await anext(service.client.table("t").snapshots())).snapshot_id)
    await service.succeeds("publish_branch", branch=two.branch, on_conflict="rebase")
    await are_applied(service, "1", "2")
    assert (await service.succeeds("rollback", snapshot=before))["undoneBatches"] == ["2"]
    await are_applied(service, "1")
    await service.client.table("t").open_gate()
    await staged(service, "2")
    await service.client.table("t").approve_batch()
    await are_applied(service, "1", "2")
    assert await ids(service) == [0, 1, 2, 7]


async def test_a_replacement_is_looked_at_too(service: Whole) -> None:
    """A3: until it is approved the table has the batch's old rows."""
    await published(service, "1", "2")
    await are_applied(service, "1", "2")
    await service.client.table("t").set_ordering(before=True)
    await service.client.table("t").replace_batch("1", {"paths": [str(service.source("other", 10, 1))]})
    one = await staged(service, "1")
    assert (await ids(service), await ids(service, one.branch)) == ([1, 2], [2, 10])
    await service.client.table("t").approve_batch("1", branch=one.branch)
    assert await eventually(service.drained)
    assert await ids(service) == [2, 10]


async def test_a_batch_that_cannot_be_staged_is_refused_by_name(service: Whole, tmp_path: Path) -> None:
    """U3: tables without branches, types that write to none, and batches with a branch of their own."""
    await service.client.create_table("plain", location=str(tmp_path / "plain"), format="files")
    with pytest.raises(InvalidArgument, match="format files"):
        await service.client.table("plain").set_ordering(before=True)
    await service.client.table("t").set_ordering(before=True)
    await service.client.table("t").enqueue("1", "noop", {"partitions": 0})
    await is_blocked(service, "INVALID_ARGUMENT", "type noop")
    await service.client.table("t").skip_batch("1")
    argument = {"paths": [str(service.source("2", 2, 1))], "branch": "own"}
    await service.client.table("t").enqueue("2", "ingest", argument)
    await is_blocked(service, "INVALID_ARGUMENT", "names a branch")


async def test_a_file_that_came_another_way_is_not_published_twice(service: Whole) -> None:
    """C8: its watermark says so; and nothing new needs no approval."""
    await service.client.table("t").set_ordering(before=True)
    await published(service, "1")
    await staged(service, "1")
    await service.ingest(service.folder / "src" / "1")
    await service.client.table("t").approve_batch("1")
    await is_blocked(service, "WATERMARK_CONFLICT")
    await service.client.table("t").skip_batch("1")
    await only_main(service)
    argument = {"paths": [str(service.folder / "src" / "1")], "new_only": True}
    await service.client.table("t").enqueue("2", "ingest", argument)
    await are_applied(service, "1", "2")
    assert await ids(service) == [1]


@pytest.mark.parametrize("point", ["batch.start.after", "finish.after", "ordering.after", "snapshot.after"])
async def test_lost_answers_publish_a_staged_batch_once(
    service: Whole, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """B1, P8."""
    once = service.folder / "once"
    once.mkdir()
    await service.client.table("t").set_ordering(before=True)
    monkeypatch.setenv(crashpoints.ONCE_VARIABLE, str(once))
    monkeypatch.setattr(crashpoints, "_PLAN", f"{point}=lost")
    await published(service, "1")
    one = await staged(service, "1")
    for left in once.iterdir():
        left.unlink()
    await service.client.table("t").approve_batch("1", branch=one.branch)
    await are_applied(service, "1")
    assert await eventually(lambda: list(once.iterdir()))
    assert await ids(service) == [1]
    assert await service.ingested() == ["1"]
