"""Reads and rewrites a table's metadata file without parsing its past snapshots; what the table holds at
present.

A metadata file repeats every snapshot of the table, so a commit that parsed all of them would get slower with
every snapshot. A commit needs only the present one; the others are copied as bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from threading import Lock
from typing import Any, TypeVar

import msgspec
from pydantic import ValidationError as PydanticError
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import TableProperties
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import TableUpdate, update_table_metadata
from pyiceberg.utils.properties import property_as_int

from distop.commit.contract import FinishContext
from distop.errors import CorruptRecord, TableNotEmpty
from distop.lake.layout.metadata import check_columns, metadata_text, not_metadata
from distop.lake.layout.model import file_io
from distop.lake.pyiceberg_private import UNCHECKED
from distop.lake.storage.storage import StorageOptions, storage_of
from distop.metastore.records.record import decode, from_json
from distop.metastore.records.table import Head
from distop.operations.api import PlanRequest

_SNAPSHOTS, _SNAPSHOT_LOG, _METADATA_LOG = "snapshots", "snapshot-log", "metadata-log"

E = TypeVar("E")
L = TypeVar("L", bound="_Logged")

MAX_REMEMBERED = 16
MAX_REMEMBERED_BYTES = 64 << 20
"""How many parsed metadata files written by this process are cached, and how many bytes of such files."""


class _SnapshotId(msgspec.Struct, rename="kebab"):
    snapshot_id: int


class _Logged(msgspec.Struct, rename="kebab"):
    timestamp_ms: int


class _LogEntry(_Logged):
    metadata_file: str


class _CurrentSince(_Logged):
    snapshot_id: int


@dataclass(frozen=True)
class Successor:
    """The metadata file that follows another one."""

    content: bytes
    """The file, which is JSON."""
    dropped: list[str]
    """Metadata files that the metadata log no longer names."""
    file: TableFile | None = None
    """The content, parsed; not written yet."""


@dataclass(frozen=True)
class TableFile:
    """A metadata file of a table, parsed."""

    location: str | None
    """``None``: the table is not written yet."""
    metadata: TableMetadata
    """The parsed metadata; of its snapshots only those that a branch or tag names, and no logs."""
    _raw_snapshots: list[msgspec.Raw] = field(default_factory=list)
    _ids: list[int] = field(default_factory=list)
    _snapshot_log: list[_CurrentSince] = field(default_factory=list)
    _log: list[_LogEntry] = field(default_factory=list)
    _size: int = 0
    """Bytes, of a file that this process writes."""

    @classmethod
    def read(
        cls,
        location: str,
        storage: StorageOptions | None = None,
        *,
        also: Iterable[int] = (),
    ) -> TableFile:
        """Read a metadata file.

        Parameters
        ----------
        also:
            Ids of past snapshots that updates are going to name.

        Raises :class:`~distop.errors.CorruptRecord` if it is missing or is not table metadata, and
        :class:`~distop.errors.UnsupportedType` if distop does not read one of the columns.
        """
        if not also and (written := _written.get(location)) is not None:
            return written
        content = _content(location, storage)
        try:
            file = cls._parse(location, content, also)
        except (
            ValidationError,
            PydanticError,
            msgspec.MsgspecError,
            UnicodeDecodeError,
            *UNCHECKED,
        ) as error:
            raise not_metadata(location, content, error) from error
        check_columns(file.metadata, location)
        return file

    @classmethod
    def _parse(cls, location: str, content: bytes, also: Iterable[int]) -> TableFile:
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
        # Parsing all of it takes time that grows with the past: only some parts are parsed.
        refs = from_json(fields.get("refs") or b"{}", dict[str, _SnapshotId])
        current = msgspec.json.decode(fields.get("current-snapshot-id") or b"null", type=int | None)
        wanted = {current, *(ref.snapshot_id for ref in refs.values()), *also}
        snapshots = _listed(fields, _SNAPSHOTS, msgspec.Raw)
        ids = [snapshot.snapshot_id for snapshot in _listed(fields, _SNAPSHOTS, _SnapshotId)]
        snapshot_log = _listed(fields, _SNAPSHOT_LOG, _CurrentSince)
        log = _listed(fields, _METADATA_LOG, _LogEntry)
        named = [raw for raw, each in zip(snapshots, ids, strict=True) if each in wanted]
        slim = {**fields, _SNAPSHOTS: named, _SNAPSHOT_LOG: [], _METADATA_LOG: []}
        metadata = TableMetadataUtil.parse_raw(msgspec.json.encode(slim).decode())
        return cls(location, metadata, snapshots, ids, snapshot_log, log)

    @classmethod
    def of(cls, metadata: TableMetadata, location: str | None = None) -> TableFile:
        """Complete metadata in memory; read from ``location``, or not written yet."""
        return cls(location, metadata)

    # -- the past --------------------------------------------------------------------------------------

    @cached_property
    def snapshot_ids(self) -> frozenset[int]:
        """Ids of all snapshots."""
        return frozenset((*self._ids, *(snapshot.snapshot_id for snapshot in self.metadata.snapshots)))

    @cached_property
    def was_present(self) -> frozenset[int]:
        """Ids of the snapshots that were the table's present one at some time, as far as its log goes."""
        own = {entry.snapshot_id for entry in self._snapshot_log}
        return frozenset(own | {entry.snapshot_id for entry in self.metadata.snapshot_log})

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """Any snapshot, also one of the past."""
        present = self.metadata.snapshot_by_id(snapshot_id)
        if present is not None or snapshot_id not in self._ids:
            return present
        return Snapshot.model_validate_json(bytes(self._raw_snapshots[self._ids.index(snapshot_id)]))

    # -- the next one ----------------------------------------------------------------------------------

    def successor(self, updates: Iterable[TableUpdate]) -> Successor:
        """The metadata after the updates. They may remove snapshots only of :meth:`of` metadata."""
        changed = update_table_metadata(self.metadata, tuple(updates), metadata_location=self.location)
        metadata = in_order(changed, self.metadata)
        content = metadata.model_dump_json().encode()
        dropped: list[str] = []
        file = None
        if self._raw_snapshots or self._snapshot_log or self._log:
            fields: dict[str, Any] = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
            known = set(self._ids)
            added = [
                (raw, each.snapshot_id)
                for raw, each in zip(
                    _listed(fields, _SNAPSHOTS, msgspec.Raw),
                    _listed(fields, _SNAPSHOTS, _SnapshotId),
                    strict=True,
                )
                if each.snapshot_id not in known
            ]
            # Copies: as views, they would keep each version's text in memory.
            new, new_ids = [raw.copy() for raw, _ in added], [snapshot_id for _, snapshot_id in added]
            moved = _rising([*self._snapshot_log, *_listed(fields, _SNAPSHOT_LOG, _CurrentSince)])
            log = _rising([*self._log, *_listed(fields, _METADATA_LOG, _LogEntry)])
            first = max(0, len(log) - _versions_kept(metadata.properties))
            dropped = [entry.metadata_file for entry in log[:first]]
            last = max(metadata.last_updated_ms, *(entry.timestamp_ms for entry in (*moved[-1:], *log[-1:])))
            metadata = metadata.model_copy(update={"last_updated_ms": last})
            fields |= {
                _SNAPSHOTS: [*self._raw_snapshots, *new],
                _SNAPSHOT_LOG: moved,
                _METADATA_LOG: log[first:],
                "last-updated-ms": last,
            }
            content = msgspec.json.encode(fields)
            file = replace(self._next(metadata, fields, new_ids, log[first:]), _size=len(content))
        else:
            kept = {entry.metadata_file for entry in metadata.metadata_log}
            before = (entry.metadata_file for entry in self.metadata.metadata_log)
            dropped = [name for name in before if name not in kept]
        return Successor(content, dropped, file)

    def _next(
        self, metadata: TableMetadata, fields: Mapping[str, Any], new_ids: list[int], log: list[_LogEntry]
    ) -> TableFile:
        wanted = {metadata.current_snapshot_id, *(ref.snapshot_id for ref in metadata.refs.values())}
        named = [snapshot for snapshot in metadata.snapshots if snapshot.snapshot_id in wanted]
        slim = metadata.model_copy(update={"snapshots": named, "snapshot_log": [], "metadata_log": []})
        ids = [*self._ids, *new_ids]
        return TableFile(None, slim, fields[_SNAPSHOTS], ids, fields[_SNAPSHOT_LOG], log)

    def remember(self, location: str) -> None:
        """Cache metadata that was just written: the next reader in this process need not parse it.

        Metadata files never change, and their names are never reused.
        """
        if self._size > MAX_REMEMBERED_BYTES:
            return
        with _lock:
            _written[location] = replace(self, location=location)
            while (
                len(_written) > MAX_REMEMBERED
                or sum(file._size for file in _written.values()) > MAX_REMEMBERED_BYTES
            ):
                del _written[next(iter(_written))]


