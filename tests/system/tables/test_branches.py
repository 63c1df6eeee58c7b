"""Branches: written aside, validated, published or dropped. Coordinator, executor and etcd are real."""

import asyncio
from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from distop.client import FollowUp, OperationFailed, OperationState
from distop.errors import AlreadyIngested, InvalidArgument, PreconditionFailed
from distop.metastore import crashpoints
from support.refusals import refused
from support.services.executing import runner
from support.services.whole import HEADER, Whole, error_of
from support.tables.trees import age
from support.waiting import eventually

RULES = ["id >= 0", {"unique": "id"}]


def on_branch(service: Whole, branch: str) -> list[int]:
    return sorted(service.table().scan().use_ref(branch).to_arrow()["id"].to_pylist())


def refs(service: Whole) -> set[str]:
    return set(service.table().metadata.refs)


async def test_rows_on_a_branch_are_seen_once_it_has_passed_its_checks(service: Whole) -> None:
    """P12, C8: rows and watermarks of a branch appear together, in the transaction that publishes it."""
    await service.ingest(service.source("first", 0))
    folder = service.source("aside", 100)
    (folder / "2.csv").write_text(HEADER + "101,k2,2013-01-01\n")  # 101 is there twice, in one partition
    staged = (await service.ingest(folder, branch="audit")).raise_for_outcome()
    assert staged.facts["branch"] == "audit"
    assert await asyncio.to_thread(service.ids) == list(range(10))
    assert await asyncio.to_thread(on_branch, service, "audit") == [*range(10), 100, 101, *range(101, 110)]
    assert await service.ingested() == ["first"]
    with pytest.raises(AlreadyIngested):
        await service.client.start("t", "ingest", {"paths": [str(folder)], "branch": "audit"})

    assert await service.findings(deep=True) == []

    broken = await service.run("validate", branch="audit", rules=RULES, publish=True)
    assert error_of(broken).code == "VALIDATION_FAILED"
    assert "unique(id) by 1 row in 1 partition" in error_of(broken).message
    assert await asyncio.to_thread(service.ids) == list(range(10))
    assert await service.ingested() == ["first"]

    assert (await service.succeeds("drop_branch", branch="audit"))["droppedSnapshots"] == 1
    assert await asyncio.to_thread(refs, service) == {"main"}
    (folder / "2.csv").unlink()
    (await service.ingest(folder, branch="audit")).raise_for_outcome()
    (await service.ingest(service.source("more", 200), branch="audit")).raise_for_outcome()
    facts = await service.succeeds("validate", branch="audit", rules=RULES, publish=True)
    assert (facts["checkedRows"], facts["publishedSnapshots"], facts["branch"]) == (30, 2, "audit")
    assert await asyncio.to_thread(service.ids) == [*range(10), *range(100, 110), *range(200, 210)]
    assert await service.ingested() == ["aside", "first", "more"]
    assert await asyncio.to_thread(refs, service) == {"main"}
    with pytest.raises(AlreadyIngested):
        await service.client.start("t", "ingest", {"paths": [str(folder)]})
    await service.at_rest()
    assert await service.findings(deep=True) == []


async def test_staging_validating_and_publishing_in_one_go(service: Whole) -> None:
    """P12, O23: each starts the next, and the branch begins with the table itself, which is empty."""
    publish = {"branch": "audit", "rules": RULES, "publish": True}
    for number, folder in enumerate((service.source("a", 0), service.source("b", 100))):
        started = await service.client.start(
            "t",
            "ingest",
            {"paths": [str(folder)], "branch": "audit"},
            then=FollowUp(type="validate", argument=publish),
        )
        first = await started.result(timeout_s=90)
        last = await service.client.operation(first.facts["followUp"]).result(timeout_s=90)
        assert last.facts["publishedSnapshots"] == 1
        assert len(await asyncio.to_thread(service.ids)) == 10 * (number + 1)
    assert await service.ingested() == ["a", "b"]
    await service.expect_no_other_files()


