"""Scans that the catalog plans: as the client would, with indexes, in pages, and for whoever may read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types
from pyiceberg.catalog.rest import RestCatalog as RestClient
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.expressions.parser import parse
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, MonthTransform

from distop.commit.catalog.catalog import EtcdCatalog
from distop.commit.scans import pages
from distop.coordinator.access.authentication import IdentityConfig
from distop.coordinator.rest import scans
from distop.metastore.etcd.config import EtcdConfig
from distop.metastore.etcd.sync import SyncEtcd
from support.services.rest import Answer, RestDoor, rest_door
from support.services.tokens import allow, token_file, token_of
from support.tables.catalogs import SCHEMA, ids
from support.tables.deletes import add_deletes, equality_deletes, position_deletes
from support.tables.indexing import index_of_catalog

T = "namespaces/default/tables/t"
WIDE = Schema(
    types.NestedField(1, "id", types.LongType()),
    types.NestedField(2, "kind", types.StringType()),
    types.NestedField(3, "day", types.DateType()),
    types.NestedField(4, "at", types.TimestamptzType()),
    types.NestedField(5, "share", types.FloatType()),
    types.NestedField(6, "size", types.DoubleType()),
)
BY_MONTH = PartitionSpec(
    PartitionField(3, 1000, MonthTransform(), "month"), PartitionField(2, 1001, IdentityTransform(), "kind")
)
FILTERS = """id = 7 ; id != 7 ; id > 20 and id <= 40 ; id in (3, 33, 999) ; id not in (3, 33) ; id is null ;
id is not null ; kind = 'a' ; kind != 'a' ; kind in ('a', 'c') ; kind like 'b%' ; kind not like 'b%' ;
kind is null ; day = '2024-02-11' ; day < '2024-02-01' ; day >= '2024-01-31' and kind = 'b' ;
not (day >= '2024-01-31' and kind = 'b') ; not (id < 10 or kind is null) ;
at >= '2024-02-10T00:00:00+00:00' ; size is nan ; size is not nan and size > 40.0 ;
id = 99 or day = '2024-01-05' ; id > 1000"""
"""Separated by semicolons."""


@pytest.fixture
def planned(door: RestDoor) -> Iterator[RestClient]:
    """pyiceberg's client, which has the catalog plan its scans."""
    with door.client(**{"scan-planning-mode": "server"}) as client:
        assert client.supports_server_side_planning()
        yield client  # type: ignore[misc]


def wide(month: int, kind: str | None, first: int, count: int = 10) -> pa.Table:
    """Rows of one partition."""
    numbers = range(first, first + count)
    columns = {
        "id": [None if number % 10 == 9 else number for number in numbers],
        "kind": pa.array([kind] * count, pa.string()),
        "day": [date(2024, month, 1 + number % 28) for number in numbers],
        "at": pa.array(
            [datetime(2024, month, 1 + n % 28, tzinfo=UTC) for n in numbers], pa.timestamp("us", "UTC")
        ),
        "share": pa.array([0.1] * count, pa.float32()),
        "size": [float("nan") if number % 5 == 0 else float(number) for number in numbers],
    }
    return pa.table(columns)


def add(table: Table, rows: pa.Table) -> None:
    """Append a file; pyiceberg writes none into partitions that are made of columns."""
    folder = Path(table.location().removeprefix("file://")) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    name = folder / f"rows-{len(list(folder.iterdir()))}.parquet"
    pq.write_table(rows, name)
    table.add_files([f"file://{name}"])


@pytest.fixture
def partitioned(python: EtcdCatalog) -> Table:
    """Three months and four kinds in seven files, some of its rows deleted by other engines."""
    table = python.create_table("default.t", WIDE, partition_spec=BY_MONTH)
    for number, (month, kind) in enumerate([(1, "a"), (1, "b"), (2, "a"), (2, "c"), (3, "c"), (3, "bb")]):
        add(table, wide(month, kind, 10 * number))
    files = sorted((task.file for task in table.scan().plan_files()), key=lambda file: file.file_path)
    table = add_deletes(table, position_deletes(table, files[0], [0, 3], bounds=True))
    table = add_deletes(table, position_deletes(table, files[1], [1], bounds=False))
    add(table, wide(1, "a", 100))
    return table


