"""The modes of ingest, from the argument to the rows."""

from pathlib import Path

import pytest

from distop.errors import HeadConflict, TableNotEmpty
from support.refusals import refused
from support.sources.ingesting import Ingesting, staged_files


def source(ingesting: Ingesting, name: str, *rows: tuple[int, str]) -> str:
    folder = ingesting.folder / "source" / name
    folder.mkdir(parents=True)
    (folder / "1.csv").write_text("id,kind\n" + "".join(f"{id},{kind}\n" for id, kind in rows))
    return str(folder)


@pytest.fixture
def ingesting(tmp_path: Path) -> Ingesting:
    return Ingesting(tmp_path, {"partitionBy": ["kind"]})


def test_overwrite_partitions_replaces_those_of_the_new_rows(ingesting: Ingesting) -> None:
    """P5: a month delivered again."""
    ingesting.ingest(paths=source(ingesting, "a", (1, "x"), (2, "y"), (3, "y")))
    ingesting.ingest(paths=source(ingesting, "b", (4, "y"), (5, "z")), mode="overwrite_partitions")
    assert ingesting.rows("id") == [1, 4, 5]


def test_overwrite_may_replace_what_came_meanwhile(ingesting: Ingesting) -> None:
    """P6: if the argument allows it; by default it is refused."""
    ingesting.ingest(paths=source(ingesting, "a", (1, "x")))
    refused = ingesting.start(paths=source(ingesting, "b", (2, "x")), mode="overwrite")
    told = ingesting.start(paths=source(ingesting, "c", (3, "x")), mode="overwrite", on_conflict="rebase")
    ingesting.ingest(paths=source(ingesting, "d", (4, "x")))
    with pytest.raises(HeadConflict):
        ingesting.finish(refused, ingesting.run(refused))
    ingesting.finish(told, ingesting.run(told))
    assert ingesting.rows("id") == [3]


def test_append_may_refuse_what_came_meanwhile(ingesting: Ingesting) -> None:
    """P6"""
    for name, mode in {"a": "append", "b": "overwrite_partitions"}.items():
        refused = ingesting.start(
            paths=source(ingesting, name, (1, "x")), mode=mode, on_conflict="refuse", source=name
        )
        ingesting.ingest(paths=source(ingesting, name + "2", (2, "x")), source=name + "2")
        with pytest.raises(HeadConflict, match="began on"):
            ingesting.finish(refused, ingesting.run(refused))
    assert ingesting.rows("id") == [2, 2]


def test_error_if_exists_is_refused_at_the_start(ingesting: Ingesting) -> None:
    """P5: before anything is looked at or in etcd."""
    first = ingesting.start(paths=source(ingesting, "a", (1, "x")), mode="error_if_exists")
    second = ingesting.start(paths=source(ingesting, "b", (2, "x")), mode="error_if_exists", source="b")
    ingesting.finish(first, ingesting.run(first))
    with refused(error=TableNotEmpty, by="flights/ingest/1"):
        ingesting.start(paths="/nowhere", mode="error_if_exists")
    with pytest.raises(TableNotEmpty):
        ingesting.finish(second, ingesting.run(second))
    assert ingesting.rows("id") == [1]


def test_ignore_does_nothing_to_a_table_with_data(ingesting: Ingesting) -> None:
    """P5: no job, no watermark, success at once."""
    ingesting.ingest(paths=source(ingesting, "a", (1, "x")), mode="ignore")
    files = staged_files(ingesting)
    ignored = ingesting.start(paths="/nowhere", mode="ignore")
    assert (ignored.partition_count, ignored.watermarks) == (0, {})
    facts = ingesting.finish(ignored, ingesting.run(ignored))
    assert facts["ignored"] is True
    assert ingesting.rows("id") == [1]
    assert staged_files(ingesting) == files


def test_ignore_moves_no_watermark_when_data_came_meanwhile(ingesting: Ingesting) -> None:
    """P5, C8: the source was not ingested, and can be."""
    ignored = ingesting.start(paths=source(ingesting, "a", (1, "x")), mode="ignore")
    ingesting.ingest(paths=source(ingesting, "b", (2, "x")), source="b")
    assert ingesting.finish(ignored, ingesting.run(ignored))["ignored"] is True
    assert list(ingesting.watermarks) == ["b"]
    assert ingesting.rows("id") == [2]


def test_a_mode_that_leaves_no_choice_takes_no_on_conflict(ingesting: Ingesting) -> None:
    """O4"""
    for mode in ("ignore", "error_if_exists"):
        with refused("on_conflict"):
            ingesting.start(paths="/nowhere", mode=mode, on_conflict="refuse")
    with refused("mode"):
        ingesting.start(paths="/nowhere", mode="upsert")


def test_tables_that_ingest_makes_remove_old_metadata(ingesting: Ingesting) -> None:
    """P4: unless they say otherwise."""
    ingesting.ingest(paths=source(ingesting, "a", (1, "x")))
    properties = ingesting.table.iceberg().metadata.properties
    assert properties["write.metadata.delete-after-commit.enabled"] == "true"
    ingesting.options["properties"] = {"write.metadata.delete-after-commit.enabled": "false"}
    layout = Ingesting(ingesting.folder, ingesting.options).start(paths=str(ingesting.folder / "source"))
    kept = layout.argument["layout"]["properties"]
    assert kept["write.metadata.delete-after-commit.enabled"] == "false"


def test_a_plan_to_append_holds_until_columns_or_its_own_files_are_others(ingesting: Ingesting) -> None:
    """P7: whatever else is published before its start."""
    ingesting.ingest(paths=source(ingesting, "a", (1, "x")), source="a")
    paths = source(ingesting, "b", (2, "x"))
    made_on = ingesting.request(paths=paths, source="b")
    plan = ingesting.operation.plan(made_on)
    refusing = ingesting.operation.plan(ingesting.request(paths=paths, source="b", on_conflict="refuse"))
    replacing = ingesting.operation.plan(ingesting.request(paths=paths, source="b", mode="overwrite"))
    ingesting.ingest(paths=source(ingesting, "c", (3, "x")), source="c")
    now = ingesting.request(paths=paths, source="b")
    assert ingesting.operation.plan_holds(plan, made_on, now)
    assert not ingesting.operation.plan_holds(refusing, made_on, now)
    assert not ingesting.operation.plan_holds(replacing, made_on, now)
    ingesting.ingest(paths=paths, source="b")
    assert not ingesting.operation.plan_holds(plan, made_on, ingesting.request(paths=paths, source="b"))
