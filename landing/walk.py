"""The content of a landing folder: complete batches, their configuration, and problems."""

from __future__ import annotations

import errno
import json
import posixpath
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import fsspec

from distop.errors import InvalidArgument, encodable
from distop.lake.storage.storage import modified, version

SUCCESS, POINTER, HISTORY_DONE, BACKFILL = "_SUCCESS", "_POINTER", "_HISTORYDONE", "_BACKFILL"
CONFIG, ORDER_ME = "_config", "ORDERME"

MAX_DEPTH = 32
MAX_CONFIG_BYTES = 100_000
MAX_POINTERS = 1_000
MAX_SEARCHED = 200
"""Folders without batches that one look searches for misplaced control files."""

Entries = Mapping[str, Mapping[str, Any]]
"""The entries of a folder, by name, as the file system describes them."""


class FolderFileSystem(Protocol):
    """The used part of fsspec's ``AbstractFileSystem``."""

    def ls(self, path: str, detail: bool = ...) -> list[dict[str, Any]]: ...
    def cat_file(self, path: str, start: int = ..., end: int = ...) -> bytes: ...
    def mv(self, path1: str, path2: str) -> Any: ...
    def rm_file(self, path: str) -> Any: ...
    def invalidate_cache(self, path: str | None = ...) -> None: ...


OpenFileSystem = Callable[[str], tuple[FolderFileSystem, str]]
open_file_system: OpenFileSystem = fsspec.core.url_to_fs


@dataclass(frozen=True)
class LandedBatch:
    """A complete batch in the folder."""

    name: str
    ordered: bool
    argument: dict[str, Any]
    marker: str
    """URL of the ``_SUCCESS`` next to its data. Empty if the data is elsewhere: who reads it may then have no
    access to this folder."""
    written: float
    """When its ``_SUCCESS`` was written, in seconds since the Unix epoch; 0: unknown."""
    version: str
    """The version of its ``_SUCCESS`` in the listing of its folder."""


@dataclass(frozen=True)
class LandingScope:
    """The configuration for the batches in a folder and below it."""

    ordered: bool = False
    argument: Mapping[str, Any] = field(default_factory=dict)


