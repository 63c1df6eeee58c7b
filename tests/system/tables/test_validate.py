"""Rules on rows, from the call to the verdict: coordinator, executor (threads), etcd and files are real."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import StringType

from distop.client import Operation, OperationState
from distop.errors import InvalidArgument, PreconditionFailed
from support.services.executing import runner
from support.services.whole import HEADER, Whole, error_of
from support.tables.trees import files_in
from support.waiting import eventually

KEPT = [{"not_null": "id"}, "id >= 0", {"column": "kind", "type": "string(2)"}, {"unique": "id"}]


def report_of(ended: Operation) -> Any:
    return json.loads(Path(ended.facts["report"].removeprefix("file://")).read_text())


def flawed(service: Whole) -> Path:
    """Thirty good rows, and four that are not."""
    folder = service.source("flawed", 0, 30)
    rows = "7,k1,2013-01-01\n-1,k1,2013-01-01\n,k2,2013-01-01\n90,k10,2013-01-01\n"
    (folder / "2.csv").write_text(HEADER + rows)
    return folder


async def test_all_broken_rules_are_named_with_partitions_counts_and_rows(service: Whole) -> None:
    """P12: one verdict over all jobs, of every rule; the report is next to the data; nothing else is left."""
    await service.ingest(service.source("good", 1000, 30))
    good = (await service.run("validate", rules=KEPT)).raise_for_outcome()
    assert (good.jobs.total, good.facts["checkedRows"], good.facts["violatedRules"]) == (3, 30, 0)

    await service.ingest(flawed(service))
    ended = await service.run("validate", rules=KEPT, samples=2)
    assert ended.state is OperationState.FAILED
    assert error_of(ended).code == "VALIDATION_FAILED"
    assert ended.jobs.failed == 0
    assert error_of(ended).message.startswith("4 of 4 rules are broken: ")
    found = {one["rule"]: one for one in ended.facts["violations"]}
    assert {name: (one["rows"], one["most"]) for name, one in found.items()} == {
        "not_null(id)": (1, {"kind=k2": 1}),
        "check(id >= 0)": (1, {"kind=k1": 1}),
        "type(kind string(2))": (1, {"kind=k10": 1}),
        "unique(id)": (1, {"kind=k1": 1}),
    }
    assert json.loads(found["unique(id)"]["sample"]) == {"id": 7, "times": 2}
    ((sample,),) = (one["samples"] for one in report_of(ended)["rules"] if one["rule"] == "not_null(id)")
    assert (sample["partition"], sample["row"]["id"], sample["row"]["kind"]) == ("kind=k2", None, "k2")
    assert (service.location / sample["row"]["file"]).exists()

    await service.at_rest()
    assert not files_in(service.location / "_distop")
    assert service.data_files() == await asyncio.to_thread(service.published_files)


async def test_reporting_only_part_of_a_table_and_its_past(service: Whole) -> None:
    """The operation succeeds and says what it found; partitions or a snapshot may be chosen."""
    first = await service.ingest(service.source("good", 1000, 30))
    await service.ingest(flawed(service))
    told = (await service.run("validate", rules=KEPT, report_only=True)).raise_for_outcome()
    assert told.facts["violatedRules"] == 4

    some = await service.client.start("t", "validate", {"rules": KEPT}, partitions=["kind=k1"])
    ended = await some.wait(timeout_s=90)
    assert (ended.jobs.total, ended.facts["violatedRules"]) == (1, 2)
    with pytest.raises(InvalidArgument, match="no partition 'kind=zz'"):
        await service.client.start("t", "validate", {"rules": KEPT}, partitions=["kind=zz"])

    before = await service.run("validate", rules=KEPT, snapshot=first.facts["snapshotId"])
    assert (before.state, before.facts["checkedRows"]) == (OperationState.SUCCEEDED, 30)

    def changed() -> None:
        with service.table().update_schema() as schema:
            schema.rename_column("id", "number")
            schema.add_column("extra", StringType())

    await asyncio.to_thread(changed)
    now = await service.run("validate", rules=["number >= 0", {"not_null": "extra"}], report_only=True)
    assert {one["rule"]: one["rows"] for one in now.facts["violations"]} == {
        "check(number >= 0)": 1,
        "not_null(extra)": 64,
    }


async def test_what_makes_no_sense_is_refused_at_the_start(service: Whole) -> None:
    """U3, O4: a rule that does not parse, unknown columns, a look at anything but the row; no key is left."""
    with pytest.raises(PreconditionFailed, match="nothing has been published"):
        await service.client.start("t", "validate", {"rules": KEPT})
    await service.ingest(service.source("good", 0, 3))
    await service.at_rest()
    before = await service.keys()
    for rules in (
        [],
        ["id >"],
        ["fare > 0"],
        ["id > 0", "(SELECT count(*) FROM read_text('/etc/passwd')) > 0"],
    ):
        with pytest.raises(InvalidArgument) as raised:
            await service.client.start("t", "validate", {"rules": rules})
        assert raised.value.details["field"].startswith("rules"), rules
    with pytest.raises(PreconditionFailed, match="no branch"):
        await service.client.start("t", "validate", {"rules": KEPT, "branch": "nope"})
    assert await service.keys() == before


async def test_a_validation_checks_no_rows_ingested_meanwhile(idle: Whole) -> None:
    """The files are those of the snapshot at the start, whatever is published while the jobs run."""
    async with runner(idle.store):
        await idle.ingest(idle.source("good", 1000, 30))
        await idle.at_rest()
    held = await idle.client.start("t", "validate", {"rules": KEPT})
    async with runner(idle.store, serving=["ingest"]):
        assert (await idle.ingest(flawed(idle))).state is OperationState.SUCCEEDED
    async with runner(idle.store):
        ended = await held.wait(timeout_s=90)
    assert (ended.state, ended.facts["checkedRows"]) == (OperationState.SUCCEEDED, 30)


async def test_rows_that_break_a_rule_are_not_published(service: Whole) -> None:
    """P12: write, checks, publish. Nothing visible, no watermark, no file; put right, it goes."""
    await service.ingest(service.source("good", 1000, 30))
    checks = {"rules": [rule for rule in KEPT if rule != {"unique": "id"}]}
    folder = flawed(service)
    for split_bytes in (1 << 20, 1024):
        ended = await service.ingest(folder, checks=checks, split_bytes=split_bytes)
        assert (error_of(ended).code, ended.jobs.failed) == ("VALIDATION_FAILED", 0)
        found = {one["rule"]: one["rows"] for one in ended.facts["violations"]}
        assert found == {"not_null(id)": 1, "check(id >= 0)": 1, "type(kind string(2))": 1}
        assert json.loads(ended.facts["violations"][0]["sample"])["file"].endswith("/flawed/2.csv")
    await service.at_rest()
    assert await asyncio.to_thread(service.ids) == list(range(1000, 1030))
    assert await service.ingested() == ["good"]
    assert service.data_files() == await asyncio.to_thread(service.published_files)
    assert not files_in(service.location / "_distop")

    told = await service.ingest(folder, checks={**checks, "report_only": True}, watermark={"flawed": "1"})
    assert (told.state, told.facts["violatedRules"], told.facts["rows"]) == (OperationState.SUCCEEDED, 3, 34)
    (folder / "2.csv").unlink()
    ended = await service.ingest(folder, checks=checks, reingest=True)
    assert (ended.state, ended.facts["checkedRows"]) == (OperationState.SUCCEEDED, 30)


async def test_nobody_gets_around_the_rules_of_a_table(service: Whole) -> None:
    """P12: rules among the options of a table hold for every ingest, whatever its argument says."""
    checks = {"rules": ["id >= 0"]}
    for name, table_format in (("kept", "iceberg"), ("tree", "files")):
        location = str(service.folder / name)
        await service.client.create_table(name, location, format=table_format, options={"checks": checks})
        for argument in ({}, {"checks": {"rules": "id < 9000", "report_only": True}}):
            ended = await service.ingest(flawed(service), name, **argument)
            assert error_of(ended).code == "VALIDATION_FAILED"
            assert ended.facts["rules"] == 1 + len(argument)
        assert not await service.client.table(name).watermarks()
    await service.at_rest()
    left = files_in(service.folder / "tree")
    assert {path.parent.name for path in left} == {"_validation"}


async def test_a_batch_that_breaks_a_rule_blocks_its_table(service: Whole) -> None:
    """P12, B8: the backlog stops at it, and it is not tried again until somebody decides."""
    checks = {"rules": "id >= 0"}
    good = service.source("good", 1000, 30)
    for batch, folder in (("1", flawed(service)), ("2", good)):
        await service.client.table("t").enqueue(batch, "ingest", {"paths": [str(folder)], "checks": checks})

    async def blocked() -> bool:
        return (await service.client.table("t").ordering()).blocked is not None

    await eventually(blocked, 90)
    block = (await service.client.table("t").ordering()).blocked
    assert block is not None
    assert (block.batch, block.error.code) == ("1", "VALIDATION_FAILED")
    await service.client.table("t").skip_batch("1")

    await eventually(service.drained, 90)
    assert await asyncio.to_thread(service.ids) == list(range(1000, 1030))
