"""The owner file of a table's folder: it proves that everything in the folder is this table's (checklist S2).

``<location>/_distop/table-<uuid>`` is created before the first file of the table, if the folder is then
empty. A pyiceberg program writes a file first, and may die before it creates this one: so the table's record
says whether the folder was found empty, and the next process that needs the owner file creates it. Only
folders with this file are removed or searched for orphans: a folder's name in a table's record proves
nothing, since links, mounts and other installations reach the same files under other names. A file that
exists or not cannot be half written, and a copy of a folder carries the uuid of the original.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import PurePath

from distop.errors import LocationInUse, NotAllowed
from distop.lake.layout.staging import PRIVATE
from distop.lake.storage.storage import (
    StorageOptions,
    entries,
    file_system,
    protocol_of,
    remove_file,
    remove_if_empty,
)
from distop.metastore.records.locations import places_above

_STEM = "table-"


def owners(location: str, storage: StorageOptions | None = None) -> list[str]:
    """The uuids of the tables that own a folder: at most one, unless files were copied."""
    listed = entries(f"{location}/{PRIVATE}", storage)
    return [entry.name[len(_STEM) :] for entry in listed if entry.name.startswith(_STEM)]


def take_folder(
    location: str, uuid: str, storage: StorageOptions | None = None, *, found_empty: bool = False
) -> bool:
    """Make a folder a table's own, if it is empty, or was empty when the table was created (``found_empty``).
    Returns whether the table owns it. Idempotent.

    Raises as :func:`is_free`.
    """
    if not uuid:
        return False
    if not _is_taken(location, uuid, storage):
        if not found_empty and not is_empty(location, storage):
            return False
        mark_folder(location, uuid, storage)
    return True


def is_free(location: str, uuid: str, storage: StorageOptions | None = None) -> bool:
    """Whether a table can own a folder: it does already, or the folder is empty.

    Raises :class:`~distop.errors.LocationInUse` if it is another table's.
    """
    return _is_taken(location, uuid, storage) or is_empty(location, storage)


def _is_taken(location: str, uuid: str, storage: StorageOptions | None) -> bool:
    """Whether the table owns the folder already. Raises as :func:`is_free`."""
    uuids = owners(location, storage)
    if uuids and uuid not in uuids:
        raise in_use(location, "leads to", owner_file(location, uuids[0]))
    if not uuids:
        for above in _folders_above(location, storage):
            # A process that may only read its own folder cannot be inside another table's.
            with suppress(PermissionError, NotAllowed):
                if others := owners(above, storage):
                    raise in_use(location, "lies in", owner_file(above, others[0]))
    return bool(uuids)


def _folders_above(location: str, storage: StorageOptions | None) -> list[str]:
    """The parent folders of a folder; on a disk, with links resolved."""
    if protocol_of(location) != "file":
        return places_above(location)
    real = PurePath(os.path.realpath(file_system(location, storage)[1]))
    return [f"file://{above}" for above in real.parents if above.name]


def in_use(location: str, how: str, file: str) -> LocationInUse:
    """The error for another table's owner file; ``how`` the two folders are related."""
    return LocationInUse(
        f"location {location} {how} the folder of another table, or of another installation",
        hint=f"use another folder; if no table uses it, remove {file}",
        details={"field": "location", "uuid": file.rpartition(_STEM)[2]},
    )


def mark_folder(location: str, uuid: str, storage: StorageOptions | None = None) -> None:
    """Create the owner file."""
    filesystem, path = file_system(owner_file(location, uuid), storage)
    if protocol_of(location) == "file":
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, b"")


def is_empty(location: str, storage: StorageOptions | None = None) -> bool:
    """Whether a folder is empty, except for distop's own files."""
    return all(entry.name == PRIVATE for entry in entries(location, storage))


def give_folder_up(location: str, uuid: str, storage: StorageOptions | None = None) -> None:
    """Remove the owner file of a table, and its folders if they are empty. Idempotent."""
    remove_file(owner_file(location, uuid), storage)
    remove_if_empty(f"{location}/{PRIVATE}")
    remove_if_empty(location)


def is_owner_file(path: str) -> bool:
    """Whether a path is that of a table's owner file."""
    return f"/{PRIVATE}/{_STEM}" in path


def owner_file(location: str, uuid: str) -> str:
    """The path of the owner file."""
    return f"{location}/{PRIVATE}/{_STEM}{uuid}"