def filters() -> list[str]:
    return [one.strip() for one in FILTERS.split(";")]


Told = dict[str, tuple[set[str], bool]]
"""Each file of a plan with its delete files, and whether all of its rows are wanted."""


def told(table: Table, where: str) -> Told:
    tasks = list(table.scan(row_filter=where).plan_files())
    planned = {
        task.file.file_path: ({one.file_path for one in task.delete_files}, task.residual == AlwaysTrue())
        for task in tasks
    }
    assert len(planned) == len(tasks)
    return planned


def rows(table: Table, where: str) -> list[str]:
    return sorted(map(str, table.scan(row_filter=where).to_arrow().to_pylist()))


def test_the_catalog_plans_as_clients_do(rest: RestClient, planned: RestClient, partitioned: Table) -> None:
    """E1: of every kind of filter, with the delete files of each file, and the rows that are read then."""
    here, there = rest.load_table("default.t"), planned.load_table("default.t")
    for where in filters():
        assert told(there, where) == told(here, where), where
    for where in filters()[::5]:
        assert rows(there, where) == rows(here, where), where
    assert told(there, "true") == told(here, "true")
    assert {len(deletes) for deletes, _ in told(there, "true").values()} == {0, 1}
    assert there.scan().count() == here.scan().count() == 67


def test_so_it_is_of_partitions_of_nulls(door: RestDoor, rest: RestClient, partitioned: Table) -> None:
    """E1: which pyiceberg's client cannot take from a catalog."""
    add(partitioned, wide(2, None, 70))
    table = rest.load_table("default.t")
    for where in filters():
        answer = asked(door, filter=json.loads(parse(where).model_dump_json())).json
        planned = {
            task["data-file"]["file-path"]: (
                {answer["delete-files"][at]["file-path"] for at in task.get("delete-file-references", ())},
                task["residual-filter"] is True,
            )
            for task in answer["file-scan-tasks"]
        }
        assert planned == told(table, where), where
    [none] = asked(door, filter={"type": "is-null", "term": "kind"}).json["file-scan-tasks"]
    assert none["data-file"]["partition"][1] is None


def asked(door: RestDoor, **body: Any) -> Answer:
    return door.ask("POST", f"{T}/plan", {name.replace("_", "-"): value for name, value in body.items()})


def equal(column: str, value: Any) -> dict[str, Any]:
    return {"type": "eq", "term": column, "value": value}


