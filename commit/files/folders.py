"""Folders of staged files: listing and removing, which pyiceberg's ``FileIO`` does not do itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlparse

from pyiceberg.io import FileIO

BATCH = 1000


class Folder:
    """One folder, without its sub-folders.

    Parameters
    ----------
    io:
        Of the kind that wrote the files; its file system and credentials are used.
    location:
        URL or path, without a slash at the end.
    """

    def __init__(self, io: FileIO, location: str) -> None:
        self._io = io
        self._location = location

    def listing(self) -> Iterator[list[str]]:
        """Names of the files in it, in batches; none if it does not exist."""
        names = self._names()
        for start in range(0, len(names), BATCH):
            yield names[start : start + BATCH]

    def folders(self) -> list[Folder]:
        """The folders in it."""
        return [Folder(self._io, f"{self._location}/{name}") for name in self._names(folders=True)]

    def _names(self, *, folders: bool = False) -> list[str]:
        from pyiceberg.io.pyarrow import PyArrowFileIO

        if isinstance(self._io, PyArrowFileIO):
            return self._names_in_arrow(self._io, folders)
        fsspec_io: Any = self._io
        filesystem = fsspec_io._get_fs_from_uri(urlparse(self._location), self._location)
        with suppress(FileNotFoundError):
            found = filesystem.ls(self._location, detail=True)
            kind = "directory" if folders else "file"
            names = [entry["name"].rstrip("/").rpartition("/")[2] for entry in found if entry["type"] == kind]
            return [name for name in names if name]
        return []

    def _names_in_arrow(self, io: Any, folders: bool) -> list[str]:
        import pyarrow.fs as arrow_fs

        scheme, netloc, path = io.parse_location(self._location, io.properties)
        selector = arrow_fs.FileSelector(path, allow_not_found=True)
        found = io.fs_by_scheme(scheme, netloc).get_file_info(selector)
        kind = arrow_fs.FileType.Directory if folders else arrow_fs.FileType.File
        return [info.base_name for info in found if info.type == kind]

    def remove(self, name: str) -> bool:
        """Remove a file; whether it was there."""
        try:
            self._io.delete(f"{self._location}/{name}")
        except FileNotFoundError:
            return False
        return True

    def remove_if_empty(self) -> None:
        """Remove the folder on a local disk if nothing is in it; object stores have no empty folders."""
        parts = urlparse(self._location)
        if parts.scheme in ("", "file"):
            path = parts.path if parts.scheme else self._location
            # Refused by the system, as it should be, when a file has come in meanwhile.
            with suppress(OSError):
                os.rmdir(path)
