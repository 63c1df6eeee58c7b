"""Ingest in mode merge, from plan to commit: rows are replaced, added and taken away by their keys."""

import json
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation

from distop.errors import AlreadyIngested, ArgumentTooLarge, HeadConflict, JobFailed
from distop.lake.iceberg.branch_steps import IcebergPublishBranch
from distop.lake.layout.model import Layout
from distop.lake.layout.schemas import parse_schema
from distop.lake.rewriting import plan as deleting_files
from distop.spark_jobs import merge as merging
from distop.spark_jobs.ingest import planning
from distop.spark_jobs.rules.gate import VIOLATED
from support.refusals import refused
from support.sources.ingesting import Ingesting
from support.tables.publishing import drop_partitioning

Row = dict[str, Any]

SCHEMA = {"schema": {"id": "long", "part": "string", "n": "int"}}


def written(folder: Path, name: str, rows: list[Row]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / name)


def row(id: int, n: int | None, part: str = "a", **more: Any) -> Row:
    return {"id": id, "part": part, "n": n, **more}


@pytest.fixture
def table(tmp_path: Path) -> Ingesting:
    return Ingesting(tmp_path, {**SCHEMA, "partitionBy": ["part"]})


def merge(table: Ingesting, rows: list[Row], **argument: Any) -> dict[str, Any]:
    """Merge a file; the facts."""
    number = sum(1 for _ in table.folder.glob("in/*"))
    path = written(table.folder / "in", f"{number:04}.jsonl", rows)
    return table.facts(paths=path, mode="merge", **{"keys": ["id"], **argument})


def counts(facts: dict[str, Any]) -> tuple[int, ...]:
    return tuple(facts[f"{name}Rows"] for name in ("inserted", "updated", "deleted"))


def test_new_rows_come_in_and_others_are_replaced(table: Ingesting) -> None:
    """E5, P3: in one snapshot, into a table without rows, too; files without such keys are not touched."""
    assert counts(merge(table, [row(1, 1), row(2, 2), row(3, 3, "b"), row(4, 4, "b")])) == (4, 0, 0)
    before = set(table.table.data_files())
    asked = {
        "paths": written(table.folder / "seen", "1.jsonl", [row(2, 20)]),
        "mode": "merge",
        "keys": ["id"],
    }
    seen = table.operation.preview(table.request(**asked))
    assert (seen["jobs"], seen["rows"]) == (2, [row(2, 20)])
    facts = merge(table, [row(2, 20), row(5, 50, "c")])
    assert counts(facts) == (1, 1, 0)
    assert table.rows("id", "n") == [(1, 1), (2, 20), (3, 3), (4, 4), (5, 50)]
    assert len(before & set(table.table.data_files())) == 1
    assert (table.table.operation(), table.table.summary()["total-records"]) == (Operation.OVERWRITE, "5")


def test_the_last_row_of_a_key_counts(table: Ingesting) -> None:
    """E5: within a file, and by the names of files."""
    merge(table, [row(1, 1), row(1, 2), row(2, 1), row(1, 3)])
    assert table.rows("id", "n") == [(1, 3), (2, 1)]
    folder = table.folder / "two"
    written(folder, "b.jsonl", [row(2, 7)])
    written(folder, "a.jsonl", [row(2, 8), row(1, 9)])
    table.facts(paths=str(folder), mode="merge", keys=["id"], split_bytes=1 << 10)
    assert table.rows("id", "n") == [(1, 9), (2, 7)]


def test_conditions_choose_what_a_row_does(table: Ingesting) -> None:
    """E5: a column that they alone speak of stays out of the table; of a NULL nothing is true."""
    merge(table, [row(1, 1), row(2, 2), row(3, 3)])
    changes = [(1, None, "D"), (2, 20, "U"), (3, 30, None), (4, 40, "D"), (5, 50, "U"), (6, 60, "I")]
    facts = merge(
        table,
        [row(id, n, op=op) for id, n, op in changes],
        delete_where="op == 'D'",
        update_where="op == 'U'",
        insert_where="op == 'I'",
    )
    assert counts(facts) == (1, 1, 1)
    assert table.rows("id", "n") == [(2, 20), (3, 3), (6, 60)]
    assert table.read().schema.names == ["id", "part", "n"]