def present_file(request: PlanRequest) -> TableFile | None:
    """The table's metadata file when an operation is planned; ``None`` if nothing has been published."""
    head = request.head
    return None if head is None else TableFile.read(head.metadata_location, storage_of(request.table))


def in_order(metadata: TableMetadata, base: TableMetadata | None = None) -> TableMetadata:
    """The metadata after ``base``, with no time in it before that, and none before an earlier one: Iceberg's
    Java and Rust libraries read no table whose times go back by more than a minute, and clocks may differ by
    more. Earlier entries of its logs that do so are put in order, too."""
    least = 0 if base is None else base.last_updated_ms
    known = (
        {(entry.snapshot_id, entry.timestamp_ms) for entry in base.snapshot_log}
        if base is not None
        else set()
    )
    moved = [
        entry.model_copy(update={"timestamp_ms": least})
        if entry.timestamp_ms < least and (entry.snapshot_id, entry.timestamp_ms) not in known
        else entry
        for entry in metadata.snapshot_log
    ]
    logs: dict[str, list[Any]] = {"snapshot_log": moved, "metadata_log": metadata.metadata_log}
    rising = {
        name: [
            entry if entry.timestamp_ms == at else entry.model_copy(update={"timestamp_ms": at})
            for entry, at in zip(log, _times(log), strict=True)
        ]
        for name, log in logs.items()
    }
    ends = (entry.timestamp_ms for log in rising.values() for entry in log[-1:])
    return metadata.model_copy(
        update={**rising, "last_updated_ms": max(metadata.last_updated_ms, least, *ends)}
    )


