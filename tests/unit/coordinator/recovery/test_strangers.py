"""Folders of tables that a restored etcd does not know."""

from pathlib import Path

import pytest

from distop.coordinator.recovery import mending
from distop.lake.layout.staging import owners, take_folder
from distop.lake.storage.allowed import LOCATIONS
from distop.lake.storage.storage import StorageOptions
from distop.metastore.records.table import TableRecord


def test_a_folder_that_may_not_be_read_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O27: permissions do not hold for the user that many tests run as, so a read is refused here."""

    def guarded(place: str, storage: StorageOptions | None) -> list[str]:
        if place.endswith("/theirs"):
            raise PermissionError(13, "Permission denied", place)
        return list(owners(place, storage))

    monkeypatch.setattr(mending, "owners", guarded)
    for name in ("known", "theirs", "lost", "also-lost"):
        take_folder(f"{tmp_path}/{name}", f"uuid-of-{name}")
    known = TableRecord(name="known", location=f"{tmp_path}/known", uuid="uuid-of-known")
    found = mending.files_without_table({known.uuid: known}, ())
    assert {(finding.code, finding.subject) for finding in found} == {
        ("FILES_WITHOUT_TABLE", f"{tmp_path}/lost"),
        ("FILES_WITHOUT_TABLE", f"{tmp_path}/also-lost"),
        ("FOLDER_UNREADABLE", f"{tmp_path}"),
    }
    (told,) = (finding.sentence for finding in found if finding.code == "FOLDER_UNREADABLE")
    assert told.startswith(f"{tmp_path}/theirs cannot be read: ")


def test_a_place_that_may_not_be_opened_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O27: such as the folder above a table, where a service may only open that of the table."""
    monkeypatch.setenv(LOCATIONS, f"{tmp_path}/its/own,{tmp_path}/look")
    for name in ("its/own", "look/lost"):
        take_folder(f"{tmp_path}/{name}", f"uuid-of-{name}")
    known = TableRecord(name="own", location=f"{tmp_path}/its/own", uuid="uuid-of-its/own")
    found = mending.files_without_table({known.uuid: known}, (f"{tmp_path}/look",))
    assert {finding.code: finding.subject for finding in found} == {
        "FILES_WITHOUT_TABLE": f"{tmp_path}/look/lost",
        "FOLDER_UNREADABLE": f"{tmp_path}/its",
    }
