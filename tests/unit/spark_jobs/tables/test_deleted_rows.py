"""Rows that other engines have deleted: whatever reads a table leaves them out.

Compactions and deletions have their own tests.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from distop.spark_jobs.maintenance.validate import Validate
from distop.spark_jobs.tables import TableSnapshot, open_snapshot
from support.sources.ingesting import Ingesting
from support.tables.deletes import delete_ids
from support.tables.formats import as_format_3
from support.tables.indexing import Indexing
from support.tables.maintaining import Run
from support.tables.publishing import Table, new_table, rows

FIRST, SECOND = range(6), range(6, 12)
"""The ids in the two files of a table."""
GONE = (1, 4, 7)


KINDS = pytest.mark.parametrize("kind", ["positions", "vectors", "equality"])


def two_files(folder: Path) -> Table:
    table = new_table(folder)
    table.publish(table.staged(*([rows(some[0], len(some))] for some in (FIRST, SECOND))))
    return table


def ids(snapshot: TableSnapshot, where: str, *, use_indexes: bool = True) -> list[int]:
    files = snapshot.plan_files(where, use_indexes=use_indexes)
    return sorted(i for batch in snapshot.batches(files, where=where) for i in batch["id"].to_pylist())


@KINDS
def test_a_merge_neither_brings_them_back_nor_changes_them(tmp_path: Path, kind: str) -> None:
    """V5: their keys are new ones; files that are rewritten go on without them."""
    table = Ingesting(tmp_path, {"schema": {"id": "long", "n": "int"}})

    def merge(name: str, batch: dict[int, int | None]) -> tuple[int, ...]:
        """Rows with these values; ``None``: of rows that are to be deleted."""
        lines = "".join(f"{json.dumps({'id': id, 'n': n})}\n" for id, n in batch.items())
        facts = table.facts(
            paths=table.write(lines, name), mode="merge", keys=["id"], delete_where="n is null"
        )
        return tuple(facts[f"{done}Rows"] for done in ("inserted", "updated", "deleted"))

    for name, some in (("1.jsonl", FIRST), ("2.jsonl", SECOND)):
        table.ingest(paths=table.write("".join(f'{{"id": {id}, "n": 0}}\n' for id in some), name))
    delete_ids(table.table, kind, GONE)
    assert merge("3.jsonl", {1: 10, 2: 20, 4: None, 5: None}) == (1, 1, 1)

    def present() -> list[tuple[int, int]]:
        snapshot = open_snapshot(table.table.record().metadata_location)
        read = (batch.to_pydict() for batch in snapshot.batches(snapshot.plan_files()))
        return sorted(pair for one in read for pair in zip(one["id"], one["n"], strict=True))

    assert present() == [(0, 0), (1, 10), (2, 20), (3, 0), (6, 0), *((id, 0) for id in range(8, 12))]
    assert merge("4.jsonl", {7: None, 8: 80}) == (0, 1, 0)
    assert present() == [(0, 0), (1, 10), (2, 20), (3, 0), (6, 0), (8, 80), (9, 0), (10, 0), (11, 0)]


@KINDS
def test_deleted_rows_break_no_rule(tmp_path: Path, kind: str) -> None:
    """V5: nor do they count; a key that was deleted and added again is there once."""
    table = two_files(tmp_path)
    delete_ids(table, kind, GONE)
    table.publish(table.staged([rows(1, 1)], [rows(7, 1)]))
    rules: list[Any] = ["id not in (4)", {"unique": "id"}]

    def checked() -> tuple[int, list[str]]:
        results = [job.result for job in Run.of(table, Validate(), rules=rules).staged.jobs.values()]
        broken = [rule for one in results for rule in one.get("violated", ())]
        return sum(one["rows"] for one in results), broken

    assert checked() == (11, [])
    table.publish(table.staged([rows(4, 2)]))
    assert (checked()[0], len(checked()[1])) == (13, 2)


@KINDS
@pytest.mark.parametrize("age", ["older", "newer"])
def test_an_index_does_not_bring_them_back(tmp_path: Path, kind: str, age: str) -> None:
    """V5: it names row groups, and delete files count rows from the beginning of the file."""
    table = two_files(tmp_path)
    world = Indexing(table)
    if age == "older":
        world.build("id")
    delete_ids(table, kind, GONE)
    table.publish(table.staged([rows(4, 1)]))
    if age == "newer":
        world.build("id")
    snapshot = open_snapshot(table.record().metadata_location, indexes=world.records())
    for where, found in {
        "id = 1": [],
        "id = 4": [4],
        "id in (0, 1, 7, 8)": [0, 8],
        "id = 7 or id = 11": [11],
    }.items():
        assert ids(snapshot, where) == ids(snapshot, where, use_indexes=False) == found


@KINDS
def test_an_index_of_a_table_of_format_3_does_not_bring_them_back(tmp_path: Path, kind: str) -> None:
    """V5: such a table is only read."""
    table = two_files(tmp_path)
    world = Indexing(table)
    delete_ids(table, kind, GONE)
    table.replace(as_format_3(table))
    world.build("id")
    snapshot = open_snapshot(table.record().metadata_location, indexes=world.records())
    assert ids(snapshot, "id in (0, 1, 7, 8)") == [0, 8]