def _rising(log: list[L]) -> list[L]:
    return [
        entry if entry.timestamp_ms == at else msgspec.structs.replace(entry, timestamp_ms=at)
        for entry, at in zip(log, _times(log), strict=True)
    ]


def _times(log: Iterable[Any]) -> Iterator[int]:
    """The times of a log's entries, each at least the one before."""
    return accumulate((entry.timestamp_ms for entry in log), max)


MAX_BACK_MS = 60_000
"""How far times may go back so that Iceberg's Java library reads a table."""


def goes_back(metadata: TableMetadata) -> bool:
    """Whether times in a table's metadata go back further than Iceberg's Java library allows."""
    logs = (metadata.snapshot_log, metadata.metadata_log)
    times = [[*(entry.timestamp_ms for entry in log), metadata.last_updated_ms] for log in logs]
    return any(later < earlier - MAX_BACK_MS for each in times for earlier, later in pairwise(each))


class Lineage(msgspec.Struct, frozen=True, rename="kebab"):
    """A metadata file's statements about itself and its predecessors."""

    table_uuid: str = ""
    last_updated_ms: int = 0
    current_snapshot_id: int | None = None
    metadata_log: list[_LogEntry] = []

    @property
    def earlier(self) -> list[str]:
        """Names of the metadata files that it follows; its direct base is the last."""
        return [entry.metadata_file.rpartition("/")[2] for entry in self.metadata_log]


def lineage_of(location: str, storage: StorageOptions | None = None) -> Lineage:
    """Read what a metadata file follows. Raises as :meth:`TableFile.read`."""
    try:
        return from_json(_content(location, storage), Lineage)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"{location} is not table metadata: {error}") from error


def _content(location: str, storage: StorageOptions | None) -> bytes:
    try:
        return metadata_text(file_io(location, storage), location)
    except FileNotFoundError as error:
        raise CorruptRecord(f"the table's metadata file {location} is missing") from error


_written: dict[str, TableFile] = {}
_lock = Lock()


def _listed(fields: Mapping[str, msgspec.Raw], name: str, kind: type[E]) -> list[E]:
    raw = fields.get(name)
    if raw is None:
        return []
    entries: list[E] | None = from_json(raw, list[kind] | None)  # type: ignore[valid-type, arg-type]
    return entries or []


def _versions_kept(properties: Mapping[str, str]) -> int:
    kept = property_as_int(
        dict(properties),
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX,
        TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT,
    )
    return max(1, kept or TableProperties.METADATA_PREVIOUS_VERSIONS_MAX_DEFAULT)


IGNORE = "ignore"
MAX_REPLACEMENTS = 1000
"""Most snapshots in a row that are examined."""
MAX_LINEAGE = 10_000
"""Most snapshots that are examined for the one that removed a file."""
SHOWN = 20
"""Most snapshots, and partitions, that facts and errors name."""