async def test_a_table_that_was_written_to_meanwhile_is_not_overrun(service: Whole) -> None:
    """P6, P16: a branch is published on what it began with, or refused by name; the table loses nothing."""
    await service.ingest(service.source("a", 0))
    (await service.ingest(service.source("b", 100), branch="audit")).raise_for_outcome()
    (await service.ingest(service.source("c", 200))).raise_for_outcome()
    refused = await service.run("publish_branch", branch="audit")
    assert error_of(refused).code == "HEAD_CONFLICT"
    assert "t/ingest/3" in error_of(refused).message
    (await service.ingest(service.source("b", 100))).raise_for_outcome()
    again = {"paths": [str(service.source("d", 300))], "branch": "audit"}
    with pytest.raises(Exception, match="watermark") as raised:
        await service.client.start("t", "ingest", again)
    assert getattr(raised.value, "code", "") == "WATERMARK_CONFLICT"
    await service.succeeds("drop_branch", branch="audit")
    assert await asyncio.to_thread(service.ids) == [*range(10), *range(100, 110), *range(200, 210)]


@pytest.mark.parametrize("on_conflict", ["refuse", "rebase"])
async def test_a_branch_brings_back_nothing_that_was_rolled_back(service: Whole, on_conflict: str) -> None:
    """A1: what it began with is not in the table any more. Once that is back, the branch is published."""
    first = await service.succeeds("ingest", paths=[str(service.source("a", 0))])
    second = await service.succeeds("ingest", paths=[str(service.source("b", 100))])
    await service.succeeds("ingest", paths=[str(service.source("c", 200))], branch="audit")
    await service.succeeds("rollback", snapshot=first["snapshotId"])
    refused = await service.run("publish_branch", branch="audit", on_conflict=on_conflict)
    assert (error_of(refused).code, refused.state) == ("HEAD_CONFLICT", OperationState.FAILED)
    assert f"distop table rollback t {second['snapshotId']}" in error_of(refused).message
    assert await asyncio.to_thread(service.ids) == [*range(10)]
    await service.succeeds("rollback", snapshot=second["snapshotId"])
    await service.succeeds("publish_branch", branch="audit", on_conflict=on_conflict)
    assert await asyncio.to_thread(service.ids) == [*range(10), *range(100, 110), *range(200, 210)]


async def test_a_branch_is_rebased_on_rows_that_others_have_written(service: Whole) -> None:
    """P6, P7: rows and watermarks of both are there once, and are rolled back together."""
    await service.ingest(service.source("a", 0))
    for number, name in enumerate("bc"):
        (await service.ingest(service.source(name, 100 + 10 * number), branch="audit")).raise_for_outcome()
    last = (await service.ingest(service.source("d", 200))).raise_for_outcome()
    publish: dict[str, Any] = {"branch": "audit", "publish": True, "on_conflict": "rebase"}
    with pytest.raises(InvalidArgument, match="concurrently written rows"):
        await service.client.start("t", "validate", {"rules": RULES, **publish})
    facts = await service.succeeds("validate", rules="id >= 0", **publish)
    assert (facts["rebased"], facts["publishedSnapshots"], facts["rows"]) == (True, 2, 20)
    everything = [*range(10), *range(100, 120), *range(200, 210)]
    assert await asyncio.to_thread(service.ids) == everything
    assert await service.ingested() == ["a", "b", "c", "d"]
    assert await asyncio.to_thread(refs, service) == {"main"}
    await service.succeeds("expire_snapshots", older_than="0s", keep_last=2)
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == everything
    assert service.data_files() == await asyncio.to_thread(service.published_files)
    assert await service.findings(deep=True) == []

    await service.succeeds("rollback", snapshot=last.facts["snapshotId"])
    assert await service.ingested() == ["a", "d"]
    # It finds none of its keys, and only adds rows.
    merge: dict[str, Any] = {"mode": "merge", "keys": ["id"]}
    (await service.ingest(service.source("b", 100), branch="audit", **merge)).raise_for_outcome()
    (await service.ingest(service.source("e", 300))).raise_for_outcome()
    refused = await service.run("publish_branch", branch="audit", on_conflict="rebase")
    assert error_of(refused).code == "HEAD_CONFLICT"
    assert "not all that was written to the branch are appends" in error_of(refused).message
    # What to do stays with an error that is raised at the commit.
    with pytest.raises(OperationFailed, match="drop the branch"):
        refused.raise_for_outcome()


