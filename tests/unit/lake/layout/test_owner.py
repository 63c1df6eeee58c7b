"""The owner file: whose all files of a folder are."""

import shutil
from pathlib import Path

import fsspec
import pytest

from distop.errors import LocationInUse, LocationNotOwned
from distop.lake.cleanup.purge import check_removal, purge
from distop.lake.layout.staging import give_folder_up, is_free, owners, take_folder
from distop.metastore.records.table import TableRecord
from support.refusals import refused


def table(location: str, uuid: str = "u", found_empty: bool = False) -> TableRecord:
    return TableRecord(name="t", location=location, uuid=uuid, found_empty=found_empty)


def fill(folder: Path) -> None:
    for name in ("data/ingest-1/a.parquet", "metadata/v1.json", "_distop/ingest-1/list", "k=1/a", "_SUCCESS"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_an_empty_folder_becomes_a_tables_own_and_is_removed_with_all_that_came_in(tmp_path: Path) -> None:
    """S2."""
    location = f"file://{tmp_path}/t"
    assert take_folder(location, "u")
    assert take_folder(location, "u")
    fill(tmp_path / "t")
    assert take_folder(location, "u")
    check_removal(table(location), None)
    assert purge(location, "u")
    assert list(tmp_path.iterdir()) == []
    assert not purge(location, "u")
    check_removal(table(location), None)


@pytest.mark.parametrize("listed", ["", "/tables", "/tables/t"])
def test_folders_above_that_may_not_be_opened_are_no_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str
) -> None:
    """S2: nobody has a table there, and a table right in a listed folder can be made."""
    monkeypatch.setenv("DISTOP_ALLOW_LOCATIONS", f"{tmp_path}{listed}")
    location = f"file://{tmp_path}/tables/t"
    assert is_free(location, "u")
    assert take_folder(location, "u")
    assert owners(location) == ["u"]


def test_nothing_is_removed_from_a_folder_that_held_files_before(tmp_path: Path) -> None:
    """S2: distop never wrote to it."""
    fill(tmp_path)
    before = names(tmp_path)
    assert not take_folder(f"file://{tmp_path}", "u")
    with pytest.raises(LocationNotOwned):
        check_removal(table(f"file://{tmp_path}"), None)
    assert not purge(f"file://{tmp_path}", "u")
    assert names(tmp_path) == before


def test_another_tables_folder_is_known_through_links_and_copies(tmp_path: Path) -> None:
    """S2: whatever the path says."""
    take_folder(f"file://{tmp_path}/t", "u")
    fill(tmp_path / "t")
    (tmp_path / "link").symlink_to(tmp_path / "t")
    shutil.copytree(tmp_path / "t", tmp_path / "copy")
    for other in ("link", "copy"):
        with pytest.raises(LocationInUse):
            take_folder(f"file://{tmp_path}/{other}", "v")
        before = names(tmp_path / other)
        assert not purge(f"file://{tmp_path}/{other}", "v")
        assert names(tmp_path / other) == before


@pytest.mark.parametrize("inside", ["link", "link/not/yet", "t/data", "t/data/more"])
def test_a_folder_in_another_tables_is_known_through_links(tmp_path: Path, inside: str) -> None:
    """S2: also that of another installation, whose claims nobody sees here."""
    take_folder(f"file://{tmp_path}/t", "u")
    (tmp_path / "t" / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t" / "data")
    for call in (take_folder, is_free):
        with refused("location", "lies in", LocationInUse):
            call(f"file://{tmp_path}/{inside}", "v")
    assert names(tmp_path) == {"t/_distop/table-u"}
    assert take_folder(f"file://{tmp_path}/beside", "v")


def test_a_folder_that_was_found_empty_is_taken_by_whoever_needs_it(tmp_path: Path) -> None:
    """S2: who made the table died before the owner file was there; not what another table has taken since."""
    location = f"file://{tmp_path}/t"
    fill(tmp_path / "t")
    assert not take_folder(location, "u")
    with pytest.raises(LocationNotOwned):
        check_removal(table(location), None)
    check_removal(table(location, found_empty=True), None)
    assert owners(location) == ["u"]
    with pytest.raises(LocationInUse):
        check_removal(table(location, "v", found_empty=True), None)
    with pytest.raises(LocationInUse):
        take_folder(location, "v", found_empty=True)
    assert owners(location) == ["u"]


def test_what_a_link_in_the_folder_leads_to_stays(tmp_path: Path) -> None:
    """S2."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "file").touch()
    take_folder(f"file://{tmp_path}/t", "u")
    (tmp_path / "t" / "link").symlink_to(tmp_path / "victim")
    (tmp_path / "t" / "data").mkdir()
    (tmp_path / "t" / "data" / "link").symlink_to(tmp_path / "victim")
    assert purge(f"file://{tmp_path}/t", "u")
    assert names(tmp_path) == {"victim/file"}


def test_a_purge_that_dies_half_way_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: the owner file goes last."""

    def dies(point: str) -> None:
        raise KeyboardInterrupt

    location = f"file://{tmp_path}/t"
    take_folder(location, "u")
    fill(tmp_path / "t")
    monkeypatch.setattr("distop.lake.cleanup.purge.reached", dies)
    with pytest.raises(KeyboardInterrupt):
        purge(location, "u")
    monkeypatch.undo()
    assert owners(location) == ["u"]
    assert purge(location, "u")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_given_up_is_nobodys(tmp_path: Path) -> None:
    """S2: its files stay, and the next table there removes none of them."""
    location = f"file://{tmp_path}/t"
    take_folder(location, "u")
    fill(tmp_path / "t")
    give_folder_up(location, "u")
    give_folder_up(location, "u")
    assert not take_folder(location, "v")
    assert not purge(location, "v")
    assert "k=1/a" in names(tmp_path / "t")


def test_in_an_object_store_names_are_no_patterns() -> None:
    """S2, C12."""
    store = fsspec.filesystem("memory")
    for name in ("/own/t/data/[ab]*/x", "/own/a/x", "/own/t2/x"):
        store.pipe_file(name, b"")
    assert not take_folder("memory:///own/t", "u")
    store.rm("/own/t", recursive=True)
    assert take_folder("memory:///own/t", "u")
    store.pipe_file("/own/t/data/[ab]*/x", b"")
    store.pipe_file("/own/t/data/a/x", b"")
    assert purge("memory:///own/t", "u")
    assert sorted(store.find("/own")) == ["/own/a/x", "/own/t2/x"]
    assert take_folder("memory:///own/t", "u")
    with refused("location", "lies in", LocationInUse):
        take_folder("memory:///own/t/data", "v")
    store.rm("/own", recursive=True)