def test_all_rows_of_a_key_are_replaced(table: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQL's MERGE: a table may hold a key several times; few rows are written at a time."""
    monkeypatch.setattr(merging, "BLOCK_ROWS", 1)
    table.ingest(paths=written(table.folder / "x", "1.jsonl", [row(1, 1), row(1, 2, "b"), row(2, 1)]))
    assert counts(merge(table, [row(1, 9, "c")])) == (0, 2, 0)
    assert table.rows("id", "n", "part") == [(1, 9, "c"), (1, 9, "c"), (2, 1, "a")]


def test_files_that_cannot_hold_a_key_are_not_read(table: Ingesting) -> None:
    """By their statistics."""
    for first in (0, 100, 200):
        merge(table, [row(first + n, n) for n in range(10)])
    gone = [path for path in table.table.data_files() if "part" in path]
    bounds = {path: pq.read_table(path.removeprefix("file://"))["id"].to_pylist() for path in gone}
    for path, ids in bounds.items():
        if 105 not in ids:
            Path(path.removeprefix("file://")).unlink()
    assert counts(merge(table, [row(105, 7)])) == (0, 1, 0)


def test_a_merge_is_refused_when_others_have_written_meanwhile(table: Ingesting) -> None:
    """P6: they may have brought a key that this takes for a new one."""
    merge(table, [row(1, 1)])
    path = written(table.folder / "late", "1.jsonl", [row(2, 2)])
    arg = table.start(paths=path, mode="merge", keys=["id"])
    jobs = table.run(arg)
    table.ingest(paths=written(table.folder / "other", "1.jsonl", [row(2, 5)]))
    with pytest.raises(HeadConflict) as refused:
        table.finish(arg, jobs)
    assert "rebase" not in refused.value.hint
    assert table.rows("id", "n") == [(1, 1), (2, 5)]


@pytest.mark.parametrize(
    ("changes", "then"),
    [
        ({"mode": "merge", "keys": ["id"]}, [(1, 1, "a"), (2, 5, "b")]),
        ({"mode": "merge", "keys": ["id"], "delete_where": "n == 20"}, [(1, 1, "a"), (2, 5, "b")]),
        ({"mode": "overwrite_partitions"}, [(1, 1, "a"), (2, 5, "b")]),
        ({"mode": "append"}, [(1, 1, "a"), (2, 20, "b"), (2, 5, "b")]),
    ],
)
def test_what_found_nothing_to_replace_on_a_branch_is_not_put_on_other_rows(
    table: Ingesting, changes: dict[str, Any], then: list[Any]
) -> None:
    """P5, P6: neither if it only added rows, or none; to Iceberg its snapshot is an append all the same."""
    merge(table, [row(1, 1)])
    path = written(table.folder / "aside", "1.jsonl", [row(2, 20, "b")])
    table.ingest(paths=path, branch="b", **changes)
    recorded = table.table.iceberg().metadata.snapshots[-1].summary
    assert recorded is not None
    assert recorded.operation == Operation.APPEND
    table.ingest(paths=written(table.folder / "other", "1.jsonl", [row(2, 5, "b")]))
    publish = IcebergPublishBranch({"branch": "b", "onConflict": "rebase"})
    with nullcontext() if changes["mode"] == "append" else pytest.raises(HeadConflict, match="are appends"):
        table.table.publish(table.table.start(0), publish)
    assert table.rows("id", "n", "part") == then


def test_rows_in_partitions_of_numbers_are_found(tmp_path: Path) -> None:
    """P3: 0.1 is no number of 32 bits."""
    table = Ingesting(tmp_path, {"schema": {"id": "long", "x": "double"}, "partitionBy": ["x"]})
    for id, x in enumerate((0.1, 0.2, 0.3)):
        assert counts(merge(table, [{"id": id, "x": x}])) == (1, 0, 0)
    assert counts(merge(table, [{"id": 0, "x": 0.2}, {"id": 1, "x": 0.1}, {"id": 3, "x": 0.1}])) == (1, 2, 0)
    assert table.rows("id", "x") == [(0, 0.2), (1, 0.1), (2, 0.3), (3, 0.1)]
    partitions = {task.file.partition[0] for task in table.table.iceberg().scan().plan_files()}
    assert partitions == {0.1, 0.2, 0.3}


def test_rows_in_files_partitioned_by_a_column_that_was_dropped_are_found(table: Ingesting) -> None:
    """P3: whatever changes goes into the present partitioning."""
    merge(table, [row(1, 1), row(2, 2, "b"), row(3, 3, "b")])
    drop_partitioning(table.table, "part")
    assert counts(merge(table, [{"id": 2, "n": 20}, {"id": 4, "n": 40}])) == (1, 1, 0)
    assert table.rows("id", "n") == [(1, 1), (2, 20), (3, 3), (4, 40)]
    assert table.read().schema.names == ["id", "n"]
    left = [task.file.spec_id for task in table.table.iceberg().scan("id = 1").plan_files()]
    assert left == [0], "its file was not touched"


def test_nothing_to_do_changes_nothing(table: Ingesting) -> None:
    """O16: but the watermark moves, and the files are not merged again."""
    merge(table, [row(1, 1)])
    before = table.table.record().snapshot_id
    path = written(table.folder / "none", "1.jsonl", [row(7, 7)])
    argument: dict[str, Any] = {"paths": path, "mode": "merge", "keys": ["id"], "insert_where": "n < 0"}
    arg = table.start(**argument)
    assert counts(table.finish(arg, table.run(arg))) == (0, 0, 0)
    assert table.table.record().snapshot_id == before
    with pytest.raises(AlreadyIngested):
        table.start(**argument)


def test_a_row_without_a_key_fails_it(table: Ingesting) -> None:
    path = written(table.folder / "bad", "1.jsonl", [row(1, 1), {"id": None, "part": "a", "n": 2}])
    arg = table.start(paths=path, mode="merge", keys=["id"])
    with pytest.raises(JobFailed, match="'id'"):
        table.run(arg)


def test_keys_of_several_columns_and_types(tmp_path: Path) -> None:
    types = {"d": "date", "k": "string", "x": "decimal(9,2)", "b": "boolean", "at": "timestamp", "n": "int"}
    types |= {"utc": "timestamptz"}
    table = Ingesting(tmp_path, {"schema": types})
    keys = [name for name in types if name != "n"]
    same = {"d": "2013-01-01", "k": "ä", "x": "1.50", "b": True, "at": "2013-01-01T00:00:00"}
    same |= {"utc": "2013-01-01T00:00:00Z"}
    merge(table, [{**same, "n": 1}, {**same, "k": "b", "n": 2}, {**same, "x": "1.51", "n": 3}], keys=keys)
    assert counts(merge(table, [{**same, "n": 4}, {**same, "b": False, "n": 5}], keys=keys)) == (1, 1, 0)
    assert table.rows("n") == [2, 3, 4, 5]


NAN = float("nan")
MOMENT = datetime(2024, 1, 1, tzinfo=UTC)
ASCENDING: dict[str, list[Any]] = {
    "int": [None, -7, 12],
    "long": [None, -(2**53), 2**53, 2**53 + 1],
    "float": [None, float("-inf"), 1.5, float("inf"), NAN],
    "double": [None, -1.0, 0.0, 1e300, NAN],
    "decimal(38,2)": [None, Decimal("-0.01"), Decimal("9.50"), Decimal("10.00")],
    "string": [None, "", "10", "9", "Z", "a", "\uffff", "\U00010000"],
    "date": [None, date(1969, 12, 31), date(2024, 1, 1)],
    "time": [None, time(0, 0), time(9, 0), time(10, 0)],
    "timestamp": [None, MOMENT - timedelta(days=50_000), MOMENT, MOMENT + timedelta(microseconds=1)],
    "timestamptz": [None, MOMENT - timedelta(days=50_000), MOMENT, MOMENT + timedelta(microseconds=1)],
}


def versioned(folder: Path, kind: str) -> Ingesting:
    """A table whose rows are ordered by ``v``."""
    return Ingesting(folder, {"schema": {"id": "long", "v": kind, "n": "int"}})


def merge_versions(
    table: Ingesting, rows: Sequence[tuple[int, Any, int | None]], **argument: Any
) -> tuple[int, ...]:
    """Merge rows of ``id``, ``v`` and ``n``; the counts."""
    schema = Layout.create(parse_schema(table.options["schema"])).arrow_schema
    folder = table.folder / "in"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{len(list(folder.iterdir())):04}.parquet"
    pq.write_table(
        pa.Table.from_pylist([dict(zip(schema.names, one, strict=True)) for one in rows], schema), path
    )
    return counts(table.facts(paths=str(path), mode="merge", keys=["id"], order_by="v", **argument))


@pytest.mark.parametrize("kind", ASCENDING)
def test_the_newest_row_of_a_key_counts(tmp_path: Path, kind: str) -> None:
    """E5, A8: in whatever order a batch has them, and an older one replaces no row of the table."""
    pairs = list(enumerate(combinations(ASCENDING[kind], 2)))
    older = [(id, first, 0) for id, (first, _) in pairs]
    newer = [(id, second, 1) for id, (_, second) in pairs]
    count = len(pairs)
    together, apart = versioned(tmp_path / "together", kind), versioned(tmp_path / "apart", kind)
    assert merge_versions(together, [*newer, *older]) == (count, 0, 0)
    assert merge_versions(together, older) == (0, 0, 0)
    assert merge_versions(apart, older) == (count, 0, 0)
    assert merge_versions(apart, newer) == (0, count, 0)
    for table in (together, apart):
        assert table.rows("n") == [1] * count


def test_the_last_row_of_equal_versions_counts(tmp_path: Path) -> None:
    """E5: so a change that is merged again leaves the same row. Zeros are equal, and so are NaN and NULL."""
    table = versioned(tmp_path, "double")
    rows = [(1, 0.0, 0), (1, -0.0, 1), (2, NAN, 0), (2, NAN, 1), (3, None, 0), (3, None, 1)]
    merge_versions(table, [rows[1], rows[0], *rows[2:]])
    assert table.rows("id", "n") == [(1, 0), (2, 1), (3, 1)]
    for _ in range(2):
        merge_versions(table, rows)
        assert table.rows("id", "n") == [(1, 1), (2, 1), (3, 1)]


@settings(max_examples=6)
@given(st.data())
def test_changes_come_to_the_same_rows_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """E5: however they are split into batches, and whichever come again."""
    changes = [(id, version, id * 100 + version) for id in range(4) for version in range(3)]
    table = versioned(tmp_path_factory.mktemp("any"), "int")
    come = data.draw(st.permutations([*changes, *data.draw(st.lists(st.sampled_from(changes), max_size=8))]))
    cuts = sorted({0, len(come), *data.draw(st.lists(st.integers(0, len(come)), max_size=3))})
    for first, end in pairwise(cuts):
        merge_versions(table, come[first:end])
    assert table.rows("id", "n") == [(id, id * 100 + 2) for id in range(4)]


def test_an_older_deletion_deletes_nothing(tmp_path: Path) -> None:
    """E5: but a deleted row leaves no version behind, so that an older change adds it again."""
    table = versioned(tmp_path, "int")
    deleting = {"delete_where": "n is null"}
    merge_versions(table, [(1, 5, 50), (2, 5, 50), (3, 5, 50)])
    assert merge_versions(table, [(1, 4, None), (2, 5, None), (3, 6, None)], **deleting) == (0, 0, 2)
    assert table.rows("id", "n") == [(1, 50)]
    assert merge_versions(table, [(4, 2, None), (4, 1, 10), (1, 6, 60), (1, 5, None)], **deleting) == (
        0,
        1,
        0,
    )
    assert table.rows("id", "n") == [(1, 60)]
    assert merge_versions(table, [(3, 4, 40)], **deleting) == (1, 0, 0)


def test_an_order_that_the_table_does_not_keep_is_refused(table: Ingesting) -> None:
    """O4: by its name, and with what to do."""
    path = written(table.folder / "in", "1.jsonl", [row(1, 1, at=7)])
    with refused("order_by", "'at'") as caught:
        table.start(paths=path, mode="merge", keys=["id"], order_by="at")
    assert "table alter --add" in caught.value.hint


def test_each_row_of_a_key_is_compared_by_itself(tmp_path: Path) -> None:
    """SQL's MERGE: a table may hold a key several times."""
    table = versioned(tmp_path, "int")
    table.ingest(paths=table.write("id,v,n\n1,1,0\n1,9,0\n1,,0\n"))
    assert merge_versions(table, [(1, 5, 1)]) == (0, 2, 0)
    assert table.rows("v", "n") == [(5, 1), (5, 1), (9, 0)]


def test_a_member_that_knows_no_order_refuses_the_plan(table: Ingesting) -> None:
    """O4: it would apply old changes over new ones."""
    path = written(table.folder / "in", "1.jsonl", [row(1, 1)])
    ordered = table.request(paths=path, mode="merge", keys=["id"], order_by="n")
    assert table.operation.plan(ordered).layout == 3


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("keys", {"keys": []}),
    ("keys", {"keys": ["nobody"]}),
    ("keys", {"keys": ["id", "id"]}),
    ("keys", {"keys": ["x"]}),
    ("keys", {"mode": "append"}),
    ("order_by", {"order_by": "nobody"}),
    ("order_by", {"order_by": ""}),
    ("order_by", {"order_by": "id"}),
    ("order_by", {"order_by": "yes"}),
    ("order_by", {"order_by": "n", "mode": "append", "keys": []}),
    ("delete_where", {"delete_where": "n <"}),
    ("delete_where", {"delete_where": " "}),
    ("update_where", {"update_where": "n == 'x'"}),
    ("on_bad_rows", {"on_bad_rows": "quarantine"}),
    ("on_conflict", {"on_conflict": "rebase"}),
    ("on_new_columns", {"on_new_columns": "add"}),
    ("on_wider_types", {"on_wider_types": "widen"}),
    ("transform", {"transform": "SELECT * FROM source"}),
    ("columns", {"columns": ["id", "n"]}),
]


