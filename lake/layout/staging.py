"""Where an operation writes, by table format; and the owner file of a table's folder, which proves that
everything in the folder is this table's (checklist S2).

``<location>/_distop/table-<uuid>`` is created before the first file of the table, if the folder is then
empty. A pyiceberg program writes a file first, and may die before it creates this one: so the table's record
says whether the folder was found empty, and the next process that needs the owner file creates it. Only
folders with this file are removed or searched for orphans: a folder's name in a table's record proves
nothing, since links, mounts and other installations reach the same files under other names. A file that
exists or not cannot be half written, and a copy of a folder carries the uuid of the original.

Files of Iceberg and Delta tables are written at their final place; the commit makes them part of the table. A
plain directory tree consists of its files only, so they are written to a folder that readers ignore (all of
them skip names that begin with ``_``), and moved.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import PurePath

from distop.errors import LocationInUse, NotAllowed
from distop.lake.storage.storage import (
    StorageOptions,
    entries,
    file_system,
    protocol_of,
    remove_file,
    remove_if_empty,
)
from distop.metastore.records.operation import OperationArg
from distop.metastore.tables.locations import places_above

ICEBERG, FILES, DELTA = "iceberg", "files", "delta"
FORMATS = (ICEBERG, FILES, DELTA)

OUTPUT = "output"
"""Field of an operation's argument: the format of its table. Default: Iceberg."""

ROWS = "writesRows"
"""Field of an operation's argument: its jobs write rows to the table with ``job.writer()``."""

RULES = "rules"
"""Field of an operation's argument: the rules that its jobs check. Jobs write their findings to the private
folder."""

BRANCH = "branch"
"""Field of the argument of an operation that writes to a branch of its table: the branch's name."""

PRIVATE = "_distop"
"""The folder below a table's location whose files are never part of the table."""

QUARANTINE = "quarantine"
HIDDEN_QUARANTINE = "_quarantine"


def format_of(operation: OperationArg) -> str:
    """The format of the table that an operation writes to."""
    return str(operation.argument.get(OUTPUT, ICEBERG))


def branch_of(operation: OperationArg) -> str:
    """The branch that an operation writes to; empty: the table itself."""
    return str(operation.argument.get(BRANCH) or "")


def data_folder(table_format: str) -> str:
    """The folder that jobs write data files in."""
    return PRIVATE if table_format == FILES else "data"


def kept_folders(table_format: str) -> tuple[str, ...]:
    """Folders in which the files of published attempts stay."""
    match table_format:
        case "files":
            return (HIDDEN_QUARANTINE,)
        case "delta":
            return ("data", HIDDEN_QUARANTINE)
    return ("data", "metadata", QUARANTINE)


def passing_folders(table_format: str) -> tuple[str, ...]:
    """Folders that can be removed once the operation has ended."""
    return () if table_format == ICEBERG else (PRIVATE,)


def passing_folders_of(operation: OperationArg) -> tuple[str, ...]:
    """Folders of an operation that can be removed once it has ended."""
    if operation.argument.get(RULES):
        return (PRIVATE,)
    return passing_folders(format_of(operation))


def quarantine_folder(table_format: str) -> str:
    """The folder for bad rows; readers of the table's own folder skip it."""
    return QUARANTINE if table_format == ICEBERG else HIDDEN_QUARANTINE


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
