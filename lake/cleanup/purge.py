"""Removes all files of a dropped table, from a folder that only this table uses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from distop.errors import CorruptRecord, LocationNotOwned, UnsupportedType
from distop.lake.layout.properties import check_may_remove
from distop.lake.layout.staging import PRIVATE, give_folder_up, is_empty, owners, take_folder
from distop.lake.storage.storage import (
    FILES_AT_ONCE,
    StorageOptions,
    entries,
    file_system,
    protocol_of,
    remove_file,
    storage_of,
)
from distop.lake.storage.stored_file import OBJECT_STORES
from distop.metastore.crashpoints import reached
from distop.metastore.records.table import DropRecord, Head, TableRecord

log = logging.getLogger(__name__)

LEAVING_S = 5.0
"""How long a drop that keeps the files waits for a storage that does not answer."""


def check_removal(table: TableRecord, head: Head | None) -> None:
    """Whether files of a table may be removed that it no longer needs. Puts a missing owner file into its
    folder. Blocking.

    Raises
    ------
    PreconditionFailed
        The table's properties forbid it.
    UnsupportedType
        distop cannot read them.
    LocationNotOwned
        There are files, and not all are the table's own.
    """
    location, uuid, storage = table.location, table.uuid, storage_of(table)
    check_may_remove(_properties(table, head), table.name)
    if is_empty(location, storage) or uuid in owners(location, storage):
        return
    if not (table.found_empty and take_folder(location, uuid, storage, found_empty=True)):
        raise LocationNotOwned(
            f"{location} held files before this table wrote to it, or another table has taken it: "
            "nothing proves that all of them belong to it",
            hint="remove unneeded files by hand; a drop without --purge keeps all of them",
            details={"field": "location"},
        )


def _properties(table: TableRecord, head: Head | None) -> Mapping[str, str]:
    """The table's properties; as it was created with, if its metadata is damaged."""
    from distop.lake.iceberg.metadata_files import TableFile

    if head is not None and head.metadata_location:
        try:
            return TableFile.read(head.metadata_location, storage_of(table)).metadata.properties
        except UnsupportedType:
            raise  # they are there, and may forbid it
        except CorruptRecord:
            pass
    properties: Mapping[str, str] = table.options.get("properties", {})
    return properties


def purge(location: str, uuid: str, storage: StorageOptions | None = None) -> bool:
    """Remove everything in a folder, if it is this table's own; return whether it is. Blocking.

    The owner file is removed last, so an interrupted purge can be repeated.
    """
    if uuid not in owners(location, storage):
        return False
    for entry in entries(location, storage):
        if entry.name != PRIVATE:
            _remove(f"{location}/{entry.name}", entry.is_folder, storage)
    reached("purge.middle")
    for entry in entries(f"{location}/{PRIVATE}", storage):
        if entry.is_folder:
            _remove(f"{location}/{PRIVATE}/{entry.name}", True, storage)
    give_folder_up(location, uuid, storage)
    return True


async def leave_files(
    record: DropRecord, in_thread: Callable[..., Awaitable[Any]] = asyncio.to_thread
) -> None:
    """Remove the files of a dropped table if asked to, otherwise only its owner file."""
    folder = record.location, record.uuid, record.storage
    if record.purge:
        if not await in_thread(purge, *folder):
            log.warning("nothing_purged", extra={"table": record.name, "location": record.location})
        return
    try:
        async with asyncio.timeout(LEAVING_S):
            await in_thread(give_folder_up, *folder)
    except Exception as error:  # the table is dropped in either case
        log.warning("owner_file_left", extra={"table": record.name, "error": str(error)})


def _remove(location: str, is_folder: bool, storage: StorageOptions | None) -> None:
    filesystem, path = file_system(location, storage)
    if not is_folder:
        remove_file(location, storage)
    elif protocol_of(location) in OBJECT_STORES:
        # By exact names: fsspec would read them as patterns when it removes recursively there.
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="purge") as pool:
            list(pool.map(filesystem.rm_file, filesystem.find(path)))
    else:
        filesystem.rm(path, recursive=True)  # does not follow links
