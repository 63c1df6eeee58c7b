"""Any writer of a table can put any name into its metadata: no file of another table goes for it (S1, S2)."""

import json
from pathlib import Path

import pytest

from distop.lake.cleanup.orphans import Files
from distop.lake.cleanup.staged import sweep
from support.tables.indexing import Indexing
from support.tables.publishing import Table, local, new_table, rows


@pytest.fixture
def victim(tmp_path: Path) -> Table:
    """A table with ten rows."""
    table = Table("victim", f"file://{tmp_path}/victim", new_table(tmp_path).layout)
    table.publish(table.staged([rows(0, 10)]))
    return table


def mine(folder: Path, **properties: str) -> Table:
    """A table of another user, with a row."""
    table = Table("mine", f"file://{folder}/mine", new_table(folder, **properties).layout)
    table.publish(table.staged([rows(0, 1)]))
    return table


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("file:///w/mine", "file:///w/victim/data/f"),
        ("file:///w/mine", "file:///w/mine/../victim/data/f"),
        ("/w/mine", "file:///w/mine/../victim/data/f"),
        ("s3://my-bucket/w/mine", "s3://its-bucket/w/mine/data/f"),
        ("s3://bucket/w/mine", "s3://bucket/w/mine/../victim/data/f"),
        ("s3://bucket/w/mine", "s3://bucket/w/mine2/data/f"),
        ("s3://bucket/w/mine", "gs://bucket/w/mine/data/f"),
    ],
)
def test_only_files_below_a_location_are_removed_with_it(location: str, name: str) -> None:
    own = f"{location}/data/f"
    files = Files(data={own, name}, lists={name}, manifests={name}, others={name})
    assert files.below(location) == Files(data={own})


def test_other_spellings_of_a_tables_folder_are_that_folder() -> None:
    for location, names in {
        "s3://bucket/w/mine/": {"s3a://bucket/w/mine/data/f", "s3n://bucket/w/mine/data/g"},
        "file:///w/mine": {"/w/mine/f", "file:/w/mine/g"},
    }.items():
        assert Files(data=names).below(location).data == names


def test_forgotten_metadata_is_removed_from_the_own_folder_only(tmp_path: Path, victim: Table) -> None:
    bounded = {"previous-versions-max": "1", "delete-after-commit.enabled": "true"}
    table = mine(tmp_path, **{f"write.metadata.{name}": value for name, value in bounded.items()})
    head = local(table.record().metadata_location)
    told = json.loads(head.read_text())
    own = head.with_name("00000-old.metadata.json")
    own.touch()
    forged = [*victim.data_files(), f"{table.location}/../victim/data", victim.record().metadata_location]
    forged.append(f"file://{own}")
    at_ms = told["last-updated-ms"] - 1
    told["metadata-log"] = [{"metadata-file": name, "timestamp-ms": at_ms} for name in forged]
    head.write_text(json.dumps(told))
    table.replace(f"file://{head}")
    operation = table.staged([rows(5, 1)])
    facts = table.publish(operation).facts
    assert set(forged) <= set(facts["droppedMetadata"])
    sweep(operation.arg, operation.history(facts), operation.jobs)
    assert not own.exists()
    assert victim.ids() == list(range(10))


def test_a_replaced_index_takes_no_file_of_another_table_with_it(tmp_path: Path, victim: Table) -> None:
    table = mine(tmp_path)
    world = Indexing(table)
    world.start("id").run().finish()
    manifest = Path(world.records()[0].manifest.removeprefix("file://"))
    told = json.loads(manifest.read_text())
    told["parts"][0]["path"] = victim.data_files()[0]
    manifest.write_text(json.dumps(told))
    world.start("id", full=True).run().finish()
    assert not manifest.exists()
    assert victim.ids() == list(range(10))
