"""Folders of tables that etcd does not know: they were created after the backup. Blocks."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from distop.coordinator.doctor.findings import Finding
from distop.lake.layout.owner import owner_file, owners
from distop.lake.storage.listing import Entry, entries
from distop.lake.storage.storage import StorageOptions, storage_of
from distop.metastore.records.table import TableRecord

MAX_FOLDERS = 10_000
"""Folders examined next to those of known tables."""


def files_without_table(tables: Mapping[str, TableRecord], folders: Collection[str]) -> list[Finding]:
    """Folders of unknown tables next to the known ones (by their uuids), or in these folders."""
    parents: dict[str, StorageOptions | None] = {folder.rstrip("/"): None for folder in folders}
    for table in tables.values():
        parents.setdefault(table.location.rstrip("/").rpartition("/")[0], storage_of(table))
    known = {table.location.rstrip("/") for table in tables.values()}
    found, looked = [], 0
    for parent, storage in parents.items():
        unread: dict[str, Exception] = {}
        beside: list[Entry] = []
        try:
            beside = entries(parent, storage)
        except Exception as error:  # any error of a file system
            unread[parent] = error
        for entry in beside:
            place = f"{parent}/{entry.name}"
            if not entry.is_folder or place in known or looked >= MAX_FOLDERS:
                continue
            looked += 1
            try:
                strangers = [uuid for uuid in owners(place, storage) if uuid not in tables]
                found += [_finding(place, uuid, storage) for uuid in strangers]
            except Exception as error:
                unread[place] = error
        if unread:
            found.append(_unreadable(parent, unread))
    return found


def _unreadable(parent: str, unread: Mapping[str, Exception]) -> Finding:
    """One finding for all: next to tables may be very many folders of others."""
    place, error = next(iter(unread.items()))
    others = f", nor {len(unread) - 1:,} other folders in {parent}" if len(unread) > 1 else ""
    return Finding(
        code="FOLDER_UNREADABLE",
        subject=parent,
        sentence=f"{place} cannot be read{others}: tables made after the backup may be there "
        f"({type(error).__name__}: {error})",
        remedy="repeat this as a user who may read it, unless only others use it",
    )


def _finding(place: str, uuid: str, storage: StorageOptions | None) -> Finding:
    names = [entry.name for entry in entries(f"{place}/metadata", storage)]
    newest = max((name for name in names if name.endswith(".metadata.json")), default="")
    if newest:
        remedy = (
            f"to register it again: remove {owner_file(place, uuid)}; in pyiceberg "
            f"register_table(NAME, {place + '/metadata/' + newest!r}); then: "
            "distop doctor --after-restore --fix --table NAME"
        )
    else:
        remedy = "create the table again in another folder; remove this one if it is not needed"
    return Finding(
        code="FILES_WITHOUT_TABLE",
        subject=place,
        sentence=f"{place} belongs to a table of uuid {uuid}, which etcd does not know: "
        "it was made after the backup",
        remedy=remedy,
    )
