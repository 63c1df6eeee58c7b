"""Listing and removing files by literal names.

pyiceberg parses locations as URLs: it reads ``a#1.parquet`` as ``a``. Code that removes files must not remove
another file because of such a name (C12).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple

from distop.lake.storage.allowed import is_below
from distop.lake.storage.storage import FILES_AT_ONCE, StorageOptions, file_system, protocol_of

_TAGS = ("ETag", "etag", "md5Hash", "contentMD5", "checksum", "version_id")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


def entity_tag(info: Mapping[str, Any]) -> str:
    """Changes whenever the file is written again; empty if the file system has no such tag."""
    return next((str(info[name]).strip('"') for name in _TAGS if info.get(name)), "")


def version(info: Mapping[str, Any]) -> str:
    """Changes whenever a file is written again, even an empty one: the tags of those are equal, so that the
    time counts, too."""
    return f"{entity_tag(info)} {modified(info)}".strip()


def modified(info: Mapping[str, Any]) -> datetime | None:
    """When the file was last written, in UTC; ``None`` if the file system does not say."""
    value = next((info[name] for name in _TIMES if info.get(name) is not None), None)
    if isinstance(value, int | float):
        return datetime.fromtimestamp(value, UTC)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)


class Entry(NamedTuple):
    """A file or folder in a folder."""

    name: str
    is_folder: bool
    modified_at: float
    """Seconds since the Unix epoch; infinite if the file system does not say."""


def entries(location: str, storage: StorageOptions | None = None) -> list[Entry]:
    """The content of a folder, without sub-folders' content; nothing if it does not exist."""
    filesystem, path = file_system(location, storage)
    try:
        listed = filesystem.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    children = []
    for info in listed:
        # Some stores list a folder as an entry of itself.
        if str(info["name"]).strip("/") == str(path).strip("/"):
            continue
        at = modified(info)
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        children.append(Entry(name, info["type"] == "directory", at.timestamp() if at else float("inf")))
    return children


def remove_file(location: str, storage: StorageOptions | None = None) -> bool:
    """Remove a file; return whether it existed, as far as the file system says."""
    filesystem, path = file_system(location, storage)
    try:
        filesystem.rm_file(path)
    except FileNotFoundError:
        return False
    return True


def inside(locations: Iterable[str], folder: str) -> Iterator[str]:
    """Those that are certainly in a folder. Before files are removed whose names stand in a table's metadata:
    who writes the table can put names of other tables' files there."""
    return (
        location
        for location in locations
        if ".." not in location.split("/") and is_below(location, (folder,))
    )


def remove_files(locations: Iterable[str], storage: StorageOptions | None = None) -> int:
    """Remove files; return how many existed."""
    victims = sorted(locations)
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="remove") as pool:
        return sum(pool.map(lambda location: remove_file(location, storage), victims))


def remove_if_empty(location: str) -> None:
    """Remove an empty folder on a local disk; object stores have no empty folders."""
    if protocol_of(location) == "file":
        # The system refuses, correctly, when a new file has appeared.
        with suppress(OSError):
            os.rmdir(file_system(location)[1])