@pytest.mark.parametrize(("field", "argument"), REFUSED)
def test_impossible_options_of_a_merge_are_refused_by_field(
    tmp_path: Path, field: str, argument: dict[str, Any]
) -> None:
    """O4."""
    table = Ingesting(tmp_path, {"schema": {"id": "long", "n": "int", "x": "double", "yes": "boolean"}})
    path = written(tmp_path / "in", "1.jsonl", [{"id": 1, "n": 1, "x": 1.5, "yes": True}])
    with refused(field):
        table.start(**{"paths": path, "mode": "merge", "keys": ["id"], **argument})


def test_a_batch_too_large_for_memory_is_refused(table: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "MAX_MERGED_BYTES", 10)
    with pytest.raises(ArgumentTooLarge):
        merge(table, [row(1, 1), row(2, 2)])


def test_jobs_that_may_fail_are_refused(table: Ingesting) -> None:
    path = written(table.folder / "in", "1.jsonl", [row(1, 1)])
    with refused("mode"):
        table.start_in_part(paths=path, mode="merge", keys=["id"])


def test_rules_hold_for_what_is_written(table: Ingesting) -> None:
    """P13: and for nothing else; the verdict is that of any ingest."""
    merge(table, [row(1, -1), row(2, 2)])
    path = written(table.folder / "ruled", "1.jsonl", [row(2, 5), row(3, -3)])
    arg = table.start(paths=path, mode="merge", keys=["id"], checks={"rules": ["n > 0"]})
    found = [job.result[VIOLATED] for job in table.run(arg).values() if VIOLATED in job.result]
    assert found == [[[0, 1]]]
    assert table.operation.commit_steps(arg)[0].step == "rules.gate"