class Walk:
    """One look at the content of a folder.

    Parameters
    ----------
    root:
        The folder, as its file system names it.
    url_prefix:
        Prefix that makes a URL of such a name, such as ``s3://``.
    known:
        Names of batches whose folders need not be examined.
    """

    def __init__(
        self, fs: FolderFileSystem, root: str, *, url_prefix: str = "", known: Container[str] = ()
    ) -> None:
        self._fs, self._root, self._url_prefix, self._known = fs, root, url_prefix, known
        self._to_search = MAX_SEARCHED
        self.problems: dict[str, str] = {}
        """Path below the root -> the problem there. Everything else continues."""
        self.entries: Entries = self._entries(root) or {}
        """The entries of the root itself."""

    def scope(self, outer: LandingScope) -> LandingScope | None:
        """The configuration of the root; ``None`` if it cannot be read."""
        return self._scope(self._root, self.entries, outer)

    def folders(self) -> list[str]:
        """The names of the folders in the root."""
        return sorted(child for child, entry in self.entries.items() if _is_visible_folder(child, entry))

    def batches(self, outer: LandingScope) -> Iterator[LandedBatch]:
        """The complete batches below the root, except the known ones."""
        if SUCCESS in self.entries:
            self.problems[SUCCESS] = "misplaced: the table's folder itself is not a batch"
        yield from self._below(self._root, self.entries, outer, 0)

    def misplaced(self, names: tuple[str, ...], where: str) -> None:
        """Report control files in the root that belong elsewhere."""
        for name in names:
            if name in self.entries:
                self.problems[name] = f"misplaced: {name} belongs into {where}"

    def search_hidden(self, folder: str, entries: Entries) -> None:
        """Report a folder that would be a batch if the name of a folder above did not hide it."""
        for child, entry in sorted(entries.items()):
            if not (_is_folder(entry) and child.startswith(("_", "."))) or child == CONFIG:
                continue
            for path in self._search(f"{folder}/{child}", (SUCCESS,)):
                self.problems[path] = (
                    "not a batch: folders whose names begin with '_' or '.' are skipped with their content"
                )
                break  # one report is enough

    # -- folders ---------------------------------------------------------------------------------------

    def _below(self, folder: str, entries: Entries, outer: LandingScope, depth: int) -> Iterator[LandedBatch]:
        scope = self._scope(folder, entries, outer)
        if scope is None:
            return  # nothing is published with an unreadable configuration
        self.search_hidden(folder, entries)
        for child, entry in sorted(entries.items()):
            if _is_visible_folder(child, entry):
                yield from self._folder(f"{folder}/{child}", scope, depth + 1)

    def _folder(self, folder: str, outer: LandingScope, depth: int) -> Iterator[LandedBatch]:
        name = self._name(folder)
        if name in self._known:
            return
        if depth > MAX_DEPTH:
            self.problems[name] = f"folders are nested more than {MAX_DEPTH} deep"
            return
        entries = self._entries(folder)
        if entries is None:
            return
        for control in (HISTORY_DONE, BACKFILL):
            if control in entries:
                self.problems[f"{name}/{control}"] = f"misplaced: {control} belongs into the table's folder"
        if SUCCESS not in entries:
            yield from self._below(folder, entries, outer, depth)
            return
        scope = self._scope(folder, entries, outer)
        batch = self._batch(name, folder, entries, scope) if scope is not None else None
        if batch is None:
            return
        for child, entry in sorted(entries.items()):
            if _is_folder(entry) and child != CONFIG:
                within = (SUCCESS, HISTORY_DONE, BACKFILL, ORDER_ME, CONFIG)
                for path in self._search(f"{folder}/{child}", within):
                    self.problems[path] = f"misplaced: it is inside batch {name!r}, and is ignored"
        yield batch

    def _search(self, folder: str, names: tuple[str, ...]) -> Iterator[str]:
        """Positions of these control files in a folder without batches."""
        folders = [folder]
        while folders and self._to_search:
            self._to_search -= 1
            here = folders.pop(0)
            entries = self._entries(here) or {}
            yield from (f"{self._name(here)}/{name}" for name in names if name in entries)
            folders += [f"{here}/{child}" for child, entry in sorted(entries.items()) if _is_folder(entry)]

    def _entries(self, folder: str) -> Entries | None:
        """The entries of a folder; ``None``, and a problem, if it cannot be read."""
        try:
            listed = self._fs.ls(folder, detail=True)
        except FileNotFoundError:
            return {}  # removed since its parent was listed, or not there yet
        except OSError as error:
            self.problems[self._name(folder)] = f"cannot be read: {error}"
            return None
        entries = {entry["name"].rstrip("/"): entry for entry in listed}
        entries.pop(folder, None)
        for path in [path for path in entries if not _is_utf8(path)]:
            del entries[path]
            self.problems[encodable(self._name(path))] = "it is left out: its name is not UTF-8"
        return {posixpath.basename(path): entry for path, entry in entries.items()}

    def _name(self, path: str) -> str:
        return path[len(self._root) :].strip("/")

    # -- files -----------------------------------------------------------------------------------------

    def _scope(self, folder: str, entries: Entries, outer: LandingScope) -> LandingScope | None:
        """The configuration of this folder, merged into the outer one's."""
        ordered, argument = outer.ordered, dict(outer.argument)
        if CONFIG in entries:
            files = self._entries(f"{folder}/{CONFIG}")
            if files is None:
                return None
            for file in sorted(files):
                path = f"{folder}/{CONFIG}/{file}"
                if file == ORDER_ME:
                    ordered = True
                elif file.endswith(".json"):
                    try:
                        argument = _merged(argument, self._json(path))
                    except (OSError, ValueError, RecursionError, InvalidArgument) as error:
                        self.problems[self._name(path)] = f"not a JSON object: {error}"
                        return None
                elif file in (HISTORY_DONE, BACKFILL):
                    problem = f"misplaced: {file} belongs into the table's folder"
                    self.problems[self._name(path)] = problem
                elif not file.startswith("."):
                    self.problems[self._name(path)] = f"{file} is unknown"
        if ORDER_ME in entries:
            path = self._name(f"{folder}/{ORDER_ME}")
            self.problems[path] = f"misplaced: {ORDER_ME} belongs into a folder {CONFIG}"
            if not ordered:
                # An order is requested here: applying batches without it could not be undone.
                self.problems[path] += "; nothing below is published before it is moved there, or removed"
                return None
        return LandingScope(ordered, argument)

    def _json(self, path: str) -> dict[str, Any]:
        value = json.loads(self._small(path))
        if not isinstance(value, dict):
            raise InvalidArgument("it is another JSON value")
        return value

    def _small(self, path: str) -> bytes:
        content = beginning(self._fs, path, MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise InvalidArgument(f"larger than {MAX_CONFIG_BYTES:,} bytes")
        return content

    def _batch(self, name: str, folder: str, entries: Entries, scope: LandingScope) -> LandedBatch | None:
        paths = [f"{self._url_prefix}{folder}"]
        if POINTER in entries:
            data = sorted(child for child in entries if not child.startswith(("_", ".")))
            if data:
                self.problems[name] = f"it holds {data[0]!r} and {POINTER}: remove one of them"
                return None
            try:
                text = self._small(f"{folder}/{POINTER}").decode()
            except (OSError, ValueError, InvalidArgument) as error:
                self.problems[name] = f"{POINTER} cannot be read: {error}"
                return None
            paths = [line.strip() for line in text.splitlines() if line.strip()]
            if not 1 <= len(paths) <= MAX_POINTERS:
                self.problems[name] = f"{POINTER} names {len(paths)} places"
                return None
        # A batch without data is published, too: the operation fails, and names the batch.
        marker = "" if POINTER in entries else f"{paths[0]}/{SUCCESS}"
        written = modified(entries[SUCCESS])
        return LandedBatch(
            name,
            scope.ordered,
            {**scope.argument, "paths": paths},
            marker,
            0.0 if written is None else written.timestamp(),
            version(entries[SUCCESS]),
        )


def beginning(fs: FolderFileSystem, path: str, size: int) -> bytes:
    """At most the first ``size`` bytes of a file, which may be empty."""
    try:
        return fs.cat_file(path, 0, size)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        # S3 refuses any range of an empty object; if it is something else, it is raised again.
        return fs.cat_file(path)[:size]


def _is_utf8(name: str) -> bool:
    """File systems may have any bytes in names; Python holds those that are no text as surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_folder(entry: Mapping[str, Any]) -> bool:
    return bool(entry["type"] == "directory")


def _is_visible_folder(name: str, entry: Mapping[str, Any]) -> bool:
    return _is_folder(entry) and not name.startswith(("_", "."))


def _merged(outer: Mapping[str, Any], inner: Mapping[str, Any]) -> dict[str, Any]:
    """Objects are merged; for other values the inner one takes precedence."""
    merged = dict(outer)
    for name, value in inner.items():
        before = merged.get(name)
        both = isinstance(before, dict) and isinstance(value, dict)
        merged[name] = _merged(before, value) if both else value  # type: ignore[arg-type]
    return merged