async def test_a_table_that_was_compacted_meanwhile_has_the_same_rows(service: Whole) -> None:
    """P6: replacing files by others of the same rows is no reason to refuse a branch."""
    for number, name in enumerate("ab"):
        await service.ingest(service.source(name, 100 * number))
    (await service.ingest(service.source("c", 200), branch="audit")).raise_for_outcome()
    assert (await service.succeeds("compact", min_files=2))["filesBefore"] == 6
    await service.succeeds("expire_snapshots", older_than="0s")
    await service.succeeds("publish_branch", branch="audit")
    assert await asyncio.to_thread(service.ids) == [*range(10), *range(100, 110), *range(200, 210)]
    assert await service.ingested() == ["a", "b", "c"]


async def test_exactly_what_was_looked_at_is_published(idle: Whole) -> None:
    """P12: rows that come to the branch while it is validated keep it from being published."""
    async with runner(idle.store):
        await idle.ingest(idle.source("a", 0), branch="audit")
        await idle.at_rest()
    held = await idle.client.start("t", "validate", {"rules": RULES, "branch": "audit", "publish": True})
    async with runner(idle.store, serving=["ingest"]):
        (await idle.ingest(idle.source("b", -5), branch="audit")).raise_for_outcome()
    async with runner(idle.store):
        ended = await held.wait(timeout_s=90)
        assert error_of(ended).code == "HEAD_CONFLICT"
        assert not await idle.ingested()
        stale = await idle.run("publish_branch", branch="audit", snapshot="1")
        assert error_of(stale).code == "HEAD_CONFLICT"


async def test_modes_that_replace_rows_replace_those_of_the_branch(service: Whole) -> None:
    """P5: an overwrite of a branch leaves the table as it is, until it is published."""
    await service.ingest(service.source("a", 0))
    (await service.ingest(service.source("b", 100), branch="next", mode="overwrite")).raise_for_outcome()
    folder = service.source("c", 201, 1)  # of kind k0
    (await service.ingest(folder, branch="next", mode="overwrite_partitions")).raise_for_outcome()
    assert await asyncio.to_thread(service.ids) == list(range(10))
    # An ingest without rows: its watermark waits on the branch as well.
    nothing = await service.ingest(service.source("d", 300), branch="next", filter="id < 0")
    assert nothing.raise_for_outcome().facts["rows"] == 0
    facts = await service.succeeds("publish_branch", branch="next")
    assert facts["publishedSnapshots"] == 3
    kept = [number for number in range(100, 110) if number % 3]
    assert await asyncio.to_thread(service.ids) == [*kept, 201]
    assert await service.ingested() == ["a", "b", "c", "d"]


async def test_expiry_and_orphans_leave_branches_alone(service: Whole) -> None:
    """P13: what only a branch holds stays, with the watermarks it carries; once dropped, it goes."""
    await service.ingest(service.source("a", 0))
    for number, name in enumerate("bc"):
        (await service.ingest(service.source(name, 100 * (number + 1)), branch="audit")).raise_for_outcome()
    await service.at_rest()
    files = service.data_files()

    async def clean() -> None:
        await service.succeeds("expire_snapshots", older_than="0s")
        await service.at_rest()
        await asyncio.to_thread(age, service.location)
        await service.succeeds("remove_orphans", older_than="1d", dry_run=False)
        await service.at_rest()

    await clean()
    assert service.data_files() == files
    facts = await service.succeeds("publish_branch", branch="audit")
    assert facts["publishedSnapshots"] == 2
    assert await service.ingested() == ["a", "b", "c"]
    assert service.data_files() == await asyncio.to_thread(service.published_files) == files

    (await service.ingest(service.source("d", 300), branch="audit")).raise_for_outcome()
    await service.succeeds("drop_branch", branch="audit")
    await clean()
    await eventually(lambda: service.data_files() == files)


