"""Listing and removing files by names that are taken as they are.

pyiceberg reads locations as URLs: of ``a#1.parquet`` it would see ``a``. Whoever removes files that somebody
else has named must not remove another one instead (C12).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from distop.commit.files.storage import FILES_AT_ONCE, StorageOptions, file_system


def entries(location: str, storage: StorageOptions | None = None) -> list[tuple[str, bool, float]]:
    """What is in a folder: name, whether it is a folder, when it was modified (seconds since the Unix epoch).

    Of what has no such time the present is assumed to be it. Nothing if the folder does not exist.
    """
    filesystem, path = file_system(location, storage)
    try:
        listed = filesystem.ls(path, detail=True)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [
        (str(entry["name"]).rstrip("/").rpartition("/")[2], entry["type"] == "directory", _time_of(entry))
        for entry in listed
        # Some stores list a folder as a part of itself.
        if str(entry["name"]).strip("/") != str(path).strip("/")
    ]


def _time_of(entry: Mapping[str, Any]) -> float:
    at = entry.get("LastModified") or entry.get("mtime") or entry.get("created") or float("inf")
    return float(at.timestamp() if hasattr(at, "timestamp") else at)


def remove_files(locations: Iterable[str], storage: StorageOptions | None = None) -> int:
    """Remove files; how many of them there were."""

    def one(location: str) -> int:
        filesystem, path = file_system(location, storage)
        try:
            filesystem.rm_file(path)
        except FileNotFoundError:
            return 0
        return 1

    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="remove") as pool:
        return sum(pool.map(one, sorted(locations)))
