"""Filters that indexes answer: what is planned with them holds every row that a scan finds."""

import random
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distop.lake.index.lookup import narrowed_by
from distop.lake.layout.schemas import parse_schema
from distop.lake.predicates.binding import BoundColumn, predicate_of
from distop.spark_jobs.tables import TableSnapshot, open_snapshot
from support.tables.indexing import Indexing
from support.tables.partition_values import append_values, by_partition, literal_of
from support.tables.publishing import new_table, rows

ALL = frozenset({0, 1})


def asked(**answers: dict[str, frozenset[int] | None]) -> Any:
    def ask(column: BoundColumn, values: Collection[Any]) -> dict[str, frozenset[int] | None] | None:
        return answers.get(column.name)

    return ask


OF_A = {"f": frozenset({0}), "g": None}
OF_EITHER = {"f": frozenset({0, 1}), "g": None, "h": None}
LEFT: dict[str, object] = {
    **dict.fromkeys(["a == 1", "a in (1, 2)", "a == 1 and x > 5"], OF_A),
    **dict.fromkeys(["x == 1", "a > 1", "a != 1", "not a == 1", "a is null", "a == 1 or x > 5"]),
    **dict.fromkeys(["a == 1 or b == 2", "(a == 1 or b == 2) and x == 3"], OF_EITHER),
    "a == 1 and b == 2": {"g": frozenset({3})},
}


@pytest.mark.parametrize(("text", "left"), LEFT.items())
def test_an_index_answers_equality_lists_and_or(text: str, left: object) -> None:
    """Equality, lists, AND and OR; for all else the rows decide."""
    ask = asked(a={"f": frozenset({0}), "g": None}, b={"f": frozenset({1}), "g": frozenset({3}), "h": None})
    columns = parse_schema(dict.fromkeys("abx", "long"))
    assert narrowed_by(predicate_of(text, columns).node, ask) == left


def snapshot_of(world: Indexing, **which: Any) -> TableSnapshot:
    return open_snapshot(world.table.record().metadata_location, indexes=world.records(), **which)


def ids(snapshot: TableSnapshot, where: str, *, use_indexes: bool = True) -> tuple[int, list[int]]:
    """How many files are planned, and the ids that are read from them."""
    files = snapshot.plan_files(where, use_indexes=use_indexes)
    batches = list(snapshot.batches(files, where=where))
    return len(files), sorted(pa.Table.from_batches(batches)["id"].to_pylist()) if batches else []


def test_planning_asks_the_indexes(tmp_path: Path) -> None:
    """With them and without them the same rows are found; whatever the index's age, and the snapshot's."""
    table = new_table(tmp_path)
    world = Indexing(table)
    rng = random.Random(7)
    order = [rng.sample(range(1000), 20) for _ in range(8)]
    schema = rows(0, 1).schema
    kinds = [[f"k{number % 3}" for number in some] for some in order]
    columns = [{"id": some, "kind": of} for some, of in zip(order, kinds, strict=True)]
    batches = [pa.record_batch(each, schema=schema) for each in columns]
    table.publish(table.staged(*([batch] for batch in batches[:5])))
    old = table.record().snapshot_id
    world.build("id")
    world.build("kind")
    table.publish(table.staged(*([batch] for batch in batches[5:])))
    for which in ({}, {"snapshot_id": old}):
        snapshot = snapshot_of(world, **which)
        newer = 0 if which else 3
        for value in (order[0][3], order[4][0], order[6][1], 5000):
            several = (f"id in ({value}, 7777) and kind != 'x'", f"id == {value} or id == 8")
            for where in (f"id == {value}", *several):
                plain = ids(snapshot, where, use_indexes=False)
                narrowed = ids(snapshot, where)
                assert narrowed[1] == plain[1], where
                assert narrowed[0] <= plain[0]
        assert ids(snapshot, f"id == {order[0][3]} and kind == 'k1x'") == (newer, [])
        assert len(snapshot.plan_files("id > 3")) == len(snapshot.plan_files("id > 3", use_indexes=False))


@pytest.mark.parametrize("hive", [False, True], ids=["in the files", "in the partition only"])
@pytest.mark.parametrize("kind", ["string", "double", "date"])
def test_an_index_leaves_out_no_file_that_has_the_value_from_its_partition(
    tmp_path: Path, kind: str, hive: bool
) -> None:
    """Its files need not have the column that is indexed."""
    table, values = by_partition(tmp_path, kind)
    append_values(table, values, hive=hive)
    world = Indexing(table)
    world.build("p")
    world.build("id")
    snapshot, where = snapshot_of(world), f"p = {literal_of(values[0])}"
    assert ids(snapshot, where) == (1, [0, 3])
    assert ids(snapshot, f"{where} and id = 3") == (1, [3])
    assert ids(snapshot, f"{where} and id = 1") == (0, [])


def test_the_value_of_a_filter_may_be_of_another_kind(tmp_path: Path) -> None:
    """An invalid value has the same error as without an index."""
    world = Indexing(new_table(tmp_path))
    world.table.publish(world.table.staged([rows(0, 10)]))
    world.build("id")
    snapshot = snapshot_of(world)
    assert len(snapshot.plan_files("id == 5")) == 1
    assert len(snapshot.plan_files("kind == 'k1'")) == 1
