"""The invariants of the design, looked at from outside: rows, watermarks, keys, files, history."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table import StaticTable

from chaos.ledger import Book
from distop.metastore.etcd.client import EtcdClient
from distop.metastore.etcd.txn import Get, Txn
from distop.metastore.records.keyspace import TableKeys
from distop.metastore.records.record import decode
from distop.metastore.records.table import Head, TableRecord
from distop.metastore.tables.watermarks import marks_at
from support.tables.trees import files_in

AT_REST = re.compile(
    r"_installation|_policy|(_coordinators|_executors|_places|_locations|_tables|_views|_namespaces|_audit|_denied|_answers|_watermarks|_schedules)\..+"
    r"|[^.]+\.(table|head|watermarks|coordinator|ordering|undone)"
    r"|[^.]+\.(history|series|request|requestExpiry|auditTrail|applied|unordered\.done)\..+"
    r"|[^.]+\.[^.]+\.nextInstanceId"
)
"""The keys that may stand when nothing runs."""

OWN_FOLDER = re.compile(r"^(data|metadata|files|quarantine|_distop)/[a-z_]+-[0-9a-f]{6,}/")
"""Where attempts of an operation write; nobody else does, and nothing but what is published stays there."""


@dataclass
class Findings:
    """What was looked at and what was wrong with it."""

    rows_expected: int = 0
    """Rows published since the last look, and ..."""
    rows_found: int = 0
    """... how many of them are there. Lost and doubled are counted over whole tables."""
    rows_lost: int = 0
    rows_doubled: int = 0
    leftovers: list[str] = field(default_factory=list)
    """Keys and files that nobody owns."""
    orphans: int = 0
    """Metadata and foreign files that no snapshot refers to: left to orphan removal, as documented."""
    wrong: list[str] = field(default_factory=list)
    """Sentences about anything else that is wrong."""

    def add(self, other: Findings) -> None:
        self.rows_expected += other.rows_expected
        self.rows_found += other.rows_found
        self.rows_lost += other.rows_lost
        self.rows_doubled += other.rows_doubled
        self.leftovers += other.leftovers
        self.orphans += other.orphans
        self.wrong += other.wrong

    @property
    def good(self) -> bool:
        return not (self.rows_lost or self.rows_doubled or self.leftovers or self.wrong)


@dataclass(frozen=True)
class TableState:
    """Head and watermarks of a table, read at one revision of etcd."""

    location: str | None
    watermarks: frozenset[str]


async def state_of(client: EtcdClient, keys: TableKeys) -> TableState:
    wanted = (keys.table, keys.head, keys.watermarks)
    result = await client.txn(Txn(then=tuple(map(Get, wanted))))
    table, head, watermarks = (result.single(index, key) for index, key in enumerate(wanted))
    location = decode(head.value, Head, head.key).metadata_location if head.exists else None
    if not table.exists:
        return TableState(location, frozenset())
    marks = marks_at(client, decode(table.value, TableRecord), watermarks, result.revision)
    named = await asyncio.to_thread(lambda: [name for source in marks.values() for name in source])
    return TableState(location, frozenset(named))


def read_rows(location: str | None) -> list[dict[str, Any]]:
    """``id`` and ``batch`` of all rows that a metadata file shows. Blocking."""
    if location is None:
        return []
    table = StaticTable.from_metadata(location)
    rows: list[dict[str, Any]] = table.scan(selected_fields=("id", "batch")).to_arrow().to_pylist()
    return rows


def ids_of(book: Book, state: TableState) -> list[int]:
    """All ids that a reader finds. Blocking."""
    if not book.plain:
        return [row["id"] for row in read_rows(state.location)]
    ids: list[int] = []
    for path in sorted(book.location.rglob("*.parquet")):
        if not _is_hidden(path.relative_to(book.location)):
            ids += pq.read_table(path, columns=["id"], partitioning=None)["id"].to_pylist()
    return ids


def plain_leftovers(book: Book) -> list[str]:
    """What is left in a tree of files that no reader looks at. Blocking."""
    files = [path.relative_to(book.location) for path in files_in(book.location)]
    hidden = [path for path in files if _is_hidden(path) and path.name != "_SUCCESS"]
    return [f"file {book.table}/{path}" for path in sorted(hidden)]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def check_rows(book: Book, state: TableState) -> Findings:
    """Whether a table at rest holds what it should. Blocking."""
    expected, present = Counter(book.expected()), Counter(ids_of(book, state))
    lost, strange = expected - present, present - expected
    doubled = sum(count for number, count in strange.items() if number in expected)
    # Counted when they are new; what was there before must still be, and only once, but is not counted again.
    new = book.fresh & expected.keys()
    book.fresh.clear()
    findings = Findings(len(new), sum(present[number] for number in new), lost.total(), doubled)
    if foreign := sorted(number for number in strange if number not in expected):
        findings.wrong.append(f"{book.table}: {len(foreign)} rows nobody published, such as {foreign[0]}")
    if state.watermarks != book.watermarks:
        differing = sorted(state.watermarks ^ book.watermarks)
        findings.wrong.append(f"{book.table}: watermarks do not match what is published: {differing[:5]}")
    return findings


def check_whole(book: Book, state: TableState, sizes: dict[str, int]) -> str | None:
    """What a reader may never see: a part of a batch, or rows without their watermark (P3, C8)."""
    counts = Counter(row["batch"] for row in read_rows(state.location))
    counts.pop("foreign", None)
    partial = {name: count for name, count in counts.items() if count != sizes.get(name)}
    if partial:
        return f"{book.table}: a reader saw {partial} of {[sizes.get(name) for name in partial]} rows"
    if book.apart:
        return None
    if book.replaces:
        if len(counts) > 1:
            return f"{book.table}: a reader saw {len(counts)} batches where each replaces the others"
        if not counts.keys() <= state.watermarks:
            return f"{book.table}: a reader saw rows without their watermark: {sorted(counts)}"
        return None
    if counts.keys() != state.watermarks:
        differing = sorted(counts.keys() ^ state.watermarks)[:5]
        return f"{book.table}: a reader saw rows and watermarks that do not belong together: {differing}"
    return None


async def check_keys(client: EtcdClient) -> Findings:
    """Whether a key is left that no operation, table or member owns."""
    prefix = client.keyspace.prefix
    keys = [kv.key[len(prefix) :].decode() for kv in (await client.scan(prefix, keys_only=True)).kvs]
    return Findings(leftovers=[f"key {key}" for key in keys if not AT_REST.fullmatch(key)])


class KnownFiles:
    """The files that the snapshots of tables refer to. Manifests never change, so each is read once."""

    def __init__(self) -> None:
        self._lists: dict[str, list[str]] = {}
        self._manifests: dict[str, tuple[set[str], set[str]]] = {}
        """The files that a manifest names, and those of them that it does not say are removed."""

    def of(self, location: str | None) -> tuple[set[str], set[str]]:
        """All files that the snapshots of a table name, and those that must be there. Blocking."""
        if location is None:
            return set(), set()
        table = StaticTable.from_metadata(location)
        metadata, known, needed = table.metadata, {location}, {location}
        known.update(entry.metadata_file for entry in metadata.metadata_log)
        for snapshot in metadata.snapshots:
            listed = snapshot.manifest_list
            if listed not in self._lists:
                manifests = snapshot.manifests(table.io)
                self._lists[listed] = [manifest.manifest_path for manifest in manifests]
                for manifest in manifests:
                    if manifest.manifest_path not in self._manifests:
                        assert manifest.content == ManifestContent.DATA
                        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                        named = {entry.data_file.file_path for entry in entries}
                        removed = ManifestEntryStatus.DELETED
                        live = {e.data_file.file_path for e in entries if e.status != removed}
                        self._manifests[manifest.manifest_path] = named, live
            known.add(listed)
            needed.add(listed)
            for path in self._lists[listed]:
                named, live = self._manifests[path]
                known |= {path, *named}
                needed |= {path, *live}
        return known, needed

    def check(self, book: Book, location: str | None, own: Collection[str] = ()) -> Findings:
        """Whether files lie about that nobody refers to, or are missing. Blocking.

        Parameters
        ----------
        own:
            Further folders where nothing but what is published may stay.
        """
        known, needed = ({_path(path) for path in paths} for paths in self.of(location))
        on_disk = set(files_in(book.location))
        findings = Findings()
        for path in sorted(on_disk - known):
            name = str(path.relative_to(book.location))
            if name.startswith(tuple(book.rejected)):
                continue
            if OWN_FOLDER.match(name) or path.parent.name in own:
                findings.leftovers.append(f"file {book.table}/{name}")
            else:
                findings.orphans += 1
        findings.wrong += [f"{book.table}: {path.name} is missing" for path in sorted(needed - on_disk)[:5]]
        return findings


def _path(location: str) -> Path:
    return Path(unquote(urlsplit(location).path))