def found(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.text
    return [task["data-file"]["file-path"] for task in answer.json["file-scan-tasks"]]


def test_an_answer_is_as_the_protocol_has_it(door: RestDoor, partitioned: Table) -> None:
    """E1: partitions by the types of their fields, statistics of the columns that are asked for, the filter
    where not all rows are wanted."""
    where = {"type": "and", "left": equal("day", "2024-02-11"), "right": equal("kind", "a")}
    answer = asked(door, filter=where, stats_fields=["id", None, "no column"], select=["id"])
    assert (answer.json["status"], "plan-tasks" in answer.json) == ("completed", False)
    [task] = answer.json["file-scan-tasks"]
    file = task["data-file"]
    assert (file["content"], file["file-format"], file["spec-id"]) == ("data", "parquet", 0)
    assert file["partition"] == [(2024 - 1970) * 12 + 1, "a"]
    assert file["record-count"] == 10
    assert file["value-counts"] == {"keys": [1], "values": [10]}
    assert file["null-value-counts"] == {"keys": [1], "values": [1]}
    assert "lower-bounds" not in file
    assert task["residual-filter"] == where
    [whole] = asked(door, filter=equal("kind", "bb")).json["file-scan-tasks"]
    assert whole["residual-filter"] is True
    assert "value-counts" not in whole["data-file"]
    again = door.ask("GET", f"{T}/plan/{answer.json['plan-id']}")
    assert again.json == {name: value for name, value in answer.json.items() if name != "plan-id"}
    assert door.ask("DELETE", f"{T}/plan/{answer.json['plan-id']}").status == 204
    assert door.ask("GET", f"{T}/plan/none").problem == (404, "NoSuchPlanIdException")


def test_deletes_by_value_concern_older_files_of_their_partition_or_of_all(
    door: RestDoor, python: EtcdCatalog, partitioned: Table
) -> None:
    """P14: engines that can read them are told which, as the specification of Iceberg has it."""
    table = partitioned
    files = [task.file for task in table.scan().plan_files()]
    of_bb = next(file for file in files if file.partition[1] == "bb")
    table = add_deletes(table, equality_deletes(table, "id", [51], of_bb))
    add(table, wide(3, "bb", 200))
    answer = asked(door, filter=equal("kind", "bb")).json
    [deletes] = answer["delete-files"]
    assert (deletes["content"], deletes["equality-ids"]) == ("equality-deletes", [1])
    named = {t["data-file"]["file-path"]: t.get("delete-file-references") for t in answer["file-scan-tasks"]}
    assert named.pop(of_bb.file_path) == [0]
    assert list(named.values()) == [None]
    python.create_table("default.u", SCHEMA).append(ids(0, 3))
    u = python.load_table("default.u")
    add_deletes(u, equality_deletes(u, "id", [1], None)).append(ids(3, 3))
    answer = door.ask("POST", "namespaces/default/tables/u/plan", {}).json
    assert sorted(len(task.get("delete-file-references", ())) for task in answer["file-scan-tasks"]) == [0, 1]


def test_a_number_is_compared_as_its_column_holds_it(door: RestDoor, partitioned: Table) -> None:
    """E1: 0.1 of a column of floats is none of doubles; statistics must not lose its files."""
    assert len(found(asked(door, filter=equal("share", 0.1)))) == 7
    assert len(found(asked(door, filter=equal("share", 0.2)))) == 0


def test_an_index_leaves_the_one_file_that_holds_a_value(
    door: RestDoor, planned: RestClient, python: EtcdCatalog, store: SyncEtcd
) -> None:
    """E1: where statistics leave all; files that came since are planned, too."""
    table = python.create_table("default.t", SCHEMA)
    for first in range(8):
        table.append(pa.table({"id": [first, first + 1000], "kind": ["k"] * 2}))
    five = equal("id", 5)
    assert len(found(asked(door, filter=five))) == 6
    index_of_catalog(store, python, "t", "id")
    assert len(found(asked(door, filter=five))) == 1
    assert planned.load_table("default.t").scan(row_filter="id = 5").to_arrow()["id"].to_pylist() == [5]
    some = {"type": "in", "term": "ID", "values": [5, 1007]}
    assert len(found(asked(door, filter=some, case_sensitive=False))) == 2
    assert len(found(asked(door, filter={"type": "and", "left": five, "right": equal("id", 6)}))) == 0
    assert len(found(asked(door, filter={"type": "not", "child": five}))) == 8
    table.append(pa.table({"id": [4, 6], "kind": ["k"] * 2}))
    assert len(found(asked(door, filter=five))) == 2
    assert len(found(asked(door, filter={"type": "or", "left": five, "right": equal("kind", "k")}))) == 9


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two manifests, and three files of them."""
    monkeypatch.setattr(pages, "MAX_MANIFESTS", 2)
    monkeypatch.setattr(scans, "MAX_TASKS", 3)
    monkeypatch.setattr(scans, "PARTS", 4)


def of_task(door: RestDoor, task: str) -> Answer:
    return door.ask("POST", f"{T}/tasks", {"plan-task": task})


def followed(door: RestDoor, answer: Answer) -> list[str]:
    """All files of an answer and of its tasks, and of theirs."""
    files, waiting = found(answer), list(answer.json.get("plan-tasks", ()))
    while waiting:
        page = of_task(door, waiting.pop(0))
        files += found(page)
        assert len(found(page)) <= 3
        waiting += page.json.get("plan-tasks", ())
    return files


@pytest.mark.usefixtures("small_pages")
def test_a_large_plan_has_each_file_once(door: RestDoor, planned: RestClient, python: EtcdCatalog) -> None:
    """E1: of many small manifests, and of one that lists more than a page holds."""
    table = python.create_table("default.t", SCHEMA)
    for first in range(11):
        table.append(ids(10 * first, 10))
    whole = asked(door)
    assert len(whole.json["plan-tasks"]) == 4
    expected = sorted(task.file.file_path for task in table.scan().plan_files())
    assert sorted(followed(door, whole)) == expected
    assert planned.load_table("default.t").scan().to_arrow().num_rows == 110
    some = asked(door, filter={"type": "lt", "term": "id", "value": 35})
    assert len(followed(door, some)) == 4
    merged = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "1"}
    with table.transaction() as changing:
        changing.set_properties(merged)
    table.append(ids(110, 10))
    assert len(table.current_snapshot().manifests(table.io)) == 1  # type: ignore[union-attr]
    one = asked(door)
    assert (len(found(one)), len(one.json["plan-tasks"])) == (3, 1)
    assert sorted(followed(door, one)) == sorted(task.file.file_path for task in table.scan().plan_files())
    assert len(followed(door, one)) == 12


@pytest.mark.usefixtures("small_pages")
def test_plan_tasks_hold_while_the_table_goes_on_and_at_every_coordinator(
    door: RestDoor, etcd_config: EtcdConfig, python: EtcdCatalog, tmp_path: Path
) -> None:
    """E1: they stand for the snapshot that was planned, until that is gone."""
    table = python.create_table("default.t", SCHEMA)
    for start in range(0, 60, 10):
        table.append(ids(start, 10))
    first = asked(door)
    expected = sorted(task.file.file_path for task in table.scan().plan_files())
    table.overwrite(ids(1000, 1))
    with table.update_schema() as changing:
        changing.rename_column("kind", "sort")
    with rest_door(etcd_config, tmp_path) as other:
        assert sorted(followed(other, first)) == expected
        old = [one.snapshot_id for one in table.snapshots()[:-1]]
        table.maintenance.expire_snapshots().by_ids(old).commit()
        for token in (first.json["plan-tasks"][0], "none", "", "AAAA", "e30"):
            assert of_task(other, token).problem == (404, "NoSuchPlanTaskException")
        assert other.ask("GET", f"{T}/plan/{first.json['plan-id']}").problem[0] == 404


def test_what_was_appended_between_two_snapshots(door: RestDoor, partitioned: Table) -> None:
    """E1: the files of appends alone, by the filter, too."""
    [first, second, *_, last] = [one.snapshot_id for one in partitioned.snapshots()]
    asking = {"start_snapshot_id": first, "end_snapshot_id": last}
    appended = found(asked(door, **asking))
    assert len(appended) == len(set(appended)) == 6
    assert len(found(asked(door, **asking, filter=equal("kind", "a")))) == 2
    assert found(asked(door, start_snapshot_id=last, end_snapshot_id=last)) == []
    assert "delete-files" not in asked(door, **asking).json
    for bad in (
        {"start_snapshot_id": second, "end_snapshot_id": first},
        {"start_snapshot_id": first},
        {"end_snapshot_id": first},
        {**asking, "snapshot_id": last},
        {"start_snapshot_id": first, "end_snapshot_id": 7},
    ):
        assert asked(door, **bad).problem == (400, "BadRequestException"), bad


def test_a_snapshot_is_planned_with_its_columns_or_the_tables(door: RestDoor, python: EtcdCatalog) -> None:
    """E1"""
    table = python.create_table("default.t", SCHEMA)
    assert found(asked(door)) == []
    table.append(ids(0, 3))
    old = table.current_snapshot().snapshot_id  # type: ignore[union-attr]
    with table.update_schema() as changing:
        changing.rename_column("id", "number")
    table.append(pa.table({"number": [7], "kind": ["k"]}))
    of_old: dict[str, Any] = {"snapshot_id": old, "use_snapshot_schema": True}
    assert len(found(asked(door, **of_old, filter=equal("id", 1)))) == 1
    assert len(found(asked(door, snapshot_id=old, filter=equal("number", 1)))) == 1
    for bad in (
        {**of_old, "filter": equal("number", 1)},
        {"filter": equal("id", 1)},
        {"filter": equal("NUMBER", 1)},
        {"snapshot_id": 7},
    ):
        assert asked(door, **bad).problem == (400, "BadRequestException"), bad
    assert len(found(asked(door, filter=equal("NUMBER", 1), case_sensitive=False))) == 1


def deep(levels: int) -> Any:
    return equal("id", 1) if not levels else {"type": "not", "child": deep(levels - 1)}


BAD: list[Any] = [
    None,
    [],
    "id = 1",
    {},
    {"type": "like", "term": "kind", "value": "a"},
    {"type": "and", "left": True},
    {"type": "in", "term": "id", "values": 1},
    {"type": "in", "term": "id", "values": [1, None]},
    {"type": "eq", "term": {"type": "apply", "function": "f"}, "value": 1},
    equal("nothing", 1),
    equal("id", "a"),
    equal("id", {"type": "reference", "name": "id"}),
    equal("kind", ["a"]),
    deep(300),
    {"type": "in", "term": "kind", "values": ["x" * 1000] * 300},
]


def test_a_filter_that_is_none_is_refused(door: RestDoor, python: EtcdCatalog) -> None:
    """U3: an expression that is not known, a column, a value, a depth, a length."""
    python.create_table("default.t", SCHEMA).append(ids(0, 3))
    for bad in BAD:
        answer = asked(door, filter=bad)
        assert answer.problem == (400, "BadRequestException"), bad
        assert len(answer.text) < 1_000


def test_what_is_said_of_transforms_and_structs_rules_no_file_out(door: RestDoor, partitioned: Table) -> None:
    """E1: the rows are left to the engine, with the whole filter."""
    bucket = {"type": "transform", "transform": "bucket[4]", "term": "id"}
    where = {"type": "not", "child": {"type": "eq", "term": bucket, "value": 3}}
    both = {"type": "and", "left": where, "right": equal("kind", "bb")}
    answer = asked(door, filter=both)
    assert len(found(answer)) == 1
    assert [task["residual-filter"] for task in answer.json["file-scan-tasks"]] == [both]


def test_a_plan_takes_the_right_to_read(
    etcd_config: EtcdConfig, store: SyncEtcd, python: EtcdCatalog, tmp_path: Path
) -> None:
    """S3: for whom the table does not exist, it has no plans, whoever has made them."""
    python.create_table("default.t", SCHEMA).append(ids(0, 3))
    python.create_table("default.u", SCHEMA)
    identity = IdentityConfig(admins=("root",), token_file=token_file(tmp_path, ["reader", "nobody", "root"]))
    allow(store, "root", "admin", "*")
    allow(store, "reader", "reader", "t")
    allow(store, "nobody", "reader", "u")
    with rest_door(etcd_config, tmp_path, identity) as door:

        def status(who: str, method: str, path: str, body: Any = None) -> int:
            return door.ask(method, f"{T}/{path}", body, authorization=f"Bearer {token_of(who)}").status

        first = door.ask("POST", f"{T}/plan", {}, authorization=f"Bearer {token_of('reader')}").json
        for method, path, body in (
            ("POST", "plan", {}),
            ("GET", f"plan/{first['plan-id']}", None),
            ("POST", "tasks", {"plan-task": first["plan-id"]}),
            ("DELETE", f"plan/{first['plan-id']}", None),
        ):
            assert status("reader", method, path, body) in (200, 204)
            assert status("nobody", method, path, body) == 404
        foreign = door.ask(
            "POST",
            "namespaces/default/tables/u/tasks",
            {"plan-task": first["plan-id"]},
            authorization=f"Bearer {token_of('nobody')}",
        )
        assert foreign.problem == (404, "NoSuchPlanTaskException")
