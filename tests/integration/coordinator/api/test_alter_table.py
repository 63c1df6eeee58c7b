"""Tables are altered by one transaction, while operations run on them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

from distop.client import AsyncClient, Operation, OperationFailed
from distop.errors import IncompatibleOperation, InvalidArgument, PreconditionFailed
from distop.metastore import crashpoints
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.txn import KeyValue
from distop.metastore.records.record import decode
from distop.metastore.records.table import TableRecord
from support.services.coordinators import config_of, running
from support.services.executing import runner
from support.services.whole import Whole


@pytest_asyncio.fixture
async def whole(etcd_config: EtcdConfig, client: EtcdClient, tmp_path: Path) -> AsyncIterator[Whole]:
    """Without an executor: what is started stays at its beginning until a test lets it run."""
    async with running(config_of(etcd_config)) as coordinator, AsyncClient(coordinator.address) as sdk:
        yield Whole(etcd_config, client, sdk, tmp_path, coordinator.address)


def csv(whole: Whole, name: str, text: str) -> str:
    path = whole.folder / name
    path.write_text(text)
    return str(path)


async def ended(whole: Whole, *started: Operation) -> None:
    """Let operations run to their end."""
    async with runner(whole.store):
        for operation in started:
            await whole.client.operation(operation.name).result(timeout_s=60)


async def table_of(whole: Whole, *columns: str, table_format: str = "iceberg", **options: Any) -> None:
    """A table ``t`` that holds the row (1, a)."""
    given: Any = {"schema": list(columns or ("id: int not null", "name: string")), **options}
    await whole.client.create_table("t", str(whole.location), format=table_format, options=given)
    await ended(whole, await started(whole, "0.csv", "id,name\n1,a\n"))


async def started(whole: Whole, name: str, text: str, **argument: Any) -> Operation:
    return (await whole.client.start("t", "ingest", {"paths": csv(whole, name, text), **argument})).started


async def alter(whole: Whole, *changes: Any, **options: Any) -> Any:
    return await whole.client.table("t").alter(changes, **options)


async def standing(whole: Whole) -> list[KeyValue]:
    """What an alteration changes."""
    keys = whole.store.keyspace.table("t")
    trail = (await whole.store.scan(keys.audit_prefix)).kvs
    return [await whole.store.get(keys.table), await whole.store.get(keys.head), *trail]


async def rows(whole: Whole) -> pa.Table:
    def read() -> pa.Table:
        return whole.table().scan().to_arrow().sort_by("id")

    return await asyncio.to_thread(read)


async def columns(whole: Whole) -> list[str]:
    fields = (await asyncio.to_thread(whole.table)).schema().columns
    return [f"{one.name}: {one.field_type}{' not null' if one.required else ''}" for one in fields]


ALL: list[dict[str, Any]] = [
    {"change": "rename", "column": "name", "to": "who"},
    {"change": "add", "column": "fare", "type": "decimal(9,2)", "doc": "in euros"},
    {"change": "widen", "column": "id", "type": "long"},
    {"change": "optional", "column": "id"},
    {"change": "move", "column": "fare"},
    {"change": "partition_by", "terms": ["bucket[4](id)"]},
    {"change": "properties", "set": {"owner": "ana"}},
    {"change": "checks", "checks": {"rules": ["id > 0"]}},
]


async def test_everything_changes_in_one_transaction(whole: Whole) -> None:
    """U2, U3: with its entry in the audit trail; the next operation works with what the table is then."""
    await table_of(whole)
    altered = await alter(whole, *ALL, reason="year end")
    assert altered.options["partitionBy"] == ["bucket[4](id)"]
    assert await columns(whole) == ["fare: decimal(9, 2)", "id: long", "who: string"]
    await ended(whole, await started(whole, "1.csv", f"id,who,fare\n{2**40},b,1.50\n"))
    found = await rows(whole)
    assert found["id"].to_pylist() == [1, 2**40]
    assert found["who"].to_pylist() == ["a", "b"]
    table = await asyncio.to_thread(whole.table)
    assert table.schema().find_field("fare").doc == "in euros"
    assert table.properties["owner"] == "ana"
    assert {file.file.spec_id for file in table.scan().plan_files()} == {0, 1}
    with pytest.raises(PreconditionFailed, match="earlier partitioning"):
        await started(whole, "1.csv", "id,who,fare\n5,b,1.50\n", mode="overwrite_partitions", reingest=True)
    broken = await started(whole, "2.csv", "id,who,fare\n-1,b,1.50\n")
    with pytest.raises(OperationFailed, match="rules is broken"):
        await ended(whole, broken)
    entries = [entry async for entry in whole.client.audit("t")]
    entry = next(entry for entry in entries if entry.action == "alter-table")
    assert entry.reason.startswith("year end: rename name who; add fare decimal(9,2)")


async def test_an_alteration_with_one_wrong_change_changes_nothing(whole: Whole) -> None:
    await table_of(whole, partitionBy=["name"], checks={"rules": ["id > 0"]})
    before, files = await standing(whole), set((whole.location / "metadata").rglob("*"))
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"change": "drop", "column": "x"}, "no column 'x'"),
        ({"change": "drop", "column": "name"}, "partitioned by"),
        ({"change": "drop", "column": "id"}, "'id'|ID|id"),
        ({"change": "rename", "column": "id", "to": "key"}, "no column"),
        ({"change": "partition_by", "terms": ["day(name)"]}, "cannot be taken"),
        ({"change": "checks", "checks": {"rules": ["fare > 0"]}}, "no column 'fare'"),
        ({"change": "checks", "checks": {"rulez": []}}, "rulez"),
    ]
    for wrong, says in wrongs:
        with pytest.raises(InvalidArgument, match=says):
            await alter(whole, {"change": "add", "column": "n", "type": "long"}, wrong)
    assert await standing(whole) == before
    assert set((whole.location / "metadata").rglob("*")) == files


async def test_an_operation_that_runs_is_right_after_harmless_changes(whole: Whole) -> None:
    """P6: it began on the older columns, and its rows go where they belong."""
    await table_of(whole)
    one = await started(whole, "1.csv", "id,name\n2,b\n")
    await alter(whole, *(change for change in ALL if change["change"] != "checks"))
    await ended(whole, one)
    found = await rows(whole)
    assert found.to_pydict() == {"fare": [None, None], "id": [1, 2], "who": ["a", "b"]}


async def test_a_column_that_is_dropped_under_an_operation_stays_dropped(whole: Whole) -> None:
    """P6: and one that is made anew under its name has nothing of it."""
    await table_of(whole)
    one = await started(whole, "1.csv", "id,name\n2,b\n")
    added = {"change": "add", "column": "name", "type": "string"}
    await alter(whole, {"change": "drop", "column": "name"}, added)
    await ended(whole, one)
    assert (await rows(whole)).to_pydict() == {"id": [1, 2], "name": [None, None]}


async def test_an_alteration_that_would_break_a_running_operation_is_refused_by_its_name(
    whole: Whole,
) -> None:
    await table_of(whole, partitionBy=["name"])
    more = {"on_new_columns": "add", "mode": "overwrite_partitions"}
    one = await started(whole, "1.csv", "id,name,fare\n2,b,1.5\n", **more)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"change": "add", "column": "FARE", "type": "long"}, "adds a column"),
        ({"change": "rename", "column": "id", "to": "fare"}, "adds a column"),
        ({"change": "partition_by", "terms": []}, "replaces partitions"),
        ({"change": "checks", "checks": {"rules": ["id > 5"]}}, "rules of when it began"),
    ]
    for change, says in changes:
        with pytest.raises(IncompatibleOperation, match=says) as caught:
            await alter(whole, change)
        assert caught.value.details["operation"] == one.name
    await alter(whole, {"change": "add", "column": "other", "type": "long"})
    await ended(whole, one)
    assert await columns(whole) == ["id: int not null", "name: string", "other: long", "fare: double"]
    await alter(whole, {"change": "checks", "checks": {"rules": ["id > 5"]}})


@pytest.mark.parametrize("point", ["before", "after"])
async def test_an_alteration_is_made_once_however_often_it_is_sent(
    whole: Whole, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O7: the reply is lost in front of the caller, and behind the transaction; the client sends it again."""
    await table_of(whole)
    armed = f"table.alter.{point}"
    monkeypatch.setenv(crashpoints.ONCE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(crashpoints, "_PLAN", f"{armed}=lost")
    for _ in range(2):
        await alter(whole, {"change": "add", "column": "n", "type": "long"}, run="once")
    assert (tmp_path / crashpoints.record_name(armed, "lost")).exists()
    assert await columns(whole) == ["id: int not null", "name: string", "n: long"]
    entries = [entry async for entry in whole.client.audit("t")]
    assert [entry.action for entry in entries].count("alter-table") == 1


async def test_alterations_at_the_same_time_are_all_made(whole: Whole) -> None:
    """Each alteration starts from the result of the others; a concurrent ingest loses no row."""
    await table_of(whole)
    one = await started(whole, "1.csv", "id,name,x\n2,b,1\n", on_new_columns="add")
    changes = [{"change": "add", "column": f"c{number}", "type": "long"} for number in range(8)]
    await asyncio.gather(ended(whole, one), *(alter(whole, change) for change in changes))
    assert sorted(await columns(whole)) == sorted(
        ["id: int not null", "name: string", "x: long", *(f"c{number}: long" for number in range(8))]
    )
    assert (await rows(whole))["x"].to_pylist() == [None, 1]


async def test_a_table_without_rows_changes_its_options(whole: Whole) -> None:
    await whole.client.create_table("t", str(whole.location), options={"schema": ["id: int", "at: date"]})
    await alter(
        whole,
        {"change": "widen", "column": "id", "type": "long"},
        {"change": "rename", "column": "at", "to": "day"},
        {"change": "partition_by", "terms": ["month(day)"]},
    )
    kv = await whole.store.get(whole.store.keyspace.table("t").table)
    options = decode(kv.value, TableRecord, kv.key).options
    assert options == {"schema": ["id: long", "day: date"], "partitionBy": ["month(day)"]}
    await ended(whole, await started(whole, "1.csv", "id,day\n5,2024-01-02\n"))
    assert await columns(whole) == ["id: long", "day: date"]


@pytest.mark.parametrize("table_format", ["files", "delta"])
async def test_tables_that_are_not_iceberg_get_columns_and_refuse_other_changes(
    whole: Whole, table_format: str
) -> None:
    await table_of(whole, table_format=table_format)
    one = await started(whole, "1.csv", "id,name\n2,b\n")
    with pytest.raises(PreconditionFailed, match="for Iceberg tables"):
        await alter(whole, {"change": "rename", "column": "name", "to": "who"})
    for _ in range(2 if table_format == "delta" else 1):  # there, a try that lost a race has added it
        await alter(whole, {"change": "add", "column": "fare", "type": "double"})
    await ended(whole, one)
    await ended(whole, await started(whole, "2.csv", "id,name,fare\n3,c,1.5\n"))
    await ended(whole, await started(whole, "3.csv", "id,more\n4,x\n", on_new_columns="add"))
    with pytest.raises(InvalidArgument, match="no column 'other'"):
        await started(whole, "4.csv", "id,other\n5,y\n")
    await ended(whole, await started(whole, "5.csv", "id,more,fare,name\n6,x,2,d\n"))