def is_live(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


def data_of(file: TableFile, io: FileIO) -> Snapshot | None:
    """The present snapshot, if it holds any file; ``None`` if the table has no data."""
    snapshot = file.metadata.current_snapshot()
    if snapshot is None:
        return None
    return snapshot if any(is_live(manifest) for manifest in snapshot.manifests(io)) else None


def data_at(head: Head | None, storage: StorageOptions | None = None) -> Snapshot | None:
    """The same for the table with this head."""
    if head is None:
        return None
    file = TableFile.read(head.metadata_location, storage)
    metadata = file.metadata
    return data_of(file, file_io(metadata.location, storage))


def other_partitioning(head: Head, storage: StorageOptions | None = None) -> bool:
    """Whether the table holds files of another partitioning than its present one."""
    metadata = TableFile.read(head.metadata_location, storage=storage).metadata
    snapshot = metadata.current_snapshot()
    if snapshot is None or len(metadata.partition_specs) == 1:
        return False
    manifests = snapshot.manifests(file_io(metadata.location, storage))
    return any(
        is_live(manifest) and manifest.partition_spec_id != metadata.default_spec_id for manifest in manifests
    )


def only_replaced(file: TableFile, snapshot: Snapshot | None, since: int | None) -> bool:
    """Whether a snapshot has the same rows as an earlier one: only replacements came after it.

    Parameters
    ----------
    since:
        Id of that snapshot; ``None``: before the first one.
    """
    return _only(Operation.REPLACE, file, snapshot, since)


def only_appended(file: TableFile, snapshot: Snapshot | None, since: int | None) -> bool:
    """Whether a snapshot has all files of an earlier one: nothing but appends came after it."""
    return _only(Operation.APPEND, file, snapshot, since)


def _only(kind: Operation, file: TableFile, snapshot: Snapshot | None, since: int | None) -> bool:
    if since is None:
        return snapshot is None
    for _ in range(MAX_REPLACEMENTS):
        if snapshot is None or snapshot.snapshot_id == since:
            return snapshot is not None
        if snapshot.summary is None or snapshot.summary.operation != kind:
            return False
        parent = snapshot.parent_snapshot_id
        if parent == since:
            return True
        # Nothing is known of expired snapshots, the parent included.
        snapshot = None if parent is None else file.snapshot(parent)
    return False


def removers(file: TableFile, current: Snapshot | None, since: str | None) -> list[Snapshot]:
    """The snapshots since another one that may have removed something, the newest first.

    The present one, if that is unknown since snapshots between have expired.
    """
    removing = []
    snapshot = current
    for _ in range(MAX_LINEAGE):
        if snapshot is None or str(snapshot.snapshot_id) == since:
            break
        if snapshot.summary is None or snapshot.summary.operation != Operation.APPEND:
            removing.append(snapshot)
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else file.snapshot(parent)
    return removing[:SHOWN] or ([current] if current is not None else [])


def is_ignored(context: FinishContext) -> bool:
    """Whether an operation must change nothing, watermarks included.

    The mode ``ignore`` asks for this when the table holds data by then. All steps of an operation must come
    to the same answer: all see the same head, and the transaction compares it.
    """
    arg = context.view.arg
    if arg.argument.get("mode") != IGNORE or context.table.format != "iceberg":
        return False
    if arg.argument.get("ignored"):
        return True
    head = decode(context.head.value, Head, context.head.key) if context.head.exists else None
    return data_at(head, arg.storage) is not None


def not_empty(table: str, current: Snapshot) -> TableNotEmpty:
    """The error for a table that must be empty and is not."""
    by = writer_of(current)
    return TableNotEmpty(
        f"table {table!r} already holds data: snapshot {current.snapshot_id}, written by {by}",
        hint="append to it, or overwrite what is there",
        details={"table": table, "snapshot": str(current.snapshot_id), "by": by},
    )


def named(snapshot_id: int | None) -> str:
    """A snapshot, or its absence, for use in a sentence."""
    return "no snapshot" if snapshot_id is None else f"snapshot {snapshot_id}"


def writer_of(snapshot: Snapshot | None) -> str:
    """Who wrote a snapshot: an operation of distop, or ``another program``."""
    by = snapshot.summary["distop.operation"] if snapshot is not None and snapshot.summary else None
    return str(by or "another program")
