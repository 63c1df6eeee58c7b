"""Every row is checked once, however partitions are named and split into groups."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from distop.spark_jobs.maintenance.validate import Validate
from support.tables.maintaining import Run
from support.tables.publishing import ROWS, new_table


def checked(
    folder: Path, ids: Mapping[Any, list[int]], rules: Any = "id > 0", **argument: Any
) -> tuple[int, int]:
    """Rows that were read, and jobs that found a broken rule: one file for each id, a group for each file."""
    table = new_table(folder, ["kind"])
    for kind, numbers in ids.items():
        for number in numbers:
            row = pa.record_batch({"id": [number], "kind": [kind]}, schema=ROWS)
            table.publish(table.staged([row]))
    run = Run.of(table, Validate(), rules=rules, group_bytes=1, **argument)
    results = [job.result for job in run.staged.jobs.values()]
    return sum(result["rows"] for result in results), sum("violated" in result for result in results)


def test_a_partition_that_is_named_as_a_piece_of_another_takes_no_place_of_it(tmp_path: Path) -> None:
    """P13: the pieces of ``kind=a`` are called ``kind=a~1`` and so on."""
    assert checked(tmp_path, {"a": [1, -2, 3, -4], "a~1": [5, -6], "a~1~1": [-7]}) == (7, 4)


def test_all_pieces_of_a_partition_that_was_named_are_checked(tmp_path: Path) -> None:
    ids = {"a": [1, 2, -3], "b": [-4]}
    assert checked(tmp_path, ids, partitions=["kind=a", "kind=a"]) == (3, 1)


def test_the_partition_of_null_is_not_that_of_the_text(tmp_path: Path) -> None:
    ids = {"null": [1, 2], None: [1, 2], "%6Eull": [1, 1]}
    assert checked(tmp_path, ids, rules={"unique": "id"}) == (6, 1)


@pytest.mark.parametrize(
    ("partition_by", "unique", "warned"),
    [
        (["kind"], "id", True),
        (["kind"], ["id", "kind"], False),
        (["bucket[4](id)"], "id", False),
        (["bucket[4](id)", "kind"], "id", True),
        ([], "id", False),
    ],
)
def test_a_unique_rule_says_that_it_was_checked_within_partitions(
    tmp_path: Path, partition_by: list[str], unique: str | list[str], warned: bool
) -> None:
    """They are in one partition if their values determine it."""
    table = new_table(tmp_path, partition_by)
    table.publish(table.staged([pa.record_batch({"id": [1, 1], "kind": ["a", "b"]}, schema=ROWS)]))
    run = Run.of(table, Validate(), rules={"unique": unique}, report_only=True)
    facts = run.commit().facts
    assert ("checked within each partition" in "".join(facts.get("warnings", []))) == warned
    assert facts["violatedRules"] == (not warned and unique == "id")


def test_the_partition_of_null_and_that_of_the_text_null_can_each_be_named(tmp_path: Path) -> None:
    ids = {"null": [1, 2], None: [-3]}
    assert checked(tmp_path, ids, partitions=["kind=%6Eull"]) == (2, 0)
    assert checked(tmp_path / "other", ids, partitions=["kind=null"]) == (1, 1)
