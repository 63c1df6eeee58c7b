"""The invariants of the design, looked at from outside: rows, watermarks, keys, files, history."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import StaticTable

from chaos.ledger import Book
from distop.metastore.client import EtcdClient
from distop.metastore.keyspace import TableKeys
from distop.metastore.records import Head, decode, decode_watermarks
from distop.metastore.txn import Get, Txn

AT_REST = re.compile(
    r"(_coordinators|_executors|_namespaces|_audit)\..+"
    r"|[^.]+\.(table|head|watermarks|coordinator|ordering)"
    r"|[^.]+\.(history|request|audit|applied)\..+"
    r"|[^.]+\.[^.]+\.nextInstanceId"
)
"""The keys that may stand when nothing runs."""

OWN_FOLDER = re.compile(r"^(data|metadata|files|quarantine)/[a-z_]+-[0-9a-f]{6,}/")
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
    """Anything else."""

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
class Standing:
    """Head and watermarks of a table at one revision."""

    location: str | None
    watermarks: frozenset[str]


async def standing(client: EtcdClient, keys: TableKeys) -> Standing:
    result = await client.txn(Txn(then=(Get(keys.head), Get(keys.watermarks))))
    head, watermarks = result.one(0, keys.head), result.one(1, keys.watermarks)
    location = decode(head.value, Head, head.key).metadata_location if head.exists else None
    named = decode_watermarks(watermarks.value)
    return Standing(location, frozenset(name for source in named.values() for name in source))


def read_rows(location: str | None) -> list[dict[str, Any]]:
    """``id`` and ``batch`` of all rows that a metadata file shows. Blocking."""
    if location is None:
        return []
    table = StaticTable.from_metadata(location)
    rows: list[dict[str, Any]] = table.scan(selected_fields=("id", "batch")).to_arrow().to_pylist()
    return rows


def check_rows(book: Book, seen: Standing) -> Findings:
    """Whether a table at rest holds what it should. Blocking."""
    expected, found = Counter(book.expected()), Counter(row["id"] for row in read_rows(seen.location))
    lost, strange = expected - found, found - expected
    doubled = sum(count for number, count in strange.items() if number in expected)
    # Counted when they are new; what was there before must still be, and only once, but is not counted again.
    new = book.fresh & expected.keys()
    book.fresh.clear()
    findings = Findings(len(new), sum(found[number] for number in new), lost.total(), doubled)
    if foreign := sorted(number for number in strange if number not in expected):
        findings.wrong.append(
            f"{book.table}: {len(foreign)} rows that nobody published, such as {foreign[0]}"
        )
    if seen.watermarks != book.watermarks:
        differing = sorted(seen.watermarks ^ book.watermarks)
        findings.wrong.append(f"{book.table}: watermarks do not match what is published: {differing[:5]}")
    return findings


def check_whole(book: Book, seen: Standing, sizes: dict[str, int]) -> str | None:
    """What a reader may never see: a part of a batch, or rows without their watermark (P3, C8)."""
    counts = Counter(row["batch"] for row in read_rows(seen.location))
    counts.pop("foreign", None)
    partial = {name: count for name, count in counts.items() if count != sizes.get(name)}
    if partial:
        return f"{book.table}: a reader saw {partial} of {[sizes.get(name) for name in partial]} rows"
    if book.replaces:
        if len(counts) > 1:
            return f"{book.table}: a reader saw {len(counts)} batches where each replaces the others"
        if not counts.keys() <= seen.watermarks:
            return f"{book.table}: a reader saw rows without their watermark: {sorted(counts)}"
        return None
    if counts.keys() != seen.watermarks:
        differing = sorted(counts.keys() ^ seen.watermarks)[:5]
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
        self._manifests: dict[str, set[str]] = {}

    def of(self, location: str | None) -> set[str]:
        """All files of all snapshots of a table. Blocking."""
        if location is None:
            return set()
        table = StaticTable.from_metadata(location)
        metadata, known = table.metadata, {location}
        known.update(entry.metadata_file for entry in metadata.metadata_log)
        for snapshot in metadata.snapshots:
            listed = snapshot.manifest_list
            if listed not in self._lists:
                manifests = snapshot.manifests(table.io)
                self._lists[listed] = [manifest.manifest_path for manifest in manifests]
                for manifest in manifests:
                    if manifest.manifest_path not in self._manifests:
                        assert manifest.content == ManifestContent.DATA
                        entries = manifest.fetch_manifest_entry(table.io)
                        paths = {entry.data_file.file_path for entry in entries}
                        self._manifests[manifest.manifest_path] = paths
            known.add(listed)
            for path in self._lists[listed]:
                known |= {path, *self._manifests[path]}
        return known

    def check(self, book: Book, location: str | None) -> Findings:
        """Whether files lie about that nobody refers to, or are missing. Blocking."""
        known = {_path(path) for path in self.of(location)}
        on_disk = {path for path in book.location.rglob("*") if path.is_file()}
        findings = Findings()
        for path in sorted(on_disk - known):
            name = str(path.relative_to(book.location))
            if OWN_FOLDER.match(name):
                findings.leftovers.append(f"file {book.table}/{name}")
            else:
                findings.orphans += 1
        missing = [path for path in known - on_disk if not path.name.endswith(".metadata.json")]
        findings.wrong += [f"{book.table}: {path.name} is missing" for path in sorted(missing)[:5]]
        return findings


def _path(location: str) -> Path:
    return Path(unquote(urlsplit(location).path))