async def test_what_makes_no_sense_on_a_branch(service: Whole) -> None:
    """U3: refused at the start, with the field's name."""
    await service.ingest(service.source("a", 0))
    paths = {"paths": [str(service.source("b", 100))]}
    for type_name, argument, field in (
        ("ingest", {**paths, "branch": "main"}, "branch"),
        ("ingest", {**paths, "branch": "a b"}, "branch"),
        ("ingest", {**paths, "branch": "x", "mode": "ignore"}, "branch"),
        ("validate", {"rules": RULES, "publish": True}, "publish"),
        ("validate", {"rules": RULES, "publish": True, "branch": "main", "report_only": True}, "publish"),
        ("validate", {"rules": RULES, "publish": True, "branch": "main"}, "branch"),
        ("publish_branch", {"branch": "main"}, "branch"),
    ):
        with refused(field):
            await service.client.start("t", type_name, argument)
    for type_name in ("publish_branch", "drop_branch"):
        with pytest.raises(PreconditionFailed, match="no branch 'x'"):
            await service.client.start("t", type_name, {"branch": "x"})
    with pytest.raises(InvalidArgument, match="branch, and validate"):
        await service.client.start("t", "ingest", {**paths, "checks": {"rules": RULES}})


async def test_lost_answers_publish_a_branch_once(service: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: rows and watermarks are there once, and a second try finds no branch."""
    await service.ingest(service.source("a", 0))
    ids, marks = [*range(10)], ["a"]
    for number, point in enumerate(("seal.after", "snapshot.after", "finish.after"), 1):
        (await service.ingest(service.source(point, 100 * number), branch="audit")).raise_for_outcome()
        once = service.folder / f"once-{number}"
        once.mkdir()
        monkeypatch.setenv(crashpoints.ONCE_VARIABLE, str(once))
        monkeypatch.setattr(crashpoints, "_PLAN", f"{point}=lost")
        facts = await service.succeeds("validate", branch="audit", rules=RULES, publish=True)
        # The one that waits hears of the end from etcd, maybe before the coordinator has its answer.
        await eventually(lambda once=once: list(once.iterdir()))
        monkeypatch.setattr(crashpoints, "_PLAN", "")
        assert facts["publishedSnapshots"] == 1
        with pytest.raises(PreconditionFailed, match="no branch"):
            await service.client.start("t", "publish_branch", {"branch": "audit"})
        ids += range(100 * number, 100 * number + 10)
        marks.append(point)
        assert await asyncio.to_thread(service.ids) == ids
        assert await service.ingested() == sorted(marks)


async def test_an_engine_writes_to_a_branch_and_it_is_published_with_its_watermarks(
    service: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4, P8, P12: by its own writer; its snapshots say how far they go. Once, though an answer is lost."""
    await service.ingest(service.source("a", 0))

    def write(number: int, branch: str = "side") -> None:
        table = service.table()
        if branch not in table.metadata.refs:
            now = table.metadata.current_snapshot_id
            assert now is not None
            table.manage_snapshots().create_branch(now, branch).commit()
        rows = {"id": [number], "kind": ["k1"], "day": [date(2013, 1, 1)]}
        told = {"distop.watermark.orders.0": str(number)}
        schema = table.schema().as_arrow()
        table.refresh().append(pa.table(rows, schema=schema), branch=branch, snapshot_properties=told)

    for number in (100, 101):
        await asyncio.to_thread(write, number)
    with pytest.raises(AlreadyIngested):
        await asyncio.to_thread(write, 101)
    assert await asyncio.to_thread(service.ids) == list(range(10))
    assert "orders" not in await service.client.table("t").watermarks()
    once = service.folder / "once"
    once.mkdir()
    monkeypatch.setenv(crashpoints.ONCE_VARIABLE, str(once))
    monkeypatch.setattr(crashpoints, "_PLAN", "finish.after=lost")
    assert (await service.succeeds("publish_branch", branch="side"))["publishedSnapshots"] == 2
    await eventually(lambda: list(once.iterdir()))
    everything = [*range(10), 100, 101]
    assert await asyncio.to_thread(service.ids) == everything
    assert (await service.client.table("t").watermarks())["orders"] == {"0": "101"}
    with pytest.raises(AlreadyIngested):
        await asyncio.to_thread(write, 101)
    # Rows of the same source come to the table while others wait on the branch.
    await asyncio.to_thread(write, 102)
    await asyncio.to_thread(write, 103, "main")
    refused = await service.run("publish_branch", branch="side", on_conflict="rebase")
    assert error_of(refused).code == "WATERMARK_CONFLICT"
    assert await asyncio.to_thread(service.ids) == [*everything, 103]
    assert (await service.client.table("t").watermarks())["orders"] == {"0": "103"}
