"""Listing and removing files by names that are taken as they are.

pyiceberg reads locations as URLs: of ``a#1.parquet`` it would see ``a``. Whoever removes files that somebody
else has named must not remove another one instead (C12).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from distop.commit.files.info import modified
from distop.commit.files.storage import FILES_AT_ONCE, StorageOptions, file_system, protocol_of


class Entry(NamedTuple):
    """A file or folder in a folder."""

    name: str
    is_folder: bool
    modified_at: float
    """Seconds since the Unix epoch; infinite where the file system does not say."""


def entries(location: str, storage: StorageOptions | None = None) -> list[Entry]:
    """What is in a folder, without what is in its sub-folders; nothing if it does not exist."""
    filesystem, path = file_system(location, storage)
    try:
        listed = filesystem.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = []
    for info in listed:
        # Some stores list a folder as a part of itself.
        if str(info["name"]).strip("/") == str(path).strip("/"):
            continue
        at = modified(info)
        name = str(info["name"]).rstrip("/").rpartition("/")[2]
        found.append(Entry(name, info["type"] == "directory", at.timestamp() if at else float("inf")))
    return found


def remove_file(location: str, storage: StorageOptions | None = None) -> bool:
    """Remove a file; whether it was there, as far as the file system says."""
    filesystem, path = file_system(location, storage)
    try:
        filesystem.rm_file(path)
    except FileNotFoundError:
        return False
    return True


def remove_files(locations: Iterable[str], storage: StorageOptions | None = None) -> int:
    """Remove files; how many of them there were."""
    victims = sorted(locations)
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="remove") as pool:
        return sum(pool.map(lambda location: remove_file(location, storage), victims))


def remove_if_empty(location: str) -> None:
    """Remove a folder on a local disk if nothing is in it; object stores have no empty folders."""
    if protocol_of(location) == "file":
        # The system refuses, as it should, when a file has come in meanwhile.
        with suppress(OSError):
            os.rmdir(file_system(location)[1])
