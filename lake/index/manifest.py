"""The manifest of an index: its parts, and which part has the keys of which data file.

A published manifest never changes; the pointer in etcd (``<table>.index.<column>``) names the current one.
Successive manifests may share parts. Paths below the table's location are written as ``~/...``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from typing import Any

import msgspec
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema

from distop.errors import CorruptRecord, InvalidArgument
from distop.lake.index.keys import Key, encoding_of, from_text
from distop.metastore.records.record import convert

LAYOUT = 1
"""Layout version of manifests and parts. A newer one is not read: the table is scanned instead."""

FOLDER = "index"
"""Folder of a table's indexes, below its location; each operation has a folder of its own in it."""


class IndexPart(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """One part: sorted entries of some data files."""

    path: str = ""
    """URL of the sorted entries. Empty: its files hold only NULL."""
    entries: int = 0
    bytes: int = 0
    least: int | str | None = None
    greatest: int | str | None = None
    """The first and the last key."""
    files: list[str] = []
    """Data files; entries name them by position here. Empty: it has left the table."""

    def may_hold(self, keys: Iterable[Key]) -> bool:
        """Whether any of these keys lies between its first and its last key."""
        if self.least is None or self.greatest is None:
            return False
        least: Any = from_text(self.least)
        greatest: Any = from_text(self.greatest)
        return any(least <= key <= greatest for key in keys)


class IndexManifest(msgspec.Struct, kw_only=True, omit_defaults=True, rename="camel", dict=True):
    """An index at the time of its publication."""

    layout: int = msgspec.field(default_factory=lambda: LAYOUT)
    column: str
    field_id: int
    encoding: str
    """How values are encoded as keys, see :func:`~distop.lake.index.keys.encoding_of`."""
    snapshot_id: int
    parts: list[IndexPart] = []
    left_out: list[str] = []
    """Files of the snapshot that are not covered: missing, or of an unsupported format."""

    @cached_property
    def part_of(self) -> dict[str, int]:
        """The position of each covered file's part."""
        return {file: number for number, part in enumerate(self.parts) for file in part.files if file}

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def paths(self) -> set[str]:
        """Locations of all files that it refers to."""
        return {part.path for part in self.parts if part.path}

    def without(self, places: Collection[int]) -> IndexManifest:
        """The index without the parts at these positions."""
        kept = [part for number, part in enumerate(self.parts) if number not in places]
        return msgspec.structs.replace(self, parts=kept)

    def fits(self, schema: Schema, field_id: int) -> bool:
        """Whether values of a column, in a schema's present type, have the keys stored here."""
        if self.field_id != field_id:
            return False
        try:
            return encoding_of(self.column, schema.find_type(field_id)) == self.encoding
        except (InvalidArgument, ValueError):
            return False


def write_manifest(io: FileIO, location: str, manifest: IndexManifest, root: str) -> int:
    """Write a manifest for a table at ``root``; return its size."""
    plain: dict[str, Any] = msgspec.to_builtins(manifest)
    _rename(plain, lambda path: _short(path, root))
    content = msgspec.json.encode(plain)
    with io.new_output(location).create(overwrite=True) as stream:
        stream.write(content)
    return len(content)


def read_manifest(io: FileIO, location: str, root: str) -> IndexManifest:
    """Read a manifest of a table at ``root``.

    Raises
    ------
    FileNotFoundError
        It is gone: another one has been published since.
    CorruptRecord
        It is not a manifest, or has a newer layout.
    """
    with io.new_input(location).open() as stream:
        content = stream.read()
    try:
        plain = msgspec.json.decode(content, type=dict[str, Any])
        if int(plain.get("layout", 0)) > LAYOUT:
            raise CorruptRecord(f"{location} has layout {plain['layout']}, this version reads up to {LAYOUT}")
        _rename(plain, lambda path: _full(path, root))
        return convert(plain, IndexManifest)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise CorruptRecord(f"{location} is not the manifest of an index: {error}") from error


def _rename(plain: Mapping[str, Any], renamed: Any) -> None:
    for part in plain.get("parts", ()):
        if "path" in part:
            part["path"] = renamed(part["path"])
        part["files"] = [renamed(file) for file in part.get("files", ())]
    if "leftOut" in plain:
        plain["leftOut"][:] = [renamed(file) for file in plain["leftOut"]]


def _short(path: str, root: str) -> str:
    return "~" + path[len(root) :] if path.startswith(f"{root}/") else path


def _full(path: str, root: str) -> str:
    return root + path[1:] if path.startswith("~/") else path