@st.composite
def batches(draw: st.DrawFn) -> list[list[Row]]:
    one = st.builds(
        row,
        id=st.integers(0, 12),
        n=st.integers(-2, 9),
        part=st.sampled_from("abc"),
        op=st.sampled_from("UDI"),
    )
    return draw(st.lists(st.lists(one, min_size=1, max_size=8), min_size=1, max_size=5))


@settings(max_examples=15)
@given(batches(), st.booleans())
def test_merging_gives_what_a_dictionary_gives(
    tmp_path_factory: pytest.TempPathFactory, given: list[list[Row]], conditions: bool
) -> None:
    """E5: whatever the batches, in jobs of one file each."""
    table = Ingesting(tmp_path_factory.mktemp("model"), {**SCHEMA, "partitionBy": ["part"]})
    where = {"delete_where": "op == 'D'", "update_where": "op != 'I'", "insert_where": "n >= 0"}
    model: dict[int, Row] = {}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(deleting_files, "MAX_FILES_PER_JOB", 1)
        for rows in given:
            before, expected = dict(model), [0, 0, 0]
            for one in {each["id"]: each for each in rows}.values():
                stands, deletes = one["id"] in before, conditions and one["op"] == "D"
                if stands and deletes:
                    del model[one["id"]]
                    expected[2] += 1
                elif stands and not (conditions and one["op"] == "I"):
                    model[one["id"]] = one
                    expected[1] += 1
                elif not stands and not deletes and (not conditions or one["n"] >= 0):
                    model[one["id"]] = one
                    expected[0] += 1
            columns = {"columns": ["id", "part", "n"]}
            assert counts(merge(table, rows, **columns, **(where if conditions else {}))) == tuple(expected)
    if table.table.head.exists:
        found = {one["id"]: one for one in table.read().to_pylist()}
        assert table.read().num_rows == len(found)
        assert found == {key: {name: one[name] for name in found[key]} for key, one in model.items()}
